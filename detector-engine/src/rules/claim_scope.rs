//! The scope of a claim: the network and the VLAN in which it counts (`docs/detection-rules.md`, section 4).

use std::net::IpAddr;

use crate::{
    mirror::{links::LinkState, topology::L2Domain},
    model::{IfIndex, Link, LinkKind, Network, NetworkId, Scope, Vlan, is_link_local},
    rules::claimants::ClaimContext,
};

impl ClaimContext<'_> {
    /// The scope of a claim that a pod makes with these tags on a link, or that the node's
    /// neighbour table has for a bridge.
    pub(crate) fn scope(&self, address: IpAddr, vlan: Vlan, link: &LinkState) -> Scope {
        let domain = self.mirror.links.l2_domain(&link.link, vlan);
        let scope = self.network_scope(address, domain, link);
        self.within_link(address, domain, scope)
    }

    /// The scope of an address of the node itself.
    pub(crate) fn host_scope(&self, address: IpAddr, link: &Link) -> Scope {
        let domain = self.mirror.links.l2_domain(link, Vlan::default());
        let scope = Scope::untagged(self.mirror.links.routing_domain(link));
        self.within_link(address, domain, scope)
    }

    fn network_scope(&self, address: IpAddr, domain: L2Domain, link: &LinkState) -> Scope {
        let L2Domain { switch, vlan } = domain;
        let has_switch = switch != link.link.ifindex;
        let is_bridge = match has_switch {
            true => self.mirror.links.is_bridge(switch),
            false => link.link.kind == LinkKind::Bridge,
        };
        if is_bridge {
            let own = self.mirror.links.own_interface(domain);
            let routed = own.filter(|own| self.is_routed(own.ifindex, address));
            return routed.map_or(
                Scope {
                    network: NetworkId::Switch(switch),
                    vlan,
                },
                |own| Scope::untagged(self.mirror.links.routing_domain(own)),
            );
        }
        let network = match has_switch {
            true => port_network(switch, link),
            false => self.mirror.links.routing_domain(&link.link),
        };
        Scope { network, vlan }
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
    pub(crate) fn network(&self, id: NetworkId) -> Network {
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

/// The network of a port of a switch other than a bridge.
fn port_network(switch: IfIndex, port: &LinkState) -> NetworkId {
    match (port.cni_network, port.awaits_network) {
        (Some(network), _) => NetworkId::Cni(network),
        (None, true) => NetworkId::Link(port.link.ifindex),
        (None, false) => NetworkId::Switch(switch),
    }
}
