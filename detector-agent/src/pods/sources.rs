//! Which sources there are, and letting them be asked.

use std::time::Duration;

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    CniCache, Cri, IdentifySettings, Kube, PathSetting, Source, SourceStatus, kube,
    source::{Report, ask, serve},
};

/// The sources that are to be used.
#[derive(Debug)]
pub struct Sources {
    cri: Option<Cri>,
    cni_cache: Option<CniCache>,
    kube: Option<Kube>,
    /// How long each may take to answer.
    patience: Duration,
}

impl Sources {
    /// As the operator wants them, for the node of this name.
    #[must_use]
    pub fn new(settings: &IdentifySettings, node: &str) -> Self {
        Self {
            cri: Cri::new(&settings.cri_endpoint),
            cni_cache: match &settings.cni_cache_dir {
                PathSetting::Off => None,
                PathSetting::At(directory) => Some(CniCache::new(directory.clone())),
            },
            kube: Kube::new(settings.kube, node, &settings.pod_labels),
            patience: settings.lookup_timeout,
        }
    }

    /// The Kubernetes API, where it is to be used.
    #[must_use]
    pub fn kube(&self) -> Option<&Kube> {
        self.kube.as_ref()
    }

    /// How they fare before the first question.
    pub(super) fn statuses(&self) -> Vec<SourceStatus> {
        vec![
            status(self.cri.as_ref()),
            status(self.cni_cache.as_ref()),
            status(self.kube.as_ref()),
        ]
    }

    /// Lets each source answer, from tasks of their own: in every round, but the Kubernetes API whenever it changes.
    pub(super) fn serve(
        self,
        rounds: &watch::Receiver<u64>,
        reports: &mpsc::Sender<Report>,
    ) -> Vec<SourceStatus> {
        let statuses = self.statuses();
        let (rounds, reports) = (|| rounds.clone(), || reports.clone());
        if let Some(source) = self.cri {
            tokio::spawn(serve(source, self.patience, rounds(), reports()));
        }
        if let Some(source) = self.cni_cache {
            tokio::spawn(serve(source, self.patience, rounds(), reports()));
        }
        if let Some(source) = self.kube {
            tokio::spawn(kube::watch(source, reports()));
        }
        statuses
    }

    /// Asks each source once.
    pub(super) fn ask(self, round: u64) -> JoinSet<Report> {
        let mut asked = JoinSet::new();
        let patience = self.patience;
        if let Some(mut source) = self.cri {
            asked.spawn(async move { ask(&mut source, round, patience).await });
        }
        if let Some(mut source) = self.cni_cache {
            asked.spawn(async move { ask(&mut source, round, patience).await });
        }
        if let Some(mut source) = self.kube {
            asked.spawn(async move { ask(&mut source, round, patience).await });
        }
        asked
    }
}

fn status<S: Source>(source: Option<&S>) -> SourceStatus {
    source.map_or_else(
        || SourceStatus::off(S::VIA),
        |source| SourceStatus::untried(S::VIA, source.target()),
    )
}
