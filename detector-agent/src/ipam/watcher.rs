//! The task that keeps IPAM's books up to date for detection.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use super::{
    config::{self, Config, Network},
    reader::Reader,
    settings::{IpamSettings, IpamSwitch},
    watch::{Changed, Watcher},
};
use crate::{
    engine::{PoolId, PoolUpdate},
    health::{Health, Part, Role, State},
    kube_client::KubeClient,
};

/// Everything is read again so often, whatever inotify said.
const RECHECK: Duration = Duration::from_secs(30);
/// The same where ipamd may have to be asked: nobody tells when what it answers changes.
const RECHECK_AWS: Duration = Duration::from_secs(5);
/// The same where there is no inotify.
const RECHECK_BLIND: Duration = Duration::from_millis(500);
/// Between two rounds of reading: one round takes in all that happened meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// The name of the part that tells what was recognised.
const CONFIG: &str = "CNI configuration";

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Config,
    Pool(PoolId),
}

/// Reads IPAM's books and tells of them.
#[derive(Debug)]
pub struct IpamWatcher<F> {
    settings: IpamSettings,
    node: String,
    kube: Option<KubeClient>,
    tell: F,
    health: Arc<Health>,
    parts: HashMap<String, Part>,
    /// What the log was told last of each part: how it is, and the sentence without its counts.
    logged: HashMap<String, (State, String)>,
    config: Option<Result<Config, String>>,
    readers: BTreeMap<PoolId, (Network, Reader)>,
    next_id: u32,
    /// `None` where there is no inotify.
    watcher: Option<Watcher<Subject>>,
}

impl<F: Fn(PoolUpdate) -> bool> IpamWatcher<F> {
    /// A reader that tells by `tell`, which is `false` once nobody listens.
    #[must_use]
    pub fn new(
        settings: IpamSettings,
        node: String,
        kube: Option<KubeClient>,
        health: Arc<Health>,
        tell: F,
    ) -> Self {
        Self {
            settings,
            node,
            kube,
            tell,
            health,
            parts: HashMap::new(),
            logged: HashMap::new(),
            config: None,
            readers: BTreeMap::new(),
            next_id: 0,
            watcher: None,
        }
    }

    /// Reads until nobody asks any more; at once the books of the pools that are `wanted`.
    pub async fn run(mut self, mut wanted: UnboundedReceiver<PoolId>) {
        if self.settings.ipam == IpamSwitch::Off {
            self.part(CONFIG)
                .off("switched off by --ipam off: drift and leaks are not looked for");
            return;
        }
        match Watcher::new() {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => warn!(
                "IPAM's directories cannot be watched ({error}); they are looked at every {RECHECK_BLIND:?}; raise fs.inotify.max_user_instances"
            ),
        }
        let mut dirty = BTreeSet::from([Subject::Config]);
        let mut thoroughly = true;
        let mut recheck = Instant::now();
        loop {
            if !self.round(&mut dirty, thoroughly).await {
                return;
            }
            thoroughly = false;
            if recheck <= Instant::now() {
                recheck = Instant::now() + self.recheck_every();
            }
            sleep(PAUSE).await;
            let doubt = self.in_doubt();
            tokio::select! {
                asked = wanted.recv() => match asked {
                    Some(id) => self.asked(id, &mut dirty),
                    None => return,
                },
                Some(id) = until(doubt) => {
                    dirty.insert(Subject::Pool(id));
                }
                changed = next_change(&mut self.watcher) => match changed {
                    Ok(Changed::These(subjects)) => dirty.extend(subjects),
                    Ok(Changed::Any) => self.all(&mut dirty),
                    Err(error) => {
                        warn!("watching IPAM's directories failed ({error}); they are looked at every {RECHECK_BLIND:?}");
                        self.watcher = None;
                        recheck = Instant::now();
                    }
                },
                () = sleep_until(recheck) => {
                    self.all(&mut dirty);
                    thoroughly = true;
                }
            }
            while let Ok(id) = wanted.try_recv() {
                self.asked(id, &mut dirty);
            }
        }
    }

    fn recheck_every(&self) -> Duration {
        let is_aws = |(_, reader): &(Network, Reader)| matches!(reader, Reader::Aws(_));
        if self.watcher.is_none() {
            RECHECK_BLIND
        } else if self.readers.values().any(is_aws) {
            RECHECK_AWS
        } else {
            RECHECK
        }
    }

    /// The books of a pool are wanted now. Blocks that are asked for too soon are listed when their time comes.
    fn asked(&mut self, id: PoolId, dirty: &mut BTreeSet<Subject>) {
        if let Some((_, Reader::Calico(_, pace))) = self.readers.get_mut(&id) {
            pace.ask();
        }
        dirty.insert(Subject::Pool(id));
    }

    /// The pool whose blocks are to be listed because of an address in doubt, and when.
    fn in_doubt(&self) -> Option<(PoolId, Instant)> {
        self.readers
            .iter()
            .find_map(|(id, (_, reader))| match reader {
                Reader::Calico(_, pace) => Some((*id, pace.asked_for()?)),
                _ => None,
            })
    }

    fn all(&self, dirty: &mut BTreeSet<Subject>) {
        dirty.insert(Subject::Config);
        dirty.extend(self.readers.keys().copied().map(Subject::Pool));
    }

    /// Reads what may have changed; `false` where nobody listens any more.
    async fn round(&mut self, dirty: &mut BTreeSet<Subject>, thoroughly: bool) -> bool {
        if dirty.remove(&Subject::Config) && !self.read_config(dirty) {
            return false;
        }
        while let Some(subject) = dirty.pop_first() {
            if let Subject::Pool(id) = subject
                && !self.read_pool(id, thoroughly).await
            {
                return false;
            }
        }
        true
    }

    fn read_config(&mut self, dirty: &mut BTreeSet<Subject>) -> bool {
        let directory = self.settings.cni_conf_dir.clone();
        self.watch(Subject::Config, &directory);
        let config = config::read(&directory);
        if self.config.as_ref() == Some(&config) {
            return true;
        }
        let found = config.clone().unwrap_or_default().networks();
        // A network that stays keeps its pool, and with it what was read.
        let gone = self
            .readers
            .extract_if(.., |_, (network, _)| !found.contains(network));
        for (id, (_, reader)) in gone.collect::<Vec<_>>() {
            let name = reader.name();
            self.part(&name)
                .off("the CNI configuration no longer has this network");
            self.logged.remove(&name);
            if !(self.tell)(PoolUpdate::Gone(id)) {
                return false;
            }
        }
        for network in found {
            if self.readers.values().any(|(known, _)| *known == network) {
                continue;
            }
            let id = PoolId(self.next_id);
            self.next_id += 1;
            let reader = Reader::of(
                network.clone(),
                id,
                &self.settings,
                &self.node,
                self.kube.as_ref(),
            );
            self.readers.insert(id, (network, reader));
            dirty.insert(Subject::Pool(id));
        }
        let (state, told) = config::tell(&directory, &config);
        match state {
            State::Degraded => warn!("{told}"),
            _ => info!("{told}"),
        }
        self.part(CONFIG).set(state, told);
        self.config = Some(config);
        true
    }

    /// Reads the books of a pool and tells of them; `false` where nobody listens any more.
    async fn read_pool(&mut self, id: PoolId, thoroughly: bool) -> bool {
        let Some((_, reader)) = self.readers.get(&id) else {
            return true;
        };
        let name = reader.name();
        // Before the reading: what happens after it is told.
        if let Some(directory) = reader.directory().map(Path::to_owned) {
            self.watch(Subject::Pool(id), &directory);
        }
        let Some((_, reader)) = self.readers.get_mut(&id) else {
            return true;
        };
        let Some(read) = reader.read(thoroughly).await else {
            return true;
        };
        let mut told = read.told;
        if self.watcher.is_none() && reader.directory().is_some() {
            told.push_str("; looked at twice a second, for want of inotify");
        }
        self.show(&name, read.state, told);
        (self.tell)(PoolUpdate::Read(read.pool, read.touched))
    }

    /// Shows how the books of a pool are; the log hears of it only where it is another story than before.
    fn show(&mut self, name: &str, state: State, told: String) {
        // Counts change all the time.
        let gist = told.chars().filter(|c| !c.is_ascii_digit()).collect();
        let now = (state, gist);
        if self.logged.get(name) != Some(&now) {
            match state {
                State::Degraded | State::Failed => warn!("{name}: {told}"),
                _ => info!("{name}: {told}"),
            }
            self.logged.insert(name.to_owned(), now);
        }
        self.part(name).set(state, told);
    }

    fn watch(&mut self, subject: Subject, directory: &Path) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        if let Err(error) = watcher.watch(subject, directory) {
            warn!(
                "{} cannot be watched ({error}); it is looked at every {RECHECK_BLIND:?}; raise fs.inotify.max_user_watches",
                directory.display()
            );
            self.watcher = None;
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

/// Waits for the time of a pool, for ever where there is none.
async fn until(doubt: Option<(PoolId, Instant)>) -> Option<PoolId> {
    let (id, at) = doubt?;
    sleep_until(at).await;
    Some(id)
}

async fn next_change(watcher: &mut Option<Watcher<Subject>>) -> io::Result<Changed<Subject>> {
    match watcher {
        Some(watcher) => watcher.changed().await,
        None => std::future::pending().await,
    }
}
