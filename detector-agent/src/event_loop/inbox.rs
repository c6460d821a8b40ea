//! The way to the detection thread for everybody else, and its end there.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::Query;
use crate::{
    engine::{IfIndex, PoolUpdate},
    observe::worker::Outcome,
};

/// What others say to the detection thread.
#[derive(Debug)]
pub enum Message {
    /// The worker did something.
    Worker(Outcome),
    /// Something is asked about the present state.
    Query(Query),
    /// The pods behind these devices (index and generation) became known, or are known better.
    PodsKnown(Vec<(IfIndex, u64)>),
    /// IPAM's books were read.
    Pools(PoolUpdate),
    /// End.
    Stop,
}

/// The way to the detection thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inbox {
    messages: mpsc::Sender<Message>,
    wake: Arc<EventFd>,
}

impl Inbox {
    /// An inbox, and what the thread needs to read it.
    ///
    /// # Errors
    /// Where the kernel gives no eventfd.
    pub fn new() -> io::Result<(Self, Mailbox)> {
        let wake = Arc::new(EventFd::from_value_and_flags(
            0,
            EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
        )?);
        let (messages, received) = mpsc::channel();
        Ok((
            Self {
                messages,
                wake: Arc::clone(&wake),
            },
            Mailbox { received, wake },
        ))
    }

    /// Says something; `false` where the thread has ended.
    pub fn send(&self, message: Message) -> bool {
        self.messages.send(message).is_ok() && self.wake.write(1).is_ok()
    }
}

/// The reading end of an [`Inbox`].
#[derive(Debug)]
pub struct Mailbox {
    received: mpsc::Receiver<Message>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    /// The next message, without waiting.
    pub(super) fn next(&self) -> Option<Message> {
        self.received.try_recv().ok()
    }

    /// Begins a round of [`Mailbox::next`]: what is said from now on wakes the thread again.
    pub(super) fn open(&self) {
        // Reading empties the eventfd; a spurious wake-up finds it empty.
        let _ = self.wake.read();
    }
}

/// Readable where something was said.
impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
