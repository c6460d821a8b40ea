//! TCX on the ingress side of a device, which runs before `clsact` (since Linux 6.6).

use aya::programs::{
    LinkOrder, SchedClassifier, TcAttachType,
    tc::{SchedClassifierLink, TcAttachOptions},
};
use detector_engine::IfIndex;
use nix::{libc, net::if_::if_nametoindex};

use super::{AttachError, attach_error::program_error, leftovers::PROGRAM};

/// Whether a program of others is there; `false` on a kernel without TCX.
pub(super) fn has_foreign_program(ifindex: IfIndex, name: &str) -> bool {
    count(ifindex) > 0 && list(name).contains(&false)
}

/// How many programs are there; 0 on a kernel without TCX, and if the device is gone. One system call, where [`list`] takes
/// four: every device is asked every few seconds.
fn count(ifindex: IfIndex) -> u32 {
    let mut query = ProgramQuery {
        ifindex,
        attach_type: TCX_INGRESS,
        ..ProgramQuery::default()
    };
    // SAFETY: the kernel reads and writes no more than this size, and follows no pointer, as `program_ids` is null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROGRAM_QUERY,
            &raw mut query,
            size_of::<ProgramQuery>(),
        )
    };
    if result == 0 { query.count } else { 0 }
}

/// `BPF_PROG_QUERY` and `BPF_TCX_INGRESS` in `include/uapi/linux/bpf.h`.
const PROGRAM_QUERY: libc::c_int = 16;
const TCX_INGRESS: u32 = 46;

/// `query` in `union bpf_attr` of the same file.
#[repr(C, align(8))]
#[derive(Default)]
struct ProgramQuery {
    ifindex: IfIndex,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    padding: u32,
    program_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// Whether our program runs before all others there.
pub(super) fn is_first(name: &str) -> bool {
    list(name).first() == Some(&true)
}

/// Which of the programs are ours, in the order in which they run. None on a kernel without TCX.
fn list(name: &str) -> Vec<bool> {
    let Ok((_, programs)) = SchedClassifier::query_tcx(name, TcAttachType::Ingress) else {
        return Vec::new();
    };
    // The kernel truncates a program's name to 15 bytes; a program may have none.
    let ours = PROGRAM.get(..15);
    let is_ours = programs.iter().map(|program| program.name_as_str() == ours);
    is_ours.collect()
}

/// Attaches before all other programs. aya attaches by name, so the index is compared before and after, in case another device
/// takes over the name meanwhile.
pub(super) fn attach_first(
    program: &mut SchedClassifier,
    ifindex: IfIndex,
    name: &str,
) -> Result<SchedClassifierLink, AttachError> {
    let is_same_device = || if_nametoindex(name) == Ok(ifindex);
    let vanished = || AttachError::Vanished {
        name: name.to_owned(),
    };
    if !is_same_device() {
        return Err(vanished());
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program
        .attach_with_options(name, TcAttachType::Ingress, options)
        .and_then(|id| program.take_link(id))
        .map_err(|error| program_error(name, &error))?;
    if !is_same_device() {
        return Err(vanished());
    }
    Ok(link)
}
