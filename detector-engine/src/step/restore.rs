//! Restores what an earlier agent of the same boot left open (`docs/detection-rules.md`, section
//! 13).
//!
//! Restored conflicts are held back until the first full snapshot is merged. Until then nothing is
//! decided about their addresses, so that no live update raises a conflict that is already open.
//! Then each conflict is opened again, its evidence that the kernel does not hold is restored for
//! devices that still exist, its claimants keep the times since when they claim it, and the rules decide: it continues without an event, is updated, or is
//! resolved.

use std::net::IpAddr;

use crate::{
    hash::HashSet,
    limits::{
        in_flight_snapshots::{FinishedSnapshot, StateKey},
        reads::ReadTarget,
    },
    mirror::{StoreOutcome, facts::Owner, links::LinkState},
    model::{
        Anomaly, AnomalyId, AnomalyKind, BoundKind, Claimant, ClaimantId, Conflict, DeviceKey,
        FrameFact, IfIndex, LinkName, OpenConflict, Peer, PersistedFormerLladdr, PersistedFrame,
        Scope, Timestamp, Vlan,
    },
    step::Engine,
};

/// Conflicts held back until the first full snapshot.
#[derive(Debug, Default)]
pub(super) struct RestoredConflicts {
    conflicts: Vec<OpenConflict>,
    addresses: HashSet<IpAddr>,
}

impl RestoredConflicts {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.conflicts.is_empty()
    }

    pub(super) fn records(&self) -> &[OpenConflict] {
        &self.conflicts
    }
}

/// Never assigned to a link: stands for a link that is gone.
const NO_LINK: IfIndex = 0;
const NO_GENERATION: u64 = 0;

impl Engine {
    /// Restores what an earlier agent of the same boot left open. To be called before the first
    /// observation.
    pub fn restore(&mut self, conflicts: Vec<OpenConflict>, anomalies: Vec<Anomaly>) {
        let restored = &mut self.tracked.restored;
        let addresses = conflicts.iter().map(|record| record.conflict.address);
        restored.addresses.extend(addresses);
        restored.conflicts.extend(conflicts);
        self.tracked.anomalies.restore(anomalies);
    }

    /// One open conflict in its persisted form; `None` if it is no longer open.
    pub(super) fn open_record(&self, conflict: &Conflict) -> Option<OpenConflict> {
        let mut open = self.tracked.lifecycle.open_of(conflict.address);
        let (scope, open) = open.find(|(_, open)| open.id == conflict.id)?;
        let address = conflict.address;
        let facts = self.mirror.facts.get(address);
        let claims = |ifindex| {
            let mut present = conflict.present();
            present.any(|c| matches!(c.id, ClaimantId::Device(i, _) if i == ifindex))
        };
        let frames = facts.into_iter().flat_map(|f| &f.frames);
        let context = self.claim_context();
        let is_in_scope = |vlan, ifindex| {
            let link = self.mirror.links.get(ifindex);
            link.is_some_and(|link| context.scope(address, vlan, link) == scope)
        };
        let frames = frames.filter(|f| is_in_scope(f.vlan, f.ifindex) && claims(f.ifindex));
        let neighbours = facts.into_iter().flat_map(|f| &f.neighbours);
        let former = neighbours.filter(|n| is_in_scope(Vlan::default(), n.ifindex));
        let id = conflict.id;
        Some(OpenConflict {
            has_unreported_change: self.tracked.lifecycle.has_unreported_change(address, id),
            conflict: Conflict {
                reported: open.reported.clone(),
                ..conflict.clone()
            },
            domain: scope.network.link().map(|link| {
                // Of a conflict that is over and may begin again, the link may be gone: its scope must not become the node's.
                let gone = LinkName {
                    name: String::new(),
                    ifindex: NO_LINK,
                };
                self.link_name(link).unwrap_or(gone)
            }),
            frames: frames.filter_map(|f| self.persisted_frame(f)).collect(),
            former: former
                .flat_map(|n| {
                    n.former
                        .iter()
                        .filter(|f| f.flapped)
                        .map(|f| (n.ifindex, f))
                })
                .filter_map(|(bridge, f)| {
                    Some(PersistedFormerLladdr {
                        bridge: self.link_name(bridge)?,
                        mac: f.mac,
                        seen: f.seen,
                    })
                })
                .collect(),
            moves: self.tracked.moves.to_record(address, scope),
        })
    }

    fn persisted_frame(&self, frame: &FrameFact) -> Option<PersistedFrame> {
        Some(PersistedFrame {
            device: self.link_name(frame.ifindex)?,
            peer: self.mirror.links.get(frame.ifindex)?.link.peer,
            fact: FrameFact {
                ifindex: NO_LINK,
                ..frame.clone()
            },
        })
    }

    fn link_name(&self, ifindex: IfIndex) -> Option<LinkName> {
        let name = self.mirror.links.get(ifindex)?.link.name.clone();
        Some(LinkName { ifindex, name })
    }

    /// The first full snapshot is merged: restored conflicts are opened again, to be decided with
    /// everything else.
    pub(super) fn apply_restored(&mut self, finished: &FinishedSnapshot, at: Timestamp) {
        for mut restored in std::mem::take(&mut self.tracked.restored).conflicts {
            let address = restored.conflict.address;
            for frame in restored.frames {
                self.restore_frame(address, frame, finished);
            }
            for former in restored.former {
                if self.is_same_link(&former.bridge.name, former.bridge.ifindex) {
                    self.mirror.facts.restore_former_lladdr(
                        former.bridge.ifindex,
                        address,
                        former.mac,
                        former.seen,
                    );
                }
            }
            let domain = restored.domain.map(|domain| {
                let still = self.is_same_link(&domain.name, domain.ifindex);
                if still { domain.ifindex } else { NO_LINK }
            });
            for claimant in &mut restored.conflict.claimants {
                claimant.id = self.current_id(claimant);
            }
            self.restore_beginnings(&restored.conflict);
            let scope = Scope {
                network: self.restore_network(&restored.conflict, domain),
                vlan: restored.conflict.vlan,
            };
            if let Some(mut moves) = restored.moves {
                for (_, claimant) in &mut moves.participants {
                    claimant.id = self.current_id(claimant);
                }
                self.tracked.moves.restore(address, scope, moves);
            }
            // A damaged file may contain one twice.
            if self
                .tracked
                .lifecycle
                .open_of(address)
                .all(|(s, _)| s != scope)
            {
                let has_unreported_change = restored.has_unreported_change;
                self.tracked
                    .lifecycle
                    .restore(scope, restored.conflict, has_unreported_change);
            }
            // Expire what is over by now, and schedule the next check.
            self.expire_claims(address, at);
        }
    }

    fn restore_frame(
        &mut self,
        address: IpAddr,
        restored: PersistedFrame,
        finished: &FinishedSnapshot,
    ) {
        let device = restored.device.ifindex;
        let Some(link) = self.surviving_pod(&restored.device.name, device, restored.peer) else {
            return;
        };
        // The address may have been removed while the device was not known yet.
        let untagged = restored.fact.vlan == Vlan::default();
        if let Some(peer) = link.link.peer.or(restored.peer).filter(|_| untagged)
            && finished.is_outdated(&StateKey::Address(Owner::Peer(peer), address))
            && !self
                .mirror
                .facts
                .get(address)
                .is_some_and(|f| f.is_assigned_on(peer))
        {
            return;
        }
        let fact = FrameFact {
            ifindex: device,
            ..restored.fact
        };
        if self.mirror.facts.add_frame(fact, address, restored.peer) == StoreOutcome::Refused {
            self.drops.claims += 1;
            self.refused(ReadTarget::Device(device), BoundKind::FrameClaims);
        }
    }

    /// Continues with what is known of when the claims began. Tagged ones are seen in frames alone, which are restored with
    /// their times.
    fn restore_beginnings(&mut self, conflict: &Conflict) {
        let claimants = conflict
            .present()
            .filter(|_| conflict.vlan == Vlan::default());
        for claimant in claimants {
            if matches!(claimant.id, ClaimantId::Device(_, NO_GENERATION)) {
                continue;
            }
            let link = self.mirror.links.get(claimant.ifindex);
            let peer = link.and_then(|l| l.link.peer);
            let bridge = self.mirror.links.bridge_of(claimant.ifindex);
            self.mirror
                .facts
                .restore_beginnings(conflict.address, claimant, (peer, bridge));
        }
    }

    /// The present identity of a restored claimant; one that matches nothing if its device is gone.
    fn current_id(&self, claimant: &Claimant) -> ClaimantId {
        match claimant.id {
            ClaimantId::Host | ClaimantId::Registered(_) => claimant.id,
            ClaimantId::Device(ifindex, _) => {
                let still = self.surviving_pod(&claimant.device, ifindex, claimant.peer);
                ClaimantId::Device(ifindex, still.map_or(NO_GENERATION, |l| l.generation))
            }
            ClaimantId::BehindBridge(bridge, mac) => {
                let still = self.is_same_link(&claimant.device, bridge);
                ClaimantId::BehindBridge(if still { bridge } else { NO_LINK }, mac)
            }
        }
    }

    /// The pod device of that index, if it is the same one. A device without a peer may be: its pod
    /// is going, and another device may already have the number of its namespace.
    fn surviving_pod(
        &self,
        name: &str,
        ifindex: IfIndex,
        peer: Option<Peer>,
    ) -> Option<&LinkState> {
        let another = |now: Option<Peer>| peer.is_some() && now.is_some() && now != peer;
        self.mirror
            .links
            .pod(ifindex)
            .filter(|l| l.link.name == name && !another(l.link.peer))
    }

    /// The anomalies of this kind of the previous run whose device still exists, with its present identity.
    pub(super) fn surviving(&self, kind: AnomalyKind) -> Vec<(AnomalyId, DeviceKey)> {
        let restored = self.tracked.anomalies.open();
        let surviving = restored.filter_map(|anomaly| {
            let holder = anomaly.holder.as_ref().filter(|_| anomaly.kind == kind)?;
            let link = self.surviving_pod(&holder.device, holder.ifindex, holder.peer)?;
            Some((anomaly.id, link.key()))
        });
        surviving.collect()
    }

    fn is_same_link(&self, name: &str, ifindex: IfIndex) -> bool {
        self.mirror
            .links
            .get(ifindex)
            .is_some_and(|l| l.link.name == name)
    }
}
