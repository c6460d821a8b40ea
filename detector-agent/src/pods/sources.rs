//! The configured pod sources.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    CniCache, Cri, KubePods, PathSetting, PluginPods, PodLookupSettings, PodSource, SourceStatus,
    kube,
    source::{SourceReport, query, serve},
};
use crate::kube_client::KubeClient;

/// The pod sources in use.
#[derive(Debug)]
pub struct PodSources {
    cri: Option<Cri>,
    cni_cache: Option<CniCache>,
    kube: Option<KubePods>,
    /// Deadline of one query to a source.
    timeout: Duration,
}

impl PodSources {
    /// The sources that `settings` enable, for the pods of `node`. `kube`: the connection to the API, if it is used.
    #[must_use]
    pub fn new(settings: &PodLookupSettings, node: &str, kube: Option<KubeClient>) -> Self {
        Self {
            cri: Cri::new(&settings.cri_endpoint),
            cni_cache: match &settings.cni_cache_dir {
                PathSetting::Off => None,
                PathSetting::At(directory) => Some(CniCache::new(directory.clone())),
            },
            kube: kube.map(|client| KubePods::new(client, node, &settings.pod_labels)),
            timeout: settings.lookup_timeout,
        }
    }

    /// The pods of network plugins, which are known once the Kubernetes API has listed pods.
    pub(crate) fn plugins(&self) -> Arc<PluginPods> {
        let kube = self.kube.as_ref();
        kube.map(KubePods::plugins).unwrap_or_default()
    }

    /// The state of each source before its first query.
    pub(super) fn statuses(&self) -> Vec<SourceStatus> {
        vec![
            status(self.cri.as_ref()),
            status(self.cni_cache.as_ref()),
            status(self.kube.as_ref()),
        ]
    }

    /// Starts a task for each source. They report in every round; the Kubernetes API reports whenever it changes.
    pub(super) fn start(
        self,
        rounds: &watch::Receiver<u64>,
        reports: &mpsc::Sender<SourceReport>,
    ) -> Vec<SourceStatus> {
        let statuses = self.statuses();
        let (rounds, reports) = (|| rounds.clone(), || reports.clone());
        if let Some(source) = self.cri {
            tokio::spawn(serve(source, self.timeout, rounds(), reports()));
        }
        if let Some(source) = self.cni_cache {
            tokio::spawn(serve(source, self.timeout, rounds(), reports()));
        }
        if let Some(source) = self.kube {
            tokio::spawn(kube::watch(source, reports()));
        }
        statuses
    }

    /// Queries each source once, all at the same time.
    pub(super) fn query_once(self, round: u64) -> JoinSet<SourceReport> {
        let mut queries = JoinSet::new();
        let timeout = self.timeout;
        if let Some(mut source) = self.cri {
            queries.spawn(async move { query(&mut source, round, timeout).await });
        }
        if let Some(mut source) = self.cni_cache {
            queries.spawn(async move { query(&mut source, round, timeout).await });
        }
        if let Some(mut source) = self.kube {
            queries.spawn(async move { query(&mut source, round, timeout).await });
        }
        queries
    }
}

fn status<S: PodSource>(source: Option<&S>) -> SourceStatus {
    source.map_or_else(
        || SourceStatus::off(S::VIA),
        |source| SourceStatus::untried(S::VIA, source.target()),
    )
}
