//! What file systems know of files besides their content.

use std::{
    fs, io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use detector_engine::diagnosis::{FileFacts, Filesystem, Known, NotChecked, Source, UnixTime};
use detector_event::WallTime;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, statfs};

pub(super) fn source(path: &Path) -> Source {
    Source::File(path.display().to_string())
}

pub(super) fn not_checked<T>(what: impl Into<String>, because: impl Into<String>) -> Known<T> {
    Known::NotChecked(NotChecked {
        what: what.into(),
        because: because.into(),
    })
}

/// `None` if it is out of range.
pub(super) fn unix_time(time: SystemTime) -> Option<UnixTime> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok().map(UnixTime)
}

/// `None` if it is before 1970.
pub(super) fn unix(time: WallTime) -> Option<UnixTime> {
    u64::try_from(time.as_unix_nanos()).ok().map(UnixTime)
}

/// `None` if it is out of range.
pub(super) fn unix_timestamp(time: jiff::Timestamp) -> Option<UnixTime> {
    u64::try_from(time.as_nanosecond()).ok().map(UnixTime)
}

/// A file or directory, and when it was created (`stx_btime` of statx(2)).
pub(super) fn file(path: &Path) -> Known<FileFacts> {
    match fs::metadata(path) {
        Ok(metadata) => {
            let facts = FileFacts {
                born: metadata.created().ok().and_then(unix_time),
            };
            Known::Value(facts, source(path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Known::Absent(source(path)),
        Err(error) => not_checked(path.display().to_string(), error.to_string()),
    }
}

/// The birth of a directory that the agent may not see.
pub(super) fn birth(path: &Path) -> Known<UnixTime> {
    match file(path) {
        Known::Value(FileFacts { born: Some(born) }, source) => Known::Value(born, source),
        Known::Value(..) => not_checked(
            format!("the birth of {}", path.display()),
            "its file system keeps none",
        ),
        // In a container it is there on the node, and not mounted.
        Known::Absent(_) => not_checked(path.display().to_string(), "it does not exist here"),
        Known::NotChecked(why) => Known::NotChecked(why),
    }
}

pub(super) fn filesystem(path: &Path) -> Known<Filesystem> {
    match statfs(path) {
        Ok(found) => {
            let kind = match found.filesystem_type() {
                TMPFS_MAGIC => Filesystem::Tmpfs,
                OVERLAYFS_SUPER_MAGIC => Filesystem::Overlay,
                _ => Filesystem::Disk,
            };
            Known::Value(kind, source(path))
        }
        Err(error) => not_checked(
            format!("the file system of {}", path.display()),
            error.to_string(),
        ),
    }
}
