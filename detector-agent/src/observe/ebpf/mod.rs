//! The kernel programs: loading them, attaching them to pod devices, and reading their output.
//!
//! - [`Programs`] is loaded once and attaches to devices; it blocks on kernel locks, so it belongs to a thread that may wait.
//! - [`RingReader`] turns the records of the ring buffer into observations.
//! - [`CounterReader`] reads the programs' counters, above all those of lost observations.
//! - [`KernelLogReader`] turns the programs' log (`--kernel-log`) into the agent's.
//! - [`leftovers`] removes the filters of an agent that was killed.
//!
//! Invariants: nothing here delays or changes a packet; every loss is counted in the kernel; filters and programs of others
//! stay as they are.
//!
//! Limits: a device has at most one `clsact` or `ingress` queueing discipline. Once the agent has added `clsact`, no program can
//! add the older `ingress`, as the CNI plugin `bandwidth` does; `--attach tcx` needs neither.

mod attach;
mod attach_error;
mod btf;
mod capability;
mod claimed;
mod counters;
mod filter_changes;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod kernel_log;
pub mod leftovers;
mod load;
mod load_error;
mod offsets;
mod placement;
mod ring_reader;
mod tc;
mod tcx;
mod test_run;

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use ipnet::IpNet;

pub use attach::{AttachMethod, AttachOutcome};
pub use attach_error::AttachError;
pub use claimed::ClaimedError;
pub use counters::{CounterError, CounterReader, CounterValues, DeviceLosses, LossCounters};
pub use filter_changes::ChangedDevices;
pub use kernel_log::KernelLogReader;
pub use load::Programs;
pub use load_error::{BtfProblem, LoadError};
pub use ring_reader::{RingDrain, RingReader};
pub use tc::TcError;
pub use test_run::{TestRunError, TestRunResult, test_run};

/// Where to attach on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachMode {
    /// clsact, unless another program is attached by TCX.
    #[default]
    Auto,
    /// clsact.
    ///
    /// Fast, on every kernel.
    Tc,
    /// TCX, before all other programs.
    ///
    /// Takes about 15 ms per device, during which the kernel blocks other configuration of links.
    Tcx,
}

/// Maximum number of [`EbpfOptions::shared`] networks, which bounds the memory of their table in the kernel.
pub const SHARED_NETWORKS: usize = 4096;

/// What the kernel log contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelLog {
    /// Nothing; the verifier removes the code.
    #[default]
    Off,
    /// Rejected frames and lost observations.
    Losses,
    /// Also observations that were published recently, and neighbour updates that are not followed.
    All,
}

/// Target of the kernel log in `tracing`, and so in `RUST_LOG`.
pub const KERNEL_LOG_TARGET: &str = "detector_ebpf";

/// How the programs are loaded.
#[derive(Clone, Debug)]
pub struct EbpfOptions {
    /// Size of the ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Where to attach.
    pub attach: AttachMode,
    /// The running kernel's BTF; by default `/sys/kernel/btf/vmlinux`.
    pub btf: Option<PathBuf>,
    /// How long a published observation is not published again.
    pub republish_after: Duration,
    /// Number of new claims that a device may make at once; the same for neighbour entries. Contested claims beyond it have
    /// a budget of their own.
    pub budget_burst: u32,
    /// Networks of shared addresses: each move between devices is published. Those after the first
    /// [`SHARED_NETWORKS`] are ignored.
    pub shared: Vec<IpNet>,
    /// Number of new claims that a device may make per second after that; zero means no limit.
    pub budget_per_second: u32,
    /// What the kernel log contains.
    pub kernel_log: KernelLog,
}

impl Default for EbpfOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            attach: AttachMode::Auto,
            btf: None,
            republish_after: Duration::from_secs(30),
            shared: Vec::new(),
            budget_burst: 512,
            budget_per_second: 256,
            kernel_log: KernelLog::Off,
        }
    }
}
