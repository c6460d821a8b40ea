//! Whose claim a neighbour entry on a bridge is (`docs/detection-rules.md`, section 3).
//!
//! The entry gives a hardware address, and the forwarding table the port behind which that is. One
//! frame writes either, and its sender chooses what it writes. So an entry is evidence only for a
//! port that claims the address by itself: in its pod, or in frames that came in on it. The device
//! that a frame came in on is the claimant, whatever hardware address the frame contains.
//!
//! A `REACHABLE` state proves no more: an unsolicited unicast reply sets it as well
//! (`arp_process` in net/ipv4/arp.c, `ndisc_recv_na` in net/ipv6/ndisc.c).

use std::net::IpAddr;

use crate::{
    mirror::{
        facts::{AddressFacts, FormerLladdr, NeighbourFact},
        links::LinkState,
    },
    model::{
        Claimant, ClaimantId, Evidence, EvidenceDetail, EvidenceKind, IfIndex, Mac, NudState,
        Scope, Timestamp, Vlan,
    },
    rules::{
        claimants::{ClaimContext, Draft, Drafts, Strength, Support},
        evidence::neighbour_evidence,
    },
};

impl ClaimContext<'_> {
    /// Adds what a neighbour entry on a bridge supports.
    pub(crate) fn add_bridge_entry(
        &self,
        address: IpAddr,
        bridge: &LinkState,
        entry: &NeighbourFact,
        facts: &AddressFacts,
        now: Timestamp,
        drafts: &mut Drafts,
    ) {
        let scope = self.scope(address, Vlan::default(), bridge);
        let bridge = entry.ifindex;
        let port = self.pod_port(bridge, entry.lladdr);
        if let Some(link) = port.filter(|link| self.claims_itself(scope, link, facts, drafts)) {
            self.add_entry(address, scope, entry, link, facts, drafts);
        } else if entry.state == NudState::Permanent {
            match self.permanent_holder(scope, entry, port, drafts) {
                Some(link) => self.add_entry(address, scope, entry, link, facts, drafts),
                None => {
                    self.add_behind_bridge(drafts, scope, bridge, neighbour_evidence(entry));
                }
            }
        } else if port.is_some_and(|link| {
            !self.is_authoritative(link, address)
                && self.supports_claim(address, entry, link, facts)
                && !self.is_explained(scope, bridge, drafts)
        }) {
            self.add_behind_bridge(drafts, scope, bridge, neighbour_evidence(entry));
        }
        let flapping = entry
            .former
            .iter()
            .filter(|f| f.flapped && now.since(f.seen.last) < self.settings.flap_window);
        for former in flapping {
            // Without a forwarding entry, it is no claim: a port that was just removed leaves the
            // same behind.
            let Some(link) = self.pod_port(bridge, former.mac) else {
                continue;
            };
            let evidence = flapping_evidence(former);
            if self.claims_itself(scope, link, facts, drafts) {
                let strength = Strength::Full;
                let support = Support {
                    scope,
                    link,
                    strength,
                    evidence,
                };
                self.add(drafts, support);
            } else if !self.is_authoritative(link, address)
                && !self.is_explained(scope, bridge, drafts)
            {
                self.add_behind_bridge(drafts, scope, bridge, evidence);
            }
        }
    }

    fn add_entry(
        &self,
        address: IpAddr,
        scope: Scope,
        entry: &NeighbourFact,
        link: &LinkState,
        facts: &AddressFacts,
        drafts: &mut Drafts,
    ) {
        if let Some(support) = self.neighbour_support(address, scope, entry, link, facts) {
            self.add(drafts, support);
        }
    }

    /// Whether an entry on a bridge, as the only fact about the address, is a claim.
    pub(crate) fn is_claim_behind_bridge(
        &self,
        address: IpAddr,
        entry: &NeighbourFact,
        facts: &AddressFacts,
    ) -> bool {
        let bridge = entry.ifindex;
        let port = self.pod_port(bridge, entry.lladdr);
        entry.state == NudState::Permanent
            || port.is_some_and(|link| {
                !self.is_authoritative(link, address)
                    && self.supports_claim(address, entry, link, facts)
            })
    }

    fn pod_port(&self, bridge: IfIndex, mac: Mac) -> Option<&LinkState> {
        let port = self.mirror.fdb.port(bridge, mac)?;
        self.mirror.links.pod(port)
    }

    /// Whether a pod claims the address by more than what others may have written: it has it, or
    /// frames that claim it came in on the device.
    fn claims_itself(
        &self,
        scope: Scope,
        link: &LinkState,
        facts: &AddressFacts,
        drafts: &Drafts,
    ) -> bool {
        let id = link.id();
        let has_claim = |draft: &Draft| draft.is_of(scope, id) && draft.strength == Strength::Full;
        facts.is_held_by(&link.link) || drafts.iter().any(has_claim)
    }

    /// The holder of the address in a `PERMANENT` entry whose port does not claim it by itself: the
    /// node's administrator wrote the entry, but a frame may have moved its hardware address to the
    /// port. That of the pod's interface did not come from a frame.
    fn permanent_holder<'l>(
        &'l self,
        scope: Scope,
        entry: &NeighbourFact,
        port: Option<&'l LinkState>,
        drafts: &Drafts,
    ) -> Option<&'l LinkState> {
        let has_mac = |link: &&LinkState| link.peer_mac == Some(entry.lladdr);
        let full = drafts.iter().filter(|d| d.strength == Strength::Full);
        let claiming = full.filter_map(|draft| match draft.claimant.id {
            ClaimantId::Device(ifindex, _) if draft.scope == scope => {
                let is_port = self.mirror.links.bridge_of(ifindex) == Some(entry.ifindex);
                self.mirror.links.pod(ifindex).filter(|_| is_port)
            }
            _ => None,
        });
        let holders = claiming.filter(has_mac);
        let is_possible = |link: &&LinkState| link.peer_mac.is_none() || has_mac(link);
        let first = holders.min_by_key(|link| link.link.ifindex);
        first.or(port.filter(is_possible))
    }

    /// Whether a port of the bridge claims the address in frames alone: it may have written any
    /// entry for the address.
    fn is_explained(&self, scope: Scope, bridge: IfIndex, drafts: &Drafts) -> bool {
        let claims_in_frames = |draft: &Draft| {
            let evidence = || draft.claimant.evidence.iter();
            draft.strength == Strength::Full
                && evidence().any(|e| matches!(e.kind, EvidenceKind::Arp | EvidenceKind::Ndp))
                && !evidence().any(Evidence::is_on_device)
        };
        drafts.iter().any(|draft| {
            let port = draft.claimant.id.device().map(|(ifindex, _)| ifindex);
            let is_port = port.and_then(|port| self.mirror.links.bridge_of(port)) == Some(bridge);
            draft.scope == scope && is_port && claims_in_frames(draft)
        })
    }

    /// A claim of a hardware address behind a bridge, by evidence that contains it.
    fn add_behind_bridge(
        &self,
        drafts: &mut Drafts,
        scope: Scope,
        bridge: IfIndex,
        evidence: Evidence,
    ) {
        let (Some(link), Some(mac)) = (self.mirror.links.get(bridge), evidence.mac) else {
            return;
        };
        let id = ClaimantId::BehindBridge(bridge, mac);
        let claimant = Claimant {
            evidence: vec![evidence],
            master: Some(link.link.name.clone()),
            peer: None,
            ..self.claimant(id, link)
        };
        drafts.retain(|draft| !draft.is_of(scope, id));
        drafts.push(Draft {
            scope,
            claimant,
            strength: Strength::Full,
        });
    }
}

fn flapping_evidence(former: &FormerLladdr) -> Evidence {
    Evidence {
        kind: EvidenceKind::Neighbour,
        seen: former.seen,
        mac: Some(former.mac),
        detail: Some(EvidenceDetail::Flapping),
    }
}
