//! Decides about every address whose facts changed.

use std::net::IpAddr;

use crate::{
    mirror::links::Links,
    model::{
        Claimant, ClaimantId, Confidence, ConflictKind, IfIndex, LeaveReason, Mac, RouteQuery,
        Scope, mark_newest,
    },
    rules::claimants::{ClaimContext, Derived},
    step::Engine,
    track::{
        Step,
        conflict_limit::RetryTarget,
        lifecycle::{Decision, Lifecycle},
    },
};

impl Engine {
    /// Decides about the dirty addresses, and about those rejected earlier if there is room now.
    pub(super) fn apply_pending(&mut self, step: &mut Step<'_>) {
        let side_effects = std::mem::take(&mut self.mirror.facts.side_effects);
        self.note_overflow(&side_effects);
        self.report_bounds(step);
        self.mark_presence_dirty();
        self.evict_unreferenced_fdb(&side_effects.unreferenced);
        self.resolve_frames_of_removed_devices(step);
        self.check_macs(step);
        loop {
            while let Some(address) = self.dirty.pop_first() {
                self.decide(address, step);
                self.check_anomalies(address, step);
                self.noted.outdated.insert(address);
                if let Some(changed) = &mut self.noted.changed {
                    changed.insert(address);
                }
            }
            match self.tracked.lifecycle.next_retry() {
                Some(RetryTarget::Address(address)) => {
                    self.dirty.insert(address);
                }
                Some(RetryTarget::All) => self.dirty.extend(self.mirror.facts.addresses()),
                None => break,
            }
        }
        self.settle_sweeps(step);
        self.read_due(step);
    }

    /// Removes aged forwarding entries that no neighbour entry refers to any more.
    fn evict_unreferenced_fdb(&mut self, unreferenced: &[(IfIndex, Mac)]) {
        for (bridge, mac) in unreferenced {
            if !self.mirror.facts.is_mac_referenced(*bridge, *mac) {
                self.mirror.fdb.remove_aged(*bridge, *mac);
            }
        }
    }

    pub(super) fn claim_context(&self) -> ClaimContext<'_> {
        ClaimContext {
            mirror: &self.mirror,
            settings: &self.settings,
            pools: &self.tracked.anomalies.pools,
        }
    }

    fn decide(&mut self, address: IpAddr, step: &mut Step<'_>) {
        let facts = self.mirror.facts.get(address);
        let may_conflict = facts.is_some_and(|f| f.can_conflict());
        let allowed = self.settings.is_allowed(address);
        if facts.is_none() && !allowed {
            self.timers.expiry.cancel(address);
        }
        // Not `self.claim_context()`: the moves and the conflicts change while it is read.
        let context = ClaimContext {
            mirror: &self.mirror,
            settings: &self.settings,
            pools: &self.tracked.anomalies.pools,
        };
        if !may_conflict && !allowed && !self.tracked.lifecycle.has_open(address) {
            let is_claim = facts.is_some_and(|f| context.is_lone_claim(address, f, step.now));
            self.noted.counts.set(address, usize::from(is_claim));
            return;
        }
        let derived = context.derive(address, step.now);
        self.noted.counts.set(address, pod_claims(&derived));
        if self.tracked.restored.contains(address) {
            return;
        }
        // Who claims an allowed address may leave its conflict nevertheless.
        let mut still_claiming = Vec::new();
        let decisions = if allowed {
            still_claiming = derived.values().flatten().map(|c| c.id).collect();
            let moving = self.tracked.moves.flapping(address, step.now);
            self.tracked
                .moves
                .remove_idle(address, step.now, |scope| derived.contains_key(scope));
            decide_flapping(&context, address, &self.tracked.lifecycle, moving, &derived)
        } else {
            derived
                .into_iter()
                .map(|(scope, claimants)| {
                    (scope, decide_claims(&context, address, scope, claimants))
                })
                .collect()
        };
        let links = &self.mirror.links;
        let still_has = |claimant: &Claimant| {
            let is_internal = |peer| facts.is_some_and(|f| f.is_internal_on(peer));
            still_claiming.contains(&claimant.id) || claimant.peer.is_some_and(is_internal)
        };
        let first = step.effects.len();
        self.drops.conflicts += self.tracked.lifecycle.apply(
            address,
            decisions,
            |claimant| leave_reason(links, claimant, still_has(claimant)),
            step,
        );
        self.update_sweeps(address, first, step);
        // The event goes out with what is known; the kernel's answer corrects it.
        let open = self.tracked.lifecycle.open_of(address);
        let queries = open.filter_map(|(scope, _)| RouteQuery::of(address, scope));
        self.mirror.route_lookups.follow(address, queries);
    }
}

/// The number of claims, without the node's own.
fn pod_claims(derived: &Derived) -> usize {
    let claimants = derived.values().flatten();
    claimants.filter(|c| c.id != ClaimantId::Host).count()
}

/// Live claims of two or more pods, or of a pod and the node, in one scope are a conflict
/// (`docs/detection-rules.md`, section 1).
fn decide_claims(
    context: &ClaimContext<'_>,
    address: IpAddr,
    scope: Scope,
    claimants: Vec<Claimant>,
) -> Decision {
    let on_node = claimants.iter().any(|c| c.id == ClaimantId::Host);
    let pods = || claimants.iter().filter(|c| c.id != ClaimantId::Host);
    let kind = match (pod_count(&context.mirror.links, pods()), on_node) {
        (1.., true) => Some(ConflictKind::Host),
        (2.., false) if !are_shared(context, address, pods()) => Some(ConflictKind::Duplicate),
        _ => None,
    };
    let is_one_pod = kind.is_none() && pod_count(&context.mirror.links, claimants.iter()) == 1;
    Decision {
        is_one_pod,
        ..decision(context, address, scope, kind, claimants)
    }
}

/// Whether all of these have the address on their own `lo` or a dummy, see [`ClaimContext::is_shared`].
fn are_shared<'c>(
    context: &ClaimContext<'_>,
    address: IpAddr,
    mut claimants: impl Iterator<Item = &'c Claimant>,
) -> bool {
    let facts = context.mirror.facts.get(address);
    facts.is_some_and(|facts| claimants.all(|c| context.is_shared(facts, c)))
}

/// Of how many different pods (or the node) these claimants are; 2 stands for more as well.
fn pod_count<'c>(links: &Links, claimants: impl Iterator<Item = &'c Claimant>) -> usize {
    let mut pods = claimants.map(|c| links.pod_identity(c.id));
    let Some(first) = pods.next() else { return 0 };
    1 + usize::from(pods.any(|pod| pod != first))
}

/// See `docs/detection-rules.md`, section 7.
fn confidence(context: &ClaimContext<'_>, address: IpAddr, claimants: &[Claimant]) -> Confidence {
    let certain = || claimants.iter().filter(|c| c.is_certain());
    if pod_count(&context.mirror.links, certain()) >= 2 && !are_shared(context, address, certain())
    {
        Confidence::Certain
    } else {
        Confidence::Observed
    }
}

/// An allowed address flaps while it moves too often and at least two of the pods that take part exist
/// (`docs/detection-rules.md`, section 8). They are shown with their present evidence if they claim
/// the address now. Of a conflict that ends, those that claim the address now remain.
fn decide_flapping(
    context: &ClaimContext<'_>,
    address: IpAddr,
    lifecycle: &Lifecycle,
    moving: Vec<(Scope, Vec<Claimant>)>,
    derived: &Derived,
) -> Vec<(Scope, Decision)> {
    let claiming_in = |scope| derived.get(&scope).map(Vec::as_slice).unwrap_or_default();
    let mut decisions = Vec::new();
    for (scope, participants) in moving {
        let now = claiming_in(scope);
        let existing: Vec<_> = participants
            .into_iter()
            .filter(|c| exists(&context.mirror.links, c))
            .map(|c| now.iter().find(|n| n.id == c.id).cloned().unwrap_or(c))
            .map(|c| with_present_name(&context.mirror.links, c))
            .collect();
        if pod_count(&context.mirror.links, existing.iter()) >= 2 {
            let kind = Some(ConflictKind::Flapping);
            decisions.push((scope, decision(context, address, scope, kind, existing)));
        }
    }
    for (scope, conflict) in lifecycle.open_of(address) {
        if decisions.iter().all(|(flapping, _)| *flapping != scope) {
            let mut remaining = claiming_in(scope).to_vec();
            remaining.retain(|c| conflict.present().any(|p| p.id == c.id));
            decisions.push((scope, decision(context, address, scope, None, remaining)));
        }
    }
    decisions
}

fn decision(
    context: &ClaimContext<'_>,
    address: IpAddr,
    scope: Scope,
    kind: Option<ConflictKind>,
    mut claimants: Vec<Claimant>,
) -> Decision {
    mark_newest(kind, &mut claimants);
    let receiver = context.traffic_receiver(address, scope, &claimants);
    let receiver = receiver.map(|claimant| claimant.id);
    Decision {
        network: context.network(scope.network),
        kind,
        confidence: confidence(context, address, &claimants),
        claimants,
        is_one_pod: false,
        receiver,
    }
}

/// Why a former claimant left. One that still has the address has taken no part in its moves for
/// too long, or does not count without the others.
fn leave_reason(links: &Links, claimant: &Claimant, still_has: bool) -> LeaveReason {
    if !exists(links, claimant) {
        LeaveReason::DeviceRemoved
    } else if claimant.has_address() && !still_has {
        LeaveReason::AddressRemoved
    } else {
        LeaveReason::Expired
    }
}

/// A claimant as it was earlier, under the name that its device has now.
fn with_present_name(links: &Links, mut claimant: Claimant) -> Claimant {
    if let Some(link) = links.get(claimant.ifindex) {
        claimant.device.clone_from(&link.link.name);
    }
    claimant
}

/// Whether the device of a claimant still exists.
fn exists(links: &Links, claimant: &Claimant) -> bool {
    match claimant.id {
        ClaimantId::Device(ifindex, generation) => links.device((ifindex, generation)).is_some(),
        ClaimantId::BehindBridge(bridge, _) => links.is_bridge(bridge),
        ClaimantId::Host => links.get(claimant.ifindex).is_some(),
        ClaimantId::Registered(_) => false,
    }
}
