//! Errors of attaching to a device.

use std::io;

use aya::programs::ProgramError;
use detector_event::error_chain;
use nix::errno::Errno;

use super::tc::TcError;

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

pub(super) fn tc_error(name: &str, error: &TcError) -> AttachError {
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

pub(super) fn program_error(name: &str, error: &ProgramError) -> AttachError {
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
