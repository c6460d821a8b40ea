//! Files that stand for namespaces.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use nix::libc;

/// Opens a namespace's file. Never blocks, whatever kind of file the path leads to.
pub(crate) fn open_namespace(path: &Path) -> Option<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .ok()
}
