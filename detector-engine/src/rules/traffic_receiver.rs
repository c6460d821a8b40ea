//! Which claimant receives the traffic of an address.

use std::net::IpAddr;

use crate::{
    model::{
        BridgePort, Claimant, ClaimantId, IfIndex, Mac, NetworkId, RouteQuery, RouteTarget, Scope,
        Vlan,
    },
    rules::claimants::ClaimContext,
};

impl ClaimContext<'_> {
    /// The one of `claimants` that receives the node's packets for `address`
    /// (`docs/detection-rules.md`, section 11): the one in the kernel's last answer if it was
    /// asked, else the one that follows from the stored routes.
    pub(crate) fn traffic_receiver<'c>(
        &self,
        address: IpAddr,
        scope: Scope,
        claimants: &'c [Claimant],
    ) -> Option<&'c Claimant> {
        let query = RouteQuery::of(address, scope);
        match query.and_then(|query| self.mirror.route_lookups.answer(query)) {
            Some(target) => self.looked_up_receiver(*target, claimants),
            None => self.derived_receiver(address, scope, claimants),
        }
    }

    fn looked_up_receiver<'c>(
        &self,
        target: RouteTarget,
        claimants: &'c [Claimant],
    ) -> Option<&'c Claimant> {
        match target {
            RouteTarget::Nowhere => None,
            RouteTarget::Host => claimants.iter().find(|c| c.id == ClaimantId::Host),
            RouteTarget::Device(ifindex) => device_claimant(ifindex, claimants),
            RouteTarget::Bridge(path) => match path.port {
                BridgePort::Forwarding(port) => device_claimant(port, claimants)
                    .or_else(|| claimant_behind(path.bridge, path.mac?, claimants)),
                BridgePort::Blocked(_) => None,
                BridgePort::Unknown => self.receiver_behind(path.bridge, path.mac?, claimants),
            },
        }
    }

    /// As [`Self::traffic_receiver`], by the stored routes alone.
    pub(crate) fn derived_receiver<'c>(
        &self,
        address: IpAddr,
        scope: Scope,
        claimants: &'c [Claimant],
    ) -> Option<&'c Claimant> {
        // The node delivers its own addresses locally: the local table is consulted first.
        if let Some(host) = claimants.iter().find(|c| c.id == ClaimantId::Host) {
            return Some(host);
        }
        // Routes are untagged. For link-local addresses the sender chooses the link, not the
        // routes; to an isolated L2 domain the node sends nothing.
        if scope.vlan != Vlan::default() {
            return None;
        }
        let out = match scope.network {
            NetworkId::Link(link) => link,
            NetworkId::Switch(_) | NetworkId::Cni(_) => return None,
            NetworkId::Node | NetworkId::Vrf(_) => {
                let in_table = |table| self.mirror.links.domain_of_table(table) == scope.network;
                self.mirror.routes.lookup(address, in_table)?
            }
        };
        if !self.mirror.links.is_bridge(out) {
            return device_claimant(out, claimants);
        }
        let entry = self.mirror.facts.get(address)?.neighbour_on(out)?;
        self.receiver_behind(out, entry.lladdr, claimants)
    }

    /// The claimant behind a bridge that has a hardware address: a port that is down passes
    /// nothing, and a quiet pod stays behind the port where it was seen last.
    fn receiver_behind<'c>(
        &self,
        bridge: IfIndex,
        mac: Mac,
        claimants: &'c [Claimant],
    ) -> Option<&'c Claimant> {
        match self.mirror.fdb.port(bridge, mac) {
            Some(port) if self.mirror.links.is_running(port) => {
                device_claimant(port, claimants).or_else(|| claimant_behind(bridge, mac, claimants))
            }
            Some(_) => None,
            None => claimant_behind(bridge, mac, claimants),
        }
    }
}

fn device_claimant(device: IfIndex, claimants: &[Claimant]) -> Option<&Claimant> {
    claimants
        .iter()
        .find(|c| matches!(c.id, ClaimantId::Device(ifindex, _) if ifindex == device))
}

fn claimant_behind(bridge: IfIndex, mac: Mac, claimants: &[Claimant]) -> Option<&Claimant> {
    let id = ClaimantId::BehindBridge(bridge, mac);
    claimants.iter().find(|c| c.id == id)
}
