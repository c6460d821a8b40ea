//! The input of the engine: one type for everything that the observers report.
//!
//! Observers keep these invariants:
//! - Observations of one source arrive in the kernel's order.
//! - A snapshot may be older than live observations that arrive while it is read.
//!   [`Observation::SnapshotStarted`] marks its start, so that the engine can prefer the newer live
//!   update for each item. Whatever was queued before that point is delivered before it: after an
//!   overrun the queue is emptied first, or an update from before the loss would take precedence
//!   over the snapshot.
//! - Live updates from before the end of a snapshot are delivered before [`Observation::Snapshot`].
//!   Otherwise a claim that the snapshot adds would meet a claim whose removal is still queued, and
//!   a conflict would be raised that never existed.

use std::{net::IpAddr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::model::{
    AssignedAddress, AssignmentId, FdbEntry, IfIndex, KnownPod, Link, Mac, Neighbour, NsId, Peer,
    PoolUpdate, PortVlan, Route, RouteAnswers, RoutePlace, RoutingChange, Snapshot, SnapshotScope,
    SnapshotToken, Timestamp, Vlan,
};

/// The protocol of a frame that carries a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FrameKind {
    /// ARP, RFC 826 and RFC 5227.
    Arp,
    /// Neighbour Discovery, RFC 4861 and RFC 4862.
    Ndp,
}

/// A claim in a frame that was seen at the ingress of a pod device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameClaim {
    /// The device it came in on.
    pub ifindex: IfIndex,
    /// Its protocol.
    pub kind: FrameKind,
    /// An ARP probe (RFC 5227) or a DAD solicitation (RFC 4862): the sender asks whether the
    /// address is free.
    pub tentative: bool,
    /// The claimed address.
    pub address: IpAddr,
    /// The hardware address claimed for it (ARP sender, NDP link-layer option, else the Ethernet
    /// source).
    pub mac: Mac,
    /// The frame's Ethernet source.
    pub ether_source: Mac,
    /// The frame's VLAN tags.
    pub vlan: Vlan,
}

/// A pod repeatedly sent ARP requests or neighbour solicitations for one address, as it does if
/// nothing answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnansweredProbe {
    /// The device it came in on.
    pub ifindex: IfIndex,
    /// The requested address.
    pub target: IpAddr,
    /// The sender's address in the requests.
    pub sender: IpAddr,
    /// The frames' VLAN tags.
    pub vlan: Vlan,
    /// Number of requests within five seconds.
    pub count: u16,
}

/// A pod sent a router advertisement (RFC 4861), as a router does. The frame's claim is an observation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterAdvertisement {
    /// The device it came in on.
    pub ifindex: IfIndex,
    /// The router's link-local address.
    pub source: IpAddr,
    /// The frame's VLAN tags.
    pub vlan: Vlan,
}

/// One change of the kernel's state, one frame, one snapshot, or what other sources know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A link appeared or changed; carries its present state.
    Link(Link),
    /// The link of this index left the agent's namespace.
    LinkGone(IfIndex),
    /// The PVID of a bridge's port, or of the bridge itself.
    PortVlan(PortVlan),
    /// The namespace with this id is gone, or the id was assigned to another one.
    NamespaceIdFreed(NsId),
    /// The pod's end of a pair moved to another namespace; no message is about the other end.
    PeerMoved(Peer),
    /// A link in another namespace appeared or changed; carries its present hardware address.
    PodLink(Peer, Mac),
    /// Notifications were lost, and those that follow are newer. A snapshot of the node repairs the
    /// loss; snapshots in flight are of no use for that.
    NotificationsLost,
    /// An address was added or changed on a link in another namespace.
    PodAddress(Peer, AssignedAddress),
    /// An assignment of an address was removed in another namespace; the link may have others of
    /// the same address.
    PodAddressGone(Peer, AssignmentId),
    /// An address was added to a link of the node itself.
    HostAddress(IfIndex, AssignedAddress),
    /// As [`Observation::PodAddressGone`], on a link of the node itself.
    HostAddressGone(IfIndex, AssignmentId),
    /// A neighbour entry was added or changed. [`NudState::Invalid`](crate::NudState::Invalid) withdraws it.
    Neighbour(Neighbour),
    /// The kernel removed a neighbour entry.
    NeighbourGone(IfIndex, IpAddr),
    /// A forwarding entry was added or moved to this port.
    Fdb(FdbEntry),
    /// A forwarding entry was removed or aged out.
    FdbGone(FdbEntry),
    /// A route was added in place of the first one of its destination, metric and table, if there
    /// was one.
    Route(Route),
    /// A route was added to those of its destination, metric and table, as the first or the last one.
    RouteInserted(Route, RoutePlace),
    /// A route was removed.
    RouteGone(Route),
    /// Something else changed that decides where packets go.
    RoutingChanged(RoutingChange),
    /// The kernel was asked where it sends the packets for some addresses.
    RoutesLookedUp(RouteAnswers),
    /// A pod sent a frame that claims an address.
    Frame(FrameClaim),
    /// A pod asked for one address again and again.
    UnansweredProbe(UnansweredProbe),
    /// A pod advertised itself as a router.
    RouterAdvertisement(RouterAdvertisement),
    /// A snapshot is about to be read: it will contain every change from before this point.
    SnapshotStarted(SnapshotToken),
    /// The same for a snapshot of a device that is compared with what the engine holds about it;
    /// differences are reported as [`Effect::Corrected`](crate::Effect::Corrected).
    SelfCheckStarted(SnapshotToken),
    /// That snapshot was read.
    Snapshot(SnapshotToken, SnapshotScope, Box<Snapshot>),
    /// That snapshot failed; another one replaces it.
    SnapshotFailed(SnapshotToken),
    /// What an IPAM has allocated. Its time is when that was read.
    Pool(PoolUpdate),
    /// What the sources of pods know of those behind devices.
    PodsKnown(PodsKnown),
    /// The names of the CNI networks of devices (index, generation, name). They matter for ports of switches other than
    /// bridges, whose networks the kernel does not show.
    NetworksKnown(Vec<(IfIndex, u64, Arc<str>)>),
    /// The kernel programs' table of claimed addresses has to be written as a whole.
    ClaimedTableLost,
    /// Time has passed: [`Engine::next_deadline`](crate::Engine::next_deadline) has come.
    DeadlineReached,
}

/// What the sources of pods know of those behind devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodsKnown {
    /// What matters for claims, by device (index and generation).
    pub records: Vec<(IfIndex, u64, KnownPod)>,
    /// The devices (index and generation) whose pod became known or changed: what is open about them is reported
    /// again.
    pub devices: Vec<(IfIndex, u64)>,
}

/// An observation with the kernel's timestamp (for netlink: when `recvmsg` returned).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedObservation {
    /// Its timestamp.
    pub at: Timestamp,
    /// The observation.
    pub observation: Observation,
}

impl TimedObservation {
    /// What was observed at this time.
    #[must_use]
    pub fn new(at: Timestamp, observation: Observation) -> Self {
        Self { at, observation }
    }
}
