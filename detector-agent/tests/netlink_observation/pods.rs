//! Pod devices: which are selected, where their other end is, and the addresses inside the pods.

use std::{collections::BTreeSet, net::IpAddr, time::Instant};

use anyhow::{Context as _, Result, bail};
use detector_agent::observe::netlink::{DeviceSelector, NetlinkReader, Omitted};
use detector_engine::{AssignedAddress, LinkKind, Observation, Snapshot};
use detector_testkit::{Netns, Node, PodSpec};

use super::{DEADLINE, Observer, address, link, pod_addresses, read, selector};

#[test]
fn a_snapshot_finds_the_addresses_inside_pods_without_any_packet() -> Result<()> {
    let node = Node::new("snapshot")?;
    let pods = node.add_pods(&[
        PodSpec::new("vpa").address("10.244.2.10/24"),
        PodSpec::new("vpb")
            .address("10.244.2.10/24")
            .address("fd00:2::10/64"),
        PodSpec::new("vpc"),
    ])?;
    let read = read(&node, &selector())?;
    let snapshot = &read.snapshot;
    for device in ["vpa", "vpb", "vpc"] {
        assert_eq!(link(snapshot, device).kind, LinkKind::Pod);
        assert!(link(snapshot, device).up);
    }
    assert_eq!(link(snapshot, "lo").kind, LinkKind::Other);
    let of = |device: &str| -> BTreeSet<(IpAddr, u8)> {
        pod_addresses(snapshot, device)
            .expect("readable")
            .iter()
            .filter(|assigned| !matches!(assigned.address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
            .map(|assigned| (assigned.address, assigned.prefix_len))
            .collect()
    };
    assert_eq!(of("vpa"), BTreeSet::from([(address("10.244.2.10"), 24)]));
    assert_eq!(
        of("vpb"),
        BTreeSet::from([(address("10.244.2.10"), 24), (address("fd00:2::10"), 64)])
    );
    assert_eq!(of("vpc"), BTreeSet::new());
    assert_eq!(read.omitted, Omitted::default());
    drop(pods);
    Ok(())
}

#[test]
fn pod_address_changes_are_observed_at_once() -> Result<()> {
    let node = Node::new("live")?;
    let pod = node.add_pod(&PodSpec::new("vpa"))?;
    let mut observer = Observer::of(&node)?;
    let peer = link(&read(&node, &selector())?.snapshot, "vpa")
        .peer
        .context("a peer")?;
    pod.add_address("10.244.2.10/24")?;
    observer.wait_for("the new address", |what| {
        matches!(what, Observation::PodAddress(at, assigned)
            if *at == peer && assigned.address == address("10.244.2.10") && assigned.prefix_len == 24)
    })?;
    pod.remove_address("10.244.2.10/24")?;
    observer.wait_for("its removal", |what| {
        matches!(what, Observation::PodAddressGone(at, id)
            if *at == peer && id.address == address("10.244.2.10"))
    })?;
    assert_eq!((observer.overruns, observer.undecodable), (0, 0));
    Ok(())
}

#[test]
fn a_pod_device_is_observed_with_its_peer_and_its_end() -> Result<()> {
    let node = Node::new("links")?;
    let mut observer = Observer::of(&node)?;
    let pod = node.add_pod(&PodSpec::new("vpa"))?;
    let ifindex = node.ifindex("vpa")?;
    observer.wait_for("the device as a pod's, up", |what| {
        matches!(what, Observation::Link(link) if link.ifindex == ifindex
            && link.kind == LinkKind::Pod && link.peer.is_some() && link.up)
    })?;
    let peer = observer.link("vpa").and_then(|link| link.peer);
    assert_eq!(peer, link(&read(&node, &selector())?.snapshot, "vpa").peer);
    pod.delete()?;
    observer.wait_for("its end", |what| *what == Observation::LinkGone(ifindex))
}

#[test]
fn snapshots_have_the_mac_of_the_pods_end() -> Result<()> {
    let node = Node::new("mac")?;
    let pod = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let snapshot = read(&node, &selector())?.snapshot;
    let [read] = snapshot.pods.as_slice() else {
        panic!("one pod: {snapshot:#?}")
    };
    assert_eq!(
        read.mac.map(|mac| mac.to_string()),
        Some(pod.mac().to_string())
    );
    Ok(())
}

#[test]
fn a_peer_that_moves_into_its_pod_later_is_observed() -> Result<()> {
    let node = Node::new("moved")?;
    let pod = Netns::bare("moved-pod", false)?;
    let mut observer = Observer::of(&node)?;
    node.ip("link add vpa type veth peer name vpb")?;
    node.ip(&format!("link set vpb netns {}", pod.name()))?;
    let ifindex = pod.ifindex("vpb")?;
    // Both ends are down and stay down: only the move itself causes a message.
    observer.wait_for("the peer", |what| {
        matches!(what, Observation::Link(link) if link.name == "vpa" && link.kind == LinkKind::Pod
            && link.peer.is_some_and(|peer| peer.ifindex == ifindex))
    })?;
    assert_eq!(
        observer.link("vpa").cloned(),
        Some(link(&read(&node, &selector())?.snapshot, "vpa").clone())
    );
    Ok(())
}

#[test]
fn a_device_snapshot_has_peer_addresses_and_neighbours() -> Result<()> {
    let node = Node::new("device")?;
    let pod = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let other = node.add_pod(&PodSpec::new("vpb").address("10.244.2.11/24"))?;
    node.set_neighbour(address("10.244.2.10"), "vpa", pod.mac(), "permanent")?;
    node.set_neighbour(address("10.244.2.11"), "vpb", other.mac(), "permanent")?;
    let ifindex = node.ifindex("vpa")?;
    let snapshot = node
        .run_in(|| Ok(NetlinkReader::open()?.read_device(&selector(), ifindex, None)?))?
        .snapshot;
    assert_eq!(snapshot.links.len(), 1);
    let addresses = pod_addresses(&snapshot, "vpa").context("readable")?;
    assert_eq!(
        addresses.iter().map(|a| a.address).collect::<Vec<_>>(),
        [address("10.244.2.10")]
    );
    let neighbours: Vec<_> = snapshot
        .neighbours
        .iter()
        .map(|n| (n.ifindex, n.address))
        .collect();
    assert_eq!(neighbours, [(ifindex, address("10.244.2.10"))]);
    Ok(())
}

#[test]
fn the_snapshot_of_a_removed_device_is_empty() -> Result<()> {
    let node = Node::new("gone")?;
    let pod = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let ifindex = node.ifindex("vpa")?;
    let peer = link(&read(&node, &selector())?.snapshot, "vpa").peer;
    pod.delete()?;
    let snapshot = node
        .run_in(|| Ok(NetlinkReader::open()?.read_device(&selector(), ifindex, peer)?))?
        .snapshot;
    assert_eq!((snapshot.links.len(), snapshot.neighbours.len()), (0, 0));
    assert_eq!(snapshot.pods.len(), 1);
    Ok(())
}

#[test]
fn a_vanished_namespace_costs_only_its_own_addresses() -> Result<()> {
    let node = Node::new("vanished")?;
    let _stays = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let vanishes = node.add_pod(&PodSpec::new("vpb").address("10.244.2.11/24"))?;
    let (a, b) = (node.ifindex("vpa")?, node.ifindex("vpb")?);
    let gone = link(&read(&node, &selector())?.snapshot, "vpb")
        .peer
        .context("a peer")?;
    vanishes.delete()?;
    // The id is released once the kernel has torn the namespace down, which it does asynchronously.
    let until = Instant::now() + DEADLINE;
    let mut reader = node.run_in(|| Ok(NetlinkReader::open()?))?;
    loop {
        let read = reader.read_device(&selector(), a, Some(gone))?;
        assert!(read.snapshot.pods.iter().all(|pod| pod.addresses.is_some()));
        let read = reader.read_device(&selector(), b, Some(gone))?;
        if read.snapshot.pods.iter().all(|pod| pod.addresses.is_none()) {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("the namespace is still there: {read:#?}");
        }
    }
}

#[test]
fn an_ipv6_address_has_its_duplicate_detection_state() -> Result<()> {
    let node = Node::new("dad")?;
    let pods = node.add_pods(&[PodSpec::new("vpa").ipv6(), PodSpec::new("vpb").ipv6()])?;
    node.add_bridge("cni0", &[])?;
    node.ip_batch(["link set vpa master cni0", "link set vpb master cni0"])?;
    let mut observer = Observer::of(&node)?;
    let [first, second] = pods.as_slice() else {
        panic!("two pods")
    };
    first.add_address("fd00:2::10/64")?;
    second.netns().ip("address add fd00:2::10/64 dev eth0")?;
    let of_second = |snapshot: &Snapshot| -> Option<AssignedAddress> {
        let mut all = pod_addresses(snapshot, "vpb")?.iter();
        all.find(|assigned| assigned.address == address("fd00:2::10"))
            .copied()
    };
    let assigned = of_second(&read(&node, &selector())?.snapshot).context("the address")?;
    assert!(assigned.tentative, "{assigned:?}");
    let peer = link(&read(&node, &selector())?.snapshot, "vpb")
        .peer
        .context("a peer")?;
    observer.wait_for("the failure", |what| {
        matches!(what, Observation::PodAddress(at, assigned)
            if *at == peer && assigned.address == address("fd00:2::10") && assigned.dad_failed)
    })?;
    assert!(
        of_second(&read(&node, &selector())?.snapshot)
            .context("the address")?
            .dad_failed
    );
    Ok(())
}

#[test]
fn selected_and_excluded_devices_have_their_kind() -> Result<()> {
    let node = Node::new("chosen")?;
    let _pods = node.add_pods(&[
        PodSpec::new("cali1"),
        PodSpec::new("cali2"),
        PodSpec::new("other"),
    ])?;
    node.ip("tuntap add tap7 mode tap")?;
    let kinds = |include: &[&str], exclude: &[&str]| -> Result<Vec<LinkKind>> {
        let owned = |patterns: &[&str]| {
            patterns
                .iter()
                .map(|&pattern| pattern.into())
                .collect::<Vec<String>>()
        };
        let snapshot = read(
            &node,
            &DeviceSelector::new(&owned(include), &owned(exclude))?,
        )?
        .snapshot;
        Ok(["cali1", "cali2", "other", "tap7"]
            .map(|name| link(&snapshot, name).kind)
            .to_vec())
    };
    use LinkKind::{Other, Pod};
    assert_eq!(kinds(&[], &[])?, [Pod, Pod, Pod, Pod]);
    assert_eq!(kinds(&["cali*"], &["cali2"])?, [Pod, Other, Other, Other]);
    Ok(())
}
