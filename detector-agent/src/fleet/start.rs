//! Starts the comparison across nodes.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use detector_event::Role;
use detector_fleet::{Identity, Protocol, Report, Settings};
use tokio::{sync::mpsc as queue, task::JoinHandle};
use tracing::{error, info, warn};

use super::{
    FleetMode, FleetSettings, Inbox,
    clock::Clock,
    driver::{Driver, Parts},
    health::FleetHealth,
    journal::Journal,
    registry::Registry,
    watch::{watch_conflicts, watch_own_node},
};
use crate::{
    health::{Health, Part},
    kube_client::{KubeClient, NOT_USED},
    metrics::Metrics,
    persist::store::Store,
    process::{node, threads},
};

/// How long the holder's agent may take to confirm.
const CONFIRMATION: Duration = Duration::from_secs(5);
/// The most changes of conflicts that wait for the driver. What others write may be large.
const WATCH_QUEUE: usize = 64;
/// The longest time a shutdown waits for the journal.
const END: Duration = Duration::from_secs(3);

/// What the comparison needs of the agent.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// The name of this agent's Node.
    pub node: String,
    /// `None` if the Kubernetes API is not used.
    pub kube: Option<KubeClient>,
    /// `None` without `--state-dir`.
    pub store: Option<Arc<Store>>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Gets the part "fleet".
    pub health: &'a Health,
}

/// What the comparison passes on to the event loop.
#[derive(Debug)]
pub enum FleetMessage {
    /// What the previous run had reported and not ended, as far as it was this agent's to report. It comes once, before all
    /// reports: the sinks would take for over what is not active after a start.
    Restored(Vec<Report>),
    /// The state of a conflict now.
    Report(Box<Report>),
}

/// The running comparison.
#[derive(Debug)]
pub struct Fleet {
    /// Takes the node's claims.
    pub inbox: Inbox,
    ended: Receiver<()>,
}

/// Starts the thread, unless the comparison is off or not possible; then only health and log show it, because detection on the node
/// does not need it.
///
/// # Errors
/// If no thread can be started.
pub fn start(
    settings: &FleetSettings,
    around: Surroundings<'_>,
    emit: impl Fn(FleetMessage) + Send + 'static,
) -> io::Result<Option<Fleet>> {
    if settings.fleet == FleetMode::Off {
        return Ok(None);
    }
    around.metrics.fleet_blind.set(1);
    let Some((fleet, inbox)) = prepare(settings, around, emit) else {
        return Ok(None);
    };
    let (end, ended) = mpsc::sync_channel::<()>(1);
    threads::spawn("fleet", move || {
        // Dropped when the thread ends, even by a panic.
        let _end = end;
        let _panic = ShowsPanic(fleet.part.clone(), Arc::clone(&fleet.metrics));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(fleet.run());
                // A disk that hangs is abandoned.
                runtime.shutdown_background();
            }
            Err(error) => {
                warn!(%error, "addresses are not compared across nodes");
                (fleet.emit)(FleetMessage::Restored(Vec::new()));
            }
        }
    })?;
    Ok(Some(Fleet { inbox, ended }))
}

/// What the thread runs; `None` if it is not possible, which log and health show.
pub(super) fn prepare(
    settings: &FleetSettings,
    around: Surroundings<'_>,
    emit: impl Fn(FleetMessage) + Send + 'static,
) -> Option<(FleetThread, Inbox)> {
    let part = around.health.part(Role::Fleet, "fleet");
    let not_started = |why: &str| {
        warn!("addresses are not compared across nodes: {why}");
        part.failed(why.to_owned());
        None
    };
    let Some(kube) = around.kube else {
        return not_started(NOT_USED);
    };
    let boot_id = match node::boot_id() {
        Ok(boot_id) => boot_id,
        Err(why) => return not_started(&format!("cannot read the boot ID: {why}")),
    };
    let identity = Identity {
        node: around.node,
        boot_id,
    };
    let inbox = Inbox::default();
    let fleet = FleetThread {
        identity,
        settings: settings.clone(),
        kube,
        store: around.store,
        metrics: around.metrics,
        part,
        inbox: inbox.clone(),
        emit: Box::new(emit),
    };
    Some((fleet, inbox))
}

impl Fleet {
    /// Ends the comparison, and waits, at most 3 s, until the journal is written. What is registered stays.
    pub fn finish(self) {
        self.inbox.close();
        if self.ended.recv_timeout(END) == Err(RecvTimeoutError::Timeout) {
            error!(
                "writing to --state-dir takes too long; it may lack the newest registered addresses"
            );
        }
    }
}

/// Shows in health and metrics that the thread panicked.
struct ShowsPanic(Part, Arc<Metrics>);

impl Drop for ShowsPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0
                .failed("ended unexpectedly; please report this as a bug");
            self.1.fleet_blind.set(1);
        }
    }
}

/// What the thread runs.
pub(super) struct FleetThread {
    identity: Identity,
    settings: FleetSettings,
    kube: KubeClient,
    store: Option<Arc<Store>>,
    metrics: Arc<Metrics>,
    part: Part,
    inbox: Inbox,
    emit: Box<dyn Fn(FleetMessage) + Send>,
}

impl FleetThread {
    pub(super) async fn run(self) {
        let clock = Clock::new();
        let node = self.identity.node.clone();
        let (journal, memories) = Journal::open(self.store, &node).await;
        if !memories.is_empty() {
            info!(
                addresses = memories.len(),
                "restored registered addresses of the previous run"
            );
        }
        let reported = memories.iter().filter_map(Report::restored).collect();
        let emit = self.emit;
        emit(FleetMessage::Restored(reported));
        let settings = Settings {
            handover: self.settings.fleet_handover,
            confirmation: CONFIRMATION,
        };
        let mut protocol = Protocol::new(self.identity.clone(), settings, node::random());
        protocol.restore(clock.now(), memories);
        let registry = Arc::new(Registry::new(self.kube.clone(), node.clone()));
        let (updates, watched) = queue::channel(WATCH_QUEUE);
        let watching = [
            tokio::spawn(watch_conflicts(
                self.kube.clone(),
                Arc::clone(&registry),
                node.clone(),
                updates.clone(),
            )),
            tokio::spawn(watch_own_node(
                self.kube,
                Arc::clone(&registry),
                node.clone(),
                updates,
            )),
        ];
        let driver = Driver::new(Parts {
            identity: self.identity,
            settings: self.settings,
            clock,
            protocol,
            registry,
            journal,
            health: FleetHealth::new(self.part, node),
            inbox: self.inbox,
            metrics: self.metrics,
            emit: Box::new(move |report| emit(FleetMessage::Report(Box::new(report)))),
        });
        let mut journal = driver.run(watched).await;
        watching.iter().for_each(JoinHandle::abort);
        journal.finish().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use detector_fleet::{Memory, samples};

    use super::*;
    use crate::kube_client::simulated::SimulatedApi;

    #[tokio::test]
    async fn what_the_previous_run_reported_comes_first_and_without_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::at(directory.path()));
        let conflict = samples::report("10.0.0.1").conflict;
        let (mut journal, _) = Journal::open(Some(Arc::clone(&store)), "node-b").await;
        for (subject, reported) in [
            ("10.0.0.1", Some(Box::new(conflict.clone()))),
            ("10.0.0.2", None),
        ] {
            let subject = subject.parse().unwrap();
            journal.remember(&Memory { subject, reported });
        }
        journal.finish().await;

        let api = SimulatedApi::default();
        api.set_down(true);
        let health = Health::default();
        let around = Surroundings {
            node: "node-b".to_owned(),
            kube: Some(KubeClient::simulated(&api)),
            store: Some(store),
            metrics: Arc::new(Metrics::new()),
            health: &health,
        };
        let settings = FleetSettings {
            fleet: FleetMode::Kubernetes,
            fleet_handover: Duration::from_secs(15),
            fleet_exclude: Vec::new(),
            fleet_rate: 20,
        };
        let (messages, mut emitted) = queue::unbounded_channel();
        let emit = move |message| messages.send(message).unwrap();
        let (fleet, inbox) = prepare(&settings, around, emit).unwrap();
        let running = tokio::spawn(fleet.run());
        let FleetMessage::Restored(reports) = emitted.recv().await.unwrap() else {
            unreachable!("it comes first");
        };
        let [report] = reports.as_slice() else {
            unreachable!("one was reported: {reports:?}");
        };
        assert_eq!(report.conflict, conflict);
        assert!(report.is_reporter && report.is_update && !report.is_resolved);
        inbox.close();
        running.await.unwrap();
    }
}
