//! The IPAMs that can be read, and what the reader of one does.

use std::{fmt::Debug, net::IpAddr, path::Path, sync::Arc, time::Duration};

use detector_engine::{Ipam, PoolId};
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::{
    PoolRead, aws, azure, calico, calico::FollowedBlocks, cilium, cni_config::Network, host_local,
    kube_ovn, settings::IpamSettings, spiderpool, whereabouts,
};
use crate::kube_client::KubeClient;

/// All of them, each with its facts in a file of its own.
pub(super) const SOURCES: &[Source] = &[
    host_local::SOURCE,
    aws::SOURCE,
    calico::SOURCE,
    cilium::SOURCE,
    kube_ovn::SOURCE,
    azure::SOURCE,
    whereabouts::SOURCE,
    spiderpool::SOURCE,
];

/// An IPAM that can be read.
pub(super) struct Source {
    pub(super) ipam: Ipam,
    /// Whether it assigns the addresses of a network in the CNI configuration with these types of the plugin and of its
    /// `ipam` (empty if there is none).
    pub(super) serves: fn(plugin: &str, ipam: &str) -> bool,
    /// Whether the allocations are found by what the plugin returned for pods, so the network need not be in the node's
    /// configuration: Multus has its networks in the API.
    pub(super) is_found_by_leases: bool,
    /// The reader of such a network.
    pub(super) reader: fn(PoolId, &Network, &Context<'_>) -> Box<dyn PoolReader>,
}

/// A network's reader; `None` if its IPAM cannot be read.
pub(super) fn open(
    id: PoolId,
    network: &Network,
    context: &Context<'_>,
) -> Option<Box<dyn PoolReader>> {
    let source = SOURCES.iter().find(|s| Some(s.ipam) == network.ipam)?;
    Some((source.reader)(id, network, context))
}

/// A network's name in logs and `/readyz`.
pub(super) fn part_name(network: &Network) -> String {
    match network.ipam {
        // The only one that serves several networks of a node.
        Some(Ipam::HostLocal) => format!("host-local: {}", network.name),
        Some(ipam) => ipam.name().to_owned(),
        None => network.ipam_type.clone(),
    }
}

/// What readers may use.
pub(super) struct Context<'a> {
    pub(super) settings: &'a IpamSettings,
    pub(super) node: &'a str,
    pub(super) kube: Option<&'a KubeClient>,
    /// The directory of the CNI result cache.
    pub(super) results: Option<&'a Path>,
    /// Gets Calico's blocks, for others.
    pub(super) blocks: &'a Arc<FollowedBlocks>,
}

/// Reads a pool's allocations; keeps its last snapshot.
pub(super) trait PoolReader: Debug + Send {
    /// The directory in which files change when the allocations do; `None` if they are not in files.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// The longest time between two reads, if it has to be shorter than that of other pools.
    fn recheck(&self) -> Option<Duration> {
        None
    }

    /// Follows an IPAM that is not in files; `changed` gets the pool's id when there is something to read.
    fn follow(&mut self, _changed: mpsc::UnboundedSender<PoolId>) {}

    /// Requests the newest state of an address from what is followed. `false`: nothing is, so the pool has to be read.
    fn request(&self, _address: IpAddr) -> bool {
        false
    }

    /// Reads the pool; `None` if there is nothing to read yet. `thorough`: reads files again that look unchanged.
    fn read(&mut self, thorough: bool) -> BoxFuture<'_, Option<PoolRead>>;
}

#[cfg(test)]
mod tests {
    use detector_engine::Ipam::{
        Aws, Azure, Calico, Cilium, HostLocal, KubeOvn, Spiderpool, Whereabouts,
    };
    use serde_json::json;

    use super::*;
    use crate::ipam::cni_config::CniConfig;

    /// The configurations that the plugins install, and where their allocations are.
    #[test]
    fn configuration_of_each_plugin_is_recognised() {
        let host_local = json!({"type": "host-local"});
        let kindnet = json!({"type": "ptp", "ipam": {"type": "host-local",
            "dataDir": "/run/cni-ipam-state", "ranges": [[{"subnet": "10.244.2.0/24"}]]}});
        for (name, plugin, expected, data_dir) in [
            (
                "kindnet",
                kindnet,
                &[HostLocal][..],
                Some("/run/cni-ipam-state"),
            ),
            (
                "bridge",
                json!({"type": "bridge", "ipam": host_local}),
                &[HostLocal],
                Some("/var/lib/cni/networks"),
            ),
            (
                "cbr0",
                json!({"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}}),
                &[HostLocal],
                Some("/var/lib/cni/networks"),
            ),
            (
                "antrea",
                json!({"type": "antrea", "ipam": host_local}),
                &[HostLocal],
                Some("/var/run/antrea/cni/networks"),
            ),
            (
                "k8s-pod-network",
                json!({"type": "calico", "ipam": {"type": "calico-ipam"}}),
                &[Calico],
                None,
            ),
            (
                "aws-cni",
                json!({"type": "aws-cni", "vethPrefix": "eni"}),
                &[Aws],
                None,
            ),
            (
                "cilium",
                json!({"type": "cilium-cni", "enable-debug": false, "log-file": "/var/run/cilium/cilium-cni.log"}),
                &[Cilium],
                None,
            ),
            (
                "cilium",
                json!({"type": "cilium-cni", "ipam": {"type": "azure-ipam"}}),
                &[Azure],
                None,
            ),
            (
                "azure",
                json!({"type": "azure-vnet", "mode": "transparent", "ipam": {"type": "azure-cns"}}),
                &[Azure],
                None,
            ),
            (
                "kube-ovn",
                json!({"type": "kube-ovn", "server_socket": "/run/openvswitch/kube-ovn-daemon.sock"}),
                &[KubeOvn],
                None,
            ),
            (
                "bridge",
                json!({"type": "bridge", "ipam": {"type": "whereabouts", "range": "10.9.0.0/16"}}),
                &[Whereabouts],
                None,
            ),
            (
                "macvlan",
                json!({"type": "macvlan", "ipam": {"type": "spiderpool"}}),
                &[Spiderpool],
                None,
            ),
            (
                "macvlan",
                json!({"type": "macvlan", "ipam": {"type": "static"}}),
                &[],
                None,
            ),
        ] {
            let mut config = CniConfig::default();
            // Chained plugins assign no addresses.
            let plugins = [
                plugin,
                json!({"type": "portmap"}),
                json!({"type": "cilium-cni"}),
            ];
            config.add_file(&json!({"name": name, "plugins": plugins}), true);
            let found: Vec<_> = config.supported().map(|(ipam, _)| ipam).collect();
            assert_eq!(found, expected, "{name}");
            for network in &config.networks {
                assert_eq!(network.name, name);
                let found = network.data_dir.as_deref().and_then(Path::to_str);
                assert_eq!(found, data_dir, "{name}");
            }
        }
    }
}
