//! Opens everything that observes the kernel, in an order in which no change is missed.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::{AgentError, options};
use crate::{
    cli::RunArgs,
    metrics::Metrics,
    observe::{
        ebpf::{CounterReader, KernelLogReader, Programs, RingReader, leftovers},
        netlink::{
            DeviceSelector, ListenerOptions, NetlinkListener, NetlinkReader, NodeWithoutNeighbours,
        },
    },
    process::{memory, threads},
};

/// Time between two reads of the kernel log.
const KERNEL_LOG_INTERVAL: Duration = Duration::from_millis(500);

/// The parts that observe the kernel.
pub(super) struct Kernel {
    /// `None` with `--no-ebpf`, and so is `ring`.
    pub(super) programs: Option<Programs>,
    pub(super) ring: Option<(RingReader, CounterReader)>,
    /// With `--kernel-log`.
    pub(super) log: Option<KernelLogReader>,
    pub(super) listener: NetlinkListener,
    pub(super) reader: NetlinkReader,
    /// Reads the node while the programs are loaded: each takes about as long.
    pub(super) first_read: Option<JoinHandle<Option<NodeWithoutNeighbours>>>,
    /// Why the programs do not follow the neighbour table, if they should.
    pub(super) neighbour_problem: Option<String>,
}

impl Kernel {
    /// Starts receiving notifications and loads the programs; attaches to no device yet.
    pub(super) fn open(args: &RunArgs, selector: &DeviceSelector) -> Result<Self, AgentError> {
        let mut programs = None;
        let mut ring = None;
        let mut log = None;
        let mut neighbour_problem = None;
        if args.no_ebpf {
            warn!("running without eBPF (--no-ebpf): ARP and NDP frames are not observed");
        } else {
            // A missing capability is named as one of the programs', although notifications need it first.
            Programs::check_loadable()?;
        }
        // Before the first snapshot, so that no change is missed between the two. Neighbours are read after the programs
        // follow them.
        let listener = listen(args, selector, args.no_ebpf)?;
        let reader = NetlinkReader::open()?;
        let first_read = {
            let (selector, has_programs) = (selector.clone(), !args.no_ebpf);
            let read = move || first_read(&selector, has_programs);
            threads::spawn("first-read", read).map_err(AgentError::Start)?
        };
        if !args.no_ebpf {
            let (mut loaded, reader) = Programs::load(&options::ebpf(args))?;
            if let Some(problem) = loaded.neighbour_problem() {
                warn!(problem, "neighbour updates by netlink instead of eBPF");
                neighbour_problem = Some(problem.to_owned());
                listener.include_neighbours()?;
            }
            ring = Some((reader, loaded.counters()));
            log = loaded.take_kernel_log();
            programs = Some(loaded);
            memory::release_freed();
        }
        Ok(Self {
            programs,
            ring,
            log,
            listener,
            reader,
            first_read: Some(first_read),
            neighbour_problem,
        })
    }
}

/// Removes what an earlier agent left behind and reads the node. `None` if that fails: it is read again, and then the error
/// is reported.
fn first_read(selector: &DeviceSelector, has_programs: bool) -> Option<NodeWithoutNeighbours> {
    if has_programs {
        remove_leftovers();
    }
    let mut reader = NetlinkReader::open().ok()?;
    reader.read_without_neighbours(selector).ok()
}

/// Checks that the agent has the privileges that [`Kernel::open`] needs.
///
/// # Errors
/// Names the first capability that is missing.
pub(super) fn check_privileges(
    args: &RunArgs,
    selector: &DeviceSelector,
) -> Result<(), AgentError> {
    if !args.no_ebpf {
        Programs::check_capabilities()?;
    }
    listen(args, selector, false).map(drop)
}

fn listen(
    args: &RunArgs,
    selector: &DeviceSelector,
    neighbours: bool,
) -> Result<NetlinkListener, AgentError> {
    let options = ListenerOptions {
        receive_buffer: args.netlink_bytes,
        neighbours,
    };
    Ok(NetlinkListener::open(selector.clone(), options)?)
}

/// Writes the kernel log to the agent's log and counts what was suppressed. Does not return.
pub(super) async fn write_kernel_log(mut reader: KernelLogReader, metrics: Arc<Metrics>) {
    let mut interval = interval(KERNEL_LOG_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        Metrics::set_total(&metrics.kernel_log_suppressed, reader.poll());
    }
}

fn remove_leftovers() {
    match leftovers::remove() {
        Ok(devices) if devices.is_empty() => {}
        Ok(devices) => info!(
            devices = devices.len(),
            "removed leftover filters of a previous run"
        ),
        Err(error) => warn!(
            %error,
            "leftover filters of a previous run not removed; run `detector-agent cleanup`"
        ),
    }
}
