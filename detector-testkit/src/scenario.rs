//! Published incidents as data: the state that a test recreates on real devices, and the expected result.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

/// Eleven `cali*` devices, each with a neighbour entry for the same address; the route points at one of them.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoElevenDevices {
    /// The address.
    pub address: Ipv4Addr,
    /// The node's neighbour entries for it.
    pub neighbours: Vec<CalicoNeighbour>,
    /// The node's route to it.
    pub route: CalicoRoute,
    /// The expected result.
    pub expect: CalicoExpected,
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
    /// The device it points at.
    pub device: String,
}

/// The expected result of [`CalicoElevenDevices`].
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoExpected {
    /// The number of conflicts.
    pub conflicts: usize,
    /// The number of claimants.
    pub claimants: usize,
    /// The route's device.
    pub traffic_goes_to: String,
}

/// ptp and host-local: ten pods, then the IPAM directory is wiped, then twenty more pods.
#[derive(Clone, Debug, Deserialize)]
pub struct KindnetStateWiped {
    network: KindnetNetwork,
    /// Pods before the wipe.
    pub before: Vec<PodAddress>,
    /// Pods after it.
    pub after: Vec<PodAddress>,
    /// The expected result.
    pub expect: KindnetExpected,
}

#[derive(Clone, Debug, Deserialize)]
struct KindnetNetwork {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    name: String,
    plugins: Vec<Value>,
}

/// A pod and its address.
#[derive(Clone, Debug, Deserialize)]
pub struct PodAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// The pod's name.
    pub pod: String,
}

/// The expected result of [`KindnetStateWiped`].
#[derive(Clone, Debug, Deserialize)]
pub struct KindnetExpected {
    /// Addresses in conflict.
    pub conflicts: Vec<Ipv4Addr>,
    /// Addresses that only one pod has.
    pub single: Vec<Ipv4Addr>,
    /// Live addresses without an allocation between the wipe and the second batch.
    pub drift_after_wipe: Vec<Ipv4Addr>,
}

/// A pod whose gateway does not respond.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoGatewayUnresolved {
    /// The host end of the pod's veth.
    pub device: String,
    /// The pod's address.
    pub pod_address: Ipv4Addr,
    /// The pod's MAC.
    pub pod_mac: String,
    /// The gateway that does not respond.
    pub gateway: Ipv4Addr,
}

/// ipamd lost the container runtime: its pool counts every address as free while pods run.
#[derive(Clone, Debug, Deserialize)]
pub struct AwsLostRuntime {
    /// The running pods.
    #[serde(rename = "pods_the_kubelet_reported")]
    pub pods: Vec<NamedPod>,
    /// The expected result.
    pub expect: AwsExpected,
}

/// A pod with its Kubernetes namespace and address.
#[derive(Clone, Debug, Deserialize)]
pub struct NamedPod {
    /// The pod's name.
    pub pod: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
}

/// The expected result of [`AwsLostRuntime`].
#[derive(Clone, Debug, Deserialize)]
pub struct AwsExpected {
    /// Live addresses that ipamd counts as free.
    pub drift: Vec<Ipv4Addr>,
    /// Addresses that two pods have.
    pub conflicts: Vec<Ipv4Addr>,
}

/// Calico: an allocation whose workload no longer exists, in a block that has no allocations of workloads that run.
#[derive(Clone, Debug, Deserialize)]
pub struct CalicoStaleEndpoints {
    /// The block, with its allocations as a list.
    pub block: Value,
}

/// Deserializes a fixture that is compiled in.
macro_rules! fixture {
    ($name:literal) => {
        serde_json::from_str(include_str!(concat!("../fixtures/scenarios/", $name))).context($name)
    };
}

impl CalicoGatewayUnresolved {
    /// Reads the fixture.
    ///
    /// # Errors
    /// The fixture does not match this type.
    pub fn load() -> Result<Self> {
        fixture!("calico-gateway-unresolved.json")
    }
}

impl CalicoStaleEndpoints {
    /// Reads the fixture.
    ///
    /// # Errors
    /// The fixture does not match this type.
    pub fn load() -> Result<Self> {
        let mut facts: Self = fixture!("calico-stale-endpoints.json")?;
        let by_ordinal = facts.block["allocations_by_ordinal"].as_object();
        let mut allocations = vec![Value::Null; 64];
        for (ordinal, index) in by_ordinal.context("no allocations")? {
            let at = allocations.get_mut(ordinal.parse::<usize>()?);
            *at.context("beyond the block")? = index.clone();
        }
        facts.block["allocations"] = allocations.into();
        Ok(facts)
    }
}

impl AwsLostRuntime {
    /// Reads the fixture.
    ///
    /// # Errors
    /// The fixture does not match this type.
    pub fn load() -> Result<Self> {
        fixture!("aws-ipamd-lost-runtime.json")
    }
}

impl CalicoElevenDevices {
    /// Reads the fixture.
    ///
    /// # Errors
    /// The fixture does not match this type.
    pub fn load() -> Result<Self> {
        fixture!("calico-eleven-devices.json")
    }
}

impl KindnetStateWiped {
    /// Reads the fixture.
    ///
    /// # Errors
    /// The fixture does not match this type.
    pub fn load() -> Result<Self> {
        fixture!("kindnet-state-wiped.json")
    }

    /// The configuration of the node's `ptp` plugin, without data directory, for [`crate::cni::Cni::new`].
    ///
    /// # Errors
    /// The fixture contains no such plugin.
    pub fn ptp_config(&self) -> Result<Value> {
        let plugin = self
            .network
            .plugins
            .iter()
            .find(|plugin| plugin.get("type").is_some_and(|kind| kind == "ptp"));
        let mut config = plugin.context("no ptp plugin in the fixture")?.clone();
        let object = config
            .as_object_mut()
            .context("the plugin is not an object")?;
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
    fn fixtures_match_their_expected_results() {
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
