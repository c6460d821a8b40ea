//! What is known of the node, its routes and the cluster.

use crate::diagnosis::known::{Known, UnixTime};

/// The node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// When it booted.
    pub booted: Known<UnixTime>,
    /// When the container runtime started.
    pub runtime_started: Known<UnixTime>,
    /// Since when the network configuration has been as it is.
    pub cni_configured_since: Known<UnixTime>,
    /// The birth of `/etc/cni`.
    pub etc_cni_born: Known<UnixTime>,
    /// The birth of `/opt/cni`.
    pub opt_cni_born: Known<UnixTime>,
    /// The birth of `/var/lib/cni`.
    pub var_lib_cni_born: Known<UnixTime>,
    /// The starts of the network plugin's containers on this node.
    pub plugin_starts: Known<Vec<PluginStart>>,
}

/// A start of one of the network plugin's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginStart {
    /// `namespace/name` of its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// When.
    pub at: UnixTime,
    /// How often it was restarted in this pod.
    pub restarts: u32,
    /// The end of its run before.
    pub end_before: Option<PluginEnd>,
}

/// The end of a container of the network plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginEnd {
    /// When.
    pub at: UnixTime,
    /// The reason and the exit code, as the runtime has them.
    pub why: String,
}

/// An address of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The device that has it.
    pub device: String,
}

/// A Node that has the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRange {
    /// Its name.
    pub node: String,
    /// Who wrote its podCIDR (`metadata.managedFields`).
    pub writer: Known<PodCidrWriter>,
}

/// Who wrote a podCIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCidrWriter {
    /// The field manager.
    pub manager: String,
    /// When.
    pub at: UnixTime,
}

/// Resource versions, which only grow unless a datastore is restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceVersions {
    /// The one that was kept.
    pub before: u64,
    /// When that was read.
    pub kept_at: UnixTime,
    /// The present one, of the same object or server.
    pub now: u64,
    /// When the present one was first seen.
    pub noticed_at: UnixTime,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteFacts {
    /// The device it leads to.
    pub device: String,
    /// Who set it: `bird`, `kernel`, `boot`.
    pub protocol: String,
    /// When it was last changed; `None` if that was before the agent could see it.
    pub changed_at: Option<UnixTime>,
    /// What is behind the device.
    pub holder: Known<RouteHolder>,
}

/// What is behind the device of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteHolder {
    /// A pod that runs: `namespace/name`.
    Pod(String),
    /// What is left of a pod whose sandbox was stopped, or is no longer listed by the runtime.
    DeletedPod,
    /// The node itself, or a network.
    Node,
}

/// Sysctls of a device, `net.ipv4.conf.<device>`, and those of `all` that the kernel combines them with; and what else decides about
/// the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSysctls {
    /// The greater one of `rp_filter` of the device and of `all`, which is what the kernel uses (`IN_DEV_RPFILTER`): 1 is strict.
    pub rp_filter: u8,
    /// Whether `proxy_arp` of the device or of `all` is set (`IN_DEV_PROXY_ARP`).
    pub proxy_arp: bool,
    /// Whether the device has an IPv4 address.
    pub has_address: bool,
}
