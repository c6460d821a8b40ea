//! Which sources there are, and asking each of them once: for `check`, which does not stay.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    CniCache, Cri, Identifier, IdentifySettings, Note, PathSetting, PodBook, Source, SourceStatus,
    source::{Report, ask, serve},
};
use crate::detect::Device;

/// The sources that are to be used.
#[derive(Debug)]
pub(super) struct Sources {
    cri: Option<Cri>,
    cni_cache: Option<CniCache>,
}

impl Sources {
    pub(super) fn new(settings: &IdentifySettings) -> Self {
        Self {
            cri: Cri::new(&settings.cri_endpoint),
            cni_cache: match &settings.cni_cache_dir {
                PathSetting::Off => None,
                PathSetting::At(directory) => Some(CniCache::new(directory.clone())),
            },
        }
    }

    fn statuses(&self) -> Vec<SourceStatus> {
        vec![status(self.cri.as_ref()), status(self.cni_cache.as_ref())]
    }

    /// Lets each source answer in every round, from tasks of their own.
    pub(super) fn serve(
        self,
        patience: Duration,
        rounds: &watch::Receiver<u64>,
        reports: &mpsc::Sender<Report>,
    ) -> Vec<SourceStatus> {
        let statuses = self.statuses();
        if let Some(source) = self.cri {
            tokio::spawn(serve(source, patience, rounds.clone(), reports.clone()));
        }
        if let Some(source) = self.cni_cache {
            tokio::spawn(serve(source, patience, rounds.clone(), reports.clone()));
        }
        statuses
    }

    /// Asks each source once.
    fn ask(self, round: u64, patience: Duration) -> JoinSet<Report> {
        let mut asked = JoinSet::new();
        if let Some(mut source) = self.cri {
            asked.spawn(async move { ask(&mut source, round, patience).await });
        }
        if let Some(mut source) = self.cni_cache {
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

/// Looks the pods behind these devices up, and gives what is known when all sources have answered or the time set is
/// over.
///
/// # Errors
/// Where the system gives no runtime to wait with.
pub fn look_once(devices: Vec<Device>, settings: &IdentifySettings) -> io::Result<Arc<PodBook>> {
    let book = Arc::new(PodBook::default());
    if devices.is_empty() {
        return Ok(book);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let kept = Arc::clone(&book);
    runtime.block_on(async move {
        let now = Instant::now();
        let deadline = now + settings.lookup_timeout;
        let sources = Sources::new(settings);
        let mut identifier = Identifier::quiet(kept);
        identifier.use_sources(sources.statuses());
        for device in devices {
            identifier.note(Note::Appeared(device), now);
        }
        identifier.begin_round(now);
        let mut asked = sources.ask(1, settings.lookup_timeout);
        while let Ok(Some(answer)) = timeout_at(deadline, asked.join_next()).await {
            if let Ok(report) = answer {
                identifier.report(report);
            }
        }
        identifier.give_up();
        identifier.publish();
    });
    // A reading that hangs is left behind.
    runtime.shutdown_background();
    Ok(book)
}
