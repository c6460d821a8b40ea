//! Reading a file that others write: within a bound, never waiting, only where it is a regular one.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use nix::libc;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// It is not there.
    #[error("it is not there")]
    Missing,
    /// A link leads nowhere, as where the agent does not see the node's whole file system.
    #[error(
        "it is a symbolic link to {0}, which is not there; the agent has to see that place too"
    )]
    Dangling(String),
    /// A directory, a pipe, a socket or a device.
    #[error("it is no regular file")]
    NotRegular,
    /// Longer than anything of its sort.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// The system refuses.
    #[error("{0}")]
    Io(io::Error),
}

/// The whole of a file of at most `bound` bytes.
///
/// # Errors
/// As [`FileError`] says.
pub(super) fn read(path: &Path, bound: u64) -> Result<Vec<u8>, FileError> {
    let file = open(path, 0)?;
    let size = file.metadata().map_err(FileError::Io)?.len();
    if size > bound {
        return Err(FileError::TooLarge(bound));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    file.take(bound + 1)
        .read_to_end(&mut bytes)
        .map_err(FileError::Io)?;
    if bytes.len() as u64 > bound {
        return Err(FileError::TooLarge(bound));
    }
    Ok(bytes)
}

/// The first `bound` bytes of a file that is no symbolic link.
pub(super) fn head(path: &Path, bound: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    open(path, libc::O_NOFOLLOW)?
        .take(bound)
        .read_to_end(&mut bytes)
        .map_err(FileError::Io)?;
    Ok(bytes)
}

fn open(path: &Path, flags: i32) -> Result<File, FileError> {
    // A pipe or a device would make the opening wait.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC | flags)
        .open(path);
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => match std::fs::read_link(path) {
            Ok(target) => FileError::Dangling(target.display().to_string()),
            Err(_) => FileError::Missing,
        },
        _ if error.raw_os_error() == Some(libc::ELOOP) => FileError::NotRegular,
        _ => FileError::Io(error),
    })?;
    if file.metadata().map_err(FileError::Io)?.is_file() {
        Ok(file)
    } else {
        Err(FileError::NotRegular)
    }
}
