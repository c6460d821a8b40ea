//! Virtual addresses that move between pods (keepalived, kube-vip, MetalLB): behind a bridge the node's neighbour entry
//! follows the announcement, between routed devices the host route is replaced.

use anyhow::ensure;
use detector_testkit::{
    DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, http::TestClient, until, wait_reachable,
};

use crate::{
    kernel::{self, AttachedPod, Duplicate, Duplicates},
    layout::Layout,
};

const VIP: &str = "10.244.2.100";
const WITH_LENGTH: &str = "10.244.2.100/32";
const ALLOWED: [&str; 2] = ["--allow", "10.244.2.96/28"];
/// The default of `--flap-moves`.
const FLAP_MOVES: usize = 5;
const DEVICES: [&str; 2] = ["vetha", "vethb"];

#[derive(Clone, Copy)]
enum Path {
    Bridge,
    Route,
}

struct Vip {
    layout: Layout,
    pods: [Pod; 2],
    path: Path,
}

impl Vip {
    /// Two pods; the first has the VIP, and the node has resolved it.
    fn new(prefix: &str, path: Path, args: &[&str]) -> Self {
        let layout = Layout::with_args(prefix, args);
        let pods = match path {
            Path::Bridge => {
                layout.node.add_bridge("cni0", &["10.244.2.1/24"]).unwrap();
                let spec = |(device, last)| {
                    let spec = PodSpec::new(device).master("cni0").default_route();
                    spec.address(format!("10.244.2.{last}/24"))
                };
                [(DEVICES[0], 10), (DEVICES[1], 11)].map(spec)
            }
            Path::Route => DEVICES.map(|device| PodSpec::new(device).default_route()),
        };
        let pods = pods.map(|spec| layout.node.add_pod(&spec).unwrap());
        for pod in &pods {
            layout.node.wait_attached(pod.device()).unwrap();
        }
        let vip = Self { layout, pods, path };
        vip.take_over(&vip.pods[0]);
        if matches!(path, Path::Bridge) {
            wait_reachable(&vip.layout.node, VIP.parse().unwrap(), DEADLINE).unwrap();
        }
        vip
    }

    fn attached(&self) -> [&dyn AttachedPod; 2] {
        [&self.pods[0], &self.pods[1]]
    }

    /// As keepalived: the new holder assigns the address and announces it. A router replaces its route.
    fn take_over(&self, pod: &Pod) {
        pod.add_address(WITH_LENGTH).unwrap();
        let frame = Frame::gratuitous_reply(pod.mac(), VIP.parse().unwrap());
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
        if matches!(self.path, Path::Route) {
            let device = pod.device();
            self.layout
                .ip(&format!("route replace {WITH_LENGTH} dev {device}"));
        }
    }

    fn give_up(pod: &Pod) {
        pod.remove_address(WITH_LENGTH).unwrap();
    }

    /// Waits until the agent's claimants are the pods that have the VIP, and until the kernel sends to this device.
    fn expect_holders(&self, wanted: &[&str], receiver: &str) {
        let address = VIP.parse().unwrap();
        let client = TestClient::of_agent(&self.layout.node);
        until(DEADLINE, "the claims to be what the kernel has", || {
            let holders = kernel::holders(address, &self.attached())?;
            ensure!(
                holders == wanted,
                "{wanted:?} should have it, and {holders:?} have"
            );
            let used = self.receiver(&self.layout.node);
            ensure!(
                used.as_deref() == Some(receiver),
                "the node sends to {used:?}"
            );
            let claims = client
                .get(&format!("/api/v1/claims?address={VIP}"))?
                .json()?;
            let claims = claims["claims"].as_array().unwrap().iter();
            let mut devices: Vec<_> = claims
                .clone()
                .filter_map(|c| c["device"].as_str())
                .collect();
            devices.sort_unstable();
            ensure!(devices == holders, "{holders:?} have it: {claims:#?}");
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn receiver(&self, node: &Node) -> Option<String> {
        kernel::receiver(node, VIP.parse().unwrap()).unwrap()
    }

    /// Waits until the agent's conflicts are these.
    fn expect_reported(&self, wanted: &Duplicates) {
        until(DEADLINE, "the agent's conflicts", || {
            let reported = self.layout.reported()?;
            ensure!(reported == *wanted, "{reported:#?} instead of {wanted:#?}");
            Ok(())
        })
        .unwrap();
    }
}

/// Each move is seen, the first four are normal, and from the fifth on they are flapping.
fn moves_until_flapping(vip: &Vip) {
    let [mut holder, mut other] = vip.pods.each_ref();
    vip.expect_holders(&[holder.device()], holder.device());
    for number in 1..=FLAP_MOVES + 2 {
        if number % 2 == 0 {
            // An overlap: for a moment both have it.
            vip.take_over(other);
            vip.expect_holders(&DEVICES, other.device());
            Vip::give_up(holder);
        } else {
            Vip::give_up(holder);
            vip.take_over(other);
        }
        vip.expect_holders(&[other.device()], other.device());
        (holder, other) = (other, holder);
        let flapping = Duplicate {
            kind: "flapping".to_owned(),
            holders: DEVICES.map(str::to_owned).to_vec(),
            receiver: vip.receiver(&vip.layout.node),
        };
        let wanted = (number >= FLAP_MOVES).then(|| (VIP.parse().unwrap(), flapping));
        let events = vip.layout.events();
        assert_eq!(
            events.is_empty(),
            number < FLAP_MOVES,
            "move {number}: {events:#?}"
        );
        vip.expect_reported(&wanted.into_iter().collect());
    }
}

#[test]
fn allowed_address_moves_behind_a_bridge() {
    moves_until_flapping(&Vip::new("vipbridge", Path::Bridge, &ALLOWED));
}

#[test]
fn allowed_address_moves_between_routed_devices() {
    moves_until_flapping(&Vip::new("viproute", Path::Route, &ALLOWED));
}

/// Without `--allow`, every overlap is a conflict that ends with it, and an orderly handover is none.
fn overlaps_are_conflicts(vip: &Vip) {
    let [mut holder, mut other] = vip.pods.each_ref();
    for _ in 0..3 {
        vip.take_over(other);
        let overlap = [(VIP, &DEVICES[..], Some(other.device()))];
        vip.layout.expect(&vip.attached(), &overlap);
        Vip::give_up(holder);
        vip.layout.expect_none(&vip.attached());
        vip.expect_holders(&[other.device()], other.device());
        (holder, other) = (other, holder);
    }
    let before = vip.layout.events().len();
    for _ in 0..4 {
        Vip::give_up(holder);
        vip.take_over(other);
        vip.expect_holders(&[other.device()], other.device());
        (holder, other) = (other, holder);
    }
    let events = vip.layout.events();
    assert_eq!(events.len(), before, "orderly handover: {events:#?}");
    // The node takes it over too, as keepalived on the host does.
    vip.layout
        .ip(&format!("address add {WITH_LENGTH} dev eth0"));
    let with_node = [(VIP, &["eth0", holder.device()][..], Some("eth0"))];
    vip.layout.expect(&vip.attached(), &with_node);
    vip.layout
        .ip(&format!("address delete {WITH_LENGTH} dev eth0"));
    vip.layout.expect_none(&vip.attached());
    vip.layout.events();
}

#[test]
fn address_that_may_not_move_conflicts_behind_a_bridge() {
    overlaps_are_conflicts(&Vip::new("strictbridge", Path::Bridge, &[]));
}

#[test]
fn address_that_may_not_move_conflicts_between_routed_devices() {
    overlaps_are_conflicts(&Vip::new("strictroute", Path::Route, &[]));
}
