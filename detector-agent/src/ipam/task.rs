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
    aws::Aws,
    calico::Calico,
    config::{self, Config},
    host_local::{HostLocal, State},
    settings::{IpamSettings, IpamSwitch},
    watch::{Changed, Watcher},
};
use crate::{
    detect::{PoolId, PoolNews},
    health::{Health, Part, Role},
    identify::Kube,
};

/// Everything is read again so often, whatever inotify said.
const RECHECK: Duration = Duration::from_secs(30);
/// The same where ipamd may have to be asked: nobody tells when what it answers changes.
const RECHECK_AWS: Duration = Duration::from_secs(5);
/// The same where there is no inotify.
const RECHECK_BLIND: Duration = Duration::from_millis(500);
/// Between two rounds of reading: one round takes in all that happened meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// The name of ipamd's part.
const AWS: &str = "aws-ipamd";
/// The name of Calico's part.
const CALICO: &str = "calico-ipam";
/// Blocks are listed once in this time, and once more where an address is in doubt.
const CALICO_PAUSE: Duration = Duration::from_secs(60);
/// The least time between two lists.
const CALICO_GAP: Duration = Duration::from_secs(3);

/// What the reader is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The books of this pool, now.
    Pool(PoolId),
}

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Config,
    Pool(PoolId),
}

/// Reads IPAM's books and tells of them.
#[derive(Debug)]
pub struct Books<F> {
    settings: IpamSettings,
    tell: F,
    health: Arc<Health>,
    parts: HashMap<String, Part>,
    host_local: BTreeMap<PoolId, HostLocal>,
    states: HashMap<PoolId, State>,
    aws: Option<(PoolId, (String, String), Aws)>,
    calico: Option<(PoolId, String, Calico)>,
    /// What was last said of each, without its counts.
    said: HashMap<&'static str, String>,
    node: String,
    kube: Option<Kube>,
    /// When blocks were listed last.
    calico_last: Option<Instant>,
    /// Blocks are not listed because of an address in doubt before.
    calico_next: Instant,
    /// An address is in doubt.
    calico_asked: bool,
    watcher: Option<Watcher<Subject>>,
    next_id: u32,
    config: Option<Result<Config, String>>,
}

impl<F: Fn(PoolNews) -> bool> Books<F> {
    /// A reader that tells by `tell`, which is `false` once nobody listens.
    #[must_use]
    pub fn new(
        settings: IpamSettings,
        node: String,
        kube: Option<Kube>,
        health: Arc<Health>,
        tell: F,
    ) -> Self {
        Self {
            settings,
            tell,
            health,
            parts: HashMap::new(),
            host_local: BTreeMap::new(),
            states: HashMap::new(),
            aws: None,
            calico: None,
            said: HashMap::new(),
            node,
            kube,
            calico_last: None,
            calico_next: Instant::now(),
            calico_asked: false,
            watcher: None,
            next_id: 0,
            config: None,
        }
    }

    /// Reads until nobody asks any more.
    pub async fn run(mut self, mut wanted: UnboundedReceiver<Wanted>) {
        if self.settings.ipam == IpamSwitch::Off {
            self.part("CNI configuration")
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
            let every = if self.watcher.is_some() && self.aws.is_some() {
                RECHECK_AWS
            } else if self.watcher.is_some() {
                RECHECK
            } else {
                RECHECK_BLIND
            };
            if recheck <= Instant::now() {
                recheck = Instant::now() + every;
            }
            sleep(PAUSE).await;
            tokio::select! {
                asked = wanted.recv() => match asked {
                    Some(Wanted::Pool(id)) => self.asked(id, &mut dirty),
                    None => return,
                },
                () = sleep_until(self.calico_next), if self.calico_asked => {
                    dirty.extend(self.calico.iter().map(|(id, ..)| Subject::Pool(*id)));
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
            while let Ok(Wanted::Pool(id)) = wanted.try_recv() {
                self.asked(id, &mut dirty);
            }
        }
    }

    /// The books of a pool are wanted now. Blocks that are asked for too soon are listed when their time comes.
    fn asked(&mut self, id: PoolId, dirty: &mut BTreeSet<Subject>) {
        self.calico_asked |= self.calico.as_ref().is_some_and(|(c, ..)| *c == id);
        dirty.insert(Subject::Pool(id));
    }

    fn all(&self, dirty: &mut BTreeSet<Subject>) {
        dirty.insert(Subject::Config);
        dirty.extend(self.host_local.keys().copied().map(Subject::Pool));
        dirty.extend(self.calico.iter().map(|(id, ..)| Subject::Pool(*id)));
        dirty.extend(self.aws.iter().map(|(id, ..)| Subject::Pool(*id)));
    }

    /// Reads what may have changed; `false` where nobody listens any more.
    async fn round(&mut self, dirty: &mut BTreeSet<Subject>, thoroughly: bool) -> bool {
        if dirty.remove(&Subject::Config) && !self.read_config(dirty) {
            return false;
        }
        while let Some(subject) = dirty.pop_first() {
            let Subject::Pool(id) = subject else { continue };
            let is_calico = self.calico.as_ref().is_some_and(|(c, ..)| *c == id);
            if is_calico {
                if !self.read_calico(id).await {
                    return false;
                }
                continue;
            }
            let is_aws = self.aws.as_ref().is_some_and(|(aws, ..)| *aws == id);
            let heard = if is_aws {
                self.read_aws(id).await
            } else {
                self.read_pool(id, thoroughly)
            };
            if !heard {
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
        let found = config.clone().unwrap_or_default();
        // A network that stays keeps its pool, and with it what was read.
        let mut gone: Vec<PoolId> = Vec::new();
        for (id, pool) in &self.host_local {
            if !found.host_local.contains(&pool.network) {
                gone.push(*id);
            }
        }
        for id in gone {
            if let Some(pool) = self.host_local.remove(&id) {
                self.states.remove(&id);
                self.part(&part_name(&pool))
                    .off("the CNI configuration no longer has this network");
            }
            if !(self.tell)(PoolNews::Gone(id)) {
                return false;
            }
        }
        for network in found.host_local {
            if self.host_local.values().any(|p| p.network == network) {
                continue;
            }
            let id = PoolId(self.next_id);
            self.next_id += 1;
            self.host_local.insert(id, HostLocal::new(id, network));
            dirty.insert(Subject::Pool(id));
        }
        if self.aws.as_ref().map(|(_, network, _)| network) != found.aws.as_ref() {
            if let Some((id, ..)) = self.aws.take() {
                self.part(AWS)
                    .off("the CNI configuration no longer has this network");
                if !(self.tell)(PoolNews::Gone(id)) {
                    return false;
                }
            }
            if let Some(network) = found.aws {
                let id = PoolId(self.next_id);
                self.next_id += 1;
                let file = self.settings.aws_ipam_file.clone();
                let port = self.settings.aws_introspection;
                self.aws = Some((id, network.clone(), Aws::new(id, network, file, port)));
                dirty.insert(Subject::Pool(id));
            }
        }
        if self.calico.as_ref().map(|(_, network, _)| network) != found.calico.as_ref() {
            if let Some((id, ..)) = self.calico.take() {
                self.part(CALICO)
                    .off("the CNI configuration no longer has this network");
                if !(self.tell)(PoolNews::Gone(id)) {
                    return false;
                }
            }
            if let Some(network) = found.calico {
                let id = PoolId(self.next_id);
                self.next_id += 1;
                let reader = Calico::new(id, network.clone(), self.node.clone(), self.kube.clone());
                self.calico = Some((id, network, reader));
                dirty.insert(Subject::Pool(id));
            }
        }
        let (works, told) = tell_config(&directory, &config);
        info!("{told}");
        let part = self.part("CNI configuration");
        match (&config, works) {
            (Err(_), _) => part.off(told),
            (Ok(_), true) => part.works(told),
            (Ok(_), false) => part.degraded(told),
        }
        self.config = Some(config);
        true
    }

    fn read_pool(&mut self, id: PoolId, thoroughly: bool) -> bool {
        let Some(pool) = self.host_local.get(&id) else {
            return true;
        };
        let directory = pool.directory.clone();
        // Before the reading: what happens after it is told.
        self.watch(Subject::Pool(id), &directory);
        let Some(pool) = self.host_local.get_mut(&id) else {
            return true;
        };
        let read = pool.read(thoroughly);
        let name = part_name(pool);
        self.show(id, &name, &directory, read.state);
        (self.tell)(PoolNews::Read(read.pool, read.touched))
    }

    async fn read_aws(&mut self, id: PoolId) -> bool {
        let Some((_, _, aws)) = &self.aws else {
            return true;
        };
        let directory = aws.directory().to_owned();
        self.watch(Subject::Pool(id), &directory);
        let Some((_, _, aws)) = &mut self.aws else {
            return true;
        };
        let read = aws.read().await;
        self.say(AWS, read.works, read.told);
        (self.tell)(PoolNews::Read(read.pool, read.touched))
    }

    async fn read_calico(&mut self, id: PoolId) -> bool {
        // Blocks of the whole cluster: not for each pod that comes.
        let now = Instant::now();
        let due = match self.calico_last {
            Some(_) if self.calico_asked => self.calico_next,
            Some(last) => last + CALICO_PAUSE,
            None => now,
        };
        if due > now {
            return true;
        }
        let before = self.calico_last.replace(now);
        self.calico_next = before.map_or(now, |before| before + CALICO_PAUSE);
        self.calico_next = self.calico_next.max(now + CALICO_GAP);
        self.calico_asked = false;
        let Some((_, _, calico)) = &mut self.calico else {
            return true;
        };
        debug_assert_eq!(id, calico.id());
        let read = calico.read().await;
        self.say(CALICO, read.works, read.told);
        (self.tell)(PoolNews::Read(read.pool, read.touched))
    }

    fn say(&mut self, name: &'static str, works: bool, told: String) {
        let part = self.part(name);
        // Counts change all the time.
        let gist: String = told.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.said.get(name) != Some(&gist) {
            if works {
                info!("{name}: {told}");
            } else {
                warn!("{name}: {told}");
            }
            self.said.insert(name, gist);
        }
        if works {
            part.works(told);
        } else {
            part.failed(told);
        }
    }

    fn show(&mut self, id: PoolId, name: &str, directory: &Path, state: State) {
        if self.states.get(&id) == Some(&state) {
            return;
        }
        let shown = directory.display();
        let how = if self.watcher.is_some() {
            "followed"
        } else {
            "looked at twice a second"
        };
        let part = self.part(name);
        let told = match &state {
            State::Read {
                reservations,
                foreign,
            } => {
                let foreign = match foreign {
                    0 => String::new(),
                    n => format!("; {n} entries there are no reservations"),
                };
                let told = format!("{reservations} reservations in {shown}, {how}{foreign}");
                part.works(told.clone());
                told
            }
            State::NeverSeen(why) => {
                part.off(why.clone());
                why.clone()
            }
            State::Deleted => {
                let told = format!("{shown} is not there: no address is reserved");
                part.degraded(told.clone());
                told
            }
            State::Orphaned => {
                let told = format!(
                    "{shown} was deleted on the node, and the agent's mount still shows the deleted one: addresses handed out since are not judged; restart the agent, or mount the directory above"
                );
                part.failed(told.clone());
                told
            }
            State::Unreadable(why) => {
                let told = format!("{shown} cannot be read: {why}; drift is not judged by it");
                part.failed(told.clone());
                told
            }
        };
        let before = self.states.insert(id, state);
        let kind = before.as_ref().map(std::mem::discriminant);
        // Counts change all the time.
        if kind != self.states.get(&id).map(std::mem::discriminant) {
            match self.states.get(&id) {
                Some(State::Unreadable(_) | State::Deleted | State::Orphaned) => {
                    warn!("{name}: {told}")
                }
                _ => info!("{name}: {told}"),
            }
        }
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

fn part_name(pool: &HostLocal) -> String {
    format!("host-local: {}", pool.network.name)
}

async fn next_change(watcher: &mut Option<Watcher<Subject>>) -> io::Result<Changed<Subject>> {
    match watcher {
        Some(watcher) => watcher.changed().await,
        None => std::future::pending().await,
    }
}

/// What was recognised, in a sentence, and whether all of it could be used.
pub(super) fn tell_config(directory: &Path, config: &Result<Config, String>) -> (bool, String) {
    let config = match config {
        Ok(config) => config,
        Err(why) => return (false, why.clone()),
    };
    let mut known: Vec<String> = config
        .host_local
        .iter()
        .map(|n| format!("host-local ({})", n.name))
        .collect();
    known.extend(config.calico.iter().map(|n| format!("calico-ipam ({n})")));
    known.extend(config.aws.iter().map(|(n, _)| format!("aws-ipamd ({n})")));
    let mut told = if known.is_empty() {
        format!("no IPAM recognised in {}", directory.display())
    } else {
        format!(
            "recognised in {}: {}",
            directory.display(),
            known.join(", ")
        )
    };
    if !config.others.is_empty() {
        told.push_str(&format!(
            "; not known to this agent: {}",
            config.others.join(", ")
        ));
    }
    if config.omitted > 0 {
        told.push_str(&format!("; {} networks are too many", config.omitted));
    }
    for problem in &config.problems {
        told.push_str(&format!("; {problem}"));
    }
    (config.problems.is_empty() && config.omitted == 0, told)
}
