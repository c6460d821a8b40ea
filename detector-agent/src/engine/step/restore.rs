//! Goes on where an earlier agent of the same boot ended.
//!
//! What was kept is held until the first reading of everything is merged; until then nothing is decided about the
//! addresses in it, so that no live word raises anew what is open. Then each kept conflict is made open again, its
//! evidence that the kernel does not hold is put back for the devices that are still there, and the rules decide: it goes
//! on without a word, is told as updated where it changed, or is resolved.

use std::{collections::HashSet, net::IpAddr};

use super::Engine;
use crate::engine::{
    conflict::{Claimant, ClaimantId, Conflict},
    facts::{FrameFact, Stored},
    in_flight_snapshots::Finished,
    links::LinkState,
    observation::{IfIndex, Peer, Timestamp, Vlan},
    record::{KeptFormer, KeptFrame, LinkName, OpenConflict},
    scope::Scope,
};

/// What is held until the first reading of everything.
#[derive(Debug, Default)]
pub(super) struct Held {
    kept: Vec<OpenConflict>,
    addresses: HashSet<IpAddr>,
}

impl Held {
    pub(super) fn holds(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

/// No link has these: what has them is gone.
const NO_LINK: IfIndex = 0;
const NO_GENERATION: u64 = 0;

impl Engine {
    /// Goes on with what an earlier agent of the same boot kept. To be called before the first observation.
    pub fn restore(&mut self, kept: Vec<OpenConflict>) {
        self.held.addresses = kept.iter().map(|k| k.conflict.address).collect();
        self.held.kept = kept;
    }

    /// Whether restored conflicts still wait for the first reading of everything.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        !self.held.kept.is_empty()
    }

    /// Every open conflict as it is to be kept, those that wait for the first reading included.
    #[must_use]
    pub fn open_records(&self, now: Timestamp) -> Vec<OpenConflict> {
        let mut records = self.held.kept.clone();
        for address in self.conflict_addresses() {
            for conflict in self.conflicts_of(address, now) {
                records.extend(self.open_record(&conflict));
            }
        }
        records
    }

    /// One open conflict as it is to be kept; `None` where it is no longer open.
    #[must_use]
    pub fn open_record(&self, conflict: &Conflict) -> Option<OpenConflict> {
        let mut open = self.lifecycle.open_of(conflict.address);
        let (scope, _) = open.find(|(_, open)| open.id == conflict.id)?;
        let address = conflict.address;
        let facts = self.facts.get(address);
        let claims = |ifindex| {
            let mut present = conflict.present();
            present.any(|c| matches!(c.id, ClaimantId::Device(i, _) if i == ifindex))
        };
        let frames = facts.into_iter().flat_map(|f| &f.frames);
        let frames = frames.filter(|f| f.vlan == scope.vlan && claims(f.ifindex));
        let neighbours = facts.into_iter().flat_map(|f| &f.neighbours);
        let former = neighbours.filter(|_| scope.vlan == Vlan::default());
        Some(OpenConflict {
            conflict: conflict.clone(),
            domain: scope.domain.and_then(|domain| self.link_name(domain)),
            frames: frames.filter_map(|f| self.kept_frame(f)).collect(),
            former: former
                .flat_map(|n| {
                    n.former
                        .iter()
                        .filter(|f| f.flapped)
                        .map(|f| (n.ifindex, f))
                })
                .filter_map(|(bridge, f)| {
                    Some(KeptFormer {
                        bridge: self.link_name(bridge)?,
                        mac: f.mac,
                        first: f.first,
                        last: f.last,
                    })
                })
                .collect(),
            moves: self.moves.kept(address, scope),
        })
    }

    fn kept_frame(&self, frame: &FrameFact) -> Option<KeptFrame> {
        Some(KeptFrame {
            device: self.link_name(frame.ifindex)?,
            peer: self.links.get(frame.ifindex)?.link.peer,
            vlan: frame.vlan,
            kind: frame.kind,
            mac: frame.mac,
            ether_source: frame.ether_source,
            tentative: frame.tentative,
            first: frame.first,
            last: frame.last,
        })
    }

    fn link_name(&self, ifindex: IfIndex) -> Option<LinkName> {
        let name = self.links.get(ifindex)?.link.name.clone();
        Some(LinkName { ifindex, name })
    }

    /// The first reading of everything is merged: what was kept is open again, to be decided with all else.
    pub(super) fn adopt(&mut self, finished: &Finished, at: Timestamp) {
        for mut kept in std::mem::take(&mut self.held).kept {
            let address = kept.conflict.address;
            for frame in kept.frames {
                self.hear_again(address, frame, finished);
            }
            for former in kept.former {
                if self.is_still(&former.bridge.name, former.bridge.ifindex) {
                    self.facts.held_before(
                        former.bridge.ifindex,
                        address,
                        former.mac,
                        (former.first, former.last),
                    );
                }
            }
            let domain = kept.domain.map(|domain| {
                let still = self.is_still(&domain.name, domain.ifindex);
                if still { domain.ifindex } else { NO_LINK }
            });
            let scope = Scope {
                vlan: kept.conflict.vlan,
                domain,
            };
            for claimant in &mut kept.conflict.claimants {
                claimant.id = self.present_id(claimant);
            }
            if let Some(mut moves) = kept.moves {
                for (_, claimant) in &mut moves.participants {
                    claimant.id = self.present_id(claimant);
                }
                self.moves.go_on(address, scope, moves);
            }
            // A damaged file may name one twice.
            if self.lifecycle.open_of(address).all(|(s, _)| s != scope) {
                self.lifecycle.go_on(scope, kept.conflict);
            }
            // What is over by now ends, and the next look is planned.
            self.lapse(address, at);
        }
    }

    fn hear_again(&mut self, address: IpAddr, kept: KeptFrame, finished: &Finished) {
        let device = kept.device.ifindex;
        let Some(link) = self.still_pod(&kept.device.name, device, kept.peer) else {
            return;
        };
        // The address may have been removed while the device was not known yet.
        let untagged = kept.vlan == Vlan::default();
        if let Some(peer) = link.link.peer.or(kept.peer).filter(|_| untagged)
            && finished.told_of(peer, address)
            && !self.facts.get(address).is_some_and(|f| f.assigned_on(peer))
        {
            return;
        }
        let fact = FrameFact {
            ifindex: device,
            vlan: kept.vlan,
            kind: kept.kind,
            mac: kept.mac,
            ether_source: kept.ether_source,
            tentative: kept.tentative,
            first: kept.first,
            last: kept.last,
        };
        if self.facts.frame(fact, address, &self.settings.bounds) == Stored::Refused {
            self.drops.claims += 1;
        }
    }

    /// The identity that a claimant of the earlier agent has now; one that nobody has where it is gone.
    fn present_id(&self, claimant: &Claimant) -> ClaimantId {
        match claimant.id {
            ClaimantId::Host => ClaimantId::Host,
            ClaimantId::Device(ifindex, _) => {
                let still = self.still_pod(&claimant.device, ifindex, claimant.peer);
                ClaimantId::Device(ifindex, still.map_or(NO_GENERATION, |l| l.generation))
            }
            ClaimantId::BehindBridge(bridge, mac) => {
                let still = self.is_still(&claimant.device, bridge);
                ClaimantId::BehindBridge(if still { bridge } else { NO_LINK }, mac)
            }
        }
    }

    /// The pod device of that index, if it is the one it was. One whose peer is not told any more is: its pod goes, and
    /// another device may have the number of the pod's namespace already.
    fn still_pod(&self, name: &str, ifindex: IfIndex, peer: Option<Peer>) -> Option<&LinkState> {
        let another = |now: Option<Peer>| peer.is_some() && now.is_some() && now != peer;
        self.links
            .pod(ifindex)
            .filter(|l| l.link.name == name && !another(l.link.peer))
    }

    fn is_still(&self, name: &str, ifindex: IfIndex) -> bool {
        self.links.get(ifindex).is_some_and(|l| l.link.name == name)
    }
}
