//! Waits until an input of the event loop is readable.

use std::{io, os::fd::AsFd as _, time::Duration};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use super::Inputs;
use crate::{observe::netlink::NetlinkListener, sinks::lines::Lines};

/// The longest wait; the tick ends each one earlier.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// One epoll over all inputs. It does not matter which of them is ready: a round drains all.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: Epoll,
    watches_netlink: bool,
    /// Whether the event lines are watched as well.
    watches_lines: bool,
}

impl Poller {
    pub(super) fn new(inputs: &Inputs) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(inputs.netlink.fd(), readable())?;
        epoll.add(inputs.mailbox.as_fd(), readable())?;
        if let Some(ring) = &inputs.ring {
            epoll.add(ring.as_fd(), readable())?;
        }
        Ok(Self {
            epoll,
            watches_netlink: true,
            watches_lines: false,
        })
    }

    /// Waits until an input is readable, at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let timeout = if timeout.is_zero() {
            EpollTimeout::ZERO
        } else {
            // Rounded up, so that a wait does not repeatedly end just before the deadline.
            let millis = timeout.min(MAX_WAIT).as_millis().saturating_add(1);
            EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
        };
        match self.epoll.wait(&mut [EpollEvent::empty(); 8], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits for notifications of the kernel, or not for now.
    pub(super) fn watch_netlink(
        &mut self,
        netlink: &NetlinkListener,
        watches: bool,
    ) -> io::Result<()> {
        if watches == self.watches_netlink {
            return Ok(());
        }
        if watches {
            self.epoll
                .add(netlink.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        } else {
            self.epoll.delete(netlink.fd())?;
        }
        self.watches_netlink = watches;
        Ok(())
    }

    /// Also waits until the event lines are writable, but only while some are pending.
    pub(super) fn watch_lines(&mut self, lines: &Lines) -> io::Result<()> {
        if lines.is_waiting() == self.watches_lines {
            return Ok(());
        }
        if self.watches_lines {
            self.epoll.delete(lines.as_fd())?;
        } else {
            self.epoll
                .add(lines.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, 0))?;
        }
        self.watches_lines = !self.watches_lines;
        Ok(())
    }
}
