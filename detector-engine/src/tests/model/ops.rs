//! Random sequences of operations on a node.

use proptest::{prelude::*, sample::select};

use super::super::*;
use crate::tests::model::world::{BRIDGES, UPLINK};

/// Where the peer of a new pod device is.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerPlace {
    /// In a namespace of its own, to which the kernel has given an nsid already or will later.
    Own { numbered: bool },
    /// A second interface of the pod of another device.
    SecondInterface(IfIndex),
    /// In a namespace that has the nsid of a dying one.
    ReusedNetns(IfIndex),
    /// Not visible to the node, as behind a tap.
    None,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Create {
        ifindex: IfIndex,
        place: PeerPlace,
        readable: bool,
        master: Option<IfIndex>,
        has: Vec<IpAddr>,
        /// The hardware address of the peer, if it is not its own.
        shared_mac: Option<Mac>,
    },
    /// The interface in a pod gets another hardware address.
    SetMac(IfIndex, Mac),
    Delete(IfIndex),
    NumberPeer(IfIndex),
    Enslave(IfIndex, Option<IfIndex>),
    SetUp(IfIndex, bool),
    /// The carrier of a link is lost, or returns.
    SetCarrier(IfIndex, bool),
    FilterVlans(IfIndex, bool),
    SetPvid(IfIndex, Option<u16>),
    Rename(IfIndex),
    CreateBridge(IfIndex),
    DeleteBridge(IfIndex, bool),
    Assign(IfIndex, IpAddr),
    /// An address whose duplicate address detection has failed before the kernel reports it.
    AssignFailed(IfIndex, IpAddr),
    Unassign(IfIndex, IpAddr),
    /// An address is added to an internal interface of a pod, or removed from it.
    SetInternal(IfIndex, IpAddr, bool),
    Host(IfIndex, IpAddr),
    RemoveHost(IfIndex, IpAddr),
    Neighbour(IfIndex, IpAddr, Mac, NudState),
    NeighbourGone(IfIndex, IpAddr),
    LearnFdb(IfIndex, IfIndex, Mac),
    AgeFdb(IfIndex, Mac),
    Route(IpAddr, IfIndex),
    RouteGone(IpAddr),
    RouteReplaced(IpAddr),
    /// A policy rule that discards the packets for an address, or sends them over a link.
    Rule(IpAddr, Option<IfIndex>),
    RuleGone(IpAddr),
    /// The kernel answers the pending route lookups; the agent gets the answers later.
    StartLookups,
    FinishLookups,
    Frame {
        ifindex: IfIndex,
        address: IpAddr,
        vlan: Vlan,
        tentative: bool,
        late: u64,
    },
    StartSnapshot(SnapshotScope),
    StartSelfCheck(IfIndex),
    DumpSnapshot(usize),
    FinishSnapshot(usize),
    FailSnapshot(usize),
    Wait(u64),
    /// From here on no observation reaches the agent.
    Lose,
    /// The agent is down for this many seconds.
    Restart(u64),
    /// The next step of the recovery from a loss or a restart.
    Recover,
}

pub(super) fn addresses() -> [IpAddr; 4] {
    ["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"].map(ip)
}

/// What a sequence is mostly about: few kinds of operations on few devices, so that they interact.
#[derive(Clone, Copy, Debug)]
struct Theme {
    pods: IfIndex,
    addresses: usize,
    macs: u8,
    topology: u32,
    hardware: u32,
    assigned: u32,
    host: u32,
    neighbours: u32,
    forwarding: u32,
    frames: u32,
    snapshots: u32,
    waits: u32,
    losses: u32,
}

const EVERYTHING: Theme = Theme {
    pods: 5,
    addresses: 4,
    macs: 4,
    topology: 10,
    hardware: 2,
    assigned: 8,
    host: 4,
    neighbours: 7,
    forwarding: 6,
    frames: 5,
    snapshots: 6,
    waits: 2,
    losses: 6,
};

const THEMES: [Theme; 6] = [
    EVERYTHING,
    // Pods behind bridges.
    Theme {
        pods: 3,
        addresses: 1,
        macs: 3,
        topology: 4,
        neighbours: 14,
        forwarding: 10,
        frames: 2,
        losses: 1,
        ..EVERYTHING
    },
    // Hardware addresses on two ports.
    Theme {
        pods: 4,
        addresses: 1,
        macs: 3,
        topology: 8,
        hardware: 8,
        assigned: 2,
        host: 0,
        neighbours: 2,
        forwarding: 16,
        frames: 2,
        waits: 8,
        losses: 3,
        ..EVERYTHING
    },
    // Frames, probes, and expiry.
    Theme {
        pods: 3,
        addresses: 1,
        topology: 3,
        neighbours: 2,
        forwarding: 1,
        frames: 20,
        waits: 5,
        losses: 1,
        ..EVERYTHING
    },
    // Devices that appear and disappear, with many snapshots and losses.
    Theme {
        pods: 2,
        addresses: 1,
        topology: 14,
        forwarding: 3,
        snapshots: 14,
        waits: 1,
        losses: 10,
        ..EVERYTHING
    },
    // Pods without bridges.
    Theme {
        pods: 3,
        addresses: 2,
        macs: 2,
        topology: 5,
        assigned: 12,
        neighbours: 12,
        forwarding: 0,
        losses: 2,
        ..EVERYTHING
    },
];

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    select(THEMES.to_vec()).prop_flat_map(|theme| proptest::collection::vec(op(theme), 1..80))
}

fn op(theme: Theme) -> impl Strategy<Value = Op> {
    let pod = move || 1..=theme.pods;
    let bridge = || select(BRIDGES.to_vec());
    let anywhere = move || prop_oneof![2 => pod(), 1 => Just(UPLINK), 1 => bridge()];
    let bridge_or_pod =
        move || prop_oneof![u32::from(theme.forwarding > 0) => bridge(), 1 => pod()].boxed();
    let address = move || select(addresses()[4 - theme.addresses..].to_vec());
    let address = move || {
        // The first one is a plain IPv4 address in every theme.
        prop_oneof![1 => Just(addresses()[0]), 1 => address()]
    };
    let macs = move || (1..=theme.macs).prop_map(mac);
    let vlan = select(vec![
        Vlan::default(),
        Vlan::default(),
        Vlan::default(),
        Vlan {
            outer: Some(5),
            inner: None,
        },
        Vlan {
            outer: Some(5),
            inner: Some(6),
        },
    ]);
    let state = select(vec![
        NudState::Reachable,
        NudState::Reachable,
        NudState::Stale,
        NudState::Stale,
        NudState::Delay,
        NudState::Probe,
        NudState::Permanent,
        NudState::NoArp,
    ]);
    let place = prop_oneof![
        6 => Just(PeerPlace::Own { numbered: true }),
        1 => Just(PeerPlace::Own { numbered: false }),
        2 => pod().prop_map(PeerPlace::SecondInterface),
        1 => pod().prop_map(PeerPlace::ReusedNetns),
        1 => Just(PeerPlace::None),
    ];
    let scope = prop_oneof![
        Just(SnapshotScope::Node),
        pod().prop_map(SnapshotScope::Device)
    ];
    let create = (
        pod(),
        place,
        proptest::bool::weighted(0.8),
        proptest::option::of(bridge()),
        proptest::collection::vec(address(), 0..2),
        proptest::option::weighted(0.3, macs()),
    );
    let topology = prop_oneof![
        8 => create.prop_map(|(ifindex, place, readable, master, has, shared_mac)| Op::Create {
            ifindex, place, readable, master, has, shared_mac,
        }),
        3 => pod().prop_map(Op::Delete),
        1 => pod().prop_map(Op::NumberPeer),
        2 => (pod(), proptest::option::of(bridge())).prop_map(|(p, b)| Op::Enslave(p, b)),
        1 => (anywhere(), any::<bool>()).prop_map(|(i, up)| Op::SetUp(i, up)),
        1 => (anywhere(), any::<bool>()).prop_map(|(i, has)| Op::SetCarrier(i, has)),
        1 => (bridge(), any::<bool>()).prop_map(|(b, on)| Op::FilterVlans(b, on)),
        2 => (bridge_or_pod(), select(vec![None, Some(5), Some(7)]))
            .prop_map(|(i, pvid)| Op::SetPvid(i, pvid)),
        2 => pod().prop_map(Op::Rename),
        2 => bridge().prop_map(Op::CreateBridge),
        1 => (bridge(), any::<bool>()).prop_map(|(b, first)| Op::DeleteBridge(b, first)),
    ];
    let assigned = prop_oneof![
        3 => (pod(), address()).prop_map(|(i, a)| Op::Assign(i, a)),
        1 => (pod(), address()).prop_map(|(i, a)| Op::AssignFailed(i, a)),
        2 => (pod(), address()).prop_map(|(i, a)| Op::Unassign(i, a)),
        1 => (pod(), address(), any::<bool>()).prop_map(|(i, a, on)| Op::SetInternal(i, a, on)),
    ];
    let host = prop_oneof![
        2 => (anywhere(), address()).prop_map(|(i, a)| Op::Host(i, a)),
        2 => (anywhere(), address()).prop_map(|(i, a)| Op::RemoveHost(i, a)),
        2 => (address(), anywhere()).prop_map(|(a, i)| Op::Route(a, i)),
        1 => address().prop_map(|a| Op::Route(a, Route::NOWHERE)),
        1 => address().prop_map(Op::RouteGone),
        1 => address().prop_map(Op::RouteReplaced),
        1 => (address(), proptest::option::of(anywhere())).prop_map(|(a, i)| Op::Rule(a, i)),
        1 => address().prop_map(Op::RuleGone),
        1 => Just(Op::StartLookups),
        1 => Just(Op::FinishLookups),
    ];
    let neighbours = prop_oneof![
        4 => (bridge_or_pod(), address(), macs(), state)
            .prop_map(|(i, a, m, s)| Op::Neighbour(i, a, m, s)),
        1 => (bridge_or_pod(), address()).prop_map(|(i, a)| Op::NeighbourGone(i, a)),
    ];
    let forwarding = prop_oneof![
        5 => (bridge(), pod(), macs()).prop_map(|(b, p, m)| Op::LearnFdb(b, p, m)),
        2 => (bridge(), macs()).prop_map(|(b, m)| Op::AgeFdb(b, m)),
    ];
    let frames = (
        pod(),
        address(),
        vlan,
        proptest::bool::weighted(0.4),
        0..4u64,
    )
        .prop_map(|(ifindex, address, vlan, tentative, late)| Op::Frame {
            ifindex,
            address,
            vlan,
            tentative,
            late,
        });
    let snapshots = prop_oneof![
        2 => scope.prop_map(Op::StartSnapshot),
        1 => pod().prop_map(Op::StartSelfCheck),
        2 => (0..3usize).prop_map(Op::DumpSnapshot),
        2 => (0..3usize).prop_map(Op::FinishSnapshot),
        1 => (0..3usize).prop_map(Op::FailSnapshot),
    ];
    let losses = prop_oneof![
        1 => Just(Op::Lose),
        1 => select(vec![0, 30, 120, 650]).prop_map(Op::Restart),
        4 => Just(Op::Recover),
    ];
    prop_oneof![
        theme.topology => topology,
        theme.hardware => (pod(), macs()).prop_map(|(i, m)| Op::SetMac(i, m)),
        theme.assigned => assigned,
        theme.host => host,
        theme.neighbours => neighbours,
        theme.forwarding => forwarding,
        theme.frames => frames,
        theme.snapshots => snapshots,
        theme.waits => select(vec![1, 4, 30, 61, 120, 181, 301, 601]).prop_map(Op::Wait),
        theme.losses => losses,
    ]
}
