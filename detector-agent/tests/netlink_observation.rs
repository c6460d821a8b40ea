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
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use detector_agent::{
    detect::{
        AssignedAddress, FdbEntry, Link, LinkKind, Mac, NudState, Observation, Peer, Route,
        Snapshot, Stamped,
    },
    observe::netlink::{
        DeviceSelector, Drained, Live, LiveOptions, OpenError, ReadError, Reading, Requests, Source,
    },
};
use detector_testkit::{Frame, FrameSender, Netns, Node, PodSpec};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(20);

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
    assert_eq!(
        reading.left_out,
        detector_agent::observe::netlink::LeftOut::default()
    );
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
        *what == Observation::PodAddressGone(peer, address("10.244.2.10"))
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
