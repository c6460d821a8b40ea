//! Asks the kernel where it sends the node's own packets for an address, as `ip route get ADDRESS` does: policy rules, every
//! table and type of route, next-hop objects and the choice among several next hops are the kernel's own.
//!
//! If they leave through a bridge, the neighbour entry of the next hop and the bridge's forwarding entry say through which
//! port. Each lookup takes one to five requests for single objects, about 10 µs each, and lists nothing.

use std::{collections::HashMap, io, net::IpAddr};

use detector_engine::{
    BridgePath, BridgePort, IfIndex, Mac, NudState, Peer, RouteAnswers, RouteQuery, RouteTarget,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage},
    route::{RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol},
};
use nix::{
    errno::Errno,
    libc::{RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWROUTE},
};

use super::{
    decode::{
        link::{self, LinkForwarding},
        neighbour::{self, NeighbourEntry},
        route::{self, FoundRoute},
    },
    dumps::{self, link_request, parse_as},
    request::{ReadError, RequestError, RequestSocket},
    selection::LinkDriver,
    snapshot::NetlinkReader,
    wire::{RawMessage, Undecodable},
};

/// The outcome of a batch of lookups.
#[derive(Debug, Default)]
pub struct RouteLookup {
    /// The answers, and the addresses without one.
    pub answers: RouteAnswers,
    /// Why the last of those has no answer.
    pub error: Option<ReadError>,
}

impl NetlinkReader {
    /// Asks these queries. The batch ends at the first one that cannot be looked up, so that a socket
    /// that does not answer costs one timeout.
    pub fn look_up_routes(&mut self, queries: &[RouteQuery]) -> RouteLookup {
        let mut lookup = RouteLookup::default();
        let mut links = Links::new();
        let mut rest = queries.iter();
        for query in rest.by_ref() {
            match look_up(&mut self.socket, &mut links, *query) {
                Ok(target) => lookup.answers.found.push((*query, target)),
                Err(error) => {
                    lookup.answers.failed.push(*query);
                    lookup.error = Some(error.while_reading("the route of an address"));
                    break;
                }
            }
        }
        lookup.answers.failed.extend(rest);
        lookup
    }
}

/// What was read of links during one batch.
type Links = HashMap<IfIndex, Option<LinkForwarding>>;

/// A link of the agent's namespace, as far as routes depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedLink {
    /// Its name.
    pub name: String,
    /// The bridge or VRF that it is a port of.
    pub master: Option<IfIndex>,
    /// The other end, if that is in another namespace.
    pub peer: Option<Peer>,
    /// Whether it is a VRF.
    pub is_vrf: bool,
}

/// The route by which the node reaches an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRoute {
    /// The device that it leads to; `None` if the node itself has the address.
    pub device: Option<IfIndex>,
    /// Who set it, as `ip route` names it: `kernel`, `boot`, `bird`.
    pub protocol: String,
}

impl NetlinkReader {
    /// A link; `None` if there is none with this index.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn routed_link(&mut self, ifindex: IfIndex) -> Result<Option<RoutedLink>, ReadError> {
        let found = dumps::link(&mut self.socket, ifindex)?;
        Ok(found.map(|(link, _)| RoutedLink {
            peer: link.peer(),
            is_vrf: matches!(link.driver, LinkDriver::Vrf { .. }),
            name: link.name,
            master: link.master,
        }))
    }

    /// The route by which the node reaches an address; `None` if it has none, or one that discards the packets.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn route_to(&mut self, query: RouteQuery) -> Result<Option<NodeRoute>, ReadError> {
        let socket = &mut self.socket;
        let found = route_of(socket, query).and_then(|found| {
            let device = match found {
                FoundRoute::Local => None,
                FoundRoute::Out(device, _) => Some(device),
                FoundRoute::Nowhere => return Ok(None),
            };
            // The answer to a plain lookup does not say who set the route.
            let mut request = route_request(query);
            request.header.flags.insert(RouteFlags::FibMatch);
            let request = RouteNetlinkMessage::GetRoute(request);
            let parse = |payload: &[u8]| {
                Ok(match RouteHeader::parse(payload)?.protocol {
                    RouteProtocol::Other(number) => number.to_string(),
                    known => known.to_string(),
                })
            };
            let protocol = one(socket, request, RTM_NEWROUTE, parse)?;
            Ok(protocol.map(|protocol| NodeRoute { device, protocol }))
        });
        found.map_err(|error| error.while_reading("the route of an address"))
    }

    /// The addresses of the node with their devices, except loopback's.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn node_addresses(&mut self) -> Result<Vec<(IfIndex, IpAddr)>, ReadError> {
        let found = dumps::host_addresses(&mut self.socket)?.items.into_iter();
        Ok(found.map(|on| (on.ifindex, on.address.address)).collect())
    }
}

fn look_up(
    socket: &mut RequestSocket,
    links: &mut Links,
    query: RouteQuery,
) -> Result<RouteTarget, RequestError> {
    let (device, gateway) = match route_of(socket, query)? {
        FoundRoute::Local => return Ok(RouteTarget::Host),
        FoundRoute::Nowhere => return Ok(RouteTarget::Nowhere),
        FoundRoute::Out(device, gateway) => (device, gateway),
    };
    let Some((bridge, vlan)) = bridge_of(socket, links, device)? else {
        return Ok(RouteTarget::Device(device));
    };
    let next_hop = gateway.unwrap_or(query.address);
    let mac = neighbour_mac(socket, device, next_hop)?;
    let port = match mac {
        Some(mac) => forwarding_port(socket, bridge, mac, vlan)?,
        None => None,
    };
    let port = match port {
        Some(port) => match link(socket, links, port)? {
            Some(state) if state.is_forwarding_port => BridgePort::Forwarding(port),
            Some(_) => BridgePort::Blocked(port),
            None => BridgePort::Unknown,
        },
        None => BridgePort::Unknown,
    };
    Ok(RouteTarget::Bridge(BridgePath {
        interface: device,
        bridge,
        next_hop,
        mac,
        port,
    }))
}

/// The bridge that packets out of a link pass, and their VLAN there: the link itself, or the one
/// that a VLAN interface is on.
fn bridge_of(
    socket: &mut RequestSocket,
    links: &mut Links,
    device: IfIndex,
) -> Result<Option<(IfIndex, Option<u16>)>, RequestError> {
    let Some(found) = link(socket, links, device)? else {
        return Ok(None);
    };
    if found.is_bridge {
        return Ok(Some((device, found.vlan)));
    }
    let Some((parent, id)) = found.vlan_on else {
        return Ok(None);
    };
    let parent_link = link(socket, links, parent)?.filter(|parent| parent.is_bridge);
    // Without VLAN filtering the forwarding table has no VLANs.
    Ok(parent_link.map(|bridge| (parent, bridge.vlan.map(|_| id))))
}

fn route_request(query: RouteQuery) -> RouteMessage {
    let mut request = RouteMessage::default();
    let (family, length, destination) = match query.address {
        IpAddr::V4(v4) => (AddressFamily::Inet, 32, RouteAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(v6)),
    };
    request.header.address_family = family;
    request.header.destination_prefix_length = length;
    request
        .attributes
        .push(RouteAttribute::Destination(destination));
    // As `ip route get ADDRESS vrf NAME`: the packets of a socket that is bound to the VRF.
    request
        .attributes
        .extend(query.vrf.map(RouteAttribute::Oif));
    request
}

fn route_of(socket: &mut RequestSocket, query: RouteQuery) -> Result<FoundRoute, RequestError> {
    let request = RouteNetlinkMessage::GetRoute(route_request(query));
    let found = one(socket, request, RTM_NEWROUTE, route::found_route);
    match found {
        // Unreachable, prohibited and discarded (IPv4: `fib_props` in net/ipv4/fib_semantics.c; IPv6 also has answers with
        // such types), and no route at all, or none of this family.
        Err(RequestError::Refused(
            Errno::EHOSTUNREACH
            | Errno::EACCES
            | Errno::EINVAL
            | Errno::ENETUNREACH
            | Errno::EAFNOSUPPORT
            | Errno::EOPNOTSUPP,
        )) => Ok(FoundRoute::Nowhere),
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(RequestError::System(io::ErrorKind::InvalidData.into())),
        Err(other) => Err(other),
    }
}

fn link(
    socket: &mut RequestSocket,
    links: &mut Links,
    ifindex: IfIndex,
) -> Result<Option<LinkForwarding>, RequestError> {
    if let Some(known) = links.get(&ifindex) {
        return Ok(*known);
    }
    let mut request = link_request();
    request.header.index = ifindex;
    let request = RouteNetlinkMessage::GetLink(request);
    let found = none_if_gone(one(socket, request, RTM_NEWLINK, link::forwarding))?;
    links.insert(ifindex, found);
    Ok(found)
}

/// The hardware address that a neighbour resolves to.
fn neighbour_mac(
    socket: &mut RequestSocket,
    ifindex: IfIndex,
    address: IpAddr,
) -> Result<Option<Mac>, RequestError> {
    let mut request = NeighbourMessage::default();
    let (family, destination) = match address {
        IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(v6)),
    };
    request.header.family = family;
    request.header.ifindex = ifindex;
    request
        .attributes
        .push(NeighbourAttribute::Destination(destination));
    let request = RouteNetlinkMessage::GetNeighbour(request);
    let found = none_if_gone(one(socket, request, RTM_NEWNEIGH, neighbour::entry))?;
    Ok(match found {
        Some(NeighbourEntry::Neighbour(entry)) if entry.state != NudState::Invalid => entry.lladdr,
        _ => None,
    })
}

/// The port of a bridge's forwarding entry.
fn forwarding_port(
    socket: &mut RequestSocket,
    bridge: IfIndex,
    mac: Mac,
    vlan: Option<u16>,
) -> Result<Option<IfIndex>, RequestError> {
    let mut request = NeighbourMessage::default();
    request.header.family = AddressFamily::Bridge;
    request.attributes.extend([
        NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
        NeighbourAttribute::Controller(bridge),
    ]);
    request
        .attributes
        .extend(vlan.map(NeighbourAttribute::Vlan));
    let request = RouteNetlinkMessage::GetNeighbour(request);
    let found = none_if_gone(one(socket, request, RTM_NEWNEIGH, neighbour::entry))?;
    Ok(match found {
        Some(NeighbourEntry::Fdb(entry)) => Some(entry.port),
        _ => None,
    })
}

/// Requests one object.
fn one<T>(
    socket: &mut RequestSocket,
    request: RouteNetlinkMessage,
    kind: u16,
    parse: impl Fn(&[u8]) -> Result<T, Undecodable>,
) -> Result<Option<T>, RequestError> {
    socket.get(
        request,
        |found: &mut Option<T>, message: RawMessage<'_>| match parse_as(message, kind, &parse) {
            Ok(object) => {
                *found = Some(object);
                true
            }
            Err(_) => false,
        },
    )
}

/// No entry, or no such device any more; before Linux 5.0 single entries cannot be requested.
fn none_if_gone<T>(found: Result<Option<T>, RequestError>) -> Result<Option<T>, RequestError> {
    match found {
        Err(RequestError::Refused(
            Errno::ENOENT | Errno::ENODEV | Errno::EINVAL | Errno::EOPNOTSUPP,
        )) => Ok(None),
        other => other,
    }
}
