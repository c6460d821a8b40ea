//! Derives the claimants of an address from the facts. The same facts always give the same
//! claimants.

use std::net::IpAddr;

use crate::{
    mirror::{
        Mirror,
        facts::{AddressFacts, Assigned, AssignedOn, NeighbourFact},
        links::LinkState,
        pools::{AllocationState, Pools},
    },
    model::{
        Claimant, ClaimantId, Evidence, EvidenceDetail, EvidenceKind, FrameFact, InternalPlace,
        Scope, Settings, Timestamp, Vlan, is_claimable,
    },
    rules::{
        dedup::{drop_resolved_bridge_claims, drop_same_pod_claims},
        evidence::{frame_evidence, neighbour_evidence},
    },
    sorted_map::SortedMap,
};

/// The state that a derivation reads.
pub(crate) struct ClaimContext<'a> {
    pub(crate) mirror: &'a Mirror,
    pub(crate) settings: &'a Settings,
    pub(crate) pools: &'a Pools,
}

/// The claimants of one address by scope, oldest first.
pub(crate) type Derived = SortedMap<Scope, Vec<Claimant>>;

/// A claimant whose evidence is still being collected.
pub(crate) struct Draft {
    pub(crate) scope: Scope,
    pub(crate) claimant: Claimant,
    pub(crate) strength: Strength,
}

impl Draft {
    pub(crate) fn is_of(&self, scope: Scope, id: ClaimantId) -> bool {
        (self.scope, self.claimant.id) == (scope, id)
    }
}

/// The claimants of one address, in any order, while their evidence is being collected. At most one has the same scope and id.
pub(crate) type Drafts = Vec<Draft>;

/// Against what evidence counts; for a claimant, the strongest of its evidence decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strength {
    /// An address on an internal interface of a pod: only against a full claim of another pod. One of
    /// the node's in pods that are nodes themselves is usual.
    Internal,
    /// A probe: only against a full claim of another pod or of the node (RFC 5227 §2.1.1, RFC 4862
    /// §5.4).
    Probe,
    Full,
}

/// What supports a claim of a pod device.
pub(crate) struct Support<'l> {
    pub(crate) scope: Scope,
    pub(crate) link: &'l LinkState,
    pub(crate) strength: Strength,
    pub(crate) evidence: Evidence,
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
            return Derived::default();
        };
        // Most facts are of different claimants.
        let room = facts.assigned.len() + facts.frames.len() + facts.neighbours.len();
        let mut drafts = Drafts::with_capacity(room);
        for support in self.supports(address, facts, now) {
            self.add(&mut drafts, support);
        }
        // Whom an entry on a bridge supports depends on who claims the address by itself.
        for entry in &facts.neighbours {
            if let Some(bridge) = self.mirror.links.bridge(entry.ifindex) {
                self.add_bridge_entry(address, bridge, entry, facts, now, &mut drafts);
            }
        }
        self.add_host(address, facts, &mut drafts);

        let tentative: Vec<_> = drafts
            .extract_if(.., |draft| draft.strength != Strength::Full)
            .collect();
        let is_contested = |draft: &Draft| self.is_contested(facts, draft, &drafts);
        let contested: Vec<_> = tentative.into_iter().filter(is_contested).collect();
        drafts.extend(contested);
        let mut derived = Derived::default();
        let mut left = drafts.len();
        for mut draft in drafts {
            draft.claimant.summarize();
            self.look_up_records(address, &mut draft.claimant);
            derived
                .get_or_insert_with(draft.scope, || Vec::with_capacity(left))
                .push(draft.claimant);
            left -= 1;
        }
        for claimants in derived.values_mut() {
            drop_same_pod_claims(claimants, &self.mirror.links);
            drop_resolved_bridge_claims(claimants);
            claimants.sort_by_key(|c| (c.since, c.id));
        }
        derived
    }

    /// Whether a claim that does not count by itself does against one of these, which do.
    fn is_contested(&self, facts: &AddressFacts, draft: &Draft, full: &[Draft]) -> bool {
        let is_shared = |draft: &Draft| self.is_shared(facts, &draft.claimant);
        full.iter().any(|other| {
            let id = other.claimant.id;
            other.scope == draft.scope
                && !self.mirror.links.is_one_pod(id, draft.claimant.id)
                && (id != ClaimantId::Host || draft.strength == Strength::Probe)
                && !(is_shared(other) && is_shared(draft))
        })
    }

    /// Whether a claimant has the address on its own `lo` or a dummy, and everything else that supports its claim are frames,
    /// and neighbour entries that follow from them. The same address on `lo` of several pods is usual (anycast, LVS), and Linux
    /// sends requests from it, so none of it counts against others that have it there as well.
    pub(crate) fn is_shared(&self, facts: &AddressFacts, claimant: &Claimant) -> bool {
        let Some(pod) = claimant.peer else {
            return false;
        };
        let in_pod = || {
            let in_pod = facts
                .internal_interfaces()
                .filter(|(peer, _)| peer.nsid == pod.nsid);
            in_pod.map(|(_, interface)| interface)
        };
        let is_elsewhere = |e: &Evidence| e.is_certain() && !e.is_on_internal_interface();
        in_pod().any(|f| f.place != InternalPlace::Above)
            && !in_pod().any(|f| f.place == InternalPlace::Above)
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
        let is_full = |support: Support<'_>| support.strength == Strength::Full;
        let is_behind_bridge = |entry: &NeighbourFact| {
            self.mirror.links.is_bridge(entry.ifindex)
                && self.is_claim_behind_bridge(address, entry, facts)
        };
        is_claimable(address)
            && (self.supports(address, facts, now).any(is_full)
                || facts.neighbours.iter().any(is_behind_bridge))
    }

    /// The claims of pod devices that each fact supports by itself: all but those of the node, and entries on bridges.
    fn supports<'f>(
        &'f self,
        address: IpAddr,
        facts: &'f AddressFacts,
        now: Timestamp,
    ) -> impl Iterator<Item = Support<'f>> {
        let assigned = facts.assigned.iter();
        let assigned = assigned.filter_map(move |a| self.assigned_support(address, a));
        let frames = facts.frames.iter();
        let frames = frames.filter_map(move |f| self.frame_support(address, f, facts, now));
        let neighbours = facts.neighbours.iter().filter_map(move |entry| {
            let link = self.mirror.links.pod(entry.ifindex)?;
            let scope = self.scope(address, Vlan::default(), link);
            self.neighbour_support(address, scope, entry, link, facts)
        });
        assigned.chain(frames).chain(neighbours)
    }

    fn assigned_support(&self, address: IpAddr, assigned: &Assigned) -> Option<Support<'_>> {
        let link = self.mirror.links.pod_by_peer(assigned.peer()?)?;
        let (strength, mac, detail) = match &assigned.on {
            // An address in duplicate address detection counts in full, unlike a probe seen in a
            // frame: it has already been given to the pod.
            AssignedOn::Pod(_, info) => {
                let detail = match (info.dad_failed, info.tentative, info.autoconfigured) {
                    (true, ..) => Some(EvidenceDetail::DadFailed),
                    (_, true, _) => Some(EvidenceDetail::Tentative),
                    (.., true) => Some(EvidenceDetail::Autoconfigured),
                    _ => None,
                };
                (Strength::Full, None, detail)
            }
            AssignedOn::Internal(_, interface) if interface.place != InternalPlace::LocalSilent => {
                let detail = EvidenceDetail::OnInterface(interface.name.clone());
                (Strength::Internal, interface.mac, Some(detail))
            }
            AssignedOn::Internal(..) | AssignedOn::Node(_) => return None,
        };
        Some(Support {
            scope: self.scope(address, Vlan::default(), link),
            link,
            strength,
            evidence: Evidence {
                kind: EvidenceKind::Address,
                seen: assigned.seen,
                mac: mac.or(link.peer_mac),
                detail,
            },
        })
    }

    fn frame_support(
        &self,
        address: IpAddr,
        frame: &FrameFact,
        facts: &AddressFacts,
        now: Timestamp,
    ) -> Option<Support<'_>> {
        let link = self.mirror.links.pod(frame.ifindex)?;
        let is_live = self.is_frame_live(address, frame, link, facts, now);
        is_live.then(|| Support {
            scope: self.scope(address, frame.vlan, link),
            link,
            strength: match frame.tentative {
                true => Strength::Probe,
                false => Strength::Full,
            },
            evidence: frame_evidence(frame),
        })
    }

    /// What an entry supports as evidence of a claim of `link`.
    pub(crate) fn neighbour_support<'l>(
        &self,
        address: IpAddr,
        scope: Scope,
        entry: &NeighbourFact,
        link: &'l LinkState,
        facts: &AddressFacts,
    ) -> Option<Support<'l>> {
        let is_supported = self.supports_claim(address, entry, link, facts);
        is_supported.then(|| Support {
            scope,
            link,
            strength: Strength::Full,
            evidence: neighbour_evidence(entry),
        })
    }

    /// The node is one claimant, however many of its links have the address (ptp sets the gateway's
    /// address on every veth). It is shown with a link that is not a pod device, if there is one.
    fn add_host(&self, address: IpAddr, facts: &AddressFacts, drafts: &mut Drafts) {
        let on_node = facts.assigned.iter().filter_map(|a| match a.on {
            AssignedOn::Node(ifindex) => Some((self.mirror.links.get(ifindex)?, a)),
            AssignedOn::Pod(..) | AssignedOn::Internal(..) => None,
        });
        let mut on_node: Vec<_> = on_node.collect();
        on_node.sort_by_key(|(link, _)| (link.is_pod(), link.link.ifindex));
        for (link, host) in on_node {
            let scope = self.host_scope(address, &link.link);
            let evidence = Evidence {
                kind: EvidenceKind::Address,
                seen: host.seen.on_device_from(link.appeared),
                mac: link.link.mac,
                detail: Some(EvidenceDetail::OnNode),
            };
            if !drafts.iter().any(|d| d.is_of(scope, ClaimantId::Host)) {
                let claimant = Claimant {
                    evidence: vec![evidence],
                    peer: None,
                    ..self.claimant(ClaimantId::Host, link)
                };
                drafts.push(Draft {
                    scope,
                    claimant,
                    strength: Strength::Full,
                });
            }
        }
    }

    pub(crate) fn claimant(&self, id: ClaimantId, link: &LinkState) -> Claimant {
        let links = &self.mirror.links;
        let master = links.switch_above(&link.link);
        let master = master.and_then(|master| links.get(master));
        let (name, ifindex) = (link.link.name.clone(), link.link.ifindex);
        Claimant {
            master: master.map(|m| m.link.name.clone()),
            peer: link.link.peer,
            ..Claimant::new(id, name, ifindex, link.since)
        }
    }

    pub(crate) fn add(&self, drafts: &mut Drafts, support: Support<'_>) {
        let Support {
            scope,
            link,
            strength,
            evidence,
        } = support;
        let id = link.id();
        let evidence = Evidence {
            seen: evidence.seen.on_device_from(link.appeared),
            ..evidence
        };
        if let Some(draft) = drafts.iter_mut().find(|d| d.is_of(scope, id)) {
            draft.claimant.evidence.push(evidence);
            draft.strength = draft.strength.max(strength);
        } else {
            // Most have one piece of evidence: no room for more.
            let claimant = Claimant {
                evidence: vec![evidence],
                ..self.claimant(id, link)
            };
            drafts.push(Draft {
                scope,
                claimant,
                strength,
            });
        }
    }
}
