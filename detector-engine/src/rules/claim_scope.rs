//! The scope of a claim: the network and the VLAN in which it counts (`docs/detection-rules.md`, section 4).

use std::net::IpAddr;

use crate::{
    mirror::topology::L2Domain,
    model::{IfIndex, Network, NetworkId, Scope, Vlan, is_link_local},
    rules::claimants::ClaimContext,
};

impl ClaimContext<'_> {
    /// The scope of a claim that a pod makes with these tags on a link, or that the node's
    /// neighbour table has for a bridge.
    pub(crate) fn scope(&self, address: IpAddr, vlan: Vlan, ifindex: IfIndex) -> Scope {
        let domain = self.mirror.links.l2_domain(ifindex, vlan);
        let scope = self.network_scope(address, domain, ifindex);
        self.within_link(address, domain, scope)
    }

    /// The scope of an address of the node itself.
    pub(crate) fn host_scope(&self, address: IpAddr, ifindex: IfIndex) -> Scope {
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
