//! What changes from now on.
//!
//! Two sockets: one for the agent's own namespace, and one for addresses in all namespaces that have an id in it,
//! which is every namespace that the peer of one of its links stands in.
//!
//! Invariant: loss is never silent. Once a receive buffer is full the kernel drops everything until the reader has
//! emptied it, so an overrun is reported only after that: a reading begun then holds what was dropped.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::NLMSG_OVERRUN;
use nix::{
    errno::Errno,
    time::{ClockId, clock_gettime},
};

use super::{
    DeviceSelector,
    decode::{
        Message, Messages, RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWADDR,
        RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWROUTE, Undecodable, address,
        link::{self, LinkFacts, OtherEnd},
        neighbour::{self, Entry},
        route,
    },
    socket::{DATAGRAM, OpenError, RouteSocket},
};
use crate::engine::{IfIndex, NsId, Observation, Peer, TimedObservation, Timestamp};

/// `RTNLGRP_…`, linux/rtnetlink.h.
const LINK: u32 = 1;
const NEIGH: u32 = 3;
const IPV4_IFADDR: u32 = 5;
const IPV4_ROUTE: u32 = 7;
const IPV6_IFADDR: u32 = 9;
const IPV6_ROUTE: u32 = 11;

/// Pairs with both ends in the agent's namespace that are remembered, until one end moves to its pod.
const MAX_PAIRS: usize = 4_096;

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Links, neighbours, forwarding entries, routes and addresses of the agent's own namespace.
    Node,
    /// Addresses in other namespaces.
    Pods,
}

impl Source {
    /// Both, the node's first, so that a link mostly comes before the addresses behind it. The kernel does not order the
    /// two against each other: once a link's peer is known, the device is to be read.
    pub const ALL: [Self; 2] = [Self::Node, Self::Pods];
}

/// What to listen to, and with how much room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// Bytes of each socket's receive buffer.
    pub receive_buffer: usize,
    /// Tell neighbours of IPv4 and IPv6; not needed where the kernel program does. Forwarding entries are always told.
    pub neighbours: bool,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            receive_buffer: 8 << 20,
            neighbours: true,
        }
    }
}

/// What one call of [`Live::drain`] did besides the observations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "an overrun must be followed by a fresh reading"]
pub struct Drained {
    /// The socket may hold more: call again.
    pub more: bool,
    /// Messages were lost, and the socket has been emptied since: begin a reading now.
    pub overrun: bool,
    /// Messages that could not be read.
    pub undecodable: u64,
}

/// A socket that no longer works.
#[derive(Debug, thiserror::Error)]
#[error("listening to the kernel failed: {0}")]
pub struct LiveError(#[from] Errno);

/// The live sockets.
#[derive(Debug)]
pub struct Live {
    node: Listener,
    pods: Listener,
    interpreter: Interpreter,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct Listener {
    socket: RouteSocket,
    /// Messages were lost, and the socket has not been emptied since.
    lost: bool,
}

impl Live {
    /// Opens the sockets; from here on every change is told.
    ///
    /// # Errors
    /// Names the missing capability: `CAP_NET_ADMIN` for the size of the buffer, `CAP_NET_BROADCAST` for hearing all
    /// namespaces.
    pub fn open(selector: DeviceSelector, options: LiveOptions) -> Result<Self, OpenError> {
        let node = RouteSocket::listening(
            &[
                LINK,
                NEIGH,
                IPV4_IFADDR,
                IPV6_IFADDR,
                IPV4_ROUTE,
                IPV6_ROUTE,
            ],
            options.receive_buffer,
        )?;
        if !options.neighbours {
            node.leave_out_neighbours()?;
        }
        let pods = RouteSocket::listening(&[IPV4_IFADDR, IPV6_IFADDR], options.receive_buffer)?;
        pods.listen_to_all_namespaces()?;
        Ok(Self {
            node: Listener {
                socket: node,
                lost: false,
            },
            pods: Listener {
                socket: pods,
                lost: false,
            },
            interpreter: Interpreter::new(selector),
            buffer: vec![0; DATAGRAM].into_boxed_slice(),
        })
    }

    /// The socket to wait on until it is readable.
    #[must_use]
    pub fn fd(&self, source: Source) -> BorrowedFd<'_> {
        match source {
            Source::Node => self.node.socket.as_fd(),
            Source::Pods => self.pods.socket.as_fd(),
        }
    }

    /// Reads what the socket holds, but at most `max_datagrams`, and gives `tell` what it says. Never blocks.
    ///
    /// # Errors
    /// Where the socket cannot be read any more.
    pub fn drain(
        &mut self,
        source: Source,
        max_datagrams: usize,
        mut tell: impl FnMut(TimedObservation),
    ) -> Result<Drained, LiveError> {
        let listener = match source {
            Source::Node => &mut self.node,
            Source::Pods => &mut self.pods,
        };
        let mut drained = Drained {
            more: true,
            ..Drained::default()
        };
        for _ in 0..max_datagrams {
            let received = match listener.socket.receive(&mut self.buffer) {
                Ok(received) => received,
                Err(Errno::EAGAIN) => {
                    drained.more = false;
                    drained.overrun = std::mem::take(&mut listener.lost);
                    break;
                }
                Err(Errno::EINTR) => continue,
                // ENOBUFS: the buffer was full. The others: the kernel could not build a message for this group.
                Err(Errno::ENOBUFS | Errno::EMSGSIZE | Errno::ENOMEM) => {
                    listener.lost = true;
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            let at = now()?;
            if !received.from_kernel {
                drained.undecodable += 1;
                continue;
            }
            listener.lost |= received.truncated;
            for message in Messages::of(self.buffer.get(..received.length).unwrap_or_default()) {
                let read = message.and_then(|message| {
                    listener.lost |= message.kind == NLMSG_OVERRUN;
                    let tell = |what| {
                        tell(TimedObservation {
                            at,
                            observation: what,
                        })
                    };
                    match source {
                        Source::Node => self.interpreter.of_node(message, tell),
                        Source::Pods => received
                            .nsid
                            .map_or(Ok(()), |nsid| of_pods(message, nsid, tell)),
                    }
                });
                drained.undecodable += u64::from(read.is_err());
            }
        }
        Ok(drained)
    }
}

/// The time that frames are stamped with, too.
fn now() -> Result<Timestamp, Errno> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let nanoseconds = std::time::Duration::from(time).as_nanos();
    Ok(Timestamp(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
}

/// Makes observations of the node's messages.
#[derive(Debug)]
pub(super) struct Interpreter {
    selector: DeviceSelector,
    /// Links whose other end is in the agent's namespace too. When that end moves to a pod, the kernel says so only in
    /// the message that it left; nothing is told about the end that stays until its carrier changes.
    pairs: HashMap<IfIndex, LinkFacts>,
}

impl Interpreter {
    pub(super) fn new(selector: DeviceSelector) -> Self {
        Self {
            selector,
            pairs: HashMap::new(),
        }
    }

    pub(super) fn of_node(
        &mut self,
        message: Message<'_>,
        mut tell: impl FnMut(Observation),
    ) -> Result<(), Undecodable> {
        let payload = message.payload;
        match message.kind {
            RTM_NEWLINK => {
                if let Some(facts) = link::appeared(payload)? {
                    self.remember_pair(&facts);
                    tell(Observation::Link(self.selector.link(facts)));
                }
            }
            RTM_DELLINK => {
                if let Some(gone) = link::gone(payload)? {
                    self.pairs.remove(&gone.ifindex);
                    tell(Observation::LinkGone(gone.ifindex));
                    if let Some((stays, peer)) = gone.moved
                        && let Some(mut facts) = self.pairs.remove(&stays)
                    {
                        facts.other_end = OtherEnd::Elsewhere(peer);
                        tell(Observation::Link(self.selector.link(facts)));
                    }
                }
            }
            RTM_NEWADDR | RTM_DELADDR => {
                if let Some(on_link) = address::on_link(payload)?.filter(address::OnLink::of_host) {
                    tell(if message.kind == RTM_NEWADDR {
                        Observation::HostAddress(on_link.ifindex, on_link.address)
                    } else {
                        Observation::HostAddressGone(
                            on_link.ifindex,
                            on_link.address.address,
                            on_link.address.prefix_len,
                        )
                    });
                }
            }
            RTM_NEWNEIGH | RTM_DELNEIGH => {
                match (neighbour::entry(payload)?, message.kind == RTM_NEWNEIGH) {
                    (Entry::Neighbour(neighbour), true) => tell(Observation::Neighbour(neighbour)),
                    (Entry::Neighbour(neighbour), false) => {
                        tell(Observation::NeighbourGone(
                            neighbour.ifindex,
                            neighbour.address,
                        ));
                    }
                    (Entry::Fdb(entry), true) => tell(Observation::Fdb(entry)),
                    (Entry::Fdb(entry), false) => tell(Observation::FdbGone(entry)),
                    (Entry::Ignored, _) => {}
                }
            }
            RTM_NEWROUTE | RTM_DELROUTE => {
                if let Some(route) = route::route(payload)? {
                    tell(if message.kind == RTM_NEWROUTE {
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

    fn remember_pair(&mut self, facts: &LinkFacts) {
        match facts.other_end {
            OtherEnd::Here(_)
                if self.pairs.len() < MAX_PAIRS || self.pairs.contains_key(&facts.ifindex) =>
            {
                self.pairs.insert(facts.ifindex, facts.clone());
            }
            OtherEnd::Here(_) => {}
            OtherEnd::Unknown | OtherEnd::Elsewhere(_) => {
                self.pairs.remove(&facts.ifindex);
            }
        }
    }
}

/// Makes an observation of a message from another namespace.
pub(super) fn of_pods(
    message: Message<'_>,
    nsid: NsId,
    mut tell: impl FnMut(Observation),
) -> Result<(), Undecodable> {
    if !matches!(message.kind, RTM_NEWADDR | RTM_DELADDR) {
        return Ok(());
    }
    if let Some(on_link) = address::on_link(message.payload)?.filter(address::OnLink::of_pod) {
        let peer = Peer {
            nsid,
            ifindex: on_link.ifindex,
        };
        tell(if message.kind == RTM_NEWADDR {
            Observation::PodAddress(peer, on_link.address)
        } else {
            Observation::PodAddressGone(peer, on_link.address.address, on_link.address.prefix_len)
        });
    }
    Ok(())
}
