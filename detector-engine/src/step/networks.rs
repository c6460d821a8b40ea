//! Names of the CNI networks of devices. They matter for ports of switches other than bridges, whose
//! networks the kernel does not show.

use std::sync::Arc;

use crate::{
    model::{Conflict, IfIndex, Network, NetworkId, Timestamp},
    step::Engine,
};

impl Engine {
    /// The names of the networks of these devices (index, generation, name) became known.
    pub(super) fn networks_known(&mut self, devices: &[(IfIndex, u64, Arc<str>)]) {
        for (ifindex, generation, name) in devices {
            let network = self.mirror.links.cni_networks.id(name);
            if let Some(link) = self.mirror.links.same_mut((*ifindex, *generation)) {
                link.cni_network = network;
                self.mark_link_dirty(*ifindex);
            }
        }
    }

    /// A new pod device waits for the name of its network.
    pub(super) fn await_network(&mut self, ifindex: IfIndex, at: Timestamp) {
        let wait = self.settings.cni_network_wait;
        let Some(link) = self.mirror.links.get_mut(ifindex) else {
            return;
        };
        if !wait.is_zero() && self.timers.awaiting_networks.len() < self.settings.bounds.links {
            link.awaits_network = true;
            let device = link.key();
            self.timers.awaiting_networks.schedule(device, at + wait);
        }
    }

    /// Devices without a name in time are in the network of their switch.
    pub(super) fn expire_network_waits(&mut self, now: Timestamp) {
        while let Some(device) = self.timers.awaiting_networks.pop_due(now) {
            let Some(link) = self.mirror.links.same_mut(device) else {
                continue;
            };
            let ifindex = device.0;
            link.awaits_network = false;
            let switch = self.mirror.links.switch_of(ifindex);
            if switch.is_some_and(|switch| !self.mirror.links.is_bridge(switch)) {
                self.mark_link_dirty(ifindex);
            }
        }
    }

    /// The network of a restored conflict. Its claimants need not wait for the name again.
    pub(super) fn restore_network(
        &mut self,
        conflict: &Conflict,
        link: Option<IfIndex>,
    ) -> NetworkId {
        let Network::Cni(name) = &conflict.network else {
            return NetworkId::of_record(conflict.address, &conflict.network, link);
        };
        let Some(id) = self.mirror.links.cni_networks.id(&name.as_str().into()) else {
            return NetworkId::Node;
        };
        for claimant in conflict.present() {
            if let Some(device) = claimant.id.device()
                && let Some(link) = self.mirror.links.same_mut(device)
            {
                link.cni_network = Some(id);
            }
        }
        NetworkId::Cni(id)
    }
}
