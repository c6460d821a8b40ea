//! Moves of allowed addresses (VIPs): a single move is normal, five in 180 s are not (RFC 7432
//! §15.1).
//!
//! As in RFC 7432, a claim by one device while another holds the address is a move, even if it
//! repeats an earlier claim. A pod that claims it on another one of its interfaces is no move.

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::{
    hash::HashMap,
    model::{Claimant, ClaimantId, MoveHistory, Scope, Settings, Timestamp},
};

/// Participants and moves remembered for each address and scope, and addresses tracked, at most.
const MAX_PARTICIPANTS: usize = 16;
const MAX_MOVES: usize = 256;
const MAX_ADDRESSES: usize = 4096;
/// Which share of the addresses that one device holds makes room at the bound.
const EVICTED_SHARE: usize = 8;

#[derive(Debug)]
pub(crate) struct Moves {
    settings: Arc<Settings>,
    histories: HashMap<IpAddr, Vec<(Scope, MoveHistory)>>,
}

impl Moves {
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            histories: HashMap::default(),
        }
    }

    /// Records that `claimant` claims an allowed address. `true` if that is a move: the last holder
    /// was not `is_one_pod` with it.
    pub(crate) fn record_claim(
        &mut self,
        address: IpAddr,
        scope: Scope,
        claimant: &Claimant,
        is_one_pod: impl Fn(ClaimantId, ClaimantId) -> bool,
        at: Timestamp,
    ) -> bool {
        if self.histories.len() >= MAX_ADDRESSES && !self.histories.contains_key(&address) {
            self.evict();
        }
        let scopes = self.histories.entry(address).or_default();
        let position = scopes.iter().position(|(known, _)| *known == scope);
        let position = position.unwrap_or_else(|| {
            scopes.push((scope, MoveHistory::default()));
            scopes.len() - 1
        });
        let history = &mut scopes[position].1;
        let (last, moved) = match history.holder() {
            Some((last, holder)) => (*last, !is_one_pod(holder.id, claimant.id)),
            None => (at, false),
        };
        history.participants.retain(|(_, c)| c.id != claimant.id);
        history
            .participants
            .push_back((last.max(at), claimant.clone()));
        if history.participants.len() > MAX_PARTICIPANTS {
            history.participants.pop_front();
        }
        if moved {
            history.moves.push_back(at);
            if history.moves.len() > MAX_MOVES {
                history.moves.pop_front();
            }
        }
        history.expire(at, self.settings.flap_window);
        moved
    }

    /// Makes room: the device that holds the most addresses loses the oldest of those that do not
    /// flap, or if all do, the oldest of all.
    fn evict(&mut self) {
        let mut by_holder = HashMap::<ClaimantId, Vec<(bool, Timestamp, IpAddr)>>::default();
        for (address, scopes) in &self.histories {
            let flaps =
                |(_, history): &(_, MoveHistory)| history.moves.len() >= self.settings.flap_moves;
            if let Some((last, holder)) = scopes.first().and_then(|(_, first)| first.holder()) {
                let held = by_holder.entry(holder.id).or_default();
                held.push((scopes.iter().any(flaps), *last, *address));
            }
        }
        let largest = by_holder.into_values().max_by_key(Vec::len);
        let mut held = largest.unwrap_or_default();
        held.sort_unstable();
        for (.., address) in held.iter().take(held.len().div_ceil(EVICTED_SHARE)) {
            self.histories.remove(address);
        }
    }

    /// The moves of `address` in `scope`, for persistence.
    pub(crate) fn to_record(&self, address: IpAddr, scope: Scope) -> Option<MoveHistory> {
        let mut scopes = self.histories.get(&address)?.iter();
        let (_, history) = scopes.find(|(known, _)| *known == scope)?;
        Some(history.clone())
    }

    /// Restores persisted moves; those recorded since then are newer and come after them.
    pub(crate) fn restore(&mut self, address: IpAddr, scope: Scope, record: MoveHistory) {
        if record.participants.is_empty() {
            return;
        }
        let scopes = self.histories.entry(address).or_default();
        let since = scopes.iter().position(|(known, _)| *known == scope);
        let since = since.map(|position| scopes.swap_remove(position).1);
        let mut history = record;
        if let Some(since) = since {
            history.moves.extend(since.moves);
            let is_superseded = |c: &Claimant| since.participants.iter().any(|(_, s)| s.id == c.id);
            history.participants.retain(|(_, c)| !is_superseded(c));
            history.participants.extend(since.participants);
        }
        scopes.push((scope, history));
    }

    /// The scopes in which `address` flaps at `now`, each with the participants.
    pub(crate) fn flapping(
        &mut self,
        address: IpAddr,
        now: Timestamp,
    ) -> Vec<(Scope, Vec<Claimant>)> {
        let mut flapping = Vec::new();
        for (scope, history) in self.histories.get_mut(&address).into_iter().flatten() {
            history.expire(now, self.settings.flap_window);
            if history.moves.len() >= self.settings.flap_moves {
                flapping.push((
                    *scope,
                    history
                        .participants
                        .iter()
                        .map(|(_, c)| c.clone())
                        .collect(),
                ));
            }
        }
        flapping
    }

    /// When, after `now`, the next recorded move, part or claim of `address` leaves the window.
    pub(crate) fn next_expiry(&mut self, address: IpAddr, now: Timestamp) -> Option<Timestamp> {
        let window = self.settings.flap_window;
        let scopes = self.histories.get_mut(&address)?.iter_mut();
        let ends = scopes.flat_map(|(_, history)| {
            history.expire(now, window);
            let move_ends = history.moves.front().copied();
            let part_ends = history.participants.front().map(|(at, _)| *at);
            let claim_ends = history.holder().map(|(at, _)| *at);
            [move_ends, part_ends, claim_ends]
        });
        let ends = ends.flatten().map(|at| at + window);
        ends.filter(|at| *at > now).min()
    }

    /// Removes the history of scopes without a claim now or within the window.
    pub(crate) fn remove_idle(
        &mut self,
        address: IpAddr,
        now: Timestamp,
        claimed: impl Fn(&Scope) -> bool,
    ) {
        let window = self.settings.flap_window;
        if let Some(scopes) = self.histories.get_mut(&address) {
            scopes.retain(|(scope, history)| {
                let holder = history.holder();
                claimed(scope) || holder.is_some_and(|(last, _)| now.since(*last) < window)
            });
            if scopes.is_empty() {
                self.histories.remove(&address);
            }
        }
    }
}

impl MoveHistory {
    /// Who holds it, and when it was last claimed.
    fn holder(&self) -> Option<&(Timestamp, Claimant)> {
        self.participants.back()
    }

    /// Forgets what was before the window, except who holds it.
    fn expire(&mut self, now: Timestamp, window: Duration) {
        let over = |at: &Timestamp| now.since(*at) >= window;
        while self.moves.front().is_some_and(over) {
            self.moves.pop_front();
        }
        while self.participants.len() > 1 && over(&self.participants[0].0) {
            self.participants.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
