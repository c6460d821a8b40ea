//! The namespaces and pod devices of a node, and the notifications that the kernel queues for each
//! change, in its order (observed on Linux 6.18): the kernel assigns the lowest free namespace id,
//! frees it before it removes the namespace's devices, and gives the first link of each namespace
//! the same index.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::super::*;

/// The index of the first link in a namespace besides its loopback.
const FIRST_INDEX: IfIndex = 2;

/// A pair of links: one end on the node, the other in a namespace.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) peer: Peer,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Addresses that this pair's other end has or ever had.
    pub(super) ever: BTreeSet<IpAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// By the index of the node's end, which is never assigned again.
    pub(super) pairs: BTreeMap<IfIndex, Pair>,
    /// What every pair ever had, removed ones included.
    pub(super) history: BTreeMap<IfIndex, BTreeSet<IpAddr>>,
    /// Notifications that the agent has not received.
    pub(super) queue: VecDeque<Observation>,
    namespaces: BTreeSet<NsId>,
    created: IfIndex,
}

impl Kernel {
    /// The `nth` pair, of as many as there are.
    pub(super) fn nth(&self, nth: usize) -> Option<IfIndex> {
        let count = self.pairs.len().max(1);
        self.pairs.keys().nth(nth % count).copied()
    }

    /// A new namespace with a pair.
    pub(super) fn create(&mut self, addresses: &[IpAddr]) {
        let nsid = (0..).find(|nsid| !self.namespaces.contains(nsid)).unwrap();
        self.namespaces.insert(nsid);
        self.created += 1;
        let ifindex = self.created;
        let peer = Peer {
            nsid,
            ifindex: FIRST_INDEX,
        };
        let pair = Pair {
            peer,
            addresses: BTreeSet::new(),
            ever: BTreeSet::new(),
        };
        self.pairs.insert(ifindex, pair);
        // The first notification of a link is sent before the pair is joined.
        self.queue
            .push_back(Observation::Link(pod_without_peer(ifindex)));
        self.queue.push_back(Observation::NamespaceIdFreed(nsid));
        self.queue
            .push_back(Observation::Link(pod_with_peer(ifindex, peer)));
        for address in addresses {
            self.assign(ifindex, *address);
        }
    }

    pub(super) fn assign(&mut self, ifindex: IfIndex, address: IpAddr) {
        let Some(pair) = self.pairs.get_mut(&ifindex) else {
            return;
        };
        pair.ever.insert(address);
        pair.addresses.insert(address);
        self.history.entry(ifindex).or_default().insert(address);
        self.queue
            .push_back(Observation::PodAddress(pair.peer, assigned_to(address)));
    }

    pub(super) fn unassign(&mut self, ifindex: IfIndex, address: IpAddr) {
        let Some(pair) = self.pairs.get_mut(&ifindex) else {
            return;
        };
        if pair.addresses.remove(&address) {
            self.queue.push_back(Observation::PodAddressGone(
                pair.peer,
                assigned_to(address).id(),
            ));
        }
    }

    /// Deletes a pair's namespace with all that is in it.
    pub(super) fn delete_namespace(&mut self, ifindex: IfIndex) {
        let Some(nsid) = self.pairs.get(&ifindex).map(|pair| pair.peer.nsid) else {
            return;
        };
        self.namespaces.remove(&nsid);
        self.queue.push_back(Observation::NamespaceIdFreed(nsid));
        let inside = self.pairs.iter().filter(|(_, pair)| pair.peer.nsid == nsid);
        for gone in inside.map(|(ifindex, _)| *ifindex).collect::<Vec<_>>() {
            self.pairs.remove(&gone);
            self.queue
                .push_back(Observation::Link(pod_without_peer(gone)));
            self.queue.push_back(Observation::LinkGone(gone));
        }
    }

    /// Deletes a pair; its namespace stays.
    pub(super) fn delete_pair(&mut self, ifindex: IfIndex) {
        let Some(pair) = self.pairs.remove(&ifindex) else {
            return;
        };
        for address in pair.addresses {
            self.queue.push_back(Observation::PodAddressGone(
                pair.peer,
                assigned_to(address).id(),
            ));
        }
        self.queue.push_back(Observation::LinkGone(ifindex));
    }

    /// Moves a pair's other end, which is down, to the namespace of another pair; it loses its
    /// addresses. No notification is about the end that stays.
    pub(super) fn move_peer(&mut self, ifindex: IfIndex, to: IfIndex) {
        let Some(nsid) = self.pairs.get(&to).map(|pair| pair.peer.nsid) else {
            return;
        };
        let taken: HashSet<_> = self.pairs.values().map(|pair| pair.peer).collect();
        let Some(pair) = self.pairs.get_mut(&ifindex) else {
            return;
        };
        if pair.peer.nsid == nsid {
            return;
        }
        let at = |ifindex| Peer { nsid, ifindex };
        let free = (FIRST_INDEX..).map(at).find(|peer| !taken.contains(peer));
        let before = std::mem::replace(&mut pair.peer, free.unwrap());
        for address in std::mem::take(&mut pair.addresses) {
            self.queue.push_back(Observation::PodAddressGone(
                before,
                assigned_to(address).id(),
            ));
        }
        self.queue.push_back(Observation::PeerMoved(before));
    }

    /// The link as a dump shows it.
    pub(super) fn link(&self, ifindex: IfIndex) -> Option<Link> {
        let pair = self.pairs.get(&ifindex)?;
        Some(pod_with_peer(ifindex, pair.peer))
    }

    /// The addresses at an index in the namespace that has this id now, as a dump shows them.
    pub(super) fn addresses_at(&self, peer: Peer) -> PodAddresses {
        let of_namespace = self.namespaces.contains(&peer.nsid).then(|| {
            let pair = self.pairs.values().find(|pair| pair.peer == peer);
            let addresses = pair.map(|pair| &pair.addresses).into_iter().flatten();
            addresses.map(|address| assigned_to(*address)).collect()
        });
        PodAddresses {
            peer,
            mac: None,
            addresses: of_namespace,
            is_truncated: false,
            internal: Vec::new(),
            is_missing_internal: false,
        }
    }
}

fn assigned_to(address: IpAddr) -> AssignedAddress {
    AssignedAddress {
        prefix_len: 32,
        ..assigned(&address.to_string())
    }
}
