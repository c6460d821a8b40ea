//! What netlink tells about real links, pods and bridges, in namespaces made here. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeSet,
    net::IpAddr,
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use detector_agent::{
    detect::{
        AssignedAddress, FdbEntry, Link, LinkKind, Mac, NudState, Observation, Route, Snapshot,
        Stamped,
    },
    observe::netlink::{
        DeviceSelector, Drained, LeftOut, Live, LiveOptions, OpenError, ReadError, Reading,
        Requests, Source,
    },
};
use detector_testkit::{Frame, FrameSender, Netns, Node, PodSpec};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{NetlinkAddr, getsockname};

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(60);

fn selector() -> DeviceSelector {
    DeviceSelector::default()
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The live sockets of a node and what they told so far.
struct Observer {
    live: Live,
    epoll: Epoll,
    seen: Vec<Stamped>,
    overruns: usize,
    undecodable: u64,
}

impl Observer {
    fn open(node: &Netns, options: LiveOptions) -> Result<Self> {
        let live = node.run_in(|| Ok(Live::open(selector(), options)?))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for source in Source::ALL {
            epoll.add(live.fd(source), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self {
            live,
            epoll,
            seen: Vec::new(),
            overruns: 0,
            undecodable: 0,
        })
    }

    fn of(node: &Netns) -> Result<Self> {
        Self::open(node, LiveOptions::default())
    }

    fn drain(&mut self, source: Source, max_datagrams: usize) -> Result<Drained> {
        let drained = self
            .live
            .drain(source, max_datagrams, |stamped| self.seen.push(stamped))?;
        self.overruns += usize::from(drained.overrun);
        self.undecodable += drained.undecodable;
        Ok(drained)
    }

    /// Drains both sockets until `enough` accepts all that was told; sleeps until the kernel has more to say.
    fn wait(&mut self, what: &str, enough: impl Fn(&[Stamped]) -> bool) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        loop {
            let mut more = false;
            for source in Source::ALL {
                more |= self.drain(source, 64)?.more;
            }
            if enough(&self.seen) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{what} was not told; this was: {:#?}", self.seen);
            }
            if !more {
                let timeout = EpollTimeout::try_from(left).context("a timeout")?;
                self.epoll.wait(&mut [EpollEvent::empty(); 2], timeout)?;
            }
        }
    }

    fn wait_for(&mut self, what: &str, wanted: impl Fn(&Observation) -> bool) -> Result<()> {
        self.wait(what, |seen| {
            seen.iter().any(|stamped| wanted(&stamped.what))
        })
    }

    /// The last state told of a link.
    fn link(&self, name: &str) -> Option<&Link> {
        self.seen
            .iter()
            .rev()
            .find_map(|stamped| match &stamped.what {
                Observation::Link(link) if link.name == name => Some(link),
                _ => None,
            })
    }
}

fn read(node: &Netns, selector: &DeviceSelector) -> Result<Reading> {
    node.run_in(|| Ok(Requests::open()?.read_node(selector)?))
}

/// Waits until a bridge learns from a port: its carrier comes a little after the link is set up.
fn wait_until_forwarding(node: &Netns, port: &str) -> Result<()> {
    let until = Instant::now() + DEADLINE;
    loop {
        let shown = node.ip(&format!("-d link show {port}"))?;
        if shown.contains("state forwarding") {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("the port does not forward: {shown}");
        }
    }
}

fn link<'a>(snapshot: &'a Snapshot, name: &str) -> &'a Link {
    let found = snapshot.links.iter().find(|link| link.name == name);
    found.unwrap_or_else(|| panic!("no link {name} in {snapshot:#?}"))
}

/// The addresses that a snapshot holds for the pod behind a device.
fn pod_addresses<'a>(snapshot: &'a Snapshot, device: &str) -> Option<&'a [AssignedAddress]> {
    let peer = link(snapshot, device).peer.expect("a peer");
    let pod = snapshot.pods.iter().find(|pod| pod.peer == peer);
    pod.expect("the pod is in the snapshot")
        .addresses
        .as_deref()
}

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
    let reading = read(&node, &selector())?;
    let snapshot = &reading.snapshot;
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
    assert_eq!(reading.left_out, LeftOut::default());
    drop(pods);
    Ok(())
}

#[test]
fn an_address_set_in_a_pod_is_told_at_once_and_so_is_its_removal() -> Result<()> {
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
        *what == Observation::PodAddressGone(peer, address("10.244.2.10"), 24)
    })?;
    assert_eq!((observer.overruns, observer.undecodable), (0, 0));
    Ok(())
}

#[test]
fn a_pod_device_is_told_with_its_peer_and_when_it_is_gone() -> Result<()> {
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
fn the_hardware_address_of_the_pods_end_is_read() -> Result<()> {
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
fn a_device_made_before_its_peer_moved_into_the_pod_is_told_with_the_peer() -> Result<()> {
    let node = Node::new("moved")?;
    let pod = Netns::bare("moved-pod", false)?;
    let mut observer = Observer::of(&node)?;
    node.ip("link add vpa type veth peer name vpb")?;
    node.ip(&format!("link set vpb netns {}", pod.name()))?;
    let ifindex = pod.ifindex("vpb")?;
    // Both ends are down and stay so: nothing but the move itself tells.
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
fn a_device_whose_peer_no_message_told_is_read_with_its_peer_and_addresses() -> Result<()> {
    let node = Node::new("device")?;
    let pod = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let other = node.add_pod(&PodSpec::new("vpb").address("10.244.2.11/24"))?;
    node.set_neighbour(address("10.244.2.10"), "vpa", pod.mac(), "permanent")?;
    node.set_neighbour(address("10.244.2.11"), "vpb", other.mac(), "permanent")?;
    let ifindex = node.ifindex("vpa")?;
    let snapshot = node
        .run_in(|| Ok(Requests::open()?.read_device(&selector(), ifindex, None)?))?
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
fn a_device_that_is_gone_is_read_as_gone() -> Result<()> {
    let node = Node::new("gone")?;
    let pod = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let ifindex = node.ifindex("vpa")?;
    let peer = link(&read(&node, &selector())?.snapshot, "vpa").peer;
    pod.delete()?;
    let snapshot = node
        .run_in(|| Ok(Requests::open()?.read_device(&selector(), ifindex, peer)?))?
        .snapshot;
    assert_eq!((snapshot.links.len(), snapshot.neighbours.len()), (0, 0));
    assert_eq!(snapshot.pods.len(), 1);
    Ok(())
}

#[test]
fn a_namespace_that_vanished_costs_its_own_addresses_only() -> Result<()> {
    let node = Node::new("vanished")?;
    let _stays = node.add_pod(&PodSpec::new("vpa").address("10.244.2.10/24"))?;
    let vanishes = node.add_pod(&PodSpec::new("vpb").address("10.244.2.11/24"))?;
    let (a, b) = (node.ifindex("vpa")?, node.ifindex("vpb")?);
    let gone = link(&read(&node, &selector())?.snapshot, "vpb")
        .peer
        .context("a peer")?;
    vanishes.delete()?;
    // The id is free as soon as the kernel has torn the namespace down, which it does at leisure.
    let until = Instant::now() + DEADLINE;
    let mut requests = node.run_in(|| Ok(Requests::open()?))?;
    loop {
        let read = requests.read_device(&selector(), a, Some(gone))?;
        assert!(read.snapshot.pods.iter().all(|pod| pod.addresses.is_some()));
        let read = requests.read_device(&selector(), b, Some(gone))?;
        if read.snapshot.pods.iter().all(|pod| pod.addresses.is_none()) {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("the namespace is still there: {read:#?}");
        }
    }
}

#[test]
fn routes_are_told_and_read() -> Result<()> {
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
    observer.wait_for("the route", |what| *what == Observation::Route(expected))?;
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
fn addresses_of_the_node_are_told_and_read_but_not_loopbacks() -> Result<()> {
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
        *what == Observation::HostAddressGone(bridge, address("10.244.2.1"), 24)
    })?;
    assert!(!read_host()?.contains(&address("10.244.2.1")));
    Ok(())
}

#[test]
fn a_bridge_tells_and_lists_what_it_learned_but_not_its_own_addresses() -> Result<()> {
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
        let last = seen.iter().rev().find_map(|stamped| match &stamped.what {
            Observation::Link(link) if link.name == "vpa" => Some(link.master),
            _ => None,
        });
        last == Some(None)
    })?;
    let gone = Observation::LinkGone(expected.port);
    assert!(
        observer.seen.iter().all(|stamped| stamped.what != gone),
        "a port that leaves its bridge is not gone"
    );
    Ok(())
}

#[test]
fn neighbours_are_told_and_read_on_pod_devices_and_bridges_only() -> Result<()> {
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
fn without_neighbours_only_forwarding_entries_are_told() -> Result<()> {
    let node = Node::new("filtered")?;
    node.add_bridge("cni0", &[])?;
    let options = LiveOptions {
        neighbours: false,
        ..LiveOptions::default()
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
        !observer.seen.iter().any(|stamped| neighbour(&stamped.what)),
        "{:#?}",
        observer.seen
    );
    Ok(())
}

#[test]
fn an_overrun_is_told_once_and_only_when_the_socket_is_empty() -> Result<()> {
    let node = Node::new("overrun")?;
    node.add_bridge("cni0", &[])?;
    let options = LiveOptions {
        receive_buffer: 4_096,
        ..LiveOptions::default()
    };
    let mut observer = Observer::open(&node, options)?;
    let add = |range: std::ops::Range<u8>| {
        node.ip_batch(range.map(|last| format!("address add 10.244.9.{last}/32 dev cni0")))
    };
    add(1..201)?;
    // Both sockets heard of the addresses. One datagram a call: the loss is known from the first on, and must not be
    // told before the last.
    for (source, told_before) in [(Source::Node, 0), (Source::Pods, 1)] {
        let mut calls = 0;
        while observer.drain(source, 1)?.more {
            calls += 1;
            assert_eq!(
                observer.overruns, told_before,
                "told before the socket was empty"
            );
            assert!(calls < 10_000, "the socket is never empty");
        }
        assert_eq!(observer.overruns, told_before + 1);
        assert!(calls > 1, "something was kept");
    }
    assert!(observer.seen.len() < 200, "something was lost");
    // What was lost is in a reading begun now.
    let found = read(&node, &selector())?.snapshot.host.len();
    assert!(found >= 200, "{found}");
    // And from here on everything is told again, the overrun not a second time.
    add(201..202)?;
    observer.wait_for("an address after the overrun", |what| {
        matches!(what, Observation::HostAddress(_, assigned) if assigned.address == address("10.244.9.201"))
    })?;
    assert_eq!(observer.overruns, 2);
    Ok(())
}

#[test]
fn an_ipv6_address_tells_that_its_duplicate_detection_runs_or_failed() -> Result<()> {
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
fn chosen_and_excluded_devices_are_told_as_such() -> Result<()> {
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

/// Takes capabilities from the thread that calls.
fn drop_capability(number: u32) -> Result<()> {
    // capset(2), version 3: two sets of 32.
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the kernel reads the header and writes two structs of three words, which is what `sets` has room for.
    let outcome =
        unsafe { nix::libc::syscall(nix::libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    nix::errno::Errno::result(outcome)?;
    // Effective, permitted and inheritable of the capabilities 0 to 31.
    sets[..2].iter_mut().for_each(|set| *set &= !(1 << number));
    // SAFETY: as above, and both are only read.
    let outcome =
        unsafe { nix::libc::syscall(nix::libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    nix::errno::Errno::result(outcome)?;
    Ok(())
}

const CAP_NET_BROADCAST: u32 = 11;
const CAP_NET_ADMIN: u32 = 12;

#[test]
fn a_missing_capability_is_named() -> Result<()> {
    let node = Node::new("capabilities")?;
    let _pod = node.add_pod(&PodSpec::new("vpa"))?;
    let open = |missing| {
        node.run_in(|| {
            drop_capability(missing)?;
            Ok(Live::open(selector(), LiveOptions::default()).err())
        })
    };
    for (missing, name) in [
        (CAP_NET_BROADCAST, "CAP_NET_BROADCAST"),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    ] {
        let error = open(missing)?.context("the socket opened without the capability")?;
        assert!(
            matches!(error, OpenError::MissingCapability { capability, .. } if capability == name),
            "{error}"
        );
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = node.run_in(|| {
        let mut requests = Requests::open()?;
        drop_capability(CAP_NET_ADMIN)?;
        Ok(requests.read_node(&selector()).err())
    })?;
    let error = error.context("the pod was read without the capability")?;
    assert!(
        matches!(
            error,
            ReadError::MissingCapability {
                capability: "CAP_NET_ADMIN",
                ..
            }
        ),
        "{error}"
    );
    Ok(())
}

#[test]
fn what_another_process_sends_is_not_believed() -> Result<()> {
    let node = Node::new("forged")?;
    node.add_bridge("cni0", &[])?;
    let bridge = node.ifindex("cni0")?;
    let mut observer = Observer::of(&node)?;
    let port = getsockname::<NetlinkAddr>(observer.live.fd(Source::Node).as_raw_fd())?.pid();
    // RTM_DELLINK of the bridge: header, then ifinfomsg.
    let mut forged = [0_u8; 32];
    forged[..4].copy_from_slice(&32_u32.to_ne_bytes());
    forged[4..6].copy_from_slice(&17_u16.to_ne_bytes());
    forged[20..24].copy_from_slice(&bridge.to_ne_bytes());
    node.run_in(|| {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(socket.send_to(&forged, &SocketAddr::new(port, 0), 0)?)
    })?;
    node.ip("link set cni0 alias told-later")?;
    observer.wait_for("what the kernel said after it", |what| {
        matches!(what, Observation::Link(link) if link.alias.as_deref() == Some("told-later"))
    })?;
    let gone = Observation::LinkGone(bridge);
    assert!(observer.seen.iter().all(|stamped| stamped.what != gone));
    assert_eq!(observer.undecodable, 1);
    Ok(())
}
