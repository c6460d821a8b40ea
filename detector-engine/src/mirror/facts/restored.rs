//! When evidence began, as an earlier run of the agent knew it.

use std::net::IpAddr;

use crate::{
    mirror::facts::{Assigned, AssignedOn, Facts},
    model::{Claimant, ClaimantId, Evidence, EvidenceKind, IfIndex, Peer, Seen},
};

impl Facts {
    /// Continues with what an earlier run knew of the beginning of a claim. `claimant` is as it was then, with its
    /// present identity; its device has this peer and is a port of this bridge. Frames are restored on their own.
    pub(crate) fn restore_beginnings(
        &mut self,
        address: IpAddr,
        claimant: &Claimant,
        (peer, bridge): (Option<Peer>, Option<IfIndex>),
    ) {
        let Some(facts) = self.by_address.get_mut(&address) else {
            return;
        };
        let (device, mac_behind) = match claimant.id {
            ClaimantId::Host => {
                let known = evidence(claimant, EvidenceKind::Address, |_| true);
                let on_node = |a: &&mut Assigned| matches!(a.on, AssignedOn::Node(_));
                for host in facts.assigned.iter_mut().filter(on_node) {
                    continue_from(claimant, known, &mut host.seen);
                }
                return;
            }
            ClaimantId::Device(device, _) => (device, None),
            ClaimantId::BehindBridge(bridge, mac) => (bridge, Some(mac)),
            ClaimantId::Registered(_) => return,
        };
        let in_pod = |a: &&mut Assigned| a.peer().is_some() && a.peer() == peer;
        for assigned in facts.assigned.iter_mut().filter(in_pod) {
            let is_internal = assigned.internal_interface().is_some();
            let is_it = |e: &Evidence| e.is_on_internal_interface() == is_internal;
            let known = evidence(claimant, EvidenceKind::Address, is_it);
            continue_from(claimant, known, &mut assigned.seen);
        }
        for entry in &mut facts.neighbours {
            let lladdr = entry.lladdr;
            let known = evidence(claimant, EvidenceKind::Neighbour, |e| e.mac == Some(lladdr));
            // An entry on a bridge belongs to the port that its hardware address is behind.
            let is_own = entry.ifindex == device && mac_behind.is_none_or(|mac| mac == lladdr);
            if is_own || (known.is_some() && Some(entry.ifindex) == bridge) {
                continue_from(claimant, known, &mut entry.seen);
            }
        }
    }
}

fn evidence(
    claimant: &Claimant,
    kind: EvidenceKind,
    is_it: impl Fn(&Evidence) -> bool,
) -> Option<&Evidence> {
    let mut evidence = claimant.evidence.iter();
    evidence.find(|e| e.kind == kind && is_it(e))
}

/// The fact is the evidence that the claimant had, or else no older than its claim.
fn continue_from(claimant: &Claimant, known: Option<&Evidence>, seen: &mut Seen) {
    match known {
        Some(known) if known.seen.first <= seen.first => {
            (seen.first, seen.beginning) = (known.seen.first, known.seen.beginning);
        }
        _ => {
            let earliest = match claimant.beginning.is_known() {
                true => Some(claimant.since),
                false => claimant.beginning.not_before,
            };
            seen.beginning.not_before = seen.beginning.not_before.max(earliest);
        }
    }
}
