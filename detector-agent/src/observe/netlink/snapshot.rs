//! Reading the kernel's state in one go: links, forwarding entries, neighbours, routes, addresses of the node and of
//! its pods.
//!
//! Invariants: bounded ([`MAX_KEPT`](super::MAX_KEPT) of each sort, [`MAX_PER_POD`] addresses on one pod's link),
//! whatever the kernel holds; what is left out is counted. A namespace that vanishes meanwhile costs its own addresses
//! only. Links are read first, so a pod that appears later is told by the live sockets alone.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    os::fd::BorrowedFd,
};

use super::{
    DeviceSelector,
    lists::{self, Bounded},
    request::{Asking, ReadError},
    socket::OpenError,
};
use crate::engine::{AssignedAddress, IfIndex, Link, LinkKind, NsId, Peer, PodAddresses, Snapshot};

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
    /// Links, addresses, neighbours, forwarding entries and routes beyond [`MAX_KEPT`](super::MAX_KEPT) or
    /// [`MAX_PER_POD`].
    pub over_bound: u64,
    /// Messages that could not be read.
    pub undecodable: u64,
    /// Namespaces that could not be read: gone meanwhile, refused, or changing during every attempt.
    pub namespaces: u64,
}

impl LeftOut {
    fn take<T>(&mut self, list: Bounded<T>) -> Vec<T> {
        self.over_bound += list.over;
        list.kept
    }
}

/// A socket to read the kernel's state with. Blocking: for a thread that may wait (some milliseconds on a busy node).
#[derive(Debug)]
pub struct Requests {
    asking: Asking,
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
        let asking = &mut self.asking;
        let mut left_out = LeftOut::default();
        let links: Vec<Link> = left_out
            .take(lists::links(asking)?)
            .into_iter()
            .map(|facts| selector.link(facts))
            .collect();
        let of_kind = |kind| links.iter().filter(move |link| link.kind == kind);
        let followed: HashSet<IfIndex> = of_kind(LinkKind::Pod)
            .chain(of_kind(LinkKind::Bridge))
            .map(|link| link.ifindex)
            .collect();

        let mut fdb = Bounded::default();
        for bridge in of_kind(LinkKind::Bridge) {
            fdb.append(lists::forwarding(asking, bridge.ifindex)?);
        }
        let neighbours = lists::neighbours(asking, None, |neighbour| {
            followed.contains(&neighbour.ifindex)
        })?;
        let routes = lists::routes(asking, &followed)?;
        let host = lists::host_addresses(asking)?;
        let peers = of_kind(LinkKind::Pod).filter_map(|link| link.peer);
        let pods = pods(asking, peers, &mut left_out)?;
        let host = left_out.take(host).into_iter();
        let snapshot = Snapshot {
            pods,
            host: host.map(|found| (found.ifindex, found.address)).collect(),
            neighbours: left_out.take(neighbours),
            fdb: left_out.take(fdb),
            routes: left_out.take(routes),
            links,
        };
        Ok(self.reading(snapshot, left_out))
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
        let asking = &mut self.asking;
        let mut left_out = LeftOut::default();
        let link = lists::link(asking, ifindex)?.map(|facts| selector.link(facts));
        let peer = link.as_ref().and_then(|link| link.peer).or(peer);
        let mut snapshot = Snapshot::default();
        if link.is_some() {
            snapshot.pods = pods(asking, peer.into_iter(), &mut left_out)?;
            let neighbours = lists::neighbours(asking, Some(ifindex), |neighbour| {
                neighbour.ifindex == ifindex
            });
            match neighbours {
                Ok(neighbours) => snapshot.neighbours = left_out.take(neighbours),
                // The link went between the two questions.
                Err(ReadError::Refused { .. }) => {}
                Err(other) => return Err(other),
            }
        } else {
            snapshot.pods.extend(peer.map(unreadable));
        }
        snapshot.links.extend(link);
        Ok(self.reading(snapshot, left_out))
    }

    /// The id that the agent's namespace gives to the network namespace behind an open file; `None` where it gives it
    /// none (no link leads there), or where the file is none of a network namespace. Takes no lock of the kernel's that
    /// others hold for long.
    ///
    /// # Errors
    /// Where the kernel does not answer.
    pub fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<Option<NsId>, ReadError> {
        lists::namespace_id(&mut self.asking, namespace)
    }

    /// The addresses on one link of a pod.
    ///
    /// # Errors
    /// Where the kernel does not answer, or the namespace is gone.
    pub fn addresses_at(&mut self, peer: Peer) -> Result<Vec<IpAddr>, ReadError> {
        let found = lists::pod_addresses(&mut self.asking, peer.nsid, |ifindex| {
            ifindex == peer.ifindex
        })?;
        let addresses = found.kept.into_iter().map(|found| found.address.address);
        Ok(addresses.take(MAX_PER_POD).collect())
    }

    fn reading(&mut self, snapshot: Snapshot, left_out: LeftOut) -> Reading {
        let undecodable = std::mem::take(&mut self.asking.undecodable);
        Reading {
            snapshot,
            left_out: LeftOut {
                undecodable,
                ..left_out
            },
        }
    }
}

fn unreadable(peer: Peer) -> PodAddresses {
    PodAddresses {
        peer,
        mac: None,
        addresses: None,
    }
}

/// The addresses on these peers, asking each namespace once.
fn pods(
    asking: &mut Asking,
    peers: impl Iterator<Item = Peer>,
    left_out: &mut LeftOut,
) -> Result<Vec<PodAddresses>, ReadError> {
    let mut by_namespace: BTreeMap<NsId, BTreeMap<IfIndex, Vec<AssignedAddress>>> = BTreeMap::new();
    for peer in peers {
        let links = by_namespace.entry(peer.nsid).or_default();
        links.insert(peer.ifindex, Vec::new());
    }
    let mut pods = Vec::new();
    for (nsid, mut links) in by_namespace {
        let peers = |links: BTreeMap<IfIndex, _>| {
            links
                .into_iter()
                .map(move |(ifindex, list)| (Peer { nsid, ifindex }, list))
        };
        match lists::pod_addresses(asking, nsid, |ifindex| links.contains_key(&ifindex)) {
            Ok(addresses) => {
                for found in left_out.take(addresses) {
                    match links.get_mut(&found.ifindex) {
                        Some(list) if list.len() < MAX_PER_POD => list.push(found.address),
                        Some(_) => left_out.over_bound += 1,
                        None => {}
                    }
                }
                for (peer, list) in peers(links) {
                    // Of no weight against the addresses: a link that cannot be read has no known MAC.
                    let mac = match lists::peer_link(asking, peer) {
                        Ok(link) => link.and_then(|link| link.mac),
                        Err(ReadError::Refused { .. }) => None,
                        Err(other) => return Err(other),
                    };
                    pods.push(PodAddresses {
                        peer,
                        mac,
                        addresses: Some(list),
                    });
                }
            }
            // Gone (the kernel says EINVAL for an unknown id), refused, or a pod that changes its addresses all the
            // time: the others must not go unread for it.
            Err(ReadError::Refused { .. } | ReadError::Interrupted { .. }) => {
                left_out.namespaces += 1;
                pods.extend(peers(links).map(|(peer, _)| unreadable(peer)));
            }
            Err(other) => return Err(other),
        }
    }
    Ok(pods)
}
