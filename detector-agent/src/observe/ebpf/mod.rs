//! The kernel programs: loading them, attaching them to pod devices, and reading what they say.
//!
//! - [`Programs`] is loaded once and attaches to devices; it blocks on the kernel, so it lives on a thread that may wait.
//! - [`RingReader`] turns the records of the ring buffer into observations.
//! - [`CounterReader`] reads what the programs counted: above all what they had to drop.
//! - [`leftovers`] removes the filters of an agent that was killed.
//!
//! Invariants: nothing here delays or changes a packet; every loss is counted, in the kernel, before anyone could notice
//! its absence; what other people have attached stays as it is.
//!
//! Limits: a device's `clsact` queueing discipline is one for everyone. While it is there nobody can add the older
//! `ingress` one, which the CNI plugin `bandwidth` does; `--attach tcx` needs none.

mod attach;
mod btf;
mod capability;
mod counters;
pub(crate) mod fuzzing;
pub mod leftovers;
mod load;
mod offsets;
mod removals;
mod ring;
mod tc;
mod trial;

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use ipnet::IpNet;

pub use attach::{AttachError, Attached};
pub use counters::{CounterReader, Counts, DeviceLosses, Losses, ReadError};
pub use load::{BtfProblem, LoadError, Programs};
pub use ring::{Drained, RingReader};
pub use tc::TcError;
pub use trial::{Subject, Trial, TrialError};

/// Where to attach on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachMode {
    /// clsact, unless another program stands on TCX.
    #[default]
    Auto,
    /// clsact.
    ///
    /// Fast, for everyone.
    Tc,
    /// TCX, first in line.
    ///
    /// Takes the kernel about 15 ms a device, during which nobody else configures links.
    Tcx,
}

/// See [`EbpfOptions::shared`]; the table takes memory in the kernel.
pub const SHARED_NETWORKS: usize = 4096;

/// How the programs are loaded.
#[derive(Clone, Debug)]
pub struct EbpfOptions {
    /// Size of the ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Where to attach.
    pub attach: AttachMode,
    /// The running kernel's BTF, `/sys/kernel/btf/vmlinux` where not given.
    pub btf: Option<PathBuf>,
    /// For how long an observation that was published is not published again.
    pub republish_after: Duration,
    /// New claims that a device may make at once; as many neighbour entries may appear on it.
    pub budget_burst: u32,
    /// Networks of shared addresses: of these each move from device to device is published. At most
    /// [`SHARED_NETWORKS`] are heeded.
    pub shared: Vec<IpNet>,
    /// New claims that a device may make each second after that; zero means no limit.
    pub budget_per_second: u32,
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
        }
    }
}

/// Whether the kernel programs were built into this agent.
#[must_use]
pub fn built_in() -> bool {
    !load::OBJECT.is_empty()
}
