//! Pods that repeatedly request the same address by broadcast or multicast. A stack whose request is answered asks once; a
//! program such as arping repeats it even then, and answers are not seen here.
//!
//! Each device has a fixed number of slots, selected by a hash of the address, so that a pod that asks for many addresses
//! displaces no counts of other pods, and of its own only those in the same slot. The third request within five seconds is
//! published, within the device's budget, and then at most one record every five seconds.

use aya_ebpf::{
    helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
    macros::map,
    maps::LruHashMap,
};
use detector_common::{
    DropReason, LogEvent, RawClaim, TAG_ARP, UNANSWERED_ARP, UNANSWERED_NDP, UnansweredProbeRecord,
    frame::probed_address,
};

use crate::{
    maps::EVENTS,
    publish::{BudgetKind, lost, spend},
    skb::Skb,
};

/// Number of requests within [`INTERVAL_NS`] that are published.
const MIN_REQUESTS: u16 = 3;
/// Requests are counted within this interval.
const INTERVAL_NS: u64 = 5_000_000_000;
/// Slots of one device, a power of two.
const SLOTS: u32 = 16;

/// One entry per device and slot in use. After an eviction the count starts again.
#[map]
static PROBES: LruHashMap<SlotKey, ProbeCount> = LruHashMap::with_max_entries(16_384, 0);

#[repr(C)]
#[derive(Clone, Copy)]
struct SlotKey {
    ifindex: u32,
    slot: u32,
}

/// The requests for the address that a slot was last used for.
///
/// Two CPUs may update a slot at once, so it is accessed through raw pointers only. A lost update means one request too
/// few or one record too many; if the fields of two addresses mix, the next request for either starts the count again.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProbeCount {
    target: [u64; 2],
    vlan_outer: u16,
    vlan_inner: u16,
    /// As in [`RawClaim`]: an IPv6 address may consist of the same bytes as an IPv4 one.
    tag: u16,
    requests: u16,
    /// Start of the interval (coarse clock).
    since: u64,
    /// Time of the last record (coarse clock); 0 if there was none.
    published_at: u64,
}

/// Counts the request that a frame makes, if any, and publishes an address that is requested repeatedly; the error is the
/// reason if a record was lost.
#[inline(always)]
pub(crate) fn track_unanswered(skb: &Skb, claim: &RawClaim) -> Result<(), LogEvent> {
    let Some(address) = probed_address(skb, claim) else {
        return Ok(());
    };
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    let target = [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
    ];
    // SAFETY: the helper has no arguments.
    let now = unsafe { bpf_ktime_get_coarse_ns() };
    let mixed = (target[0] ^ target[1].rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = &SlotKey {
        ifindex: claim.ifindex,
        slot: (mixed >> 32) as u32 & (SLOTS - 1),
    };
    let Some(probe) = PROBES.get_ptr_mut(key) else {
        // A full map evicts an entry; after a failure the count starts with the next request.
        let _ = PROBES.insert(key, first_request(target, claim, now), 0);
        return Ok(());
    };
    // SAFETY: map memory stays valid while the program runs. No reference is made, because other CPUs may write the entry;
    // `ProbeCount` describes what that does.
    let requests = unsafe {
        let is_same = (*probe).tag == u16::from(claim.tag)
            && (*probe).target[0] == target[0]
            && (*probe).target[1] == target[1]
            && (*probe).vlan_outer == claim.vlan_outer
            && (*probe).vlan_inner == claim.vlan_inner;
        if !is_same {
            probe.write(first_request(target, claim, now));
            return Ok(());
        }
        if now.wrapping_sub((*probe).since) > INTERVAL_NS {
            (*probe).since = now;
            (*probe).requests = 0;
        }
        let requests = (*probe).requests.wrapping_add(1);
        (*probe).requests = requests;
        let published_at = (*probe).published_at;
        if requests < MIN_REQUESTS
            || (published_at != 0 && now.wrapping_sub(published_at) < INTERVAL_NS)
        {
            return Ok(());
        }
        requests
    };
    // SAFETY: the helper has no arguments.
    let at = unsafe { bpf_ktime_get_ns() };
    if !spend(&claim.ifindex, at, BudgetKind::Frames) {
        return lost(DropReason::Budget);
    }
    let record = UnansweredProbeRecord {
        at,
        tag: if claim.tag == TAG_ARP {
            UNANSWERED_ARP
        } else {
            UNANSWERED_NDP
        },
        reserved: 0,
        vlan_outer: claim.vlan_outer,
        ifindex: claim.ifindex,
        target: address,
        sender: claim.address,
        vlan_inner: claim.vlan_inner,
        times: requests,
        reserved_too: 0,
    };
    if EVENTS.output::<UnansweredProbeRecord>(&record, 0).is_err() {
        return lost(DropReason::RingFull);
    }
    // SAFETY: as above.
    unsafe { (*probe).published_at = now };
    Ok(())
}

#[inline(always)]
fn first_request(target: [u64; 2], claim: &RawClaim, now: u64) -> ProbeCount {
    ProbeCount {
        target,
        vlan_outer: claim.vlan_outer,
        vlan_inner: claim.vlan_inner,
        tag: u16::from(claim.tag),
        requests: 1,
        since: now,
        published_at: 0,
    }
}
