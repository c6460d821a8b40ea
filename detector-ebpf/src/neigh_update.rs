//! `tp_btf/neigh_update_done`: the kernel has processed an update of a neighbour entry.
//!
//! Not `neigh_update`, which fires on entry with the requested values: an entry that is PERMANENT, or whose address must not
//! be overridden, stays as it is regardless. Here the entry is read as it is after the update.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::neighbour;

/// Publishes the entry's new state.
#[btf_tracepoint(function = "neigh_update_done")]
pub(crate) fn ipconflict_neigh_update(ctx: BtfTracePointContext) -> i32 {
    neighbour::observe(ctx.arg::<*const c_void>(0), false);
    0
}
