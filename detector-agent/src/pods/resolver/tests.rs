//! Tests of the task without sources or a kernel: time is what the test says.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use super::{
    device_lookup::{DEVICES, GONE},
    *,
};
use crate::{
    engine::Peer,
    pods::{Pod, PodAnswer, Problem, Record, SourceSnapshot},
};

struct Desk {
    identifier: Identifier,
    now: Instant,
}

impl Desk {
    /// A keeper with these sources.
    fn with(vias: &[Via]) -> Self {
        let mut identifier = Identifier::quiet(Arc::new(PodDirectory::default()));
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

    fn appeared(&mut self, device: &PodDevice) {
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
        let outcome = outcome.map(|records| SourceSnapshot {
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

    fn answer(&mut self, device: &PodDevice) -> PodAnswer {
        self.identifier.publish();
        let book = &self.identifier.book;
        book.pod_behind(device.ifindex, device.generation)
    }

    fn known(&mut self, device: &PodDevice) -> Option<(String, Via)> {
        match self.answer(device) {
            PodAnswer::Known(pod) => Some((pod.name.clone(), pod.via)),
            PodAnswer::Unknown(_) => None,
        }
    }

    fn because(&mut self, device: &PodDevice) -> String {
        match self.answer(device) {
            PodAnswer::Unknown(because) => because.into_owned(),
            PodAnswer::Known(pod) => panic!("{pod:?}"),
        }
    }
}

fn device(ifindex: IfIndex, generation: u64, nsid: i32) -> PodDevice {
    PodDevice {
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
