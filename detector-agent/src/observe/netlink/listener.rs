//! Netlink notifications of changes.
//!
//! One socket receives from the agent's own namespace and from all namespaces that have an id in it, which is every namespace
//! that contains the peer of one of its links. It has to be one: a message from another namespace carries that namespace's
//! id and the link's index in it, and the kernel assigns both again soon after they are free. Only the order relative to
//! `RTM_DELNSID` and to the node's own links shows which pod they meant, and the kernel orders messages within a socket only.
//!
//! Invariant: loss is never silent. Once a receive buffer is full the kernel drops everything until the reader has emptied
//! it, so an overrun is reported only then: a snapshot started at that time contains what was dropped.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
};

use detector_engine::{
    IfIndex, NsId, Observation, Peer, Route, RoutePlace, RoutingChange, TimedObservation,
};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_REPLACE, NLMSG_OVERRUN};
use nix::{
    errno::Errno,
    libc::{
        RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELNSID, RTM_DELROUTE, RTM_DELRULE,
        RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWNSID, RTM_NEWROUTE, RTM_NEWRULE,
        RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_IFADDR,
        RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE, RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_NEXTHOP,
        RTNLGRP_NSID,
    },
};

use super::{
    DeviceSelector,
    decode::{
        address::{self, LinkAddress},
        link::{self, LinkFacts, OtherEnd},
        namespace_id,
        neighbour::{self, NeighbourEntry},
        route::{self, OtherRoute, RouteMessage},
    },
    socket::{MAX_DATAGRAM, OpenError, RouteSocket},
    wire::{RawMessage, RawMessages, Undecodable},
};
use crate::process::clock;

/// `linux/rtnetlink.h`; libc does not have them.
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;
/// Maximum number of remembered pairs with both ends in the agent's namespace.
const MAX_LOCAL_PAIRS: usize = 4_096;

/// Options of a [`NetlinkListener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Size of the socket's receive buffer in bytes.
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
    /// How many datagrams were read.
    pub datagrams: u32,
}

/// A socket failed for good.
#[derive(Debug, thiserror::Error)]
#[error("receiving netlink notifications failed: {0}")]
pub struct ListenerError(#[from] Errno);

/// The notification socket.
#[derive(Debug)]
pub struct NetlinkListener {
    socket: RouteSocket,
    /// Messages were lost, and the socket has not been emptied since.
    has_lost: bool,
    interpreter: Interpreter,
    buffer: Box<[u8]>,
}

impl NetlinkListener {
    /// Opens the socket; from here on every change is received.
    ///
    /// # Errors
    /// Names the missing capability: `CAP_NET_ADMIN` for the size of the buffer, `CAP_NET_BROADCAST` for receiving from all
    /// namespaces.
    pub fn open(selector: DeviceSelector, options: ListenerOptions) -> Result<Self, OpenError> {
        let groups = [
            RTNLGRP_LINK,
            RTNLGRP_NSID,
            RTNLGRP_NEIGH,
            RTNLGRP_IPV4_IFADDR,
            RTNLGRP_IPV6_IFADDR,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV6_ROUTE,
            RTNLGRP_IPV4_RULE,
            RTNLGRP_IPV6_RULE,
            RTNLGRP_NEXTHOP,
        ];
        let socket = RouteSocket::for_notifications(&groups, Some(options.receive_buffer))?;
        if !options.neighbours {
            socket.exclude_ip_neighbours()?;
        }
        socket.receive_from_all_namespaces()?;
        Ok(Self {
            socket,
            has_lost: false,
            interpreter: Interpreter::new(selector),
            buffer: vec![0; MAX_DATAGRAM].into_boxed_slice(),
        })
    }

    /// Reports neighbours of IPv4 and IPv6 from here on, whatever the options were.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn include_neighbours(&self) -> Result<(), OpenError> {
        self.socket.include_ip_neighbours()
    }

    /// The socket to wait on until it is readable.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads up to `max_datagrams` and passes the observations to `emit`, in the kernel's order. Never blocks.
    ///
    /// # Errors
    /// If the socket failed for good.
    pub fn drain(
        &mut self,
        max_datagrams: usize,
        mut emit: impl FnMut(TimedObservation),
    ) -> Result<DrainedSocket, ListenerError> {
        let mut drained = DrainedSocket {
            more: true,
            ..DrainedSocket::default()
        };
        for _ in 0..max_datagrams {
            let received = match self.socket.receive(&mut self.buffer) {
                Ok(received) => received,
                Err(Errno::EAGAIN) => {
                    drained.more = false;
                    drained.overrun = std::mem::take(&mut self.has_lost);
                    break;
                }
                Err(Errno::EINTR) => continue,
                // ENOBUFS: the buffer was full. The others: the kernel could not build a message for this group.
                Err(Errno::ENOBUFS | Errno::EMSGSIZE | Errno::ENOMEM) => {
                    self.has_lost = true;
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            let at = clock::now();
            drained.datagrams += 1;
            if !received.from_kernel {
                drained.undecodable += 1;
                continue;
            }
            self.has_lost |= received.truncated;
            for message in RawMessages::of(self.buffer.get(..received.length).unwrap_or_default()) {
                let handled = message.and_then(|message| {
                    self.has_lost |= message.kind == NLMSG_OVERRUN;
                    let emit = |observation| emit(TimedObservation { at, observation });
                    match received.nsid {
                        None => self.interpreter.node_message(message, emit),
                        Some(nsid) => pod_message(message, nsid, emit),
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
    /// Ends of pairs that are not known to lead to another namespace. When the other end moves to a pod, the kernel only
    /// reports that it left; there is no message about the end that stays until its carrier changes. Nor is there one about
    /// the end that was created first when it is connected with one in the same namespace.
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
                    let facts = self.local_pair(facts, &mut emit);
                    emit(Observation::Link(self.selector.link(facts)));
                } else if let Some(port) = link::bridge_port(payload)? {
                    emit(Observation::PortVlan(port));
                    emit(Observation::RoutingChanged(RoutingChange::Port(
                        port.ifindex,
                    )));
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
            // A new id shows that its previous holder is gone, as its removal does.
            RTM_DELNSID | RTM_NEWNSID => {
                if let Some(nsid) = namespace_id::assigned(payload)? {
                    emit(Observation::NamespaceIdFreed(nsid));
                }
            }
            RTM_NEWADDR | RTM_DELADDR => {
                if let Some(found) =
                    address::link_address(payload)?.filter(LinkAddress::is_node_address)
                {
                    emit(if message.kind == RTM_NEWADDR {
                        Observation::HostAddress(found.ifindex, found.address)
                    } else {
                        Observation::HostAddressGone(found.ifindex, found.address.id())
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
            RTM_NEWROUTE | RTM_DELROUTE => match route::route(payload)? {
                RouteMessage::Plain(route) if message.kind == RTM_NEWROUTE => {
                    emit(added_route(route, message.flags));
                }
                RouteMessage::Plain(route) => emit(Observation::RouteGone(route)),
                RouteMessage::Other(OtherRoute {
                    place,
                    may_replace_plain,
                }) => {
                    let replaces =
                        message.kind == RTM_NEWROUTE && message.flags & NLM_F_REPLACE != 0;
                    emit(Observation::RoutingChanged(
                        if replaces && may_replace_plain {
                            RoutingChange::Replaced(place)
                        } else {
                            RoutingChange::Destination(place.destination, place.prefix_len)
                        },
                    ));
                }
                RouteMessage::Ignored => {}
            },
            RTM_NEWRULE | RTM_DELRULE | RTM_NEWNEXTHOP | RTM_DELNEXTHOP => {
                emit(Observation::RoutingChanged(RoutingChange::Policy));
            }
            _ => {}
        }
        Ok(())
    }

    /// Remembers an end of a pair, and returns what is known of it.
    fn local_pair(
        &mut self,
        mut facts: LinkFacts,
        emit: &mut impl FnMut(Observation),
    ) -> LinkFacts {
        let ifindex = facts.ifindex;
        let known = self.local_pairs.get(&ifindex).map(|known| known.other_end);
        match facts.other_end {
            OtherEnd::Elsewhere(_) => {
                self.local_pairs.remove(&ifindex);
                return facts;
            }
            // Not a pair.
            OtherEnd::Unknown if !facts.driver.is_pair() => return facts,
            // The pair is being torn down.
            OtherEnd::Unknown => facts.other_end = known.unwrap_or(OtherEnd::Unknown),
            OtherEnd::Here(other) => {
                if let Some(first) = self.local_pairs.get_mut(&other)
                    && first.other_end == OtherEnd::Unknown
                {
                    first.other_end = OtherEnd::Here(ifindex);
                    emit(Observation::Link(self.selector.link(first.clone())));
                }
            }
        }
        if known.is_some() || self.local_pairs.len() < MAX_LOCAL_PAIRS {
            self.local_pairs.insert(ifindex, facts.clone());
        }
        facts
    }
}

/// By the flags of its notification, where a route was added among those of its destination, metric and table
/// (`fib_table_insert` in net/ipv4/fib_trie.c, `fib6_add_rt2node` in net/ipv6/ip6_fib.c).
fn added_route(route: Route, flags: u16) -> Observation {
    if flags & NLM_F_REPLACE != 0 {
        Observation::Route(route)
    } else if flags & NLM_F_APPEND != 0 || route.destination.is_ipv6() {
        Observation::RouteInserted(route, RoutePlace::Last)
    } else {
        Observation::RouteInserted(route, RoutePlace::First)
    }
}

/// Turns a message from another namespace into an observation.
pub(super) fn pod_message(
    message: RawMessage<'_>,
    nsid: NsId,
    mut emit: impl FnMut(Observation),
) -> Result<(), Undecodable> {
    if message.kind == RTM_NEWLINK {
        if let Some((ifindex, mac)) = link::hardware_address(message.payload)? {
            emit(Observation::PodLink(Peer { nsid, ifindex }, mac));
        }
        return Ok(());
    }
    if message.kind == RTM_DELLINK {
        if let Some(removed) = link::removed_link(message.payload)?.filter(|link| link.has_moved) {
            let ifindex = removed.ifindex;
            emit(Observation::PeerMoved(Peer { nsid, ifindex }));
        }
        return Ok(());
    }
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
            Observation::PodAddressGone(peer, found.address.id())
        });
    }
    Ok(())
}
