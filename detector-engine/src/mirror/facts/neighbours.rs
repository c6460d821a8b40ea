//! Neighbour entries of the kernel, and the former hardware addresses of a bridge's entries.

use std::{net::IpAddr, time::Duration};

use crate::{
    mirror::{
        StoreOutcome,
        facts::{Claimer, Facts, Owner},
    },
    model::{Beginning, IfIndex, Mac, Neighbour, NudState, Peer, Seen, Timestamp},
    small_set::push_compact,
};

/// A hardware address that a bridge's neighbour entry had before, and may have again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormerLladdr {
    pub(crate) mac: Mac,
    pub(crate) seen: Seen,
    /// The entry alternated between this hardware address and another: both answer.
    pub(crate) flapped: bool,
    /// The address was removed in the pod after this was last confirmed: a later return to another
    /// hardware address is a handover, and does not show that this one answers.
    refuted: bool,
}

/// A neighbour entry of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct NeighbourFact {
    pub(crate) ifindex: IfIndex,
    pub(crate) lladdr: Mac,
    pub(crate) state: NudState,
    pub(crate) seen: Seen,
    /// When it was last reported live: an older report that is processed later does not count.
    reported: Timestamp,
    /// The address was removed in the pod after this entry was last confirmed.
    pub(crate) refuted: bool,
    /// The agent saw the pod confirm this hardware address, after any removal of the address there.
    pub(crate) confirmed: bool,
    /// On a bridge: the entry returned to this hardware address, see [`FormerLladdr::flapped`].
    returned: bool,
    /// On a bridge: former hardware addresses, newest last, at most [`MAX_FORMER`]; never the
    /// present one.
    pub(crate) former: Vec<FormerLladdr>,
}

/// Bound on former hardware addresses of one entry.
const MAX_FORMER: usize = 4;

/// How a neighbour entry was reported, and how long its history is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeighbourUpdateContext {
    pub(crate) at: Timestamp,
    /// What is known of when an entry began that was not known before.
    pub(crate) beginning: Beginning,
    /// Reported live, so that a reachable state is a fresh confirmation.
    pub(crate) live: bool,
    /// How long former hardware addresses are remembered; set on bridges only.
    pub(crate) former: Option<Duration>,
    /// The peer of a pod device.
    pub(crate) peer: Option<Peer>,
}

impl Facts {
    /// Addresses whose neighbour entry on `bridge` has or recently had `mac`.
    pub(crate) fn addresses_behind(&self, bridge: IfIndex, mac: Mac) -> Vec<IpAddr> {
        self.behind.of(&(bridge, mac)).copied().collect()
    }

    /// Whether a neighbour entry on `bridge` has or recently had `mac`.
    pub(crate) fn is_mac_referenced(&self, bridge: IfIndex, mac: Mac) -> bool {
        self.behind.contains_key(&(bridge, mac))
    }

    /// Adds or updates a neighbour entry.
    pub(crate) fn set_neighbour(
        &mut self,
        n: Neighbour,
        lladdr: Mac,
        context: NeighbourUpdateContext,
    ) -> StoreOutcome {
        let NeighbourUpdateContext {
            at,
            beginning,
            live,
            former,
            peer,
        } = context;
        let entry = self.by_address.get_mut(&n.address);
        if let Some(known) = entry.and_then(|entry| entry.neighbour_on_mut(n.ifindex)) {
            if live && at < known.reported {
                return StoreOutcome::Known;
            }
            let confirmed = live && n.state == NudState::Reachable;
            let same_lladdr = known.lladdr == lladdr;
            let changed = !same_lladdr || known.state != n.state || (known.refuted && confirmed);
            let mut dropped = Vec::new();
            if !same_lladdr {
                if let Some(window) = former {
                    dropped = remember(known, lladdr, at, window);
                }
                known.seen = Seen::once(at, beginning);
                known.refuted = false;
                known.confirmed = false;
            }
            if live {
                known.reported = at;
            }
            known.seen.last = at;
            known.lladdr = lladdr;
            known.state = n.state;
            known.refuted &= !confirmed;
            known.confirmed |= confirmed;
            for mac in dropped {
                self.unreference_mac(n.ifindex, mac, n.address);
            }
            if former.is_some() {
                self.behind.insert((n.ifindex, lladdr), n.address);
            }
            return if changed {
                StoreOutcome::Changed
            } else {
                StoreOutcome::Known
            };
        }
        // At the same time, the order in which both were reported counts.
        let withdrawn = self.withdrawals.last(n.ifindex, n.address);
        if live && withdrawn.is_some_and(|withdrawn| at < withdrawn) {
            return StoreOutcome::Known;
        }
        // A bridge's entries come from all its ports; those on a pod device are caused by that pod.
        let share = match former {
            Some(_) => self.bounds.kernel_entries,
            None => self.bounds.claims_per_device,
        };
        let count = self.neighbours.of(&n.ifindex);
        let claimer = Claimer {
            device: n.ifindex,
            peer,
        };
        if (count >= share || self.neighbour_count >= self.bounds.kernel_entries)
            && !self.is_accepted_beyond(n.address, claimer, count)
        {
            return StoreOutcome::Refused;
        }
        let entry = self.by_address.entry(n.address).or_default();
        let added = NeighbourFact {
            ifindex: n.ifindex,
            lladdr,
            state: n.state,
            seen: Seen::once(at, beginning),
            reported: if live { at } else { Timestamp(0) },
            refuted: false,
            confirmed: live && n.state == NudState::Reachable,
            returned: false,
            former: Vec::new(),
        };
        push_compact(&mut entry.neighbours, added);
        self.neighbours.add(n.ifindex);
        self.neighbour_count += 1;
        self.owners.insert(Owner::Link(n.ifindex), n.address);
        if former.is_some() {
            self.behind.insert((n.ifindex, lladdr), n.address);
        }
        self.promote(n.address, at);
        StoreOutcome::Changed
    }

    /// As [`Self::remove_neighbour`], for a withdrawal that was reported live.
    pub(crate) fn withdraw_neighbour(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        at: Timestamp,
    ) -> bool {
        let facts = self.by_address.get(&address);
        let known = facts.and_then(|facts| facts.neighbour_on(ifindex));
        if known.is_some_and(|known| at < known.reported) {
            return false;
        }
        self.withdrawals.record(ifindex, address, at);
        self.remove_neighbour(ifindex, address)
    }

    pub(crate) fn remove_neighbour(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let Some(position) = entry.neighbours.iter().position(|n| n.ifindex == ifindex) else {
            return false;
        };
        let gone = entry.neighbours.swap_remove(position);
        self.neighbours.subtract(ifindex);
        self.neighbour_count -= 1;
        for mac in gone.former.iter().map(|f| f.mac).chain([gone.lladdr]) {
            self.unreference_mac(ifindex, mac, address);
        }
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        true
    }

    /// The address was removed in the pod behind `ifindex`: entries there count again only once
    /// they are confirmed. On a bridge, only hardware addresses for which `is_behind_pod` is true
    /// are affected. With `is_newer`, the present one is evidence from after the removal.
    pub(crate) fn refute_neighbour(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        is_newer: bool,
        is_behind_pod: impl Fn(Mac) -> bool,
    ) -> bool {
        let entry = self.by_address.get_mut(&address);
        let Some(neighbour) = entry.and_then(|entry| entry.neighbour_on_mut(ifindex)) else {
            return false;
        };
        let mut touched = is_behind_pod(neighbour.lladdr);
        if touched {
            neighbour.returned = false;
            neighbour.refuted |= !is_newer;
            neighbour.confirmed &= is_newer;
        }
        for former in &mut neighbour.former {
            if is_behind_pod(former.mac) {
                former.flapped = false;
                former.refuted = true;
                touched = true;
            }
        }
        touched
    }

    /// Restores a hardware address with which a bridge's entry flapped before the restart.
    pub(crate) fn restore_former_lladdr(
        &mut self,
        bridge: IfIndex,
        address: IpAddr,
        mac: Mac,
        seen: Seen,
    ) {
        let entry = self.by_address.get_mut(&address);
        let Some(entry) = entry.and_then(|entry| entry.neighbour_on_mut(bridge)) else {
            return;
        };
        if entry.lladdr == mac {
            entry.returned = true;
        } else if entry.former.len() < MAX_FORMER && entry.former.iter().all(|f| f.mac != mac) {
            entry.former.insert(
                0,
                FormerLladdr {
                    mac,
                    seen,
                    flapped: true,
                    refuted: false,
                },
            );
            self.behind.insert((bridge, mac), address);
        }
    }

    fn unreference_mac(&mut self, bridge: IfIndex, mac: Mac, address: IpAddr) {
        if self.behind.remove((bridge, mac), &address) {
            self.side_effects.unreferenced.push((bridge, mac));
        }
    }
}

/// The entry changes from one hardware address to another. The old one is remembered. An entry that
/// returns to one it had within `window` proves that this one and all it had in between answer,
/// except for those whose pods gave the address up.
/// Returns the hardware addresses that are no longer remembered.
fn remember(known: &mut NeighbourFact, next: Mac, at: Timestamp, window: Duration) -> Vec<Mac> {
    let mut dropped = Vec::new();
    known.former.retain(|former| {
        let is_recent = at.since(former.seen.last) < window;
        if !is_recent {
            dropped.push(former.mac);
        }
        is_recent
    });
    known.former.push(FormerLladdr {
        mac: known.lladdr,
        seen: Seen {
            last: at,
            ..known.seen
        },
        flapped: known.returned,
        refuted: known.refuted,
    });
    known.returned = false;
    if let Some(before) = known.former.iter().position(|former| former.mac == next) {
        for former in known.former.iter_mut().skip(before) {
            former.flapped |= !former.refuted;
        }
        known.former.remove(before);
        known.returned = true;
    }
    if known.former.len() > MAX_FORMER {
        dropped.push(known.former.remove(0).mac);
    }
    dropped.retain(|mac| *mac != next);
    dropped
}

#[cfg(test)]
mod tests;
