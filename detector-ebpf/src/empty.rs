//! A classifier that does nothing: what the cost of the real one is measured against. The agent never loads it.

use aya_ebpf::{macros::classifier, programs::TcContext};

/// Lets every packet go on.
#[classifier]
pub(crate) fn ipconflict_empty(_ctx: TcContext) -> i32 {
    -1
}
