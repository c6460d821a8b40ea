//! The kernel side: what pods claim by ARP and Neighbour Discovery, and what the kernel's own neighbour tables hold.
//!
//! Invariants:
//! - nothing here changes, delays or drops a packet: every path of the classifier ends in "go on";
//! - what is not published is counted, by reason, so that the agent knows what it did not see;
//! - a claim is remembered as published only once its record is really in the ring buffer.
//!
//! One file per hook; [`maps`] holds the state and what the loader sets, [`emit`] decides what is published.
#![no_std]
#![no_main]

mod arp_ndp;
mod asks;
mod emit;
mod empty;
mod holder;
mod maps;
mod neigh_cleanup;
mod neigh_timer;
mod neigh_update;
mod neighbour;
mod recent;
mod skb;

/// The kernel refuses its GPL helpers to a program without this.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// On the build machine the crate is only type-checked and linted, beside crates that use the standard library: its
/// panic handler then serves here too.
#[cfg(not(target_arch = "bpf"))]
extern crate std;

/// Never reached: the verifier would refuse the program.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
