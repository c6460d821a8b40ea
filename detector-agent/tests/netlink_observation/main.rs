//! Netlink notifications and snapshots of real links, pods and bridges, in namespaces. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod pods;
mod sockets;
mod tables;

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use detector_agent::observe::netlink::{
    BoundedSnapshot, DeviceSelector, DrainedSocket, ListenerOptions, NetlinkListener, NetlinkReader,
};
use detector_engine::{AssignedAddress, Link, Observation, Snapshot, TimedObservation};
use detector_testkit::{Netns, until};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Maximum wait for an expected observation.
const DEADLINE: Duration = Duration::from_secs(60);

fn selector() -> DeviceSelector {
    DeviceSelector::default()
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The notification socket of a node and the observations so far.
struct Observer {
    listener: NetlinkListener,
    epoll: Epoll,
    seen: Vec<TimedObservation>,
    overruns: usize,
    undecodable: u64,
}

impl Observer {
    fn open(node: &Netns, options: ListenerOptions) -> Result<Self> {
        let listener = node.run_in(|| Ok(NetlinkListener::open(selector(), options)?))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(listener.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self {
            listener,
            epoll,
            seen: Vec::new(),
            overruns: 0,
            undecodable: 0,
        })
    }

    fn of(node: &Netns) -> Result<Self> {
        Self::open(node, ListenerOptions::default())
    }

    fn drain(&mut self, max_datagrams: usize) -> Result<DrainedSocket> {
        let drained = self
            .listener
            .drain(max_datagrams, |stamped| self.seen.push(stamped))?;
        self.overruns += usize::from(drained.overrun);
        self.undecodable += drained.undecodable;
        Ok(drained)
    }

    /// Drains the socket until `enough` accepts the observations so far; sleeps until the kernel sends more.
    fn wait(&mut self, what: &str, enough: impl Fn(&[TimedObservation]) -> bool) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        loop {
            let more = self.drain(64)?.more;
            if enough(&self.seen) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{what} was not observed, only: {:#?}", self.seen);
            }
            if !more {
                let timeout = EpollTimeout::try_from(left).context("a timeout")?;
                self.epoll.wait(&mut [EpollEvent::empty(); 2], timeout)?;
            }
        }
    }

    fn wait_for(&mut self, what: &str, wanted: impl Fn(&Observation) -> bool) -> Result<()> {
        self.wait(what, |seen| {
            seen.iter().any(|stamped| wanted(&stamped.observation))
        })
    }

    /// The last observed state of a link.
    fn link(&self, name: &str) -> Option<&Link> {
        self.seen
            .iter()
            .rev()
            .find_map(|stamped| match &stamped.observation {
                Observation::Link(link) if link.name == name => Some(link),
                _ => None,
            })
    }
}

fn read(node: &Netns, selector: &DeviceSelector) -> Result<BoundedSnapshot> {
    node.run_in(|| Ok(NetlinkReader::open()?.read_node(selector)?))
}

/// Waits until a bridge learns from a port: it gets its carrier a little after the link is set up.
fn wait_until_forwarding(node: &Netns, port: &str) -> Result<()> {
    until(DEADLINE, format_args!("{port} to forward"), || {
        let link = node.ip(&format!("-d link show {port}"))?;
        ensure!(link.contains("state forwarding"), "{link}");
        Ok(())
    })
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
