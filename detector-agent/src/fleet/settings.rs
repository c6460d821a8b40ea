//! Settings of the detection across nodes.

use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::cli::{heading, parse_cidr, parse_duration};

/// Whether addresses are compared across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FleetMode {
    /// Not compared.
    Off,
    /// Registered in the Kubernetes API.
    Kubernetes,
}

/// What is compared across nodes, and how.
#[derive(Args, Clone, Debug)]
pub struct FleetSettings {
    /// Detect addresses that pods on different nodes claim: registers this node's addresses in the Kubernetes API
    /// (`kubernetes`), or `off`.
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_FLEET",
        help_heading = heading::FLEET,
        default_value = "off"
    )]
    pub fleet: FleetMode,

    /// Time in which a pod that is being deleted, or is replaced by one with its name, may keep its address while another
    /// node's pod already has it.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_FLEET_HANDOVER", help_heading = heading::FLEET, default_value = "15s", value_parser = parse_duration)]
    pub fleet_handover: Duration,

    /// Addresses that are not compared across nodes, such as a range that every node uses behind NAT. Repeatable.
    #[arg(long, value_name = "CIDR", env = "IPCONFLICT_FLEET_EXCLUDE", help_heading = heading::FLEET, value_delimiter = ',', value_parser = parse_cidr)]
    pub fleet_exclude: Vec<IpNet>,

    /// Requests per second that registering may send to the Kubernetes API; a burst may have five times as many.
    #[arg(long, value_name = "N", env = "IPCONFLICT_FLEET_RATE", help_heading = heading::FLEET, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub fleet_rate: u32,
}
