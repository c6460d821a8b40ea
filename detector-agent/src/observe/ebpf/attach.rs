//! Attaching to pod devices, and detaching.

use std::{collections::HashMap, io, os::fd::AsFd};

use aya::programs::{
    LinkOrder, ProgramError, SchedClassifier, TcAttachType,
    tc::{SchedClassifierLink, TcAttachOptions},
};
use nix::{errno::Errno, net::if_::if_nametoindex};

use super::{
    AttachMode, Programs,
    filter_removals::FilterRemovals,
    leftovers::PROGRAM,
    tc::{HANDLE, Tc, TcError},
};
use crate::{engine::IfIndex, error_chain};

/// Why a device could not be attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It is gone, or was renamed or replaced.
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
    /// TCX was requested.
    #[error("cannot attach to {name} by TCX, which needs Linux 6.6 or newer; use --attach tc")]
    NoTcx {
        /// The device.
        name: String,
    },
    /// Another error.
    #[error("cannot attach to {name}: {reason}")]
    Refused {
        /// The device.
        name: String,
        /// The kernel's error.
        reason: String,
    },
}

/// How the program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMethod {
    /// A `clsact` filter.
    Clsact,
    /// TCX.
    Tcx,
}

/// The devices that the program is attached to.
#[derive(Debug)]
pub(super) struct AttachedDevices {
    tc: Tc,
    removals: FilterRemovals,
    mode: AttachMode,
    attached: HashMap<IfIndex, Attachment>,
}

#[derive(Debug)]
enum Attachment {
    Clsact {
        priority: u16,
        /// Whether we added `clsact` to the device.
        added_clsact: bool,
    },
    /// Dropping the link detaches.
    Tcx(#[expect(dead_code, reason = "held for its drop")] SchedClassifierLink),
}

impl Attachment {
    fn method(&self) -> AttachMethod {
        match self {
            Self::Clsact { .. } => AttachMethod::Clsact,
            Self::Tcx(_) => AttachMethod::Tcx,
        }
    }
}

impl AttachedDevices {
    /// No devices yet, in the caller's network namespace.
    pub(super) fn open(mode: AttachMode) -> Result<Self, TcError> {
        Ok(Self {
            tc: Tc::open()?,
            removals: FilterRemovals::open()?,
            mode,
            attached: HashMap::new(),
        })
    }

    fn attach(
        &mut self,
        program: &mut SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<AttachMethod, AttachError> {
        let wanted = match self.mode {
            AttachMode::Tc => AttachMethod::Clsact,
            AttachMode::Tcx => AttachMethod::Tcx,
            AttachMode::Auto if has_foreign_tcx(name) => AttachMethod::Tcx,
            AttachMode::Auto => AttachMethod::Clsact,
        };
        if let Some(present) = self.attached.get(&ifindex)
            && present.method() == wanted
        {
            return Ok(wanted);
        }
        let attachment = match wanted {
            AttachMethod::Clsact => self.attach_clsact(program, ifindex, name)?,
            AttachMethod::Tcx => attach_tcx(program, ifindex, name)?,
        };
        // The new one is attached before the old one is detached: no frame is missed, and a claim seen twice is published
        // once.
        if let Some(old) = self.attached.insert(ifindex, attachment) {
            self.remove(ifindex, old);
        }
        Ok(wanted)
    }

    /// Whether our filter does not see frames: another program removed it together with `clsact`, or was attached before it by
    /// TCX, for which the kernel sends no notification.
    fn is_displaced(&mut self, ifindex: IfIndex, name: &str) -> Result<bool, AttachError> {
        match self.attached.get(&ifindex) {
            Some(Attachment::Clsact { .. }) => {}
            Some(Attachment::Tcx(_)) => return Ok(false),
            // The last attempt to reattach failed.
            None => return Ok(true),
        }
        if self.mode == AttachMode::Auto && has_foreign_tcx(name) {
            return Ok(true);
        }
        if !self.removals.may_affect(ifindex) {
            return Ok(false);
        }
        let filters = self.tc.ingress_filters(ifindex);
        let filters = filters.map_err(|error| tc_error(name, &error))?;
        let is_present = filters.iter().any(|filter| filter.is_named(PROGRAM));
        if !is_present {
            // There is no filter left to remove.
            self.attached.remove(&ifindex);
        }
        Ok(!is_present)
    }

    fn attach_clsact(
        &mut self,
        program: &SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<Attachment, AttachError> {
        let failed = |error: TcError| tc_error(name, &error);
        let fd = program.fd().map_err(|error| program_error(name, &error))?;
        let added_clsact = self.tc.add_clsact(ifindex).map_err(failed)?;
        let priority = if added_clsact {
            0
        } else {
            self.priority_before_others(ifindex).map_err(failed)?
        };
        let priority = match self.tc.add_filter(ifindex, priority, PROGRAM, fd.as_fd()) {
            Ok(priority) => priority,
            Err(error) => {
                if added_clsact {
                    self.remove_empty_clsact(ifindex);
                }
                return Err(failed(error));
            }
        };
        Ok(Attachment::Clsact {
            priority,
            added_clsact,
        })
    }

    /// The priority at which verdicts of other filters do not hide packets from ours: the first filter's own where the
    /// kernel lets filters share a priority (the newest runs first), else the one before it. Zero, the kernel's choice, if
    /// there are no filters.
    fn priority_before_others(&mut self, ifindex: IfIndex) -> Result<u16, TcError> {
        Ok(match self.tc.ingress_filters(ifindex)?.first() {
            None => 0,
            Some(first) if first.is_for_any_bpf() => first.priority,
            Some(first) => first.priority.saturating_sub(1),
        })
    }

    fn remove(&mut self, ifindex: IfIndex, attachment: Attachment) {
        let Attachment::Clsact {
            priority,
            added_clsact,
        } = attachment
        else {
            return;
        };
        match self.tc.remove_filter(ifindex, priority, HANDLE) {
            Ok(()) => {
                if added_clsact {
                    self.remove_empty_clsact(ifindex);
                }
            }
            // The device is gone, or another program removed the filter together with `clsact`.
            Err(TcError::Refused(Errno::ENODEV | Errno::ENOENT | Errno::EINVAL)) => {}
            Err(error) => {
                tracing::warn!(ifindex, %error, "filter not removed; run `detector-agent cleanup`")
            }
        }
    }

    /// Removes the `clsact` we added, unless others use it by now. (The kernel cannot check and remove atomically; a few
    /// microseconds lie between the two.)
    fn remove_empty_clsact(&mut self, ifindex: IfIndex) {
        if matches!(self.tc.is_clsact_empty(ifindex), Ok(true))
            && let Err(error) = self.tc.remove_clsact(ifindex)
        {
            tracing::debug!(ifindex, %error, "clsact not removed");
        }
    }

    fn detach(&mut self, ifindex: IfIndex) {
        if let Some(attachment) = self.attached.remove(&ifindex) {
            self.remove(ifindex, attachment);
        }
    }

    fn detach_all(&mut self) {
        for (ifindex, attachment) in std::mem::take(&mut self.attached) {
            self.remove(ifindex, attachment);
        }
    }
}

impl Drop for AttachedDevices {
    fn drop(&mut self) {
        self.detach_all();
    }
}

impl Programs {
    /// Attaches to a device's ingress side. On an attached device, moves to the other attach method if necessary
    /// ([`AttachMode::Auto`]).
    ///
    /// # Errors
    /// [`AttachError::Vanished`] if the device was removed meanwhile, which is normal; else the kernel's error.
    pub fn attach(&mut self, ifindex: IfIndex, name: &str) -> Result<AttachMethod, AttachError> {
        let Some((program, devices)) = self.classifier() else {
            return Err(AttachError::Refused {
                name: name.to_owned(),
                reason: format!("{PROGRAM} is not loaded"),
            });
        };
        devices.attach(program, ifindex, name)
    }

    /// Reattaches if another program removed or displaced the filter; returns whether it was, in which case frames were
    /// missed. Call [`Programs::begin_check`] before a round over the devices.
    ///
    /// # Errors
    /// As [`Programs::attach`].
    pub fn reattach_if_displaced(
        &mut self,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<bool, AttachError> {
        let displaced = self.devices.is_displaced(ifindex, name)?;
        if displaced {
            self.attach(ifindex, name)?;
        }
        Ok(displaced)
    }

    /// Begins a round of [`Programs::reattach_if_displaced`]: reads the kernel's notifications of removed filters since the
    /// last one. With `every_device`, the filters of all devices are listed.
    pub fn begin_check(&mut self, every_device: bool) {
        self.devices.removals.drain(every_device);
    }

    /// Detaches from a device, if attached.
    pub fn detach(&mut self, ifindex: IfIndex) {
        self.devices.detach(ifindex);
    }

    /// Detaches from all devices.
    pub fn detach_all(&mut self) {
        self.devices.detach_all();
    }

    /// How the program is attached to a device; `None` if it is not.
    #[must_use]
    pub fn attached(&self, ifindex: IfIndex) -> Option<AttachMethod> {
        self.devices.attached.get(&ifindex).map(Attachment::method)
    }
}

/// Whether a program of others is attached by TCX; `false` on a kernel without TCX.
fn has_foreign_tcx(name: &str) -> bool {
    SchedClassifier::query_tcx(name, TcAttachType::Ingress).is_ok_and(|(_, programs)| {
        // The kernel truncates a program's name to 15 bytes; a program may have none.
        let ours = PROGRAM.get(..15);
        programs.iter().any(|program| program.name_as_str() != ours)
    })
}

/// aya attaches by name, so the index is compared before and after, in case another device takes over the name meanwhile.
fn attach_tcx(
    program: &mut SchedClassifier,
    ifindex: IfIndex,
    name: &str,
) -> Result<Attachment, AttachError> {
    let is_same_device = || if_nametoindex(name) == Ok(ifindex);
    let vanished = || AttachError::Vanished {
        name: name.to_owned(),
    };
    if !is_same_device() {
        return Err(vanished());
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program
        .attach_with_options(name, TcAttachType::Ingress, options)
        .and_then(|id| program.take_link(id))
        .map_err(|error| program_error(name, &error))?;
    if !is_same_device() {
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

/// The errno in the chain of an error.
fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    error_chain::causes(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .find_map(io::Error::raw_os_error)
        .map(Errno::from_raw)
}
