//! Settings of the IPAM sources.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::cli::{heading, parse_duration};

/// Whether IPAM allocations are compared with live addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IpamMode {
    /// Every supported IPAM in the CNI configuration.
    Auto,
    /// None.
    Off,
}

/// Where IPAM allocations are read; the same for `run` and `check`.
#[derive(Args, Clone, Debug)]
pub struct IpamSettings {
    /// Compare IPAM allocations with live addresses: `auto` reads those of the networks in --cni-conf-dir, `off` none.
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_IPAM",
        help_heading = heading::IPAM,
        default_value = "auto"
    )]
    pub ipam: IpamMode,

    /// Directory of the CNI configuration, which names each network's IPAM.
    #[arg(
        long,
        value_name = "DIR",
        env = "IPCONFLICT_CNI_CONF_DIR",
        help_heading = heading::IPAM,
        default_value = "/etc/cni/net.d"
    )]
    pub cni_conf_dir: PathBuf,

    /// File in which the AWS VPC CNI's ipamd keeps its allocations; if it does not exist, its introspection port is
    /// queried.
    #[arg(
        long,
        value_name = "FILE",
        env = "IPCONFLICT_AWS_IPAM_FILE",
        help_heading = heading::IPAM,
        default_value = "/var/run/aws-node/ipam.json"
    )]
    pub aws_ipam_file: PathBuf,

    /// Log of ipamd: when it was started, and why it lost allocations. Read only for a diagnosis.
    #[arg(
        long,
        value_name = "FILE",
        env = "IPCONFLICT_AWS_LOG_FILE",
        help_heading = heading::IPAM,
        default_value = "/var/log/aws-routed-eni/ipamd.log"
    )]
    pub aws_log_file: PathBuf,

    /// Introspection port of ipamd.
    #[arg(
        long,
        value_name = "ADDR",
        env = "IPCONFLICT_AWS_INTROSPECTION",
        help_heading = heading::IPAM,
        default_value = "127.0.0.1:61679",
        hide = true
    )]
    pub aws_introspection: SocketAddr,

    /// Directory in which Cilium keeps the state of its endpoints.
    #[arg(
        long,
        value_name = "DIR",
        env = "IPCONFLICT_CILIUM_STATE_DIR",
        help_heading = heading::IPAM,
        default_value = "/var/run/cilium/state"
    )]
    pub cilium_state_dir: PathBuf,

    /// File in which Azure's CNS keeps the addresses of its endpoints.
    #[arg(
        long,
        value_name = "FILE",
        env = "IPCONFLICT_AZURE_ENDPOINTS_FILE",
        help_heading = heading::IPAM,
        default_value = "/var/run/azure-cns/azure-endpoints.json"
    )]
    pub azure_endpoints_file: PathBuf,

    /// Namespace of the objects of whereabouts: kube-system, on OpenShift openshift-multus.
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "IPCONFLICT_WHEREABOUTS_NAMESPACE",
        help_heading = heading::IPAM,
        default_value = "kube-system"
    )]
    pub whereabouts_namespace: String,

    /// Report an allocation that no pod uses after this time.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_IPAM_LEAK_AFTER", help_heading = heading::IPAM, default_value = "10m", value_parser = parse_duration)]
    pub ipam_leak_after: Duration,
}

#[cfg(test)]
impl Default for IpamSettings {
    /// As without flags, and nothing is read where a node has it.
    fn default() -> Self {
        Self {
            ipam: IpamMode::Auto,
            cni_conf_dir: PathBuf::new(),
            aws_ipam_file: PathBuf::new(),
            aws_log_file: PathBuf::new(),
            aws_introspection: ([127, 0, 0, 1], 1).into(),
            cilium_state_dir: PathBuf::new(),
            azure_endpoints_file: PathBuf::new(),
            whereabouts_namespace: String::new(),
            ipam_leak_after: Duration::from_mins(10),
        }
    }
}
