//! `test --vm`: the privileged tests in virtual machines, on the oldest supported kernel and a later one.
//!
//! The guest uses this machine's file system, read-only under an overlay in memory, with another
//! kernel. Whatever the tests need is therefore installed already, and a guest leaves nothing behind.
//! Each kernel ends with a report: a guest that hangs is stopped at a time limit, one that dies is
//! reported as such, and excluded tests are listed with the reason.

mod guest;
mod image;
mod kernel;
mod plan;
mod report;

pub(crate) use plan::GUEST_ONLY;

use std::{
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use anyhow::Result;

use crate::{ebpf, host, setup, stdout::print_line, workspace::Workspace};
use kernel::{GuestKernel, UnpackedKernel};
use plan::TestPlan;
use report::KernelReport;

/// Which tests run in each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Suite {
    /// Load, attach, detect, detach: minutes
    Core,
    /// All privileged tests, except those that do not depend on the kernel
    Full,
}

impl Suite {
    /// Time limit of a guest. Emulation is about ten times slower than the host.
    fn limit(self) -> Duration {
        match self {
            Self::Core => Duration::from_secs(30 * 60),
            Self::Full => Duration::from_secs(90 * 60),
        }
    }
}

/// Runs `suite` on the kernels whose series is in `only`, or on all if it is empty.
///
/// # Errors
/// The user is not root, something could not be built or downloaded, or a kernel did not pass.
pub(crate) fn run(workspace: &Workspace, suite: Suite, only: &[String]) -> Result<()> {
    host::require_root("the guests share this machine's file system")?;
    setup::ensure(workspace, &[setup::BUILD, setup::TEST, setup::VM])?;
    let kernels = GuestKernel::select(only)?;
    let object = ebpf::build(workspace)?;
    let plan = TestPlan::build(workspace, suite, &object)?;
    let mut guests = Vec::new();
    for kernel in kernels {
        guests.push((kernel, kernel.fetch(workspace)?));
    }
    let mut reports = Vec::new();
    for group in guests.chunks(simultaneous_guests()) {
        // A guest uses one processor of this machine.
        let results = thread::scope(|scope| {
            let running: Vec<_> = group
                .iter()
                .map(|(kernel, unpacked)| {
                    let (plan, limit) = (&plan, suite.limit());
                    scope.spawn(move || run_guest(workspace, *kernel, unpacked, plan, limit))
                })
                .collect();
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        for result in results {
            reports.push(result?);
        }
    }
    report::check_all_passed(&reports)
}

fn run_guest(
    workspace: &Workspace,
    kernel: GuestKernel,
    unpacked: &UnpackedKernel,
    plan: &TestPlan,
    limit: Duration,
) -> Result<KernelReport> {
    print_line(format!("Linux {}: booting", kernel.series))?;
    let report = guest::run(workspace, kernel, unpacked, plan, limit)
        .unwrap_or_else(|error| KernelReport::not_started(kernel.series, &error));
    report.print()?;
    Ok(report)
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The number of guests for which this machine has processors and memory.
fn simultaneous_guests() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let by_memory = host::available_memory_mib().unwrap_or_default() / guest::MEMORY_MIB;
    processors
        .min(by_memory.try_into().unwrap_or(usize::MAX))
        .max(1)
}
