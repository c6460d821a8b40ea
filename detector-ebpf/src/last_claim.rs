//! The last claim in a frame that each CPU saw, and the device that it came in on.
//!
//! The network stack processes a frame on the CPU that ran the classifier, so an entry for the same address that changes on
//! this CPU right after it was changed by the frame. On a bridge the entry is the bridge's; its record needs the budget of the
//! port, so that a pod uses up neither what the other ports nor what other changes of the table need.
//!
//! Where the stack processes the frame on another CPU (receive packet steering), and for what a timer changes later, the record
//! needs the budget of the entry's device.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use detector_common::{NeighbourRecord, RawClaim};

/// How long after a claim an entry was changed by it: longer than a tick, in which the coarse clock stands still.
const WINDOW_NS: u64 = 20_000_000;

#[map]
static LAST_CLAIM: PerCpuArray<LastClaim> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
#[derive(Clone, Copy)]
struct LastClaim {
    /// When the frame was seen (coarse clock).
    at: u64,
    address: [u64; 2],
    ifindex: u32,
    /// As in [`RawClaim`]: an IPv6 address may consist of the same bytes as an IPv4 one.
    tag: u32,
}

/// Remembers a claim, whether it is published or not, at `now` (coarse clock).
#[inline(always)]
pub(crate) fn set(claim: &RawClaim, now: u64) {
    if let Some(last) = LAST_CLAIM.get_ptr_mut(0) {
        let claim = LastClaim {
            at: now,
            address: words(claim.address),
            ifindex: claim.ifindex,
            tag: u32::from(claim.tag),
        };
        // SAFETY: the value belongs to this CPU, and map memory stays valid while the program runs. A program that interrupts
        // this one costs the attribution of one entry.
        unsafe { last.write(claim) };
    }
}

/// The device whose frame changed the entry, if a frame did.
#[inline(always)]
pub(crate) fn device_of(record: &NeighbourRecord) -> Option<u32> {
    let last = LAST_CLAIM.get_ptr(0)?;
    // SAFETY: as above.
    let last = unsafe { last.read() };
    let address = words(record.address);
    let is_same = last.address[0] == address[0]
        && last.address[1] == address[1]
        && last.tag == u32::from(record.claim_tag())
        && record.at.saturating_sub(last.at) < WINDOW_NS;
    is_same.then_some(last.ifindex)
}

/// For comparison without a call: the BPF backend turns `==` on arrays into a call of a byte loop.
#[inline(always)]
fn words(address: [u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
    ]
}
