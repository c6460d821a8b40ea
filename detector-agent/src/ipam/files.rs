//! Bounded reads of regular files that other programs write. Never blocks on pipes or devices.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use nix::libc;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// There is no such file.
    #[error("does not exist")]
    Missing,
    /// A symbolic link whose target the agent does not see, for example because it is not mounted.
    #[error("is a symbolic link to {0}, which does not exist here; mount that path too")]
    Dangling(String),
    /// A directory, a pipe, a socket or a device.
    #[error("is not a regular file")]
    NotRegular,
    /// Longer than the bound.
    #[error("is larger than {0} bytes")]
    TooLarge(u64),
    /// The system call failed.
    #[error("cannot be read: {0}")]
    Io(io::Error),
}

/// The content of a file of at most `bound` bytes. Follows symbolic links.
///
/// # Errors
/// As described by [`FileError`].
pub(crate) fn read(path: &Path, bound: u64) -> Result<Vec<u8>, FileError> {
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

/// The last `bound` bytes of a file. Follows symbolic links.
///
/// # Errors
/// As described by [`FileError`].
pub(crate) fn tail(path: &Path, bound: u64) -> Result<Vec<u8>, FileError> {
    let mut file = open(path, 0)?;
    let size = file.metadata().map_err(FileError::Io)?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(bound)))
        .map_err(FileError::Io)?;
    let mut bytes = Vec::new();
    file.take(bound)
        .read_to_end(&mut bytes)
        .map_err(FileError::Io)?;
    Ok(bytes)
}

/// The first `bound` bytes of a file. Does not follow a symbolic link.
///
/// # Errors
/// As described by [`FileError`].
pub(super) fn head(path: &Path, bound: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    open(path, libc::O_NOFOLLOW)?
        .take(bound)
        .read_to_end(&mut bytes)
        .map_err(FileError::Io)?;
    Ok(bytes)
}

fn open(path: &Path, flags: i32) -> Result<File, FileError> {
    // Without O_NONBLOCK, opening a pipe or a device could block.
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
