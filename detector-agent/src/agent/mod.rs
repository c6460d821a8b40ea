//! Puts the agent together: the only place that starts what has a thread or a task of its own.
//!
//! ```text
//! main thread (tokio)        signals, and everything that talks to people and machines
//! thread "detection"         kernel → engine → events; never blocks
//! thread "kernel-worker"     attaches and reads; may wait for the kernel's locks
//! thread "outbox"            stores events before they are sent; waits for the disk
//! thread "ipam"              reads IPAM's books; may wait for a disk or an API
//! thread "state"             keeps open conflicts over a restart; waits for the disk
//! thread "http"              the endpoints; a scrape or a client makes nobody wait
//! ```

mod kernel;
mod options;
mod restart;
mod signals;

use std::{
    io,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tracing::{info, warn};

use crate::{
    cli::RunArgs,
    engine::Engine,
    event::EventMaker,
    event_loop::{EventLoop, Inbox, Message, Parts, Readiness},
    health::{Health, Role, SourceHealth},
    http::{self, Endpoints, HttpError},
    instance::{Instance, InstanceError},
    ipam,
    kube_client::KubeClient,
    metrics::Metrics,
    node::{self, NodeNameError},
    observe::{
        ebpf::LoadError,
        netlink::{DeviceSelector, OpenError, PatternError},
        worker::Worker,
    },
    persist::store::Store,
    pods::{self, PodDirectory, PodLookups, PodResolver, PodSources},
    sinks::{
        Reporter,
        kube_events::KubeEvents,
        start::{Senders, SinksError},
    },
};
use kernel::Kernel;
use signals::StopSignals;

/// Time to deliver what waits when the agent is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Why the agent did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A pattern is wrong.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The node's name is not known.
    #[error(transparent)]
    NodeName(#[from] NodeNameError),
    /// Another agent runs.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The kernel programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Netlink is closed to us.
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
    /// Detection ended by itself.
    #[error("detection ended: {0}")]
    Detection(io::Error),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// As [`AgentError`] says.
pub fn run(args: &RunArgs) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AgentError::Start)?;
    // From here on a signal ends the agent in good order, however far the start has come.
    let mut stop = runtime
        .block_on(async { StopSignals::listen() })
        .map_err(AgentError::Start)?;
    let selector = DeviceSelector::new(&args.common.interfaces, &args.common.exclude_interfaces)?;
    let node = node::name(args.common.node_name.as_deref())?;
    let _instance = Instance::take()?;
    let endpoints = Endpoints::open(&options::http(args))?;
    let lines = options::lines(args)?;
    let metrics = Arc::new(Metrics::new());
    let health = Arc::new(Health::default());
    // Opened once, and shared by all that keep something.
    let store = args.state_dir.as_deref().map(|d| Arc::new(Store::at(d)));
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
    let maker = EventMaker::new(node.clone(), node::random());
    let pods = Arc::new(PodDirectory::default());
    let (lookups, requested) = tokio::sync::mpsc::channel(pods::LOOKUP_QUEUE);
    let names = PodLookups::new(Arc::clone(&pods), lookups);
    let resolver = PodResolver::new(Arc::clone(&pods), Arc::clone(&metrics));
    let settings = &args.common.pods;
    let kube = KubeClient::new(settings.kube);
    let sources = PodSources::new(settings, &node, kube);
    pods.announce(&sources);
    let lines_part = lines
        .is_some()
        .then(|| health.part(Role::Sink, "event lines"));
    let mut reporter = Reporter::new(maker, names, lines, Arc::clone(&metrics));
    if let Some(part) = lines_part {
        reporter.show_lines(part);
    }
    let feed = http::Feed::default();
    if endpoints.is_some() {
        reporter.add_sink(Box::new(feed.clone()));
    }
    for sink in sinks {
        reporter.add_sink(sink);
    }
    let kube_events = kube.map(|kube| {
        let (sink, posting) = KubeEvents::new(
            kube,
            node.clone(),
            Arc::clone(&metrics),
            health.part(Role::Sink, "kubernetes events"),
        );
        reporter.add_sink(Box::new(sink));
        posting
    });
    let mut engine = Engine::new(options::detection(args));
    let persistence = restart::restore(&mut engine, store, args.claim_ttl, &health, &metrics)?;
    let (persistence, persistence_thread) = persistence.unzip();
    let (inbox, mailbox) = Inbox::new().map_err(AgentError::Start)?;
    let (jobs, asked) = mpsc::channel();
    let (wanted, asked_for) = tokio::sync::mpsc::unbounded_channel();
    let detection = EventLoop::new(Parts {
        engine,
        live: kernel.live,
        ring: kernel.ring,
        jobs,
        mailbox,
        books: wanted,
        reporter,
        persistence,
        metrics: Arc::clone(&metrics),
        readiness: Arc::clone(&readiness),
        health: SourceHealth::new(
            Arc::clone(&health),
            !args.no_ebpf,
            kernel.neighbour_problem.as_deref(),
        ),
        selector: selector.clone(),
    });

    let worker = Worker {
        programs: kernel.programs,
        requests: kernel.requests,
        selector,
    };
    let tell = {
        let inbox = inbox.clone();
        move |outcome| {
            // Nobody listens any more while the agent stops.
            inbox.send(Message::Worker(outcome));
        }
    };
    let worker = thread::Builder::new()
        .name("kernel-worker".to_owned())
        .spawn(move || worker.run(&asked, tell))
        .map_err(AgentError::Start)?;
    let books = {
        let inbox = inbox.clone();
        let tell = move |news| inbox.send(Message::Pools(news));
        let settings = args.common.ipam.clone();
        ipam::IpamWatcher::new(settings, node.clone(), kube, Arc::clone(&health), tell)
    };
    thread::Builder::new()
        .name("ipam".to_owned())
        .spawn(move || read_books(books.run(asked_for)))
        .map_err(AgentError::Start)?;
    let (ended, mut end) = tokio::sync::oneshot::channel();
    let detection = thread::Builder::new()
        .name("detection".to_owned())
        .spawn(move || {
            let result = detection.run();
            // The main thread may have stopped waiting.
            let _ = ended.send(());
            result
        })
        .map_err(AgentError::Start)?;
    let _server = endpoints
        .map(|endpoints| {
            endpoints.serve(http::Sources {
                node: node.clone(),
                metrics,
                readiness,
                health,
                pods,
                inbox: inbox.clone(),
                feed,
                export_claims: args.export_claims,
            })
        })
        .transpose()?;
    info!(node, "starting");

    runtime.block_on(async {
        let known = inbox.clone();
        let tell = move |devices| {
            // Nobody listens any more while the agent stops.
            known.send(Message::PodsKnown(devices));
        };
        tokio::spawn(resolver.run(sources, requested, tell));
        kernel_log.map(tokio::spawn);
        kube_events.map(tokio::spawn);
        tokio::select! {
            () = stop.received() => {}
            _ = &mut end => {}
        }
    });

    info!("stopping");
    inbox.send(Message::Stop);
    let detected = join(detection, "detection");
    // The event loop has dropped the handle.
    if let Some(thread) = persistence_thread {
        thread.finish();
    }
    // The worker ends when detection has dropped its end of the jobs.
    let worked = join(worker, "kernel-worker");
    runtime.block_on(senders.stop(DRAIN));
    // A look-up that hangs is left behind.
    runtime.shutdown_background();
    detected
        .and_then(|result| result)
        .map_err(AgentError::Detection)?;
    worked.map_err(AgentError::Detection)
}

/// Runs the reader of IPAM's books. Nobody waits for its end: it only reads, and ends when detection has.
fn read_books(books: impl Future<Output = ()>) {
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(books),
        Err(error) => warn!("IPAM's books are not read: {error}"),
    }
}

fn join<T>(thread: thread::JoinHandle<T>, name: &str) -> io::Result<T> {
    thread.join().map_err(|_| {
        io::Error::other(format!(
            "the thread {name} panicked; please report this as a bug"
        ))
    })
}
