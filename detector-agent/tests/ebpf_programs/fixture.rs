//! A node with a pod, and the programs on the pod's device.

use std::{
    net::Ipv4Addr,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use detector_agent::observe::ebpf::{CounterValues, EbpfOptions, Programs, RingReader};
use detector_common::Counter;
use detector_engine::{FrameClaim, FrameKind, IfIndex, Mac, Observation, TimedObservation, Vlan};
use detector_testkit::{Frame, FrameSender, MacAddress, Node, Pod, PodSpec, until};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Time after which a test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// The pod's device.
pub(crate) const DEVICE: &str = "veth0";
/// The pod's hardware address.
pub(crate) const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0a]);
/// Claims of these addresses are sent last: when one is observed, all frames sent before have been processed.
pub(crate) const MARKERS: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);

pub(crate) struct Fixture {
    pub(crate) programs: Programs,
    pub(crate) reader: RingReader,
    pub(crate) sender: FrameSender,
    pub(crate) ifindex: IfIndex,
    pub(crate) pod: Pod,
    pub(crate) node: Node,
    markers: u32,
}

impl Fixture {
    /// A pod with the program attached.
    pub(crate) fn new(options: &EbpfOptions) -> Self {
        let mut fixture = Self::detached(options);
        fixture.attach().unwrap();
        fixture
    }

    /// A pod without the program.
    pub(crate) fn detached(options: &EbpfOptions) -> Self {
        // With RUST_LOG=debug a failing test shows the verifier log. Only the first subscriber of the process is installed.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let node = Node::new("ebpf").unwrap();
        let pod = node.add_pod(&PodSpec::new(DEVICE).mac(MAC)).unwrap();
        let ifindex = node.netns().ifindex(DEVICE).unwrap();
        let (programs, reader) = node
            .netns()
            .run_in(|| Ok(Programs::load(options)?))
            .unwrap();
        assert_eq!(programs.neighbour_problem(), None);
        let sender = FrameSender::open(&pod).unwrap();
        Self {
            programs,
            reader,
            sender,
            ifindex,
            pod,
            node,
            markers: 0,
        }
    }

    /// Attaches to the pod's device, in the node's namespace.
    pub(crate) fn attach(&mut self) -> anyhow::Result<()> {
        self.attach_to(self.ifindex, DEVICE)
    }

    pub(crate) fn attach_to(&mut self, ifindex: IfIndex, device: &str) -> anyhow::Result<()> {
        let programs = &mut self.programs;
        self.node.netns().run_in(|| {
            programs.attach(ifindex, device)?;
            Ok(())
        })
    }

    /// The next observation that `wanted` selects; those before it are dropped.
    pub(crate) fn wait<T>(&mut self, mut wanted: impl FnMut(&TimedObservation) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut found = None;
            // One at a time: later observations stay in the ring.
            while found.is_none()
                && self
                    .reader
                    .drain(1, |stamped| found = wanted(&stamped))
                    .more
            {}
            if let Some(found) = found {
                return found;
            }
            let left = deadline
                .checked_duration_since(Instant::now())
                .expect("the observation was not received");
            let mut descriptors = [PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)];
            poll(&mut descriptors, PollTimeout::try_from(left).unwrap()).unwrap();
        }
    }

    /// Sends frames from the pod and returns the claims observed from them.
    pub(crate) fn claims_of(&mut self, frames: &[Frame]) -> Vec<FrameClaim> {
        for frame in frames {
            self.sender.send(frame).unwrap();
        }
        self.claims_so_far()
    }

    /// The claims of all frames sent before.
    pub(crate) fn claims_so_far(&mut self) -> Vec<FrameClaim> {
        let marker = Ipv4Addr::from(u32::from(MARKERS) + self.markers);
        self.markers += 1;
        self.sender.send(&Frame::announcement(MAC, marker)).unwrap();
        let mut claims = Vec::new();
        self.wait(|stamped| {
            let Observation::Frame(claim) = stamped.observation else {
                return None;
            };
            if claim.address == marker {
                return Some(());
            }
            claims.push(claim);
            None
        });
        claims
    }

    pub(crate) fn counts(&self) -> CounterValues {
        self.programs.counters().read().unwrap()
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.counts().get(counter)
    }

    /// An ARP claim of the pod, as observed.
    pub(crate) fn arp(&self, address: Ipv4Addr) -> FrameClaim {
        FrameClaim {
            ifindex: self.ifindex,
            kind: FrameKind::Arp,
            tentative: false,
            address: address.into(),
            mac: Mac(MAC.0),
            ether_source: Mac(MAC.0),
            vlan: Vlan::default(),
        }
    }

    /// Runs `tc` with the arguments in `line` in the node's namespace.
    pub(crate) fn tc(&self, line: &str) -> String {
        let words: Vec<&str> = std::iter::once("tc")
            .chain(line.split_whitespace())
            .collect();
        self.node.netns().exec(&words).unwrap()
    }
}

/// Polls until there is a value. At most, packets still have to pass another CPU's queue.
pub(crate) fn loop_until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    until(TIMEOUT, "the counters to add up", || {
        poll().context("not yet")
    })
    .unwrap()
}
