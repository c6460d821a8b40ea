//! Where facts and IPAM's books meet: who holds an address, for [`Anomalies`](crate::detect::anomaly) to judge.

use std::net::IpAddr;

use super::{Effect, Engine};
use crate::engine::{
    anomaly::{Anomaly, AnomalyEffect, AnomalyId, AnomalyKind, PoolUpdate},
    conflict::{Claimant, ClaimantId},
    lifecycle::Moment,
    links::LinkState,
    observation::{IfIndex, Timestamp, Vlan},
    scope::Scope,
};

/// Claims in no VLAN, of addresses that mean the same on the whole node: what IPAM hands out.
const NODE_WIDE: Scope = Scope {
    vlan: Vlan {
        outer: None,
        inner: None,
    },
    domain: None,
};

impl Engine {
    /// Takes IPAM's books at `now` and appends what follows to `effects`.
    pub fn books(&mut self, now: Timestamp, news: PoolUpdate, effects: &mut Vec<Effect>) {
        let decided_at = match &news {
            PoolUpdate::Read(pool, _) => pool.read_at,
            PoolUpdate::Gone(_) => now,
        };
        let at = Moment { now, decided_at };
        let touched = self.anomalies.read(news);
        if !self.first_read {
            return;
        }
        match touched {
            Some(addresses) => {
                for address in addresses {
                    self.judge_anomalies(address, at, effects);
                }
            }
            None => self.judge_all(at, effects),
        }
    }

    /// Goes on with what an earlier agent left open. To be called before the first observation.
    pub fn restore_anomalies(&mut self, held: Vec<Anomaly>) {
        self.anomalies.restore(held);
    }

    /// The open anomalies, the one raised first at the front; those of an earlier agent included that may go on.
    #[must_use]
    pub fn anomalies(&self) -> Vec<Anomaly> {
        let mut open: Vec<_> = self.anomalies.open().cloned().collect();
        open.sort_by_key(|a| (a.raised_at, a.address, a.kind));
        open
    }

    /// The ids of the open anomalies in the same order: ask [`Engine::anomalies_of`] about some at a time.
    #[must_use]
    pub fn anomaly_ids(&self) -> Vec<AnomalyId> {
        let mut open: Vec<_> = self
            .anomalies
            .open()
            .map(|a| (a.raised_at, a.address, a.kind, a.id))
            .collect();
        open.sort_unstable();
        open.into_iter().map(|(.., id)| id).collect()
    }

    /// Those of these anomalies that are open.
    #[must_use]
    pub fn anomalies_of(&self, ids: &[AnomalyId]) -> Vec<Anomaly> {
        let mut found: Vec<_> = self
            .anomalies
            .open()
            .filter(|a| ids.contains(&a.id))
            .cloned()
            .collect();
        found.sort_by_key(|a| (a.raised_at, a.address, a.kind));
        found
    }

    /// How many anomalies of `kind` are open.
    #[must_use]
    pub fn open_anomalies(&self, kind: AnomalyKind) -> usize {
        self.anomalies.open().filter(|a| a.kind == kind).count()
    }

    /// Anomalies that a bound turned away.
    #[must_use]
    pub fn anomalies_refused(&self) -> u64 {
        self.anomalies.refused()
    }

    /// The whole of the kernel's state is merged: from now on what is not known is not there.
    pub(super) fn all_was_read(&mut self, at: Timestamp) {
        if !self.first_read {
            self.first_read = true;
            self.anomalies.first_read(at);
            self.dirty.extend(self.facts.addresses());
            self.dirty.extend(self.anomalies.addresses());
        }
    }

    pub(super) fn expire_anomalies(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let at = Moment {
            now,
            decided_at: now,
        };
        while let Some(address) = self.anomalies.due(now) {
            self.judge_anomalies(address, at, effects);
        }
        let mut said = Vec::new();
        self.anomalies.end_held(now, &mut said);
        effects.extend(said.into_iter().map(Effect::Anomaly));
    }

    fn judge_all(&mut self, at: Moment, effects: &mut Vec<Effect>) {
        let mut addresses = self.anomalies.addresses();
        addresses.extend(self.facts.addresses());
        for address in addresses {
            self.judge_anomalies(address, at, effects);
        }
    }

    /// Judges everything about one address that is no conflict.
    pub(super) fn judge_anomalies(
        &mut self,
        address: IpAddr,
        at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if !self.first_read {
            return;
        }
        self.judge_gateways(address, at, effects);
        let host_route = self.routes.host_route(address);
        let routes_matter = host_route.is_some() || self.anomalies.follows_route(address);
        let books_matter = self.anomalies.has_pools() || self.anomalies.follows_books(address);
        if !routes_matter && !books_matter {
            return;
        }
        // Shared addresses come from no pool, and move.
        let (holders, receives) = if self.settings.is_allowed(address) {
            (Vec::new(), false)
        } else {
            self.holders(address, at.now)
        };
        let mut said = Vec::new();
        if routes_matter {
            self.judge_route(address, host_route, &holders, receives, at, &mut said);
        }
        let links = &self.links;
        let blind = || links.iter().any(|l| l.is_pod() && !l.namespace_readable);
        let bounds = &self.settings.bounds;
        self.anomalies
            .drift(address, &holders, at, bounds, &mut said);
        self.anomalies
            .leak(address, !holders.is_empty(), blind, at, bounds, &mut said);
        effects.extend(said.into_iter().map(Effect::Anomaly));
    }

    /// Whether the host's own route leads past whoever has the address. Wider routes are not judged: many plugins have no
    /// route for each pod.
    fn judge_route(
        &mut self,
        address: IpAddr,
        host_route: Option<IfIndex>,
        holders: &[Claimant],
        receives: bool,
        at: Moment,
        said: &mut Vec<AnomalyEffect>,
    ) {
        let bounds = &self.settings.bounds;
        if holders.is_empty() {
            self.anomalies.route_over(address, at, said);
            return;
        }
        let instead = host_route.and_then(|out| self.links.get(out));
        // Who is behind a bridge, or in a pod that cannot be looked into, is not known well enough.
        let vague = instead.is_some_and(|link| {
            self.links.is_bridge(link.link.ifindex) || (link.is_pod() && !link.namespace_readable)
        });
        if receives || vague {
            let by_host_route = receives && host_route.is_some();
            self.anomalies
                .route_right(address, by_host_route, at, bounds, said);
            return;
        }
        let instead = instead.map(|link| link.link.name.clone());
        self.anomalies
            .route_astray(address, instead, holders, at, bounds, said);
    }

    /// The pods that surely hold an address: those it is assigned in, those the node has a permanent entry for, and, where
    /// a namespace cannot be read, those that were heard to claim it. And whether any claimant receives the node's packets.
    fn holders(&self, address: IpAddr, now: Timestamp) -> (Vec<Claimant>, bool) {
        let mut derived = self.world().derive(address, now);
        let mut holders = derived.remove(&NODE_WIDE).unwrap_or_default();
        let receives = self
            .world()
            .receives(address, NODE_WIDE, &holders)
            .is_some();
        holders.retain(|claimant| match claimant.id {
            ClaimantId::Device(ifindex, _) => {
                claimant.is_certain()
                    || self
                        .links
                        .pod(ifindex)
                        .is_some_and(|link: &LinkState| !link.namespace_readable)
            }
            ClaimantId::BehindBridge(..) | ClaimantId::Host => false,
        });
        (holders, receives)
    }
}
