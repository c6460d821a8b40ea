//! `tp_btf/neigh_update_done`: the kernel has dealt with news about a neighbour.
//!
//! Not `neigh_update`, which fires on entry with what somebody asked for: an entry that is PERMANENT, or whose address may
//! not be overridden, stays as it is whatever was asked. Here the entry is read as the kernel then holds it.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::neighbour;

/// Publishes the entry's new state.
#[btf_tracepoint(function = "neigh_update_done")]
pub(crate) fn ipconflict_neigh_update(ctx: BtfTracePointContext) -> i32 {
    neighbour::observe(ctx.arg::<*const c_void>(0), false);
    0
}
