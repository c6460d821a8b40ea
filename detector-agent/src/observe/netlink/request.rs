//! Asking the kernel: one dump or one object at a time, repeated where the kernel says that it changed meanwhile.

use std::{io, time::Duration};

use netlink_packet_core::{
    DoneBuffer, ErrorBuffer, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NLMSG_OVERRUN, NetlinkHeader, NetlinkMessage,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::{
    decode::{Message, Messages},
    socket::{DATAGRAM, OpenError, RouteSocket},
};

/// How often a dump is asked for that the kernel keeps interrupting.
const ATTEMPTS: u32 = 5;
/// Links come and go in bursts: before the second attempt the reader waits this long, before the third twice as long,
/// and so on.
const PAUSE: Duration = Duration::from_millis(2);
/// How long one answer may take; the kernel writes it while it is asked, so this is only met when it is in trouble.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// No socket, or none that works.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Sending or receiving failed.
    #[error("asking the kernel for {what} failed: {source}")]
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

/// A socket to ask with. Blocking: for a thread that may wait.
#[derive(Debug)]
pub(super) struct Asking {
    socket: RouteSocket,
    buffer: Box<[u8]>,
    sequence: u32,
    /// Messages that could not be read, since it was opened.
    pub(super) undecodable: u64,
}

impl Asking {
    pub(super) fn open() -> Result<Self, OpenError> {
        let socket = RouteSocket::asking(PATIENCE)?;
        Ok(Self {
            socket,
            buffer: vec![0; DATAGRAM].into_boxed_slice(),
            sequence: 0,
            undecodable: 0,
        })
    }

    /// Asks for a list. `each` puts the messages into a fresh `T`, once per attempt; it returns whether it could
    /// read the message.
    pub(super) fn list<T: Default>(
        &mut self,
        what: &'static str,
        request: &RouteNetlinkMessage,
        each: impl FnMut(&mut T, Message<'_>) -> bool,
    ) -> Result<T, ReadError> {
        self.ask(what, request, NLM_F_REQUEST | NLM_F_DUMP, each)
    }

    /// Asks for one object.
    pub(super) fn one<T: Default>(
        &mut self,
        what: &'static str,
        request: &RouteNetlinkMessage,
        each: impl FnMut(&mut T, Message<'_>) -> bool,
    ) -> Result<T, ReadError> {
        self.ask(what, request, NLM_F_REQUEST, each)
    }

    fn ask<T: Default>(
        &mut self,
        what: &'static str,
        request: &RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(&mut T, Message<'_>) -> bool,
    ) -> Result<T, ReadError> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE * attempt);
            }
            let mut answer = T::default();
            match self.attempt(request, flags, |message| each(&mut answer, message)) {
                Ok(Attempt::Done) => return Ok(answer),
                Ok(Attempt::Interrupted) => {}
                Ok(Attempt::Refused(Errno::EPERM | Errno::EACCES)) => {
                    return Err(ReadError::MissingCapability {
                        capability: "CAP_NET_ADMIN",
                        what,
                    });
                }
                Ok(Attempt::Refused(errno)) => return Err(ReadError::Refused { what, errno }),
                Err(errno) => {
                    // The rest of the answer may still come: a socket that was left in the middle is of no use.
                    self.socket = RouteSocket::asking(PATIENCE)?;
                    let source = match errno {
                        Errno::ENOBUFS => continue,
                        Errno::EAGAIN => io::Error::new(
                            io::ErrorKind::TimedOut,
                            format!("no answer within {PATIENCE:?}"),
                        ),
                        errno => errno.into(),
                    };
                    return Err(ReadError::System { what, source });
                }
            }
        }
        Err(ReadError::Interrupted { what })
    }

    fn attempt(
        &mut self,
        request: &RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(Message<'_>) -> bool,
    ) -> Result<Attempt, Errno> {
        let system = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        self.sequence = self.sequence.wrapping_add(1);
        self.socket
            .send(&encode(request, flags, self.sequence))
            .map_err(system)?;
        let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut interrupted = false;
        loop {
            let received = match self.socket.receive(&mut self.buffer) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            if !received.from_kernel {
                continue;
            }
            interrupted |= received.truncated;
            let datagram = self.buffer.get(..received.length).unwrap_or_default();
            for message in Messages::of(datagram) {
                let Ok(message) = message else {
                    self.undecodable += 1;
                    continue;
                };
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                let end = match end_of_answer(message) {
                    Some(code) => Some(code),
                    None if message.kind == NLMSG_OVERRUN => {
                        interrupted = true;
                        None
                    }
                    None => {
                        if !each(message) {
                            self.undecodable += 1;
                        }
                        (!dump).then_some(0)
                    }
                };
                match end {
                    None => {}
                    Some(code) if code < 0 => {
                        return Ok(Attempt::Refused(Errno::from_raw(code.saturating_neg())));
                    }
                    Some(_) if interrupted => return Ok(Attempt::Interrupted),
                    Some(_) => return Ok(Attempt::Done),
                }
            }
        }
    }
}

/// The code with which a message ends its answer, negative for an error; `None` where more is to come.
pub(super) fn end_of_answer(message: Message<'_>) -> Option<i32> {
    match message.kind {
        NLMSG_DONE => Some(DoneBuffer::new_checked(message.payload).map_or(0, |done| done.code())),
        NLMSG_ERROR => Some(
            ErrorBuffer::new_checked(message.payload).map_or(-(Errno::EPROTO as i32), |error| {
                error.code().map_or(0, i32::from)
            }),
        ),
        _ => None,
    }
}

fn encode(request: &RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, request.clone().into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// What happens to an answer while the kernel's state changes. Needs root, and namespaces made here.
#[cfg(all(test, feature = "privileged-tests"))]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        reason = "a test fails by panicking"
    )]

    use detector_testkit::Netns;
    use netlink_packet_route::link::LinkMessage;

    use super::{ATTEMPTS, Asking, ReadError, RouteNetlinkMessage};
    use crate::observe::netlink::decode::{RTM_NEWLINK, link};

    /// Enough links for an answer of several datagrams: the kernel writes two ahead of the reader.
    const PAIRS: usize = 200;

    /// Lists links, and lets one appear in the middle of each of the first `disturbed` answers. Gives the names.
    fn names_read_while_links_appear(disturbed: u32) -> Result<Vec<String>, ReadError> {
        let node = Netns::bare("interrupted", false).unwrap();
        let pairs = (0..PAIRS).map(|pair| format!("link add a{pair} type veth peer name b{pair}"));
        node.ip_batch(pairs).unwrap();
        let outcome = node.run_in(|| {
            let mut asking = Asking::open()?;
            let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
            let mut attempts = 0;
            let names = asking.list("links", &request, |names: &mut Vec<String>, message| {
                if names.is_empty() {
                    attempts += 1;
                    if attempts <= disturbed {
                        let add = format!("link add c{attempts} type veth peer name d{attempts}");
                        node.ip(&add).expect("ip");
                    }
                }
                assert_eq!(message.kind, RTM_NEWLINK);
                names.extend(
                    link::appeared(message.payload)
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
    fn an_interrupted_answer_is_asked_for_again() {
        let names = names_read_while_links_appear(2).unwrap();
        // Loopback, the pairs, and the two pairs that appeared.
        assert_eq!(names.len(), 1 + 2 * PAIRS + 4);
    }

    #[test]
    fn an_answer_that_is_always_interrupted_is_an_error_that_says_so() {
        let error = names_read_while_links_appear(ATTEMPTS).unwrap_err();
        assert!(
            matches!(error, ReadError::Interrupted { what: "links" }),
            "{error}"
        );
        assert!(error.to_string().contains("links"), "{error}");
    }
}
