//! Whether the API server's datastore went back to an earlier state.
//!
//! The resource version of a list that is not read from a cache is the revision of etcd, which only grows, unless a backup is restored.
//! It is read every ten minutes, and with each diagnosis that depends on it. A restore is missed if the datastore has grown past the
//! version that was read last by the time of the next one. With `--state-dir`, what was read before a restart of the agent counts as
//! well.

use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant},
};

use ::kube::{Api, Client, api::ListParams};
use detector_engine::diagnosis::{Known, ResourceVersions, Source, UnixTime};
use detector_event::WallTime;
use k8s_openapi::api::core::v1::Pod;
use redb::{ReadableTable as _, TableDefinition};
use tracing::debug;

use super::{
    files::{not_checked, unix},
    requests::Requests,
};
use crate::persist::store::Store;

/// Time between two reads without a diagnosis.
const PERIOD: Duration = Duration::from_mins(10);
/// The same after one that failed, or was not needed: the first pod of a network may come later.
const RETRY: Duration = Duration::from_mins(1);
/// A restored etcd may have been configured to continue from a version that it never reached before (`--bump-revision`, by default by a
/// thousand million), so that watches notice.
const BUMP: u64 = 500_000_000;
/// Longest time without a read after which greater versions still exclude a restore: within it, a datastore can only have grown past
/// its last version if the backup was about as young.
const MAX_GAP: Duration = Duration::from_mins(30);

/// In nanoseconds since the epoch: the first read, the last one, and its version; and of a restore, version and time before, version and
/// time after it.
type Record = (u64, u64, u64, Option<(u64, u64, u64, u64)>);
/// By [`Requests::cluster_identity`], for one cluster.
const TABLE: TableDefinition<'_, &str, Record> = TableDefinition::new("state.resource-versions");

/// The versions since the agent started, or with a store since it was first started.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The first one, unless the datastore is known to have been replaced since.
    first_at: Option<UnixTime>,
    last: Option<(UnixTime, u64)>,
    /// How it went back.
    restored: Option<ResourceVersions>,
    read_at: Option<Instant>,
    /// No finding depended on the present one.
    is_skipped: bool,
    failed: Option<String>,
    store: Option<Arc<Store>>,
    /// Once the store was read.
    cluster: Option<String>,
}

impl Versions {
    /// Keeps them in a store.
    pub(super) fn stored(store: Option<Arc<Store>>) -> Self {
        Self {
            store,
            ..Self::default()
        }
    }

    /// When to read the next one.
    pub(super) fn due(&self) -> Instant {
        let is_missing = self.is_skipped || self.failed.is_some();
        let period = if is_missing { RETRY } else { PERIOD };
        let due = self.read_at.map(|read_at| read_at + period);
        due.unwrap_or_else(Instant::now)
    }

    /// No finding depends on the present one.
    pub(super) fn skip(&mut self) {
        self.read_at = Some(Instant::now());
        self.is_skipped = true;
    }

    /// Reads the present one unless that was done since `due`.
    pub(super) fn refresh(&mut self, due: Instant, requests: &mut Requests) {
        if self.read_at.is_some_and(|read_at| read_at >= due) {
            return;
        }
        self.read_at = Some(Instant::now());
        self.is_skipped = false;
        let version = requests.kube(current);
        self.failed = version.as_ref().err().cloned();
        if let (Ok(version), Some(now)) = (version, unix(WallTime::now())) {
            self.load(requests, now);
            self.note(version, now);
            self.save();
        }
    }

    /// Continues from what an earlier agent stored about this cluster.
    fn load(&mut self, requests: &Requests, now: UnixTime) {
        let Some(store) = self.store.clone().filter(|_| self.cluster.is_none()) else {
            return;
        };
        let cluster = match requests.cluster_identity() {
            Ok(cluster) => cluster,
            Err(why) => {
                not_kept(&why);
                self.store = None;
                return;
            }
        };
        match read(&store, &cluster) {
            Some(Some(record)) => self.continue_from(record, now),
            Some(None) => {}
            None => return,
        }
        self.cluster = Some(cluster);
    }

    fn continue_from(&mut self, record: Record, now: UnixTime) {
        let (first_at, last_at, version, restored) = record;
        let gap = Duration::from_nanos(now.0.saturating_sub(last_at));
        self.first_at = (gap <= MAX_GAP).then_some(UnixTime(first_at));
        self.last = Some((UnixTime(last_at), version));
        self.restored = restored.map(|(before, kept_at, now, noticed_at)| ResourceVersions {
            before,
            kept_at: UnixTime(kept_at),
            now,
            noticed_at: UnixTime(noticed_at),
        });
    }

    fn save(&self) {
        let (Some(store), Some(cluster)) = (&self.store, &self.cluster) else {
            return;
        };
        let Some((first_at, (last_at, version))) = self.first_at.zip(self.last) else {
            return;
        };
        let restored = self.restored.as_ref();
        let restored = restored.map(|r| (r.before, r.kept_at.0, r.now, r.noticed_at.0));
        let record = (first_at.0, last_at.0, version, restored);
        write(store, cluster, record);
    }

    fn note(&mut self, version: u64, now: UnixTime) {
        if let Some((kept_at, before)) = self.last {
            if version < before {
                self.restored = Some(ResourceVersions {
                    before,
                    kept_at,
                    now: version,
                    noticed_at: now,
                });
            }
            if version < before || version - before >= BUMP {
                self.first_at = None;
            }
        }
        self.first_at.get_or_insert(now);
        self.last = Some((now, version));
    }

    /// The versions, now and before.
    pub(super) fn facts(&self) -> Known<ResourceVersions> {
        const WHAT: &str = "resource versions of the API server";
        let source = Source::KubernetesObject("the list of pods".to_owned());
        if let Some(restored) = &self.restored {
            return Known::Value(restored.clone(), source);
        }
        if let Some(why) = &self.failed {
            return not_checked(WHAT, why.clone());
        }
        match self.first_at.zip(self.last) {
            Some((kept_at, (noticed_at, version))) => Known::Value(
                ResourceVersions {
                    before: version,
                    kept_at,
                    now: version,
                    noticed_at,
                },
                source,
            ),
            None => not_checked(WHAT, "none was read yet"),
        }
    }
}

/// What the store has for a cluster; `None` if it cannot be used, which others report.
fn read(store: &Store, cluster: &str) -> Option<Option<Record>> {
    let record = store.in_transaction(|write| {
        let table = write.open_table(TABLE)?;
        Ok(table.get(cluster)?.map(|record| record.value()))
    });
    record.map_err(|error| not_kept(&error)).ok()
}

/// Keeps this of the cluster, and nothing of others.
fn write(store: &Store, cluster: &str, record: Record) {
    let written = store.in_transaction(|write| {
        let mut table = write.open_table(TABLE)?;
        table.retain(|known, _| known == cluster)?;
        table.insert(cluster, record)?;
        Ok(())
    });
    written.unwrap_or_else(|error| not_kept(&error));
}

fn not_kept(why: &dyn Display) {
    debug!("resource versions are not kept: {why}");
}

/// The version of a list from etcd.
async fn current(client: Client) -> Result<u64, String> {
    let pods: Api<Pod> = Api::all(client);
    let list = pods.list_metadata(&ListParams::default().limit(1)).await;
    let list = list.map_err(|error| error.to_string())?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let version = version.parse();
    version.map_err(|_| "its resource versions are not numbers".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn noted(versions: &[u64]) -> ResourceVersions {
        let mut all = Versions::default();
        for (second, version) in (1..).zip(versions) {
            all.note(*version, UnixTime(second * SECOND));
        }
        all.facts().value().unwrap().clone()
    }

    #[test]
    fn versions_that_grew_were_watched_since_the_first() {
        let facts = noted(&[9_000, 9_100, 9_500]);
        assert_eq!(facts.kept_at, UnixTime(SECOND));
        assert!(facts.now >= facts.before);
    }

    #[test]
    fn version_that_went_back_stays_known() {
        let facts = noted(&[9_000, 9_100, 7_000, 9_900]);
        assert_eq!((facts.before, facts.now), (9_100, 7_000));
        assert_eq!(facts.kept_at, UnixTime(2 * SECOND));
        assert_eq!(facts.noticed_at, UnixTime(3 * SECOND));
    }

    #[test]
    fn versions_of_an_earlier_run_count_unless_it_was_long_ago() {
        let hours = |n: u64| n * 3_600 * SECOND;
        let record = (hours(1), hours(9), 9_500, None);
        let continued = |version: u64, now: u64| {
            let mut versions = Versions::default();
            versions.continue_from(record, UnixTime(now));
            versions.note(version, UnixTime(now));
            versions.facts().value().unwrap().clone()
        };
        let soon = hours(9) + 600 * SECOND;
        assert_eq!(continued(9_600, soon).kept_at, UnixTime(hours(1)));
        assert_eq!(continued(9_600, hours(10)).kept_at, UnixTime(hours(10)));
        // One that went back did so whenever that was.
        let restored = continued(7_000, hours(30));
        assert_eq!((restored.before, restored.now), (9_500, 7_000));
    }

    #[test]
    fn only_the_last_cluster_is_kept() {
        let store = Store::in_memory();
        let record = (1, 2, 3, Some((4, 5, 6, 7)));
        for cluster in ["first", "second"] {
            write(&store, cluster, record);
        }
        let kept = |cluster: &str| read(&store, cluster).unwrap();
        assert_eq!(kept("first"), None);
        assert_eq!(kept("second"), Some(record));
    }

    #[test]
    fn version_that_jumps_may_be_that_of_a_restored_datastore() {
        let facts = noted(&[9_000, 1_000_009_100, 1_000_009_200]);
        assert_eq!(facts.kept_at, UnixTime(2 * SECOND));
    }
}
