//! Directories that others write to, by inotify: says whose subject something happened to, never what.

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

/// How often a path's missing parents are looked for that come while they are looked for.
const TRIES: usize = 16;

/// Whom a change concerns.
pub(super) trait Subject: Copy + Ord {}

impl<T: Copy + Ord> Subject for T {}

#[derive(Debug)]
struct Interest<S> {
    subject: S,
    /// Only what happens to this entry of the directory matters.
    only: Option<OsString>,
}

/// The descriptor as the runtime waits on it.
#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches directories for several subjects.
#[derive(Debug)]
pub(super) struct Watcher<S> {
    inotify: AsyncFd<Descriptor>,
    interests: HashMap<WatchDescriptor, Vec<Interest<S>>>,
}

/// What happened since last asked.
#[derive(Debug)]
pub(super) enum Changed<S> {
    /// Something, to these.
    These(BTreeSet<S>),
    /// The kernel lost count: perhaps to all.
    Any,
}

impl<S: Subject> Watcher<S> {
    /// A watcher without a subject.
    ///
    /// # Errors
    /// Where the kernel gives no inotify (its limit on instances is reached, as a rule).
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // SAFETY: the descriptor is owned by what is handed over, which is neither changed nor closed before it is dropped.
        let inotify = unsafe { AsyncFd::register(Descriptor(inotify)) };
        Ok(Self {
            inotify: inotify.map_err(io::Error::from)?,
            interests: HashMap::new(),
        })
    }

    /// Watches a directory; where it is not there, the nearest one above it for its coming. To be called again after
    /// each change: a directory that was made anew is another one.
    ///
    /// # Errors
    /// Where the kernel refuses (its limit on watches is reached, as a rule).
    pub(super) fn watch(&mut self, subject: S, directory: &Path) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        for _ in 0..TRIES {
            let mut missing: Option<&Path> = None;
            let mut path = directory;
            let watched = loop {
                match self.inotify.get_ref().0.add_watch(path, flags) {
                    Ok(watched) => break watched,
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
            let interests = self.interests.entry(watched).or_default();
            if !interests
                .iter()
                .any(|i| i.subject == subject && i.only == only)
            {
                interests.push(Interest { subject, only });
            }
            // What came before the watch stood tells nobody.
            if missing.is_none_or(|path| !path.exists()) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits for something to happen.
    ///
    /// # Errors
    /// Where the descriptor fails.
    pub(super) async fn changed(&mut self) -> io::Result<Changed<S>> {
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
                    return Ok(Changed::Any);
                }
                self.heed(&event, &mut changed);
            }
            if !changed.is_empty() {
                return Ok(Changed::These(changed));
            }
        }
    }

    fn heed(&mut self, event: &InotifyEvent, changed: &mut BTreeSet<S>) {
        let Some(interests) = self.interests.get(&event.wd) else {
            return;
        };
        let bookkeeping = event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE)
            && event.name.as_ref().is_some_and(|name| {
                let name = name.to_string_lossy();
                name == "lock" || name.starts_with("last_reserved_ip")
            });
        for interest in interests {
            let concerned = interest.only.is_none() || interest.only == event.name;
            // `host-local` touches its lock whatever it does.
            if (concerned && !bookkeeping) || event.name.is_none() {
                changed.insert(interest.subject);
            }
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.interests.remove(&event.wd);
        }
    }
}
