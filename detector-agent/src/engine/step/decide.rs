//! Decides anew about every address whose facts changed.

use std::net::IpAddr;

use super::{Effect, Engine};
use crate::engine::{
    claimants::World,
    conflict::{Claimant, ClaimantId, ConflictKind, LeaveReason},
    lifecycle::{Moment, Room, Verdict, had_address},
    links::Links,
    scope::Scope,
};

impl Engine {
    /// Brings the open conflicts to what the facts say now.
    pub(super) fn settle(&mut self, at: Moment, effects: &mut Vec<Effect>) {
        self.forget_unasked();
        self.end_gone_askers(at.now, effects);
        loop {
            while let Some(address) = self.dirty.pop_first() {
                self.decide(address, at, effects);
                self.judge_anomalies(address, at, effects);
            }
            match self.lifecycle.room(&self.settings.bounds) {
                Some(Room::For(address)) => {
                    self.dirty.insert(address);
                }
                Some(Room::ForAny) => self.dirty.extend(self.facts.addresses()),
                None => return,
            }
        }
    }

    /// Forwarding entries that aged out are of use only as long as a neighbour entry leads to them.
    fn forget_unasked(&mut self) {
        for (bridge, mac) in self.facts.take_unasked() {
            if !self.facts.asks_for(bridge, mac) {
                self.fdb.forget_aged(bridge, mac);
            }
        }
    }

    fn decide(&mut self, address: IpAddr, at: Moment, effects: &mut Vec<Effect>) {
        if self.held.holds(address) {
            return;
        }
        let facts = self.facts.get(address);
        let may_conflict = facts.is_some_and(|f| f.may_conflict());
        let allowed = self.settings.is_allowed(address);
        if facts.is_none() && !allowed {
            self.expiry.forget(address);
        }
        if !may_conflict && !allowed && !self.lifecycle.has_open(address) {
            return;
        }
        // Not `self.world()`: the moves and the conflicts change while it is read.
        let world = World {
            links: &self.links,
            facts: &self.facts,
            fdb: &self.fdb,
            routes: &self.routes,
            settings: &self.settings,
        };
        let derived = world.derive(address, at.now);
        let verdicts: Vec<(Scope, Verdict)> = if allowed {
            let flapping = self.moves.flapping(address, at.now, &self.settings);
            let window = self.settings.flap_window;
            self.moves
                .forget(address, at.now, window, |scope| derived.contains_key(scope));
            flapping
                .into_iter()
                .map(|(scope, who)| {
                    let now = derived.get(&scope).map(Vec::as_slice).unwrap_or_default();
                    (scope, flap(&world, address, scope, who, now))
                })
                .collect()
        } else {
            derived
                .into_iter()
                .map(|(scope, who)| (scope, judge(&world, address, scope, who)))
                .collect()
        };
        let links = &self.links;
        self.drops.conflicts += self.lifecycle.settle(
            address,
            verdicts,
            |claimant| leaving(links, claimant),
            at,
            &self.settings.bounds,
            effects,
        );
    }
}

/// Rule 1: two or more live claims in one scope.
fn judge(world: &World<'_>, address: IpAddr, scope: Scope, claimants: Vec<Claimant>) -> Verdict {
    let pods = claimants
        .iter()
        .filter(|c| c.id != ClaimantId::Host)
        .count();
    let kind = match (pods, claimants.len() - pods) {
        (1.., 1..) => Some(ConflictKind::Host),
        (2.., 0) => Some(ConflictKind::Duplicate),
        _ => None,
    };
    verdict(world, address, scope, kind, claimants)
}

/// Rule 8: an allowed address that moves too often. Those that took part and still exist are shown, as they claim it
/// `now` where they do.
fn flap(
    world: &World<'_>,
    address: IpAddr,
    scope: Scope,
    took_part: Vec<Claimant>,
    now: &[Claimant],
) -> Verdict {
    let claimants = took_part
        .into_iter()
        .filter(|c| exists(world.links, c))
        .map(|c| now.iter().find(|n| n.id == c.id).cloned().unwrap_or(c))
        .collect();
    verdict(
        world,
        address,
        scope,
        Some(ConflictKind::Flapping),
        claimants,
    )
}

fn verdict(
    world: &World<'_>,
    address: IpAddr,
    scope: Scope,
    kind: Option<ConflictKind>,
    claimants: Vec<Claimant>,
) -> Verdict {
    let receiver = world.receives(address, scope, &claimants);
    let traffic_goes_to = receiver.map(|claimant| claimant.device.clone());
    Verdict {
        kind,
        claimants,
        traffic_goes_to,
    }
}

/// Why a claimant of a moment ago is none now.
fn leaving(links: &Links, claimant: &Claimant) -> LeaveReason {
    if !exists(links, claimant) {
        LeaveReason::DeviceRemoved
    } else if had_address(claimant) {
        LeaveReason::AddressRemoved
    } else {
        LeaveReason::Expired
    }
}

/// Whether what a claimant stands on is still there.
fn exists(links: &Links, claimant: &Claimant) -> bool {
    match claimant.id {
        ClaimantId::Device(ifindex, generation) => links
            .pod(ifindex)
            .is_some_and(|l| l.generation == generation),
        ClaimantId::BehindBridge(bridge, _) => links.is_bridge(bridge),
        ClaimantId::Host => links.get(claimant.ifindex).is_some(),
    }
}
