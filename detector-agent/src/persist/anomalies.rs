//! Open anomalies over a restart, at most a second behind.
//!
//! Table `state.anomalies`: under `world` the boot and the network namespace they belong to, under `open` all of them as
//! one JSON document. They are few and change seldom, so the whole list is written each time.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use redb::{ReadableDatabase as _, TableDefinition, TableError};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::records::world;
use crate::{
    engine::{
        Anomaly, AnomalyCause, AnomalyId, AnomalyKind, Claimant, Engine, Ipam, PoolSource,
        Timestamp, Vlan,
    },
    persist::store::{Store, StoreError},
};

const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state.anomalies");
/// Longest that a start waits for the store.
const START: Duration = Duration::from_secs(5);

/// An anomaly as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    id: String,
    kind: String,
    cause: String,
    address: IpAddr,
    vlan: Vlan,
    holder: Option<Claimant>,
    also_on: Vec<String>,
    source: Option<(String, String, String)>,
    owner: Option<String>,
    detail: String,
    raised_at: Timestamp,
    decided_at: Timestamp,
}

impl Kept {
    pub(super) fn of(anomaly: Anomaly) -> Self {
        Self {
            id: anomaly.id.to_string(),
            kind: anomaly.kind.name().to_owned(),
            cause: anomaly.cause.name().to_owned(),
            address: anomaly.address,
            vlan: anomaly.vlan,
            holder: anomaly.holder,
            also_on: anomaly.also_on,
            source: anomaly
                .source
                .map(|s| (s.ipam.name().to_owned(), s.network.clone(), s.place.clone())),
            owner: anomaly.owner.map(|o| o.to_string()),
            detail: anomaly.detail,
            raised_at: anomaly.raised_at,
            decided_at: anomaly.decided_at,
        }
    }

    /// `None` where another version wrote what this one does not know.
    pub(super) fn anomaly(self) -> Option<Anomaly> {
        let source = match self.source {
            None => None,
            Some((ipam, network, place)) => Some(Arc::new(PoolSource {
                ipam: Ipam::ALL.into_iter().find(|i| i.name() == ipam)?,
                network,
                place,
            })),
        };
        Some(Anomaly {
            id: AnomalyId(u128::from_str_radix(&self.id, 16).ok()?),
            kind: AnomalyKind::ALL
                .into_iter()
                .find(|k| k.name() == self.kind)?,
            cause: AnomalyCause::ALL
                .into_iter()
                .find(|c| c.name() == self.cause)?,
            address: self.address,
            vlan: self.vlan,
            holder: self.holder,
            also_on: self.also_on,
            source,
            owner: self.owner.map(Arc::from),
            detail: self.detail,
            raised_at: self.raised_at,
            decided_at: self.decided_at,
            resolved_at: None,
            resolve_reason: None,
        })
    }
}

/// Offers the open anomalies to the store, from the detection thread.
#[derive(Debug)]
pub struct AnomalyKeeper {
    lists: SyncSender<Vec<Anomaly>>,
    changed: bool,
}

/// The thread that writes them; it ends after the keeper.
#[derive(Debug)]
pub struct AnomalyState {
    thread: thread::JoinHandle<()>,
}

impl AnomalyKeeper {
    /// Starts the thread and gives what an earlier agent of this boot left open.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn start(store: Arc<Store>) -> std::io::Result<(Self, AnomalyState, Vec<Anomaly>)> {
        let (lists, offered) = mpsc::sync_channel(1);
        let (loaded, load) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("state-anomalies".to_owned())
            .spawn(move || work(&store, &offered, &loaded))?;
        let kept = load.recv_timeout(START).unwrap_or_default();
        let keeper = Self {
            lists,
            changed: false,
        };
        Ok((keeper, AnomalyState { thread }, kept))
    }

    /// An anomaly was raised or resolved.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Offers the list where it changed. Never waits.
    pub fn tick(&mut self, engine: &Engine) {
        if self.changed {
            let refused = self.lists.try_send(engine.anomalies());
            self.changed = matches!(refused, Err(TrySendError::Full(_)));
        }
    }
}

impl AnomalyState {
    /// Waits until what was offered is written. The [`AnomalyKeeper`] must be gone by then.
    pub fn finish(self) {
        let until = std::time::Instant::now() + Duration::from_secs(3);
        while !self.thread.is_finished() && std::time::Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn work(store: &Store, offered: &Receiver<Vec<Anomaly>>, loaded: &SyncSender<Vec<Anomaly>>) {
    let world = match world() {
        Ok(world) => world,
        Err(error) => {
            warn!("anomalies are not kept over a restart: {error}");
            return;
        }
    };
    let kept = attempt(store, |database| read(database, &world)).unwrap_or_else(|error| {
        warn!("the anomalies that an earlier agent left open are not known: {error}");
        Vec::new()
    });
    // Nobody may wait for it any more.
    let _ = loaded.send(kept);
    let mut in_trouble = false;
    while let Ok(list) = offered.recv() {
        let list: Vec<Kept> = list.into_iter().map(Kept::of).collect();
        match attempt(store, |database| write(database, &world, &list)) {
            Ok(()) => in_trouble = false,
            Err(error) => {
                if !std::mem::replace(&mut in_trouble, true) {
                    warn!("the open anomalies cannot be kept: {error}");
                }
            }
        }
    }
}

fn attempt<T>(
    store: &Store,
    work: impl FnOnce(&redb::Database) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let database = store.database()?;
    let done = work(&database);
    if done.is_err() {
        store.failed(database);
    }
    done
}

fn read(database: &redb::Database, world: &str) -> Result<Vec<Anomaly>, StoreError> {
    let read = database.begin_read()?;
    let table = match read.open_table(TABLE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table?,
    };
    if table
        .get("world")?
        .is_none_or(|w| w.value() != world.as_bytes())
    {
        return Ok(Vec::new());
    }
    let Some(open) = table.get("open")? else {
        return Ok(Vec::new());
    };
    let kept: Vec<Kept> = serde_json::from_slice(open.value()).unwrap_or_default();
    Ok(kept.into_iter().filter_map(Kept::anomaly).collect())
}

fn write(database: &redb::Database, world: &str, list: &[Kept]) -> Result<(), StoreError> {
    let write = database.begin_write()?;
    {
        let mut table = write.open_table(TABLE)?;
        // Plain data: it can always be written.
        let text = serde_json::to_vec(list).unwrap_or_default();
        table.insert("world", world.as_bytes())?;
        table.insert("open", text.as_slice())?;
    }
    write.commit()?;
    Ok(())
}
