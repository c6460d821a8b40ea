//! Questions for the kernel about where it sends packets, its answers, and what may change them.

use std::net::IpAddr;

use crate::model::{IfIndex, Mac, NetworkId, RouteKey, Scope};

/// A question for the kernel: where does it send the node's packets for an address?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteQuery {
    /// The address.
    pub address: IpAddr,
    /// The VRF whose packets are meant; `None` for those outside of any.
    pub vrf: Option<IfIndex>,
}

impl RouteQuery {
    /// How to ask about an address in this scope; `None` if packets are not routed there.
    pub(crate) fn of(address: IpAddr, scope: Scope) -> Option<Self> {
        let vrf = match scope.network {
            NetworkId::Node => None,
            NetworkId::Vrf(vrf) => Some(vrf),
            NetworkId::Switch(_) | NetworkId::Cni(_) | NetworkId::Link(_) => return None,
        };
        (scope == Scope::untagged(scope.network)).then_some(Self { address, vrf })
    }
}

/// Where the kernel sends the node's packets for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteTarget {
    /// To itself: an address of the node, or a route of type `local`.
    Host,
    /// Nowhere: there is no route, or one that discards or rejects them.
    Nowhere,
    /// Out of a device that is not a bridge.
    Device(IfIndex),
    /// Out of a bridge.
    Bridge(BridgePath),
}

/// The path of packets behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BridgePath {
    /// The link that the node sends them out of: the bridge, or a VLAN interface on it.
    pub interface: IfIndex,
    /// The bridge.
    pub bridge: IfIndex,
    /// The gateway, or the address itself.
    pub next_hop: IpAddr,
    /// The hardware address that the next hop resolves to; `None` if it is unresolved.
    pub mac: Option<Mac>,
    /// The port to that hardware address.
    pub port: BridgePort,
}

/// What a bridge does with frames to a hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BridgePort {
    /// It sends them to this port.
    Forwarding(IfIndex),
    /// It drops them, because this port is down.
    Blocked(IfIndex),
    /// It has no forwarding entry, and floods them.
    Unknown,
}

/// The outcome of a batch of lookups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteAnswers {
    /// What the kernel answered.
    pub found: Vec<(RouteQuery, RouteTarget)>,
    /// What it could not be asked; it is asked again.
    pub failed: Vec<RouteQuery>,
}

/// A change that affects where packets go, beyond the routes that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoutingChange {
    /// Policy rules or next-hop objects.
    Policy,
    /// Some route of this destination and prefix length that is not stored: of another type, for a
    /// type of service, over several next hops.
    Destination(IpAddr, u8),
    /// The same, of one that took the place of a stored route. The kernel reports nothing else of the replaced one.
    Replaced(RouteKey),
    /// The state of a bridge's port.
    Port(IfIndex),
}
