//! Pods that ask everybody for one address again and again: what is answered is asked for once.
//!
//! Each device has a few places, one for each hash of an address, so that a pod that asks for many displaces none of
//! another pod's counts, and of its own only those that meet it in a place. Published, within the device's budget, is
//! the third question within five seconds, and then at most one each five seconds.

use aya_ebpf::{
    helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
    macros::map,
    maps::LruHashMap,
};
use detector_common::{
    Claim, Counter, DropReason, QUESTION_ARP, QUESTION_NDP, QuestionRecord, TAG_ARP,
    frame::question,
};

use crate::{
    emit::{Purse, spend},
    maps::{EVENTS, count},
    skb::Skb,
};

/// So often within [`WITHIN_NS`] is a question worth telling.
const TIMES: u32 = 3;
/// Five seconds.
const WITHIN_NS: u64 = 5_000_000_000;
/// Places of one device, a power of two.
const PLACES: u32 = 16;

/// Devices times places, roughly: one that falls out counts anew.
#[map]
static QUESTIONS: LruHashMap<Place, Asked> = LruHashMap::with_max_entries(16_384, 0);

/// Where a question is counted.
#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    ifindex: u32,
    place: u32,
}

/// The question that was counted last in a place. Two CPUs may write it at once: at worst a question is counted once
/// too little or told once too often.
#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    target: [u64; 2],
    vlan_outer: u16,
    vlan_inner: u16,
    times: u32,
    /// Coarse clock.
    first: u64,
    /// Coarse clock; 0 where it was not told yet.
    told: u64,
}

/// Counts the question that a frame asks, if it asks one, and tells it where it is asked again and again.
#[inline(always)]
pub(crate) fn heed(skb: &Skb, claim: &Claim) {
    let Some(bytes) = question(skb, claim) else {
        return;
    };
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
    let target = [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
    ];
    // SAFETY: the helper takes nothing.
    let now = unsafe { bpf_ktime_get_coarse_ns() };
    let mixed = (target[0] ^ target[1].rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let place = &Place {
        ifindex: claim.ifindex,
        place: (mixed >> 32) as u32 & (PLACES - 1),
    };
    let Some(asked) = QUESTIONS.get_ptr_mut(place) else {
        // A full map makes room; a failure only counts anew.
        let _ = QUESTIONS.insert(place, first(target, claim, now), 0);
        return;
    };
    // SAFETY: the value lives as long as the program runs; what two CPUs do to it at once is described above.
    let asked = unsafe { &mut *asked };
    let same = asked.target[0] == target[0]
        && asked.target[1] == target[1]
        && asked.vlan_outer == claim.vlan_outer
        && asked.vlan_inner == claim.vlan_inner;
    if !same {
        *asked = first(target, claim, now);
        return;
    }
    if now.wrapping_sub(asked.first) > WITHIN_NS {
        asked.first = now;
        asked.times = 0;
    }
    asked.times = asked.times.wrapping_add(1);
    if asked.times < TIMES || (asked.told != 0 && now.wrapping_sub(asked.told) < WITHIN_NS) {
        return;
    }
    // SAFETY: the helper takes nothing.
    let at = unsafe { bpf_ktime_get_ns() };
    if !spend(&claim.ifindex, at, Purse::Frames) {
        return count(Counter::Dropped(DropReason::Budget));
    }
    let record = QuestionRecord {
        at,
        tag: if claim.tag == TAG_ARP {
            QUESTION_ARP
        } else {
            QUESTION_NDP
        },
        reserved: 0,
        vlan_outer: claim.vlan_outer,
        ifindex: claim.ifindex,
        target: bytes,
        asker: claim.address,
        vlan_inner: claim.vlan_inner,
        times: asked.times as u16,
        reserved_too: 0,
    };
    if EVENTS.output::<QuestionRecord>(&record, 0).is_err() {
        return count(Counter::Dropped(DropReason::RingFull));
    }
    asked.told = now;
}

#[inline(always)]
fn first(target: [u64; 2], claim: &Claim, now: u64) -> Asked {
    Asked {
        target,
        vlan_outer: claim.vlan_outer,
        vlan_inner: claim.vlan_inner,
        times: 1,
        first: now,
        told: 0,
    }
}
