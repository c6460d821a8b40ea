//! Attaching, and leaving alone what is not ours.

use std::{
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    programs::{LinkOrder, SchedClassifier, TcAttachType, tc::TcAttachOptions},
};
use detector_agent::observe::ebpf::{
    AttachError, AttachMode, Attached, EbpfOptions, Programs, leftovers,
};
use detector_testkit::{DEADLINE, Frame};

use crate::world::{DEVICE, MAC, World};

const OURS: &str = "ipconflict_arp_ndp";

fn options(attach: AttachMode) -> EbpfOptions {
    EbpfOptions {
        attach,
        ..EbpfOptions::default()
    }
}

fn filters(world: &World) -> String {
    world.tc(&format!("filter show dev {DEVICE} ingress"))
}

fn qdiscs(world: &World) -> String {
    world.tc(&format!("qdisc show dev {DEVICE}"))
}

/// Whether a claim of the pod's comes out.
fn sees_frames(world: &mut World) -> bool {
    let address = [10, 244, 2, 10].into();
    world.claims_of(&[Frame::announcement(MAC, address)]) == [world.arp(address)]
}

/// Somebody else's program on the device's TCX ingress, which lasts as long as the value.
fn foreign_tcx(world: &World) -> Ebpf {
    let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/detector-ebpf.o"));
    let mut ebpf = Ebpf::load(object).unwrap();
    world
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

/// The names of the programs on TCX ingress, first in line first.
fn on_tcx(world: &World) -> Vec<String> {
    world
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

/// A link goes when its last descriptor does; a child that another test just forked may hold one for a moment more.
fn assert_leaves_on_tcx(world: &World, expected: &[&str]) {
    let until = Instant::now() + DEADLINE;
    loop {
        let there = on_tcx(world);
        if there == expected {
            return;
        }
        assert!(Instant::now() < until, "still on TCX: {there:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_device_gets_a_clsact_filter_and_loses_it_with_its_clsact() {
    let mut world = World::new(&options(AttachMode::Auto));
    assert_eq!(
        world.programs.attached(world.ifindex),
        Some(Attached::Clsact)
    );
    assert!(filters(&world).contains(OURS));
    world.programs.detach(world.ifindex);
    assert_eq!(world.programs.attached(world.ifindex), None);
    assert!(!qdiscs(&world).contains("clsact"));
    // Attached anew, it works anew.
    world.attach().unwrap();
    assert!(sees_frames(&mut world));
}

#[test]
fn attaching_twice_leaves_one_filter() {
    let mut world = World::new(&options(AttachMode::Tc));
    world.attach().unwrap();
    assert_eq!(filters(&world).matches(OURS).count(), 1);
    world.programs.detach_all();
    assert_eq!(filters(&world), "");
}

#[test]
fn programs_that_are_dropped_leave_nothing_behind() {
    let world = World::new(&options(AttachMode::Auto));
    let World {
        programs,
        node,
        pod,
        ..
    } = world;
    drop(programs);
    let shown = node
        .netns()
        .exec(&["tc", "qdisc", "show", "dev", DEVICE])
        .unwrap();
    assert!(!shown.contains("clsact"), "{shown}");
    drop(pod);
}

#[test]
fn a_device_that_is_gone_or_another_by_now_is_named_as_vanished() {
    for mode in [AttachMode::Auto, AttachMode::Tc, AttachMode::Tcx] {
        let mut world = World::detached(&options(mode));
        world
            .node
            .netns()
            .ip(&format!("link delete {DEVICE}"))
            .unwrap();
        let error = world.attach().unwrap_err();
        let error: AttachError = error.downcast().unwrap();
        assert!(
            matches!(&error, AttachError::Vanished { name } if name == DEVICE),
            "{error}"
        );
    }
    // The name is somebody else's by now.
    let mut world = World::detached(&options(AttachMode::Tcx));
    world
        .node
        .netns()
        .ip_batch([
            &format!("link set {DEVICE} down"),
            &format!("link set {DEVICE} name old0"),
            &format!("link add {DEVICE} type veth peer name peer0"),
        ])
        .unwrap();
    let error: AttachError = world.attach().unwrap_err().downcast().unwrap();
    assert!(matches!(error, AttachError::Vanished { .. }), "{error}");
}

#[test]
fn a_filter_that_decides_for_all_frames_does_not_hide_them_and_stays_as_it_is() {
    let mut world = World::detached(&options(AttachMode::Auto));
    world.tc(&format!("qdisc add dev {DEVICE} clsact"));
    world.tc("filter add dev veth0 ingress prio 7 protocol arp u32 match u32 0 0 flowid 1:1");
    world.attach().unwrap();
    assert!(sees_frames(&mut world));
    world.programs.detach(world.ifindex);
    assert!(qdiscs(&world).contains("clsact"));
    let left = filters(&world);
    assert!(left.contains("u32") && !left.contains(OURS), "{left}");
}

#[test]
fn a_filter_first_in_line_can_not_be_overtaken_but_attaching_works() {
    let mut world = World::detached(&options(AttachMode::Auto));
    world.tc(&format!("qdisc add dev {DEVICE} clsact"));
    world.tc("filter add dev veth0 ingress prio 1 protocol arp u32 match u32 0 0 flowid 1:1");
    world.attach().unwrap();
    assert!(filters(&world).contains(OURS));
}

#[test]
fn a_clsact_that_was_there_before_stays_even_when_empty() {
    let mut world = World::detached(&options(AttachMode::Auto));
    world.tc(&format!("qdisc add dev {DEVICE} clsact"));
    world.attach().unwrap();
    world.programs.detach(world.ifindex);
    assert!(qdiscs(&world).contains("clsact"));
    assert_eq!(filters(&world), "");
}

#[test]
fn a_clsact_of_ours_stays_where_somebody_uses_it_by_now() {
    let mut world = World::new(&options(AttachMode::Auto));
    world.tc("filter add dev veth0 egress prio 1 protocol all u32 match u32 0 0 flowid 1:1");
    world.programs.detach(world.ifindex);
    assert!(qdiscs(&world).contains("clsact"));
    assert!(world.tc("filter show dev veth0 egress").contains("u32"));
}

#[test]
fn the_older_ingress_qdisc_serves_as_well() {
    let mut world = World::detached(&options(AttachMode::Auto));
    world.tc(&format!("qdisc add dev {DEVICE} ingress"));
    world.attach().unwrap();
    assert!(sees_frames(&mut world));
    world.programs.detach(world.ifindex);
    assert!(qdiscs(&world).contains("ingress"));
}

#[test]
fn tcx_is_used_when_asked_for_and_vanishes_with_the_programs() {
    let mut world = World::new(&options(AttachMode::Tcx));
    assert_eq!(world.programs.attached(world.ifindex), Some(Attached::Tcx));
    assert!(!qdiscs(&world).contains("clsact"));
    assert!(sees_frames(&mut world));
    world.programs.detach(world.ifindex);
    assert_leaves_on_tcx(&world, &[]);
}

#[test]
fn where_somebody_stands_on_tcx_ours_comes_first_in_line() {
    let mut world = World::detached(&options(AttachMode::Auto));
    let _foreign = foreign_tcx(&world);
    world.attach().unwrap();
    assert_eq!(world.programs.attached(world.ifindex), Some(Attached::Tcx));
    // The kernel keeps 15 bytes of a name.
    assert_eq!(on_tcx(&world), ["ipconflict_arp_", "ipconflict_empt"]);
    assert!(sees_frames(&mut world));
    world.programs.detach_all();
    assert_leaves_on_tcx(&world, &["ipconflict_empt"]);
}

#[test]
fn attaching_again_moves_to_tcx_when_somebody_came_to_stand_there() {
    let mut world = World::new(&options(AttachMode::Auto));
    let _foreign = foreign_tcx(&world);
    world.attach().unwrap();
    assert_eq!(world.programs.attached(world.ifindex), Some(Attached::Tcx));
    assert!(!qdiscs(&world).contains("clsact"));
    assert!(sees_frames(&mut world));
}

#[test]
fn leftovers_of_a_killed_agent_are_removed_and_nothing_else() {
    let mut world = World::new(&options(AttachMode::Tc));
    world.tc("filter add dev veth0 ingress prio 9 protocol all u32 match u32 0 0 flowid 1:1");
    let _foreign = foreign_tcx(&world);
    // Replaced without being dropped: so a kill leaves it.
    let (again, reader) = world
        .node
        .netns()
        .run_in(|| Ok(Programs::load(&options(AttachMode::Tc))?))
        .unwrap();
    std::mem::forget(std::mem::replace(&mut world.programs, again));
    world.reader = reader;
    assert!(filters(&world).contains(OURS));

    let cleaned = world
        .node
        .netns()
        .run_in(|| Ok(leftovers::remove()?))
        .unwrap();
    assert_eq!(cleaned, [world.ifindex]);
    let left = filters(&world);
    assert!(left.contains("u32") && !left.contains(OURS), "{left}");
    assert_eq!(on_tcx(&world), ["ipconflict_empt"]);
    let cleaned = world
        .node
        .netns()
        .run_in(|| Ok(leftovers::remove()?))
        .unwrap();
    assert_eq!(cleaned, [0; 0]);

    world.attach().unwrap();
    assert!(sees_frames(&mut world));
}
