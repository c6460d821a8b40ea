//! The task that keeps the [`PodDirectory`]: takes notes of devices, has the sources asked, joins what they tell.
//!
//! A round is one question to all sources. A device takes part from the first round that begins after it was noted. New
//! devices get several rounds in quick succession, because a runtime lists a pod only some 70 ms after its device
//! appeared (its CNI cache knows it after 12 ms), then a few slow ones; after that only a conflict that names the
//! device, or a source that works again, brings it up once more.

mod device_lookup;
mod naming;

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    sync::Arc,
};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    DeviceMatcher, PodDirectory, SourceState, SourceStatus, Sources, Via,
    directory::{Answer, DeviceId},
    matcher::Catalogues,
    namespaces::Namespaces,
    source::{Change, Report},
};
use crate::{
    engine::{IfIndex, PodDevice},
    metrics::{Lookup, Metrics},
};
use device_lookup::Followed;

/// Room for notes that the task has not taken yet.
pub const NOTES: usize = 16_384;

/// What the task is told.
#[derive(Clone, Debug)]
pub enum Note {
    /// A device appeared, or something about it changed.
    Appeared(PodDevice),
    /// A conflict names this device, and its pod is not known.
    Wanted(PodDevice),
    /// A device (index, generation) is gone.
    Gone(IfIndex, u64),
}

/// The book's keeper.
#[derive(Debug)]
pub struct Identifier {
    book: Arc<PodDirectory>,
    metrics: Arc<Metrics>,
    devices: HashMap<DeviceId, Followed>,
    gone: VecDeque<DeviceId>,
    catalogues: Catalogues,
    namespaces: Namespaces,
    sources: Vec<SourceStatus>,
    round: u64,
    /// Devices whose pod became known, or is another now, since it was last told.
    news: Vec<DeviceId>,
    stale: bool,
    /// Say in the log how the sources fare.
    logs: bool,
}

impl Identifier {
    /// A keeper that knows nothing yet.
    #[must_use]
    pub fn new(book: Arc<PodDirectory>, metrics: Arc<Metrics>) -> Self {
        Self {
            book,
            metrics,
            devices: HashMap::new(),
            gone: VecDeque::new(),
            catalogues: Catalogues::default(),
            namespaces: Namespaces::default(),
            sources: Vec::new(),
            round: 0,
            news: Vec::new(),
            stale: false,
            logs: true,
        }
    }

    /// A keeper for a single look, which does not log.
    pub(super) fn quiet(book: Arc<PodDirectory>) -> Self {
        Self {
            logs: false,
            ..Self::new(book, Arc::new(Metrics::new()))
        }
    }

    /// Keeps the book until nobody takes notes any more. `tell` says which devices' pods became known, or better known.
    pub async fn run(
        mut self,
        sources: Sources,
        mut notes: mpsc::Receiver<Note>,
        tell: impl Fn(Vec<(IfIndex, u64)>),
    ) {
        let (rounds, watched) = watch::channel(0);
        let (sender, mut reports) = mpsc::channel(8);
        self.use_sources(sources.serve(&watched, &sender));
        loop {
            let due = self.next_due();
            tokio::select! {
                note = notes.recv() => match note {
                    Some(note) => self.note(note, Instant::now()),
                    None => return,
                },
                // Never `None`: a sender is kept here.
                Some(report) = reports.recv() => {
                    // Devices that are gone by now are not to be named.
                    while let Ok(note) = notes.try_recv() {
                        self.note(note, Instant::now());
                    }
                    self.report(report);
                }
                () = until(due) => {}
            }
            while let Ok(note) = notes.try_recv() {
                self.note(note, Instant::now());
            }
            if self.begin_round(Instant::now()) {
                rounds.send_replace(self.round);
            }
            self.publish();
            let news = std::mem::take(&mut self.news);
            if !news.is_empty() {
                tell(news);
            }
        }
    }

    /// Takes over which sources there are.
    pub(super) fn use_sources(&mut self, sources: Vec<SourceStatus>) {
        self.sources = sources;
        self.book.publish_sources(self.sources.clone());
        self.stale = true;
    }

    pub(super) fn note(&mut self, note: Note, now: Instant) {
        match note {
            Note::Appeared(device) => self.appeared(device, now),
            Note::Wanted(device) => self.wanted(device, now),
            Note::Gone(ifindex, generation) => self.is_gone((ifindex, generation)),
        }
    }

    /// Takes over what a source told.
    pub(super) fn report(&mut self, report: Report) {
        let Report {
            via,
            target,
            round,
            outcome,
        } = report;
        let Some(status) = self.sources.iter_mut().find(|status| status.via == via) else {
            return;
        };
        let was = status.state;
        let change = status.update(&target, &outcome);
        if self.logs {
            status.log(change);
        }
        if change != Change::None {
            self.stale = true;
            self.book.publish_sources(self.sources.clone());
        }
        let state = self.state(via);
        match outcome {
            Ok(told) => {
                self.catalogues
                    .set(via, round, DeviceMatcher::new(told.records));
                self.name_devices(Some((via, round)));
            }
            Err(_) => {
                let asked = self.asked(via, round);
                self.count(via, state.name(), asked);
            }
        }
        if was != SourceState::Working
            && was != SourceState::Untried
            && state == SourceState::Working
        {
            self.look_up_again(via);
        }
    }

    fn state(&self, via: Via) -> SourceState {
        self.sources
            .iter()
            .find(|status| status.via == via)
            .map_or(SourceState::Off, |status| status.state)
    }

    fn count(&self, via: Via, outcome: &'static str, lookups: usize) {
        if lookups > 0 {
            let labels = Lookup {
                via: via.name(),
                outcome,
            };
            self.metrics
                .lookups
                .get_or_create(&labels)
                .inc_by(lookups as u64);
        }
    }

    /// Writes the book where something changed.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let in_vain: Arc<str> = self.because().into();
        let looking: Arc<str> = format!("it is being looked up; so far {in_vain}").into();
        let answers = self.devices.iter().map(|(id, followed)| {
            let answer = match &followed.pod {
                Some(pod) => Answer::Known(Arc::clone(pod)),
                None => {
                    let because = match followed.due {
                        Some(_) => &looking,
                        None => &in_vain,
                    };
                    Answer::Unknown(match &followed.hint {
                        Some(hint) => format!("{hint}; {because}").into(),
                        None => Arc::clone(because),
                    })
                }
            };
            (*id, answer)
        });
        self.book.publish_answers(answers.collect());
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
