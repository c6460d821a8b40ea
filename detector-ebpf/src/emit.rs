//! What is published: nothing twice within a while, nothing beyond a device's budget, and nothing silently lost.

use aya_ebpf::helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use detector_common::{
    Budget, Claim, Counter, DeviceBudget, DropReason, FrameRecord, NEIGHBOUR_GONE, NeighbourRecord,
    RecordKind, TAG_ARP,
};

use crate::{
    holder,
    maps::{
        BUDGET_INTERVAL_NS, BUDGET_WINDOW_NS, BUDGETS, EVENTS, NEIGHBOURS, NeighbourKey,
        NeighbourSaid, REPUBLISH_AFTER_NS, count,
    },
    neighbour::INVALID,
    recent::{self, Recent},
};

/// Publishes a frame's claim.
#[inline(always)]
pub(crate) fn claim(claim: &Claim) {
    let kind = if claim.tag == TAG_ARP {
        RecordKind::Arp
    } else {
        RecordKind::Ndp
    };
    // SAFETY: the helper takes nothing. The coarse clock costs a fraction of the exact one.
    let now = unsafe { bpf_ktime_get_coarse_ns() };
    let Some(recent) = recent::look_up(claim, now) else {
        return;
    };
    let place = match recent {
        Recent::Known(place) if holder::is_move(claim) => place,
        Recent::Known(_) => return count(Counter::Known(kind)),
        Recent::New(place) => place,
    };
    // SAFETY: the helper takes nothing.
    let at = unsafe { bpf_ktime_get_ns() };
    if !spend(&claim.ifindex, at, Purse::Frames) {
        return count(Counter::Dropped(DropReason::Budget));
    }
    let record = FrameRecord { at, claim: *claim };
    if EVENTS.output::<FrameRecord>(&record, 0).is_err() {
        return count(Counter::Dropped(DropReason::RingFull));
    }
    place.note(now);
    holder::note(claim);
    count(Counter::Published(kind));
}

/// Publishes a neighbour entry. A withdrawal of what was published spends nothing: it is bounded by what was published,
/// and losing it would leave a claim alive that has ended.
#[inline(always)]
pub(crate) fn neighbour(record: &mut NeighbourRecord, validity: u8) {
    let key = &NeighbourKey {
        ifindex: record.ifindex,
        ip_version: u32::from(record.ip_version),
        address: record.address,
    };
    let gone = record.tag == NEIGHBOUR_GONE;
    // SAFETY: the helper takes nothing. (Tracing programs are not given the coarse clock.)
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a value read while the entry is reused is at worst what was said of another one: a record too many or too late.
    let said = unsafe { NEIGHBOURS.get(key) }.copied();
    if let Some(said) = said
        && !gone
        && said.validity == validity
        && said.lladdr == record.lladdr
        && now.wrapping_sub(said.at) < REPUBLISH_AFTER_NS.load()
    {
        return count(Counter::Known(RecordKind::Neighbour));
    }
    record.at = now;
    let withdraws_published = said.is_some() && (gone || validity == INVALID);
    if !withdraws_published && !spend(&record.ifindex, record.at, Purse::Neighbours) {
        return count(Counter::Dropped(DropReason::NeighbourBudget));
    }
    if EVENTS.output::<NeighbourRecord>(&*record, 0).is_err() {
        return count(Counter::Dropped(DropReason::RingFull));
    }
    count(Counter::Published(RecordKind::Neighbour));
    // Neither failure matters: an entry that is not remembered, or remembered too long, is only published once more.
    if gone {
        let _ = NEIGHBOURS.remove(key);
    } else {
        let said = NeighbourSaid {
            at: now,
            lladdr: record.lladdr,
            validity,
            reserved: 0,
        };
        let _ = NEIGHBOURS.insert(key, said, 0);
    }
}

/// Which of a device's budgets pays.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Purse {
    Frames,
    Neighbours,
}

/// Spends one token of a device's budget; `false` where there is none, which is then counted for the device too.
#[inline(always)]
pub(crate) fn spend(ifindex: &u32, now: u64, purse: Purse) -> bool {
    let budget = Budget {
        interval_ns: BUDGET_INTERVAL_NS.load(),
        window_ns: BUDGET_WINDOW_NS.load(),
    };
    let Some(device) = BUDGETS.get_ptr_mut(ifindex) else {
        let Some(full_at) = budget.spend(0, now) else {
            return false;
        };
        let mut device = DeviceBudget {
            frames_full_at: 0,
            neighbours_full_at: 0,
            frames_turned_away: 0,
            neighbours_turned_away: 0,
        };
        match purse {
            Purse::Frames => device.frames_full_at = full_at,
            Purse::Neighbours => device.neighbours_full_at = full_at,
        }
        let _ = BUDGETS.insert(ifindex, device, 0);
        return true;
    };
    // SAFETY: the value lives as long as the program runs; words are read and written whole. What two CPUs do to it at
    // once is described at `Budget`.
    unsafe {
        let (full_at, turned_away) = match purse {
            Purse::Frames => (
                &raw mut (*device).frames_full_at,
                &raw mut (*device).frames_turned_away,
            ),
            Purse::Neighbours => (
                &raw mut (*device).neighbours_full_at,
                &raw mut (*device).neighbours_turned_away,
            ),
        };
        if let Some(next) = budget.spend(*full_at, now) {
            *full_at = next;
            true
        } else {
            *turned_away += 1;
            false
        }
    }
}
