//! What the kernel tells of filters and queueing disciplines that were removed (`RTNLGRP_TC`), ours among them.
//!
//! Only says where to look: listing the filters of every device every few seconds would be most of what an idle agent costs.

use std::{collections::HashSet, io};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::tc::TcError;
use crate::engine::IfIndex;

/// `RTNLGRP_TC` of `linux/rtnetlink.h`.
const GROUP: u32 = 4;
/// `RTM_DELQDISC` and `RTM_DELTFILTER` of `linux/rtnetlink.h`.
const REMOVED: [u16; 2] = [37, 45];
/// Bytes of `struct nlmsghdr`; `struct tcmsg` follows it.
const HEADER: usize = 16;
/// Bytes of `struct nlmsghdr` and of `struct tcmsg` up to the end of `tcm_ifindex`.
const WITH_IFINDEX: usize = HEADER + 8;
/// Bytes that one datagram of the kernel may have.
const DATAGRAM: usize = 32 * 1024;
/// Datagrams taken in one round; where there are more, every device is looked at.
const DATAGRAMS: usize = 4_096;

/// A socket on which the kernel tells of removals, and what it told last.
#[derive(Debug)]
pub(super) struct Removals {
    socket: Socket,
    buffer: Box<[u8]>,
    concerned: HashSet<IfIndex>,
    every_device: bool,
}

impl Removals {
    /// Listens from now on, in the network namespace that the caller is in.
    pub(super) fn open() -> Result<Self, TcError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(GROUP)?;
        socket.set_non_blocking(true)?;
        Ok(Self {
            socket,
            buffer: vec![0; DATAGRAM].into_boxed_slice(),
            concerned: HashSet::new(),
            every_device: false,
        })
    }

    /// Takes what was told since the last time. What was lost on the way, or could not be read, may concern every device.
    pub(super) fn listen(&mut self, every_device: bool) {
        self.concerned.clear();
        self.every_device = every_device;
        for _ in 0..DATAGRAMS {
            match self.socket.recv_from(&mut &mut self.buffer[..], 0) {
                Ok((length, _)) => match self.buffer.get(..length) {
                    Some(datagram) => self.concerned.extend(removed_from(datagram)),
                    None => self.every_device = true,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The queue ran over, or the socket is of no use any more.
                Err(_) => {
                    self.every_device = true;
                    return;
                }
            }
        }
        self.every_device = true;
    }

    /// Whether something of this device may have been removed, as [`Removals::listen`] last learnt.
    pub(super) fn concern(&self, ifindex: IfIndex) -> bool {
        self.every_device || self.concerned.contains(&ifindex)
    }
}

/// The devices that a datagram says something was removed from.
fn removed_from(datagram: &[u8]) -> impl Iterator<Item = IfIndex> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        loop {
            let message = rest;
            let length = u32::from_ne_bytes(*message.first_chunk()?) as usize;
            // Messages start at multiples of four bytes.
            rest = rest
                .get(length.max(HEADER).next_multiple_of(4)..)
                .unwrap_or_default();
            let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
            let Some(header) = message.get(..WITH_IFINDEX) else {
                continue;
            };
            if length >= WITH_IFINDEX && REMOVED.contains(&kind) {
                return Some(u32::from_ne_bytes(*header.last_chunk()?));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32, kind: u16, ifindex: u32) -> Vec<u8> {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER + 4, 0);
        bytes.extend(ifindex.to_ne_bytes());
        bytes.resize((length as usize).max(WITH_IFINDEX).next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn removals_are_told_from_what_was_added() {
        let mut datagram = message(36, 45, 7);
        datagram.extend(message(37, 44, 8));
        datagram.extend(message(36, 37, 9));
        assert_eq!(removed_from(&datagram).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn a_datagram_of_whatever_length_is_read_to_its_end() {
        let whole = [message(36, 45, 7), message(0, 45, 8), message(36, 37, 9)].concat();
        for length in 0..=whole.len() {
            let devices: Vec<_> = removed_from(&whole[..length]).collect();
            assert!(devices.iter().all(|d| [7, 9].contains(d)), "{devices:?}");
        }
        for length in [1, 15, 16, 23, u32::MAX] {
            let mut datagram = message(36, 45, 7);
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(removed_from(&datagram).count() <= 1);
        }
    }
}
