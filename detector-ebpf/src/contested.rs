//! Contested claims and neighbour entries beyond a device's budget: those of addresses that another device, or the node,
//! claims. They are published regardless, so that a pod cannot hide one in a flood of others.
//!
//! The agent keeps the table of claimed addresses. What a pod can publish this way is limited twice: for each address, so
//! that a flood of claims of one does not hide a claim of another, and for each device, so that it cannot fill the ring
//! buffer. The table is looked up only once the budget is empty.
//!
//! A router advertisement is published beyond the budget as well, whatever address it comes from: it concerns every pod on its
//! link. It counts like the claim of one further address.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{HashMap, LruHashMap},
};
use detector_common::{
    AddressKey, Budget, CLAIMED_ADDRESSES, CONTESTS_PER_ADDRESS, NeighbourRecord, RawClaim,
    address_key,
};

use crate::{
    maps::REPUBLISH_AFTER_NS,
    publish::{BudgetKind, spend},
};

/// The device that claims each address, or `SEVERAL_HOLDERS`.
#[map]
static CLAIMED: HashMap<AddressKey, u32> =
    HashMap::with_max_entries(CLAIMED_ADDRESSES, BPF_F_NO_PREALLOC);

/// When the budget with which each device may contest an address is full again. Only claimed addresses have entries; after an
/// eviction a device may publish a few more claims, within its budget for contested claims.
#[map]
static CONTESTS: LruHashMap<ContestKey, u64> = LruHashMap::with_max_entries(8_192, 0);

/// The claims of a device that count as one kind. A tag or a probe makes it another kind, so that a pod cannot use them up
/// with claims that do not count in the network of the address.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContestKey {
    ifindex: u32,
    is_tagged: u16,
    kind: u16,
    address: AddressKey,
}

/// The kind of a neighbour entry. Claims have 0, or 1 if they are tentative.
const NEIGHBOUR: u16 = 2;

/// The key of router advertisements. No address has it.
const ROUTERS: AddressKey = [0; 20];

/// Whether another device than `ifindex`, or the node, claims the address.
#[inline(always)]
fn is_contested(address: &AddressKey, ifindex: u32) -> bool {
    // SAFETY: map memory stays valid while the program runs; the agent writes a value as a whole.
    CLAIMED
        .get_ptr(address)
        .is_some_and(|holder| unsafe { holder.read_volatile() } != ifindex)
}

/// Whether a claim beyond the device's budget is published: it is contested, or of a router, and neither limit is reached. A
/// function of its own, so that it does not grow the hot path's stack frame.
#[inline(never)]
pub(crate) fn may_publish(claim: &RawClaim, now: u64) -> bool {
    let claimed = address_key(claim.tag, claim.address);
    let address = if is_contested(&claimed, claim.ifindex) {
        claimed
    } else if claim.router != 0 {
        ROUTERS
    } else {
        return false;
    };
    let key = &ContestKey {
        ifindex: claim.ifindex,
        is_tagged: u16::from(claim.vlan_outer != 0),
        kind: u16::from(claim.tentative),
        address,
    };
    spend_contest(key, now)
}

/// Whether a neighbour entry beyond the budget of `device` is published, as [`may_publish`].
#[inline(never)]
pub(crate) fn may_publish_neighbour(record: &NeighbourRecord, device: u32) -> bool {
    let key = &ContestKey {
        ifindex: device,
        is_tagged: 0,
        kind: NEIGHBOUR,
        address: address_key(record.claim_tag(), record.address),
    };
    is_contested(&key.address, device) && spend_contest(key, record.at)
}

/// Spends what a device has left to contest the address with.
#[inline(always)]
fn spend_contest(key: &ContestKey, now: u64) -> bool {
    let window_ns = REPUBLISH_AFTER_NS.load();
    let budget = Budget {
        interval_ns: window_ns / CONTESTS_PER_ADDRESS,
        window_ns,
    };
    let known = CONTESTS.get_ptr_mut(key);
    // SAFETY: map memory stays valid while the program runs; `Budget` describes what concurrent updates by two CPUs do. If the
    // entry is reused meanwhile, the state is another address's: a claim more or less.
    let full_at = known.map_or(0, |full_at| unsafe { full_at.read_volatile() });
    let Some(full_at) = budget.spend(full_at, now) else {
        return false;
    };
    if !spend(&key.ifindex, now, BudgetKind::Contested) {
        return false;
    }
    match known {
        // SAFETY: as above.
        Some(place) => unsafe { place.write_volatile(full_at) },
        // A full map evicts an entry; after a failure a claim is published too often.
        None => {
            let _ = CONTESTS.insert(key, full_at, 0);
        }
    }
    true
}
