//! Types shared by the kernel programs and the agent: ring buffer records, counters, and the frame parser.
//!
//! Invariants:
//! - a record has the same layout on both sides, asserted at compile time field by field;
//! - bytes from the ring buffer are not trusted: [`RingRecord::decode`] checks the length and every discriminant;
//! - [`frame::parse`] alone decides what a frame claims. The kernel program and the tests on the host run the same code
//!   over different [`frame::FrameReader`]s.
#![no_std]

#[cfg(test)]
extern crate std;

mod budget;
mod claimed;
mod counter;
pub mod frame;
mod kernel_log;
mod recent;
mod record;

pub use budget::{Budget, DeviceBudget};
pub use claimed::{CLAIMED_ADDRESSES, CONTESTED_BUDGET, CONTESTS_PER_ADDRESS, SEVERAL_HOLDERS};
pub use counter::{COUNTERS, Counter, DropReason, RecordKind, RejectReason};
pub use kernel_log::{IgnoreReason, LogEvent, LogLine};
pub use recent::{RECENT_BUCKET_BITS, RECENT_GROUP, RecentBucket, recent_bucket, recent_group};
pub use record::{
    AddressKey, DecodeError, FAMILY_BITS, FrameRecord, NEIGHBOUR_GONE, NEIGHBOUR_UPDATE,
    NeighbourRecord, RawClaim, RingRecord, TAG_ARP, TAG_NDP, UNANSWERED_ARP, UNANSWERED_NDP,
    UnansweredProbeRecord, address_key,
};
