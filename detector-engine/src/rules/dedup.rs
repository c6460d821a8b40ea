//! Removes claimants that are another claimant seen a second time.

use crate::{
    mirror::links::Links,
    model::{Claimant, ClaimantId, Mac},
};

/// Removes claims that another interface of the same pod explains (`docs/detection-rules.md`,
/// section 10).
///
/// A pod answers for any of its addresses on each of its interfaces (`arp_ignore` 0), and sends
/// requests with any of them as the sender (`arp_announce` 0). Evidence that is not certain is
/// therefore no claim of its own if another interface of the same pod has certain evidence. If none
/// has, all of it is one claim, shown at the first interface.
pub(crate) fn drop_same_pod_claims(claimants: &mut Vec<Claimant>, links: &Links) {
    let interfaces: Vec<_> = claimants
        .iter()
        .map(|c| (links.pod_identity(c.id), c.is_certain(), c.id))
        .collect();
    let is_explained = |(pod, is_certain, id): &(_, bool, _)| {
        let mut others = interfaces.iter();
        let explains = |(other, certain, first): &_| other == pod && (*certain || first < id);
        !is_certain && others.any(explains)
    };
    let mut each = interfaces.iter();
    claimants.retain(|_| !each.next().is_some_and(is_explained));
}

/// Removes a hardware address behind a bridge if it is also in the evidence of a device: it is that
/// device.
pub(crate) fn drop_resolved_bridge_claims(claimants: &mut Vec<Claimant>) {
    let is_behind_bridge = |c: &Claimant| matches!(c.id, ClaimantId::BehindBridge(..));
    if !claimants.iter().any(is_behind_bridge) {
        return;
    }
    let known: Vec<Mac> = claimants
        .iter()
        .filter(|c| matches!(c.id, ClaimantId::Device(..)))
        .flat_map(|c| c.evidence.iter().filter_map(|e| e.mac))
        .collect();
    claimants.retain(|c| !matches!(c.id, ClaimantId::BehindBridge(_, mac) if known.contains(&mac)));
}
