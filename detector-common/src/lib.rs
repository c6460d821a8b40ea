//! What the kernel programs and the agent share: the records of the ring buffer, the counters, and how a frame is read.
//!
//! Invariants:
//! - a record has the same layout on both sides; that is asserted at compile time, field by field;
//! - nothing that comes out of the ring buffer is trusted: [`Record::decode`] checks length and discriminants;
//! - [`frame::examine`] is the only place that decides what a frame claims. The kernel program and the tests on the
//!   host run the same code over different [`frame::Frame`]s.
#![no_std]

#[cfg(test)]
extern crate std;

mod budget;
mod counter;
pub mod frame;
mod record;

pub use budget::{Budget, DeviceBudget};
pub use counter::{COUNTERS, Counter, DropReason, RecordKind, RejectReason};
pub use record::{
    Claim, DecodeError, FrameRecord, NEIGHBOUR_GONE, NEIGHBOUR_UPDATE, NeighbourRecord,
    QUESTION_ARP, QUESTION_NDP, QuestionRecord, Record, SHARED_KIND_BITS, SharedAddress, TAG_ARP,
    TAG_NDP, shared_address,
};
