//! Filters that a killed agent left behind.
//!
//! `clsact` filters outlive the process that added them (TCX links do not). They are recognised by the program's name, which
//! the kernel stores with the filter. `clsact` itself stays: others may use it.

use detector_engine::IfIndex;
use nix::errno::Errno;

use super::tc::{Tc, TcError};

/// The name of the program on pod devices, and so of its filters.
pub(super) const PROGRAM: &str = "ipconflict_arp_ndp";

/// Removes the filters of earlier agents in this thread's network namespace; returns their devices.
///
/// # Errors
/// The kernel refuses to list devices or filters. A device that vanishes meanwhile is not an error.
pub fn remove() -> Result<Vec<IfIndex>, TcError> {
    let mut tc = Tc::open()?;
    let mut cleaned = Vec::new();
    for ifindex in tc.devices_with_ingress()? {
        match remove_from(&mut tc, ifindex) {
            Ok(true) => cleaned.push(ifindex),
            Ok(false) => {}
            Err(TcError::Refused(Errno::ENODEV | Errno::ENOENT | Errno::EINVAL)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(cleaned)
}

fn remove_from(tc: &mut Tc, ifindex: IfIndex) -> Result<bool, TcError> {
    let mut removed = false;
    for filter in tc.ingress_filters(ifindex)? {
        if filter.is_named(PROGRAM) {
            tc.remove_filter(ifindex, filter.place)?;
            removed = true;
        }
    }
    Ok(removed)
}
