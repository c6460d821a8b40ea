//! Requests to the kernel: one dump, one object or a batch of changes at a time. A dump is repeated if the kernel reports that its
//! state changed meanwhile.

use std::{io, time::Duration};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_OVERRUN};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::{
    socket::{MAX_DATAGRAM, OpenError, RouteSocket},
    wire::{RawMessage, RawMessages, encode},
};

/// How often an interrupted dump is requested.
const ATTEMPTS: u32 = 5;
/// Links come and go in bursts: the pause before the second attempt, twice as long before the third, and so on.
const PAUSE: Duration = Duration::from_millis(2);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::observe) enum RequestError {
    /// The kernel answered with an error.
    #[error("the kernel refused: {0}")]
    Refused(Errno),
    /// The state changed during every attempt to dump it.
    #[error("interrupted by changes {ATTEMPTS} times in a row")]
    Interrupted,
    /// There is no socket.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Sending or receiving failed.
    #[error("netlink request failed: {0}")]
    System(io::Error),
}

impl RequestError {
    /// The error of a read of `what`.
    pub(super) fn while_reading(self, what: &'static str) -> ReadError {
        match self {
            Self::Refused(Errno::EPERM | Errno::EACCES) => ReadError::MissingCapability {
                capability: "CAP_NET_ADMIN",
                what,
            },
            Self::Refused(errno) => ReadError::Refused { what, errno },
            Self::Interrupted => ReadError::Interrupted { what },
            Self::Open(error) => ReadError::Open(error),
            Self::System(source) => ReadError::System { what, source },
        }
    }
}

/// Why the kernel's state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A capability is missing.
    #[error("reading {what} needs {capability}: run as root, or grant it to the agent")]
    MissingCapability {
        /// The capability's name.
        capability: &'static str,
        /// What was to be read.
        what: &'static str,
    },
    /// The state changed during every attempt to read it.
    #[error("reading {what} was interrupted by changes {ATTEMPTS} times in a row")]
    Interrupted {
        /// What was to be read.
        what: &'static str,
    },
    /// The kernel answered with an error.
    #[error("the kernel refused to list {what}: {errno}")]
    Refused {
        /// What was to be read.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// No socket.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Sending or receiving failed.
    #[error("reading {what} by netlink failed: {source}")]
    System {
        /// What was to be read.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// How one attempt ended.
enum Attempt {
    Done,
    Interrupted,
    Refused(Errno),
}

/// A socket for requests. Blocking: for a thread that may wait.
#[derive(Debug)]
pub(in crate::observe) struct RequestSocket {
    socket: RouteSocket,
    patience: Duration,
    buffer: Box<[u8]>,
    sequence: u32,
    /// Messages that could not be parsed, since the socket was opened.
    pub(super) undecodable: u64,
}

impl RequestSocket {
    /// Opens a socket that waits up to `patience` for an answer. The kernel writes it while it handles the request, so this
    /// is only reached when it is in trouble, or holds a lock for long.
    pub(in crate::observe) fn open(patience: Duration) -> Result<Self, OpenError> {
        let socket = RouteSocket::for_requests(patience)?;
        Ok(Self {
            socket,
            patience,
            buffer: vec![0; MAX_DATAGRAM].into_boxed_slice(),
            sequence: 0,
            undecodable: 0,
        })
    }

    /// The port of the socket; another one after an error.
    pub(in crate::observe) fn port_number(&self) -> u32 {
        self.socket.port_number()
    }

    /// Requests a list. `each` adds a message to a fresh `T`, once per attempt, and returns whether it could parse it.
    pub(in crate::observe) fn dump<T: Default>(
        &mut self,
        request: RouteNetlinkMessage,
        each: impl FnMut(&mut T, RawMessage<'_>) -> bool,
    ) -> Result<T, RequestError> {
        self.request(request, NLM_F_DUMP, ATTEMPTS, each)
    }

    /// Requests one object; `each` as for [`Self::dump`].
    pub(super) fn get<T: Default>(
        &mut self,
        request: RouteNetlinkMessage,
        each: impl FnMut(&mut T, RawMessage<'_>) -> bool,
    ) -> Result<T, RequestError> {
        self.request(request, 0, ATTEMPTS, each)
    }

    /// Requests a change, once, and waits until it is acknowledged.
    pub(in crate::observe) fn change(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), RequestError> {
        self.request(request, NLM_F_ACK | flags, 1, |(), _| true)
    }

    /// Requests two changes with one message to the kernel, which tries the second even if it refused the first, and waits
    /// until both are acknowledged. Returns what became of each.
    pub(in crate::observe) fn change_both(
        &mut self,
        requests: [RouteNetlinkMessage; 2],
        flags: u16,
    ) -> Result<[Result<(), Errno>; 2], RequestError> {
        let mut batch = Vec::new();
        let sequences = requests.map(|request| {
            self.sequence = self.sequence.wrapping_add(1);
            let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
            batch.append(&mut encode(request, flags, self.sequence));
            self.sequence
        });
        let sent = self.socket.send(&batch).map_err(errno_of);
        let mut outcomes = [Ok(()); 2];
        for (sequence, outcome) in sequences.into_iter().zip(&mut outcomes) {
            // Each acknowledgement is a datagram of its own.
            let answer = sent.and_then(|()| self.receive_answer(sequence, true, |_| true));
            match answer {
                Ok(Attempt::Refused(errno)) => *outcome = Err(errno),
                Ok(Attempt::Done | Attempt::Interrupted) => {}
                Err(errno) => {
                    self.socket = RouteSocket::for_requests(self.patience)?;
                    return Err(self.failure(errno));
                }
            }
        }
        Ok(outcomes)
    }

    fn failure(&self, errno: Errno) -> RequestError {
        RequestError::System(match errno {
            Errno::EAGAIN => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {:?}", self.patience),
            ),
            errno => errno.into(),
        })
    }

    fn request<T: Default>(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        attempts: u32,
        mut each: impl FnMut(&mut T, RawMessage<'_>) -> bool,
    ) -> Result<T, RequestError> {
        for attempt in 0..attempts {
            if attempt > 0 {
                std::thread::sleep(PAUSE * attempt);
            }
            let mut answer = T::default();
            match self.attempt(request.clone(), flags, |message| each(&mut answer, message)) {
                Ok(Attempt::Done) => return Ok(answer),
                Ok(Attempt::Interrupted) => {}
                Ok(Attempt::Refused(errno)) => return Err(RequestError::Refused(errno)),
                Err(errno) => {
                    // The rest of the answer may still come, so a socket left in the middle of one cannot be used again.
                    self.socket = RouteSocket::for_requests(self.patience)?;
                    if errno != Errno::ENOBUFS || attempts == 1 {
                        return Err(self.failure(errno));
                    }
                }
            }
        }
        Err(RequestError::Interrupted)
    }

    fn attempt(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        each: impl FnMut(RawMessage<'_>) -> bool,
    ) -> Result<Attempt, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket
            .send(&encode(request, NLM_F_REQUEST | flags, self.sequence))
            .map_err(errno_of)?;
        // Else the answer is one message.
        let is_dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        let has_end_marker = is_dump || flags & NLM_F_ACK != 0;
        self.receive_answer(self.sequence, has_end_marker, each)
    }

    fn receive_answer(
        &mut self,
        sequence: u32,
        has_end_marker: bool,
        mut each: impl FnMut(RawMessage<'_>) -> bool,
    ) -> Result<Attempt, Errno> {
        let mut is_interrupted = false;
        loop {
            let received = match self.socket.receive(&mut self.buffer) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            if !received.from_kernel {
                continue;
            }
            is_interrupted |= received.truncated;
            let datagram = self.buffer.get(..received.length).unwrap_or_default();
            for message in RawMessages::of(datagram) {
                let Ok(message) = message else {
                    self.undecodable += 1;
                    continue;
                };
                if message.sequence != sequence {
                    continue;
                }
                is_interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                let end = match message.end_of_answer() {
                    Some(code) => Some(code),
                    None if message.kind == NLMSG_OVERRUN => {
                        is_interrupted = true;
                        None
                    }
                    None => {
                        if !each(message) {
                            self.undecodable += 1;
                        }
                        (!has_end_marker).then_some(0)
                    }
                };
                match end {
                    None => {}
                    Some(code) if code < 0 => {
                        return Ok(Attempt::Refused(Errno::from_raw(code.saturating_neg())));
                    }
                    Some(_) if is_interrupted => return Ok(Attempt::Interrupted),
                    Some(_) => return Ok(Attempt::Done),
                }
            }
        }
    }
}

fn errno_of(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Dumps while the kernel's state changes. Needs root, and creates namespaces.
#[cfg(all(test, feature = "privileged-tests"))]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        reason = "a test fails by panicking"
    )]

    use detector_testkit::Netns;
    use netlink_packet_route::link::LinkMessage;
    use nix::libc::RTM_NEWLINK;

    use super::{ATTEMPTS, RequestError, RequestSocket, RouteNetlinkMessage};
    use crate::observe::netlink::{decode::link, dumps::PATIENCE};

    /// Enough links for an answer of several datagrams: the kernel writes two ahead of the reader.
    const PAIRS: usize = 200;

    /// Lists links while one appears in the middle of each of the first `disturbed` answers. Returns the names.
    fn names_read_while_links_appear(disturbed: u32) -> Result<Vec<String>, RequestError> {
        let node = Netns::bare("interrupted", false).unwrap();
        let pairs = (0..PAIRS).map(|pair| format!("link add a{pair} type veth peer name b{pair}"));
        node.ip_batch(pairs).unwrap();
        let outcome = node.run_in(|| {
            let mut socket = RequestSocket::open(PATIENCE)?;
            let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
            let mut attempts = 0;
            let names = socket.dump(request, |names: &mut Vec<String>, message| {
                if names.is_empty() {
                    attempts += 1;
                    if attempts <= disturbed {
                        let add = format!("link add c{attempts} type veth peer name d{attempts}");
                        node.ip(&add).expect("ip");
                    }
                }
                assert_eq!(message.kind, RTM_NEWLINK);
                names.extend(
                    link::new_link(message.payload)
                        .unwrap()
                        .map(|link| link.name),
                );
                true
            });
            Ok(names)
        });
        outcome.unwrap()
    }

    #[test]
    fn an_interrupted_dump_is_requested_again() {
        let names = names_read_while_links_appear(2).unwrap();
        // Loopback, the pairs, and the two pairs that appeared.
        assert_eq!(names.len(), 1 + 2 * PAIRS + 4);
    }

    #[test]
    fn a_dump_interrupted_at_every_attempt_is_an_error() {
        let error = names_read_while_links_appear(ATTEMPTS).unwrap_err();
        assert!(matches!(error, RequestError::Interrupted), "{error}");
        let error = error.while_reading("links");
        assert!(error.to_string().contains("links"), "{error}");
    }
}
