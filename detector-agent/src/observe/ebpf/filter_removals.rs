//! Notifications of removed filters and queueing disciplines (`RTNLGRP_TC`).
//!
//! They tell which devices to check: listing the filters of all devices every few seconds would be most of an idle agent's CPU
//! time.

use std::collections::HashSet;

use netlink_packet_route::tc::TcHeader;
use nix::{
    errno::Errno,
    libc::{RTM_DELQDISC, RTM_DELTFILTER, RTNLGRP_TC},
};

use super::tc::TcError;
use crate::{
    engine::IfIndex,
    observe::netlink::{MAX_DATAGRAM, RawMessages, RouteSocket},
};

/// Maximum number of datagrams per round; if there are more, every device is checked.
const DATAGRAMS: usize = 4_096;

/// A socket that receives the notifications, and the devices affected since the last round.
#[derive(Debug)]
pub(super) struct FilterRemovals {
    socket: RouteSocket,
    buffer: Box<[u8]>,
    affected: HashSet<IfIndex>,
    every_device: bool,
}

impl FilterRemovals {
    /// Subscribes in the caller's network namespace.
    pub(super) fn open() -> Result<Self, TcError> {
        let socket = RouteSocket::for_notifications(&[RTNLGRP_TC], None)?;
        Ok(Self {
            socket,
            buffer: vec![0; MAX_DATAGRAM].into_boxed_slice(),
            affected: HashSet::new(),
            every_device: false,
        })
    }

    /// Reads the notifications since the last call. If some were lost or unreadable, every device may be affected.
    pub(super) fn drain(&mut self, every_device: bool) {
        self.affected.clear();
        self.every_device = every_device;
        for _ in 0..DATAGRAMS {
            match self.socket.receive(&mut self.buffer) {
                Ok(received) if received.truncated => self.every_device = true,
                Ok(received) if !received.from_kernel => {}
                Ok(received) => {
                    let datagram = self.buffer.get(..received.length).unwrap_or_default();
                    self.affected.extend(removed_from(datagram));
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                // The receive buffer overflowed, or the socket is broken.
                Err(_) => {
                    self.every_device = true;
                    return;
                }
            }
        }
        self.every_device = true;
    }

    /// Whether a filter of this device may have been removed before the last [`FilterRemovals::drain`].
    pub(super) fn may_affect(&self, ifindex: IfIndex) -> bool {
        self.every_device || self.affected.contains(&ifindex)
    }
}

/// The devices of the removal notifications in a datagram.
fn removed_from(datagram: &[u8]) -> impl Iterator<Item = IfIndex> {
    RawMessages::of(datagram)
        .flatten()
        .filter(|message| matches!(message.kind, RTM_DELQDISC | RTM_DELTFILTER))
        .filter_map(|message| {
            let header = TcHeader::parse(message.payload).ok()?;
            IfIndex::try_from(header.index).ok()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of `struct nlmsghdr`.
    const HEADER: usize = 16;
    /// Bytes of `struct nlmsghdr` and of `struct tcmsg` up to the end of `tcm_ifindex`.
    const WITH_IFINDEX: usize = HEADER + 8;

    fn message(length: u32, kind: u16, ifindex: u32) -> Vec<u8> {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER + 4, 0);
        bytes.extend(ifindex.to_ne_bytes());
        bytes.resize((length as usize).max(WITH_IFINDEX).next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn only_removals_are_reported() {
        let mut datagram = message(36, 45, 7);
        datagram.extend(message(37, 44, 8));
        datagram.extend(message(36, 37, 9));
        assert_eq!(removed_from(&datagram).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn truncated_datagrams_are_read_safely() {
        let complete = [message(36, 45, 7), message(0, 45, 8), message(36, 37, 9)].concat();
        for length in 0..=complete.len() {
            let devices: Vec<_> = removed_from(&complete[..length]).collect();
            assert!(devices.iter().all(|d| [7, 9].contains(d)), "{devices:?}");
        }
        for length in [1, 15, 16, 23, u32::MAX] {
            let mut datagram = message(36, 45, 7);
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(removed_from(&datagram).count() <= 1);
        }
    }
}
