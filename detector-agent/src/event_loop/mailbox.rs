//! Messages of other threads to the event loop.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::Query;
use crate::{engine::PoolUpdate, observe::worker::WorkerEvent, pods::LookupUpdate};

/// A message to the event loop.
#[derive(Debug)]
pub enum LoopMessage {
    /// From the kernel worker.
    Worker(WorkerEvent),
    /// A query of the current state.
    Query(Query),
    /// Pods behind devices, or networks of devices, became known.
    Lookups(LookupUpdate),
    /// An IPAM pool was read or removed.
    Pool(PoolUpdate),
    /// End the loop.
    Stop,
}

/// Sends messages to the event loop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventLoopHandle {
    messages: mpsc::Sender<LoopMessage>,
    wakeup: Arc<EventFd>,
}

impl EventLoopHandle {
    /// A handle, and the mailbox for the event loop.
    ///
    /// # Errors
    /// If the kernel refuses an eventfd.
    pub fn new() -> io::Result<(Self, Mailbox)> {
        let wakeup = Arc::new(EventFd::from_value_and_flags(
            0,
            EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
        )?);
        let (messages, received) = mpsc::channel();
        Ok((
            Self {
                messages,
                wakeup: Arc::clone(&wakeup),
            },
            Mailbox { received, wakeup },
        ))
    }

    /// Sends a message; `false` if the event loop has ended.
    pub fn send(&self, message: LoopMessage) -> bool {
        self.messages.send(message).is_ok() && self.wakeup.write(1).is_ok()
    }
}

/// The receiving end of an [`EventLoopHandle`]. Its descriptor is readable if there are messages.
#[derive(Debug)]
pub struct Mailbox {
    received: mpsc::Receiver<LoopMessage>,
    wakeup: Arc<EventFd>,
}

impl Mailbox {
    /// The next message, without waiting.
    pub(super) fn next(&self) -> Option<LoopMessage> {
        self.received.try_recv().ok()
    }

    /// To be called before a round of [`Mailbox::next`]: messages sent from now on make the descriptor readable again.
    pub(super) fn clear_wakeup(&self) {
        // Fails if there was no wake-up.
        let _ = self.wakeup.read();
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
