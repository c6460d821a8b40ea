//! `test --vm`: the privileged tests inside virtual machines, on the oldest kernel that is supported and on later ones.
//!
//! The guest is this machine's own file system, read-only under a layer in memory, with another kernel below it: what
//! the tests need is there already, and nothing a guest does is left behind. Every kernel ends with a verdict: a guest
//! that hangs is ended by a deadline, one that dies is found dead, and a test that a kernel cannot pass is listed with
//! the reason.

mod guest;
mod image;
mod kernel;
mod plan;
mod verdict;

pub(crate) use guest::{EMULATOR, FILE_SERVER};

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{ebpf, host::Host, requirements::Group, say::say, setup, workspace::Workspace};
use kernel::Kernel;
use plan::Plan;
use verdict::Verdict;

/// How much of the suite runs in each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Suite {
    /// Load, attach, detect, detach: minutes
    Core,
    /// Every privileged test that needs no program which emulation makes unbearably slow
    Full,
}

impl Suite {
    /// When a guest is given up. Emulation is some ten times slower than the machine.
    fn deadline(self) -> Duration {
        match self {
            Self::Core => Duration::from_secs(15 * 60),
            Self::Full => Duration::from_secs(90 * 60),
        }
    }
}

/// Runs `suite` on each kernel whose series is in `only`, or on all.
///
/// # Errors
/// Not root, something could not be built or fetched, or a kernel's verdict is not that all passed.
pub(crate) fn run(workspace: &Workspace, suite: Suite, only: &[String]) -> Result<()> {
    if !Host::inspect().root {
        bail!("the guests share this machine's file system, which needs root");
    }
    setup::ensure(
        workspace,
        &[Group::Build, Group::Demo, Group::Test, Group::Vm],
    )?;
    let kernels = Kernel::chosen(only)?;
    let object = ebpf::build(workspace)?;
    let plan = Plan::build(workspace, suite, &object)?;
    let mut verdicts = Vec::new();
    for kernel in &kernels {
        say(format!("Linux {}: booting", kernel.series))?;
        let verdict = guest::run(workspace, kernel, &plan, suite.deadline())
            .unwrap_or_else(|why| Verdict::broken(kernel.series, &why));
        verdict.print()?;
        verdicts.push(verdict);
    }
    verdict::summarise(&verdicts)
}
