//! Dumps of the kernel's tables, one function each.
//!
//! Invariant: bounded. A dump keeps up to [`MAX_OBJECTS`] of the wanted objects and counts the rest.

use std::{
    collections::HashSet,
    net::IpAddr,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

use detector_engine::{FdbEntry, IfIndex, Neighbour, NsId, Peer, PortVlan, Route};
use netlink_packet_core::Parseable as _;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourMessage},
    nsid::{NsidAttribute, NsidMessage},
    route::RouteMessage,
};
use nix::{
    errno::Errno,
    libc::{RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWNSID, RTM_NEWROUTE},
};

use super::{
    decode::{
        address::{self, LinkAddress},
        link::{self, LinkFacts},
        neighbour::{self, NeighbourEntry},
        route::{self, RouteMessage as DecodedRoute},
    },
    internal_interfaces::InternalInterfaces,
    request::{ReadError, RequestError, RequestSocket},
    wire::{RawMessage, Undecodable},
};

/// Maximum number of objects of each kind in a snapshot.
pub const MAX_OBJECTS: usize = 65_536;
/// Maximum time to wait for one answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// A list of up to [`MAX_OBJECTS`].
#[derive(Debug)]
pub(super) struct BoundedList<T> {
    pub(super) items: Vec<T>,
    /// How many items were beyond the bound.
    pub(super) omitted: u64,
}

impl<T> Default for BoundedList<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            omitted: 0,
        }
    }
}

impl<T> BoundedList<T> {
    fn push(&mut self, item: T) {
        if self.items.len() < MAX_OBJECTS {
            self.items.push(item);
        } else {
            self.omitted += 1;
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.omitted += other.omitted;
        other.items.into_iter().for_each(|item| self.push(item));
    }
}

/// All links of the agent's namespace.
pub(super) fn links(socket: &mut RequestSocket) -> Result<BoundedList<LinkFacts>, ReadError> {
    let request = RouteNetlinkMessage::GetLink(link_request());
    let each = |links: &mut BoundedList<_>, message: RawMessage<'_>| {
        keep_if(
            links,
            parse_as(message, RTM_NEWLINK, link::new_link),
            |_| true,
        )
    };
    socket
        .dump(request, each)
        .map_err(|error| error.while_reading("links"))
}

/// The PVIDs of bridges and their ports in the agent's namespace.
pub(super) fn port_vlans(socket: &mut RequestSocket) -> Result<BoundedList<PortVlan>, ReadError> {
    let mut request = LinkMessage::default();
    request.header.interface_family = AddressFamily::Bridge;
    let vlans = LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]);
    request.attributes.push(vlans);
    let each = |vlans: &mut BoundedList<_>, message: RawMessage<'_>| {
        keep_if(
            vlans,
            parse_as(message, RTM_NEWLINK, link::bridge_port),
            |_| true,
        )
    };
    socket
        .dump(RouteNetlinkMessage::GetLink(request), each)
        .map_err(|error| error.while_reading("the VLANs of bridges"))
}

/// One link of the agent's namespace, with how many frames came in on it; `None` if it is gone.
pub(super) fn link(
    socket: &mut RequestSocket,
    ifindex: IfIndex,
) -> Result<Option<(LinkFacts, u64)>, ReadError> {
    let mut request = LinkMessage::default();
    request.header.index = ifindex;
    get_link(socket, "a link", request, link::link_and_received)
}

/// The link at a peer; `None` if it or its namespace is gone.
pub(super) fn peer_link(
    socket: &mut RequestSocket,
    peer: Peer,
) -> Result<Option<LinkFacts>, ReadError> {
    let what = "a link inside a pod";
    one_link_as(socket, what, peer.ifindex, Some(peer.nsid), link::new_link)
}

/// One link, in another namespace if `nsid` is given; `None` if it or the namespace is gone.
pub(super) fn one_link_as<T>(
    socket: &mut RequestSocket,
    what: &'static str,
    ifindex: IfIndex,
    nsid: Option<NsId>,
    parse: impl Fn(&[u8]) -> Result<Option<T>, Undecodable>,
) -> Result<Option<T>, ReadError> {
    let mut request = link_request();
    request.header.index = ifindex;
    // IFLA_TARGET_NETNSID is the newer name of IFLA_IF_NETNSID.
    request
        .attributes
        .extend(nsid.map(LinkAttribute::IfNetnsId));
    get_link(socket, what, request, parse)
}

fn get_link<T>(
    socket: &mut RequestSocket,
    what: &'static str,
    request: LinkMessage,
    parse: impl Fn(&[u8]) -> Result<Option<T>, Undecodable>,
) -> Result<Option<T>, ReadError> {
    let answer = socket.get(RouteNetlinkMessage::GetLink(request), |found, message| {
        let parsed = parse_as(message, RTM_NEWLINK, &parse);
        let is_ok = parsed.is_ok();
        *found = parsed.ok().flatten();
        is_ok
    });
    match answer {
        // EINVAL: no namespace has this id.
        Err(RequestError::Refused(Errno::ENODEV | Errno::EINVAL)) => Ok(None),
        other => other.map_err(|error| error.while_reading(what)),
    }
}

/// The id that the agent's namespace gives to the network namespace behind `namespace`; `None` if it gives it none, or if
/// the descriptor is not a network namespace's.
pub(super) fn namespace_id(
    socket: &mut RequestSocket,
    namespace: BorrowedFd<'_>,
) -> Result<Option<NsId>, ReadError> {
    let mut request = NsidMessage::default();
    let descriptor = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
    request.attributes.push(NsidAttribute::Fd(descriptor));
    let answer = socket.get(RouteNetlinkMessage::GetNsId(request), |id, message| {
        let parsed = parse_as(message, RTM_NEWNSID, |payload| {
            Ok(NsidMessage::parse(payload)?.attributes)
        });
        *id = parsed
            .iter()
            .flatten()
            .find_map(|attribute| match attribute {
                // -1: not assigned.
                NsidAttribute::Id(id) => (*id >= 0).then_some(*id),
                _ => None,
            });
        parsed.is_ok()
    });
    match answer {
        // EINVAL: the file is of another kind. ESRCH: the namespace vanished meanwhile.
        Err(RequestError::Refused(Errno::EINVAL | Errno::ESRCH)) => Ok(None),
        other => other.map_err(|error| error.while_reading("a namespace's id")),
    }
}

/// A request for an answer without the counters, which are most of a link's message.
pub(super) fn link_request() -> LinkMessage {
    let mut request = LinkMessage::default();
    request
        .attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    request
}

/// Addresses of the agent's namespace, except loopback's.
pub(super) fn host_addresses(
    socket: &mut RequestSocket,
) -> Result<BoundedList<LinkAddress>, ReadError> {
    let add = |list: &mut BoundedList<_>, found: LinkAddress| {
        if found.is_node_address() {
            list.push(found);
        }
    };
    addresses(socket, "addresses of the node", None, add)
}

/// The addresses in a pod's namespace.
#[derive(Debug, Default)]
pub(super) struct PodAddressList {
    /// On the wanted links.
    pub(super) own: BoundedList<LinkAddress>,
    /// On others, which take no room from those.
    pub(super) internal: InternalInterfaces,
}

/// Addresses in another namespace, on the links selected by `is_wanted` and on others.
pub(super) fn pod_addresses(
    socket: &mut RequestSocket,
    nsid: NsId,
    is_wanted: impl Fn(IfIndex) -> bool,
) -> Result<PodAddressList, ReadError> {
    let add = |list: &mut PodAddressList, found: LinkAddress| {
        if !found.is_pod_address() {
            return;
        }
        if is_wanted(found.ifindex) {
            list.own.push(found);
        } else {
            list.internal.push(found.ifindex, found.address);
        }
    };
    addresses(socket, "addresses inside a pod", Some(nsid), add)
}

fn addresses<T: Default>(
    socket: &mut RequestSocket,
    what: &'static str,
    nsid: Option<NsId>,
    add: impl Fn(&mut T, LinkAddress),
) -> Result<T, ReadError> {
    // The kernel repeats the id; one that ignored the attribute would list the node's own addresses.
    let check_namespace = |found: Option<LinkAddress>| match found {
        Some(found) if found.target != nsid => Err(Undecodable(
            "an address of another namespace than the requested one",
        )),
        found => Ok(found),
    };
    // Both families in one request, which saves two system calls a pod.
    let mut request = AddressMessage::default();
    request
        .attributes
        .extend(nsid.map(AddressAttribute::TargetNetNsId));
    let each = |list: &mut T, message: RawMessage<'_>| {
        let parsed = parse_as(message, RTM_NEWADDR, address::link_address);
        match parsed.and_then(check_namespace) {
            Ok(found) => {
                found.into_iter().for_each(|found| add(list, found));
                true
            }
            Err(_) => false,
        }
    };
    socket
        .dump(RouteNetlinkMessage::GetAddress(request), each)
        .map_err(|error| error.while_reading(what))
}

/// Neighbours of IPv4 and IPv6 selected by `is_wanted`, on one link or on all.
pub(super) fn neighbours(
    socket: &mut RequestSocket,
    on: Option<IfIndex>,
    is_wanted: impl Fn(&Neighbour) -> bool,
) -> Result<BoundedList<Neighbour>, ReadError> {
    let neighbour = |payload: &[u8]| match neighbour::entry(payload)? {
        NeighbourEntry::Neighbour(neighbour) => Ok(Some(neighbour)),
        NeighbourEntry::Fdb(_) | NeighbourEntry::Ignored => Ok(None),
    };
    // Without a family the kernel lists the neighbours of all.
    let mut request = NeighbourMessage::default();
    request
        .attributes
        .extend(on.map(NeighbourAttribute::IfIndex));
    let each = |found: &mut BoundedList<_>, message: RawMessage<'_>| {
        keep_if(
            found,
            parse_as(message, RTM_NEWNEIGH, neighbour),
            &is_wanted,
        )
    };
    socket
        .dump(RouteNetlinkMessage::GetNeighbour(request), each)
        .map_err(|error| error.while_reading("neighbours"))
}

/// The forwarding entries of a bridge's ports; none if the bridge is gone.
pub(super) fn forwarding_entries(
    socket: &mut RequestSocket,
    bridge: IfIndex,
) -> Result<BoundedList<FdbEntry>, ReadError> {
    let entry = |payload: &[u8]| match neighbour::entry(payload)? {
        NeighbourEntry::Fdb(entry) => Ok(Some(entry)),
        NeighbourEntry::Neighbour(_) | NeighbourEntry::Ignored => Ok(None),
    };
    let mut request = NeighbourMessage::default();
    request.header.family = AddressFamily::Bridge;
    request
        .attributes
        .push(NeighbourAttribute::Controller(bridge));
    let each = |found: &mut BoundedList<_>, message: RawMessage<'_>| {
        // If one bridge is a port of another, the kernel lists both.
        keep_if(
            found,
            parse_as(message, RTM_NEWNEIGH, entry),
            |entry: &FdbEntry| entry.bridge == bridge,
        )
    };
    match socket.dump(RouteNetlinkMessage::GetNeighbour(request), each) {
        Err(RequestError::Refused(Errno::ENODEV | Errno::EINVAL)) => Ok(BoundedList::default()),
        other => other.map_err(|error| error.while_reading("forwarding entries")),
    }
}

/// Plain routes; at the bound those over `preferred` links are kept before others.
pub(super) fn routes(
    socket: &mut RequestSocket,
    preferred: &HashSet<IfIndex>,
) -> Result<BoundedList<Route>, ReadError> {
    let mut first = BoundedList::default();
    let mut others = BoundedList::default();
    for family in FAMILIES {
        let is_ipv6 = family == AddressFamily::Inet6;
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        type Both = (BoundedList<Route>, BoundedList<Route>);
        let each = |(first, others): &mut Both, message: RawMessage<'_>| {
            match parse_as(message, RTM_NEWROUTE, route::route) {
                // A kernel without IPv6 answers a request for its routes with all IPv4 routes.
                Ok(DecodedRoute::Plain(route)) if route.destination.is_ipv6() != is_ipv6 => {}
                Ok(DecodedRoute::Plain(route)) if preferred.contains(&route.ifindex) => {
                    first.push(route);
                }
                Ok(DecodedRoute::Plain(route)) => others.push(route),
                Ok(DecodedRoute::Other(..) | DecodedRoute::Ignored) => {}
                Err(_) => return false,
            }
            true
        };
        let found = socket.dump(RouteNetlinkMessage::GetRoute(request), each);
        let found: Both = found.map_err(|error| error.while_reading("routes"))?;
        first.append(found.0);
        others.append(found.1);
    }
    first.append(others);
    Ok(first)
}

/// Destinations, with prefix lengths, of routes of the type `blackhole`.
pub(super) fn blackholes(
    socket: &mut RequestSocket,
) -> Result<BoundedList<(IpAddr, u8)>, ReadError> {
    let mut all = BoundedList::default();
    for family in FAMILIES {
        let is_ipv6 = family == AddressFamily::Inet6;
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let each = |found: &mut BoundedList<(IpAddr, u8)>, message: RawMessage<'_>| {
            match parse_as(message, RTM_NEWROUTE, route::blackhole) {
                // A kernel without IPv6 answers a request for its routes with all IPv4 routes.
                Ok(Some(route)) if route.0.is_ipv6() == is_ipv6 => found.push(route),
                Ok(_) => {}
                Err(_) => return false,
            }
            true
        };
        let found = socket.dump(RouteNetlinkMessage::GetRoute(request), each);
        all.append(found.map_err(|error| error.while_reading("routes"))?);
    }
    Ok(all)
}

/// Parses a message that must be of type `kind`.
pub(super) fn parse_as<T>(
    message: RawMessage<'_>,
    kind: u16,
    parse: impl Fn(&[u8]) -> Result<T, Undecodable>,
) -> Result<T, Undecodable> {
    if message.kind == kind {
        parse(message.payload)
    } else {
        Err(Undecodable("an answer of another type than requested"))
    }
}

/// Adds what was parsed, if it is wanted; `false` if it could not be parsed.
fn keep_if<T>(
    list: &mut BoundedList<T>,
    parsed: Result<Option<T>, Undecodable>,
    is_wanted: impl Fn(&T) -> bool,
) -> bool {
    let is_ok = parsed.is_ok();
    if let Some(item) = parsed.ok().flatten().filter(is_wanted) {
        list.push(item);
    }
    is_ok
}
