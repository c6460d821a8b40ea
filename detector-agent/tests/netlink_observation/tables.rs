//! The node's own tables: routes, addresses, forwarding entries of bridges, neighbours.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Result;
use detector_agent::observe::netlink::ListenerOptions;
use detector_engine::{FdbEntry, Mac, NudState, Observation, Route, RoutePlace, RoutingChange};
use detector_testkit::{Frame, FrameSender, Node, PodSpec};

use super::{Observer, address, read, selector, wait_until_forwarding};

#[test]
fn routes_are_observed_and_in_snapshots() -> Result<()> {
    let node = Node::new("routes")?;
    let _pod = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let mut observer = Observer::of(&node)?;
    let expected = Route {
        destination: address("10.244.2.10"),
        prefix_len: 32,
        ifindex: node.ifindex("vpa")?,
        metric: 0,
        table: 254,
    };
    node.ip("route add 10.244.2.10/32 dev vpa scope link")?;
    let added = Observation::RouteInserted(expected, RoutePlace::First);
    observer.wait_for("the route", |what| *what == added)?;
    let has_route = || -> Result<bool> {
        Ok(read(&node, &selector())?
            .snapshot
            .routes
            .contains(&expected))
    };
    assert!(has_route()?);
    node.ip("route delete 10.244.2.10/32 dev vpa")?;
    observer.wait_for("its end", |what| *what == Observation::RouteGone(expected))?;
    assert!(!has_route()?);
    Ok(())
}

#[test]
fn changes_that_affect_routing_are_observed() -> Result<()> {
    let node = Node::new("routing")?;
    let _pods = node.add_pods(&["vpa", "vpb"].map(PodSpec::new))?;
    let mut observer = Observer::of(&node)?;
    let target = Route {
        destination: address("10.244.2.10"),
        prefix_len: 32,
        ifindex: node.ifindex("vpa")?,
        metric: 0,
        table: 254,
    };
    let second = Route {
        ifindex: node.ifindex("vpb")?,
        ..target
    };
    let nowhere = Route {
        ifindex: Route::NOWHERE,
        ..target
    };
    let at = |last| Route {
        destination: [10, 244, 2, last].into(),
        ..target
    };
    let destination = |last| {
        let address = [10, 244, 2, last].into();
        Observation::RoutingChanged(RoutingChange::Destination(address, 32))
    };
    for (command, expected) in [
        (
            "route add 10.244.2.10 dev vpa",
            Observation::RouteInserted(target, RoutePlace::First),
        ),
        (
            "route append 10.244.2.10 dev vpb",
            Observation::RouteInserted(second, RoutePlace::Last),
        ),
        (
            "route delete 10.244.2.10 dev vpa",
            Observation::RouteGone(target),
        ),
        (
            "route replace 10.244.2.10 dev vpa",
            Observation::Route(target),
        ),
        (
            "route replace unreachable 10.244.2.10",
            Observation::Route(nowhere),
        ),
        (
            "route delete unreachable 10.244.2.10",
            Observation::RouteGone(nowhere),
        ),
        (
            "route add 10.244.2.11 dev vpa",
            Observation::RouteInserted(at(11), RoutePlace::First),
        ),
        (
            "route replace 10.244.2.11 nexthop dev vpa nexthop dev vpb",
            Observation::RoutingChanged(RoutingChange::Replaced(at(11).key())),
        ),
        ("route add local 10.244.2.12 dev lo", destination(12)),
        ("route add 10.244.2.13 tos 8 dev vpa", destination(13)),
        (
            "rule add to 10.244.2.10 lookup 88",
            Observation::RoutingChanged(RoutingChange::Policy),
        ),
    ] {
        node.ip(command)?;
        observer.wait_for(command, |what| *what == expected)?;
    }
    Ok(())
}

#[test]
fn node_addresses_except_loopback_are_observed() -> Result<()> {
    let node = Node::new("host")?;
    let mut observer = Observer::of(&node)?;
    node.add_bridge("cni0", &["10.244.2.1/24", "fd00:2::1/64"])?;
    let bridge = node.ifindex("cni0")?;
    observer.wait_for("the address", |what| {
        matches!(what, Observation::HostAddress(at, assigned)
            if *at == bridge && assigned.address == address("10.244.2.1"))
    })?;
    let read_host = || -> Result<BTreeSet<IpAddr>> {
        Ok(read(&node, &selector())?
            .snapshot
            .host
            .into_iter()
            .map(|(_, a)| a.address)
            .collect())
    };
    let found = read_host()?;
    assert!(
        found.contains(&address("10.244.2.1")) && found.contains(&address("fd00:2::1")),
        "{found:?}"
    );
    assert!(
        found.iter().all(|address| !address.is_loopback()),
        "{found:?}"
    );
    node.ip("address delete 10.244.2.1/24 dev cni0")?;
    observer.wait_for("its removal", |what| {
        matches!(what, Observation::HostAddressGone(at, id)
            if *at == bridge && id.address == address("10.244.2.1"))
    })?;
    assert!(!read_host()?.contains(&address("10.244.2.1")));
    Ok(())
}

#[test]
fn learned_forwarding_entries_are_observed() -> Result<()> {
    let node = Node::new("fdb")?;
    node.add_bridge("cni0", &[])?;
    let mut observer = Observer::of(&node)?;
    let pod = node.add_pod(&PodSpec::new("vpa").master("cni0"))?;
    wait_until_forwarding(&node, "vpa")?;
    FrameSender::open(&pod)?.send(&Frame::announcement(pod.mac(), "10.244.2.10".parse()?))?;
    let expected = FdbEntry {
        bridge: node.ifindex("cni0")?,
        port: node.ifindex("vpa")?,
        mac: Mac(pod.mac().0),
        vlan: None,
    };
    observer.wait_for("the learned entry", |what| {
        *what == Observation::Fdb(expected)
    })?;
    assert_eq!(read(&node, &selector())?.snapshot.fdb, [expected]);
    assert!(
        observer
            .link("vpa")
            .is_some_and(|link| link.master == Some(expected.bridge))
    );
    node.ip("link set vpa nomaster")?;
    observer.wait_for("its end", |what| *what == Observation::FdbGone(expected))?;
    observer.wait("the port leaving the bridge", |seen| {
        let last = seen
            .iter()
            .rev()
            .find_map(|stamped| match &stamped.observation {
                Observation::Link(link) if link.name == "vpa" => Some(link.master),
                _ => None,
            });
        last == Some(None)
    })?;
    let gone = Observation::LinkGone(expected.port);
    assert!(
        observer
            .seen
            .iter()
            .all(|stamped| stamped.observation != gone),
        "a port that leaves its bridge still exists"
    );
    Ok(())
}

#[test]
fn snapshots_have_neighbours_of_pod_devices_and_bridges_only() -> Result<()> {
    let node = Node::new("neighbours")?;
    node.add_bridge("cni0", &["10.244.3.1/24"])?;
    let pod = node.add_pod(&PodSpec::new("vpa"))?;
    node.ip_batch([
        "link add uplink type veth peer name wire",
        "link set uplink up",
        "link set wire up",
    ])?;
    let mut observer = Observer::of(&node)?;
    for (ip, device) in [
        ("10.244.2.10", "vpa"),
        ("10.244.3.10", "cni0"),
        ("192.0.2.2", "uplink"),
    ] {
        node.set_neighbour(address(ip), device, pod.mac(), "permanent")?;
    }
    let vpa = node.ifindex("vpa")?;
    observer.wait_for("the entry on the pod device", |what| {
        matches!(what, Observation::Neighbour(neighbour) if neighbour.ifindex == vpa
            && neighbour.address == address("10.244.2.10")
            && neighbour.lladdr == Some(Mac(pod.mac().0))
            && neighbour.state == NudState::Permanent)
    })?;
    let found: BTreeSet<IpAddr> = read(&node, &selector())?
        .snapshot
        .neighbours
        .into_iter()
        .map(|neighbour| neighbour.address)
        .collect();
    assert_eq!(
        found,
        BTreeSet::from([address("10.244.2.10"), address("10.244.3.10")])
    );
    node.ip("neigh delete 10.244.2.10 dev vpa")?;
    observer.wait_for("its end", |what| {
        *what == Observation::NeighbourGone(vpa, address("10.244.2.10"))
    })
}

#[test]
fn without_neighbours_forwarding_entries_are_still_observed() -> Result<()> {
    let node = Node::new("filtered")?;
    node.add_bridge("cni0", &[])?;
    let options = ListenerOptions {
        neighbours: false,
        ..ListenerOptions::default()
    };
    let pod = node.add_pod(&PodSpec::new("vpa").master("cni0"))?;
    let mut observer = Observer::open(&node, options)?;
    node.set_neighbour(address("10.244.2.10"), "cni0", pod.mac(), "permanent")?;
    node.ip("neigh delete 10.244.2.10 dev cni0")?;
    wait_until_forwarding(&node, "vpa")?;
    FrameSender::open(&pod)?.send(&Frame::announcement(pod.mac(), "10.244.2.10".parse()?))?;
    observer.wait_for("the learned entry", |what| {
        matches!(what, Observation::Fdb(_))
    })?;
    node.ip("link delete vpa")?;
    observer.wait_for("its end", |what| matches!(what, Observation::FdbGone(_)))?;
    let neighbour = |what: &Observation| {
        matches!(
            what,
            Observation::Neighbour(_) | Observation::NeighbourGone(..)
        )
    };
    assert!(
        !observer
            .seen
            .iter()
            .any(|stamped| neighbour(&stamped.observation)),
        "{:#?}",
        observer.seen
    );
    Ok(())
}
