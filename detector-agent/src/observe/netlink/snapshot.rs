//! Snapshots of the kernel's state: links, forwarding entries, neighbours, routes, addresses of the node and of its pods.
//!
//! Invariants: bounded ([`MAX_OBJECTS`](super::MAX_OBJECTS) of each kind, [`MAX_PER_POD`] addresses on one pod's link and
//! [`MAX_BEYOND`] more of all pods), whatever the kernel holds; omissions are counted. A namespace that vanishes meanwhile costs only its own addresses. Links
//! are read first, so a pod that appears later is reported by the notification socket alone.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    os::fd::BorrowedFd,
};

use detector_engine::{
    AssignedAddress, IfIndex, Link, LinkKind, MAX_ASSIGNMENTS, NsId, Peer, PodAddresses, Snapshot,
    TruncatedLists,
};

use super::{
    DeviceSelector,
    dumps::{self, BoundedList, PATIENCE, PodAddressList},
    internal_interfaces,
    request::{ReadError, RequestSocket},
    socket::OpenError,
};

/// How many different addresses on one pod's link are in a snapshot in any case.
pub const MAX_PER_POD: usize = 1_024;
/// How many more there may be in one snapshot, of all pods.
const MAX_BEYOND: usize = 131_072;

/// A snapshot, and how much of the kernel's state is missing in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundedSnapshot {
    /// The state.
    pub snapshot: Snapshot,
    /// What is missing.
    pub omitted: Omitted,
    /// How many frames came in on the device so far; 0 in a snapshot of the node.
    pub received: u64,
}

/// A snapshot of the node in which only the neighbours are missing.
#[derive(Debug)]
pub struct NodeWithoutNeighbours {
    read: BoundedSnapshot,
    /// The links whose neighbours matter.
    watched: HashSet<IfIndex>,
}

/// Numbers of objects that are missing in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    /// Links, addresses, neighbours, forwarding entries and routes beyond [`MAX_OBJECTS`](super::MAX_OBJECTS) or
    /// [`MAX_BEYOND`].
    pub over_bound: u64,
    /// Messages that could not be parsed.
    pub undecodable: u64,
    /// Namespaces that could not be read: gone meanwhile, refused, or changing during every attempt.
    pub namespaces: u64,
}

impl Omitted {
    /// The items of a list; those that it omitted are counted.
    fn unwrap_list<T>(&mut self, list: BoundedList<T>) -> Vec<T> {
        self.over_bound += list.omitted;
        list.items
    }
}

/// Reads the kernel's state by netlink. Blocking: for a thread that may wait (some milliseconds on a busy node).
#[derive(Debug)]
pub struct NetlinkReader {
    pub(super) socket: RequestSocket,
}

impl NetlinkReader {
    /// Opens the socket.
    ///
    /// # Errors
    /// If the system refuses a socket, or the kernel is older than 4.20.
    pub fn open() -> Result<Self, OpenError> {
        Ok(Self {
            socket: RequestSocket::open(PATIENCE)?,
        })
    }

    /// The destinations of the node's `blackhole` routes, with prefix lengths.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn blackhole_routes(&mut self) -> Result<Vec<(IpAddr, u8)>, ReadError> {
        Ok(dumps::blackholes(&mut self.socket)?.items)
    }

    /// Takes a snapshot of the entire node.
    ///
    /// # Errors
    /// If the node's own state cannot be read. A pod's namespace that cannot be read is no error: its
    /// [`PodAddresses::addresses`] are then `None`.
    pub fn read_node(&mut self, selector: &DeviceSelector) -> Result<BoundedSnapshot, ReadError> {
        let node = self.read_without_neighbours(selector)?;
        self.read_neighbours_of(node)
    }

    /// Takes a snapshot of the entire node but for the neighbours, which may be read before anything reports changes of
    /// them.
    ///
    /// # Errors
    /// As [`Self::read_node`].
    pub fn read_without_neighbours(
        &mut self,
        selector: &DeviceSelector,
    ) -> Result<NodeWithoutNeighbours, ReadError> {
        let socket = &mut self.socket;
        let mut omitted = Omitted::default();
        let links = dumps::links(socket)?;
        let are_links_truncated = links.omitted > 0;
        let links: Vec<Link> = omitted
            .unwrap_list(links)
            .into_iter()
            .map(|facts| selector.link(facts))
            .collect();
        let of_kind = |kind| links.iter().filter(move |link| link.kind == kind);
        let watched: HashSet<IfIndex> = of_kind(LinkKind::Pod)
            .chain(of_kind(LinkKind::Bridge))
            .map(|link| link.ifindex)
            .collect();

        let port_vlans = if links.iter().any(|link| link.vlan_filtering.is_some()) {
            omitted.unwrap_list(dumps::port_vlans(socket)?)
        } else {
            Vec::new()
        };
        let mut fdb = BoundedList::default();
        for bridge in of_kind(LinkKind::Bridge) {
            fdb.append(dumps::forwarding_entries(socket, bridge.ifindex)?);
        }
        // The node takes part in a bridge's VLAN by a VLAN interface.
        let mut routed = watched.clone();
        let vlan_interfaces = links
            .iter()
            .filter(|link| matches!(link.kind, LinkKind::Vlan { .. }));
        routed.extend(vlan_interfaces.map(|link| link.ifindex));
        let routes = dumps::routes(socket, &routed)?;
        let host = dumps::host_addresses(socket)?;
        let peers = of_kind(LinkKind::Pod).filter_map(|link| link.peer);
        let pods = pods(socket, peers, &mut omitted)?;
        let truncated = TruncatedLists {
            links: are_links_truncated,
            host: host.omitted > 0,
            neighbours: false,
            fdb: fdb.omitted > 0,
            routes: routes.omitted > 0,
        };
        let host = omitted.unwrap_list(host).into_iter();
        let snapshot = Snapshot {
            port_vlans,
            pods,
            host: host.map(|found| (found.ifindex, found.address)).collect(),
            neighbours: Vec::new(),
            fdb: omitted.unwrap_list(fdb),
            routes: omitted.unwrap_list(routes),
            links,
            truncated,
        };
        Ok(NodeWithoutNeighbours {
            read: self.finish(snapshot, omitted),
            watched,
        })
    }

    /// Completes a snapshot of the node.
    ///
    /// # Errors
    /// As [`Self::read_node`].
    pub fn read_neighbours_of(
        &mut self,
        node: NodeWithoutNeighbours,
    ) -> Result<BoundedSnapshot, ReadError> {
        let NodeWithoutNeighbours { read, watched } = node;
        let BoundedSnapshot {
            mut snapshot,
            mut omitted,
            received: _,
        } = read;
        let neighbours = dumps::neighbours(&mut self.socket, None, |neighbour| {
            watched.contains(&neighbour.ifindex)
        })?;
        snapshot.truncated.neighbours = neighbours.omitted > 0;
        snapshot.neighbours = omitted.unwrap_list(neighbours);
        Ok(self.finish(snapshot, omitted))
    }

    /// Takes a snapshot of one device: the link as it is now (so that its peer is known even if no notification named it),
    /// the addresses on its peer, and the neighbours on it. Empty if the device is gone. If the link no longer has a peer,
    /// `peer` is the one whose addresses are missing.
    ///
    /// # Errors
    /// If the node's own state cannot be read.
    pub fn read_device(
        &mut self,
        selector: &DeviceSelector,
        ifindex: IfIndex,
        peer: Option<Peer>,
    ) -> Result<BoundedSnapshot, ReadError> {
        let socket = &mut self.socket;
        let mut omitted = Omitted::default();
        let (link, received) = dumps::link(socket, ifindex)?
            .map(|(facts, received)| (selector.link(facts), received))
            .unzip();
        let peer = link.as_ref().and_then(|link| link.peer).or(peer);
        let mut snapshot = Snapshot::default();
        if link.is_some() {
            snapshot.pods = pods(socket, peer.into_iter(), &mut omitted)?;
            let neighbours = dumps::neighbours(socket, Some(ifindex), |neighbour| {
                neighbour.ifindex == ifindex
            });
            match neighbours {
                Ok(neighbours) => snapshot.neighbours = omitted.unwrap_list(neighbours),
                // The link was removed between the two requests.
                Err(ReadError::Refused { .. }) => {}
                Err(other) => return Err(other),
            }
        } else {
            snapshot.pods.extend(peer.map(unreadable));
        }
        snapshot.links.extend(link);
        Ok(BoundedSnapshot {
            received: received.unwrap_or_default(),
            ..self.finish(snapshot, omitted)
        })
    }

    /// The id that the agent's namespace gives to the network namespace behind an open file; `None` if it gives it none (no
    /// link leads there), or if the file is not a network namespace's. Takes no kernel lock that others hold for long.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<Option<NsId>, ReadError> {
        dumps::namespace_id(&mut self.socket, namespace)
    }

    /// The addresses on one link of a pod.
    ///
    /// # Errors
    /// If the kernel does not answer, or the namespace is gone.
    pub fn addresses_at(&mut self, peer: Peer) -> Result<Vec<IpAddr>, ReadError> {
        let found = dumps::pod_addresses(&mut self.socket, peer.nsid, |ifindex| {
            ifindex == peer.ifindex
        })?;
        let addresses = found.own.items.into_iter();
        let addresses = addresses.map(|found| found.address.address);
        Ok(addresses.take(MAX_PER_POD).collect())
    }

    fn finish(&mut self, snapshot: Snapshot, omitted: Omitted) -> BoundedSnapshot {
        let undecodable = std::mem::take(&mut self.socket.undecodable);
        BoundedSnapshot {
            snapshot,
            omitted: Omitted {
                undecodable: omitted.undecodable + undecodable,
                ..omitted
            },
            received: 0,
        }
    }
}

fn unreadable(peer: Peer) -> PodAddresses {
    PodAddresses {
        peer,
        mac: None,
        addresses: None,
        is_truncated: false,
        internal: Vec::new(),
        is_missing_internal: false,
    }
}

/// The addresses on one pod's link: up to [`MAX_PER_POD`] different ones, and more while there is room for those of all pods. If
/// one is assigned so often that the engine does not remember all of its assignments, the rest is left out.
#[derive(Debug, Default)]
struct PodList {
    addresses: Vec<AssignedAddress>,
    /// How often each address is listed.
    counts: HashMap<IpAddr, usize>,
    is_truncated: bool,
}

impl PodList {
    /// Adds an address; `false` if it is left out because of the bounds. `room`: how many of all pods may be beyond
    /// [`MAX_PER_POD`].
    fn push(&mut self, info: AssignedAddress, room: &mut usize) -> bool {
        let different = self.counts.len();
        let count = self.counts.get(&info.address).copied().unwrap_or_default();
        if count > MAX_ASSIGNMENTS {
            return true;
        }
        let is_beyond = if count == 0 {
            different >= MAX_PER_POD
        } else {
            // As many repeated ones again.
            self.addresses.len() - different >= MAX_PER_POD
        };
        if is_beyond && *room == 0 {
            self.is_truncated = true;
            return false;
        }
        *room -= usize::from(is_beyond);
        *self.counts.entry(info.address).or_default() += 1;
        self.addresses.push(info);
        true
    }
}

/// The addresses on these peers, with one request for each namespace.
fn pods(
    socket: &mut RequestSocket,
    peers: impl Iterator<Item = Peer>,
    omitted: &mut Omitted,
) -> Result<Vec<PodAddresses>, ReadError> {
    let mut by_namespace: BTreeMap<NsId, BTreeMap<IfIndex, PodList>> = BTreeMap::new();
    for peer in peers {
        let links = by_namespace.entry(peer.nsid).or_default();
        links.insert(peer.ifindex, PodList::default());
    }
    let mut pods = Vec::new();
    let mut room = MAX_BEYOND;
    for (nsid, mut links) in by_namespace {
        let peers = |links: BTreeMap<IfIndex, _>| {
            links
                .into_iter()
                .map(move |(ifindex, list)| (Peer { nsid, ifindex }, list))
        };
        match dumps::pod_addresses(socket, nsid, |ifindex| links.contains_key(&ifindex)) {
            Ok(PodAddressList { own, internal }) => {
                let is_truncated = own.omitted > 0;
                let is_missing_internal = internal.omitted > 0;
                omitted.over_bound += internal.omitted;
                for found in omitted.unwrap_list(own) {
                    if let Some(list) = links.get_mut(&found.ifindex)
                        && !list.push(found.address, &mut room)
                    {
                        omitted.over_bound += 1;
                    }
                }
                let internal = internal.read(socket, nsid)?;
                for (peer, list) in peers(links) {
                    // Less important than the addresses: a link that cannot be read has no known MAC.
                    let mac = match dumps::peer_link(socket, peer) {
                        Ok(link) => link.and_then(|link| link.mac),
                        Err(ReadError::Refused { .. }) => None,
                        Err(other) => return Err(other),
                    };
                    pods.push(PodAddresses {
                        peer,
                        mac,
                        addresses: Some(list.addresses),
                        is_truncated: is_truncated || list.is_truncated,
                        internal: internal_interfaces::concerning(peer.ifindex, &internal),
                        is_missing_internal,
                    });
                }
            }
            // Gone (EINVAL for an unknown id), refused, or a pod that changes its addresses all the time, which must not keep
            // the others from being read.
            Err(ReadError::Refused { .. } | ReadError::Interrupted { .. }) => {
                omitted.namespaces += 1;
                pods.extend(peers(links).map(|(peer, _)| unreadable(peer)));
            }
            Err(other) => return Err(other),
        }
    }
    Ok(pods)
}
