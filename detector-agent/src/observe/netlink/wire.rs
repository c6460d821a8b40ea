//! The wire format of netlink: messages in a datagram, attributes in a message.
//!
//! Invariant: no input panics. What cannot be parsed is [`Undecodable`], and the caller counts it.

use netlink_packet_core::{
    DecodeError, DoneBuffer, ErrorBuffer, NLMSG_ALIGNTO, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

/// A message, or a part of one, that is malformed or lacks a required attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("undecodable netlink message: {0}")]
pub(in crate::observe) struct Undecodable(pub(in crate::observe) &'static str);

impl From<DecodeError> for Undecodable {
    fn from(_: DecodeError) -> Self {
        Self("a field or attribute has the wrong length for its type")
    }
}

/// One netlink message: the header's fields and the payload behind it.
#[derive(Clone, Copy, Debug)]
pub(in crate::observe) struct RawMessage<'a> {
    pub(in crate::observe) kind: u16,
    pub(in crate::observe) flags: u16,
    pub(in crate::observe) sequence: u32,
    /// The socket whose request this answers or, in a notification, whose request caused it.
    pub(in crate::observe) port: u32,
    pub(in crate::observe) payload: &'a [u8],
}

impl RawMessage<'_> {
    /// The code with which this message ends an answer, negative for an errno; `None` if more is to come.
    pub(super) fn end_of_answer(&self) -> Option<i32> {
        match self.kind {
            NLMSG_DONE => Some(DoneBuffer::new_checked(self.payload).map_or(0, |done| done.code())),
            NLMSG_ERROR => Some(
                ErrorBuffer::new_checked(self.payload).map_or(-(Errno::EPROTO as i32), |error| {
                    error.code().map_or(0, i32::from)
                }),
            ),
            _ => None,
        }
    }
}

/// Iterates over the messages of a datagram. A malformed rest ends the iteration after one error.
#[derive(Debug)]
pub(in crate::observe) struct RawMessages<'a>(&'a [u8]);

impl<'a> RawMessages<'a> {
    pub(in crate::observe) fn of(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for RawMessages<'a> {
    type Item = Result<RawMessage<'a>, Undecodable>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let Ok(buffer) = NetlinkBuffer::new_checked(rest) else {
            return Some(Err(Undecodable(
                "a message is longer than its datagram, or shorter than a header",
            )));
        };
        let length = usize::try_from(buffer.length()).unwrap_or(usize::MAX);
        let next = length
            .checked_next_multiple_of(usize::from(NLMSG_ALIGNTO))
            .unwrap_or(usize::MAX);
        self.0 = rest.get(next..).unwrap_or_default();
        Some(Ok(RawMessage {
            kind: buffer.message_type(),
            flags: buffer.flags(),
            sequence: buffer.sequence_number(),
            port: buffer.port_number(),
            payload: buffer.payload(),
        }))
    }
}

/// Calls `each` with the type and the value of every attribute in `bytes`.
pub(in crate::observe) fn for_each_attribute(
    bytes: &[u8],
    mut each: impl FnMut(u16, &[u8]) -> Result<(), Undecodable>,
) -> Result<(), Undecodable> {
    for attribute in NlasIterator::new(bytes) {
        let attribute = attribute?;
        each(attribute.kind(), attribute.value())?;
    }
    Ok(())
}

/// A string attribute up to its terminating zero.
pub(in crate::observe) fn text(value: &[u8]) -> String {
    let end = value
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// A request as the kernel expects it.
pub(super) fn encode(request: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, request.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}
