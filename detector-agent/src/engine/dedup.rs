//! Claimants that are another one seen a second time.

use super::{
    conflict::{Claimant, ClaimantId},
    observation::Mac,
};

/// A pod with several interfaces answers for any of its addresses on each of them (arp_ignore 0), and asks with any as
/// sender (arp_announce 0). What was only heard there is no claim of its own where another interface of the same pod has
/// the address for certain; where none has, all of it is one claim, shown at the first of the interfaces.
pub(super) fn drop_same_pod_claims(claimants: &mut Vec<Claimant>) {
    let interfaces: Vec<_> = claimants
        .iter()
        .filter_map(|c| Some((c.peer?.nsid, c.is_certain(), c.id)))
        .collect();
    claimants.retain(|c| {
        let spilled_from = |(nsid, certain, id): &(_, bool, _)| {
            c.peer.is_some_and(|peer| peer.nsid == *nsid) && (*certain || *id < c.id)
        };
        c.is_certain() || !interfaces.iter().any(spilled_from)
    });
}

/// A hardware address behind a bridge that a claimant's own evidence gives too is that claimant.
pub(super) fn drop_resolved_bridge_claims(claimants: &mut Vec<Claimant>) {
    let known: Vec<Mac> = claimants
        .iter()
        .filter(|c| matches!(c.id, ClaimantId::Device(..)))
        .flat_map(|c| c.evidence.iter().filter_map(|e| e.mac))
        .collect();
    claimants.retain(|c| !matches!(c.id, ClaimantId::BehindBridge(_, mac) if known.contains(&mac)));
}
