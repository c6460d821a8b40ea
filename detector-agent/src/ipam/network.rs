//! A network of the node.

use std::{net::IpAddr, ops::RangeInclusive, path::PathBuf};

use detector_engine::Ipam;

/// A network, and the IPAM that assigns its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    /// The network's name.
    pub(super) name: String,
    /// Its IPAM, if that can be read.
    pub(super) ipam: Option<Ipam>,
    /// The type of its IPAM in the configuration, or of a plugin that has one of its own.
    pub(super) ipam_type: String,
    /// The plugin that creates the pods' devices.
    pub(super) plugin: String,
    /// Prefix of the names of these devices, if it is configured.
    pub(super) device_prefix: Option<String>,
    /// Of `host-local`: the directory with a subdirectory per network.
    pub(super) data_dir: Option<PathBuf>,
    /// Of `host-local`: the addresses it assigns; empty if the configuration leaves them to another program.
    pub(super) ranges: Vec<RangeInclusive<IpAddr>>,
    /// It is in the file that container runtimes use.
    pub(super) is_first: bool,
}
