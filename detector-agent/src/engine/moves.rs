//! Moves of allowed shared addresses (VIPs): one move is normal, five in 180 s are not (RFC 7432 §15.1).
//!
//! As there, a claim by one while another holds the address is a move, also when it only repeats an earlier claim.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use super::{
    conflict::{Claimant, ClaimantId},
    observation::Timestamp,
    record::KeptMoves,
    scope::Scope,
    settings::Settings,
};

/// Participants listed, moves remembered and addresses followed, at most.
const PARTICIPANTS: usize = 16;
const MOVES: usize = 256;
const FOLLOWED: usize = 4096;

#[derive(Debug)]
struct Held {
    holder: ClaimantId,
    /// When the holder last claimed it.
    last: Timestamp,
    moves: VecDeque<Timestamp>,
    /// Who held it within the window, the newest last, as they were then.
    participants: VecDeque<(Timestamp, Claimant)>,
}

#[derive(Debug, Default)]
pub(super) struct Moves {
    held: HashMap<IpAddr, Vec<(Scope, Held)>>,
}

impl Moves {
    /// `claimant` has just claimed an allowed address. Gives `true` where that was a move.
    pub(super) fn claimed(
        &mut self,
        address: IpAddr,
        scope: Scope,
        claimant: &Claimant,
        at: Timestamp,
        settings: &Settings,
    ) -> bool {
        if self.held.len() >= FOLLOWED && !self.held.contains_key(&address) {
            return false;
        }
        let scopes = self.held.entry(address).or_default();
        let position = scopes.iter().position(|(known, _)| *known == scope);
        let position = position.unwrap_or_else(|| {
            scopes.push((
                scope,
                Held {
                    holder: claimant.id,
                    last: at,
                    moves: VecDeque::new(),
                    participants: VecDeque::new(),
                },
            ));
            scopes.len() - 1
        });
        let held = &mut scopes[position].1;
        let moved = held.holder != claimant.id;
        held.holder = claimant.id;
        held.last = held.last.max(at);
        held.participants.retain(|(_, c)| c.id != claimant.id);
        held.participants.push_back((at, claimant.clone()));
        if held.participants.len() > PARTICIPANTS {
            held.participants.pop_front();
        }
        if moved {
            held.moves.push_back(at);
            if held.moves.len() > MOVES {
                held.moves.pop_front();
            }
        }
        held.lapse(at, settings.flap_window);
        moved
    }

    /// What is to be kept over a restart.
    pub(super) fn kept(&self, address: IpAddr, scope: Scope) -> Option<KeptMoves> {
        let mut scopes = self.held.get(&address)?.iter();
        let (_, held) = scopes.find(|(known, _)| *known == scope)?;
        Some(KeptMoves {
            moves: held.moves.iter().copied().collect(),
            participants: held.participants.iter().cloned().collect(),
        })
    }

    /// Goes on with what was kept, before what happened since.
    pub(super) fn go_on(&mut self, address: IpAddr, scope: Scope, kept: KeptMoves) {
        let Some((last, holder)) = kept.participants.last() else {
            return;
        };
        let scopes = self.held.entry(address).or_default();
        let since = scopes.iter().position(|(known, _)| *known == scope);
        let since = since.map(|position| scopes.swap_remove(position).1);
        let mut held = Held {
            holder: holder.id,
            last: *last,
            moves: kept.moves.into(),
            participants: kept.participants.into(),
        };
        if let Some(since) = since {
            held.holder = since.holder;
            held.last = since.last;
            held.moves.extend(since.moves);
            let news = |c: &Claimant| since.participants.iter().any(|(_, s)| s.id == c.id);
            held.participants.retain(|(_, c)| !news(c));
            held.participants.extend(since.participants);
        }
        scopes.push((scope, held));
    }

    /// The scopes in which `address` flaps at `now`, with those that took part.
    pub(super) fn flapping(
        &mut self,
        address: IpAddr,
        now: Timestamp,
        settings: &Settings,
    ) -> Vec<(Scope, Vec<Claimant>)> {
        let mut flapping = Vec::new();
        for (scope, held) in self.held.get_mut(&address).into_iter().flatten() {
            held.lapse(now, settings.flap_window);
            if held.moves.len() >= settings.flap_moves {
                flapping.push((
                    *scope,
                    held.participants.iter().map(|(_, c)| c.clone()).collect(),
                ));
            }
        }
        flapping
    }

    /// When, after `now`, the next thing that is remembered of `address` is over.
    pub(super) fn next_lapse(
        &mut self,
        address: IpAddr,
        now: Timestamp,
        window: Duration,
    ) -> Option<Timestamp> {
        let scopes = self.held.get_mut(&address)?.iter_mut();
        let ends = scopes.flat_map(|(_, held)| {
            held.lapse(now, window);
            let oldest = held.moves.front().copied();
            [oldest, Some(held.last)]
        });
        let ends = ends.flatten().map(|at| at + window);
        ends.filter(|at| *at > now).min()
    }

    /// In scopes where nobody claims the address now, nor did within the window, who held it last matters no more.
    pub(super) fn forget(
        &mut self,
        address: IpAddr,
        now: Timestamp,
        window: Duration,
        claimed: impl Fn(&Scope) -> bool,
    ) {
        if let Some(scopes) = self.held.get_mut(&address) {
            scopes.retain(|(scope, held)| now.since(held.last) < window || claimed(scope));
            if scopes.is_empty() {
                self.held.remove(&address);
            }
        }
    }
}

impl Held {
    fn lapse(&mut self, now: Timestamp, window: Duration) {
        let over = |at: &Timestamp| now.since(*at) >= window;
        while self.moves.front().is_some_and(over) {
            self.moves.pop_front();
        }
        while self.participants.front().is_some_and(|(at, _)| over(at)) {
            self.participants.pop_front();
        }
    }
}
