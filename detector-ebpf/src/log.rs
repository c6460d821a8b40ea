//! The kernel log (`--kernel-log`): why something was not published.
//!
//! All lines have one format, which `detector_common::LogLine` parses, because every use of aya-log's macro adds thousands of
//! instructions to the object. They travel through aya-log's own ring buffer and never take room from observations.
//!
//! Costs nothing while it is off: [`KERNEL_LOG`] is a constant to the verifier, which removes everything behind it. The
//! functions that write a line are subprograms of their own, so that they do not grow the hot path's stack frame either.

use aya_ebpf::{Global, helpers::generated::bpf_ktime_get_ns, macros::map, maps::LruHashMap};
use aya_log_ebpf::info;
use detector_common::{
    Budget, Counter, IgnoreReason, LogEvent, NeighbourRecord, RawClaim, RejectReason, TAG_ARP,
    frame::FrameReader,
};

use crate::{maps::count, skb::Skb};

/// 0: off; 1: rejected frames and losses; 2: also what was published recently or is not followed.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
static KERNEL_LOG: Global<u32> = Global::new(0);

const LOSSES: u32 = 1;
const ALL: u32 = 2;

/// When each device's budget of lines is full again. The loader reduces the size while the log is off.
#[map]
static LOG_BUDGETS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(1_024, 0);

/// Lines of one device: 64 at once, 32 a second.
const BUDGET: Budget = Budget::new(64, 32);

const ARP: u16 = 0x0806_u16.to_be();
const IPV6: u16 = 0x86dd_u16.to_be();
const ICMPV6: u8 = 58;

/// Logs that a frame is not a valid claim.
#[inline(always)]
pub(crate) fn rejected_frame(skb: Skb, reason: RejectReason) {
    if KERNEL_LOG.load() >= LOSSES {
        log_frame(skb, LogEvent::Rejected(reason).code());
    }
}

/// Logs why a claim, or the address that the same frame asks for, was not published.
#[inline(always)]
pub(crate) fn unpublished_claim(claim: &RawClaim, event: LogEvent) {
    if is_enabled(event) {
        log_claim(claim, event.code());
    }
}

/// Logs why a neighbour entry was not published.
#[inline(always)]
pub(crate) fn unpublished_neighbour(record: &NeighbourRecord, event: LogEvent) {
    if is_enabled(event) {
        log_neighbour(record, event.code());
    }
}

/// Logs a neighbour entry that the agent does not follow; `value` is its network namespace's inode or its address family.
#[inline(always)]
pub(crate) fn ignored_neighbour(reason: IgnoreReason, value: u32) {
    if KERNEL_LOG.load() >= ALL {
        log_ignored(LogEvent::Ignored(reason).code(), value);
    }
}

#[inline(always)]
fn is_enabled(event: LogEvent) -> bool {
    let level = match event {
        LogEvent::Rejected(_) | LogEvent::Dropped(_) => LOSSES,
        LogEvent::AlreadyPublished(_) | LogEvent::Ignored(_) => ALL,
    };
    KERNEL_LOG.load() >= level
}

/// The columns of a line, zero where they do not apply.
struct Line {
    ifindex: u32,
    /// See [`LogEvent::code`].
    code: u32,
    /// 4 or 6: how to read the addresses.
    ip_version: u32,
    /// The NUD state of a neighbour, or what it is ignored for.
    detail: u32,
    ether_source: [u8; 6],
    mac: [u8; 6],
    /// As in the records: for IPv4 the first four bytes.
    address: [u8; 16],
    target: [u8; 16],
}

/// Writes a line, which is always counted, so that the agent finds out about those that a limit or a full buffer suppresses.
#[inline(never)]
fn write(line: &Line) {
    count(Counter::LogLines);
    if has_budget(line.ifindex) {
        info!(
            (),
            "{} {} {} {} {:mac} {:mac} {:i} {:i}",
            line.ifindex,
            line.code,
            line.ip_version,
            line.detail,
            line.ether_source,
            line.mac,
            line.address,
            line.target
        );
    }
}

/// Spends a token of the device's budget of lines.
#[inline(always)]
fn has_budget(ifindex: u32) -> bool {
    // SAFETY: the helper has no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(full_at) = LOG_BUDGETS.get_ptr_mut(ifindex) else {
        let _ = LOG_BUDGETS.insert(ifindex, BUDGET.spend(0, now).unwrap_or(now), 0);
        return true;
    };
    // SAFETY: map memory stays valid while the program runs; `Budget` describes what concurrent updates do.
    unsafe {
        let Some(next) = BUDGET.spend(*full_at, now) else {
            return false;
        };
        *full_at = next;
    }
    true
}

/// Logs the addresses at their usual offsets. The frame may be malformed, so they are a hint at most; a frame with a VLAN
/// tag inside, or too short for them, is described by its Ethernet source alone. The target behind IPv6 extension headers is
/// not logged.
#[inline(never)]
fn log_frame(skb: Skb, code: u32) {
    let mut line = Line {
        ifindex: skb.ifindex(),
        code,
        ip_version: 0,
        detail: 0,
        ether_source: [0; 6],
        mac: [0; 6],
        address: [0; 16],
        target: [0; 16],
    };
    // Loaded in place, the last field of the frame first: before Linux 6.13 the stack frames of this function and of the
    // parser share 512 bytes.
    skb.load_into(6, &mut line.ether_source);
    match skb.protocol() {
        ARP => {
            if let Some(target) = line.target.first_chunk_mut::<4>()
                && let Some(address) = line.address.first_chunk_mut::<4>()
                && skb.load_into(38, target)
            {
                line.ip_version = 4;
                skb.load_into(22, &mut line.mac);
                skb.load_into(28, address);
            }
        }
        IPV6 if skb.load_into(62, &mut line.target) => {
            line.ip_version = 6;
            skb.load_into(22, &mut line.address);
            if skb.peek(20) != Some(ICMPV6) {
                line.target = [0; 16];
            }
        }
        _ => {}
    }
    write(&line);
}

#[inline(never)]
fn log_claim(claim: &RawClaim, code: u32) {
    write(&Line {
        ifindex: claim.ifindex,
        code,
        ip_version: if claim.tag == TAG_ARP { 4 } else { 6 },
        detail: 0,
        ether_source: claim.ether_source,
        mac: claim.mac,
        address: claim.address,
        target: [0; 16],
    });
}

#[inline(never)]
fn log_neighbour(record: &NeighbourRecord, code: u32) {
    write(&Line {
        ifindex: record.ifindex,
        code,
        ip_version: u32::from(record.ip_version),
        detail: u32::from(record.state),
        ether_source: [0; 6],
        mac: record.lladdr,
        address: record.address,
        target: [0; 16],
    });
}

#[inline(never)]
fn log_ignored(code: u32, detail: u32) {
    write(&Line {
        ifindex: 0,
        code,
        ip_version: 0,
        detail,
        ether_source: [0; 6],
        mac: [0; 6],
        address: [0; 16],
        target: [0; 16],
    });
}
