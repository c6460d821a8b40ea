//! Assembles the agent from its parts, starts them and stops them. Its threads are listed in ARCHITECTURE.md.
//!
//! Every thread is started by [`threads::spawn`].

mod kernel;
mod options;
mod restart;
mod signals;
mod watchdog;

use std::{io, sync::Arc, time::Duration};

use detector_engine::{Engine, Settings};
use detector_event::{EventMaker, Explanations, Role};
use tracing::{info, warn};

use crate::{
    cli::RunArgs,
    diagnosis::{self, Collector, PoolHistory, Watched},
    event_loop::{
        Core, EventLoop, EventLoopHandle, FleetFeed, Inputs, LoopMessage, Outputs, Readiness,
        Reporter,
    },
    fleet::{self, ClaimSelector},
    health::{Health, SourceHealth},
    http::{self, Endpoints, HttpError},
    ipam,
    kube_client::KubeClient,
    metrics::Metrics,
    observe::{
        ebpf::LoadError,
        netlink::{DeviceSelector, OpenError, PatternError},
        worker::KernelWorker,
    },
    persist::{Persistence, Restored, history::HistorySink, store::Store},
    pods::{self, PodDirectory, PodLookups, PodResolver, PodSources},
    process::{
        descriptors,
        instance::{Instance, InstanceError},
        mailbox::MailboxSender,
        node::{self, NodeNameError},
        threads,
    },
    sinks::{
        self,
        kube_events::KubeEvents,
        start::{Senders, SinksError},
    },
};
use kernel::Kernel;
use signals::StopSignals;

/// Time to deliver pending events when the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to store what later diagnoses need.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the agent did not start, or ended unexpectedly.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A device pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The node's name is unknown or invalid.
    #[error(transparent)]
    NodeName(#[from] NodeNameError),
    /// Another agent is running.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The kernel programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A netlink socket could not be opened.
    #[error(transparent)]
    Netlink(#[from] OpenError),
    /// The endpoints cannot be served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The event file cannot be written.
    #[error("cannot write events to {path}: {source}; check the path given with --events")]
    Events {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A webhook or Alertmanager cannot be used.
    #[error(transparent)]
    Sinks(#[from] SinksError),
    /// The system refused something basic.
    #[error("cannot start: {0}")]
    Start(io::Error),
    /// The event loop hangs.
    #[error("the event loop has not run for {} s; the agent ends, so that it is started again", .0.as_secs())]
    Stuck(Duration),
    /// The event loop or the kernel worker ended by itself.
    #[error("the event loop ended unexpectedly: {0}")]
    EventLoop(io::Error),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// See [`AgentError`].
pub fn run(args: &RunArgs) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AgentError::Start)?;
    // From here on a signal stops the agent gracefully, at any stage of the start.
    let mut stop = runtime
        .block_on(async { StopSignals::listen() })
        .map_err(AgentError::Start)?;
    let selector = DeviceSelector::new(&args.common.interfaces, &args.common.exclude_interfaces)?;
    let node = node::name(args.common.node_name.as_deref())?;
    let instance = take_lock(args, &selector)?;
    descriptors::raise_limit();
    let endpoints = Endpoints::open(&options::http(args, &instance))?;
    let lines = options::lines(args)?;
    if args.export_claims && !args.metrics_detail {
        warn!("--export-claims has no effect with --metrics-detail=false");
    }
    let alert_series = args.metrics_detail.then(sinks::AlertSeries::default);
    let mut metrics = Metrics::with_detail(args.metrics_detail);
    if let Some(series) = &alert_series {
        metrics = metrics.with_collector(series.clone());
    }
    let metrics = Arc::new(metrics);
    let health = Arc::new(Health::default());
    // Opened once, and shared by everything that persists.
    let store = args.state_dir.as_deref().map(|d| Arc::new(Store::at(d)));
    let history = Arc::new(options::history(args));
    let (senders, sinks) = Senders::start(
        &args.sinks,
        store.as_ref(),
        &metrics,
        &health,
        runtime.handle(),
    )?;

    let kernel = Kernel::open(args, &selector)?;
    let kernel_log = kernel
        .log
        .map(|reader| kernel::write_kernel_log(reader, Arc::clone(&metrics)));

    let readiness = Arc::new(Readiness::default());
    let explanations = Arc::new(Explanations::default());
    let maker = EventMaker::new(&node, node::random())
        .in_cluster(args.common.cluster_name.clone())
        .explained_by(Arc::clone(&explanations));
    let pods = Arc::new(PodDirectory::default());
    let (lookups, requested) = tokio::sync::mpsc::channel(pods::LOOKUP_QUEUE);
    let names = PodLookups::new(Arc::clone(&pods), lookups);
    let resolver = PodResolver::new(Arc::clone(&pods), Arc::clone(&metrics));
    let settings = &args.common.pods;
    let kube = KubeClient::new(settings.kube);
    let sources = PodSources::new(settings, &node, kube.clone());
    let plugins = sources.plugins();
    pods.announce(&sources);
    let lines_part = lines.is_some().then(|| health.part(Role::Sink, "lines"));
    let mut reporter = Reporter::new(maker, names, lines, Arc::clone(&metrics));
    if let Some(part) = lines_part {
        reporter.report_lines_health(part);
    }
    let (diagnosis, findings) = diagnosis::queue(Arc::clone(&explanations));
    reporter.add_sink(Box::new(diagnosis));
    if let Some(series) = alert_series {
        reporter.add_sink(Box::new(series));
    }
    let feed = sinks::EventFeed::default();
    for sink in sinks {
        reporter.add_sink(sink);
    }
    let kube_events = kube.clone().map(|kube| {
        let (sink, posting) = KubeEvents::new(
            kube,
            node.clone(),
            Arc::clone(&metrics),
            health.part(Role::Sink, "kubernetes"),
        );
        reporter.add_sink(Box::new(sink));
        posting
    });
    let (fleet_store, diagnosis_store) = (store.clone(), store.clone());
    let persistence = restart::restore(
        store,
        Arc::clone(&history),
        args.claim_ttl,
        &health,
        &metrics,
    )?;
    // Until here an error is all that is written.
    info!(node, version = env!("CARGO_PKG_VERSION"), "starting");
    let (persistence, persistence_thread, history_sink, restored) = match persistence {
        Some((persistence, thread)) => {
            let Persistence {
                handle,
                sink,
                restored,
            } = persistence;
            (Some(handle), Some(thread), sink, restored)
        }
        None => {
            let sink = HistorySink::in_memory(Arc::clone(&history));
            (None, None, sink, Restored::default())
        }
    };
    reporter.add_sink(Box::new(history_sink));
    // After the history: a client that reads of an end finds it there.
    reporter.add_sink(Box::new(feed.clone()));
    let (handle, mailbox) = EventLoopHandle::new().map_err(AgentError::Start)?;
    let (worker_jobs, jobs) = MailboxSender::new().map_err(AgentError::Start)?;
    let (pool_reads, requested_pools) = tokio::sync::mpsc::unbounded_channel();
    let around = fleet::Surroundings {
        node: node.clone(),
        kube: kube.clone(),
        store: fleet_store,
        metrics: Arc::clone(&metrics),
        health: &health,
    };
    let emit = {
        let handle = handle.clone();
        move |message| {
            // Fails only while the agent stops.
            handle.send(LoopMessage::Fleet(message));
        }
    };
    let fleet = fleet::start(&args.fleet, around, emit).map_err(AgentError::Start)?;
    let fleet_feed = fleet.as_ref().map(|fleet| {
        let shared = &args.common.allow;
        let claims = ClaimSelector::new([shared.as_slice(), &args.fleet.fleet_exclude].concat());
        FleetFeed::new(claims, fleet.inbox.clone(), Arc::clone(&pods))
    });
    let (ring, kernel_counters) = kernel.ring.unzip();
    let outputs = Outputs {
        worker_jobs,
        pool_reads,
        reporter,
        persistence,
        fleet: fleet_feed,
        metrics: Arc::clone(&metrics),
        readiness: Arc::clone(&readiness),
        health: SourceHealth::new(
            Arc::clone(&health),
            !args.no_ebpf,
            kernel.neighbour_problem.as_deref(),
        ),
    };
    let inputs = Inputs {
        netlink: kernel.listener,
        ring,
        mailbox,
    };
    let mut engine = Engine::new(Settings {
        follow_claims: outputs.fleet.is_some(),
        ..options::engine(args)
    });
    engine.restore(restored.conflicts, restored.anomalies);
    let core = Core::new(engine, outputs, kernel_counters, selector.clone());
    let event_loop = EventLoop::new(inputs, core);

    let worker = KernelWorker {
        programs: kernel.programs,
        reader: kernel.reader,
        selector,
        first_read: kernel.first_read,
    };
    let emit = {
        let handle = handle.clone();
        move |event| {
            // Fails only while the agent stops.
            handle.send(LoopMessage::Worker(event));
        }
    };
    let worker = threads::spawn("kernel-worker", move || worker.run(&jobs, emit))
        .map_err(AgentError::Start)?;
    let pool_history = Arc::new(PoolHistory::default());
    let ipam = {
        let handle = handle.clone();
        let pool_history = Arc::clone(&pool_history);
        let emit = move |update| {
            pool_history.note(&update);
            handle.send(LoopMessage::Pool(update))
        };
        let (settings, kube) = (args.common.ipam.clone(), kube.clone());
        let (node, health) = (node.clone(), Arc::clone(&health));
        let results = args.common.pods.cni_cache_dir.path();
        ipam::IpamWatcher::new(settings, node, kube, results, health, emit)
    };
    let watched = Watched {
        pods: Arc::clone(&pods),
        plugins,
        pools: pool_history,
        blocks: ipam.blocks(),
    };
    // Not joined: it only reads, and ends when the event loop has.
    threads::spawn("ipam", move || {
        block_on("IPAM watcher", ipam.run(requested_pools))
    })
    .map_err(AgentError::Start)?;
    let (ended, mut end) = tokio::sync::oneshot::channel();
    let event_loop = threads::spawn("event-loop", move || {
        let result = event_loop.run();
        // The main thread may have stopped waiting.
        let _ = ended.send(());
        result
    })
    .map_err(AgentError::Start)?;
    let _server = endpoints.serve(http::Sources {
        node: node.as_str().into(),
        cluster: args.common.cluster_name.clone(),
        metrics: Arc::clone(&metrics),
        readiness,
        health: Arc::clone(&health),
        pods: Arc::clone(&pods),
        explanations: Arc::clone(&explanations),
        inbox: handle.clone(),
        feed,
        history,
        export_claims: args.export_claims && args.metrics_detail,
    })?;
    let diagnosed = handle.clone();
    let collector = Collector::new(&args.common.ipam, settings, kube, watched)
        .map_err(AgentError::Start)?
        .stored(diagnosis_store);
    let (diagnosis, diagnosis_end) = std::sync::mpsc::channel::<()>();
    threads::spawn("diagnosis", move || {
        // Dropped when the thread ends, even by a panic.
        let _end = diagnosis;
        let emit = move |id, address, is_news| {
            // Fails only while the agent stops.
            diagnosed.send(LoopMessage::Diagnosed(id, address, is_news));
        };
        diagnosis::run(&findings, collector, &explanations, &metrics, emit);
    })
    .map_err(AgentError::Start)?;
    let known = handle.clone();
    threads::spawn("pod-lookups", move || {
        let emit = move |update| {
            // Fails only while the agent stops.
            known.send(LoopMessage::Lookups(update));
        };
        block_on("pod lookups", resolver.run(sources, requested, emit));
    })
    .map_err(AgentError::Start)?;
    runtime.block_on(async {
        kernel_log.map(tokio::spawn);
        kube_events.map(tokio::spawn);
        tokio::select! {
            () = stop.received() => Ok(()),
            _ = &mut end => Ok(()),
            silent = watchdog::stuck(&health) => Err(AgentError::Stuck(silent)),
        }
    })?;

    info!("stopping");
    handle.send(LoopMessage::Stop);
    let event_loop_result = threads::join(event_loop);
    if let Some(fleet) = fleet {
        fleet.finish();
    }
    // The event loop has dropped its sink. What is not stored by then is missing after a restart.
    let _ = diagnosis_end.recv_timeout(DIAGNOSIS_TIMEOUT);
    // The event loop has dropped its handle.
    if let Some(thread) = persistence_thread {
        thread.finish();
    }
    // The event loop has dropped its end of the jobs, so the worker ends.
    let worker_result = threads::join(worker);
    runtime.block_on(senders.stop(DRAIN_TIMEOUT));
    // What hangs is abandoned.
    runtime.shutdown_background();
    event_loop_result
        .and_then(|result| result)
        .map_err(AgentError::EventLoop)?;
    worker_result.map_err(AgentError::EventLoop)
}

fn take_lock(args: &RunArgs, selector: &DeviceSelector) -> Result<Instance, AgentError> {
    Instance::take(&args.lock.run_dir).map_err(|error| match error {
        InstanceError::Taken(_) => error.into(),
        // Without privileges the directory is out of reach as well; the error has to name the capability.
        error => kernel::check_privileges(args, selector)
            .err()
            .unwrap_or_else(|| error.into()),
    })
}

/// Runs a part of the agent on a runtime of its own.
fn block_on(what: &str, part: impl Future<Output = ()>) {
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(part),
        Err(error) => warn!(%error, "{what} not started"),
    }
}
