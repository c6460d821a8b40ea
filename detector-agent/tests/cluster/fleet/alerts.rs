//! The receiver of all agents' webhooks: every alert of the cluster, once.

use std::collections::BTreeSet;

use anyhow::ensure;
use detector_testkit::{
    Event, Receiver,
    cluster::Cluster,
    event::{RAISED, RESOLVED},
};

use super::run_pod_with;
use crate::installation::Installation;

/// Receives what all agents report, even after a restart and after their node was cut off.
pub(super) struct Alerts(Receiver);

impl Alerts {
    pub(super) fn start(cluster: &Cluster) -> Self {
        let address = format!("{}:0", cluster.control_address());
        let address = address.parse().unwrap();
        let receiver = cluster.netns().run_in(|| Receiver::start_on(address));
        Self(receiver.unwrap())
    }

    /// Installs the chart with the receiver as a webhook.
    pub(super) fn install(&self, it: &Installation, settings: &[&str]) {
        let url = format!("config.webhooks[0].url={}", self.0.url());
        let mut all = vec![
            "config.webhooks[0].name=alerts",
            "config.webhooks[0].retry.longest=2s",
            &url,
        ];
        all.extend(settings);
        it.helm("install", &all);
    }

    /// All events about conflicts so far, in the order of their arrival. A repeated delivery counts once.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut seen = BTreeSet::new();
        let requests = self.0.requests();
        let events = requests.iter().map(|request| request.json().unwrap());
        let events = events.map(|event| serde_json::from_value::<Event>(event).unwrap());
        events
            .filter(|event| event.kind.starts_with("io.ipconflict.conflict."))
            .filter(|event| seen.insert(event.id.clone()))
            .collect()
    }

    /// Requires that conflicts were raised on these addresses, in any order, and no others.
    pub(super) fn assert_raised(&self, it: &Installation, addresses: &[&str]) {
        let events = self.events();
        let raised = events.iter().filter(|event| event.kind == RAISED);
        let mut raised: Vec<&str> = raised.map(|event| &*event.subject).collect();
        raised.sort_unstable();
        assert_eq!(raised, addresses, "{events:#?}\n{}", it.describe());
    }

    /// Waits for an event that `wanted` accepts.
    pub(super) fn wait(
        &self,
        it: &Installation,
        what: &str,
        wanted: impl Fn(&Event) -> bool,
    ) -> Event {
        super::wait_longer(it, what, || {
            let events = self.events();
            let found = events.iter().find(|event| wanted(event));
            found.cloned().ok_or_else(|| anyhow::anyhow!("{events:?}"))
        })
    }

    pub(super) fn wait_raised(&self, it: &Installation, address: &str) -> Event {
        self.wait(it, &format!("{address} to be raised"), |event| {
            event.raises(address)
        })
    }

    pub(super) fn wait_resolved(&self, it: &Installation, id: &str) -> Event {
        self.wait(it, &format!("conflict {id} to be resolved"), |event| {
            event.kind == RESOLVED && event.data["conflict_id"] == id
        })
    }

    /// Causes a conflict across the two nodes and waits for its alert: what happened before has been compared by then.
    pub(super) fn pass_marker(&self, it: &Installation, address: &str) {
        for (pod, node) in [("marker-1", 0), ("marker-2", 1)] {
            run_pod_with(it, pod, node, address);
        }
        self.wait_raised(it, address);
        // The one without the claim first: it would take the claim over while its device still exists.
        for (pod, kind) in [("marker-2", "ipconflicts"), ("marker-1", "ipclaims")] {
            super::delete_pods(it, pod);
            super::wait_longer(it, "the end of the marker", || {
                let left = super::names(it, kind)?;
                ensure!(!left.contains(address), "{kind}: {left:?}");
                Ok(())
            });
        }
    }
}
