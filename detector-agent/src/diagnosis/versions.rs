//! Whether the API server's datastore went back to an earlier state.
//!
//! The resource version of a list that is not read from a cache is the revision of etcd, which only grows, unless a backup is restored.
//! It is read every ten minutes, and with each diagnosis that depends on it. A restore is missed if the datastore has grown past the
//! version that was read last by the time of the next one.

use std::time::{Duration, Instant};

use ::kube::{Api, Client, api::ListParams};
use detector_engine::diagnosis::{Known, ResourceVersions, Source, UnixTime};
use detector_event::WallTime;
use k8s_openapi::api::core::v1::Pod;

use super::{claimants::unix, files::not_checked, requests::Requests};

/// Time between two reads without a diagnosis.
const PERIOD: Duration = Duration::from_mins(10);
/// The same after one that failed.
const RETRY: Duration = Duration::from_mins(1);
/// A restored etcd may have been configured to continue from a version that it never reached before (`--bump-revision`, by default by a
/// thousand million), so that watches notice.
const BUMP: u64 = 500_000_000;

/// The versions since the agent started.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The first one, unless the datastore is known to have been replaced since.
    first_at: Option<UnixTime>,
    last: Option<(UnixTime, u64)>,
    /// How it went back.
    restored: Option<ResourceVersions>,
    read_at: Option<Instant>,
    failed: Option<String>,
}

impl Versions {
    /// When to read the next one.
    pub(super) fn due(&self) -> Instant {
        let period = if self.failed.is_some() { RETRY } else { PERIOD };
        let due = self.read_at.map(|read_at| read_at + period);
        due.unwrap_or_else(Instant::now)
    }

    /// No finding depends on the present one.
    pub(super) fn skip(&mut self) {
        self.read_at = Some(Instant::now());
    }

    /// Reads the present one unless that was done since `due`.
    pub(super) fn refresh(&mut self, due: Instant, requests: &mut Requests) {
        if self.read_at.is_some_and(|read_at| read_at >= due) {
            return;
        }
        self.read_at = Some(Instant::now());
        let version = requests.kube(current);
        self.failed = version.as_ref().err().cloned();
        if let (Ok(version), Some(now)) = (version, unix(WallTime::now())) {
            self.note(version, now);
        }
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
    fn version_that_jumps_may_be_that_of_a_restored_datastore() {
        let facts = noted(&[9_000, 1_000_009_100, 1_000_009_200]);
        assert_eq!(facts.kept_at, UnixTime(2 * SECOND));
    }
}
