//! The detection rules again, as a plain recomputation from a [`World`].

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::tests::model::world::{
    EntryEvent, ModelDevice, NeighbourEntry, SeenFrame, WINDOW, World,
};

const CLAIM_TTL: Duration = Duration::from_secs(600);
const PROBE_TTL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ModelNetwork {
    Node,
    /// An L2 domain that the node does not route.
    Bridge(IfIndex),
    /// The link of a link-local address.
    Link(IfIndex),
}

pub(super) type Scope = (Vlan, ModelNetwork);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ModelClaimant {
    Node,
    Device(IfIndex),
    BehindBridge(IfIndex, Mac),
}

/// The combined evidence of one claimant.
#[derive(Clone, Debug, Default)]
struct Support {
    certain: bool,
    /// Supported by more than a probe.
    firm: bool,
    /// Certain not only because of an address on an internal interface.
    primary: bool,
    macs: BTreeSet<Mac>,
}

/// An open conflict, without the parts that depend on the order of observations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expected {
    pub(super) address: IpAddr,
    pub(super) network: String,
    pub(super) vlan: (Option<u16>, Option<u16>),
    pub(super) kind: ConflictKind,
    pub(super) confidence: Confidence,
    pub(super) claimants: BTreeSet<String>,
    pub(super) traffic_goes_to: Option<String>,
}

type Claims = BTreeMap<Scope, BTreeMap<ModelClaimant, Support>>;

impl World {
    pub(super) fn expected(&self, addresses: &[IpAddr]) -> Vec<Expected> {
        let mut expected = Vec::new();
        for address in addresses {
            for (scope, claims) in self.claims(*address) {
                let is_pod = |c: &&ModelClaimant| **c != ModelClaimant::Node;
                let pods = self.pod_count(claims.keys().filter(is_pod));
                let is_shared = |(claimant, support): (&ModelClaimant, &Support)| {
                    self.is_shared(*address, *claimant, support)
                };
                let kind = match (pods, claims.contains_key(&ModelClaimant::Node)) {
                    (1.., true) => ConflictKind::Host,
                    (2.., false) if !claims.iter().all(is_shared) => ConflictKind::Duplicate,
                    _ => continue,
                };
                let certain = || claims.iter().filter(|(_, support)| support.certain);
                let has_certain = self.pod_count(certain().map(|(claimant, _)| claimant)) >= 2
                    && !certain().all(is_shared);
                let receiver = self.receiver(*address, scope, &claims);
                expected.push(Expected {
                    address: *address,
                    network: self.network_name(scope.1),
                    vlan: (scope.0.outer, scope.0.inner),
                    kind,
                    confidence: if has_certain {
                        Confidence::Certain
                    } else {
                        Confidence::Observed
                    },
                    claimants: claims.keys().map(|c| self.claimant_name(*c)).collect(),
                    traffic_goes_to: receiver
                        .filter(|r| claims.contains_key(r))
                        .map(|r| match r {
                            ModelClaimant::Node => self.node_link(*address, scope),
                            r => self.device_name(r),
                        }),
                });
            }
        }
        expected.sort();
        expected
    }

    /// Whether another pod than the sender, or the node, claims the address in the scope of the
    /// probe.
    pub(super) fn is_contested(&self, claim: &FrameClaim) -> bool {
        let scope = self.scope(claim.address, claim.vlan, claim.ifindex);
        let claims = self.claims(claim.address);
        let mut claimants = claims.get(&scope).into_iter().flatten();
        claimants.any(|(c, _)| !self.is_one_pod(*c, ModelClaimant::Device(claim.ifindex)))
    }

    pub(super) fn pod_count<'c>(
        &self,
        claimants: impl Iterator<Item = &'c ModelClaimant>,
    ) -> usize {
        let mut pods: Vec<ModelClaimant> = Vec::new();
        for claimant in claimants {
            if !pods.iter().any(|known| self.is_one_pod(*known, *claimant)) {
                pods.push(*claimant);
            }
        }
        pods.len()
    }

    /// Whether the pod has the address on its `lo`, and nothing certain shows it elsewhere.
    fn is_shared(&self, address: IpAddr, claimant: ModelClaimant, support: &Support) -> bool {
        let ModelClaimant::Device(ifindex) = claimant else {
            return false;
        };
        let namespace = |d: &ModelDevice| d.link.peer.map(|peer| peer.nsid);
        let own = self.links.get(&ifindex).and_then(namespace);
        let mut devices = self.links.values();
        !support.primary
            && own.is_some()
            && devices.any(|d| namespace(d) == own && d.known_internal.contains(&address))
    }

    /// Whether two claimants are one pod, or the same.
    pub(super) fn is_one_pod(&self, a: ModelClaimant, b: ModelClaimant) -> bool {
        let namespace = |claimant| match claimant {
            ModelClaimant::Device(ifindex) => {
                let peer = self.links.get(&ifindex).and_then(|d| d.link.peer);
                let former = || self.former_namespaces.get(&ifindex).copied();
                peer.map(|peer| peer.nsid).or_else(former)
            }
            ModelClaimant::Node | ModelClaimant::BehindBridge(..) => None,
        };
        a == b || (namespace(a).is_some() && namespace(a) == namespace(b))
    }

    /// Whether the frame is still a live claim.
    pub(super) fn is_live(&self, frame: &SeenFrame) -> bool {
        let c = &frame.claim;
        let ttl = if c.tentative { PROBE_TTL } else { CLAIM_TTL };
        let assigned = self.pod(c.ifindex).is_some_and(|d| is_held(d, c.address));
        let untagged = c.vlan == Vlan::default();
        let held = self.pod(c.ifindex).is_some_and(|d| {
            d.link.is_tap || (d.read && untagged && !is_authoritative(d, c.address))
        });
        let supported = !c.tentative && ((untagged && assigned) || held);
        supported || self.now < frame.last + ttl
    }

    fn claims(&self, address: IpAddr) -> Claims {
        let mut claims = Claims::new();
        let mut internal = Vec::new();
        // Claimants with frames.
        let mut in_frames = BTreeSet::new();
        let mut assigned = BTreeSet::new();
        let mut claim =
            |scope: Scope, claimant: ModelClaimant, certain: bool, firm: bool, mac: Option<Mac>| {
                let support = claims
                    .entry(scope)
                    .or_default()
                    .entry(claimant)
                    .or_default();
                support.certain |= certain;
                support.primary |= certain;
                support.firm |= firm;
                support.macs.extend(mac);
            };
        let untagged = Vlan::default();
        for ifindex in self.links.keys() {
            let scope = self.scope(address, untagged, *ifindex);
            if self.hosts.contains(&(*ifindex, address)) {
                let scope = self.host_scope(address, *ifindex);
                claim(scope, ModelClaimant::Node, true, true, None);
            }
            let Some(device) = self.pod(*ifindex) else {
                continue;
            };
            let claimant = ModelClaimant::Device(*ifindex);
            if device.link.peer.is_some() && device.known_internal.contains(&address) {
                internal.push((scope, claimant, device.known_mac));
            }
            if is_assigned(device, address) {
                claim(scope, claimant, true, true, device.known_mac);
                assigned.insert((scope, claimant));
            }
            if let Some(entry) = self.neighbours.get(&(*ifindex, address))
                && is_accepted(entry, device, address)
            {
                let permanent = entry.state == NudState::Permanent;
                claim(scope, claimant, permanent, true, Some(entry.mac));
            }
            for frame in &self.frames {
                let c = &frame.claim;
                if (c.ifindex, c.address) != (*ifindex, address) {
                    continue;
                }
                if self.is_live(frame) {
                    let scope = self.scope(address, c.vlan, *ifindex);
                    claim(scope, claimant, false, !c.tentative, Some(c.mac));
                    in_frames.insert((scope, claimant));
                }
            }
        }
        for ((bridge, _), entry) in self
            .neighbours
            .iter()
            .filter(|((i, a), _)| *a == address && self.is_bridge(*i))
        {
            let in_frames = &in_frames - &assigned;
            self.add_bridge_entry(address, *bridge, entry, &in_frames, &mut claims);
        }
        for (scope, claimant, mac) in internal {
            // It counts only against a full claim of another pod.
            let others = claims.entry(scope).or_default();
            let own = others.get(&claimant).cloned().unwrap_or_default();
            let is_shared = self.is_shared(address, claimant, &own);
            let is_contested = others.iter().any(|(other, its)| {
                let is_pod = *other != ModelClaimant::Node;
                let counts = !(is_shared && self.is_shared(address, *other, its));
                its.firm && is_pod && counts && !self.is_one_pod(*other, claimant)
            });
            if is_contested || others.contains_key(&claimant) {
                let support = others.entry(claimant).or_default();
                support.certain = true;
                support.macs.extend(mac);
            }
        }
        for claims in claims.values_mut() {
            self.remove_non_claims(address, claims);
        }
        claims.retain(|_, claims| !claims.is_empty());
        claims
    }

    /// An entry of a bridge supports the port that its hardware address is behind, if that port
    /// claims the address by itself. Otherwise it is a claim of the hardware address: a permanent
    /// one, or one behind a port whose pod may have the address, unless another port claims it
    /// `in_frames` alone.
    fn add_bridge_entry(
        &self,
        address: IpAddr,
        bridge: IfIndex,
        entry: &NeighbourEntry,
        in_frames: &BTreeSet<(Scope, ModelClaimant)>,
        claims: &mut Claims,
    ) {
        let scope = self.scope(address, Vlan::default(), bridge);
        let on_bridge = |claimant: &ModelClaimant| match claimant {
            ModelClaimant::Device(ifindex) => self.bridge_of(*ifindex) == Some(bridge),
            ModelClaimant::Node | ModelClaimant::BehindBridge(..) => false,
        };
        let mut sent = in_frames.iter();
        let is_explained = sent.any(|(of, claimant)| {
            let firm = claims.get(of).and_then(|claims| claims.get(claimant));
            *of == scope && on_bridge(claimant) && firm.is_some_and(|support| support.firm)
        });
        let interface_mac = |port: IfIndex| self.pod(port)?.known_mac;
        let permanent = entry.state == NudState::Permanent;
        let current = std::iter::once((entry.mac, false));
        let former = flapping_macs(entry, self.now).into_iter();
        for (mac, flapping) in current.chain(former.map(|mac| (mac, true))) {
            let port = self.fdb.get(&(bridge, mac)).map(|entry| entry.port);
            let port = port.filter(|port| self.pod(*port).is_some());
            let device = port.and_then(|port| self.pod(port));
            let is_accepted = |device| flapping || is_accepted(entry, device, address);
            let here = claims.get(&scope);
            let is_firm = |port: IfIndex| {
                let support = here.and_then(|claims| claims.get(&ModelClaimant::Device(port)));
                support.is_some_and(|support| support.firm)
            };
            let claims_itself =
                port.is_some_and(is_firm) || device.is_some_and(|device| is_held(device, address));
            let claimant = if claims_itself {
                port.filter(|_| device.is_some_and(is_accepted))
                    .map(ModelClaimant::Device)
            } else if permanent && !flapping {
                let mut ports = here.into_iter().flat_map(BTreeMap::keys);
                let with_mac = ports.find_map(|claimant| match claimant {
                    ModelClaimant::Device(port)
                        if on_bridge(claimant)
                            && is_firm(*port)
                            && interface_mac(*port) == Some(mac) =>
                    {
                        Some(*port)
                    }
                    _ => None,
                });
                let possible =
                    port.filter(|port| interface_mac(*port).is_none_or(|known| known == mac));
                let holder = with_mac.or(possible).map(ModelClaimant::Device);
                holder.or(Some(ModelClaimant::BehindBridge(bridge, mac)))
            } else {
                device
                    .filter(|device| {
                        !is_authoritative(device, address) && is_accepted(device) && !is_explained
                    })
                    .map(|_| ModelClaimant::BehindBridge(bridge, mac))
            };
            if let Some(claimant) = claimant {
                let support = claims.entry(scope).or_default().entry(claimant);
                let support = support.or_default();
                support.certain |= permanent && !flapping;
                support.primary |= permanent && !flapping;
                support.firm = true;
                support.macs.insert(mac);
            }
        }
    }

    /// Removes uncontested probes, and claimants that are another one seen a second time.
    fn remove_non_claims(&self, address: IpAddr, claims: &mut BTreeMap<ModelClaimant, Support>) {
        let firm = claims.iter().filter(|(_, support)| support.firm);
        let firm: BTreeMap<ModelClaimant, bool> = firm
            .map(|(c, support)| (*c, self.is_shared(address, *c, support)))
            .collect();
        claims.retain(|claimant, support| {
            let is_shared = self.is_shared(address, *claimant, support);
            let counts = |(other, other_is_shared): (&ModelClaimant, &bool)| {
                !(self.is_one_pod(*other, *claimant) || is_shared && *other_is_shared)
            };
            support.firm || firm.iter().any(counts)
        });

        let all = claims.clone();
        claims.retain(|claimant, support| {
            let supersedes = |(other, its): (&ModelClaimant, &Support)| {
                other != claimant
                    && self.is_one_pod(*other, *claimant)
                    && (its.certain || other < claimant)
            };
            support.certain || !all.iter().any(supersedes)
        });

        let devices = claims
            .iter()
            .filter(|c| matches!(c.0, ModelClaimant::Device(_)));
        let known: BTreeSet<Mac> = devices.flat_map(|c| c.1.macs.clone()).collect();
        claims.retain(|claimant, _| match claimant {
            ModelClaimant::BehindBridge(_, mac) => !known.contains(mac),
            ModelClaimant::Node | ModelClaimant::Device(_) => true,
        });
    }

    pub(super) fn scope(&self, address: IpAddr, vlan: Vlan, ifindex: IfIndex) -> Scope {
        let (domain, vlan) = self.l2_domain(vlan, ifindex);
        let scope = if !self.is_bridge(domain) {
            (vlan, ModelNetwork::Node)
        } else if vlan == self.own_vlan(domain) && self.is_routed(domain, address) {
            (Vlan::default(), ModelNetwork::Node)
        } else {
            (vlan, ModelNetwork::Bridge(domain))
        };
        self.within_link(address, (domain, vlan), scope)
    }

    fn host_scope(&self, address: IpAddr, ifindex: IfIndex) -> Scope {
        let domain = self.l2_domain(Vlan::default(), ifindex);
        self.within_link(address, domain, (Vlan::default(), ModelNetwork::Node))
    }

    fn l2_domain(&self, mut vlan: Vlan, ifindex: IfIndex) -> (IfIndex, Vlan) {
        let domain = self.bridge_of(ifindex).unwrap_or(ifindex);
        vlan.outer = vlan.outer.or(self.pvid_at(domain, ifindex));
        (domain, vlan)
    }

    /// The VLAN of the node's own frames on a bridge.
    fn own_vlan(&self, bridge: IfIndex) -> Vlan {
        Vlan {
            outer: self.pvid_at(bridge, bridge),
            inner: None,
        }
    }

    /// Link-local addresses are unique on one link, unless the node routes them to a pod.
    fn within_link(&self, address: IpAddr, domain: (IfIndex, Vlan), scope: Scope) -> Scope {
        let route = self.routes.get(&address);
        let to_pod = route.is_some_and(|out| self.pod(*out).is_some());
        if !is_link_local(address) || (scope.1 == ModelNetwork::Node && to_pod) {
            return scope;
        }
        (domain.1, ModelNetwork::Link(domain.0))
    }

    /// Whether the node has an address of the same family on a bridge, or a route to it.
    fn is_routed(&self, bridge: IfIndex, address: IpAddr) -> bool {
        let of_family = |a: &IpAddr| a.is_ipv4() == address.is_ipv4() && !is_link_local(*a);
        let mut hosts = self.hosts.iter();
        hosts.any(|(i, a)| *i == bridge && of_family(a))
            || self
                .routes
                .iter()
                .any(|(a, i)| *i == bridge && of_family(a))
    }

    fn network_name(&self, network: ModelNetwork) -> String {
        let name = |ifindex| &self.links[&ifindex].link.name;
        match network {
            ModelNetwork::Node => "node".to_owned(),
            ModelNetwork::Link(link) if !self.is_bridge(link) => "link".to_owned(),
            ModelNetwork::Bridge(bridge) | ModelNetwork::Link(bridge) => {
                format!("bridge:{}", name(bridge))
            }
        }
    }

    fn receiver(
        &self,
        address: IpAddr,
        scope: Scope,
        claims: &BTreeMap<ModelClaimant, Support>,
    ) -> Option<ModelClaimant> {
        let node_wide = (Vlan::default(), ModelNetwork::Node);
        if scope != node_wide && claims.contains_key(&ModelClaimant::Node) {
            return Some(ModelClaimant::Node);
        }
        if scope.0 != Vlan::default() {
            return None;
        }
        let out = match scope.1 {
            ModelNetwork::Bridge(_) => return None,
            ModelNetwork::Link(domain) => domain,
            ModelNetwork::Node => match self.look_up_route(address) {
                RouteTarget::Host => return Some(ModelClaimant::Node),
                RouteTarget::Nowhere => return None,
                RouteTarget::Device(out) => out,
                RouteTarget::Bridge(path) => path.bridge,
            },
        };
        if !self.is_bridge(out) {
            return Some(ModelClaimant::Device(out));
        }
        let mac = self.neighbours.get(&(out, address))?.mac;
        match self.fdb.get(&(out, mac)) {
            Some(entry) if !self.links[&entry.port].link.running => None,
            Some(entry) if claims.contains_key(&ModelClaimant::Device(entry.port)) => {
                Some(ModelClaimant::Device(entry.port))
            }
            _ => Some(ModelClaimant::BehindBridge(out, mac)),
        }
    }

    /// The link that names the host's claim: an uplink before a pod device, then the lowest
    /// ifindex.
    fn node_link(&self, address: IpAddr, scope: Scope) -> String {
        let assigned = self
            .hosts
            .iter()
            .filter(|(i, a)| *a == address && self.host_scope(address, *i) == scope);
        let ifindex = assigned
            .map(|(i, _)| *i)
            .min_by_key(|i| (self.pod(*i).is_some(), *i));
        self.links[&ifindex.expect("the host has the address")]
            .link
            .name
            .clone()
    }

    fn device_name(&self, claimant: ModelClaimant) -> String {
        match claimant {
            ModelClaimant::Node => unreachable!("named by its link"),
            ModelClaimant::Device(ifindex) | ModelClaimant::BehindBridge(ifindex, _) => {
                self.links[&ifindex].link.name.clone()
            }
        }
    }

    fn claimant_name(&self, claimant: ModelClaimant) -> String {
        match claimant {
            ModelClaimant::Node => "node".to_owned(),
            ModelClaimant::Device(_) => self.device_name(claimant),
            ModelClaimant::BehindBridge(_, mac) => format!("{}/{mac}", self.device_name(claimant)),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether the pod has the address and the agent can know it.
fn is_assigned(device: &ModelDevice, address: IpAddr) -> bool {
    device.link.peer.is_some() && device.addresses.get(&address) == Some(&true)
}

/// Whether the address is assigned there, or on an internal interface.
fn is_held(device: &ModelDevice, address: IpAddr) -> bool {
    let has_internal = device.link.peer.is_some() && device.known_internal.contains(&address);
    has_internal || is_assigned(device, address)
}

/// Whether the namespace of the pod shows if the pod has the address: it was read, and has an
/// address of that family, which is not link-local unless this one is.
fn is_authoritative(device: &ModelDevice, address: IpAddr) -> bool {
    let is_like = |(other, known): (&IpAddr, &bool)| {
        *known
            && other.is_ipv4() == address.is_ipv4()
            && (is_link_local(address) || !is_link_local(*other))
    };
    let has_peer = device.link.peer.is_some();
    has_peer && device.readable && device.read && device.addresses.iter().any(is_like)
}

/// Whether a neighbour entry on the path to `device` is evidence.
fn is_accepted(entry: &NeighbourEntry, device: &ModelDevice, address: IpAddr) -> bool {
    let is_read = device.readable && device.read;
    let is_absent = is_read && (is_authoritative(device, address) || !entry.confirmed);
    match entry.state {
        NudState::Permanent => true,
        NudState::Reachable => is_held(device, address) || !entry.refuted,
        NudState::Stale | NudState::Delay | NudState::Probe => {
            is_held(device, address) || !(entry.refuted || is_absent)
        }
        NudState::NoArp | NudState::Invalid => false,
    }
}

/// Former lladdrs of an entry that took part in flapping and were current within the window. One
/// whose pod gave the address up takes part again only once the entry has it again or confirms it.
fn flapping_macs(entry: &NeighbourEntry, now: Timestamp) -> BTreeSet<Mac> {
    let mut took: Vec<(Timestamp, Mac)> = Vec::new();
    let mut participants = BTreeSet::new();
    let mut given_up = BTreeSet::new();
    // When this MAC was last replaced among the first `n` changes.
    let left = |took: &[(Timestamp, Mac)], mac: Mac, n: usize| {
        let last = took[..n].iter().rposition(|(_, m)| *m == mac)?;
        took.get(last + 1).map(|(at, _)| (last, *at))
    };
    for event in &entry.history {
        match event {
            EntryEvent::Cleared(mac) => {
                participants.remove(mac);
                given_up.insert(*mac);
            }
            EntryEvent::Confirmed(mac) => {
                given_up.remove(mac);
            }
            EntryEvent::Took(at, mac) => {
                given_up.remove(mac);
                took.push((*at, *mac));
                let n = took.len() - 1;
                let over =
                    |m: &Mac| left(&took, *m, n).is_some_and(|(_, left)| at.since(left) >= WINDOW);
                participants.retain(|m| !over(m));
                if let Some((before, left)) = left(&took, *mac, n)
                    && at.since(left) < WINDOW
                {
                    let since = took[before..].iter().map(|(_, m)| *m);
                    participants.extend(since.filter(|m| !given_up.contains(m)));
                }
            }
        }
    }
    participants.remove(&entry.mac);
    participants.retain(|mac| {
        left(&took, *mac, took.len()).is_some_and(|(_, left)| now.since(left) < WINDOW)
    });
    participants
}
