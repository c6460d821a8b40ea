//! The output of the engine.

use std::{fmt, net::IpAddr, sync::Arc};

use crate::{
    model::{AnomalyEffect, AssignmentId, Claimant, Conflict, IfIndex, Mac, Network, Peer, Vlan},
    names::named,
};

/// What follows from an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A conflict was found.
    Raised(Arc<Conflict>),
    /// Its claimants, kind, confidence or traffic receiver changed.
    Updated(Arc<Conflict>),
    /// It ended: claimants of at most one pod, or the node alone, remain, or an address flaps no
    /// more.
    Resolved(Arc<Conflict>),
    /// A pod device appeared, or its peer became known or changed: attach to it, then read its
    /// namespace.
    Attach(PodDevice),
    /// The name or alias of a pod device changed.
    Renamed(PodDevice),
    /// A pod device was removed, or is no longer a pod device.
    Detach {
        /// The device.
        device: PodDevice,
        /// It was up at some time since it was known, so frames may have come in on it.
        was_up: bool,
    },
    /// Take another snapshot of the node: something was lost.
    Resync,
    /// A self-check found and corrected a difference from the kernel that no live update explains.
    Corrected(Discrepancy),
    /// Take a snapshot of a device: a bound that refused something has room again, an update of its
    /// addresses could not be applied, or something changed in the pod that only a snapshot shows.
    ReadDevice(PodDevice),
    /// Take another snapshot of the node, although nothing was lost.
    ReadNode(RereadReason),
    /// A bound refused something; reported once until it has refused nothing for ten minutes.
    BoundReached(BoundReached),
    /// An effect of anomalies.
    Anomaly(AnomalyEffect),
}

/// Why the node is read again although nothing was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RereadReason {
    /// There is room again at a bound of the node that refused something.
    Room,
    /// A bridge appeared after entries on it were reported.
    LateBridge,
    /// A bridge filters VLANs now, or has another default PVID: no notification names the PVIDs of
    /// its ports.
    VlanFiltering,
}

/// What was dropped at bounds, by kind. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounters {
    /// Claims of devices that already have
    /// [`Bounds::claims_per_device`](crate::Bounds::claims_per_device).
    pub claims: u64,
    /// Changes of the addresses of devices beyond
    /// [`Bounds::address_changes`](crate::Bounds::address_changes); the devices are read instead.
    pub address_changes: u64,
    /// Links.
    pub links: u64,
    /// Neighbour entries, forwarding entries and routes.
    pub kernel_entries: u64,
    /// Conflicts.
    pub conflicts: u64,
    /// Frames of devices that were unknown, or not yet known when the frame arrived.
    pub unknown_device: u64,
}

/// One claim, for the list of all claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedClaim {
    /// The claimed address.
    pub address: IpAddr,
    /// The network in which it is claimed.
    pub network: Network,
    /// VLAN tags.
    pub vlan: Vlan,
    /// The claimant, with its evidence.
    pub claimant: Claimant,
}

/// A bound refused something for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundReached {
    /// The device whose bound it is; `None` for a bound of the node.
    pub device: Option<PodDevice>,
    /// The bound.
    pub bound: BoundKind,
    /// Its value.
    pub limit: usize,
}

named! {
    /// A bound that may refuse what the kernel or a pod reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum BoundKind {
        /// Addresses assigned to the pod's end of a device.
        Addresses = "addresses of a pod device",
        /// Addresses in a pod's namespace on internal interfaces.
        InternalAddresses = "addresses on internal interfaces of a pod",
        /// Assignments of one address on one link.
        Assignments = "assignments of one address",
        /// Changes of the addresses assigned to the pod's end of a device, in a second.
        AddressChanges = "changes of the addresses of a pod device in a second",
        /// Claims that a device made in frames. They are not read again: a pod that still uses the
        /// address sends frames again.
        FrameClaims = "claims of a device in frames",
        /// Neighbour entries on one device.
        DeviceNeighbours = "neighbour entries of a pod device",
        /// Forwarding entries of one port.
        PortForwarding = "forwarding entries of a port",
        /// Links.
        Links = "links",
        /// Addresses of the node itself.
        HostAddresses = "addresses of the node",
        /// Neighbour entries of the node.
        Neighbours = "neighbour entries",
        /// Forwarding entries of the node.
        Forwarding = "forwarding entries",
        /// Routes.
        Routes = "routes",
    }
}

/// A pod device, as the attach worker and the pod lookups need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDevice {
    /// Its index.
    pub ifindex: IfIndex,
    /// Distinguishes devices that had the same index one after the other.
    pub generation: u64,
    /// Its name.
    pub name: String,
    /// Its alias.
    pub alias: Option<String>,
    /// The pod's end of it.
    pub peer: Option<Peer>,
}

/// A claim of a pod device with certain evidence, in what the node routes by its main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertainClaim {
    /// The claimant.
    pub claimant: Claimant,
    /// The address is on the pod's end of the device, and not on another interface of the pod.
    pub is_on_device: bool,
    /// The node's packets for the address go there; only derived if there are several claimants.
    pub receives_traffic: bool,
}

/// A part of what is known about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DevicePart {
    /// The pod's end of the device.
    Peer,
    /// Its master.
    Master,
    /// An address in the pod, with its prefix.
    Address(AssignmentId),
    /// The neighbour entry of the device with this address.
    Neighbour(IpAddr),
}

impl fmt::Display for DevicePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => write!(f, "peer"),
            Self::Master => write!(f, "master"),
            Self::Address(id) => write!(f, "address {} with prefix {}", id.address, id.prefix),
            Self::Neighbour(address) => write!(f, "neighbour {address}"),
        }
    }
}

/// What a part of a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartValue {
    /// Of [`DevicePart::Peer`].
    Peer(Peer),
    /// Of [`DevicePart::Master`].
    Link(IfIndex),
    /// Of [`DevicePart::Address`].
    Present,
    /// Of [`DevicePart::Neighbour`].
    Lladdr(Mac),
}

impl fmt::Display for PartValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(peer) => write!(f, "{peer:?}"),
            Self::Link(ifindex) => write!(f, "{ifindex}"),
            Self::Present => write!(f, "present"),
            Self::Lladdr(mac) => write!(f, "{mac}"),
        }
    }
}

/// A difference between the engine and the kernel that no live update explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discrepancy {
    /// The device's name.
    pub device: String,
    /// The device's index.
    pub ifindex: IfIndex,
    /// What differed.
    pub part: DevicePart,
    /// As the engine had it.
    pub believed: Option<PartValue>,
    /// As the kernel has it.
    pub kernel: Option<PartValue>,
}
