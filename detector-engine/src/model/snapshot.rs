//! Snapshots: full dumps of the kernel's state, of the node or of one device.

use std::net::IpAddr;

use crate::model::{
    AssignedAddress, FdbEntry, IfIndex, Link, Mac, Neighbour, Peer, PortVlan, Route,
};

/// Identifies one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotToken(pub u64);

/// What a snapshot covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotScope {
    /// Everything.
    Node,
    /// One device: the link itself, the addresses in its pod's namespace, and its neighbours.
    Device(IfIndex),
}

/// On which interface of a pod's namespace, other than the device's peer, an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternalPlace {
    /// On `lo` or a dummy, and the pod answers for it on the device.
    Local,
    /// The same, but the pod does not answer for it: Linux answers NDP only for addresses of the
    /// interface itself, and ARP with `arp_ignore` likewise.
    LocalSilent,
    /// On a macvlan or ipvlan interface on top of the device's peer: the pod answers for it.
    Above,
}

/// How many addresses on internal interfaces of one namespace a snapshot contains at most.
pub const MAX_INTERNAL_ADDRESSES: usize = 16_384;

/// An address on an internal interface of a pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalAddress {
    /// The address.
    pub address: IpAddr,
    /// The name of the interface that has it.
    pub interface: String,
    /// The hardware address that it answers with, if it is not the device's peer's.
    pub mac: Option<Mac>,
    /// On which kind of interface it is.
    pub place: InternalPlace,
}

/// The addresses on the peer of one pod device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddresses {
    /// The peer link that has the addresses.
    pub peer: Peer,
    /// The hardware address of the peer link.
    pub mac: Option<Mac>,
    /// The addresses; `None` if the namespace could not be read (it is gone, or the kernel
    /// refused).
    pub addresses: Option<Vec<AssignedAddress>>,
    /// There are more addresses than are listed: one that is absent need not be gone.
    pub is_truncated: bool,
    /// The addresses on internal interfaces.
    pub internal: Vec<InternalAddress>,
    /// There are more of those than are listed.
    pub is_missing_internal: bool,
}

/// The lists of a [`Snapshot`] that omit objects beyond a bound: one that is absent there need not
/// be gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one independent flag for each list"
)]
pub struct TruncatedLists {
    /// [`Snapshot::links`].
    pub links: bool,
    /// [`Snapshot::host`].
    pub host: bool,
    /// [`Snapshot::neighbours`].
    pub neighbours: bool,
    /// [`Snapshot::fdb`].
    pub fdb: bool,
    /// [`Snapshot::routes`].
    pub routes: bool,
}

/// A dump of the kernel's state. For [`SnapshotScope::Device`] only `links`, `pods` and
/// `neighbours` are filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Links of the agent's namespace.
    pub links: Vec<Link>,
    /// The PVIDs of bridges that filter VLANs, and of their ports.
    pub port_vlans: Vec<PortVlan>,
    /// Addresses in the namespaces of pod devices.
    pub pods: Vec<PodAddresses>,
    /// Addresses on the node's own links, by link.
    pub host: Vec<(IfIndex, AssignedAddress)>,
    /// Neighbours on pod devices and bridges.
    pub neighbours: Vec<Neighbour>,
    /// Bridge forwarding entries.
    pub fdb: Vec<FdbEntry>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Which of these lists are incomplete.
    pub truncated: TruncatedLists,
}
