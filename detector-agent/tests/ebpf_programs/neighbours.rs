//! What the kernel's neighbour tables hold.

use std::net::IpAddr;

use detector_agent::{
    engine::{Mac, Neighbour, NudState, Observation},
    observe::ebpf::EbpfOptions,
};
use detector_common::{Counter, RecordKind};
use detector_testkit::{Frame, Mac as WireMac, Netns};

use crate::world::{DEVICE, MAC, World};

const OTHER_MAC: WireMac = WireMac([0x02, 0, 0, 0, 0, 0x0b]);

fn address() -> IpAddr {
    "10.244.2.11".parse().unwrap()
}

/// The next that is said of an address.
fn next(world: &mut World, address: IpAddr) -> Observation {
    world.wait(|stamped| match &stamped.observation {
        Observation::Neighbour(found) if found.address == address => {
            Some(stamped.observation.clone())
        }
        Observation::NeighbourGone(_, gone) if *gone == address => {
            Some(stamped.observation.clone())
        }
        _ => None,
    })
}

fn entry(world: &World, address: IpAddr, lladdr: Option<WireMac>, state: NudState) -> Observation {
    Observation::Neighbour(Neighbour {
        ifindex: world.ifindex,
        address,
        lladdr: lladdr.map(|mac| Mac(mac.0)),
        state,
    })
}

fn set(world: &World, address: IpAddr, mac: WireMac, state: &str) {
    world
        .node
        .set_neighbour(address, DEVICE, mac, state)
        .unwrap();
}

#[test]
fn an_entry_comes_out_with_its_state_and_hardware_address() {
    for address in ["10.244.2.11", "fd00::11"] {
        let address = address.parse().unwrap();
        let mut world = World::detached(&EbpfOptions::default());
        for (name, state) in [
            ("permanent", NudState::Permanent),
            ("reachable", NudState::Reachable),
            ("stale", NudState::Stale),
            ("noarp", NudState::NoArp),
        ] {
            set(&world, address, MAC, name);
            assert_eq!(
                next(&mut world, address),
                entry(&world, address, Some(MAC), state)
            );
        }
    }
}

#[test]
fn a_deleted_entry_comes_out_as_gone() {
    let mut world = World::detached(&EbpfOptions::default());
    set(&world, address(), MAC, "reachable");
    next(&mut world, address());
    world
        .node
        .netns()
        .ip(&format!("neigh delete {} dev {DEVICE}", address()))
        .unwrap();
    let failed = entry(&world, address(), None, NudState::Invalid);
    let gone = Observation::NeighbourGone(world.ifindex, address());
    assert_eq!(next(&mut world, address()), failed);
    assert_eq!(next(&mut world, address()), gone);
}

#[test]
fn entries_go_with_their_device() {
    let mut world = World::detached(&EbpfOptions::default());
    set(&world, address(), MAC, "permanent");
    next(&mut world, address());
    world
        .node
        .netns()
        .ip(&format!("link delete {DEVICE}"))
        .unwrap();
    let gone = Observation::NeighbourGone(world.ifindex, address());
    assert_eq!(next(&mut world, address()), gone);
}

#[test]
fn an_entry_that_time_makes_stale_or_fail_comes_out() {
    let mut world = World::detached(&EbpfOptions::default());
    // IPv4: the lifetime in the REACHABLE state, and one probe, unanswered, after which the entry fails.
    for (key, value) in [
        ("base_reachable_time_ms", "100"),
        ("delay_first_probe_time", "0"),
        ("retrans_time_ms", "10"),
        ("ucast_solicit", "1"),
        ("mcast_solicit", "1"),
    ] {
        let key = format!("net.ipv4.neigh.{DEVICE}.{key}");
        world.node.netns().sysctl(&key, value).unwrap();
    }
    set(&world, address(), MAC, "reachable");
    assert_eq!(
        next(&mut world, address()),
        entry(&world, address(), Some(MAC), NudState::Reachable)
    );
    // The kernel draws the lifetime anew between a half and one and a half of its base, and rarely: this may take a while.
    let stale = next(&mut world, address());
    assert_eq!(stale, entry(&world, address(), Some(MAC), NudState::Stale));
    set(&world, address(), MAC, "probe");
    assert_eq!(
        next(&mut world, address()),
        entry(&world, address(), None, NudState::Invalid)
    );
}

#[test]
fn what_the_kernel_does_not_accept_does_not_come_out() {
    let mut world = World::new(&EbpfOptions::default());
    let netns = world.node.netns();
    netns
        .ip(&format!("address add 10.244.2.1/24 dev {DEVICE}"))
        .unwrap();
    set(&world, address(), MAC, "permanent");
    assert_eq!(
        next(&mut world, address()),
        entry(&world, address(), Some(MAC), NudState::Permanent)
    );
    // Somebody else claims the address: the kernel hears it, and keeps the PERMANENT entry as it is.
    let claim = Frame::gratuitous_reply(OTHER_MAC, "10.244.2.11".parse().unwrap());
    let request = Frame::request(
        OTHER_MAC,
        "10.244.2.11".parse().unwrap(),
        "10.244.2.1".parse().unwrap(),
    );
    world.sender.send(&claim).unwrap();
    world.sender.send(&request).unwrap();
    set(&world, "10.244.2.99".parse().unwrap(), MAC, "permanent");
    let heard = world.wait(|stamped| match stamped.observation {
        Observation::Neighbour(found) => Some(found),
        _ => None,
    });
    assert_eq!(heard.address, "10.244.2.99".parse::<IpAddr>().unwrap());
    assert!(world.count(Counter::Known(RecordKind::Neighbour)) > 0);
}

#[test]
fn an_entry_that_says_nothing_new_is_only_counted() {
    let mut world = World::detached(&EbpfOptions::default());
    for _ in 0..5 {
        set(&world, address(), MAC, "permanent");
    }
    set(&world, address(), OTHER_MAC, "permanent");
    assert_eq!(
        next(&mut world, address()),
        entry(&world, address(), Some(MAC), NudState::Permanent)
    );
    assert_eq!(
        next(&mut world, address()),
        entry(&world, address(), Some(OTHER_MAC), NudState::Permanent)
    );
    assert_eq!(world.count(Counter::Known(RecordKind::Neighbour)), 4);
}

#[test]
fn entries_of_other_namespaces_do_not_come_out() {
    let mut world = World::detached(&EbpfOptions::default());
    let elsewhere = Netns::new("elsewhere").unwrap();
    elsewhere
        .ip_batch([
            "link add veth0 type veth peer name veth1",
            "link set veth0 up",
        ])
        .unwrap();
    elsewhere
        .ip(&format!(
            "neigh add 10.244.9.9 lladdr {OTHER_MAC} dev veth0 nud permanent"
        ))
        .unwrap();
    set(&world, address(), MAC, "permanent");
    let first = world.wait(|stamped| match stamped.observation {
        Observation::Neighbour(found) => Some(found.address),
        _ => None,
    });
    assert_eq!(first, address());
}

#[test]
fn a_flood_of_entries_spends_a_budget_but_withdrawals_of_published_ones_do_not() {
    let mut world = World::detached(&EbpfOptions {
        budget_burst: 10,
        budget_per_second: 1,
        ..EbpfOptions::default()
    });
    let lines = (0..40)
        .map(|last| format!("neigh add 10.244.3.{last} lladdr {MAC} dev {DEVICE} nud permanent"));
    world.node.netns().ip_batch(lines).unwrap();
    let published = world.count(Counter::Published(RecordKind::Neighbour));
    let losses = world.counts().losses();
    assert_eq!(published + losses.neighbour_budget, 40);
    assert!((10..30).contains(&published), "{published}");
    let over = world.programs.counters().devices_over_budget().unwrap();
    assert_eq!(over.len(), 1);
    assert_eq!(
        (over[0].ifindex, over[0].neighbours),
        (world.ifindex, losses.neighbour_budget)
    );
    // What was published first is withdrawn although the budget is spent.
    let first = "10.244.3.0".parse().unwrap();
    world
        .node
        .netns()
        .ip(&format!("neigh delete 10.244.3.0 dev {DEVICE}"))
        .unwrap();
    assert!(
        matches!(next(&mut world, first), Observation::Neighbour(found) if found.state == NudState::Permanent)
    );
    assert_eq!(
        next(&mut world, first),
        entry(&world, first, None, NudState::Invalid)
    );
    assert_eq!(
        next(&mut world, first),
        Observation::NeighbourGone(world.ifindex, first)
    );
}
