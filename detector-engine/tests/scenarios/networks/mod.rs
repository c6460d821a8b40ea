//! Networks: isolated and routed L2 domains, VLANs, VRFs, and link-local addresses that the node
//! routes (`docs/detection-rules.md`, section 2).

mod bridges;
mod switches;
mod vlans;
mod vrfs;

use super::*;

fn isolated_bridge(node: &mut Node, ifindex: IfIndex) {
    node.link(bridge(ifindex));
}

fn vrf(ifindex: IfIndex, table: u32) -> Link {
    Link {
        name: format!("vrf{ifindex}"),
        kind: LinkKind::Vrf { table },
        ..uplink(ifindex)
    }
}

fn vlan_interface(ifindex: IfIndex, parent: IfIndex, id: u16) -> Link {
    Link {
        name: format!("vlan{id}"),
        kind: LinkKind::Vlan {
            parent,
            id,
            protocol: VlanProtocol::Dot1Q,
        },
        ..uplink(ifindex)
    }
}

fn filtering_bridge(ifindex: IfIndex) -> Link {
    let default_pvid = Some(1);
    Link {
        vlan_filtering: Some(VlanFiltering { default_pvid }),
        ..bridge(ifindex)
    }
}

fn enslaved(link: Link, master: IfIndex) -> Link {
    Link {
        master: Some(master),
        ..link
    }
}

impl Node {
    fn pvid(&mut self, ifindex: IfIndex, pvid: u16) {
        let pvid = Some(pvid);
        self.observe(Observation::PortVlan(PortVlan { ifindex, pvid }));
    }

    fn frame_in_vlan(&mut self, ifindex: IfIndex, address: &str, id: u16) {
        self.observe(Observation::Frame(FrameClaim {
            vlan: Vlan {
                outer: Some(id),
                inner: None,
            },
            ..frame(ifindex, address)
        }));
    }

    /// The networks and VLANs of the open conflicts.
    fn conflict_networks(&self) -> Vec<String> {
        let conflicts = self.engine.view().conflicts(self.now);
        let name = |c: &Conflict| match c.vlan.outer {
            Some(vlan) => format!("{} vlan {vlan}", c.network),
            None => c.network.to_string(),
        };
        conflicts.iter().map(name).collect()
    }
}
