//! Tests of the resolver in virtual time, without sources or a kernel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use detector_engine::Peer;
use detector_event::{Pod, PodAnswer};

use super::{
    device_lookup::{MAX_DEVICES, MAX_GONE},
    *,
};
use crate::pods::{PodRecord, SourceError, SourceSnapshot};

struct TestResolver {
    resolver: PodResolver,
    now: Instant,
}

impl TestResolver {
    fn with(vias: &[Via]) -> Self {
        let mut resolver = PodResolver::without_log(Arc::new(PodDirectory::default()));
        let sources = vias
            .iter()
            .map(|via| SourceStatus::untried(*via, format!("{via} target")))
            .collect();
        resolver.set_sources(sources);
        Self {
            resolver,
            now: Instant::now(),
        }
    }

    fn appeared(&mut self, device: &PodDevice) {
        self.resolver
            .handle(LookupRequest::DeviceAppeared(device.clone()), self.now);
    }

    /// Advances time by `span`; returns how many rounds began.
    fn rounds(&mut self, span: Duration) -> usize {
        let until = self.now + span;
        let mut rounds = 0;
        loop {
            rounds += usize::from(self.resolver.begin_round(self.now));
            match self.resolver.next_due() {
                Some(due) if due <= until => self.now = due,
                _ => break,
            }
        }
        self.now = until;
        rounds
    }

    fn report(&mut self, via: Via, outcome: Result<Vec<PodRecord>, SourceError>) -> Vec<DeviceId> {
        let round = self.resolver.round;
        self.report_in(round, via, outcome)
    }

    fn report_in(
        &mut self,
        round: u64,
        via: Via,
        outcome: Result<Vec<PodRecord>, SourceError>,
    ) -> Vec<DeviceId> {
        let outcome = outcome.map(|records| SourceSnapshot {
            records,
            warning: String::new(),
        });
        self.resolver.apply_report(SourceReport {
            via,
            target: format!("{via} target"),
            round,
            outcome,
        });
        std::mem::take(&mut self.resolver.changed)
    }

    fn answer(&mut self, device: &PodDevice) -> PodAnswer {
        self.resolver.publish();
        let directory = &self.resolver.directory;
        directory.pod_behind(device.ifindex, device.generation)
    }

    fn known(&mut self, device: &PodDevice) -> Option<(String, Via)> {
        match self.answer(device) {
            PodAnswer::Known(pod) => Some((pod.name.clone(), pod.via)),
            PodAnswer::Unknown(_) => None,
        }
    }

    fn reason(&mut self, device: &PodDevice) -> String {
        match self.answer(device) {
            PodAnswer::Unknown(reason) => reason.to_string(),
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

fn record(via: Via, name: &str, namespace: i32) -> PodRecord {
    PodRecord {
        pod: Pod {
            uid: Some(format!("uid-{name}")),
            ..Pod::named("default", name, via)
        },
        namespace: Some(namespace),
        devices: Vec::new(),
        network: None,
        addresses: Vec::new(),
        secondary_addresses: Vec::new(),
        runtime_uid: None,
        running: true,
        created: 0,
    }
}

#[test]
fn better_source_takes_over_without_notifying() {
    let mut test = TestResolver::with(&[Via::Cri, Via::CniCache]);
    let device = device(7, 1, 3);
    test.appeared(&device);
    test.rounds(Duration::ZERO);
    assert_eq!(
        test.report(Via::CniCache, Ok(vec![record(Via::CniCache, "web", 3)])),
        [(7, 1)]
    );
    assert_eq!(test.known(&device), Some(("web".to_owned(), Via::CniCache)));
    assert_eq!(
        test.report(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)])),
        []
    );
    assert_eq!(test.known(&device), Some(("web".to_owned(), Via::Cri)));
    // A lesser source does not replace it.
    assert_eq!(
        test.report(Via::CniCache, Ok(vec![record(Via::CniCache, "other", 3)])),
        []
    );
    assert_eq!(test.known(&device), Some(("web".to_owned(), Via::Cri)));
}

#[test]
fn snapshot_from_before_the_device_does_not_match() {
    let mut test = TestResolver::with(&[Via::Cri]);
    test.appeared(&device(6, 1, 1));
    test.rounds(Duration::ZERO);
    let before = test.resolver.round;
    // The kernel reuses the id of a namespace that is gone.
    let device = device(7, 2, 3);
    test.appeared(&device);
    assert_eq!(
        test.report_in(before, Via::Cri, Ok(vec![record(Via::Cri, "gone", 3)])),
        []
    );
    assert_eq!(test.known(&device), None);
    test.rounds(Duration::ZERO);
    test.report(Via::Cri, Ok(vec![record(Via::Cri, "new", 3)]));
    assert_eq!(test.known(&device), Some(("new".to_owned(), Via::Cri)));
}

#[test]
fn attempts_slow_down_and_end() {
    let mut test = TestResolver::with(&[Via::Cri]);
    let device = device(7, 1, 3);
    test.appeared(&device);
    assert_eq!(test.rounds(Duration::from_millis(300)), 4);
    test.report(Via::Cri, Ok(Vec::new()));
    assert!(
        test.reason(&device)
            .starts_with("the pod is being looked up")
    );
    assert_eq!(test.rounds(Duration::from_secs(600)), 5);
    assert_eq!(
        test.reason(&device),
        "cri: no pod of cri target has this device"
    );
}

#[test]
fn conflict_restarts_a_lookup_after_cooldown_only() {
    let mut test = TestResolver::with(&[Via::Cri]);
    let device = device(7, 1, 3);
    test.appeared(&device);
    test.rounds(Duration::from_secs(60));
    let mut wanted = || {
        test.resolver
            .handle(LookupRequest::PodWanted(device.clone()), test.now);
        test.rounds(Duration::ZERO)
    };
    assert_eq!(wanted(), 1);
    assert_eq!(wanted(), 0);
}

#[test]
fn without_usable_source_the_reason_is_final_at_once() {
    let mut test = TestResolver::with(&[Via::Cri]);
    let device = device(7, 1, 3);
    test.appeared(&device);
    test.rounds(Duration::ZERO);
    let refused = SourceError::Refused("connection refused at /x".to_owned());
    test.report(Via::Cri, Err(refused));
    test.rounds(Duration::from_millis(25));
    assert_eq!(test.reason(&device), "cri: connection refused at /x");
    assert_eq!(test.rounds(Duration::from_secs(600)), 0);
}

#[test]
fn recovered_source_resolves_finished_lookups() {
    let mut test = TestResolver::with(&[Via::Cri]);
    let device = device(7, 1, 3);
    test.appeared(&device);
    test.rounds(Duration::ZERO);
    test.report(Via::Cri, Err(SourceError::Silent("silent".to_owned())));
    test.rounds(Duration::from_secs(600));
    assert_eq!(
        test.report(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)])),
        [(7, 1)]
    );
}

#[test]
fn gone_device_keeps_its_pod_and_gets_no_new_one() {
    let mut test = TestResolver::with(&[Via::Cri]);
    let (named, unnamed) = (device(7, 1, 3), device(8, 2, 4));
    test.appeared(&named);
    test.appeared(&unnamed);
    test.rounds(Duration::ZERO);
    test.report(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)]));
    for gone in [&named, &unnamed] {
        let request = LookupRequest::DeviceGone(gone.ifindex, gone.generation);
        test.resolver.handle(request, test.now);
    }
    test.report(Via::Cri, Ok(vec![record(Via::Cri, "late", 4)]));
    assert_eq!(test.known(&named), Some(("web".to_owned(), Via::Cri)));
    assert_eq!(test.known(&unnamed), None);
}

#[test]
fn number_of_devices_is_bounded() {
    let mut test = TestResolver::with(&[Via::Cri]);
    let count = u32::try_from(MAX_DEVICES + MAX_GONE).unwrap();
    for ifindex in 1..=count + 10 {
        test.appeared(&device(ifindex, 1, 1));
        test.resolver
            .handle(LookupRequest::DeviceGone(ifindex, 1), test.now);
    }
    assert!(test.resolver.devices.len() <= MAX_GONE + 1);
    for ifindex in 1..=count + 10 {
        test.appeared(&device(ifindex, 2, 1));
    }
    assert!(test.resolver.devices.len() <= MAX_DEVICES + MAX_GONE);
}

#[test]
fn deletion_and_addresses_of_a_known_pod_are_notified() {
    let mut test = TestResolver::with(&[Via::Cri, Via::Kube]);
    let device = device(7, 1, 3);
    test.appeared(&device);
    test.rounds(Duration::ZERO);
    assert_eq!(
        test.report(Via::Cri, Ok(vec![record(Via::Cri, "web", 3)])),
        [(7, 1)]
    );
    let details = |test: &mut TestResolver| test.resolver.take_update().details;
    assert_eq!(details(&mut test), []);
    let mut in_api = record(Via::Kube, "web", 0);
    in_api.namespace = None;
    in_api.addresses = vec!["10.0.0.1".parse().unwrap()];
    assert_eq!(test.report(Via::Kube, Ok(vec![in_api.clone()])), []);
    assert_eq!(details(&mut test), [(7, 1)]);
    assert_eq!(test.report(Via::Kube, Ok(vec![in_api.clone()])), []);
    assert_eq!(details(&mut test), [], "nothing changed");
    in_api.pod.terminating = true;
    test.report(Via::Kube, Ok(vec![in_api]));
    assert_eq!(details(&mut test), [(7, 1)]);
    let PodAnswer::Known(pod) = test.answer(&device) else {
        panic!("the pod is known");
    };
    assert!(pod.terminating && pod.primary_addresses.len() == 1);
}

#[test]
fn answer_is_settled_once_no_attempt_is_planned_and_no_source_fails() {
    let mut test = TestResolver::with(&[Via::Cri, Via::CniCache]);
    let device = device(7, 1, 3);
    let settled = |test: &mut TestResolver| {
        test.resolver.publish();
        test.resolver.directory.is_settled(7, 1)
    };
    assert!(!settled(&mut test), "not requested yet");
    test.appeared(&device);
    test.rounds(Duration::ZERO);
    test.report(Via::CniCache, Ok(Vec::new()));
    let failing = || Err(SourceError::Silent("no answer".to_owned()));
    test.report(Via::Cri, failing());
    assert!(!settled(&mut test), "attempts are planned");
    test.rounds(Duration::from_secs(60));
    assert!(!settled(&mut test), "a source fails");
    test.report(Via::Cri, Err(SourceError::Missing("no socket".to_owned())));
    assert!(settled(&mut test));
    test.report(Via::CniCache, Err(SourceError::Missing("none".to_owned())));
    assert!(!settled(&mut test), "no source works");
}
