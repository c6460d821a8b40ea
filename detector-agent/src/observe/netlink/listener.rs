//! Netlink notifications of changes.
//!
//! Two sockets: one for the agent's own namespace, and one for addresses in all namespaces that have an id in it, which is
//! every namespace that contains the peer of one of its links.
//!
//! Invariant: loss is never silent. Once a receive buffer is full the kernel drops everything until the reader has emptied
//! it, so an overrun is reported only then: a snapshot started at that time contains what was dropped.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::NLMSG_OVERRUN;
use nix::{
    errno::Errno,
    libc::{
        RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK,
        RTM_NEWNEIGH, RTM_NEWROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR,
        RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK, RTNLGRP_NEIGH,
    },
};

use super::{
    DeviceSelector,
    decode::{
        address::{self, LinkAddress},
        link::{self, LinkFacts, OtherEnd},
        neighbour::{self, NeighbourEntry},
        route,
    },
    socket::{MAX_DATAGRAM, OpenError, RouteSocket},
    wire::{RawMessage, RawMessages, Undecodable},
};
use crate::{
    clock,
    engine::{IfIndex, NsId, Observation, Peer, TimedObservation},
};

/// Maximum number of remembered pairs with both ends in the agent's namespace.
const MAX_LOCAL_PAIRS: usize = 4_096;

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotificationSource {
    /// Links, neighbours, forwarding entries, routes and addresses of the agent's own namespace.
    Node,
    /// Addresses in other namespaces.
    Pods,
}

impl NotificationSource {
    /// Both, the node's first, so that a link is usually reported before the addresses behind it. The kernel does not order
    /// the two: once a link's peer is known, the device must be read.
    pub const ALL: [Self; 2] = [Self::Node, Self::Pods];
}

/// Options of a [`NetlinkListener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Size of each socket's receive buffer in bytes.
    pub receive_buffer: usize,
    /// Report neighbours of IPv4 and IPv6; not needed if the kernel program does. Forwarding entries are always reported.
    pub neighbours: bool,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            receive_buffer: 8 << 20,
            neighbours: true,
        }
    }
}

/// How one call of [`NetlinkListener::drain`] ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "an overrun must be followed by a resync"]
pub struct DrainedSocket {
    /// The socket may hold more: call again.
    pub more: bool,
    /// Messages were lost, and the socket has been emptied since: resync now.
    pub overrun: bool,
    /// Messages that could not be parsed.
    pub undecodable: u64,
}

/// A socket failed for good.
#[derive(Debug, thiserror::Error)]
#[error("receiving netlink notifications failed: {0}")]
pub struct ListenerError(#[from] Errno);

/// The notification sockets.
#[derive(Debug)]
pub struct NetlinkListener {
    node: NotificationSocket,
    pods: NotificationSocket,
    interpreter: Interpreter,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct NotificationSocket {
    socket: RouteSocket,
    /// Messages were lost, and the socket has not been emptied since.
    has_lost: bool,
}

impl NetlinkListener {
    /// Opens the sockets; from here on every change is received.
    ///
    /// # Errors
    /// Names the missing capability: `CAP_NET_ADMIN` for the size of the buffer, `CAP_NET_BROADCAST` for receiving from all
    /// namespaces.
    pub fn open(selector: DeviceSelector, options: ListenerOptions) -> Result<Self, OpenError> {
        let receive_buffer = Some(options.receive_buffer);
        let addresses = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
        let [ipv4_addresses, ipv6_addresses] = addresses;
        let node = [
            RTNLGRP_LINK,
            RTNLGRP_NEIGH,
            ipv4_addresses,
            ipv6_addresses,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV6_ROUTE,
        ];
        let node = RouteSocket::for_notifications(&node, receive_buffer)?;
        if !options.neighbours {
            node.exclude_ip_neighbours()?;
        }
        let pods = RouteSocket::for_notifications(&addresses, receive_buffer)?;
        pods.receive_from_all_namespaces()?;
        Ok(Self {
            node: NotificationSocket {
                socket: node,
                has_lost: false,
            },
            pods: NotificationSocket {
                socket: pods,
                has_lost: false,
            },
            interpreter: Interpreter::new(selector),
            buffer: vec![0; MAX_DATAGRAM].into_boxed_slice(),
        })
    }

    /// The socket to wait on until it is readable.
    #[must_use]
    pub fn fd(&self, source: NotificationSource) -> BorrowedFd<'_> {
        match source {
            NotificationSource::Node => self.node.socket.as_fd(),
            NotificationSource::Pods => self.pods.socket.as_fd(),
        }
    }

    /// Reads up to `max_datagrams` from a socket and passes the observations to `emit`. Never blocks.
    ///
    /// # Errors
    /// If the socket failed for good.
    pub fn drain(
        &mut self,
        source: NotificationSource,
        max_datagrams: usize,
        mut emit: impl FnMut(TimedObservation),
    ) -> Result<DrainedSocket, ListenerError> {
        let socket = match source {
            NotificationSource::Node => &mut self.node,
            NotificationSource::Pods => &mut self.pods,
        };
        let mut drained = DrainedSocket {
            more: true,
            ..DrainedSocket::default()
        };
        for _ in 0..max_datagrams {
            let received = match socket.socket.receive(&mut self.buffer) {
                Ok(received) => received,
                Err(Errno::EAGAIN) => {
                    drained.more = false;
                    drained.overrun = std::mem::take(&mut socket.has_lost);
                    break;
                }
                Err(Errno::EINTR) => continue,
                // ENOBUFS: the buffer was full. The others: the kernel could not build a message for this group.
                Err(Errno::ENOBUFS | Errno::EMSGSIZE | Errno::ENOMEM) => {
                    socket.has_lost = true;
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            let at = clock::now();
            if !received.from_kernel {
                drained.undecodable += 1;
                continue;
            }
            socket.has_lost |= received.truncated;
            for message in RawMessages::of(self.buffer.get(..received.length).unwrap_or_default()) {
                let handled = message.and_then(|message| {
                    socket.has_lost |= message.kind == NLMSG_OVERRUN;
                    let emit = |observation| emit(TimedObservation { at, observation });
                    match source {
                        NotificationSource::Node => self.interpreter.node_message(message, emit),
                        NotificationSource::Pods => received
                            .nsid
                            .map_or(Ok(()), |nsid| pod_message(message, nsid, emit)),
                    }
                });
                drained.undecodable += u64::from(handled.is_err());
            }
        }
        Ok(drained)
    }
}

/// Turns the node's messages into observations.
#[derive(Debug)]
pub(super) struct Interpreter {
    selector: DeviceSelector,
    /// Links whose other end is in the agent's namespace too. When that end moves to a pod, the kernel only reports that it
    /// left; there is no message about the end that stays until its carrier changes.
    local_pairs: HashMap<IfIndex, LinkFacts>,
}

impl Interpreter {
    pub(super) fn new(selector: DeviceSelector) -> Self {
        Self {
            selector,
            local_pairs: HashMap::new(),
        }
    }

    pub(super) fn node_message(
        &mut self,
        message: RawMessage<'_>,
        mut emit: impl FnMut(Observation),
    ) -> Result<(), Undecodable> {
        let payload = message.payload;
        match message.kind {
            RTM_NEWLINK => {
                if let Some(facts) = link::new_link(payload)? {
                    self.remember_local_pair(&facts);
                    emit(Observation::Link(self.selector.link(facts)));
                }
            }
            RTM_DELLINK => {
                if let Some(removed) = link::removed_link(payload)? {
                    self.local_pairs.remove(&removed.ifindex);
                    emit(Observation::LinkGone(removed.ifindex));
                    if let Some((stays, peer)) = removed.moved
                        && let Some(mut facts) = self.local_pairs.remove(&stays)
                    {
                        facts.other_end = OtherEnd::Elsewhere(peer);
                        emit(Observation::Link(self.selector.link(facts)));
                    }
                }
            }
            RTM_NEWADDR | RTM_DELADDR => {
                if let Some(found) =
                    address::link_address(payload)?.filter(LinkAddress::is_node_address)
                {
                    emit(if message.kind == RTM_NEWADDR {
                        Observation::HostAddress(found.ifindex, found.address)
                    } else {
                        Observation::HostAddressGone(
                            found.ifindex,
                            found.address.address,
                            found.address.prefix_len,
                        )
                    });
                }
            }
            RTM_NEWNEIGH | RTM_DELNEIGH => {
                match (neighbour::entry(payload)?, message.kind == RTM_NEWNEIGH) {
                    (NeighbourEntry::Neighbour(neighbour), true) => {
                        emit(Observation::Neighbour(neighbour))
                    }
                    (NeighbourEntry::Neighbour(neighbour), false) => {
                        emit(Observation::NeighbourGone(
                            neighbour.ifindex,
                            neighbour.address,
                        ));
                    }
                    (NeighbourEntry::Fdb(entry), true) => emit(Observation::Fdb(entry)),
                    (NeighbourEntry::Fdb(entry), false) => emit(Observation::FdbGone(entry)),
                    (NeighbourEntry::Ignored, _) => {}
                }
            }
            RTM_NEWROUTE | RTM_DELROUTE => {
                if let Some(route) = route::route(payload)? {
                    emit(if message.kind == RTM_NEWROUTE {
                        Observation::Route(route)
                    } else {
                        Observation::RouteGone(route)
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn remember_local_pair(&mut self, facts: &LinkFacts) {
        match facts.other_end {
            OtherEnd::Here(_)
                if self.local_pairs.len() < MAX_LOCAL_PAIRS
                    || self.local_pairs.contains_key(&facts.ifindex) =>
            {
                self.local_pairs.insert(facts.ifindex, facts.clone());
            }
            OtherEnd::Here(_) => {}
            OtherEnd::Unknown | OtherEnd::Elsewhere(_) => {
                self.local_pairs.remove(&facts.ifindex);
            }
        }
    }
}

/// Turns a message from another namespace into an observation.
pub(super) fn pod_message(
    message: RawMessage<'_>,
    nsid: NsId,
    mut emit: impl FnMut(Observation),
) -> Result<(), Undecodable> {
    if !matches!(message.kind, RTM_NEWADDR | RTM_DELADDR) {
        return Ok(());
    }
    if let Some(found) = address::link_address(message.payload)?.filter(LinkAddress::is_pod_address)
    {
        let peer = Peer {
            nsid,
            ifindex: found.ifindex,
        };
        emit(if message.kind == RTM_NEWADDR {
            Observation::PodAddress(peer, found.address)
        } else {
            Observation::PodAddressGone(peer, found.address.address, found.address.prefix_len)
        });
    }
    Ok(())
}
