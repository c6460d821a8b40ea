//! L2 domains and routing domains of links (`docs/detection-rules.md`, section 2).

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    counts::Counts,
    mirror::links::Links,
    model::{IfIndex, Link, LinkKind, NetworkId, Vlan, is_link_local},
};

/// What a frame reaches without being routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct L2Domain {
    /// The bridge or other switch; else the link itself.
    pub(crate) switch: IfIndex,
    /// The VLAN there.
    pub(crate) vlan: Vlan,
}

impl Links {
    fn kind(&self, ifindex: IfIndex) -> Option<LinkKind> {
        Some(self.get(ifindex)?.link.kind)
    }

    /// The bridge or other switch that a link is a port of.
    pub(crate) fn switch_of(&self, ifindex: IfIndex) -> Option<IfIndex> {
        self.switch_above(&self.get(ifindex)?.link)
    }

    /// The same for a link that was looked up already.
    pub(crate) fn switch_above(&self, link: &Link) -> Option<IfIndex> {
        link.master.filter(|master| self.is_switch(*master))
    }

    /// Whether a link is a bridge or another switch.
    pub(crate) fn is_switch(&self, ifindex: IfIndex) -> bool {
        matches!(
            self.kind(ifindex),
            Some(LinkKind::Bridge | LinkKind::Switch)
        )
    }

    /// The L2 domain of frames with these tags on a link.
    pub(crate) fn l2_domain(&self, link: &Link, vlan: Vlan) -> L2Domain {
        if let LinkKind::Vlan { parent, id, .. } = link.kind
            && self.is_bridge(parent)
            && vlan == Vlan::default()
        {
            return L2Domain {
                switch: parent,
                vlan: Vlan {
                    outer: Some(id),
                    inner: None,
                },
            };
        }
        let above = self.switch_above(link);
        // A tag comes from the sender; the bridge adds the port's PVID to a frame without one.
        let untagged = match above {
            Some(switch) => self.untagged_vlan(switch, link.ifindex),
            None => link.vlan_filtering.and_then(|_| self.pvid(link.ifindex)),
        };
        L2Domain {
            switch: above.unwrap_or(link.ifindex),
            vlan: Vlan {
                outer: vlan.outer.or(untagged),
                inner: vlan.inner,
            },
        }
    }

    /// The VLAN of untagged frames at a port of `bridge`, or at the bridge itself, if it filters
    /// VLANs.
    fn untagged_vlan(&self, bridge: IfIndex, port: IfIndex) -> Option<u16> {
        self.get(bridge)?.link.vlan_filtering?;
        self.pvid(port)
    }

    /// The link by which the node itself takes part in an L2 domain of a bridge: the bridge, or a
    /// VLAN interface on it.
    pub(crate) fn own_interface(&self, domain: L2Domain) -> Option<&Link> {
        let L2Domain { switch, vlan } = domain;
        let own = match (vlan.outer, vlan.inner) {
            (_, Some(_)) => None,
            (outer, None) if outer == self.untagged_vlan(switch, switch) => Some(switch),
            (Some(id), None) => self.vlan_interface(switch, id),
            (None, None) => None,
        };
        self.get(own?).map(|state| &state.link)
    }

    /// The routing domain of a link: that of the VRF it is enslaved to, or the node's.
    pub(crate) fn routing_domain(&self, link: &Link) -> NetworkId {
        match link.master.map(|master| (master, self.kind(master))) {
            Some((vrf, Some(LinkKind::Vrf { .. }))) => NetworkId::Vrf(vrf),
            _ => NetworkId::Node,
        }
    }

    /// The routing domain that a routing table belongs to.
    pub(crate) fn domain_of_table(&self, table: u32) -> NetworkId {
        self.vrf_of_table(table)
            .map_or(NetworkId::Node, NetworkId::Vrf)
    }

    /// The links whose L2 domain or routing domain depends on a bridge, another switch, a VRF or a
    /// VLAN interface: itself, its ports, theirs, and those of the bridge that it is on. Empty for
    /// other links.
    pub(crate) fn depending_on(&self, ifindex: IfIndex) -> BTreeSet<IfIndex> {
        let mut found = BTreeSet::new();
        if matches!(
            self.kind(ifindex),
            None | Some(LinkKind::Pod | LinkKind::Other)
        ) {
            return found;
        }
        let mut pending = vec![ifindex];
        while let Some(next) = pending.pop() {
            if !found.insert(next) {
                continue;
            }
            if let Some(LinkKind::Vlan { parent, .. }) = self.kind(next) {
                pending.push(parent);
            }
            let links = self.iter().map(|state| &state.link);
            let ports = links.filter(|link| link.master == Some(next));
            pending.extend(ports.map(|port| port.ifindex));
        }
        found
    }
}

/// By which links the node itself takes part in L2 domains: those that have an address or a route
/// of a family, link-local ones aside, which every link has.
#[derive(Debug, Default)]
pub(crate) struct L3Presence {
    /// By link, and whether the family is IPv4.
    counts: Counts<(IfIndex, bool)>,
    /// Links for which that changed since last taken.
    changed: BTreeSet<IfIndex>,
}

impl L3Presence {
    /// A link has an address, or a route to this destination, more than before.
    pub(crate) fn add(&mut self, ifindex: IfIndex, address: IpAddr) {
        if !is_link_local(address) && self.counts.add((ifindex, address.is_ipv4())) {
            self.changed.insert(ifindex);
        }
    }

    /// It has one less.
    pub(crate) fn remove(&mut self, ifindex: IfIndex, address: IpAddr) {
        if !is_link_local(address) && self.counts.subtract((ifindex, address.is_ipv4())) {
            self.changed.insert(ifindex);
        }
    }

    /// Whether a link has an address or a route of the family of `address`.
    pub(crate) fn has(&self, ifindex: IfIndex, address: IpAddr) -> bool {
        self.counts.of(&(ifindex, address.is_ipv4())) > 0
    }

    /// The links for which that changed.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<IfIndex> {
        std::mem::take(&mut self.changed)
    }
}
