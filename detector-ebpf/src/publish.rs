//! Decides what is published: nothing twice within an interval, and beyond a device's budget only what [`contested`] permits.
//! Every loss is counted.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
};
use detector_common::{
    Budget, CONTESTED_BUDGET, Counter, DeviceBudget, DropReason, FrameRecord, LogEvent,
    NEIGHBOUR_GONE, NeighbourRecord, RawClaim, RecordKind, TAG_ARP,
};

use crate::{
    contested, last_claim,
    maps::{
        BUDGET_INTERVAL_NS, BUDGET_WINDOW_NS, BUDGETS, EVENTS, NEIGHBOURS, NeighbourKey,
        PublishedNeighbour, REPUBLISH_AFTER_NS, count,
    },
    neighbour::INVALID,
    recent_claims::{self, Lookup},
    shared_address,
};

/// Publishes a frame's claim; the error is the reason if it was not published.
#[inline(always)]
pub(crate) fn claim(claim: &RawClaim) -> Result<(), LogEvent> {
    let kind = if claim.tag == TAG_ARP {
        RecordKind::Arp
    } else {
        RecordKind::Ndp
    };
    // SAFETY: the helper has no arguments. The coarse clock costs a fraction of the exact one.
    let now = unsafe { bpf_ktime_get_coarse_ns() };
    last_claim::set(claim, now);
    let Some(lookup) = recent_claims::find(claim, now) else {
        return Ok(());
    };
    let slot = match lookup {
        Lookup::Recent(slot) if shared_address::is_move(claim) => slot,
        Lookup::Recent(_) => {
            count(Counter::Known(kind));
            return Err(LogEvent::AlreadyPublished(kind));
        }
        Lookup::New(slot) => slot,
    };
    // SAFETY: the helper has no arguments.
    let at = unsafe { bpf_ktime_get_ns() };
    if !spend(&claim.ifindex, at, BudgetKind::Frames) && !contested::may_publish(claim, at) {
        return lost(DropReason::Budget);
    }
    let record = FrameRecord { at, claim: *claim };
    if EVENTS.output::<FrameRecord>(&record, 0).is_err() {
        return lost(DropReason::RingFull);
    }
    slot.set_published(now);
    shared_address::set_holder(claim);
    count(Counter::Published(kind));
    Ok(())
}

/// Publishes a neighbour entry; the error is the reason if it was not published. It needs the budget of the device whose frame
/// changed it, or else of its own. The withdrawal of a published entry needs none: it is bounded by what was published, and
/// losing it would leave an ended claim alive.
#[inline(always)]
pub(crate) fn neighbour(record: &NeighbourRecord, validity: u8) -> Result<(), LogEvent> {
    let key = &NeighbourKey {
        ifindex: record.ifindex,
        ip_version: u32::from(record.ip_version),
        address: record.address,
    };
    let gone = record.tag == NEIGHBOUR_GONE;
    let now = record.at;
    // SAFETY: map memory stays valid while the program runs. If the entry is reused meanwhile, the value belongs to another
    // neighbour: one record too many or too late.
    let published = NEIGHBOURS
        .get_ptr(key)
        .map(|published| unsafe { published.read() });
    if let Some(published) = published
        && !gone
        && published.validity == validity
        && published.lladdr == record.lladdr
        && now.saturating_sub(published.at) < REPUBLISH_AFTER_NS.load()
    {
        count(Counter::Known(RecordKind::Neighbour));
        return Err(LogEvent::AlreadyPublished(RecordKind::Neighbour));
    }
    // Another CPU has published a later state already.
    if published.is_some_and(|published| published.at > now) {
        count(Counter::Known(RecordKind::Neighbour));
        return Err(LogEvent::AlreadyPublished(RecordKind::Neighbour));
    }
    let withdraws_published = published.is_some() && (gone || validity == INVALID);
    let device = last_claim::device_of(record).unwrap_or(record.ifindex);
    if !withdraws_published
        && !spend(&device, now, BudgetKind::Neighbours)
        && !contested::may_publish_neighbour(record, device)
    {
        return lost(DropReason::NeighbourBudget);
    }
    if EVENTS.output::<NeighbourRecord>(record, 0).is_err() {
        return lost(DropReason::RingFull);
    }
    count(Counter::Published(RecordKind::Neighbour));
    // Failures are harmless: an entry that is not remembered, or remembered too long, is only published once more.
    if gone {
        let _ = NEIGHBOURS.remove(key);
    } else {
        let published = PublishedNeighbour {
            at: now,
            lladdr: record.lladdr,
            validity,
            reserved: 0,
        };
        let _ = NEIGHBOURS.insert(key, published, 0);
    }
    Ok(())
}

/// Counts a lost observation.
#[inline(always)]
pub(crate) fn lost(reason: DropReason) -> Result<(), LogEvent> {
    count(Counter::Dropped(reason));
    Err(LogEvent::Dropped(reason))
}

/// The budgets of a device.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BudgetKind {
    Frames,
    Neighbours,
    /// Contested claims and neighbour entries beyond the other budgets.
    Contested,
}

/// The state of a device that has not spent anything. Read-only data instead of a value on the stack, which the BPF backend would
/// clear byte by byte in a loop: the verifier needed half of its time for that.
static UNSPENT: DeviceBudget = DeviceBudget {
    frames_full_at: 0,
    neighbours_full_at: 0,
    contested_full_at: 0,
    frames_over_budget: 0,
    neighbours_over_budget: 0,
};

/// Spends one token of a device's budget. Without a token, returns `false` and counts it for the device.
#[inline(always)]
pub(crate) fn spend(ifindex: &u32, now: u64, kind: BudgetKind) -> bool {
    let budget = match kind {
        BudgetKind::Contested => CONTESTED_BUDGET,
        BudgetKind::Frames | BudgetKind::Neighbours => Budget {
            interval_ns: BUDGET_INTERVAL_NS.load(),
            window_ns: BUDGET_WINDOW_NS.load(),
        },
    };
    let known = BUDGETS.get_ptr_mut(ifindex).or_else(|| {
        // A reference: a copy would be on the stack.
        let unspent = &UNSPENT;
        let _ = BUDGETS.insert(ifindex, unspent, BPF_NOEXIST.into());
        BUDGETS.get_ptr_mut(ifindex)
    });
    let Some(device) = known else {
        return true;
    };
    // SAFETY: map memory stays valid while the program runs; words are read and written as a whole. `Budget` describes
    // what concurrent updates by two CPUs do.
    unsafe {
        let (full_at, over_budget) = match kind {
            BudgetKind::Frames => (
                &raw mut (*device).frames_full_at,
                Some(&raw mut (*device).frames_over_budget),
            ),
            BudgetKind::Neighbours => (
                &raw mut (*device).neighbours_full_at,
                Some(&raw mut (*device).neighbours_over_budget),
            ),
            // Counted for the budget that was exceeded.
            BudgetKind::Contested => (&raw mut (*device).contested_full_at, None),
        };
        if let Some(next) = budget.spend(*full_at, now) {
            *full_at = next;
            true
        } else {
            if let Some(over_budget) = over_budget {
                *over_budget += 1;
            }
            false
        }
    }
}
