//! Attaching to pod devices, and taking it back.

use std::{collections::HashMap, io, os::fd::AsFd};

use aya::programs::{
    LinkOrder, ProgramError, SchedClassifier, TcAttachType,
    tc::{SchedClassifierLink, TcAttachOptions},
};
use nix::{errno::Errno, net::if_::if_nametoindex};

use super::{
    AttachMode, Programs,
    leftovers::PROGRAM,
    removals::Removals,
    tc::{HANDLE, Tc, TcError},
};
use crate::engine::IfIndex;

/// Why a device could not be attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It is gone, or bears another name or index by now.
    #[error("the device {name} vanished while the agent attached to it")]
    Vanished {
        /// Its name.
        name: String,
    },
    /// A capability is missing.
    #[error("attaching to {name} needs CAP_NET_ADMIN: run as root, or grant it to the agent")]
    MissingCapability {
        /// The device.
        name: String,
    },
    /// TCX was asked for.
    #[error("the kernel has no TCX (Linux 6.6 or newer has): use --attach tc for {name}")]
    NoTcx {
        /// The device.
        name: String,
    },
    /// Something else.
    #[error("attaching to {name} failed: {reason}")]
    Refused {
        /// The device.
        name: String,
        /// What the kernel said.
        reason: String,
    },
}

/// What a device is attached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// A `clsact` filter.
    Clsact,
    /// TCX.
    Tcx,
}

/// The devices attached to.
#[derive(Debug)]
pub(super) struct Devices {
    tc: Tc,
    removals: Removals,
    mode: AttachMode,
    attached: HashMap<IfIndex, Attachment>,
}

#[derive(Debug)]
enum Attachment {
    Clsact {
        priority: u16,
        /// We added `clsact` to the device.
        made_clsact: bool,
    },
    /// Dropping the link detaches.
    Tcx(#[expect(dead_code, reason = "held for its drop")] SchedClassifierLink),
}

impl Attachment {
    fn how(&self) -> Attached {
        match self {
            Self::Clsact { .. } => Attached::Clsact,
            Self::Tcx(_) => Attached::Tcx,
        }
    }
}

impl Devices {
    /// Nothing attached to yet, in the network namespace that the caller is in.
    pub(super) fn open(mode: AttachMode) -> Result<Self, TcError> {
        Ok(Self {
            tc: Tc::open()?,
            removals: Removals::open()?,
            mode,
            attached: HashMap::new(),
        })
    }

    fn attach(
        &mut self,
        program: &mut SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<Attached, AttachError> {
        let wanted = match self.mode {
            AttachMode::Tc => Attached::Clsact,
            AttachMode::Tcx => Attached::Tcx,
            AttachMode::Auto if others_on_tcx(name) => Attached::Tcx,
            AttachMode::Auto => Attached::Clsact,
        };
        if let Some(present) = self.attached.get(&ifindex)
            && present.how() == wanted
        {
            return Ok(wanted);
        }
        let attachment = match wanted {
            Attached::Clsact => self.attach_clsact(program, ifindex, name)?,
            Attached::Tcx => attach_tcx(program, ifindex, name)?,
        };
        // The new one stands before the old one goes: nothing is missed, and what is seen twice is published once.
        if let Some(old) = self.attached.insert(ifindex, attachment) {
            self.take_back(ifindex, old);
        }
        Ok(wanted)
    }

    /// Whether our filter sees nothing where it is: somebody removed it with its `clsact`, or came to stand before it on
    /// TCX, of which the kernel does not tell.
    fn is_displaced(&mut self, ifindex: IfIndex, name: &str) -> Result<bool, AttachError> {
        match self.attached.get(&ifindex) {
            Some(Attachment::Clsact { .. }) => {}
            Some(Attachment::Tcx(_)) => return Ok(false),
            // Attaching anew failed the last time.
            None => return Ok(true),
        }
        if self.mode == AttachMode::Auto && others_on_tcx(name) {
            return Ok(true);
        }
        if !self.removals.concern(ifindex) {
            return Ok(false);
        }
        let filters = self.tc.ingress_filters(ifindex);
        let filters = filters.map_err(|error| tc_error(name, &error))?;
        let there = filters.iter().any(|filter| filter.is_named(PROGRAM));
        if !there {
            // Nothing is left to take back.
            self.attached.remove(&ifindex);
        }
        Ok(!there)
    }

    fn attach_clsact(
        &mut self,
        program: &SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<Attachment, AttachError> {
        let failed = |error: TcError| tc_error(name, &error);
        let fd = program.fd().map_err(|error| program_error(name, &error))?;
        let made_clsact = self.tc.add_clsact(ifindex).map_err(failed)?;
        let priority = if made_clsact {
            0
        } else {
            self.place_before_others(ifindex).map_err(failed)?
        };
        let priority = match self.tc.add_filter(ifindex, priority, PROGRAM, fd.as_fd()) {
            Ok(priority) => priority,
            Err(error) => {
                if made_clsact {
                    self.remove_empty_clsact(ifindex);
                }
                return Err(failed(error));
            }
        };
        Ok(Attachment::Clsact {
            priority,
            made_clsact,
        })
    }

    /// The place in line at which other people's verdicts do not hide packets from us: beside the first of them where the
    /// kernel lets filters share a place (the newest at a place runs first), else just before it. Zero, the kernel's
    /// choice, where nobody stands.
    fn place_before_others(&mut self, ifindex: IfIndex) -> Result<u16, TcError> {
        Ok(match self.tc.ingress_filters(ifindex)?.first() {
            None => 0,
            Some(first) if first.is_for_any_bpf() => first.priority,
            Some(first) => first.priority.saturating_sub(1),
        })
    }

    fn take_back(&mut self, ifindex: IfIndex, attachment: Attachment) {
        let Attachment::Clsact {
            priority,
            made_clsact,
        } = attachment
        else {
            return;
        };
        match self.tc.remove_filter(ifindex, priority, HANDLE) {
            Ok(()) => {
                if made_clsact {
                    self.remove_empty_clsact(ifindex);
                }
            }
            // The device is gone, or somebody removed the filter with its `clsact`.
            Err(TcError::Refused(Errno::ENODEV | Errno::ENOENT | Errno::EINVAL)) => {}
            Err(error) => {
                tracing::warn!(ifindex, %error, "a filter could not be removed; `detector-agent cleanup` will")
            }
        }
    }

    /// Removes the `clsact` we added, unless somebody uses it by now. (The kernel has no way to ask and remove in one go;
    /// between the two lie a few microseconds.)
    fn remove_empty_clsact(&mut self, ifindex: IfIndex) {
        if matches!(self.tc.is_clsact_empty(ifindex), Ok(true))
            && let Err(error) = self.tc.remove_clsact(ifindex)
        {
            tracing::debug!(ifindex, %error, "clsact stays");
        }
    }

    fn detach(&mut self, ifindex: IfIndex) {
        if let Some(attachment) = self.attached.remove(&ifindex) {
            self.take_back(ifindex, attachment);
        }
    }

    fn detach_all(&mut self) {
        for (ifindex, attachment) in std::mem::take(&mut self.attached) {
            self.take_back(ifindex, attachment);
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.detach_all();
    }
}

impl Programs {
    /// Attaches to a device's ingress side. On a device already attached to, looks again whether it has to stand elsewhere
    /// ([`AttachMode::Auto`]).
    ///
    /// # Errors
    /// [`AttachError::Vanished`] where the device went away meanwhile, which is normal; else what the kernel said.
    pub fn attach(&mut self, ifindex: IfIndex, name: &str) -> Result<Attached, AttachError> {
        let Some((program, devices)) = self.classifier() else {
            return Err(AttachError::Refused {
                name: name.to_owned(),
                reason: format!("{PROGRAM} is not loaded"),
            });
        };
        devices.attach(program, ifindex, name)
    }

    /// Looks whether the program still stands where it sees the device's frames, and attaches anew where it does not. Says
    /// whether it had to: frames were missed then. Belongs to a round begun by [`Programs::begin_look`].
    ///
    /// # Errors
    /// As [`Programs::attach`].
    pub fn look_again(&mut self, ifindex: IfIndex, name: &str) -> Result<bool, AttachError> {
        let displaced = self.devices.is_displaced(ifindex, name)?;
        if displaced {
            self.attach(ifindex, name)?;
        }
        Ok(displaced)
    }

    /// Begins a round of [`Programs::look_again`] over the devices: takes what the kernel told of removed filters since
    /// the last one. With `every_device`, filters are listed whatever it told.
    pub fn begin_look(&mut self, every_device: bool) {
        self.devices.removals.listen(every_device);
    }

    /// Takes back what was attached to a device; nothing where there is nothing.
    pub fn detach(&mut self, ifindex: IfIndex) {
        self.devices.detach(ifindex);
    }

    /// Takes back everything that was attached to devices.
    pub fn detach_all(&mut self) {
        self.devices.detach_all();
    }

    /// What a device is attached by; `None` where it is not.
    #[must_use]
    pub fn attached(&self, ifindex: IfIndex) -> Option<Attached> {
        self.devices.attached.get(&ifindex).map(Attachment::how)
    }
}

/// Whether somebody else's program stands on TCX. A kernel without TCX says no.
fn others_on_tcx(name: &str) -> bool {
    SchedClassifier::query_tcx(name, TcAttachType::Ingress).is_ok_and(|(_, programs)| {
        // The kernel keeps the first 15 bytes of a program's name; a program may have none.
        let kept = PROGRAM.get(..15);
        programs.iter().any(|program| program.name_as_str() != kept)
    })
}

/// The kernel's interface takes a name: the index is compared before and after, so that a device that takes over the name
/// meanwhile is not mistaken for the one meant.
fn attach_tcx(
    program: &mut SchedClassifier,
    ifindex: IfIndex,
    name: &str,
) -> Result<Attachment, AttachError> {
    let is_still_it = || if_nametoindex(name) == Ok(ifindex);
    let vanished = || AttachError::Vanished {
        name: name.to_owned(),
    };
    if !is_still_it() {
        return Err(vanished());
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program
        .attach_with_options(name, TcAttachType::Ingress, options)
        .and_then(|id| program.take_link(id))
        .map_err(|error| program_error(name, &error))?;
    if !is_still_it() {
        return Err(vanished());
    }
    Ok(Attachment::Tcx(link))
}

fn tc_error(name: &str, error: &TcError) -> AttachError {
    let name = name.to_owned();
    match error.errno() {
        Some(Errno::ENODEV) => AttachError::Vanished { name },
        Some(Errno::EPERM | Errno::EACCES) => AttachError::MissingCapability { name },
        _ => AttachError::Refused {
            name,
            reason: error.to_string(),
        },
    }
}

fn program_error(name: &str, error: &ProgramError) -> AttachError {
    let name = name.to_owned();
    match os_error(error) {
        Some(Errno::ENODEV) => AttachError::Vanished { name },
        Some(Errno::EPERM | Errno::EACCES) => AttachError::MissingCapability { name },
        Some(Errno::EINVAL) => AttachError::NoTcx { name },
        _ => AttachError::Refused {
            name,
            reason: error.to_string(),
        },
    }
}

/// The system's error behind one of the library's.
fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return Some(Errno::from_raw(code));
        }
        next = error.source();
    }
    None
}
