//! Derives the claimants of an address from the facts. The same facts always give the same
//! claimants.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    mirror::{
        Mirror,
        facts::{AddressFacts, Assigned, FrameFact, NeighbourFact},
        links::LinkState,
        pools::{AllocationState, Pools},
    },
    model::{
        conflict::{Claimant, ClaimantId, Evidence, EvidenceKind},
        evidence_detail::EvidenceDetail,
        observation::{Timestamp, Vlan},
        scope::{Scope, is_claimable},
        settings::Settings,
        snapshot::FurtherPlace,
    },
    rules::{
        dedup::{drop_resolved_bridge_claims, drop_same_pod_claims},
        evidence::{frame_evidence, neighbour_evidence},
    },
};

/// The state that a derivation reads.
pub(crate) struct ClaimContext<'a> {
    pub(crate) mirror: &'a Mirror,
    pub(crate) settings: &'a Settings,
    pub(crate) pools: &'a Pools,
}

/// The claimants of one address by scope, oldest first.
pub(crate) type Derived = BTreeMap<Scope, Vec<Claimant>>;

/// A claimant whose evidence is still being collected.
pub(crate) struct Draft {
    pub(crate) claimant: Claimant,
    pub(crate) strength: Strength,
}

/// The claimants of one address, while their evidence is being collected.
pub(crate) type Drafts = BTreeMap<(Scope, ClaimantId), Draft>;

/// Against what evidence counts; for a claimant, the strongest of its evidence decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strength {
    /// An address on a further interface of a pod: only against a full claim of another pod. One of
    /// the node's in pods that are nodes themselves is usual.
    Further,
    /// A probe: only against a full claim of another pod or of the node (RFC 5227 §2.1.1, RFC 4862
    /// §5.4).
    Probe,
    Full,
}

impl Strength {
    fn of_frame(frame: &FrameFact) -> Self {
        if frame.tentative {
            Self::Probe
        } else {
            Self::Full
        }
    }
}

impl ClaimContext<'_> {
    /// The claimants of `address` at `now`. Timestamps in the result are those of the facts; `now`
    /// only decides what has expired.
    pub(crate) fn derive(&self, address: IpAddr, now: Timestamp) -> Derived {
        let Some(facts) = self
            .mirror
            .facts
            .get(address)
            .filter(|_| is_claimable(address))
        else {
            return Derived::new();
        };
        let mut drafts = Drafts::new();
        self.add_assigned(address, facts, &mut drafts);
        self.add_frames(address, facts, now, &mut drafts);
        // Whom an entry on a bridge supports depends on who claims the address by itself.
        self.add_neighbours(address, facts, now, &mut drafts);
        self.add_further(address, facts, &mut drafts);
        self.add_host(address, facts, &mut drafts);

        let is_shared = |draft: &Draft| self.is_shared(facts, &draft.claimant);
        let mut derived = Derived::new();
        let tentative: Vec<_> = drafts
            .iter()
            .filter(|(_, d)| d.strength != Strength::Full)
            .map(|(key, draft)| (*key, draft.strength))
            .collect();
        for (key, strength) in tentative {
            let contested = drafts.iter().any(|((scope, id), d)| {
                *scope == key.0
                    && d.strength == Strength::Full
                    && !self.mirror.links.is_one_pod(*id, key.1)
                    && (*id != ClaimantId::Host || strength == Strength::Probe)
                    && !(is_shared(d) && drafts.get(&key).is_some_and(is_shared))
            });
            if !contested {
                drafts.remove(&key);
            }
        }
        for ((scope, _), mut draft) in drafts {
            draft.claimant.summarize();
            self.look_up_records(address, &mut draft.claimant);
            derived.entry(scope).or_default().push(draft.claimant);
        }
        for claimants in derived.values_mut() {
            drop_same_pod_claims(claimants, &self.mirror.links);
            drop_resolved_bridge_claims(claimants);
            claimants.sort_by_key(|c| (c.since, c.id));
        }
        derived
    }

    /// Whether a claimant has the address on its own `lo` or a dummy, and everything else that supports its claim are frames,
    /// and neighbour entries that follow from them. The same address on `lo` of several pods is usual (anycast, LVS), and Linux
    /// sends requests from it, so nothing of that counts against others that have it there, too.
    pub(crate) fn is_shared(&self, facts: &AddressFacts, claimant: &Claimant) -> bool {
        let Some(peer) = claimant.peer.filter(|_| !facts.further.is_empty()) else {
            return false;
        };
        let in_pod = || facts.further.iter().filter(|f| f.peer.nsid == peer.nsid);
        let is_elsewhere = |e: &Evidence| {
            let detail = e.detail.as_ref();
            e.is_certain() && !detail.is_some_and(EvidenceDetail::is_on_further_interface)
        };
        in_pod().any(|f| f.place != FurtherPlace::Above)
            && !in_pod().any(|f| f.place == FurtherPlace::Above)
            && !claimant.evidence.iter().any(is_elsewhere)
    }

    /// What its pod's namespace can show of a claim, and what the records of the pod and IPAM have about it.
    fn look_up_records(&self, address: IpAddr, claimant: &mut Claimant) {
        let link = match claimant.id {
            ClaimantId::Device(ifindex, _) => self.mirror.links.pod(ifindex),
            ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => None,
        };
        claimant.has_own_stack = link.is_some_and(|link| !self.is_authoritative(link, address));
        let Some(pod) = link.and_then(|link| link.pod.as_deref()) else {
            return;
        };
        let state = self.pools.state_of(address, std::slice::from_ref(claimant));
        let is_owner = match state {
            AllocationState::Allocated(pool, allocation) => pod.owns(pool.source.ipam, allocation),
            _ => None,
        };
        // Without any allocation, as after a wipe, IPAM contradicts no other record.
        claimant.rightful = pod.is_rightful(address, is_owner);
        claimant.allocated = match state {
            AllocationState::Free(_) => Some(false),
            _ => is_owner,
        };
    }

    /// Whether the only fact about `address` is a live claim of a pod: what [`Self::derive`] would
    /// find, at a fraction of its cost.
    pub(crate) fn is_lone_claim(
        &self,
        address: IpAddr,
        facts: &AddressFacts,
        now: Timestamp,
    ) -> bool {
        let assigned = |a: &Assigned| self.mirror.links.pod_by_peer(a.peer).is_some();
        let neighbour = |n: &NeighbourFact| match self.mirror.links.pod(n.ifindex) {
            Some(link) => self.supports_claim(address, n, link, facts),
            None => {
                self.mirror.links.is_bridge(n.ifindex)
                    && self.is_claim_behind_bridge(address, n, facts)
            }
        };
        let frame = |f: &FrameFact| {
            let link = self.mirror.links.pod(f.ifindex);
            !f.tentative
                && link.is_some_and(|link| self.is_frame_live(address, f, link, facts, now))
        };
        is_claimable(address)
            && (facts.assigned.iter().any(assigned)
                || facts.neighbours.iter().any(neighbour)
                || facts.frames.iter().any(frame))
    }

    fn add_assigned(&self, address: IpAddr, facts: &AddressFacts, drafts: &mut Drafts) {
        for assigned in &facts.assigned {
            let Some(link) = self.mirror.links.pod_by_peer(assigned.peer) else {
                continue;
            };
            let info = &assigned.info;
            let detail = match (info.dad_failed, info.tentative, info.autoconfigured) {
                (true, ..) => Some(EvidenceDetail::DadFailed),
                (_, true, _) => Some(EvidenceDetail::Tentative),
                (.., true) => Some(EvidenceDetail::Autoconfigured),
                _ => None,
            };
            let evidence = Evidence {
                kind: EvidenceKind::Address,
                seen: assigned.seen,
                mac: link.peer_mac,
                detail,
            };
            let scope = self.scope(address, Vlan::default(), link.link.ifindex);
            // An address in duplicate address detection counts in full, unlike a probe seen in a
            // frame: it has already been given to the pod.
            self.add(drafts, scope, link, evidence, Strength::Full);
        }
    }

    fn add_further(&self, address: IpAddr, facts: &AddressFacts, drafts: &mut Drafts) {
        let answered = facts.further.iter();
        for further in answered.filter(|f| f.place != FurtherPlace::LocalSilent) {
            let Some(link) = self.mirror.links.pod_by_peer(further.peer) else {
                continue;
            };
            let evidence = Evidence {
                kind: EvidenceKind::Address,
                seen: further.seen,
                mac: further.mac.or(link.peer_mac),
                detail: Some(EvidenceDetail::OnInterface(further.interface.clone())),
            };
            let scope = self.scope(address, Vlan::default(), link.link.ifindex);
            self.add(drafts, scope, link, evidence, Strength::Further);
        }
    }

    fn add_neighbours(
        &self,
        address: IpAddr,
        facts: &AddressFacts,
        now: Timestamp,
        drafts: &mut Drafts,
    ) {
        for entry in &facts.neighbours {
            if let Some(link) = self.mirror.links.pod(entry.ifindex) {
                let scope = self.scope(address, Vlan::default(), entry.ifindex);
                self.add_neighbour(address, scope, entry, link, facts, drafts);
            }
        }
        for entry in &facts.neighbours {
            if self.mirror.links.is_bridge(entry.ifindex) {
                self.add_bridge_entry(address, entry, facts, now, drafts);
            }
        }
    }

    pub(crate) fn add_neighbour(
        &self,
        address: IpAddr,
        scope: Scope,
        entry: &NeighbourFact,
        link: &LinkState,
        facts: &AddressFacts,
        drafts: &mut Drafts,
    ) {
        if self.supports_claim(address, entry, link, facts) {
            let evidence = neighbour_evidence(entry);
            self.add(drafts, scope, link, evidence, Strength::Full);
        }
    }

    fn add_frames(
        &self,
        address: IpAddr,
        facts: &AddressFacts,
        now: Timestamp,
        drafts: &mut Drafts,
    ) {
        for frame in &facts.frames {
            if let Some(link) = self.mirror.links.pod(frame.ifindex)
                && self.is_frame_live(address, frame, link, facts, now)
            {
                let scope = self.scope(address, frame.vlan, frame.ifindex);
                let strength = Strength::of_frame(frame);
                self.add(drafts, scope, link, frame_evidence(frame), strength);
            }
        }
    }

    /// The node is one claimant, however many of its links have the address (ptp sets the gateway's
    /// address on every veth). It is shown with a link that is not a pod device, if there is one.
    fn add_host(&self, address: IpAddr, facts: &AddressFacts, drafts: &mut Drafts) {
        let mut host_addresses: Vec<_> = facts.host.iter().collect();
        host_addresses.sort_by_key(|h| (self.mirror.links.pod(h.ifindex).is_some(), h.ifindex));
        for host in host_addresses {
            let Some(link) = self.mirror.links.get(host.ifindex) else {
                continue;
            };
            let scope = self.host_scope(address, host.ifindex);
            let evidence = Evidence {
                kind: EvidenceKind::Address,
                seen: host.seen.on_device_from(link.appeared),
                mac: link.link.mac,
                detail: Some(EvidenceDetail::OnNode),
            };
            drafts
                .entry((scope, ClaimantId::Host))
                .or_insert_with(|| Draft {
                    claimant: Claimant {
                        evidence: vec![evidence],
                        peer: None,
                        ..self.claimant(ClaimantId::Host, link)
                    },
                    strength: Strength::Full,
                });
        }
    }

    pub(crate) fn claimant(&self, id: ClaimantId, link: &LinkState) -> Claimant {
        let master = self
            .mirror
            .links
            .switch_of(link.link.ifindex)
            .and_then(|switch| self.mirror.links.get(switch));
        let (name, ifindex) = (link.link.name.clone(), link.link.ifindex);
        Claimant {
            master: master.map(|m| m.link.name.clone()),
            peer: link.link.peer,
            ..Claimant::new(id, name, ifindex, link.since)
        }
    }

    pub(crate) fn add(
        &self,
        drafts: &mut Drafts,
        scope: Scope,
        link: &LinkState,
        evidence: Evidence,
        strength: Strength,
    ) {
        let id = ClaimantId::Device(link.link.ifindex, link.generation);
        let draft = drafts.entry((scope, id)).or_insert_with(|| Draft {
            claimant: self.claimant(id, link),
            strength,
        });
        draft.claimant.evidence.push(Evidence {
            seen: evidence.seen.on_device_from(link.appeared),
            ..evidence
        });
        draft.strength = draft.strength.max(strength);
    }
}
