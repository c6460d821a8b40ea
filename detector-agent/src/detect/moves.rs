//! Moves of allowed shared addresses (VIPs): one move is normal, five in 180 s are not (RFC 7432 §15.1).

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
};

use super::{
    conflict::{Claimant, ClaimantId},
    observation::Timestamp,
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
    moves: VecDeque<Timestamp>,
    /// Who held it within the window, the newest last, as they were then.
    participants: VecDeque<(Timestamp, Claimant)>,
}

#[derive(Debug, Default)]
pub(super) struct Moves {
    held: HashMap<(IpAddr, Scope), Held>,
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
        let key = (address, scope);
        if self.held.len() >= FOLLOWED && !self.held.contains_key(&key) {
            return false;
        }
        let held = self.held.entry(key).or_insert_with(|| Held {
            holder: claimant.id,
            moves: VecDeque::new(),
            participants: VecDeque::new(),
        });
        let moved = held.holder != claimant.id;
        held.holder = claimant.id;
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
        held.lapse(at, settings);
        moved
    }

    /// The scopes in which `address` flaps at `now`, with those that took part. Forgets what is over.
    pub(super) fn flapping(
        &mut self,
        address: IpAddr,
        now: Timestamp,
        settings: &Settings,
    ) -> Vec<(Scope, Vec<Claimant>)> {
        let mut flapping = Vec::new();
        for ((_, scope), held) in self.held.iter_mut().filter(|((a, _), _)| *a == address) {
            held.lapse(now, settings);
            if held.moves.len() >= settings.flap_moves {
                flapping.push((
                    *scope,
                    held.participants.iter().map(|(_, c)| c.clone()).collect(),
                ));
            }
        }
        flapping
    }

    /// The claimant's device is gone; it no longer holds anything, but its part in past moves stays.
    pub(super) fn forget(&mut self, address: IpAddr) {
        self.held
            .retain(|(a, _), held| *a != address || !held.moves.is_empty());
    }
}

impl Held {
    fn lapse(&mut self, now: Timestamp, settings: &Settings) {
        while self
            .moves
            .front()
            .is_some_and(|at| now.since(*at) >= settings.flap_window)
        {
            self.moves.pop_front();
        }
        while self.participants.len() > 1
            && self
                .participants
                .front()
                .is_some_and(|(at, _)| now.since(*at) >= settings.flap_window)
        {
            self.participants.pop_front();
        }
    }
}
