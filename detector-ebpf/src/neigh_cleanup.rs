//! `tp_btf/neigh_cleanup_and_release`: the kernel removes a neighbour entry.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::neighbour;

/// Publishes that the entry is gone.
#[btf_tracepoint(function = "neigh_cleanup_and_release")]
pub(crate) fn ipconflict_neigh_cleanup(ctx: BtfTracePointContext) -> i32 {
    neighbour::observe(ctx.arg::<*const c_void>(0), true);
    0
}
