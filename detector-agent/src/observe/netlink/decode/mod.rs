//! From the bytes of a datagram to what detection needs, one file per message type.
//!
//! Headers and the attribute walk come from the netlink crates. Attributes are picked by number, not parsed into the
//! crates' typed lists: a link message carries some sixty attributes of which detection wants seven, and one attribute
//! that a newer kernel writes differently must not cost the whole message.
//!
//! Invariant: no input panics; what cannot be read is [`Undecodable`], and the caller counts it.

pub(super) mod address;
pub(super) mod link;
pub(super) mod neighbour;
pub(super) mod route;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{DecodeError, NLMSG_ALIGNTO, NetlinkBuffer, NlasIterator};

use crate::engine::{IfIndex, Mac};

/// `RTM_NEWLINK`, linux/rtnetlink.h; as are the next ones.
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_NEWNSID: u16 = 88;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;

/// A message, or a part of one, that does not say what its type promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("undecodable netlink message: {0}")]
pub(super) struct Undecodable(pub(super) &'static str);

impl From<DecodeError> for Undecodable {
    fn from(_: DecodeError) -> Self {
        Self("a field or attribute is shorter or longer than its type")
    }
}

/// One netlink message: the header's fields and the payload behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// Walks the messages of a datagram. A malformed rest ends the walk after one error.
#[derive(Debug)]
pub(super) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    pub(super) fn of(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Undecodable>;

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
        Some(Ok(Message {
            kind: buffer.message_type(),
            flags: buffer.flags(),
            sequence: buffer.sequence_number(),
            payload: buffer.payload(),
        }))
    }
}

/// Calls `each` with the number and the value of every attribute in `bytes`.
fn attributes(
    bytes: &[u8],
    mut each: impl FnMut(u16, &[u8]) -> Result<(), Undecodable>,
) -> Result<(), Undecodable> {
    for attribute in NlasIterator::new(bytes) {
        let attribute = attribute?;
        each(attribute.kind(), attribute.value())?;
    }
    Ok(())
}

/// An interface index; the kernel's are signed and positive.
fn if_index(value: u32) -> Result<IfIndex, Undecodable> {
    if value == 0 || i32::try_from(value).is_err() {
        return Err(Undecodable("an interface index is not positive"));
    }
    Ok(value)
}

/// An address of a family, from an attribute's value of exactly its size.
fn ip_address(family: u8, value: &[u8]) -> Result<IpAddr, Undecodable> {
    let wrong = |_| Undecodable("an address has the wrong size for its family");
    match family {
        AF_INET => Ok(Ipv4Addr::from(<[u8; 4]>::try_from(value).map_err(wrong)?).into()),
        AF_INET6 => Ok(Ipv6Addr::from(<[u8; 16]>::try_from(value).map_err(wrong)?).into()),
        _ => Err(Undecodable("an address of neither IPv4 nor IPv6")),
    }
}

/// A prefix length, not longer than the address.
fn prefix_len(family: u8, value: u8) -> Result<u8, Undecodable> {
    let most = if family == AF_INET { 32 } else { 128 };
    if value > most {
        return Err(Undecodable("a prefix is longer than its address"));
    }
    Ok(value)
}

/// A six-byte hardware address; other links (tunnels: 4 or 16 bytes, InfiniBand: 20) have none that ARP or NDP on a
/// pod device could carry.
fn mac(value: &[u8]) -> Option<Mac> {
    <[u8; 6]>::try_from(value).ok().map(Mac)
}

/// A string attribute up to its terminating zero.
fn text(value: &[u8]) -> String {
    let end = value
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// `AF_UNSPEC`, linux/socket.h; as are the next ones.
const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
pub(super) const AF_BRIDGE: u8 = 7;
const AF_INET6: u8 = 10;
