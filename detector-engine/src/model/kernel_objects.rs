//! The kernel's objects, as observations carry them: links, addresses, neighbour entries, forwarding
//! entries and routes, and what identifies them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{ascii::hex, names::named};

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Time from `earlier` to this one; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<std::time::Duration> for Timestamp {
    type Output = Self;

    fn add(self, rhs: std::time::Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// A hardware (link-layer) address of six bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `aa:bb:cc:dd:ee:ff`, in ASCII.
    #[must_use]
    pub fn text(self) -> [u8; 17] {
        let mut text = *b"00:00:00:00:00:00";
        for (digits, byte) in text.chunks_mut(3).zip(self.0) {
            digits[..2].copy_from_slice(&hex(byte));
        }
        text
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
    }
}

/// Not a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotMac;

impl std::str::FromStr for Mac {
    type Err = NotMac;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, NotMac> {
        let mut parts = text.split(':');
        let mut mac = [0; 6];
        for byte in &mut mac {
            let part = parts.next().ok_or(NotMac)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotMac)?;
        }
        if parts.next().is_some() {
            return Err(NotMac);
        }
        Ok(Self(mac))
    }
}

/// A kernel interface index, unique in the agent's network namespace at one moment. Never zero.
pub type IfIndex = u32;

/// An identifier that the agent's network namespace gives to another one (`IFLA_LINK_NETNSID`).
pub type NsId = i32;

/// VLAN tags of a claim: `outer` is the only tag or the outer one, `inner` is set for QinQ only.
/// VLAN ids, 1 to 4094 (a priority tag, id 0, counts as untagged).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Vlan {
    /// The only tag, or the outer of two.
    pub outer: Option<u16>,
    /// The inner of two tags.
    pub inner: Option<u16>,
}

/// The other end of a veth or netkit pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// The peer's namespace, as numbered by the agent's namespace.
    pub nsid: NsId,
    /// The peer's index inside that namespace.
    pub ifindex: IfIndex,
}

/// Who owns what is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    /// A link of the node.
    Link(IfIndex),
    /// The pod's end of a device.
    Peer(Peer),
    /// Internal interfaces of a pod, as far as they concern the device of this peer.
    Internal(Peer),
}

/// What kind of link it is, as far as detection distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// A device that a pod is attached to (selected by `--interfaces` or by default rules).
    Pod,
    /// A bridge, whose ports may be pod devices.
    Bridge,
    /// Another switch whose ports have it as their master (Open vSwitch).
    Switch,
    /// A VRF, with its routing table.
    Vrf {
        /// The number of the table.
        table: u32,
    },
    /// A VLAN interface.
    Vlan {
        /// The link that it is on.
        parent: IfIndex,
        /// Its VLAN id.
        id: u16,
        /// The protocol of its tags.
        protocol: VlanProtocol,
    },
    /// Any other link of the node: uplinks, tunnels, loopback.
    Other,
}

/// The protocol of VLAN tags. One link may have an interface of each with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VlanProtocol {
    /// IEEE 802.1Q, the default.
    Dot1Q,
    /// IEEE 802.1ad.
    Dot1Ad,
}

/// A link of the agent's network namespace as the kernel describes it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub ifindex: IfIndex,
    /// Its name, at most 15 bytes; converted lossily if it is not UTF-8.
    pub name: String,
    /// Its alias (`IFLA_IFALIAS`), which newer kindnet fills with the pod's name.
    pub alias: Option<String>,
    /// Its kind.
    pub kind: LinkKind,
    /// Its own hardware address.
    pub mac: Option<Mac>,
    /// The bridge (or other master) it is a port of.
    pub master: Option<IfIndex>,
    /// Its peer in another namespace.
    pub peer: Option<Peer>,
    /// A tap or tun device: its other end is a program, not an interface of a namespace.
    pub is_tap: bool,
    /// Administratively up (`IFF_UP`). The kernel drops the routes of a link that goes down without
    /// a notification.
    pub up: bool,
    /// Able to pass packets (`IFF_RUNNING`): up, and the other end of a pair is up too.
    pub running: bool,
    /// A bridge's VLAN filtering, if it is on.
    pub vlan_filtering: Option<VlanFiltering>,
}

/// VLAN filtering of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanFiltering {
    /// The PVID that its ports, and itself, get unless configured otherwise.
    pub default_pvid: Option<u16>,
}

/// The VLAN of untagged frames at a port of a bridge, or at the bridge itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortVlan {
    /// The port, or the bridge.
    pub ifindex: IfIndex,
    /// The PVID; `None` if untagged frames are dropped.
    pub pvid: Option<u16>,
}

/// An address assigned to a link, in the agent's namespace or in a pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AssignedAddress {
    /// The address (`IFA_LOCAL`, or `IFA_ADDRESS` if there is no local one).
    pub address: IpAddr,
    /// Its prefix length in bits.
    pub prefix_len: u8,
    /// The other end's address on a point-to-point link (`IFA_ADDRESS` if it differs).
    pub other_end: Option<IpAddr>,
    /// IPv6 duplicate address detection is running (`IFA_F_TENTATIVE`).
    pub tentative: bool,
    /// IPv6 duplicate address detection failed (`IFA_F_DADFAILED`).
    pub dad_failed: bool,
    /// The address was added without duplicate address detection (`IFA_F_NODAD`).
    pub no_dad: bool,
    /// The kernel formed it from a prefix that a router advertised (RFC 4862).
    pub autoconfigured: bool,
}

/// Identifies one assignment of an address on one link, as the kernel does.
///
/// IPv4 allows one local address several times if the prefixes differ, which for a point-to-point
/// address are those of the other end (`__inet_insert_ifa` in net/ipv4/devinet.c). IPv6 has each
/// address once, and changes its prefix in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssignmentId {
    /// The local address.
    pub address: IpAddr,
    /// The prefix that it is assigned with, without host bits; for IPv6 the address itself.
    pub prefix: IpNet,
}

impl AssignedAddress {
    /// Whether the first notification with this content came as the address was added. Linux announces an IPv6 address as
    /// tentative if it was added by hand (`inet6_addr_add`), and only once duplicate address detection has ended if it was
    /// autoconfigured (`addrconf_prefix_rcv_add_addr` in `net/ipv6/addrconf.c`).
    pub(crate) fn is_just_added(&self) -> bool {
        let is_detecting = self.tentative && !self.dad_failed;
        self.address.is_ipv4() || self.no_dad || is_detecting
    }

    /// Which assignment of the address this is.
    #[must_use]
    pub fn id(&self) -> AssignmentId {
        let address = self.address;
        let ipv4 = address.is_ipv4().then(|| {
            let other_end = self.other_end.unwrap_or(address);
            IpNet::new(other_end, self.prefix_len).ok()
        });
        AssignmentId {
            address,
            prefix: ipv4.flatten().map_or(address.into(), |net| net.trunc()),
        }
    }
}

named! {
    /// Neighbour unreachability states (`linux/neighbour.h`). The kernel reports one at a time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum NudState {
        /// No lladdr is known (`NONE`, `INCOMPLETE`), or resolution failed (`FAILED`).
        Invalid = "FAILED",
        /// Confirmed within the reachable time.
        Reachable = "REACHABLE",
        /// Known, but not confirmed within the reachable time.
        Stale = "STALE",
        /// Waiting to be probed.
        Delay = "DELAY",
        /// Being probed.
        Probe = "PROBE",
        /// Needs no resolution.
        NoArp = "NOARP",
        /// Set by an administrator or a CNI; never expires.
        Permanent = "PERMANENT",
    }
}

impl NudState {
    /// From `ndm_state` / `neighbour.nud_state` bits.
    #[must_use]
    pub fn from_bits(bits: u16) -> Self {
        match bits {
            0x80 => Self::Permanent,
            0x40 => Self::NoArp,
            0x02 => Self::Reachable,
            0x04 => Self::Stale,
            0x08 => Self::Delay,
            0x10 => Self::Probe,
            _ => Self::Invalid,
        }
    }

    /// The state with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut states = Self::ALL.into_iter();
        states.find(|state| state.name() == name)
    }
}

/// A neighbour entry of the agent's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// The device it belongs to: a pod device, or a bridge.
    pub ifindex: IfIndex,
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its hardware address; `None` if the kernel has none.
    pub lladdr: Option<Mac>,
    /// Its state.
    pub state: NudState,
}

/// A forwarding entry of a bridge, learned or set on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FdbEntry {
    /// The bridge.
    pub bridge: IfIndex,
    /// The port.
    pub port: IfIndex,
    /// The hardware address behind that port.
    pub mac: Mac,
    /// The VLAN it was learned in, on a VLAN-filtering bridge.
    pub vlan: Option<u16>,
}

/// A route of the agent's namespace from which a single receiving device follows, or that no device receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Destination prefix address.
    pub destination: IpAddr,
    /// Destination prefix length in bits.
    pub prefix_len: u8,
    /// Output device, or [`Route::NOWHERE`].
    pub ifindex: IfIndex,
    /// Priority; the lowest wins among equal prefixes.
    pub metric: u32,
    /// Routing table.
    pub table: u32,
}

/// The prefix length of one address alone.
pub(crate) fn host_prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The place of a route. The kernel may have several routes at one, and a new one may replace the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteKey {
    /// Destination prefix address.
    pub destination: IpAddr,
    /// Destination prefix length in bits.
    pub prefix_len: u8,
    /// Priority.
    pub metric: u32,
    /// The routing table.
    pub table: u32,
}

impl Route {
    /// Its place.
    #[must_use]
    pub fn key(&self) -> RouteKey {
        RouteKey {
            destination: self.destination,
            prefix_len: self.prefix_len,
            metric: self.metric,
            table: self.table,
        }
    }

    /// Whether it is the route to one address.
    pub(crate) fn is_to_host(&self) -> bool {
        self.prefix_len == host_prefix_len(self.destination)
    }

    /// The output device of a route that discards or rejects packets; no link has this index.
    pub const NOWHERE: IfIndex = 0;
}

/// The place of a route among others of its destination, metric and table: the kernel uses the
/// first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoutePlace {
    /// Before them (`ip route prepend`).
    First,
    /// After them (`ip route append`).
    Last,
}
