//! Decides which facts are live, turns them into evidence, and summarises a claimant's evidence
//! (`docs/detection-rules.md`, sections 4 to 7).

use std::{net::IpAddr, time::Duration};

use crate::{
    mirror::{
        facts::{AddressFacts, NeighbourFact},
        links::{LinkState, NamespaceAccess},
    },
    model::{
        Beginning, Claimant, ClaimantId, Evidence, EvidenceDetail, EvidenceKind, FrameFact,
        FrameKind, NudState, Timestamp, Vlan,
    },
    rules::claimants::ClaimContext,
};

/// How long a probe counts if no real claim follows. RFC 5227 §2.1.1: a host gives up or announces
/// within ten seconds.
const TENTATIVE_TTL: Duration = Duration::from_secs(60);

impl Claimant {
    /// Sorts the evidence and derives `since`, `beginning` and `mac` from it.
    pub(crate) fn summarize(&mut self) {
        self.evidence.sort_by_key(|e| (e.kind, e.seen.first));
        if let Some((since, beginning)) = Beginning::of_claim(&self.evidence) {
            (self.since, self.beginning) = (since, beginning);
        }
        self.mac = self
            .evidence
            .iter()
            .filter(|e| e.mac.is_some())
            .max_by_key(|e| e.seen.last)
            .and_then(|e| e.mac);
    }

    /// Whether the interface with the address has another hardware address than `before`. In frames and neighbour entries a
    /// pod can have another one each time: those are reported with the next change.
    pub(crate) fn has_other_mac(&self, before: &Self) -> bool {
        matches!(self.id, ClaimantId::Device(..))
            && self.assigned().any(|now| {
                let mut same = before.assigned().filter(|e| e.detail == now.detail);
                now.mac.is_some() && same.any(|e| e.mac.is_some() && e.mac != now.mac)
            })
    }

    /// Keeps what records had about the claim while they are not known again, as after a restart.
    pub(crate) fn keep_records(&mut self, before: &Self) {
        self.rightful = self.rightful.or(before.rightful);
        self.allocated = self.allocated.or(before.allocated);
    }

    fn assigned(&self) -> impl Iterator<Item = &Evidence> {
        let evidence = self.evidence.iter();
        evidence.filter(|e| e.kind == EvidenceKind::Address)
    }

    /// Its certain evidence, see [`Evidence::is_certain`].
    pub fn certain_evidence(&self) -> impl Iterator<Item = &Evidence> {
        self.evidence.iter().filter(|e| e.is_certain())
    }

    fn has(&self, wanted: impl Fn(&Evidence) -> bool) -> bool {
        self.evidence.iter().any(wanted)
    }

    /// Whether the address is in its evidence as assigned.
    pub(crate) fn has_address(&self) -> bool {
        self.has(|e| e.kind == EvidenceKind::Address)
    }

    /// Whether the address is assigned, and only because a router advertised its prefix.
    pub(crate) fn is_autoconfigured(&self) -> bool {
        let is = |e: &Evidence| e.detail == Some(EvidenceDetail::Autoconfigured);
        self.has_address() && self.assigned().all(is)
    }

    /// Whether it has certain evidence: an assigned address, or a `PERMANENT` neighbour entry
    /// (`docs/detection-rules.md`, section 7).
    pub(crate) fn is_certain(&self) -> bool {
        self.has(Evidence::is_certain)
    }
}

impl Evidence {
    /// Whether the pod's end of the device has the address.
    pub(crate) fn is_on_device(&self) -> bool {
        self.kind == EvidenceKind::Address && !self.is_on_internal_interface()
    }

    /// Whether it is certain, see [`EvidenceKind::is_certain`].
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.kind.is_certain(self.detail.as_ref())
    }
}

impl ClaimContext<'_> {
    /// Whether the pod's namespace shows if the pod has `address`: it can be read, and the stack
    /// that answers on the device is the kernel's. If the interface has no address of that kind at
    /// all, the stack is a program's: gVisor takes over the addresses of the interface, and so does
    /// a virtual machine.
    pub(crate) fn is_authoritative(&self, link: &LinkState, address: IpAddr) -> bool {
        let mut peer = link.link.peer.into_iter();
        link.is_namespace_readable() && peer.any(|p| self.mirror.facts.has_address_like(p, address))
    }

    /// Whether a neighbour entry on a pod device supports a claim now. An entry that is not
    /// confirmed is refuted by an authoritative namespace without the address: the kernel keeps
    /// such entries for hours.
    pub(crate) fn supports_claim(
        &self,
        address: IpAddr,
        entry: &NeighbourFact,
        link: &LinkState,
        facts: &AddressFacts,
    ) -> bool {
        let is_assigned = facts.is_held_by(&link.link);
        match entry.state {
            NudState::Permanent => true,
            NudState::Reachable => is_assigned || !entry.refuted,
            NudState::Stale | NudState::Delay | NudState::Probe => {
                let was_confirmed = entry.confirmed || !link.is_namespace_readable();
                let is_refuted = entry.refuted || self.is_authoritative(link, address);
                is_assigned || (was_confirmed && !is_refuted)
            }
            // The kernel creates `NOARP` entries for anything sent over a device without ARP and
            // for broadcasts: they show where the node sends, not who is there.
            NudState::NoArp | NudState::Invalid => false,
        }
    }

    /// Whether a frame's claim is live: until it expires, as long as the address is assigned in the
    /// pod, or if nothing but the device itself can end it.
    pub(crate) fn is_frame_live(
        &self,
        address: IpAddr,
        frame: &FrameFact,
        link: &LinkState,
        facts: &AddressFacts,
        now: Timestamp,
    ) -> bool {
        let is_assigned = || facts.is_held_by(&link.link);
        let is_held = || {
            self.has_no_expiry(link, frame.vlan, address)
                && !self.is_superseded(address, frame, facts)
        };
        // A tagged claim is about another link of the pod than the one whose addresses are read.
        let is_untagged = frame.vlan == Vlan::default();
        self.expires_at(frame) > now
            || (!frame.tentative && ((is_untagged && is_assigned()) || is_held()))
    }

    /// Whether frames of a device stay evidence although they are not repeated: no namespace shows
    /// that the pod no longer has the address.
    fn has_no_expiry(&self, link: &LinkState, vlan: Vlan, address: IpAddr) -> bool {
        match link.namespace_access {
            // A namespace is read as soon as it is known.
            NamespaceAccess::Unknown => link.link.is_tap,
            NamespaceAccess::Readable | NamespaceAccess::Unreadable => {
                vlan == Vlan::default() && !self.is_authoritative(link, address)
            }
        }
    }

    /// Whether the machine that sent a frame is behind another device by now: a newer claim there
    /// has the same hardware address, and nothing is behind the former device any more, as its
    /// carrier shows. The claim alone proves nothing: any pod can send frames with another one's
    /// address and hardware address.
    fn is_superseded(&self, address: IpAddr, frame: &FrameFact, facts: &AddressFacts) -> bool {
        !self.mirror.links.is_running(frame.ifindex)
            && facts.frames.iter().any(|other| {
                let link = self.mirror.links.pod(other.ifindex);
                (other.mac, other.vlan) == (frame.mac, frame.vlan)
                    && other.ifindex != frame.ifindex
                    && !other.tentative
                    && other.seen.last > frame.seen.last
                    && link.is_some_and(|link| self.has_no_expiry(link, other.vlan, address))
            })
    }

    /// When a frame's claim expires, unless the address is assigned.
    pub(crate) fn expires_at(&self, frame: &FrameFact) -> Timestamp {
        let ttl = if frame.tentative {
            TENTATIVE_TTL
        } else {
            self.settings.claim_ttl
        };
        frame.seen.last + ttl
    }
}

pub(crate) fn neighbour_evidence(entry: &NeighbourFact) -> Evidence {
    Evidence {
        kind: EvidenceKind::Neighbour,
        seen: entry.seen,
        mac: Some(entry.lladdr),
        detail: Some(EvidenceDetail::State(entry.state)),
    }
}

pub(crate) fn frame_evidence(frame: &FrameFact) -> Evidence {
    let sent_by = (frame.ether_source != frame.mac).then_some(frame.ether_source);
    let is_notable = frame.tentative || sent_by.is_some();
    Evidence {
        kind: match frame.kind {
            FrameKind::Arp => EvidenceKind::Arp,
            FrameKind::Ndp => EvidenceKind::Ndp,
        },
        seen: frame.seen,
        mac: Some(frame.mac),
        detail: is_notable.then_some(EvidenceDetail::Frame {
            probe: frame.tentative,
            sent_by,
        }),
    }
}
