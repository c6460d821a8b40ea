//! Anomalies about hardware addresses.

use super::*;

impl Harness {
    /// What has been so since `recovered` is all that counts.
    pub(super) fn adopt_macs(&mut self, recovered: Timestamp) {
        self.macs.clear();
        self.macs.record(&self.world.mac_states(), recovered);
        self.name_devices();
    }

    pub(super) fn check_macs(&mut self) -> TestCaseResult {
        if !self.is_node_read() {
            return Ok(());
        }
        // An anomaly ends with the device that it names.
        for (place, ifindex, serial) in self.named.values() {
            let device = self.world.links.get(ifindex);
            if device.is_none_or(|device| device.serial != *serial) {
                self.macs.forget(place);
            }
        }
        let now = self.world.now;
        self.macs.record(&self.world.mac_states(), now);
        let mut open: Vec<_> = self.open_macs().iter().map(|(_, open)| *open).collect();
        open.sort();
        prop_assert_eq!(open, self.macs.open(now), "hardware addresses");
        self.name_devices();
        Ok(())
    }

    pub(super) fn check_raised_mac(&self, effect: &AnomalyEffect) -> TestCaseResult {
        if let AnomalyEffect::Raised(anomaly) = effect
            && is_about_mac(anomaly)
            && self.stage == SyncStage::Synced
        {
            prop_assert!(self.world.names_its_devices(anomaly), "{:?}", anomaly);
        }
        Ok(())
    }

    /// The open anomalies about hardware addresses: kind, bridge, hardware address.
    fn open_macs(&self) -> Vec<(Anomaly, (AnomalyKind, IfIndex, Mac))> {
        let open = self.engine.view().anomalies().into_iter();
        open.filter(is_about_mac)
            .map(|anomaly| {
                let mac = anomaly.holder.as_ref().and_then(|holder| holder.mac);
                let is_named = |bridge: &&IfIndex| {
                    let name = format!("br{bridge}");
                    let mut words = anomaly.detail.split([' ', ':']);
                    words.any(|word| word == name)
                };
                let bridge = BRIDGES.iter().find(is_named).expect("a bridge");
                let what = (anomaly.kind, *bridge, mac.expect("a hardware address"));
                (anomaly, what)
            })
            .collect()
    }

    /// Remembers which devices the open anomalies name.
    fn name_devices(&mut self) {
        let open = self.open_macs();
        let is_open = |id: &AnomalyId| open.iter().any(|(anomaly, _)| anomaly.id == *id);
        self.named.retain(|id, _| is_open(id));
        for (anomaly, (_, bridge, mac)) in open {
            let Some(holder) = anomaly.holder else {
                continue;
            };
            let Some(device) = self.world.links.get(&holder.ifindex) else {
                continue;
            };
            let place = MacPlace {
                bridge,
                vlan: self.world.pvid_at(bridge, holder.ifindex),
                mac,
            };
            let named = (place, holder.ifindex, device.serial);
            self.named.entry(anomaly.id).or_insert(named);
        }
    }
}

fn is_about_mac(anomaly: &Anomaly) -> bool {
    matches!(
        anomaly.kind,
        AnomalyKind::MacDuplicate | AnomalyKind::MacMoved
    )
}
