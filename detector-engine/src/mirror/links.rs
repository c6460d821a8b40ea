//! The links of the agent's namespace, and which of them are pod devices.
//!
//! Invariants: at most one pod device per peer, and every pod device that has a peer is found by
//! it; a generation is never used twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    hash::HashMap,
    limits::change_budget::ChangeBudget,
    mirror::cni_networks::CniNetworks,
    model::{
        ClaimantId, CniNetworkId, DeviceKey, IfIndex, KnownPod, Link, LinkKind, Mac, NsId, Peer,
        PodDevice, PortVlan, Timestamp, VlanProtocol,
    },
};

#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) link: Link,
    pub(crate) generation: u64,
    pub(crate) since: Timestamp,
    /// It was up at some time since it is known.
    pub(crate) was_up: bool,
    /// When it appeared, if the kernel reported that.
    pub(crate) appeared: Option<Timestamp>,
    /// It appeared, and what is in its pod's namespace was not read since.
    pub(crate) awaits_first_read: bool,
    /// Since when something changed on internal interfaces of its pod that was not read yet.
    pub(crate) internal_changed: Option<Timestamp>,
    /// What came of the last attempt to read the addresses in its pod's namespace.
    pub(crate) namespace_access: NamespaceAccess,
    /// The hardware address of the pod's end, once read or reported; set by [`Links::set_peer_mac`].
    pub(crate) peer_mac: Option<Mac>,
    /// It is not the first one that the agent knew: the pod has changed it.
    pub(crate) has_changed_mac: bool,
    /// The pod's namespace is gone, and the kernel is about to remove the device.
    pub(crate) is_dying: bool,
    /// Notifications were lost since the kernel last reported the link with its peer: either may be
    /// another device's by now.
    pub(crate) is_stale: bool,
    /// For changes of the addresses of the pod's end.
    pub(crate) changes: ChangeBudget,
    /// The network that the CNI result names, once it is known.
    pub(crate) cni_network: Option<CniNetworkId>,
    /// Its pod, once it is known.
    pub(crate) pod: Option<Arc<KnownPod>>,
    /// The name of that network may still come.
    pub(crate) awaits_network: bool,
    /// The namespace of the pod's end. It is remembered when the peer is unset, so that a pod with
    /// two devices does not become two pods while it is deleted or one of its interfaces moves.
    namespace: Option<NsId>,
}

/// Whether the addresses in a pod's namespace can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NamespaceAccess {
    /// Not read yet, or there is no namespace to read.
    #[default]
    Unknown,
    Readable,
    /// The kernel refused.
    Unreadable,
}

/// Distinguishes the pods among claimants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodIdentity {
    /// The pod in this namespace, which may have several devices.
    Namespace(NsId),
    /// The namespace is unknown, or it is no pod at all: different from every other claimant.
    Claimant(ClaimantId),
}

/// The pod's end of a pod device. The peer of any other link is ignored: a pod may have its
/// namespace number by now.
pub(crate) fn pod_peer(link: &Link) -> Option<Peer> {
    link.peer.filter(|_| link.kind == LinkKind::Pod)
}

impl LinkState {
    pub(crate) fn is_pod(&self) -> bool {
        self.link.kind == LinkKind::Pod
    }

    pub(crate) fn is_namespace_readable(&self) -> bool {
        self.namespace_access == NamespaceAccess::Readable
    }

    /// Whether `link`, which has the same index, is another device.
    ///
    /// A device that moves in keeps its index if that is free, and namespace ids are assigned again
    /// at once, so successive devices may have the same index and the same peer. The kernel reports
    /// the removal of the earlier one first, so another name alone is a rename. It means another
    /// device only if notifications were lost since the link was last reported.
    fn is_replaced_by(&self, link: &Link, was_stale: bool) -> bool {
        let has_other_name = self.is_pod() && self.link.name != link.name;
        let has_other_peer = matches!((self.link.peer, link.peer), (Some(a), Some(b)) if a != b);
        has_other_peer || (has_other_name && was_stale)
    }

    /// Removes what is known of the pod's end.
    fn clear_peer(&mut self) {
        self.link.peer = None;
        self.namespace_access = NamespaceAccess::Unknown;
    }

    pub(crate) fn key(&self) -> DeviceKey {
        (self.link.ifindex, self.generation)
    }

    /// As a claimant.
    pub(crate) fn id(&self) -> ClaimantId {
        ClaimantId::Device(self.link.ifindex, self.generation)
    }

    pub(crate) fn device(&self) -> PodDevice {
        PodDevice {
            ifindex: self.link.ifindex,
            generation: self.generation,
            name: self.link.name.clone(),
            alias: self.link.alias.clone(),
            peer: self.link.peer,
        }
    }
}

/// What an upsert changed.
#[derive(Debug)]
pub(crate) enum LinkChange {
    /// The link is new.
    New,
    /// Another device, or another pod's end, took the index before the old one's removal was
    /// reported: no fact of the old one holds for it.
    Replaced(Box<Link>),
    /// Something that claims depend on changed (kind, peer, master, name); carries the previous
    /// state.
    Changed(Box<Link>),
    /// Nothing relevant.
    Unchanged,
}

/// The result of an upsert.
#[derive(Debug)]
pub(crate) struct UpsertOutcome {
    pub(crate) change: LinkChange,
    /// An older device that lost this peer to the upserted one: the kernel assigns the number of a
    /// dying namespace to a new one before the dying one's devices are gone.
    pub(crate) displaced: Option<(IfIndex, Peer)>,
}

#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Boxed: a table has up to twice as many places as entries.
    by_index: HashMap<IfIndex, Box<LinkState>>,
    /// How many of them are pod devices.
    pod_count: usize,
    by_peer: BTreeMap<Peer, IfIndex>,
    /// The devices by the hardware address of the pod's end.
    by_mac: BTreeSet<(Mac, IfIndex)>,
    /// Hardware addresses of pods for which something changed since last taken.
    changed_macs: BTreeSet<Mac>,
    /// VLAN interfaces by the link that they are on, their VLAN id and protocol.
    vlan_interfaces: HashMap<(IfIndex, u16, VlanProtocol), IfIndex>,
    /// VRFs by their routing table.
    vrfs: HashMap<u32, IfIndex>,
    /// The VLAN of untagged frames at ports of bridges, and at bridges themselves. It may be
    /// reported before the link is known.
    pvids: HashMap<IfIndex, u16>,
    pub(crate) cni_networks: CniNetworks,
    generations: u64,
    /// A pod device went away, or is about to, since this was last reset.
    pub(crate) has_lost_pods: bool,
    /// Every link of the kernel is known, so that one that is not has just appeared.
    is_complete: bool,
}

impl Links {
    pub(crate) fn len(&self) -> usize {
        self.by_index.len()
    }

    /// How many pod devices there are.
    pub(crate) fn pod_count(&self) -> usize {
        self.pod_count
    }

    pub(crate) fn get(&self, ifindex: IfIndex) -> Option<&LinkState> {
        self.by_index.get(&ifindex).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, ifindex: IfIndex) -> Option<&mut LinkState> {
        self.by_index.get_mut(&ifindex).map(Box::as_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LinkState> {
        self.by_index.values().map(Box::as_ref)
    }

    /// The pod device whose other end is `peer`.
    pub(crate) fn pod_by_peer(&self, peer: Peer) -> Option<&LinkState> {
        self.get(self.index_by_peer(peer)?)
    }

    /// The pod device of this index, unless its pod is gone already.
    pub(crate) fn pod(&self, ifindex: IfIndex) -> Option<&LinkState> {
        self.get(ifindex).filter(|l| l.is_pod() && !l.is_dying)
    }

    /// As [`Links::pod`], unless another device has the index by now.
    pub(crate) fn device(&self, (ifindex, generation): DeviceKey) -> Option<&LinkState> {
        let link = self.pod(ifindex);
        link.filter(|link| link.generation == generation)
    }

    /// The link of this index, unless another one has it by now.
    pub(crate) fn same_mut(&mut self, (ifindex, generation): DeviceKey) -> Option<&mut LinkState> {
        let link = self.get_mut(ifindex);
        link.filter(|link| link.generation == generation)
    }

    /// The index of the pod device whose other end is `peer`.
    pub(crate) fn index_by_peer(&self, peer: Peer) -> Option<IfIndex> {
        self.by_peer.get(&peer).copied()
    }

    pub(crate) fn is_bridge(&self, ifindex: IfIndex) -> bool {
        self.bridge(ifindex).is_some()
    }

    /// The bridge of this index.
    pub(crate) fn bridge(&self, ifindex: IfIndex) -> Option<&LinkState> {
        self.get(ifindex)
            .filter(|l| l.link.kind == LinkKind::Bridge)
    }

    /// Whether a link is up and able to pass packets.
    pub(crate) fn is_running(&self, ifindex: IfIndex) -> bool {
        self.get(ifindex)
            .is_some_and(|l| l.link.up && l.link.running)
    }

    /// The bridge a link is a port of.
    pub(crate) fn bridge_of(&self, ifindex: IfIndex) -> Option<IfIndex> {
        self.get(ifindex)?
            .link
            .master
            .filter(|master| self.is_bridge(*master))
    }

    /// The VLAN interface with this id on a link; of two, that of 802.1Q: claims have no protocol.
    pub(crate) fn vlan_interface(&self, parent: IfIndex, id: u16) -> Option<IfIndex> {
        let of = |protocol| self.vlan_interfaces.get(&(parent, id, protocol));
        of(VlanProtocol::Dot1Q)
            .or_else(|| of(VlanProtocol::Dot1Ad))
            .copied()
    }

    /// Sets the VLAN of untagged frames at a link, within a bound on all of them; `true` if that
    /// changed it.
    pub(crate) fn set_pvid(&mut self, vlan: PortVlan, bound: usize) -> bool {
        let PortVlan { ifindex, pvid } = vlan;
        let before = match pvid {
            None => self.pvids.remove(&ifindex),
            Some(pvid) if self.pvids.len() < bound || self.pvids.contains_key(&ifindex) => {
                self.pvids.insert(ifindex, pvid)
            }
            Some(_) => return false,
        };
        before != pvid
    }

    /// The VLAN of untagged frames at a link.
    pub(crate) fn pvid(&self, ifindex: IfIndex) -> Option<u16> {
        self.pvids.get(&ifindex).copied()
    }

    /// The VRF with this routing table.
    pub(crate) fn vrf_of_table(&self, table: u32) -> Option<IfIndex> {
        self.vrfs.get(&table).copied()
    }

    /// The pod that a claimant is.
    pub(crate) fn pod_identity(&self, id: ClaimantId) -> PodIdentity {
        let namespace = match id {
            ClaimantId::Device(ifindex, generation) => self
                .get(ifindex)
                .filter(|state| state.generation == generation)
                .and_then(|state| state.namespace),
            ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => None,
        };
        namespace.map_or(PodIdentity::Claimant(id), PodIdentity::Namespace)
    }

    /// The hardware address of the pod's end is known, has changed, or is unknown.
    pub(crate) fn set_peer_mac(&mut self, ifindex: IfIndex, mac: Option<Mac>) {
        let Some(state) = self.by_index.get_mut(&ifindex) else {
            return;
        };
        let before = std::mem::replace(&mut state.peer_mac, mac);
        if before == mac {
            return;
        }
        state.has_changed_mac = mac.is_some() && (state.has_changed_mac || before.is_some());
        if let Some(before) = before {
            self.by_mac.remove(&(before, ifindex));
        }
        // Interfaces without one, as in the L3 mode of netkit, show zeros.
        let mac = mac.filter(|mac| *mac != Mac::default());
        self.by_mac.extend(mac.map(|mac| (mac, ifindex)));
        self.changed_macs.extend(before.into_iter().chain(mac));
    }

    /// The pod devices whose pod's end has this hardware address.
    pub(crate) fn pods_with_mac(&self, mac: Mac) -> impl Iterator<Item = &LinkState> {
        let with_mac = self.by_mac.range((mac, IfIndex::MIN)..=(mac, IfIndex::MAX));
        with_mac.filter_map(|(_, ifindex)| self.pod(*ifindex))
    }

    /// Something changed that may matter for what a hardware address of a pod means: its port, or
    /// where it was learned.
    pub(crate) fn mac_affected(&mut self, mac: Mac) {
        if self.pods_with_mac(mac).next().is_some() {
            self.changed_macs.insert(mac);
        }
    }

    /// The hardware addresses of pods for which something changed.
    pub(crate) fn take_changed_macs(&mut self) -> BTreeSet<Mac> {
        std::mem::take(&mut self.changed_macs)
    }

    /// Whether two claimants are one pod, or the same claimant.
    pub(crate) fn is_one_pod(&self, a: ClaimantId, b: ClaimantId) -> bool {
        self.pod_identity(a) == self.pod_identity(b)
    }

    /// The namespace with this id is gone: the next one with the id is another pod.
    pub(crate) fn forget_namespace(&mut self, nsid: NsId) {
        for state in self.by_index.values_mut() {
            state.namespace = state.namespace.filter(|known| *known != nsid);
        }
    }

    /// Notifications were lost: no link and no peer is certain until the kernel reports it again.
    pub(crate) fn mark_stale(&mut self) {
        self.is_complete = false;
        for state in self.by_index.values_mut() {
            state.is_stale = true;
            state.awaits_first_read = false;
            state.internal_changed = None;
        }
    }

    /// A snapshot of all links was merged, or there are links beyond the bound.
    pub(crate) fn set_complete(&mut self, is_complete: bool) {
        self.is_complete = is_complete;
    }

    /// Whether every link of the kernel is known.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The known peers in a namespace.
    pub(crate) fn peers_in(&self, nsid: NsId) -> impl Iterator<Item = Peer> {
        let peer = |ifindex| Peer { nsid, ifindex };
        let peers = self.by_peer.range(peer(IfIndex::MIN)..=peer(IfIndex::MAX));
        peers.map(|(peer, _)| *peer)
    }

    /// The pod devices whose peers are in a namespace.
    pub(crate) fn pods_in(&self, nsid: NsId) -> impl Iterator<Item = &LinkState> {
        let peers = self.peers_in(nsid);
        peers.filter_map(|peer| self.pod_by_peer(peer))
    }

    /// The name of the pod with this sandbox.
    pub(crate) fn pod_of_sandbox(&self, sandbox: &str) -> Option<&str> {
        let mut pods = self.iter().filter_map(|link| link.pod.as_deref());
        let pod = pods.find(|pod| pod.sandbox.as_deref() == Some(sandbox))?;
        Some(&pod.name)
    }

    /// Unsets the peer of a pod device; returns that device.
    pub(crate) fn unset_peer(&mut self, peer: Peer) -> Option<&mut LinkState> {
        let ifindex = self.by_peer.remove(&peer)?;
        self.set_peer_mac(ifindex, None);
        let state = self.by_index.get_mut(&ifindex)?;
        state.clear_peer();
        Some(state)
    }

    /// Adds or updates a link. With `complete` it comes from a snapshot, and absent attributes are
    /// treated as unset.
    pub(crate) fn upsert(
        &mut self,
        mut link: Link,
        complete: bool,
        now: Timestamp,
    ) -> UpsertOutcome {
        let ifindex = link.ifindex;
        let holder = link.peer.and_then(|peer| self.pod_by_peer(peer));
        let holder = holder.map(|holder| holder.generation);
        let Some(state) = self.by_index.get_mut(&ifindex) else {
            return UpsertOutcome {
                change: LinkChange::New,
                displaced: self.insert(link, complete, now),
            };
        };
        // A dying device may still report a peer that belongs to a newer one by now.
        let newer_holds = holder.is_some_and(|holder| holder > state.generation);
        link.peer = link.peer.filter(|_| !newer_holds);
        let was_stale = state.is_stale;
        state.is_stale &= link.peer.is_none() && state.link.peer.is_some();
        // A message without the peer (an early or partial one) does not unset it.
        if !complete && link.peer.is_none() && link.kind == state.link.kind {
            link.peer = state.link.peer;
        }
        state.was_up |= link.up;
        if state.link == link {
            return UpsertOutcome {
                change: LinkChange::Unchanged,
                displaced: None,
            };
        }
        if state.is_replaced_by(&link, was_stale) {
            let old = self.remove(ifindex);
            let displaced = self.insert(link, complete, now);
            let change = old.map_or(LinkChange::New, |old| {
                LinkChange::Replaced(Box::new(old.link))
            });
            return UpsertOutcome { change, displaced };
        }
        let has_peer = link.peer.is_some();
        if has_peer {
            state.is_dying = false;
        } else {
            state.namespace_access = NamespaceAccess::Unknown;
        }
        state.namespace = pod_peer(&link).map(|p| p.nsid).or(state.namespace);
        let was_pod = state.is_pod();
        let before = std::mem::replace(&mut state.link, link);
        self.has_lost_pods |= was_pod && !state.is_pod();
        if !has_peer {
            self.set_peer_mac(ifindex, None);
        }
        self.unindex(&before);
        UpsertOutcome {
            change: LinkChange::Changed(Box::new(before)),
            displaced: self.index(ifindex),
        }
    }

    fn insert(
        &mut self,
        link: Link,
        from_snapshot: bool,
        now: Timestamp,
    ) -> Option<(IfIndex, Peer)> {
        self.generations += 1;
        let appears = self.is_complete && !from_snapshot;
        let ifindex = link.ifindex;
        let state = LinkState {
            generation: self.generations,
            since: now,
            was_up: link.up,
            appeared: appears.then_some(now),
            awaits_first_read: appears,
            internal_changed: None,
            namespace_access: NamespaceAccess::Unknown,
            peer_mac: None,
            has_changed_mac: false,
            is_dying: false,
            is_stale: false,
            changes: ChangeBudget::default(),
            cni_network: None,
            pod: None,
            awaits_network: false,
            namespace: pod_peer(&link).map(|peer| peer.nsid),
            link,
        };
        self.by_index.insert(ifindex, Box::new(state));
        self.index(ifindex)
    }

    pub(crate) fn remove(&mut self, ifindex: IfIndex) -> Option<Box<LinkState>> {
        self.pvids.remove(&ifindex);
        self.set_peer_mac(ifindex, None);
        let state = self.by_index.remove(&ifindex)?;
        self.has_lost_pods |= state.is_pod();
        self.unindex(&state.link);
        Some(state)
    }

    /// Indexes a link by what it is found by; returns the pod device that had its peer until now.
    fn index(&mut self, ifindex: IfIndex) -> Option<(IfIndex, Peer)> {
        let link = &self.by_index.get(&ifindex)?.link;
        match link.kind {
            LinkKind::Vlan {
                parent,
                id,
                protocol,
            } => {
                self.vlan_interfaces.insert((parent, id, protocol), ifindex);
            }
            LinkKind::Vrf { table } => {
                self.vrfs.insert(table, ifindex);
            }
            LinkKind::Pod => self.pod_count += 1,
            LinkKind::Bridge | LinkKind::Switch | LinkKind::Other => {}
        }
        let peer = pod_peer(link)?;
        let displaced = self.by_peer.insert(peer, ifindex)?;
        self.set_peer_mac(displaced, None);
        if let Some(state) = self.by_index.get_mut(&displaced) {
            state.clear_peer();
        }
        Some((displaced, peer))
    }

    fn unindex(&mut self, link: &Link) {
        match link.kind {
            LinkKind::Vlan {
                parent,
                id,
                protocol,
            } => {
                self.vlan_interfaces.remove(&(parent, id, protocol));
            }
            LinkKind::Vrf { table } => {
                self.vrfs.remove(&table);
            }
            LinkKind::Pod => self.pod_count -= 1,
            LinkKind::Bridge | LinkKind::Switch | LinkKind::Other => {}
        }
        if let Some(peer) = pod_peer(link) {
            self.by_peer.remove(&peer);
        }
    }
}
