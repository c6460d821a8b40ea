//! Watches directories with inotify. Reports which subject a change concerns, not what changed.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    io,
    os::fd::{AsFd as _, AsRawFd, RawFd},
    path::Path,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
};
use tokio::io::unix::AsyncFd;

/// Attempts to watch a path whose missing parents are being created meanwhile.
const MAX_ATTEMPTS: usize = 16;

/// A subject's interest in a watched directory.
#[derive(Debug)]
struct Interest<S> {
    subject: S,
    /// The only entry that matters; `None`: all entries.
    only: Option<OsString>,
}

/// The inotify descriptor for the asynchronous runtime.
#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches directories on behalf of subjects.
#[derive(Debug)]
pub(super) struct DirectoryWatch<S> {
    inotify: AsyncFd<Descriptor>,
    interests: HashMap<WatchDescriptor, Vec<Interest<S>>>,
}

/// Which subjects changed.
#[derive(Debug)]
pub(super) enum ChangedSubjects<S> {
    /// Only these.
    Only(BTreeSet<S>),
    /// Possibly all: the kernel's event queue overflowed.
    All,
}

impl<S: Copy + Ord> DirectoryWatch<S> {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// If the kernel refuses, usually because of `fs.inotify.max_user_instances`.
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // SAFETY: `AsyncFd` owns the descriptor, which is neither replaced nor closed before `AsyncFd` is dropped.
        let inotify = unsafe { AsyncFd::register(Descriptor(inotify)) };
        Ok(Self {
            inotify: inotify.map_err(io::Error::from)?,
            interests: HashMap::new(),
        })
    }

    /// Watches a directory, or the nearest existing parent for its creation. Call it again after each change, because a
    /// directory that is deleted and created again needs a new watch.
    ///
    /// # Errors
    /// If the kernel refuses, usually because of `fs.inotify.max_user_watches`.
    pub(super) fn watch(&mut self, subject: S, directory: &Path) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        for _ in 0..MAX_ATTEMPTS {
            let mut missing: Option<&Path> = None;
            let mut path = directory;
            let descriptor = loop {
                match self.inotify.get_ref().0.add_watch(path, flags) {
                    Ok(descriptor) => break descriptor,
                    Err(Errno::ENOENT | Errno::ENOTDIR) => {
                        let Some(parent) = path.parent() else {
                            return Err(Errno::ENOENT.into());
                        };
                        missing = Some(path);
                        path = if parent.as_os_str().is_empty() {
                            Path::new(".")
                        } else {
                            parent
                        };
                    }
                    Err(error) => return Err(error.into()),
                }
            };
            let only = missing.and_then(Path::file_name).map(OsString::from);
            let interests = self.interests.entry(descriptor).or_default();
            if !interests
                .iter()
                .any(|i| i.subject == subject && i.only == only)
            {
                interests.push(Interest { subject, only });
            }
            // A directory created before the watch was added causes no event.
            if missing.is_none_or(|path| !path.exists()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits for a change.
    ///
    /// # Errors
    /// If reading the descriptor fails.
    pub(super) async fn changed(&mut self) -> io::Result<ChangedSubjects<S>> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let events = match ready.get_inner().0.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            drop(ready);
            let mut changed = BTreeSet::new();
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    return Ok(ChangedSubjects::All);
                }
                self.apply_event(&event, &mut changed);
            }
            if !changed.is_empty() {
                return Ok(ChangedSubjects::Only(changed));
            }
        }
    }

    fn apply_event(&mut self, event: &InotifyEvent, changed: &mut BTreeSet<S>) {
        let Some(interests) = self.interests.get(&event.wd) else {
            return;
        };
        // `host-local` writes these files with every operation, whatever the outcome.
        let is_irrelevant_write = event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE)
            && event.name.as_ref().is_some_and(|name| {
                let name = name.to_string_lossy();
                name == "lock" || name.starts_with("last_reserved_ip")
            });
        for interest in interests {
            let is_of_interest = interest.only.is_none() || interest.only == event.name;
            if (is_of_interest && !is_irrelevant_write) || event.name.is_none() {
                changed.insert(interest.subject);
            }
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.interests.remove(&event.wd);
        }
    }
}
