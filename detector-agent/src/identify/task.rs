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
    Catalogue, Pod, PodBook, SourceState, SourceStatus, Sources, Via,
    book::{Answer, DeviceId},
    catalogue::Catalogues,
    namespaces::Namespaces,
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
/// More devices than these are not told apart by their addresses: each costs the kernel some 40 µs.
const BY_ADDRESS: usize = 1_024;
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
    /// What is known without being enough.
    hint: Option<String>,
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

    /// Takes over a pod; `true` where it is another than before.
    fn becomes(&mut self, pod: Arc<Pod>) -> bool {
        debug!(
            device = self.device.name,
            via = pod.via.name(),
            "is of {}/{}",
            pod.namespace,
            pod.name
        );
        if pod.via == Via::Cri {
            // There is nothing better.
            self.due = None;
        }
        let another = !self.pod.as_ref().is_some_and(|old| old.is_same_pod(&pod));
        self.pod = Some(pod);
        another
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
    pub fn new(book: Arc<PodBook>, metrics: Arc<Metrics>) -> Self {
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
    pub(super) fn quiet(book: Arc<PodBook>) -> Self {
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
                hint: None,
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
        if begun {
            // What the devices say themselves needs no answer.
            self.name_devices(None);
        }
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

    /// How many devices a source was asked about.
    fn asked(&self, via: Via, round: u64) -> usize {
        self.devices
            .values()
            .filter(|followed| followed.since <= round && followed.could_do_with(via))
            .count()
    }

    /// Names what can be named now; `told` is the source that just told, and its round.
    fn name_devices(&mut self, told: Option<(Via, u64)>) {
        let mut named: BTreeMap<Via, usize> = BTreeMap::new();
        let mut not_found = 0;
        for (id, followed) in &mut self.devices {
            if followed.gone {
                continue;
            }
            let asked = told
                .is_some_and(|(via, round)| followed.since <= round && followed.could_do_with(via));
            let pod = self
                .catalogues
                .name(&followed.device, followed.since)
                .filter(|pod| followed.could_do_with(pod.via))
                .or_else(|| {
                    let pod = followed.pod.as_ref()?;
                    let complete = self.catalogues.complete(Arc::clone(pod));
                    (!Arc::ptr_eq(pod, &complete)).then_some(complete)
                });
            let Some(pod) = pod else {
                not_found += usize::from(asked);
                continue;
            };
            if followed.via() != Some(pod.via) {
                *named.entry(pod.via).or_default() += 1;
            }
            if followed.becomes(pod) {
                self.news.push(*id);
            }
            self.stale = true;
        }
        if self.catalogues.kube().is_some() {
            let by_address = self.name_by_address();
            *named.entry(Via::Kube).or_default() += by_address;
            not_found -= by_address.min(not_found);
        }
        for (via, devices) in named {
            self.count(via, "named", devices);
        }
        if let Some((via, _)) = told {
            self.count(via, "not_found", not_found);
        }
    }

    /// Names devices that only their addresses can tell of; gives how many.
    fn name_by_address(&mut self) -> usize {
        let Some(kube) = self.catalogues.kube() else {
            return 0;
        };
        let live = || self.devices.iter().filter(|(_, followed)| !followed.gone);
        if live().all(|(_, followed)| followed.pod.is_some()) || live().count() > BY_ADDRESS {
            return 0;
        }
        let namespaces = &mut self.namespaces;
        let mut devices = Vec::new();
        for (id, followed) in live() {
            let addresses = match (followed.device.peer, &followed.pod) {
                // What is known is not asked for again.
                (Some(peer), None) => namespaces.addresses_at(peer),
                _ => Vec::new(),
            };
            devices.push((*id, addresses, followed.pod.clone()));
        }
        let mut named = 0;
        for (id, verdict) in kube.by_address(&devices) {
            let Some(followed) = self.devices.get_mut(&id) else {
                continue;
            };
            match verdict {
                Ok(pod) => {
                    named += 1;
                    followed.hint = None;
                    if followed.becomes(Arc::new(pod.clone())) {
                        self.news.push(id);
                    }
                }
                Err(why) => followed.hint = Some(why),
            }
            self.stale = true;
        }
        named
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

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        reason = "a test fails by panicking"
    )]

    use super::*;
    use crate::{
        detect::Peer,
        identify::{PodAnswer, Problem, Record, Told},
    };

    struct Desk {
        identifier: Identifier,
        now: Instant,
    }

    impl Desk {
        /// A keeper with these sources.
        fn with(vias: &[Via]) -> Self {
            let mut identifier = Identifier::quiet(Arc::new(PodBook::default()));
            let sources = vias
                .iter()
                .map(|via| SourceStatus::untried(*via, format!("{via} target")))
                .collect();
            identifier.use_sources(sources);
            Self {
                identifier,
                now: Instant::now(),
            }
        }

        fn appeared(&mut self, device: &Device) {
            self.identifier
                .note(Note::Appeared(device.clone()), self.now);
        }

        /// Lets time pass until nothing is due; gives how many rounds that took.
        fn rounds(&mut self, span: Duration) -> usize {
            let until = self.now + span;
            let mut rounds = 0;
            loop {
                rounds += usize::from(self.identifier.begin_round(self.now));
                match self.identifier.next_due() {
                    Some(due) if due <= until => self.now = due,
                    _ => break,
                }
            }
            self.now = until;
            rounds
        }

        fn told(&mut self, via: Via, outcome: Result<Vec<Record>, Problem>) -> Vec<DeviceId> {
            let round = self.identifier.round;
            self.told_in(round, via, outcome)
        }

        fn told_in(
            &mut self,
            round: u64,
            via: Via,
            outcome: Result<Vec<Record>, Problem>,
        ) -> Vec<DeviceId> {
            let outcome = outcome.map(|records| Told {
                records,
                remark: String::new(),
            });
            self.identifier.report(Report {
                via,
                target: format!("{via} target"),
                round,
                outcome,
            });
            std::mem::take(&mut self.identifier.news)
        }

        fn answer(&mut self, device: &Device) -> PodAnswer {
            self.identifier.publish();
            let book = &self.identifier.book;
            book.pod_behind(device.ifindex, device.generation)
        }

        fn known(&mut self, device: &Device) -> Option<(String, Via)> {
            match self.answer(device) {
                PodAnswer::Known(pod) => Some((pod.name.clone(), pod.via)),
                PodAnswer::Unknown(_) => None,
            }
        }

        fn because(&mut self, device: &Device) -> String {
            match self.answer(device) {
                PodAnswer::Unknown(because) => because.into_owned(),
                PodAnswer::Known(pod) => panic!("{pod:?}"),
            }
        }
    }

    fn device(ifindex: IfIndex, generation: u64, nsid: i32) -> Device {
        Device {
            ifindex,
            generation,
            name: format!("veth{ifindex}"),
            alias: None,
            peer: Some(Peer { nsid, ifindex: 2 }),
        }
    }

    fn record(via: Via, name: &str, namespace: i32) -> Record {
        Record {
            pod: Pod {
                uid: Some(format!("uid-{name}")),
                ..Pod::named("default", name, via)
            },
            namespace: Some(namespace),
            devices: Vec::new(),
            addresses: Vec::new(),
            known_as: None,
            running: true,
            created: 0,
        }
    }

    #[test]
    fn a_better_source_takes_over_without_news_where_it_is_the_same_pod() {
        let mut desk = Desk::with(&[Via::Cri, Via::CniCache]);
        let device = device(7, 1, 3);
        desk.appeared(&device);
        desk.rounds(Duration::ZERO);
        assert_eq!(
            desk.told(Via::CniCache, Ok(vec![record(Via::CniCache, "web", 3)])),
            [(7, 1)]
        );
        assert_eq!(desk.known(&device), Some(("web".to_owned(), Via::CniCache)));
        assert_eq!(
            desk.told(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)])),
            []
        );
        assert_eq!(desk.known(&device), Some(("web".to_owned(), Via::Cri)));
        // And is not replaced by a lesser one.
        assert_eq!(
            desk.told(Via::CniCache, Ok(vec![record(Via::CniCache, "other", 3)])),
            []
        );
        assert_eq!(desk.known(&device), Some(("web".to_owned(), Via::Cri)));
    }

    #[test]
    fn an_answer_from_before_the_device_names_it_not() {
        let mut desk = Desk::with(&[Via::Cri]);
        desk.appeared(&device(6, 1, 1));
        desk.rounds(Duration::ZERO);
        let before = desk.identifier.round;
        // The kernel gives the new pod's namespace the id of one that is gone.
        let device = device(7, 2, 3);
        desk.appeared(&device);
        assert_eq!(
            desk.told_in(before, Via::Cri, Ok(vec![record(Via::Cri, "gone", 3)])),
            []
        );
        assert_eq!(desk.known(&device), None);
        desk.rounds(Duration::ZERO);
        desk.told(Via::Cri, Ok(vec![record(Via::Cri, "new", 3)]));
        assert_eq!(desk.known(&device), Some(("new".to_owned(), Via::Cri)));
    }

    #[test]
    fn a_new_device_is_looked_up_quickly_then_slowly_then_left_alone() {
        let mut desk = Desk::with(&[Via::Cri]);
        let device = device(7, 1, 3);
        desk.appeared(&device);
        assert_eq!(desk.rounds(Duration::from_millis(300)), 4);
        desk.told(Via::Cri, Ok(Vec::new()));
        assert!(desk.because(&device).starts_with("it is being looked up"));
        assert_eq!(desk.rounds(Duration::from_secs(600)), 5);
        assert_eq!(
            desk.because(&device),
            "cri: no pod of cri target has this device"
        );
    }

    #[test]
    fn a_conflict_brings_a_device_up_again_but_not_every_time() {
        let mut desk = Desk::with(&[Via::Cri]);
        let device = device(7, 1, 3);
        desk.appeared(&device);
        desk.rounds(Duration::from_secs(60));
        let mut wanted = || {
            desk.identifier.note(Note::Wanted(device.clone()), desk.now);
            desk.rounds(Duration::ZERO)
        };
        assert_eq!(wanted(), 1);
        assert_eq!(wanted(), 0);
    }

    #[test]
    fn without_a_source_that_answers_the_reason_is_said_at_once() {
        let mut desk = Desk::with(&[Via::Cri]);
        let device = device(7, 1, 3);
        desk.appeared(&device);
        desk.rounds(Duration::ZERO);
        let refused = Problem::Refused("nobody listens at /x".to_owned());
        desk.told(Via::Cri, Err(refused));
        desk.rounds(Duration::from_millis(25));
        assert_eq!(desk.because(&device), "cri: nobody listens at /x");
        assert_eq!(desk.rounds(Duration::from_secs(600)), 0);
    }

    #[test]
    fn a_source_that_is_back_names_what_was_given_up() {
        let mut desk = Desk::with(&[Via::Cri]);
        let device = device(7, 1, 3);
        desk.appeared(&device);
        desk.rounds(Duration::ZERO);
        desk.told(Via::Cri, Err(Problem::Silent("silent".to_owned())));
        desk.rounds(Duration::from_secs(600));
        assert_eq!(
            desk.told(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)])),
            [(7, 1)]
        );
    }

    #[test]
    fn a_device_that_is_gone_keeps_its_name_and_gets_none() {
        let mut desk = Desk::with(&[Via::Cri]);
        let (named, unnamed) = (device(7, 1, 3), device(8, 2, 4));
        desk.appeared(&named);
        desk.appeared(&unnamed);
        desk.rounds(Duration::ZERO);
        desk.told(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)]));
        for gone in [&named, &unnamed] {
            let note = Note::Gone(gone.ifindex, gone.generation);
            desk.identifier.note(note, desk.now);
        }
        desk.told(Via::Cri, Ok(vec![record(Via::Cri, "late", 4)]));
        assert_eq!(desk.known(&named), Some(("web".to_owned(), Via::Cri)));
        assert_eq!(desk.known(&unnamed), None);
    }

    #[test]
    fn memory_of_devices_is_bounded() {
        let mut desk = Desk::with(&[Via::Cri]);
        let count = u32::try_from(DEVICES + GONE).unwrap();
        for ifindex in 1..=count + 10 {
            desk.appeared(&device(ifindex, 1, 1));
            desk.identifier.note(Note::Gone(ifindex, 1), desk.now);
        }
        assert!(desk.identifier.devices.len() <= GONE + 1);
        for ifindex in 1..=count + 10 {
            desk.appeared(&device(ifindex, 2, 1));
        }
        assert!(desk.identifier.devices.len() <= DEVICES + GONE);
    }
}
