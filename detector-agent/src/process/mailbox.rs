//! Messages to a thread that also waits for file descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        mpsc::{self, TryRecvError},
    },
};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Sends messages to a [`Mailbox`]. Cheap to clone.
#[derive(Debug)]
pub struct MailboxSender<T> {
    // Dropped before `wakeup`: a receiver that is woken by the last drop finds that there are no more senders.
    messages: mpsc::Sender<T>,
    wakeup: WakeUp,
}

impl<T> MailboxSender<T> {
    /// A sender, and the mailbox that it sends to.
    ///
    /// # Errors
    /// If the kernel refuses an eventfd.
    pub fn new() -> io::Result<(Self, Mailbox<T>)> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wakeup = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let (messages, received) = mpsc::channel();
        let sender = Self {
            messages,
            wakeup: WakeUp(Arc::clone(&wakeup)),
        };
        Ok((sender, Mailbox { received, wakeup }))
    }

    /// Sends a message; `false` if the receiver has ended.
    pub fn send(&self, message: T) -> bool {
        self.messages.send(message).is_ok() && self.wakeup.0.write(1).is_ok()
    }
}

impl<T> Clone for MailboxSender<T> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            wakeup: self.wakeup.clone(),
        }
    }
}

/// Wakes the receiver when a sender is dropped.
#[derive(Clone, Debug)]
struct WakeUp(Arc<EventFd>);

impl Drop for WakeUp {
    fn drop(&mut self) {
        // Fails only if it is readable anyway.
        let _ = self.0.write(1);
    }
}

/// The receiving end of a [`MailboxSender`]. Its descriptor is readable if there are messages, or no senders any more.
#[derive(Debug)]
pub struct Mailbox<T> {
    received: mpsc::Receiver<T>,
    wakeup: Arc<EventFd>,
}

impl<T> Mailbox<T> {
    /// The next message, without waiting.
    ///
    /// # Errors
    /// If there is none, or will be none because there is no sender any more.
    pub(crate) fn next(&self) -> Result<T, TryRecvError> {
        self.received.try_recv()
    }

    /// To be called before a round of [`Mailbox::next`]: messages sent from now on make the descriptor readable again.
    pub(crate) fn clear_wakeup(&self) {
        // Fails if there was no wake-up.
        let _ = self.wakeup.read();
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(mailbox: &Mailbox<u8>) -> bool {
        let mut descriptors = [PollFd::new(mailbox.as_fd(), PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn messages_and_the_end_of_the_senders_wake_the_receiver() {
        let (sender, mailbox) = MailboxSender::new().unwrap();
        assert!(!is_readable(&mailbox));
        assert!(sender.send(7));
        assert!(is_readable(&mailbox));
        mailbox.clear_wakeup();
        assert!(!is_readable(&mailbox));
        assert_eq!(mailbox.next(), Ok(7));
        assert_eq!(mailbox.next(), Err(TryRecvError::Empty));
        drop(sender);
        assert!(is_readable(&mailbox));
        assert_eq!(mailbox.next(), Err(TryRecvError::Disconnected));
    }
}
