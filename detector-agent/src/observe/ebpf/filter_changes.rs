//! Notifications of changed filters and queueing disciplines (`RTNLGRP_TC`).
//!
//! They name the devices to check: listing the filters of all devices every few seconds would be most of an idle agent's CPU
//! time.

use std::{
    collections::HashSet,
    os::fd::{AsFd, BorrowedFd},
};

use detector_engine::IfIndex;
use netlink_packet_route::tc::TcHeader;
use nix::{
    errno::Errno,
    libc::{RTM_DELQDISC, RTM_DELTFILTER, RTM_NEWTFILTER, RTNLGRP_TC},
};

use super::tc::TcError;
use crate::observe::netlink::{MAX_DATAGRAM, RawMessages, RouteSocket};

/// Maximum number of datagrams per read; if there are more, every device is checked.
const DATAGRAMS: usize = 4_096;

/// The devices whose filters changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChangedDevices {
    /// Their indices; some are not pod devices.
    pub devices: HashSet<IfIndex>,
    /// Notifications were lost, so filters of any other device may have changed as well.
    pub lost: bool,
}

/// A socket that receives the notifications. It is readable when there are some.
#[derive(Debug)]
pub(super) struct FilterChanges {
    socket: RouteSocket,
    buffer: Box<[u8]>,
}

impl FilterChanges {
    /// Subscribes in the caller's network namespace.
    pub(super) fn open() -> Result<Self, TcError> {
        let socket = RouteSocket::for_notifications(&[RTNLGRP_TC], None)?;
        Ok(Self {
            socket,
            buffer: vec![0; MAX_DATAGRAM].into_boxed_slice(),
        })
    }

    /// Reads the notifications since the last call, except those of changes by the socket with the port `own`.
    pub(super) fn read(&mut self, own: u32) -> ChangedDevices {
        let mut changed = ChangedDevices::default();
        for _ in 0..DATAGRAMS {
            match self.socket.receive(&mut self.buffer) {
                Ok(received) if received.truncated => changed.lost = true,
                Ok(received) if !received.from_kernel => {}
                Ok(received) => {
                    let datagram = self.buffer.get(..received.length).unwrap_or_default();
                    changed.devices.extend(changed_in(datagram, own));
                }
                Err(Errno::EAGAIN) => return changed,
                Err(Errno::EINTR) => {}
                // The receive buffer overflowed, or the socket is broken.
                Err(_) => break,
            }
        }
        changed.lost = true;
        changed
    }
}

impl AsFd for FilterChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The devices of the notifications in a datagram that were not caused by the socket with the port `own`.
fn changed_in(datagram: &[u8], own: u32) -> impl Iterator<Item = IfIndex> {
    RawMessages::of(datagram)
        .flatten()
        .filter(move |message| {
            let is_change = matches!(message.kind, RTM_DELQDISC | RTM_DELTFILTER | RTM_NEWTFILTER);
            is_change && message.port != own
        })
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

    /// The port of the agent's requests.
    const OWN: u32 = 99;

    fn message(length: u32, kind: u16, port: u32, ifindex: u32) -> Vec<u8> {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER - 4, 0);
        bytes.extend(port.to_ne_bytes());
        bytes.resize(HEADER + 4, 0);
        bytes.extend(ifindex.to_ne_bytes());
        bytes.resize((length as usize).max(WITH_IFINDEX).next_multiple_of(4), 0);
        bytes
    }

    fn changed(datagram: &[u8]) -> Vec<IfIndex> {
        changed_in(datagram, OWN).collect()
    }

    #[test]
    fn changes_by_others_are_reported() {
        let removed = message(36, RTM_DELTFILTER, 0, 7);
        let added = message(37, RTM_NEWTFILTER, 5, 8);
        let by_us = message(36, RTM_NEWTFILTER, OWN, 10);
        let listed = message(36, 46, 5, 11);
        let without_qdisc = message(36, RTM_DELQDISC, 0, 9);
        let datagram = [removed, added, by_us, listed, without_qdisc].concat();
        assert_eq!(changed(&datagram), [7, 8, 9]);
    }

    #[test]
    fn truncated_datagrams_are_read_safely() {
        let complete = [
            message(36, RTM_DELTFILTER, 0, 7),
            message(0, RTM_DELTFILTER, 0, 8),
            message(36, RTM_DELQDISC, 0, 9),
        ]
        .concat();
        for length in 0..=complete.len() {
            let devices = changed(&complete[..length]);
            assert!(devices.iter().all(|d| [7, 9].contains(d)), "{devices:?}");
        }
        for length in [1, 15, 16, 23, u32::MAX] {
            let mut datagram = message(36, RTM_DELTFILTER, 0, 7);
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(changed(&datagram).len() <= 1);
        }
    }
}
