//! Updates of the kernel's neighbour tables.

use std::net::IpAddr;

use detector_agent::observe::ebpf::EbpfOptions;
use detector_common::{Counter, RecordKind};
use detector_engine::{AddressHolder, ClaimedUpdate, Mac, Neighbour, NudState, Observation};
use detector_testkit::{Frame, MacAddress, Netns};

use crate::fixture::{DEVICE, Fixture, MAC};

const OTHER_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0b]);

fn address() -> IpAddr {
    "10.244.2.11".parse().unwrap()
}

/// The next observation of an address.
fn next(fixture: &mut Fixture, address: IpAddr) -> Observation {
    fixture.wait(|stamped| match &stamped.observation {
        Observation::Neighbour(found) if found.address == address => {
            Some(stamped.observation.clone())
        }
        Observation::NeighbourGone(_, gone) if *gone == address => {
            Some(stamped.observation.clone())
        }
        _ => None,
    })
}

fn entry(
    fixture: &Fixture,
    address: IpAddr,
    lladdr: Option<MacAddress>,
    state: NudState,
) -> Observation {
    Observation::Neighbour(Neighbour {
        ifindex: fixture.ifindex,
        address,
        lladdr: lladdr.map(|mac| Mac(mac.0)),
        state,
    })
}

fn set(fixture: &Fixture, address: IpAddr, mac: MacAddress, state: &str) {
    fixture
        .node
        .set_neighbour(address, DEVICE, mac, state)
        .unwrap();
}

#[test]
fn entry_is_observed_with_state_and_hardware_address() {
    for address in ["10.244.2.11", "fd00::11"] {
        let address = address.parse().unwrap();
        let mut fixture = Fixture::detached(&EbpfOptions::default());
        for (name, state) in [
            ("permanent", NudState::Permanent),
            ("reachable", NudState::Reachable),
            ("stale", NudState::Stale),
            ("noarp", NudState::NoArp),
        ] {
            set(&fixture, address, MAC, name);
            assert_eq!(
                next(&mut fixture, address),
                entry(&fixture, address, Some(MAC), state)
            );
        }
    }
}

/// A claim and none: nothing else about the entry changes.
#[test]
fn entry_that_becomes_noarp_is_observed_and_back() {
    let mut fixture = Fixture::detached(&EbpfOptions::default());
    for (name, state) in [
        ("permanent", NudState::Permanent),
        ("noarp", NudState::NoArp),
        ("permanent", NudState::Permanent),
    ] {
        set(&fixture, address(), MAC, name);
        assert_eq!(
            next(&mut fixture, address()),
            entry(&fixture, address(), Some(MAC), state)
        );
    }
}

#[test]
fn deleted_entry_is_observed_as_gone() {
    let mut fixture = Fixture::detached(&EbpfOptions::default());
    set(&fixture, address(), MAC, "reachable");
    next(&mut fixture, address());
    fixture
        .node
        .netns()
        .ip(&format!("neigh delete {} dev {DEVICE}", address()))
        .unwrap();
    let failed = entry(&fixture, address(), None, NudState::Invalid);
    let gone = Observation::NeighbourGone(fixture.ifindex, address());
    assert_eq!(next(&mut fixture, address()), failed);
    assert_eq!(next(&mut fixture, address()), gone);
}

#[test]
fn entries_are_removed_with_their_device() {
    let mut fixture = Fixture::detached(&EbpfOptions::default());
    set(&fixture, address(), MAC, "permanent");
    next(&mut fixture, address());
    fixture
        .node
        .netns()
        .ip(&format!("link delete {DEVICE}"))
        .unwrap();
    let gone = Observation::NeighbourGone(fixture.ifindex, address());
    assert_eq!(next(&mut fixture, address()), gone);
}

#[test]
fn state_changes_by_timers_are_observed() {
    let mut fixture = Fixture::detached(&EbpfOptions::default());
    // IPv4: the lifetime of the REACHABLE state, and a single probe, after which the entry fails.
    for (key, value) in [
        ("base_reachable_time_ms", "100"),
        ("delay_first_probe_time", "0"),
        ("retrans_time_ms", "10"),
        ("ucast_solicit", "1"),
        ("mcast_solicit", "1"),
    ] {
        let key = format!("net.ipv4.neigh.{DEVICE}.{key}");
        fixture.node.netns().sysctl(&key, value).unwrap();
    }
    set(&fixture, address(), MAC, "reachable");
    assert_eq!(
        next(&mut fixture, address()),
        entry(&fixture, address(), Some(MAC), NudState::Reachable)
    );
    // The kernel rarely recomputes the lifetime, a random value between 0.5 and 1.5 times the base: this may take a while.
    let stale = next(&mut fixture, address());
    assert_eq!(
        stale,
        entry(&fixture, address(), Some(MAC), NudState::Stale)
    );
    set(&fixture, address(), MAC, "probe");
    assert_eq!(
        next(&mut fixture, address()),
        entry(&fixture, address(), None, NudState::Invalid)
    );
}

#[test]
fn updates_that_the_kernel_ignores_are_not_observed() {
    let mut fixture = Fixture::new(&EbpfOptions::default());
    let netns = fixture.node.netns();
    netns
        .ip(&format!("address add 10.244.2.1/24 dev {DEVICE}"))
        .unwrap();
    set(&fixture, address(), MAC, "permanent");
    assert_eq!(
        next(&mut fixture, address()),
        entry(&fixture, address(), Some(MAC), NudState::Permanent)
    );
    // Another MAC claims the address; the kernel keeps the PERMANENT entry.
    let claim = Frame::gratuitous_reply(OTHER_MAC, "10.244.2.11".parse().unwrap());
    let request = Frame::request(
        OTHER_MAC,
        "10.244.2.11".parse().unwrap(),
        "10.244.2.1".parse().unwrap(),
    );
    fixture.sender.send(&claim).unwrap();
    fixture.sender.send(&request).unwrap();
    set(&fixture, "10.244.2.99".parse().unwrap(), MAC, "permanent");
    let observed = fixture.wait(|stamped| match stamped.observation {
        Observation::Neighbour(found) => Some(found),
        _ => None,
    });
    assert_eq!(observed.address, "10.244.2.99".parse::<IpAddr>().unwrap());
    assert!(fixture.count(Counter::Known(RecordKind::Neighbour)) > 0);
}

#[test]
fn unchanged_entry_is_only_counted() {
    let mut fixture = Fixture::detached(&EbpfOptions::default());
    for _ in 0..5 {
        set(&fixture, address(), MAC, "permanent");
    }
    set(&fixture, address(), OTHER_MAC, "permanent");
    assert_eq!(
        next(&mut fixture, address()),
        entry(&fixture, address(), Some(MAC), NudState::Permanent)
    );
    assert_eq!(
        next(&mut fixture, address()),
        entry(&fixture, address(), Some(OTHER_MAC), NudState::Permanent)
    );
    assert_eq!(fixture.count(Counter::Known(RecordKind::Neighbour)), 4);
}

#[test]
fn entries_of_other_namespaces_are_not_observed() {
    let mut fixture = Fixture::detached(&EbpfOptions::default());
    let other_netns = Netns::new("other").unwrap();
    other_netns
        .ip_batch([
            "link add veth0 type veth peer name veth1",
            "link set veth0 up",
        ])
        .unwrap();
    other_netns
        .ip(&format!(
            "neigh add 10.244.9.9 lladdr {OTHER_MAC} dev veth0 nud permanent"
        ))
        .unwrap();
    set(&fixture, address(), MAC, "permanent");
    let first = fixture.wait(|stamped| match stamped.observation {
        Observation::Neighbour(found) => Some(found.address),
        _ => None,
    });
    assert_eq!(first, address());
}

#[test]
fn budget_limits_entries_but_not_withdrawals() {
    let mut fixture = Fixture::detached(&EbpfOptions {
        budget_burst: 10,
        budget_per_second: 1,
        ..EbpfOptions::default()
    });
    let lines = (0..40)
        .map(|last| format!("neigh add 10.244.3.{last} lladdr {MAC} dev {DEVICE} nud permanent"));
    fixture.node.netns().ip_batch(lines).unwrap();
    let published = fixture.count(Counter::Published(RecordKind::Neighbour));
    let losses = fixture.counts().losses();
    assert_eq!(published + losses.neighbour_budget, 40);
    assert!((10..30).contains(&published), "{published}");
    let over = fixture.programs.counters().devices_over_budget().unwrap();
    assert_eq!(over.len(), 1);
    assert_eq!(
        (over[0].ifindex, over[0].neighbours),
        (fixture.ifindex, losses.neighbour_budget)
    );
    // A published entry is withdrawn although the budget is exhausted.
    let first = "10.244.3.0".parse().unwrap();
    fixture
        .node
        .netns()
        .ip(&format!("neigh delete 10.244.3.0 dev {DEVICE}"))
        .unwrap();
    assert!(
        matches!(next(&mut fixture, first), Observation::Neighbour(found) if found.state == NudState::Permanent)
    );
    assert_eq!(
        next(&mut fixture, first),
        entry(&fixture, first, None, NudState::Invalid)
    );
    assert_eq!(
        next(&mut fixture, first),
        Observation::NeighbourGone(fixture.ifindex, first)
    );
}

#[test]
fn contested_entry_beyond_the_budget_is_observed() {
    let mut fixture = Fixture::detached(&EbpfOptions {
        budget_burst: 10,
        budget_per_second: 1,
        ..EbpfOptions::default()
    });
    let own = AddressHolder::Device(fixture.ifindex);
    let victims: [IpAddr; 2] = ["10.244.2.11".parse().unwrap(), "fd00::11".parse().unwrap()];
    let [claimed, claimed6] = victims.map(|address| (address, AddressHolder::Several));
    let of_itself = "10.244.2.12".parse().unwrap();
    let table = vec![claimed, claimed6, (of_itself, own)];
    let update = ClaimedUpdate::All(table);
    fixture.programs.write_claimed(&update).unwrap();
    let lines = (0..40)
        .map(|last| format!("neigh add 10.244.3.{last} lladdr {MAC} dev {DEVICE} nud permanent"));
    fixture.node.netns().ip_batch(lines).unwrap();
    let before = fixture.counts().losses().neighbour_budget;
    assert!(before > 0);
    for address in victims {
        set(&fixture, address, MAC, "permanent");
        let observed = entry(&fixture, address, Some(MAC), NudState::Permanent);
        assert_eq!(next(&mut fixture, address), observed);
    }
    assert_eq!(fixture.counts().losses().neighbour_budget, before);
    // At once, and far more than the burst: on a slow machine the budget has refilled meanwhile.
    let macs = [MAC, OTHER_MAC].into_iter().cycle().take(40);
    let lines = macs
        .map(|mac| format!("neigh replace {of_itself} lladdr {mac} dev {DEVICE} nud permanent"));
    fixture.node.netns().ip_batch(lines).unwrap();
    assert!(fixture.counts().losses().neighbour_budget > before);
}
