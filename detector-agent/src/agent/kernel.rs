//! Everything that is opened towards the kernel, in the order that lets nothing fall between.

use tracing::{info, warn};

use super::{AgentError, options};
use crate::{
    cli::RunArgs,
    memory,
    observe::{
        ebpf::{CounterReader, Programs, RingReader, leftovers},
        netlink::{DeviceSelector, Live, LiveOptions, Requests},
    },
};

/// What observes.
pub(super) struct Kernel {
    /// `None` with `--no-ebpf`, and so is `ring`.
    pub(super) programs: Option<Programs>,
    pub(super) ring: Option<(RingReader, CounterReader)>,
    pub(super) live: Live,
    pub(super) requests: Requests,
    /// Why the programs do not follow the neighbour table, where they were to.
    pub(super) neighbour_problem: Option<String>,
}

impl Kernel {
    /// Loads the programs and begins to listen; attaches to no device yet.
    pub(super) fn open(args: &RunArgs, selector: &DeviceSelector) -> Result<Self, AgentError> {
        let mut programs = None;
        let mut ring = None;
        let mut neighbour_problem = None;
        let mut neighbours_by_netlink = true;
        if args.no_ebpf {
            warn!(
                "running without eBPF (--no-ebpf): ARP and NDP frames are not seen; addresses in pods, neighbours and routes are"
            );
        } else {
            remove_leftovers();
            let (loaded, reader) = Programs::load(&options::ebpf(args))?;
            neighbours_by_netlink = !loaded.neighbour_events();
            if let Some(problem) = loaded.neighbour_problem() {
                warn!("neighbour updates come by netlink, not from the kernel program: {problem}");
                neighbour_problem = Some(problem.to_owned());
            }
            ring = Some((reader, loaded.counters()));
            programs = Some(loaded);
            memory::give_back();
        }
        let listening = LiveOptions {
            receive_buffer: args.netlink_bytes,
            neighbours: neighbours_by_netlink,
        };
        Ok(Self {
            programs,
            ring,
            // Listening begins before the first reading, so nothing falls between the two.
            live: Live::open(selector.clone(), listening)?,
            requests: Requests::open()?,
            neighbour_problem,
        })
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
