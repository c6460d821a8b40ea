//! The kernel's lists, one function each: what is asked, and what of the answer is kept.
//!
//! Invariant: bounded. Each list keeps [`MAX_KEPT`] objects of what is wanted and counts the rest.

use std::{
    collections::HashSet,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use netlink_packet_core::Parseable as _;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourMessage},
    nsid::{NsidAttribute, NsidMessage},
    route::{RouteMessage, RouteType},
};
use nix::errno::Errno;

use super::{
    decode::{
        Message, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWNSID, RTM_NEWROUTE, Undecodable,
        address::{self, OnLink},
        link::{self, LinkFacts},
        neighbour::{self, Entry},
        route,
    },
    request::{Asking, ReadError},
};
use crate::engine::{FdbEntry, IfIndex, Neighbour, NsId, Peer, Route};

/// Of each sort of object, how many a reading keeps.
pub const MAX_KEPT: usize = 65_536;

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// A list that grows to [`MAX_KEPT`].
#[derive(Debug)]
pub(super) struct Bounded<T> {
    pub(super) kept: Vec<T>,
    /// What came beyond.
    pub(super) over: u64,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            over: 0,
        }
    }
}

impl<T> Bounded<T> {
    fn push(&mut self, item: T) {
        if self.kept.len() < MAX_KEPT {
            self.kept.push(item);
        } else {
            self.over += 1;
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.over += other.over;
        other.kept.into_iter().for_each(|item| self.push(item));
    }
}

/// All links of the agent's namespace.
pub(super) fn links(asking: &mut Asking) -> Result<Bounded<LinkFacts>, ReadError> {
    let request = RouteNetlinkMessage::GetLink(link_request());
    asking.list("links", &request, |links: &mut Bounded<_>, message| {
        keep(links, read_as(message, RTM_NEWLINK, link::appeared), |_| {
            true
        })
    })
}

/// One link of the agent's namespace; `None` where it is gone.
pub(super) fn link(asking: &mut Asking, ifindex: IfIndex) -> Result<Option<LinkFacts>, ReadError> {
    one_link(asking, "a link", ifindex, None)
}

/// The link at a peer; `None` where it, or its namespace, is gone or cannot be read.
pub(super) fn peer_link(asking: &mut Asking, peer: Peer) -> Result<Option<LinkFacts>, ReadError> {
    one_link(asking, "a link inside a pod", peer.ifindex, Some(peer.nsid))
}

fn one_link(
    asking: &mut Asking,
    what: &'static str,
    ifindex: IfIndex,
    nsid: Option<NsId>,
) -> Result<Option<LinkFacts>, ReadError> {
    let mut request = link_request();
    request.header.index = ifindex;
    // IFLA_TARGET_NETNSID is the newer name of IFLA_IF_NETNSID.
    request
        .attributes
        .extend(nsid.map(LinkAttribute::IfNetnsId));
    let request = RouteNetlinkMessage::GetLink(request);
    let answer = asking.one(what, &request, |found, message| {
        let read = read_as(message, RTM_NEWLINK, link::appeared);
        let readable = read.is_ok();
        *found = read.ok().flatten();
        readable
    });
    match answer {
        // EINVAL: no namespace of this id.
        Err(ReadError::Refused {
            errno: Errno::ENODEV | Errno::EINVAL,
            ..
        }) => Ok(None),
        other => other,
    }
}

/// The id that the agent's namespace gives to the network namespace behind `namespace`; `None` where it gives it none,
/// or where the descriptor is none of a network namespace.
pub(super) fn namespace_id(
    asking: &mut Asking,
    namespace: BorrowedFd<'_>,
) -> Result<Option<NsId>, ReadError> {
    let mut request = NsidMessage::default();
    let descriptor = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
    request.attributes.push(NsidAttribute::Fd(descriptor));
    let request = RouteNetlinkMessage::GetNsId(request);
    let answer = asking.one("a namespace's id", &request, |id, message| {
        let read = read_as(message, RTM_NEWNSID, |payload| {
            Ok(NsidMessage::parse(payload)?.attributes)
        });
        *id = read.iter().flatten().find_map(|attribute| match attribute {
            // Not assigned: -1.
            NsidAttribute::Id(id) => (*id >= 0).then_some(*id),
            _ => None,
        });
        read.is_ok()
    });
    match answer {
        // EINVAL: the file is of another kind. ESRCH: the namespace went while it was asked for.
        Err(ReadError::Refused {
            errno: Errno::EINVAL | Errno::ESRCH,
            ..
        }) => Ok(None),
        other => other,
    }
}

/// A request without counters in the answer, which are most of it.
fn link_request() -> LinkMessage {
    let mut request = LinkMessage::default();
    request
        .attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    request
}

/// Addresses of the agent's namespace, but loopback's.
pub(super) fn host_addresses(asking: &mut Asking) -> Result<Bounded<OnLink>, ReadError> {
    addresses(asking, "addresses of the node", None, OnLink::of_host)
}

/// Addresses in another namespace, on links that are wanted.
pub(super) fn pod_addresses(
    asking: &mut Asking,
    nsid: NsId,
    wanted: impl Fn(IfIndex) -> bool,
) -> Result<Bounded<OnLink>, ReadError> {
    addresses(asking, "addresses inside a pod", Some(nsid), |on_link| {
        on_link.of_pod() && wanted(on_link.ifindex)
    })
}

fn addresses(
    asking: &mut Asking,
    what: &'static str,
    nsid: Option<NsId>,
    wanted: impl Fn(&OnLink) -> bool,
) -> Result<Bounded<OnLink>, ReadError> {
    // The kernel repeats the id; one that ignored the attribute would list the node's own addresses.
    let here = |read: Option<OnLink>| match read {
        Some(read) if read.target != nsid => Err(Undecodable(
            "an address of another namespace than the one asked for",
        )),
        read => Ok(read),
    };
    // Both families in one question: a pod costs two system calls less.
    let mut request = AddressMessage::default();
    request
        .attributes
        .extend(nsid.map(AddressAttribute::TargetNetNsId));
    let request = RouteNetlinkMessage::GetAddress(request);
    asking.list(what, &request, |found, message| {
        keep(
            found,
            read_as(message, RTM_NEWADDR, address::on_link).and_then(here),
            &wanted,
        )
    })
}

/// Neighbours of IPv4 and IPv6 that are wanted, on all links or on one.
pub(super) fn neighbours(
    asking: &mut Asking,
    on: Option<IfIndex>,
    wanted: impl Fn(&Neighbour) -> bool,
) -> Result<Bounded<Neighbour>, ReadError> {
    let neighbour = |payload: &[u8]| match neighbour::entry(payload)? {
        Entry::Neighbour(neighbour) => Ok(Some(neighbour)),
        Entry::Fdb(_) | Entry::Ignored => Ok(None),
    };
    let mut all = Bounded::default();
    for family in FAMILIES {
        let mut request = NeighbourMessage::default();
        request.header.family = family;
        request
            .attributes
            .extend(on.map(NeighbourAttribute::IfIndex));
        let request = RouteNetlinkMessage::GetNeighbour(request);
        all.append(asking.list("neighbours", &request, |found, message| {
            keep(found, read_as(message, RTM_NEWNEIGH, neighbour), &wanted)
        })?);
    }
    Ok(all)
}

/// The forwarding entries on a bridge's ports; none where the bridge is gone.
pub(super) fn forwarding(
    asking: &mut Asking,
    bridge: IfIndex,
) -> Result<Bounded<FdbEntry>, ReadError> {
    let entry = |payload: &[u8]| match neighbour::entry(payload)? {
        Entry::Fdb(entry) => Ok(Some(entry)),
        Entry::Neighbour(_) | Entry::Ignored => Ok(None),
    };
    let mut request = NeighbourMessage::default();
    request.header.family = AddressFamily::Bridge;
    request
        .attributes
        .push(NeighbourAttribute::Controller(bridge));
    let request = RouteNetlinkMessage::GetNeighbour(request);
    let answer = asking.list("forwarding entries", &request, |found, message| {
        // A bridge over a bridge lists both.
        keep(found, read_as(message, RTM_NEWNEIGH, entry), |entry| {
            entry.bridge == bridge
        })
    });
    match answer {
        Err(ReadError::Refused {
            errno: Errno::ENODEV | Errno::EINVAL,
            ..
        }) => Ok(Bounded::default()),
        other => other,
    }
}

/// Unicast routes; at the bound those over links that are wanted are kept before others.
pub(super) fn routes(
    asking: &mut Asking,
    wanted: &HashSet<IfIndex>,
) -> Result<Bounded<Route>, ReadError> {
    let mut first = Bounded::default();
    let mut others = Bounded::default();
    for family in FAMILIES {
        let ipv6 = family == AddressFamily::Inet6;
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        request.header.kind = RouteType::Unicast;
        let request = RouteNetlinkMessage::GetRoute(request);
        type Both = (Bounded<Route>, Bounded<Route>);
        let found: Both =
            asking.list("routes", &request, |(first, others): &mut Both, message| {
                match read_as(message, RTM_NEWROUTE, route::route) {
                    // A kernel without IPv6 answers the question for its routes with all those of IPv4.
                    Ok(Some(route)) if route.destination.is_ipv6() != ipv6 => {}
                    Ok(Some(route)) if wanted.contains(&route.ifindex) => first.push(route),
                    Ok(Some(route)) => others.push(route),
                    Ok(None) => {}
                    Err(_) => return false,
                }
                true
            })?;
        first.append(found.0);
        others.append(found.1);
    }
    first.append(others);
    Ok(first)
}

/// Reads a message that must be of this type.
fn read_as<T>(
    message: Message<'_>,
    kind: u16,
    read: impl Fn(&[u8]) -> Result<T, Undecodable>,
) -> Result<T, Undecodable> {
    if message.kind == kind {
        read(message.payload)
    } else {
        Err(Undecodable("an answer of another type than the question"))
    }
}

/// Keeps what was read and is wanted; `false` where it could not be read.
fn keep<T>(
    list: &mut Bounded<T>,
    read: Result<Option<T>, Undecodable>,
    wanted: impl Fn(&T) -> bool,
) -> bool {
    let readable = read.is_ok();
    if let Some(item) = read.ok().flatten().filter(wanted) {
        list.push(item);
    }
    readable
}
