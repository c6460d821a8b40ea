//! The IPAMs that can be read.

use detector_engine::{Ipam, PoolId};

use super::{
    aws, azure, calico, cilium, host_local, kube_ovn,
    network::Network,
    source::{Context, PoolReader, Source},
    spiderpool, whereabouts,
};

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use detector_engine::Ipam::{
        Aws, Azure, Calico, Cilium, HostLocal, KubeOvn, Spiderpool, Whereabouts,
    };
    use serde_json::json;

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
