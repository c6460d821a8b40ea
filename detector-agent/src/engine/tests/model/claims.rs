//! The rules once more, as plainly as they can be said: who claims an address in a [`World`], and what follows.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::world::{Entry, Heard, ModelDevice, Past, WINDOW, World};

const CLAIM_TTL: Duration = Duration::from_secs(600);
const PROBE_TTL: Duration = Duration::from_secs(60);

/// VLAN, and the L2 domain of a link-local address.
pub(super) type Scope = (Vlan, Option<IfIndex>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Node,
    Device(IfIndex),
    Behind(IfIndex, Mac),
}

#[derive(Clone, Debug, Default)]
struct Why {
    certain: bool,
    /// Something else than a probe.
    firm: bool,
    macs: BTreeSet<Mac>,
}

/// An open conflict, without what depends on the order in which things became known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expected {
    pub(super) address: IpAddr,
    pub(super) vlan: (Option<u16>, Option<u16>),
    pub(super) kind: ConflictKind,
    pub(super) confidence: Confidence,
    pub(super) claimants: BTreeSet<String>,
    pub(super) traffic_goes_to: Option<String>,
}

type Claims = BTreeMap<Scope, BTreeMap<Who, Why>>;

impl World {
    pub(super) fn expected(&self, addresses: &[IpAddr]) -> Vec<Expected> {
        let mut expected = Vec::new();
        for address in addresses {
            for (scope, claims) in self.claims(*address) {
                let pods = claims.keys().filter(|w| **w != Who::Node).count();
                let kind = match (pods, claims.contains_key(&Who::Node)) {
                    (1.., true) => ConflictKind::Host,
                    (2.., false) => ConflictKind::Duplicate,
                    _ => continue,
                };
                let certain = claims.values().filter(|why| why.certain).count();
                let receiver = self.receiver(*address, scope);
                expected.push(Expected {
                    address: *address,
                    vlan: (scope.0.outer, scope.0.inner),
                    kind,
                    confidence: if certain >= 2 {
                        Confidence::Certain
                    } else {
                        Confidence::Observed
                    },
                    claimants: claims.keys().map(|w| self.name(*address, *w)).collect(),
                    traffic_goes_to: if claims.contains_key(&Who::Node) {
                        Some(self.node_link(*address, scope))
                    } else {
                        receiver
                            .filter(|r| claims.contains_key(r))
                            .map(|r| self.device_name(r))
                    },
                });
            }
        }
        expected.sort();
        expected
    }

    /// Whether somebody else than `ifindex` claims the address where a probe is heard.
    pub(super) fn contested(&self, claim: &FrameClaim) -> bool {
        let scope = self.scope(claim.address, claim.vlan, claim.ifindex);
        let claims = self.claims(claim.address);
        let there = claims.get(&scope).into_iter().flatten();
        there
            .into_iter()
            .any(|(w, _)| *w != Who::Device(claim.ifindex))
    }

    /// Whether what was heard is still a claim.
    pub(super) fn counts(&self, heard: &Heard) -> bool {
        let c = &heard.claim;
        let ttl = if c.tentative { PROBE_TTL } else { CLAIM_TTL };
        let assigned = self.pod(c.ifindex).is_some_and(|d| has(d, c.address));
        let supported = !c.tentative && c.vlan == Vlan::default() && assigned;
        supported || self.now < heard.last + ttl
    }

    fn claims(&self, address: IpAddr) -> Claims {
        let mut claims = Claims::new();
        let mut claim = |scope: Scope, who: Who, certain: bool, firm: bool, mac: Option<Mac>| {
            let why = claims.entry(scope).or_default().entry(who).or_default();
            why.certain |= certain;
            why.firm |= firm;
            why.macs.extend(mac);
        };
        let untagged = Vlan::default();
        for ifindex in self.links.keys() {
            let scope = self.scope(address, untagged, *ifindex);
            if self.hosts.contains(&(*ifindex, address)) {
                claim(scope, Who::Node, true, true, None);
            }
            let Some(device) = self.pod(*ifindex) else {
                continue;
            };
            let who = Who::Device(*ifindex);
            if has(device, address) {
                let mac = mac(u8::try_from(*ifindex).unwrap());
                claim(scope, who, true, true, device.read.then_some(mac));
            }
            if let Some(entry) = self.neighbours.get(&(*ifindex, address))
                && believed(entry, device, address)
            {
                let permanent = entry.state == NudState::Permanent;
                claim(scope, who, permanent, true, Some(entry.mac));
            }
            for heard in &self.heard {
                let c = &heard.claim;
                if (c.ifindex, c.address) != (*ifindex, address) {
                    continue;
                }
                if self.counts(heard) {
                    let scope = self.scope(address, c.vlan, *ifindex);
                    claim(scope, who, false, !c.tentative, Some(c.mac));
                }
            }
        }
        for ((bridge, _), entry) in self
            .neighbours
            .iter()
            .filter(|((i, a), _)| *a == address && self.is_bridge(*i))
        {
            let port = |mac: Mac| self.fdb.get(&(*bridge, mac)).map(|s| s.port);
            let permanent = entry.state == NudState::Permanent;
            match port(entry.mac) {
                Some(port) => {
                    if let Some(device) = self.pod(port)
                        && believed(entry, device, address)
                    {
                        let scope = self.scope(address, untagged, port);
                        claim(scope, Who::Device(port), permanent, true, Some(entry.mac));
                    }
                }
                None if permanent => {
                    let scope = self.scope(address, untagged, *bridge);
                    let who = Who::Behind(*bridge, entry.mac);
                    claim(scope, who, true, true, Some(entry.mac));
                }
                None => {}
            }
            for mac in flapping(entry, self.now) {
                if let Some(port) = port(mac).filter(|port| self.pod(*port).is_some()) {
                    let scope = self.scope(address, untagged, port);
                    claim(scope, Who::Device(port), false, true, Some(mac));
                }
            }
        }
        for claims in claims.values_mut() {
            self.only_claims(claims);
        }
        claims.retain(|_, claims| !claims.is_empty());
        claims
    }

    /// Drops probes that nobody contests, and claimants that are another one seen a second time.
    fn only_claims(&self, claims: &mut BTreeMap<Who, Why>) {
        let firm: BTreeSet<Who> = claims.iter().filter(|c| c.1.firm).map(|c| *c.0).collect();
        claims.retain(|who, why| why.firm || firm.iter().any(|other| other != who));

        let pod_of = |who: &Who| match who {
            Who::Device(ifindex) => Some(self.links[ifindex].link.peer?.nsid),
            Who::Node | Who::Behind(..) => None,
        };
        let all = claims.clone();
        claims.retain(|who, why| {
            let better = |(other, its): (&Who, &Why)| {
                pod_of(who).is_some()
                    && pod_of(other) == pod_of(who)
                    && (its.certain || other < who)
            };
            why.certain || !all.iter().any(better)
        });

        let devices = claims.iter().filter(|c| matches!(c.0, Who::Device(_)));
        let known: BTreeSet<Mac> = devices.flat_map(|c| c.1.macs.clone()).collect();
        claims.retain(|who, _| !matches!(who, Who::Behind(_, mac) if known.contains(mac)));
    }

    fn scope(&self, address: IpAddr, vlan: Vlan, ifindex: IfIndex) -> Scope {
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let domain = self.bridge_of(ifindex).unwrap_or(ifindex);
        (vlan, link_local.then_some(domain))
    }

    fn receiver(&self, address: IpAddr, scope: Scope) -> Option<Who> {
        if scope.0 != Vlan::default() {
            return None;
        }
        let out = match scope.1 {
            Some(domain) => domain,
            None => *self.routes.get(&address)?,
        };
        if !self.is_bridge(out) {
            return Some(Who::Device(out));
        }
        let mac = self.neighbours.get(&(out, address))?.mac;
        match self.fdb.get(&(out, mac)) {
            Some(station) => Some(Who::Device(station.port)),
            None => Some(Who::Behind(out, mac)),
        }
    }

    /// The link that the node's claim is shown by: one of its own before a pod's device, then the lowest.
    fn node_link(&self, address: IpAddr, scope: Scope) -> String {
        let standing = self
            .hosts
            .iter()
            .filter(|(i, a)| *a == address && self.scope(address, Vlan::default(), *i) == scope);
        let ifindex = standing
            .map(|(i, _)| *i)
            .min_by_key(|i| (self.pod(*i).is_some(), *i));
        self.links[&ifindex.expect("the node has it")]
            .link
            .name
            .clone()
    }

    fn device_name(&self, who: Who) -> String {
        match who {
            Who::Node => unreachable!("named by its link"),
            Who::Device(ifindex) | Who::Behind(ifindex, _) => {
                self.links[&ifindex].link.name.clone()
            }
        }
    }

    fn name(&self, _address: IpAddr, who: Who) -> String {
        match who {
            Who::Node => "node".to_owned(),
            Who::Device(_) => self.device_name(who),
            Who::Behind(_, mac) => format!("{}/{mac}", self.device_name(who)),
        }
    }
}

/// The pod has the address, and the agent can know.
fn has(device: &ModelDevice, address: IpAddr) -> bool {
    device.link.peer.is_some() && device.addresses.get(&address) == Some(&true)
}

fn believed(entry: &Entry, device: &ModelDevice, address: IpAddr) -> bool {
    let lacks = device.readable && device.read && !has(device, address);
    match entry.state {
        NudState::Permanent => true,
        NudState::Reachable => has(device, address) || !entry.refuted,
        NudState::Stale | NudState::Delay | NudState::Probe => {
            has(device, address) || !(entry.refuted || lacks)
        }
        NudState::NoArp | NudState::Invalid => false,
    }
}

/// What an entry held before that took part in going back and forth, and was held within the window.
fn flapping(entry: &Entry, now: Timestamp) -> BTreeSet<Mac> {
    let mut took: Vec<(Timestamp, Mac)> = Vec::new();
    let mut part = BTreeSet::new();
    // When the hardware address was last left, before it was taken for the `n`th time in all.
    let left = |took: &[(Timestamp, Mac)], mac: Mac, n: usize| {
        let last = took[..n].iter().rposition(|(_, m)| *m == mac)?;
        took.get(last + 1).map(|(at, _)| (last, *at))
    };
    for past in &entry.past {
        match past {
            Past::Cleared(mac) => {
                part.remove(mac);
            }
            Past::Took(at, mac) => {
                took.push((*at, *mac));
                let n = took.len() - 1;
                let over =
                    |m: &Mac| left(&took, *m, n).is_some_and(|(_, left)| at.since(left) >= WINDOW);
                part.retain(|m| !over(m));
                if let Some((before, left)) = left(&took, *mac, n)
                    && at.since(left) < WINDOW
                {
                    part.extend(took[before..].iter().map(|(_, m)| *m));
                }
            }
        }
    }
    part.remove(&entry.mac);
    part.retain(|mac| {
        left(&took, *mac, took.len()).is_some_and(|(_, left)| now.since(left) < WINDOW)
    });
    part
}
