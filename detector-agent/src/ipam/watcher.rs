//! The task that keeps the engine's copy of the IPAM allocations up to date.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use detector_engine::{PoolId, PoolRequest, PoolUpdate};
use detector_event::{Role, State};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use super::{
    calico::FollowedBlocks,
    cni_config::{self, CniConfig},
    directory_watch::{ChangedSubjects, DirectoryWatch},
    leases::ResultCache,
    network::Network,
    settings::{IpamMode, IpamSettings},
    source::{Context, PoolReader},
    sources::{open, part_name},
};
use crate::{
    health::{Health, Part},
    kube_client::KubeClient,
};

/// Time between reads of everything, whatever inotify reported.
const RECHECK: Duration = Duration::from_secs(30);
/// The same without inotify.
const RECHECK_POLLING: Duration = Duration::from_millis(500);
/// Pause between two rounds, so that one round covers all changes in it.
const ROUND_PAUSE: Duration = Duration::from_millis(5);

/// Name of the CNI configuration's part in `/readyz`.
const CONFIG_PART: &str = "CNI configuration";

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Config,
    Pool(PoolId),
}

/// Watches the IPAM sources and notifies of changes in their allocations.
#[derive(Debug)]
pub struct IpamWatcher<F> {
    settings: IpamSettings,
    node: String,
    kube: Option<KubeClient>,
    /// Shows whether there are leases.
    results: Option<ResultCache>,
    notify: F,
    health: Arc<Health>,
    parts: HashMap<String, Part>,
    /// What was last logged of each part: its state, and its summary without digits.
    logged: HashMap<String, (State, String)>,
    config: Option<Result<CniConfig, String>>,
    readers: BTreeMap<PoolId, (Network, Box<dyn PoolReader>)>,
    next_id: u32,
    /// Pools that were found and not read yet.
    unread: BTreeSet<PoolId>,
    /// Pools that are followed and have something to read.
    followed: (UnboundedSender<PoolId>, UnboundedReceiver<PoolId>),
    /// Calico's, for others.
    blocks: Arc<FollowedBlocks>,
    /// `None` if inotify is not available.
    directories: Option<DirectoryWatch<Subject>>,
}

impl<F: Fn(PoolUpdate) -> bool> IpamWatcher<F> {
    /// A watcher that calls `notify` with each update until it returns `false`. `results` is the directory of the CNI result
    /// cache.
    #[must_use]
    pub fn new(
        settings: IpamSettings,
        node: String,
        kube: Option<KubeClient>,
        results: Option<&Path>,
        health: Arc<Health>,
        notify: F,
    ) -> Self {
        Self {
            settings,
            node,
            kube,
            results: results.map(ResultCache::new),
            notify,
            health,
            parts: HashMap::new(),
            logged: HashMap::new(),
            config: None,
            readers: BTreeMap::new(),
            next_id: 0,
            unread: BTreeSet::new(),
            followed: unbounded_channel(),
            blocks: Arc::default(),
            directories: None,
        }
    }

    /// The blocks of Calico that are followed.
    pub(crate) fn blocks(&self) -> Arc<FollowedBlocks> {
        Arc::clone(&self.blocks)
    }

    /// Runs until the sender of `requests` is dropped. A requested pool is read at once.
    pub async fn run(mut self, mut requests: UnboundedReceiver<PoolRequest>) {
        if self.settings.ipam == IpamMode::Off {
            self.part(CONFIG_PART)
                .off("switched off by --ipam off: drift and leaks are not checked");
            (self.notify)(PoolUpdate::Found(BTreeSet::new()));
            return;
        }
        match DirectoryWatch::new() {
            Ok(watch) => self.directories = Some(watch),
            Err(error) => warn!(
                %error,
                "inotify is not available, IPAM directories are polled every {RECHECK_POLLING:?}; raise fs.inotify.max_user_instances"
            ),
        }
        let mut dirty = BTreeSet::from([Subject::Config]);
        let mut thorough = true;
        let mut has_searched = false;
        let mut recheck = Instant::now();
        loop {
            if !self.round(&mut dirty, thorough).await {
                return;
            }
            if !std::mem::replace(&mut has_searched, true)
                && !(self.notify)(PoolUpdate::Found(self.unread.clone()))
            {
                return;
            }
            thorough = false;
            if recheck <= Instant::now() {
                recheck = Instant::now() + self.recheck_period();
            }
            sleep(ROUND_PAUSE).await;
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.request(request, &mut dirty),
                    None => return,
                },
                Some(id) = self.followed.1.recv() => drop(dirty.insert(Subject::Pool(id))),
                changed = next_change(&mut self.directories) => match changed {
                    Ok(ChangedSubjects::Only(subjects)) => dirty.extend(subjects),
                    Ok(ChangedSubjects::All) => self.mark_all(&mut dirty),
                    Err(error) => {
                        warn!(%error, "inotify failed, IPAM directories are polled every {RECHECK_POLLING:?}");
                        self.directories = None;
                        recheck = Instant::now();
                    }
                },
                () = sleep_until(recheck) => {
                    self.mark_all(&mut dirty);
                    thorough = true;
                }
            }
            while let Ok(request) = requests.try_recv() {
                self.request(request, &mut dirty);
            }
            while let Ok(id) = self.followed.1.try_recv() {
                dirty.insert(Subject::Pool(id));
            }
        }
    }

    fn recheck_period(&self) -> Duration {
        if self.directories.is_none() {
            return RECHECK_POLLING;
        }
        let own = self.readers.values().filter_map(|(_, r)| r.recheck());
        own.min().unwrap_or(RECHECK)
    }

    /// Marks a requested pool, unless its reader has to read that part first.
    fn request(&mut self, request: PoolRequest, dirty: &mut BTreeSet<Subject>) {
        if let Some((_, reader)) = self.readers.get(&request.pool)
            && !reader.request(request.address)
        {
            dirty.insert(Subject::Pool(request.pool));
        }
    }

    fn mark_all(&self, dirty: &mut BTreeSet<Subject>) {
        dirty.insert(Subject::Config);
        dirty.extend(self.readers.keys().copied().map(Subject::Pool));
    }

    /// Reads what is marked; `false` once `notify` returned `false`.
    async fn round(&mut self, dirty: &mut BTreeSet<Subject>, thorough: bool) -> bool {
        if dirty.remove(&Subject::Config) && !self.read_config(dirty) {
            return false;
        }
        while let Some(subject) = dirty.pop_first() {
            if let Subject::Pool(id) = subject
                && !self.read_pool(id, thorough).await
            {
                return false;
            }
        }
        true
    }

    fn read_config(&mut self, dirty: &mut BTreeSet<Subject>) -> bool {
        let directory = self.settings.cni_conf_dir.clone();
        self.watch(Subject::Config, &directory);
        let mut config = cni_config::read(&directory);
        if let (Ok(config), Some(results)) = (&mut config, &mut self.results) {
            // The reader of a network reports what is wrong with its leases.
            let _ = results.refresh();
            config.add_leased(|ipam| results.has(ipam));
        }
        if self.config.as_ref() == Some(&config) {
            return true;
        }
        let networks = config.clone().unwrap_or_default();
        let networks: Vec<_> = networks.supported().map(|(_, n)| n.clone()).collect();
        // A network that stays keeps its pool and its last snapshot.
        let removed = self
            .readers
            .extract_if(.., |_, (network, _)| !networks.contains(network));
        for (id, (network, _)) in removed.collect::<Vec<_>>() {
            let name = part_name(&network);
            self.part(&name)
                .off("the CNI configuration no longer has this network");
            self.logged.remove(&name);
            self.unread.remove(&id);
            if !(self.notify)(PoolUpdate::Gone(id)) {
                return false;
            }
        }
        for network in networks {
            if self.readers.values().any(|(known, _)| *known == network) {
                continue;
            }
            let id = PoolId(self.next_id);
            let context = Context {
                settings: &self.settings,
                node: &self.node,
                kube: self.kube.as_ref(),
                results: self.results.as_ref().map(ResultCache::directory),
                blocks: &self.blocks,
            };
            let Some(mut reader) = open(id, &network, &context) else {
                continue;
            };
            self.next_id += 1;
            reader.follow(self.followed.0.clone());
            self.readers.insert(id, (network, reader));
            self.unread.insert(id);
            dirty.insert(Subject::Pool(id));
        }
        let (state, summary) = cni_config::summary(&directory, &config);
        match state {
            State::Degraded => warn!(summary, "CNI configuration read in part"),
            _ => info!(summary, "CNI configuration read"),
        }
        self.part(CONFIG_PART).set(state, summary);
        self.config = Some(config);
        true
    }

    /// Reads a pool and notifies of it; `false` once `notify` returned `false`.
    async fn read_pool(&mut self, id: PoolId, thorough: bool) -> bool {
        let Some((network, reader)) = self.readers.get(&id) else {
            return true;
        };
        let name = part_name(network);
        // Before reading, so that no later change is missed.
        if let Some(directory) = reader.directory().map(Path::to_owned) {
            self.watch(Subject::Pool(id), &directory);
        }
        let Some((_, reader)) = self.readers.get_mut(&id) else {
            return true;
        };
        let Some(read) = reader.read(thorough).await else {
            return true;
        };
        self.unread.remove(&id);
        let mut summary = read.summary;
        if self.directories.is_none() && reader.directory().is_some() {
            summary.push_str("; polled, because inotify is not available");
        }
        self.report_pool(&name, read.state, summary);
        (self.notify)(PoolUpdate::Read(read.pool, read.changed))
    }

    /// Reports a pool in `/readyz`, and logs it if more than a count changed.
    fn report_pool(&mut self, name: &str, state: State, summary: String) {
        let without_counts = summary.chars().filter(|c| !c.is_ascii_digit()).collect();
        let now = (state, without_counts);
        if self.logged.get(name) != Some(&now) {
            match state {
                State::Degraded | State::Failed => {
                    warn!(ipam = name, summary, "IPAM source degraded")
                }
                _ => info!(ipam = name, summary, "IPAM source read"),
            }
            self.logged.insert(name.to_owned(), now);
        }
        self.part(name).set(state, summary);
    }

    fn watch(&mut self, subject: Subject, directory: &Path) {
        let Some(watch) = &mut self.directories else {
            return;
        };
        if let Err(error) = watch.watch(subject, directory) {
            warn!(
                directory = %directory.display(),
                %error,
                "cannot watch the directory, IPAM directories are polled every {RECHECK_POLLING:?}; raise fs.inotify.max_user_watches"
            );
            self.directories = None;
        }
    }

    fn part(&mut self, name: &str) -> Part {
        let health = &self.health;
        self.parts
            .entry(name.to_owned())
            .or_insert_with(|| health.part(Role::Ipam, name))
            .clone()
    }
}

async fn next_change(
    directories: &mut Option<DirectoryWatch<Subject>>,
) -> io::Result<ChangedSubjects<Subject>> {
    match directories {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
