//! Which addresses can be claimed at all, and the scope within which two claims conflict
//! (`docs/detection-rules.md`, sections 2 and 4).

use std::net::IpAddr;

use super::{
    claimants::ClaimContext,
    cni_networks::CniNetworkId,
    network::Network,
    observation::{IfIndex, Vlan},
    topology::L2Domain,
};

/// Identifies a network. The network namespace is always the agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum NetworkId {
    /// The routing domain of the main table.
    Node,
    /// The routing domain of a VRF.
    Vrf(IfIndex),
    /// The L2 domain of a bridge, or of another switch, that the node does not route.
    Switch(IfIndex),
    /// A network of a switch other than a bridge, which the CNI results of its ports name.
    Cni(CniNetworkId),
    /// One link, for a link-local address: that of a bridge and its ports, or of a device alone.
    Link(IfIndex),
}

impl NetworkId {
    /// The link that identifies it.
    pub(super) fn link(self) -> Option<IfIndex> {
        match self {
            Self::Node | Self::Cni(_) => None,
            Self::Vrf(link) | Self::Switch(link) | Self::Link(link) => Some(link),
        }
    }

    /// The network of a persisted conflict, with the link that identifies it.
    pub(super) fn of_record(address: IpAddr, network: &Network, link: Option<IfIndex>) -> Self {
        match (network, link) {
            (_, None) => Self::Node,
            (Network::Vrf(_), Some(link)) => Self::Vrf(link),
            // A record from before networks had names has a link only for a link-local address.
            (_, Some(link)) if is_link_local(address) => Self::Link(link),
            (_, Some(link)) => Self::Switch(link),
        }
    }
}

/// Two claims of one address conflict only within one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Scope {
    pub(super) network: NetworkId,
    /// VLAN tags of the claim; none if its VLAN is routed.
    pub(super) vlan: Vlan,
}

impl Scope {
    /// Untagged in this network.
    pub(super) const fn untagged(network: NetworkId) -> Self {
        let vlan = Vlan {
            outer: None,
            inner: None,
        };
        Self { network, vlan }
    }
}

/// Untagged claims in what the node routes by its main table: that is where IPAM's addresses are.
pub(super) const NODE_WIDE: Scope = Scope::untagged(NetworkId::Node);

impl ClaimContext<'_> {
    /// The scope of a claim that a pod makes with these tags on a link, or that the node's
    /// neighbour table has for a bridge.
    pub(super) fn scope(&self, address: IpAddr, vlan: Vlan, ifindex: IfIndex) -> Scope {
        let domain = self.mirror.links.l2_domain(ifindex, vlan);
        let scope = self.network_scope(address, domain, ifindex);
        self.within_link(address, domain, scope)
    }

    /// The scope of an address of the node itself.
    pub(super) fn host_scope(&self, address: IpAddr, ifindex: IfIndex) -> Scope {
        let domain = self.mirror.links.l2_domain(ifindex, Vlan::default());
        let scope = Scope::untagged(self.mirror.links.routing_domain(ifindex));
        self.within_link(address, domain, scope)
    }

    fn network_scope(&self, address: IpAddr, domain: L2Domain, ifindex: IfIndex) -> Scope {
        let L2Domain { switch, vlan } = domain;
        if self.mirror.links.is_bridge(switch) {
            let own = self.mirror.links.own_interface(domain);
            let routed = own.filter(|own| self.is_routed(*own, address));
            return routed.map_or(
                Scope {
                    network: NetworkId::Switch(switch),
                    vlan,
                },
                |own| Scope::untagged(self.mirror.links.routing_domain(own)),
            );
        }
        let network = if switch == ifindex {
            self.mirror.links.routing_domain(ifindex)
        } else {
            self.port_network(switch, ifindex)
        };
        Scope { network, vlan }
    }

    /// The network of a port of a switch other than a bridge.
    fn port_network(&self, switch: IfIndex, ifindex: IfIndex) -> NetworkId {
        let port = self.mirror.links.get(ifindex);
        match port.map(|port| (port.cni_network, port.awaits_network)) {
            Some((Some(network), _)) => NetworkId::Cni(network),
            Some((None, true)) => NetworkId::Link(ifindex),
            _ => NetworkId::Switch(switch),
        }
    }

    /// Whether the node has an address of the family of `address` on a link, or a route to it.
    fn is_routed(&self, ifindex: IfIndex, address: IpAddr) -> bool {
        self.mirror.facts.presence.has(ifindex, address)
            || self.mirror.routes.presence.has(ifindex, address)
    }

    /// Link-local addresses are unique on one link only, unless the node routes this one to a pod.
    fn within_link(&self, address: IpAddr, domain: L2Domain, scope: Scope) -> Scope {
        if !is_link_local(address) || self.is_routed_to_pod(address, scope.network) {
            return scope;
        }
        Scope {
            network: NetworkId::Link(domain.switch),
            vlan: domain.vlan,
        }
    }

    /// Whether a host route of a network leads to a pod device: Amazon's plugin gives pods
    /// addresses of 169.254.172.0/22 that are unique on the node.
    fn is_routed_to_pod(&self, address: IpAddr, network: NetworkId) -> bool {
        self.mirror.routes.host_routes(address).any(|route| {
            self.mirror.links.domain_of_table(route.table) == network
                && self.mirror.links.pod(route.ifindex).is_some()
        })
    }

    /// The name of a network.
    pub(super) fn network(&self, id: NetworkId) -> Network {
        let name = |ifindex| {
            let link = self.mirror.links.get(ifindex);
            link.map_or_else(|| ifindex.to_string(), |l| l.link.name.clone())
        };
        match id {
            NetworkId::Node => Network::Node,
            NetworkId::Vrf(vrf) => Network::Vrf(name(vrf)),
            NetworkId::Cni(id) => Network::Cni(self.mirror.links.cni_networks.name(id).to_owned()),
            NetworkId::Switch(switch) => Network::Bridge(name(switch)),
            NetworkId::Link(link) if self.mirror.links.is_switch(link) => {
                Network::Bridge(name(link))
            }
            NetworkId::Link(link) => Network::Link(name(link)),
        }
    }
}

/// Whether an address can belong to one pod: not unspecified, loopback, multicast, broadcast or
/// reserved.
pub(super) fn is_claimable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            // 0/8 "this network" and 127/8 never leave a host; 224/4 and 240/4 are not unicast (RFC
            // 6890).
            first != 0 && first != 127 && first < 224
        }
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_loopback() && !v6.is_multicast(),
    }
}

/// Addresses that are unique only on one link: 169.254/16 (RFC 3927) and fe80::/10 (RFC 4291).
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether `address` on an interface shows that the kernel's stack is in charge of `other` there
/// too: it has the same family, and is not link-local unless `other` is.
pub(super) fn is_like(address: IpAddr, other: IpAddr) -> bool {
    address.is_ipv4() == other.is_ipv4() && (is_link_local(other) || !is_link_local(address))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that cannot go on fails")]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn addresses_no_pod_can_own_are_not_claimable() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
        ] {
            assert!(!is_claimable(ip(text)), "{text}");
        }
        for text in [
            "10.0.0.1",
            "169.254.1.1",
            "223.255.255.1",
            "fe80::1",
            "2001:db8::1",
        ] {
            assert!(is_claimable(ip(text)), "{text}");
        }
    }

    #[test]
    fn link_local_covers_both_families() {
        assert!(
            is_link_local(ip("169.254.0.1"))
                && is_link_local(ip("fe80::1"))
                && is_link_local(ip("febf::1"))
        );
        assert!(!is_link_local(ip("169.253.0.1")) && !is_link_local(ip("fec0::1")));
    }
}
