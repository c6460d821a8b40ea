//! Attaching to pod devices, and detaching.
//!
//! Filters of others may hide frames from those behind them, so ours has to run first. On `clsact` it moves to the front of
//! the filters that it finds ([`placement`]); behind one that cannot be preceded there, TCX is used, which runs
//! before `clsact`.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
};

use aya::programs::{SchedClassifier, tc::SchedClassifierLink};
use detector_engine::IfIndex;
use nix::errno::Errno;
use tracing::{debug, warn};

use super::{
    AttachError, AttachMode, Programs,
    attach_error::{program_error, tc_error},
    filter_changes::{ChangedDevices, FilterChanges},
    leftovers::PROGRAM,
    placement,
    tc::{AddedFilter, Place, Tc, TcError, TcFilter},
    tcx,
};

/// How often attaching is tried if filters change meanwhile.
const ATTEMPTS: u32 = 3;

/// How the program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMethod {
    /// A `clsact` filter.
    Clsact,
    /// TCX.
    Tcx,
}

/// What attaching changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOutcome {
    /// Nothing: the program was attached, and runs before all others.
    Unchanged,
    /// The program was attached or moved, and runs before all others now.
    Attached,
    /// The program is attached, but another program's filter runs before it and may hide frames.
    Preempted,
}

/// The devices that the program is attached to.
#[derive(Debug)]
pub(super) struct AttachedDevices {
    tc: Tc,
    changes: FilterChanges,
    mode: AttachMode,
    attached: HashMap<IfIndex, Attachment>,
}

#[derive(Debug)]
enum Attachment {
    Clsact(Place),
    /// Dropping the link detaches.
    Tcx(#[expect(dead_code, reason = "held for its drop")] SchedClassifierLink),
}

impl Attachment {
    fn method(&self) -> AttachMethod {
        match self {
            Self::Clsact(_) => AttachMethod::Clsact,
            Self::Tcx(_) => AttachMethod::Tcx,
        }
    }
}

impl AttachedDevices {
    /// No devices yet, in the caller's network namespace.
    pub(super) fn open(mode: AttachMode) -> Result<Self, TcError> {
        Ok(Self {
            tc: Tc::open()?,
            changes: FilterChanges::open()?,
            mode,
            attached: HashMap::new(),
        })
    }

    fn method(&self, ifindex: IfIndex) -> Option<AttachMethod> {
        self.attached.get(&ifindex).map(Attachment::method)
    }

    fn attach(
        &mut self,
        program: &mut SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<AttachOutcome, AttachError> {
        let uses_tcx = match self.mode {
            AttachMode::Tc => false,
            AttachMode::Tcx => true,
            AttachMode::Auto => {
                self.method(ifindex) == Some(AttachMethod::Tcx)
                    || tcx::has_foreign_program(ifindex, name)
            }
        };
        if uses_tcx {
            self.attach_tcx(program, ifindex, name)
        } else {
            self.attach_clsact(program, ifindex, name)
        }
    }

    /// As `attach`, without listing the filters of a device that is attached by `clsact` unless a program is on TCX.
    fn attach_unless_on_clsact(
        &mut self,
        program: &mut SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<AttachOutcome, AttachError> {
        let is_on_clsact = self.method(ifindex) == Some(AttachMethod::Clsact);
        if is_on_clsact && (self.mode == AttachMode::Tc || !tcx::has_foreign_program(ifindex, name))
        {
            return Ok(AttachOutcome::Unchanged);
        }
        self.attach(program, ifindex, name)
    }

    fn attach_tcx(
        &mut self,
        program: &mut SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<AttachOutcome, AttachError> {
        if self.method(ifindex) == Some(AttachMethod::Tcx) && tcx::is_first(name) {
            return Ok(AttachOutcome::Unchanged);
        }
        let link = tcx::attach_first(program, ifindex, name)?;
        self.replace(ifindex, Attachment::Tcx(link));
        Ok(AttachOutcome::Attached)
    }

    fn attach_clsact(
        &mut self,
        program: &mut SchedClassifier,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<AttachOutcome, AttachError> {
        let failed = |error: TcError| tc_error(name, &error);
        let is_new = !self.attached.contains_key(&ifindex);
        if is_new {
            // A device without `clsact` has no filters to list.
            let place = placement::first_free(&[], None).place;
            let fd = program.fd().map_err(|error| program_error(name, &error))?;
            if let Ok(AddedFilter::Only) = self.add_filter(ifindex, place, fd.as_fd()) {
                return Ok(AttachOutcome::Attached);
            }
        }
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            let filters = self.tc.ingress_filters(ifindex).map_err(failed)?;
            let present = self.position_of_ours(ifindex, &filters);
            match present {
                Some(0) if is_new => return Ok(AttachOutcome::Attached),
                Some(0) => return Ok(AttachOutcome::Unchanged),
                Some(_) => {}
                // Another program removed or replaced it: there is nothing left to detach.
                None => drop(self.attached.remove(&ifindex)),
            }
            let free = placement::first_free(&filters, present);
            if free.preceded_by > 0 && self.mode == AttachMode::Auto {
                match self.attach_tcx(program, ifindex, name) {
                    Ok(outcome) => return Ok(outcome),
                    Err(error @ AttachError::Vanished { .. }) => return Err(error),
                    Err(error) => debug!(device = name, %error, "not attached by TCX"),
                }
            }
            if present.is_some_and(|position| position <= free.preceded_by) {
                return Ok(AttachOutcome::Preempted);
            }
            let fd = program.fd().map_err(|error| program_error(name, &error))?;
            match self.add_filter(ifindex, free.place, fd.as_fd()) {
                Ok(_) if free.preceded_by == 0 => return Ok(AttachOutcome::Attached),
                Ok(_) => return Ok(AttachOutcome::Preempted),
                // Filters, or `clsact`, changed since they were listed.
                Err(TcError::Refused(Errno::EEXIST | Errno::EINVAL | Errno::ENOENT))
                    if attempts > 0 => {}
                // The filters of the device are shared with others (`ingress_block`).
                Err(TcError::Refused(Errno::EOPNOTSUPP)) if self.mode == AttachMode::Auto => {
                    return self.attach_tcx(program, ifindex, name);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn add_filter(
        &mut self,
        ifindex: IfIndex,
        place: Place,
        program: BorrowedFd<'_>,
    ) -> Result<AddedFilter, TcError> {
        let added = self.tc.add_filter(ifindex, place, PROGRAM, program)?;
        self.replace(ifindex, Attachment::Clsact(place));
        Ok(added)
    }

    /// Where our filter is among those of a device; `None` if another program removed or replaced it.
    fn position_of_ours(&self, ifindex: IfIndex, filters: &[TcFilter]) -> Option<usize> {
        let Some(Attachment::Clsact(place)) = self.attached.get(&ifindex) else {
            return None;
        };
        filters
            .iter()
            .position(|filter| filter.place == *place && filter.is_named(PROGRAM))
    }

    /// The new one is attached before the old one is detached: no frame is missed, and a claim seen twice is published once.
    fn replace(&mut self, ifindex: IfIndex, attachment: Attachment) {
        if let Some(Attachment::Clsact(old)) = self.attached.insert(ifindex, attachment) {
            self.remove_filter(ifindex, old);
        }
    }

    /// Removes our filter from a place, unless another program's is there by now. (The kernel cannot compare and remove
    /// atomically; a few microseconds lie between the two.)
    fn remove_filter(&mut self, ifindex: IfIndex, place: Place) {
        let filters = self.tc.ingress_filters(ifindex);
        let removed = filters.and_then(|filters| {
            let is_ours = |filter: &TcFilter| filter.place == place && filter.is_named(PROGRAM);
            if filters.iter().any(is_ours) {
                self.tc.remove_filter(ifindex, place)
            } else {
                Ok(())
            }
        });
        match removed {
            // The device is gone, or another program removed the filter together with `clsact`.
            Ok(()) | Err(TcError::Refused(Errno::ENODEV | Errno::ENOENT | Errno::EINVAL)) => {}
            Err(error) => {
                warn!(ifindex, %error, "filter not removed; run `detector-agent cleanup`")
            }
        }
    }

    fn detach(&mut self, ifindex: IfIndex) {
        if let Some(Attachment::Clsact(place)) = self.attached.remove(&ifindex) {
            self.remove_filter(ifindex, place);
        }
    }

    fn detach_all(&mut self) {
        let devices: Vec<_> = self.attached.keys().copied().collect();
        for ifindex in devices {
            self.detach(ifindex);
        }
    }
}

impl Drop for AttachedDevices {
    fn drop(&mut self) {
        self.detach_all();
    }
}

impl Programs {
    /// Attaches to a device's ingress side, before all other programs. On an attached device, reattaches if another program
    /// removed the filter, put its own before it, or uses TCX ([`AttachMode::Auto`]).
    ///
    /// # Errors
    /// [`AttachError::Vanished`] if the device was removed meanwhile, which is normal; else the kernel's error.
    pub fn attach(&mut self, ifindex: IfIndex, name: &str) -> Result<AttachOutcome, AttachError> {
        let (program, devices) = self.classifier().ok_or_else(|| not_loaded(name))?;
        devices.attach(program, ifindex, name)
    }

    /// As [`Programs::attach`], for an attached device whose filters did not change: the kernel only sends no notification of
    /// programs on TCX.
    ///
    /// # Errors
    /// As [`Programs::attach`].
    pub fn check_tcx(
        &mut self,
        ifindex: IfIndex,
        name: &str,
    ) -> Result<AttachOutcome, AttachError> {
        let (program, devices) = self.classifier().ok_or_else(|| not_loaded(name))?;
        devices.attach_unless_on_clsact(program, ifindex, name)
    }

    /// The devices whose filters others changed since the last call. There are some when
    /// [`Programs::filter_changes`] is readable.
    pub fn changed_devices(&mut self) -> ChangedDevices {
        let devices = &mut self.devices;
        devices.changes.read(devices.tc.port_number())
    }

    /// Readable when filters of a device may have changed.
    #[must_use]
    pub fn filter_changes(&self) -> BorrowedFd<'_> {
        self.devices.changes.as_fd()
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
        self.devices.method(ifindex)
    }
}

fn not_loaded(device: &str) -> AttachError {
    AttachError::Refused {
        name: device.to_owned(),
        reason: format!("{PROGRAM} is not loaded"),
    }
}
