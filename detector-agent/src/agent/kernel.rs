//! Everything that is opened towards the kernel, in the order that lets nothing fall between.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::{AgentError, options};
use crate::{
    cli::RunArgs,
    memory,
    metrics::Metrics,
    observe::{
        ebpf::{CounterReader, KernelLogReader, Programs, RingReader, leftovers},
        netlink::{DeviceSelector, ListenerOptions, NetlinkListener, NetlinkReader},
    },
};

/// Time between two reads of the kernel log.
const KERNEL_LOG_INTERVAL: Duration = Duration::from_millis(500);

/// What observes.
pub(super) struct Kernel {
    /// `None` with `--no-ebpf`, and so is `ring`.
    pub(super) programs: Option<Programs>,
    pub(super) ring: Option<(RingReader, CounterReader)>,
    /// With `--kernel-log`.
    pub(super) log: Option<KernelLogReader>,
    pub(super) live: NetlinkListener,
    pub(super) requests: NetlinkReader,
    /// Why the programs do not follow the neighbour table, where they were to.
    pub(super) neighbour_problem: Option<String>,
}

impl Kernel {
    /// Loads the programs and begins to listen; attaches to no device yet.
    pub(super) fn open(args: &RunArgs, selector: &DeviceSelector) -> Result<Self, AgentError> {
        let mut programs = None;
        let mut ring = None;
        let mut log = None;
        let mut neighbour_problem = None;
        let mut neighbours_by_netlink = true;
        if args.no_ebpf {
            warn!(
                "running without eBPF (--no-ebpf): ARP and NDP frames are not seen; addresses in pods, neighbours and routes are"
            );
        } else {
            remove_leftovers();
            let (mut loaded, reader) = Programs::load(&options::ebpf(args))?;
            neighbours_by_netlink = !loaded.has_neighbour_events();
            if let Some(problem) = loaded.neighbour_problem() {
                warn!("neighbour updates come by netlink, not from the kernel program: {problem}");
                neighbour_problem = Some(problem.to_owned());
            }
            ring = Some((reader, loaded.counters()));
            log = loaded.take_kernel_log();
            programs = Some(loaded);
            memory::give_back();
        }
        let listening = ListenerOptions {
            receive_buffer: args.netlink_bytes,
            neighbours: neighbours_by_netlink,
        };
        Ok(Self {
            programs,
            ring,
            log,
            // Listening begins before the first reading, so nothing falls between the two.
            live: NetlinkListener::open(selector.clone(), listening)?,
            requests: NetlinkReader::open()?,
            neighbour_problem,
        })
    }
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
            "removed the filters of an earlier agent from {} devices",
            devices.len()
        ),
        Err(error) => warn!(
            "filters of an earlier agent may be left on the devices ({error}); `detector-agent cleanup` removes them"
        ),
    }
}
