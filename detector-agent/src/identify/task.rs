//! The task that keeps the [`PodBook`]: takes notes of devices, has the sources asked, joins what they tell.
//!
//! A round is one question to all sources. A device takes part from the first round that begins after it was noted. New
//! devices get several rounds in quick succession, because a runtime lists a pod only some 70 ms after its device
//! appeared (its CNI cache knows it after 12 ms), then a few slow ones; after that only a conflict that names the
//! device, or a source that works again, brings it up once more.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::pending,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{
    Catalogue, IdentifySettings, Pod, PodBook, SourceState, SourceStatus, Via,
    book::{Answer, DeviceId},
    catalogue::Catalogues,
    once::Sources,
    source::{Change, Report},
};
use crate::{
    detect::{Device, IfIndex},
    report::metrics::{Lookup, Metrics},
};

/// Room for notes that the task has not taken yet.
pub const NOTES: usize = 16_384;
/// Devices that are followed, as many as links.
const DEVICES: usize = 16_384;
/// Devices that are gone and still remembered: conflicts name those that left.
const GONE: usize = 2_048;
/// When a device is looked up again, counted from the time before.
const PAUSES: [Duration; 8] = [
    Duration::from_millis(25),
    Duration::from_millis(75),
    Duration::from_millis(150),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(7),
    Duration::from_secs(20),
];
/// A device that was looked up in vain is looked up again for a conflict no sooner than this.
const AGAIN: Duration = Duration::from_secs(10);

/// What the task is told.
#[derive(Clone, Debug)]
pub enum Note {
    /// A device appeared, or something about it changed.
    Appeared(Device),
    /// A conflict names this device, and its pod is not known.
    Wanted(Device),
    /// A device (index, generation) is gone.
    Gone(IfIndex, u64),
}

/// A device and how far its look-up has come.
#[derive(Debug)]
struct Followed {
    device: Device,
    /// The first round that can tell of it.
    since: u64,
    pod: Option<Arc<Pod>>,
    /// Rounds it had.
    attempts: usize,
    /// When it was last looked up.
    looked_up: Option<Instant>,
    /// When its next round is due; `None` where it is left alone.
    due: Option<Instant>,
    gone: bool,
}

impl Followed {
    fn via(&self) -> Option<Via> {
        self.pod.as_ref().map(|pod| pod.via)
    }

    /// Whether this source could name it, or name it better.
    fn could_do_with(&self, via: Via) -> bool {
        !self.gone && self.via().is_none_or(|known| via < known)
    }
}

/// The book's keeper.
#[derive(Debug)]
pub struct Identifier {
    book: Arc<PodBook>,
    metrics: Arc<Metrics>,
    devices: HashMap<DeviceId, Followed>,
    gone: VecDeque<DeviceId>,
    catalogues: Catalogues,
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
    pub fn new(book: Arc<PodBook>, metrics: Arc<Metrics>) -> Self {
        Self {
            book,
            metrics,
            devices: HashMap::new(),
            gone: VecDeque::new(),
            catalogues: Catalogues::default(),
            sources: Vec::new(),
            round: 0,
            news: Vec::new(),
            stale: false,
            logs: true,
        }
    }

    /// A keeper for a single look, which does not log.
    pub(super) fn quiet(book: Arc<PodBook>) -> Self {
        Self {
            logs: false,
            ..Self::new(book, Arc::new(Metrics::new()))
        }
    }

    /// Keeps the book until nobody takes notes any more. `tell` says which devices' pods became known, or better known.
    pub async fn run(
        mut self,
        settings: IdentifySettings,
        mut notes: mpsc::Receiver<Note>,
        tell: impl Fn(Vec<(IfIndex, u64)>),
    ) {
        let (rounds, watched) = watch::channel(0);
        let (sender, mut reports) = mpsc::channel(8);
        self.use_sources(Sources::new(&settings).serve(settings.lookup_timeout, &watched, &sender));
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

    fn appeared(&mut self, device: Device, now: Instant) {
        let id = (device.ifindex, device.generation);
        let since = self.round + 1;
        if let Some(followed) = self.devices.get_mut(&id) {
            let moved = followed.device.peer != device.peer;
            followed.device = device;
            if moved {
                // Another namespace, another pod.
                followed.since = since;
                followed.pod = None;
            }
            followed.attempts = 0;
            followed.due = Some(now);
        } else if self.devices.len() < DEVICES + self.gone.len() {
            let followed = Followed {
                device,
                since,
                pod: None,
                attempts: 0,
                looked_up: None,
                due: Some(now),
                gone: false,
            };
            self.devices.insert(id, followed);
        }
        self.stale = true;
    }

    fn wanted(&mut self, device: Device, now: Instant) {
        let id = (device.ifindex, device.generation);
        let Some(followed) = self.devices.get_mut(&id) else {
            return self.appeared(device, now);
        };
        let rested = followed
            .looked_up
            .is_none_or(|looked_up| now.duration_since(looked_up) >= AGAIN);
        if followed.due.is_none() && !followed.gone && rested {
            followed.attempts = 0;
            followed.due = Some(now);
        }
    }

    fn is_gone(&mut self, id: DeviceId) {
        let Some(followed) = self.devices.get_mut(&id) else {
            return;
        };
        if followed.gone {
            return;
        }
        followed.gone = true;
        followed.due = None;
        self.gone.push_back(id);
        if self.gone.len() > GONE
            && let Some(oldest) = self.gone.pop_front()
        {
            self.devices.remove(&oldest);
            self.stale = true;
        }
    }

    /// Begins a round where one is due.
    pub(super) fn begin_round(&mut self, now: Instant) -> bool {
        let mut begun = false;
        let hopeful = |via: Via| {
            self.sources
                .iter()
                .any(|source| source.via == via && source.state.is_hopeful())
        };
        let hopeful = Via::ALL.map(|via| (via, hopeful(via)));
        for followed in self.devices.values_mut() {
            if followed.due.is_none_or(|due| due > now) {
                continue;
            }
            begun = true;
            followed.looked_up = Some(now);
            let better = hopeful
                .iter()
                .any(|(via, hopeful)| *hopeful && followed.could_do_with(*via));
            followed.due = PAUSES
                .get(followed.attempts)
                .filter(|_| better)
                .map(|pause| now + *pause);
            followed.attempts += 1;
            // Not being looked up any more is another reason.
            self.stale |= followed.due.is_none();
        }
        self.round += u64::from(begun);
        begun
    }

    /// No further round will come.
    pub(super) fn give_up(&mut self) {
        for followed in self.devices.values_mut() {
            followed.due = None;
        }
        self.stale = true;
    }

    fn next_due(&self) -> Option<Instant> {
        self.devices.values().filter_map(|f| f.due).min()
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
                    .set(via, round, Catalogue::new(told.records));
                self.name_devices(via, round);
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

    /// How many devices a source was asked about.
    fn asked(&self, via: Via, round: u64) -> usize {
        self.devices
            .values()
            .filter(|followed| followed.since <= round && followed.could_do_with(via))
            .count()
    }

    fn name_devices(&mut self, via: Via, round: u64) {
        let mut named: BTreeMap<Via, usize> = BTreeMap::new();
        let mut not_found = 0;
        for (id, followed) in &mut self.devices {
            if !followed.could_do_with(via) && !followed.could_do_with(Via::NameHash) {
                continue;
            }
            let asked = followed.since <= round;
            let pod = self
                .catalogues
                .name(&followed.device, followed.since)
                .filter(|pod| followed.could_do_with(pod.via));
            match pod {
                Some(pod) => {
                    debug!(
                        device = followed.device.name,
                        via = pod.via.name(),
                        "is of {}/{}",
                        pod.namespace,
                        pod.name
                    );
                    *named.entry(pod.via).or_default() += 1;
                    let known = followed
                        .pod
                        .as_ref()
                        .is_some_and(|old| old.is_same_pod(&pod));
                    if !known {
                        self.news.push(*id);
                    }
                    if pod.via == Via::Cri {
                        followed.due = None;
                    }
                    followed.pod = Some(pod);
                    self.stale = true;
                }
                None => not_found += usize::from(asked),
            }
        }
        for (via, devices) in named {
            self.count(via, "named", devices);
        }
        self.count(via, "not_found", not_found);
    }

    /// A source is back: what it might name is looked up once more.
    fn look_up_again(&mut self, via: Via) {
        let now = Instant::now();
        for followed in self.devices.values_mut() {
            if followed.could_do_with(via) && followed.due.is_none() {
                followed.attempts = 0;
                followed.due = Some(now);
            }
        }
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
                None if followed.due.is_some() => Answer::Unknown(Arc::clone(&looking)),
                None => Answer::Unknown(Arc::clone(&in_vain)),
            };
            (*id, answer)
        });
        self.book.publish_answers(answers.collect());
    }

    /// Why a device that no source names is not known.
    fn because(&self) -> String {
        let clauses: Vec<String> = self
            .sources
            .iter()
            .map(|status| {
                let via = status.via;
                match (status.state, via) {
                    (SourceState::Off, _) => format!("{via} is off"),
                    (SourceState::Untried, _) => format!("{via} has not answered yet"),
                    (SourceState::Working, Via::Cri) => {
                        format!("{via}: no pod of {} has this device", status.target)
                    }
                    (SourceState::Working, Via::CniCache) => {
                        format!("{via}: nothing in {} names it", status.target)
                    }
                    (SourceState::Working, _) => format!("{via}: no pod fits"),
                    (_, _) => format!("{via}: {}", status.detail),
                }
            })
            .collect();
        clauses.join("; ")
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
