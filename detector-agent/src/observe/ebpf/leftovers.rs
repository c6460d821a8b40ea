//! Filters that an earlier agent left behind because it was killed.
//!
//! `clsact` filters outlive the process that made them (TCX links do not). They are known by the program's name, which the
//! kernel keeps with the filter. The `clsact` they hang on is left: nothing tells whose it is.

use nix::errno::Errno;

use super::tc::{Tc, TcError};
use crate::engine::IfIndex;

/// The name of the program on pod devices, and so of its filters.
pub(super) const PROGRAM: &str = "ipconflict_arp_ndp";

/// Removes every filter of an earlier agent in this thread's network namespace; returns the devices it was on.
///
/// # Errors
/// Where the kernel does not list the devices. A device that vanishes meanwhile is no error.
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
    let mut any = false;
    for filter in tc.ingress_filters(ifindex)? {
        if filter.is_named(PROGRAM) {
            tc.remove_filter(ifindex, filter.priority, filter.handle)?;
            any = true;
        }
    }
    Ok(any)
}
