//! The kernel programs on the real kernel: what they publish, what they count, and what they leave alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use detector_agent::{
    detect::{FrameClaim, FrameKind, Mac, Neighbour, NudState, Observation, Stamped, Vlan},
    observe::ebpf::{EbpfOptions, Programs, RingReader},
};
use detector_testkit::{Frame, FrameSender, Mac as WireMac, Node, Pod, PodSpec};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(10);
const HOST_END: &str = "veth0";
const MAC: WireMac = WireMac([0x02, 0, 0, 0, 0, 0x0a]);

/// A node with one pod, and the programs on the pod's device.
struct World {
    programs: Programs,
    reader: RingReader,
    sender: FrameSender,
    ifindex: u32,
    _pod: Pod,
    node: Node,
}

impl World {
    fn new(options: &EbpfOptions) -> Self {
        // With RUST_LOG=debug a failing test shows what the verifier said. A second subscriber is refused: fine.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let node = Node::new("ebpf").unwrap();
        let pod = node.add_pod(&PodSpec::new(HOST_END).mac(MAC)).unwrap();
        let ifindex = node.netns().ifindex(HOST_END).unwrap();
        let (programs, reader) = node
            .netns()
            .run_in(|| {
                let (mut programs, reader) = Programs::load(options)?;
                programs.attach(ifindex, HOST_END)?;
                Ok((programs, reader))
            })
            .unwrap();
        assert_eq!(programs.neighbour_problem(), None);
        let sender = FrameSender::open(&pod).unwrap();
        Self {
            programs,
            reader,
            sender,
            ifindex,
            _pod: pod,
            node,
        }
    }

    /// The next observation that `wanted` picks.
    fn wait<T>(&mut self, mut wanted: impl FnMut(&Stamped) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut found = None;
            self.reader.drain(usize::MAX, |stamped| {
                if found.is_none() {
                    found = wanted(&stamped);
                }
            });
            if let Some(found) = found {
                return found;
            }
            let left = deadline
                .checked_duration_since(Instant::now())
                .expect("the observation did not come");
            let mut descriptors = [PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)];
            poll(&mut descriptors, PollTimeout::try_from(left).unwrap()).unwrap();
        }
    }

    /// The next claim made by a frame.
    fn frame(&mut self) -> FrameClaim {
        self.wait(|stamped| match stamped.what {
            Observation::Frame(claim) => Some(claim),
            _ => None,
        })
    }
}

#[test]
fn a_gratuitous_arp_on_a_veth_comes_out_as_a_claim() {
    let mut world = World::new(&EbpfOptions::default());
    let address = Ipv4Addr::new(10, 244, 2, 10);
    world
        .sender
        .send(&Frame::announcement(MAC, address))
        .unwrap();
    assert_eq!(
        world.frame(),
        FrameClaim {
            ifindex: world.ifindex,
            kind: FrameKind::Arp,
            tentative: false,
            address: address.into(),
            mac: Mac(MAC.0),
            ether_source: Mac(MAC.0),
            vlan: Vlan::default(),
        }
    );
}

#[test]
fn a_neighbour_entry_comes_out_with_its_state() {
    let mut world = World::new(&EbpfOptions::default());
    world
        .node
        .set_neighbour("10.244.2.11".parse().unwrap(), HOST_END, MAC, "permanent")
        .unwrap();
    let address: IpAddr = "10.244.2.11".parse().unwrap();
    let found = world.wait(|stamped| match stamped.what {
        Observation::Neighbour(found) if found.address == address => Some(found),
        _ => None,
    });
    assert_eq!(
        found,
        Neighbour {
            ifindex: world.ifindex,
            address,
            lladdr: Some(Mac(MAC.0)),
            state: NudState::Permanent
        }
    );
    assert!(world.programs.neighbour_events());
}
