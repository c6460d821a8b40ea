//! The table of claimed addresses, by which the kernel program recognises a contested claim.

use crate::Budget;

/// Maximum number of claimed addresses that the kernel program knows.
pub const CLAIMED_ADDRESSES: u32 = 32_768;

/// The holder of an address that several devices claim, or the node. No device has this index.
pub const SEVERAL_HOLDERS: u32 = 0;

/// What a device may publish beyond its budget for frames: claims of addresses that others claim.
pub const CONTESTED_BUDGET: Budget = Budget::new(4_096, 2_048);

/// How often a device may contest one address with different claims within the interval after which a claim is published
/// again. Claims with and without a VLAN tag, and probes, are counted separately.
pub const CONTESTS_PER_ADDRESS: u64 = 4;
