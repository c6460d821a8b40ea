//! Incidents from the field as data: the facts that a test lays out on real devices, and what must be said of them.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

/// Eleven `cali*` devices with a neighbour entry for one address; the route goes to one of them.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoElevenDevices {
    /// The address.
    pub address: Ipv4Addr,
    /// The node's neighbour entries for it.
    pub neighbours: Vec<CalicoNeighbour>,
    /// The node's route to it.
    pub route: CalicoRoute,
    /// What must be said.
    pub expect: CalicoExpect,
}

/// A neighbour entry of the node.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoNeighbour {
    /// The host end of the pod's veth.
    pub device: String,
    /// The pod's MAC.
    pub mac: String,
    /// `PERMANENT` or `REACHABLE`.
    pub state: String,
}

/// The route of the node.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoRoute {
    /// `192.168.91.33/32`.
    pub destination: String,
    /// Where it points.
    pub device: String,
}

/// What must be said of [`CalicoElevenDevices`].
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoExpect {
    /// How many conflicts.
    pub conflicts: usize,
    /// How many claimants.
    pub claimants: usize,
    /// The route's device.
    pub traffic_goes_to: String,
}

/// ptp and host-local: ten pods, the IPAM directory wiped, twenty more.
#[derive(Clone, Debug, Deserialize)]
pub struct KindnetStateWiped {
    network: KindnetNetwork,
    /// Pods before the wipe.
    pub before: Vec<PodAddress>,
    /// Pods after it.
    pub after: Vec<PodAddress>,
    /// What must be said.
    pub expect: KindnetExpect,
}

#[derive(Clone, Debug, Deserialize)]
struct KindnetNetwork {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    name: String,
    plugins: Vec<Value>,
}

/// A pod and the address it got.
#[derive(Clone, Debug, Deserialize)]
pub struct PodAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// The pod's name.
    pub pod: String,
}

/// What must be said of [`KindnetStateWiped`].
#[derive(Clone, Debug, Deserialize)]
pub struct KindnetExpect {
    /// Addresses in conflict.
    pub conflicts: Vec<Ipv4Addr>,
    /// Addresses that stand once.
    pub single: Vec<Ipv4Addr>,
    /// Live addresses that IPAM no longer knows, between the wipe and the second batch.
    pub drift_after_wipe: Vec<Ipv4Addr>,
}

/// A pod whose gateway does not answer.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoGatewayUnresolved {
    /// The host end of the pod's veth.
    pub device: String,
    /// The pod's address.
    pub pod_address: Ipv4Addr,
    /// The pod's MAC.
    pub pod_mac: String,
    /// The gateway that does not answer.
    pub gateway: Ipv4Addr,
}

/// ipamd lost its runtime: its pool counts every address as free while pods run.
#[derive(Clone, Debug, Deserialize)]
pub struct AwsLostRuntime {
    /// The running pods.
    #[serde(rename = "pods_the_kubelet_reported")]
    pub pods: Vec<NamedPod>,
    /// What must be said.
    pub expect: AwsExpect,
}

/// A pod with its namespace.
#[derive(Clone, Debug, Deserialize)]
pub struct NamedPod {
    /// The pod's name.
    pub pod: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
}

/// What must be said of [`AwsLostRuntime`].
#[derive(Clone, Debug, Deserialize)]
pub struct AwsExpect {
    /// Live addresses that ipamd counts as free.
    pub drift: Vec<Ipv4Addr>,
    /// Addresses that two pods have.
    pub conflicts: Vec<Ipv4Addr>,
}

impl CalicoGatewayUnresolved {
    /// The incident's facts.
    ///
    /// # Errors
    /// Where the fixture is not as this type has it.
    pub fn load() -> Result<Self> {
        serde_json::from_str(include_str!(
            "../fixtures/scenarios/calico-gateway-unresolved.json"
        ))
        .context("calico-gateway-unresolved.json")
    }
}

impl AwsLostRuntime {
    /// The incident's facts.
    ///
    /// # Errors
    /// Where the fixture is not as this type has it.
    pub fn load() -> Result<Self> {
        serde_json::from_str(include_str!(
            "../fixtures/scenarios/aws-ipamd-lost-runtime.json"
        ))
        .context("aws-ipamd-lost-runtime.json")
    }
}

impl CalicoElevenDevices {
    /// The incident's facts.
    ///
    /// # Errors
    /// Where the fixture is not as this type has it.
    pub fn load() -> Result<Self> {
        serde_json::from_str(include_str!(
            "../fixtures/scenarios/calico-eleven-devices.json"
        ))
        .context("calico-eleven-devices.json")
    }
}

impl KindnetStateWiped {
    /// The incident's facts.
    ///
    /// # Errors
    /// Where the fixture is not as this type has it.
    pub fn load() -> Result<Self> {
        serde_json::from_str(include_str!(
            "../fixtures/scenarios/kindnet-state-wiped.json"
        ))
        .context("kindnet-state-wiped.json")
    }

    /// The `ptp` plugin's configuration as it stood on the node, without its data directory, for
    /// [`crate::cni::Cni::new`].
    ///
    /// # Errors
    /// Where the fixture has no such plugin.
    pub fn ptp_config(&self) -> Result<Value> {
        let plugin = self
            .network
            .plugins
            .iter()
            .find(|plugin| plugin.get("type").is_some_and(|kind| kind == "ptp"));
        let mut config = plugin.context("no ptp plugin in the fixture")?.clone();
        let object = config.as_object_mut().context("the plugin is no object")?;
        object.insert(
            "cniVersion".to_owned(),
            self.network.cni_version.clone().into(),
        );
        object.insert("name".to_owned(), self.network.name.clone().into());
        Ok(config)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::{CalicoElevenDevices, KindnetStateWiped};

    #[test]
    fn the_fixtures_are_what_their_expectations_say() {
        let calico = CalicoElevenDevices::load().unwrap();
        assert_eq!(calico.neighbours.len(), calico.expect.claimants);
        assert_eq!(calico.route.device, calico.expect.traffic_goes_to);
        let kindnet = KindnetStateWiped::load().unwrap();
        let before: Vec<_> = kindnet.before.iter().map(|pod| pod.address).collect();
        let after = || kindnet.after.iter().map(|pod| pod.address);
        assert_eq!(
            after()
                .filter(|address| before.contains(address))
                .collect::<Vec<_>>(),
            kindnet.expect.conflicts
        );
        assert_eq!(
            after()
                .filter(|address| !before.contains(address))
                .collect::<Vec<_>>(),
            kindnet.expect.single
        );
        assert_eq!(
            kindnet.ptp_config().unwrap().get("name").unwrap(),
            "kindnet"
        );
    }
}
