//! `tp_btf/neigh_timer_handler`: a timer changed a neighbour's state (REACHABLE to STALE, PROBE to FAILED).

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::neighbour;

/// Publishes the entry's new state.
#[btf_tracepoint(function = "neigh_timer_handler")]
pub(crate) fn ipconflict_neigh_timer(ctx: BtfTracePointContext) -> i32 {
    neighbour::observe(ctx.arg::<*const c_void>(0), false);
    0
}
