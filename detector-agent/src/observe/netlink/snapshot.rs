//! Reading the kernel's state in one go: links, addresses inside the namespaces of pods, host addresses, neighbours,
//! forwarding entries, routes.
//!
//! Invariants: bounded ([`MAX_KEPT`] of each sort, [`MAX_PER_POD`] addresses on one pod's link), whatever the kernel
//! holds; what is left out is counted. A namespace that vanishes meanwhile costs its own addresses only. The node's
//! links are read first, so a pod that appears later is told by the live sockets alone.

use std::collections::{BTreeMap, HashMap, HashSet};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourMessage},
    route::{RouteMessage, RouteType},
};

use super::{
    DeviceSelector,
    decode::{
        Message, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWROUTE,
        address::{self, OnLink},
        link::{self, LinkFacts},
        neighbour::{self, Entry},
        route,
    },
    request::{Asking, ReadError},
    socket::OpenError,
};
use crate::detect::{
    AssignedAddress, FdbEntry, IfIndex, Link, LinkKind, Neighbour, NsId, Peer, PodAddresses, Route,
    Snapshot,
};

/// Of each sort of object, how many a reading keeps.
pub const MAX_KEPT: usize = 65_536;
/// Addresses that a reading keeps of one pod's link.
pub const MAX_PER_POD: usize = 1_024;

/// The kernel's state, and what of it a bound or a malformed message kept out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The state.
    pub snapshot: Snapshot,
    /// What is not in it.
    pub left_out: LeftOut,
}

/// Objects that are not in a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Links, addresses, neighbours, forwarding entries and routes beyond [`MAX_KEPT`] or [`MAX_PER_POD`].
    pub over_bound: u64,
    /// Messages that could not be read.
    pub undecodable: u64,
    /// Namespaces that could not be read: gone meanwhile, refused, or changing during every attempt.
    pub namespaces: u64,
}

/// A socket to read the kernel's state with. Blocking: for a thread that may wait (some milliseconds on a busy node).
#[derive(Debug)]
pub struct Requests {
    asking: Asking,
}

/// A list that grows to a bound.
#[derive(Debug)]
struct Bounded<T> {
    kept: Vec<T>,
    over: u64,
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
            self.kept.push(item)
        } else {
            self.over += 1
        }
    }
}

impl LeftOut {
    fn take<T>(&mut self, list: Bounded<T>) -> Vec<T> {
        self.over_bound += list.over;
        list.kept
    }
}

impl Requests {
    /// Opens the socket.
    ///
    /// # Errors
    /// Where the system refuses a socket, or the kernel is older than 4.20.
    pub fn open() -> Result<Self, OpenError> {
        Ok(Self {
            asking: Asking::open()?,
        })
    }

    /// Reads everything.
    ///
    /// # Errors
    /// Where the node's own state cannot be read. A pod's namespace that cannot be read is no error: its
    /// [`PodAddresses`] then hold none.
    pub fn read_node(&mut self, selector: &DeviceSelector) -> Result<Reading, ReadError> {
        let before = self.asking.undecodable;
        let mut left_out = LeftOut::default();
        let facts = self.links()?;
        let links: Vec<Link> = left_out
            .take(facts)
            .into_iter()
            .map(|facts| selector.link(facts))
            .collect();
        let of_kind = |kind| links.iter().filter(move |link| link.kind == kind);
        let interesting: HashSet<IfIndex> = of_kind(LinkKind::Pod)
            .chain(of_kind(LinkKind::Bridge))
            .map(|link| link.ifindex)
            .collect();

        let mut fdb = Bounded::default();
        for bridge in of_kind(LinkKind::Bridge) {
            self.forwarding(bridge.ifindex)?
                .into_iter()
                .for_each(|entry| fdb.push(entry));
        }
        let neighbours =
            self.neighbours(None, |neighbour| interesting.contains(&neighbour.ifindex))?;
        let routes = self.routes(&interesting)?;
        let host = self.addresses(None)?;
        let peers = of_kind(LinkKind::Pod).filter_map(|link| link.peer);
        let pods = self.pods(peers, &mut left_out)?;
        let snapshot = Snapshot {
            pods,
            host: left_out.take(host),
            neighbours: left_out.take(neighbours),
            fdb: left_out.take(fdb),
            routes: left_out.take(routes),
            links,
        };
        left_out.undecodable = self.asking.undecodable - before;
        Ok(Reading { snapshot, left_out })
    }

    /// Reads one device: the link as it is now (so that its peer is known even where no message told it), the
    /// addresses on its peer, and the neighbours on it. A device that is gone gives an empty reading. Where the
    /// link has no peer any more, `peer` tells whose addresses are missing.
    ///
    /// # Errors
    /// Where the node's own state cannot be read.
    pub fn read_device(
        &mut self,
        selector: &DeviceSelector,
        ifindex: IfIndex,
        peer: Option<Peer>,
    ) -> Result<Reading, ReadError> {
        let before = self.asking.undecodable;
        let mut left_out = LeftOut::default();
        let Some(link) = self.link(ifindex)?.map(|facts| selector.link(facts)) else {
            let pods = peer
                .map(|peer| PodAddresses {
                    mac: None,
                    peer,
                    addresses: None,
                })
                .into_iter()
                .collect();
            return Ok(Reading {
                snapshot: Snapshot {
                    pods,
                    ..Snapshot::default()
                },
                left_out,
            });
        };
        let pods = self.pods(link.peer.or(peer).into_iter(), &mut left_out)?;
        let neighbours =
            self.neighbours(Some(ifindex), |neighbour| neighbour.ifindex == ifindex)?;
        let neighbours = left_out.take(neighbours);
        left_out.undecodable = self.asking.undecodable - before;
        Ok(Reading {
            snapshot: Snapshot {
                links: vec![link],
                pods,
                neighbours,
                ..Snapshot::default()
            },
            left_out,
        })
    }

    fn links(&mut self) -> Result<Bounded<LinkFacts>, ReadError> {
        let mut request = LinkMessage::default();
        request
            .attributes
            .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        self.asking.list(
            "links",
            &RouteNetlinkMessage::GetLink(request),
            |links: &mut Bounded<_>, message| {
                match (message.kind == RTM_NEWLINK).then(|| link::appeared(message.payload)) {
                    Some(Ok(Some(link))) => links.push(link),
                    Some(Ok(None)) => {}
                    Some(Err(_)) | None => return false,
                }
                true
            },
        )
    }

    fn link(&mut self, ifindex: IfIndex) -> Result<Option<LinkFacts>, ReadError> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        request
            .attributes
            .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        let answer = self.asking.one(
            "a link",
            &RouteNetlinkMessage::GetLink(request),
            |found, message| {
                let link = (message.kind == RTM_NEWLINK).then(|| link::appeared(message.payload));
                *found = link.and_then(Result::ok).flatten();
                found.is_some()
            },
        );
        match answer {
            Err(ReadError::Refused {
                errno: nix::errno::Errno::ENODEV,
                ..
            }) => Ok(None),
            other => other,
        }
    }

    /// Addresses of the agent's own namespace, or of another one.
    fn addresses(
        &mut self,
        nsid: Option<NsId>,
    ) -> Result<Bounded<(IfIndex, AssignedAddress)>, ReadError> {
        let mut all = Bounded::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = AddressMessage::default();
            request.header.family = family;
            if let Some(nsid) = nsid {
                request
                    .attributes
                    .push(AddressAttribute::TargetNetNsId(nsid));
            }
            let what = if nsid.is_some() {
                "addresses inside a pod"
            } else {
                "addresses of the node"
            };
            let request = RouteNetlinkMessage::GetAddress(request);
            let found: Bounded<OnLink> =
                self.asking
                    .list(what, &request, |found: &mut Bounded<_>, message| {
                        let Some(Ok(read)) = of_type(message, RTM_NEWADDR).map(address::on_link)
                        else {
                            return false;
                        };
                        let Some(read) = read else { return true };
                        // A kernel that ignored the attribute would list the node's own addresses.
                        if nsid.is_some() && read.target != nsid {
                            return false;
                        }
                        if if nsid.is_some() {
                            read.of_pod()
                        } else {
                            read.of_host()
                        } {
                            found.push(read);
                        }
                        true
                    })?;
            all.over += found.over;
            found
                .kept
                .into_iter()
                .for_each(|read| all.push((read.ifindex, read.address)));
        }
        Ok(all)
    }

    /// The addresses on these peers, asking each namespace once.
    fn pods(
        &mut self,
        peers: impl Iterator<Item = Peer>,
        left_out: &mut LeftOut,
    ) -> Result<Vec<PodAddresses>, ReadError> {
        let mut by_namespace: BTreeMap<NsId, HashMap<IfIndex, Vec<AssignedAddress>>> =
            BTreeMap::new();
        for peer in peers {
            by_namespace
                .entry(peer.nsid)
                .or_default()
                .insert(peer.ifindex, Vec::new());
        }
        let mut pods = Vec::new();
        for (nsid, mut links) in by_namespace {
            let readable = match self.addresses(Some(nsid)) {
                Ok(addresses) => {
                    for (ifindex, address) in left_out.take(addresses) {
                        match links.get_mut(&ifindex) {
                            Some(list) if list.len() < MAX_PER_POD => list.push(address),
                            Some(_) => left_out.over_bound += 1,
                            None => {}
                        }
                    }
                    true
                }
                // Gone (the kernel says EINVAL for an unknown id), refused, or a pod that changes its addresses all
                // the time: the others must not go unread for it.
                Err(ReadError::Refused { .. } | ReadError::Interrupted { .. }) => {
                    left_out.namespaces += 1;
                    false
                }
                Err(other) => return Err(other),
            };
            pods.extend(links.into_iter().map(|(ifindex, list)| PodAddresses {
                mac: None,
                peer: Peer { nsid, ifindex },
                addresses: readable.then_some(list),
            }));
        }
        Ok(pods)
    }

    fn neighbours(
        &mut self,
        on: Option<IfIndex>,
        wanted: impl Fn(&Neighbour) -> bool,
    ) -> Result<Bounded<Neighbour>, ReadError> {
        let mut all = Bounded::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = NeighbourMessage::default();
            request.header.family = family;
            request
                .attributes
                .extend(on.map(NeighbourAttribute::IfIndex));
            let request = RouteNetlinkMessage::GetNeighbour(request);
            let found: Bounded<Neighbour> =
                self.asking
                    .list("neighbours", &request, |found: &mut Bounded<_>, message| {
                        match of_type(message, RTM_NEWNEIGH).map(neighbour::entry) {
                            Some(Ok(Entry::Neighbour(neighbour))) if wanted(&neighbour) => {
                                found.push(neighbour)
                            }
                            Some(Ok(_)) => {}
                            Some(Err(_)) | None => return false,
                        }
                        true
                    })?;
            all.over += found.over;
            found
                .kept
                .into_iter()
                .for_each(|neighbour| all.push(neighbour));
        }
        Ok(all)
    }

    /// The forwarding entries on a bridge's ports; none where the bridge is gone.
    fn forwarding(&mut self, bridge: IfIndex) -> Result<Vec<FdbEntry>, ReadError> {
        let mut request = NeighbourMessage::default();
        request.header.family = AddressFamily::Bridge;
        request
            .attributes
            .push(NeighbourAttribute::Controller(bridge));
        let request = RouteNetlinkMessage::GetNeighbour(request);
        let answer = self.asking.list(
            "forwarding entries",
            &request,
            |found: &mut Bounded<_>, message| {
                match of_type(message, RTM_NEWNEIGH).map(neighbour::entry) {
                    Some(Ok(Entry::Fdb(entry))) if entry.bridge == bridge => found.push(entry),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return false,
                }
                true
            },
        );
        match answer {
            Ok(found) => Ok(found.kept),
            Err(ReadError::Refused { .. }) => Ok(Vec::new()),
            Err(other) => Err(other),
        }
    }

    /// Unicast routes; at the bound those over pod devices and bridges are kept before others.
    fn routes(&mut self, interesting: &HashSet<IfIndex>) -> Result<Bounded<Route>, ReadError> {
        let mut first = Bounded::default();
        let mut others = Bounded::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            request.header.kind = RouteType::Unicast;
            let request = RouteNetlinkMessage::GetRoute(request);
            let found: (Bounded<Route>, Bounded<Route>) = self.asking.list(
                "routes",
                &request,
                |(first, others): &mut (Bounded<_>, Bounded<_>), message| {
                    match of_type(message, RTM_NEWROUTE).map(route::route) {
                        Some(Ok(Some(route))) if interesting.contains(&route.ifindex) => {
                            first.push(route)
                        }
                        Some(Ok(Some(route))) => others.push(route),
                        Some(Ok(None)) => {}
                        Some(Err(_)) | None => return false,
                    }
                    true
                },
            )?;
            for (all, found) in [(&mut first, found.0), (&mut others, found.1)] {
                all.over += found.over;
                found.kept.into_iter().for_each(|route| all.push(route));
            }
        }
        first.over += others.over;
        others.kept.into_iter().for_each(|route| first.push(route));
        Ok(first)
    }
}

/// The payload of a message of this type.
fn of_type(message: Message<'_>, kind: u16) -> Option<&[u8]> {
    (message.kind == kind).then_some(message.payload)
}
