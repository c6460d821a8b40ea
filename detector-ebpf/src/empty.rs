//! A classifier that does nothing: the baseline of the packet cost benchmark, and a foreign program for tests of attaching.
//! Built into an object of its own, which the agent does not embed.
#![no_std]
#![no_main]

use aya_ebpf::{macros::classifier, programs::TcContext};

/// Lets every packet pass.
#[classifier]
pub(crate) fn ipconflict_empty(_ctx: TcContext) -> i32 {
    -1
}

/// The kernel offers its GPL helpers only to programs that declare a compatible licence.
// SAFETY: the section is read by the loader alone, as a zero-terminated string.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// As in `main.rs`: on the host the panic handler of the standard library is used.
#[cfg(not(target_arch = "bpf"))]
extern crate std;

/// Never called: the program cannot panic.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
