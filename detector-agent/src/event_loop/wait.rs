//! What the detection thread waits for.

use std::{io, os::fd::AsFd as _, time::Duration};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use super::Parts;
use crate::{observe::netlink::NotificationSource, sinks::lines::Lines};

/// The longest wait; housekeeping ends each one earlier.
const LONGEST: Duration = Duration::from_secs(60);

/// One epoll over every source. Which of them woke it does not matter: a round looks at all.
#[derive(Debug)]
pub(super) struct Waiting {
    epoll: Epoll,
    /// Room on the event lines is waited for too.
    for_room: bool,
}

impl Waiting {
    pub(super) fn on(parts: &Parts) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        for source in NotificationSource::ALL {
            epoll.add(parts.live.fd(source), readable())?;
        }
        epoll.add(parts.mailbox.as_fd(), readable())?;
        if let Some((ring, _)) = &parts.ring {
            epoll.add(ring.as_fd(), readable())?;
        }
        Ok(Self {
            epoll,
            for_room: false,
        })
    }

    /// Returns when a source has something, at the latest after this time; with `None` at once.
    pub(super) fn wait(&self, longest: Option<Duration>) -> io::Result<()> {
        let timeout = longest.map_or(EpollTimeout::ZERO, |longest| {
            // Rounded up, so that a wait does not end just before its time over and over.
            let millis = longest.min(LONGEST).as_millis().saturating_add(1);
            EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
        });
        match self.epoll.wait(&mut [EpollEvent::empty(); 8], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits for room on the event lines only while some wait to be written.
    pub(super) fn watch(&mut self, lines: &Lines) -> io::Result<()> {
        if lines.is_waiting() == self.for_room {
            return Ok(());
        }
        if self.for_room {
            self.epoll.delete(lines.as_fd())?;
        } else {
            self.epoll
                .add(lines.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, 0))?;
        }
        self.for_room = !self.for_room;
        Ok(())
    }
}
