//! The kernel programs: claims that pods make by ARP and Neighbour Discovery, and changes of the kernel's neighbour tables.
//!
//! Invariants:
//! - no program changes, delays or drops a packet: every path of the classifier returns "continue";
//! - everything that is not published is counted by reason, so that the agent knows what it did not see;
//! - a claim is remembered as published only after its record is in the ring buffer.
//!
//! One file per hook; [`maps`] holds the maps and the globals that the loader sets, [`publish`] decides what is published,
//! [`log`] explains what is not.
#![no_std]
#![no_main]

mod arp_ndp;
mod contested;
mod last_claim;
mod log;
mod maps;
mod neigh_cleanup;
mod neigh_timer;
mod neigh_update;
mod neighbour;
mod publish;
mod recent_claims;
mod shared_address;
mod skb;
mod unanswered;

/// The kernel offers its GPL helpers only to programs that declare a compatible licence.
// SAFETY: the section is read by the loader alone, as a zero-terminated string.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// On the host the crate is only type-checked and linted, together with crates that use the standard library, whose panic
/// handler then serves here too.
#[cfg(not(target_arch = "bpf"))]
extern crate std;

/// Never called: the verifier rejects a program that can reach an endless loop.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
