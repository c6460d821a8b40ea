//! A pod device sends router advertisements (`docs/detection-rules.md`, section 14.7).
//!
//! Pods on its link that accept them take it for their router and form addresses from its prefixes. A pod that is meant to be a
//! router has its link-local address in `--allow`, or its device in `--exclude-interfaces`.

use crate::{
    mirror::links::LinkState,
    model::{AnomalyCause, AnomalyKind, RouterAdvertisement, Timestamp},
    step::{Engine, anomalies::device_as_holder},
    track::{
        Step,
        anomaly::{AnomalyDetails, AnomalyKey},
    },
};

impl Engine {
    /// A pod advertised itself as a router.
    pub(super) fn router_advertisement(
        &mut self,
        advertisement: RouterAdvertisement,
        step: &mut Step<'_>,
    ) {
        let RouterAdvertisement {
            ifindex,
            source,
            vlan,
        } = advertisement;
        let link = self.mirror.links.pod(ifindex);
        let Some(link) = link.filter(|l| l.since <= step.at) else {
            self.drops.unknown_device += 1;
            return;
        };
        // Before the first snapshot is merged: the next one will be judged.
        if !self.mirror.is_complete || self.settings.is_allowed(source) {
            return;
        }
        // One finding for each device, whatever addresses it uses.
        let device = link.key();
        let known = self.tracked.anomalies.frames.router(device);
        let new = || AnomalyKey::of_frames(AnomalyKind::RogueRouter, source, device, vlan);
        let details = details(link, advertisement);
        self.frame_seen(known.unwrap_or_else(new), details, step);
    }

    /// Continues the routers of the previous run whose device still exists.
    pub(super) fn continue_routers(&mut self, now: Timestamp) {
        for (id, device) in self.surviving(AnomalyKind::RogueRouter) {
            self.tracked.anomalies.continue_router(id, device, now);
        }
    }
}

fn details(link: &LinkState, advertisement: RouterAdvertisement) -> AnomalyDetails {
    let detail = format!(
        "the pod on {} sends router advertisements as {}",
        link.link.name, advertisement.source
    );
    let holders = vec![device_as_holder(link)];
    AnomalyDetails::new(AnomalyCause::RouterAdvertisement, holders, detail)
}
