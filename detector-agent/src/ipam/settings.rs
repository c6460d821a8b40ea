//! What to read of IPAM, as the operator says.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

/// Whether IPAM's books are compared with live addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IpamSwitch {
    /// Every IPAM that is recognised in the CNI configuration.
    Auto,
    /// None.
    Off,
}

/// Where IPAM's books are; the same for `run` and `check`.
#[derive(Args, Clone, Debug)]
pub struct IpamSettings {
    /// Compare IPAM's books with the live addresses: `auto` reads those of the networks in --cni-conf-dir, `off` none.
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_IPAM",
        default_value = "auto"
    )]
    pub ipam: IpamSwitch,

    /// Directory of the CNI configuration, to find out which IPAM the networks use.
    #[arg(
        long,
        value_name = "DIR",
        env = "IPCONFLICT_CNI_CONF_DIR",
        default_value = "/etc/cni/net.d"
    )]
    pub cni_conf_dir: PathBuf,

    /// The file in which the AWS VPC CNI's ipamd keeps what it assigned; where it is absent, its introspection port is
    /// asked.
    #[arg(
        long,
        value_name = "FILE",
        env = "IPCONFLICT_AWS_IPAM_FILE",
        default_value = "/var/run/aws-node/ipam.json"
    )]
    pub aws_ipam_file: PathBuf,

    /// ipamd's introspection port.
    #[arg(
        long,
        value_name = "ADDR",
        env = "IPCONFLICT_AWS_INTROSPECTION",
        default_value = "127.0.0.1:61679",
        hide = true
    )]
    pub aws_introspection: SocketAddr,

    /// How long IPAM may hold an address that no pod has before that is reported.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_IPAM_LEAK_AFTER", default_value = "10m", value_parser = leak_after)]
    pub ipam_leak_after: Duration,
}

fn leak_after(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(time),
        Ok(_) => Err("must be at least 1s".to_owned()),
        Err(_) => Err("expected a time such as 90s or 10m".to_owned()),
    }
}
