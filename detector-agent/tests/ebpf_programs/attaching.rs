//! Attaching and detaching next to filters and programs of others.

use std::{
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    programs::{LinkOrder, SchedClassifier, TcAttachType, tc::TcAttachOptions},
};
use detector_agent::observe::ebpf::{
    AttachError, AttachMethod, AttachMode, AttachOutcome, EbpfOptions, Programs, leftovers,
};
use detector_testkit::{DEADLINE, Frame};

use crate::fixture::{DEVICE, Fixture, MAC};

const OURS: &str = "ipconflict_arp_ndp";

fn options(attach: AttachMode) -> EbpfOptions {
    EbpfOptions {
        attach,
        ..EbpfOptions::default()
    }
}

fn filters(fixture: &Fixture) -> String {
    fixture.tc(&format!("filter show dev {DEVICE} ingress"))
}

fn qdiscs(fixture: &Fixture) -> String {
    fixture.tc(&format!("qdisc show dev {DEVICE}"))
}

/// Whether a claim of the pod is observed.
fn sees_frames(fixture: &mut Fixture) -> bool {
    let address = [10, 244, 2, 10].into();
    fixture.claims_of(&[Frame::announcement(MAC, address)]) == [fixture.arp(address)]
}

/// Attaches a foreign program to the device's TCX ingress; dropping the value detaches it.
fn foreign_tcx(fixture: &Fixture) -> Ebpf {
    let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/detector-ebpf-empty.o"));
    let mut ebpf = Ebpf::load(object).unwrap();
    fixture
        .node
        .netns()
        .run_in(|| {
            let program: &mut SchedClassifier =
                ebpf.program_mut("ipconflict_empty").unwrap().try_into()?;
            program.load()?;
            let order = TcAttachOptions::TcxOrder(LinkOrder::default());
            program.attach_with_options(DEVICE, TcAttachType::Ingress, order)?;
            Ok(())
        })
        .unwrap();
    ebpf
}

/// The names of the programs on TCX ingress, in the order in which they run.
fn on_tcx(fixture: &Fixture) -> Vec<String> {
    fixture
        .node
        .netns()
        .run_in(|| {
            let (_, programs) = SchedClassifier::query_tcx(DEVICE, TcAttachType::Ingress)?;
            Ok(programs
                .iter()
                .map(|program| program.name_as_str().unwrap().to_owned())
                .collect())
        })
        .unwrap()
}

/// A link is removed with its last descriptor, which a child forked by another test may hold for a moment.
fn assert_remaining_on_tcx(fixture: &Fixture, expected: &[&str]) {
    let until = Instant::now() + DEADLINE;
    loop {
        let there = on_tcx(fixture);
        if there == expected {
            return;
        }
        assert!(Instant::now() < until, "still on TCX: {there:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn attaching_adds_clsact_and_detaching_leaves_it_empty() {
    let mut fixture = Fixture::new(&options(AttachMode::Auto));
    assert_eq!(
        fixture.programs.attached(fixture.ifindex),
        Some(AttachMethod::Clsact)
    );
    assert!(filters(&fixture).contains(OURS));
    fixture.programs.detach(fixture.ifindex);
    assert_eq!(fixture.programs.attached(fixture.ifindex), None);
    assert!(qdiscs(&fixture).contains("clsact"));
    assert_eq!(filters(&fixture), "");
    // It can be attached again.
    fixture.attach().unwrap();
    assert!(sees_frames(&mut fixture));
}

#[test]
fn attaching_twice_adds_one_filter() {
    let mut fixture = Fixture::new(&options(AttachMode::Tc));
    fixture.attach().unwrap();
    assert_eq!(filters(&fixture).matches(OURS).count(), 1);
    fixture.programs.detach_all();
    assert_eq!(filters(&fixture), "");
}

#[test]
fn dropping_the_programs_detaches_them() {
    let fixture = Fixture::new(&options(AttachMode::Auto));
    let Fixture {
        programs,
        node,
        pod,
        ..
    } = fixture;
    drop(programs);
    let shown = node
        .netns()
        .exec(&["tc", "filter", "show", "dev", DEVICE, "ingress"])
        .unwrap();
    assert_eq!(shown, "");
    drop(pod);
}

#[test]
fn removed_or_renamed_device_is_reported_as_vanished() {
    for mode in [AttachMode::Auto, AttachMode::Tc, AttachMode::Tcx] {
        let mut fixture = Fixture::detached(&options(mode));
        fixture
            .node
            .netns()
            .ip(&format!("link delete {DEVICE}"))
            .unwrap();
        let error = fixture.attach().unwrap_err();
        let error: AttachError = error.downcast().unwrap();
        assert!(
            matches!(&error, AttachError::Vanished { name } if name == DEVICE),
            "{error}"
        );
    }
    // Another device has taken over the name.
    let mut fixture = Fixture::detached(&options(AttachMode::Tcx));
    fixture
        .node
        .netns()
        .ip_batch([
            &format!("link set {DEVICE} down"),
            &format!("link set {DEVICE} name old0"),
            &format!("link add {DEVICE} type veth peer name peer0"),
        ])
        .unwrap();
    let error: AttachError = fixture.attach().unwrap_err().downcast().unwrap();
    assert!(matches!(error, AttachError::Vanished { .. }), "{error}");
}

#[test]
fn earlier_filter_does_not_hide_frames_and_stays() {
    let mut fixture = Fixture::detached(&options(AttachMode::Auto));
    fixture.tc(&format!("qdisc add dev {DEVICE} clsact"));
    fixture.tc("filter add dev veth0 ingress prio 7 protocol arp u32 match u32 0 0 flowid 1:1");
    fixture.attach().unwrap();
    assert!(sees_frames(&mut fixture));
    fixture.programs.detach(fixture.ifindex);
    assert!(qdiscs(&fixture).contains("clsact"));
    let left = filters(&fixture);
    assert!(left.contains("u32") && !left.contains(OURS), "{left}");
}

/// Attaches again, as after a notification of the kernel.
fn attach_again(fixture: &mut Fixture) -> AttachOutcome {
    let (programs, ifindex) = (&mut fixture.programs, fixture.ifindex);
    let netns = fixture.node.netns();
    netns
        .run_in(|| Ok(programs.attach(ifindex, DEVICE)?))
        .unwrap()
}

#[test]
fn attaching_again_moves_before_later_filters() {
    let mut fixture = Fixture::new(&options(AttachMode::Tc));
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Unchanged);
    fixture.tc("filter add dev veth0 ingress protocol arp u32 match u32 0 0 flowid 1:1");
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Unchanged);
    fixture.tc("filter add dev veth0 ingress prio 7 protocol arp u32 match u32 0 0 flowid 1:1");
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Attached);
    assert!(sees_frames(&mut fixture));
    assert_eq!(filters(&fixture).matches(OURS).count(), 1);
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Unchanged);
}

#[test]
fn filter_of_priority_1_and_another_kind_preempts_on_clsact() {
    let mut fixture = Fixture::new(&options(AttachMode::Tc));
    fixture.tc("filter add dev veth0 ingress prio 1 protocol arp u32 match u32 0 0 flowid 1:1");
    for _ in 0..2 {
        assert_eq!(attach_again(&mut fixture), AttachOutcome::Preempted);
        assert_eq!(filters(&fixture).matches(OURS).count(), 1);
    }
    fixture.tc("filter del dev veth0 ingress prio 1");
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Unchanged);
}

#[test]
fn filter_of_priority_1_and_another_kind_is_avoided_by_tcx() {
    let mut fixture = Fixture::detached(&options(AttachMode::Auto));
    fixture.tc(&format!("qdisc add dev {DEVICE} clsact"));
    fixture.tc("filter add dev veth0 ingress prio 1 protocol arp u32 match u32 0 0 flowid 1:1");
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Attached);
    assert_eq!(
        fixture.programs.attached(fixture.ifindex),
        Some(AttachMethod::Tcx)
    );
    assert!(sees_frames(&mut fixture));
    assert!(filters(&fixture).contains("u32"));
}

#[test]
fn filters_shared_with_other_devices_are_avoided_by_tcx() {
    let mut fixture = Fixture::detached(&options(AttachMode::Auto));
    fixture.tc(&format!("qdisc add dev {DEVICE} ingress_block 7 clsact"));
    fixture.tc("filter add block 7 protocol arp u32 match u32 0 0 flowid 1:1");
    fixture.attach().unwrap();
    assert!(sees_frames(&mut fixture));
}

#[test]
fn filters_in_other_chains_run_later() {
    let mut fixture = Fixture::new(&options(AttachMode::Tc));
    fixture.tc("filter add dev veth0 ingress chain 5 prio 1 protocol arp u32 match u32 0 0");
    assert_eq!(attach_again(&mut fixture), AttachOutcome::Unchanged);
}

#[test]
fn program_that_replaced_ours_is_not_removed() {
    let mut fixture = Fixture::new(&options(AttachMode::Tc));
    let shown = filters(&fixture);
    let ours: Vec<_> = shown
        .lines()
        .find(|line| line.contains(OURS))
        .unwrap()
        .split(' ')
        .collect();
    let value_after = |word| ours[ours.iter().position(|other| *other == word).unwrap() + 1];
    let (priority, handle) = (value_after("pref"), value_after("handle"));
    let replace = ["tc", "filter", "replace", "dev", DEVICE, "ingress"];
    let place = ["prio", priority, "handle", handle, "protocol", "all"];
    let program = ["bpf", "bytecode", "1,6 0 0 0,"];
    let words = [&replace[..], &place, &program].concat();
    fixture.node.netns().exec(&words).unwrap();
    fixture.programs.detach(fixture.ifindex);
    assert!(filters(&fixture).contains("bytecode"));
}

#[test]
fn attaching_works_with_the_ingress_qdisc() {
    let mut fixture = Fixture::detached(&options(AttachMode::Auto));
    fixture.tc(&format!("qdisc add dev {DEVICE} ingress"));
    fixture.attach().unwrap();
    assert!(sees_frames(&mut fixture));
    fixture.programs.detach(fixture.ifindex);
    assert!(qdiscs(&fixture).contains("ingress"));
}

#[test]
fn tcx_is_used_if_requested_and_removed_on_detach() {
    let mut fixture = Fixture::new(&options(AttachMode::Tcx));
    assert_eq!(
        fixture.programs.attached(fixture.ifindex),
        Some(AttachMethod::Tcx)
    );
    assert!(!qdiscs(&fixture).contains("clsact"));
    assert!(sees_frames(&mut fixture));
    fixture.programs.detach(fixture.ifindex);
    assert_remaining_on_tcx(&fixture, &[]);
}

#[test]
fn tcx_is_used_first_if_others_use_it() {
    let mut fixture = Fixture::detached(&options(AttachMode::Auto));
    let _foreign = foreign_tcx(&fixture);
    fixture.attach().unwrap();
    assert_eq!(
        fixture.programs.attached(fixture.ifindex),
        Some(AttachMethod::Tcx)
    );
    // The kernel truncates names to 15 bytes.
    assert_eq!(on_tcx(&fixture), ["ipconflict_arp_", "ipconflict_empt"]);
    assert!(sees_frames(&mut fixture));
    fixture.programs.detach_all();
    assert_remaining_on_tcx(&fixture, &["ipconflict_empt"]);
}

#[test]
fn attaching_again_moves_to_tcx_if_others_use_it() {
    let mut fixture = Fixture::new(&options(AttachMode::Auto));
    let _foreign = foreign_tcx(&fixture);
    fixture.attach().unwrap();
    assert_eq!(
        fixture.programs.attached(fixture.ifindex),
        Some(AttachMethod::Tcx)
    );
    assert_eq!(filters(&fixture), "");
    assert!(sees_frames(&mut fixture));
}

#[test]
fn only_leftovers_of_a_killed_agent_are_removed() {
    let mut fixture = Fixture::new(&options(AttachMode::Tc));
    fixture.tc("filter add dev veth0 ingress prio 9 protocol all u32 match u32 0 0 flowid 1:1");
    let _foreign = foreign_tcx(&fixture);
    // Forgotten instead of dropped, like after a kill.
    let (again, reader) = fixture
        .node
        .netns()
        .run_in(|| Ok(Programs::load(&options(AttachMode::Tc))?))
        .unwrap();
    std::mem::forget(std::mem::replace(&mut fixture.programs, again));
    fixture.reader = reader;
    assert!(filters(&fixture).contains(OURS));

    let cleaned = fixture
        .node
        .netns()
        .run_in(|| Ok(leftovers::remove()?))
        .unwrap();
    assert_eq!(cleaned, [fixture.ifindex]);
    let left = filters(&fixture);
    assert!(left.contains("u32") && !left.contains(OURS), "{left}");
    assert_eq!(on_tcx(&fixture), ["ipconflict_empt"]);
    let cleaned = fixture
        .node
        .netns()
        .run_in(|| Ok(leftovers::remove()?))
        .unwrap();
    assert_eq!(cleaned, [0; 0]);

    fixture.attach().unwrap();
    assert!(sees_frames(&mut fixture));
}
