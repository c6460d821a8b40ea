//! The specification of a pod, and a created pod.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, bail};

use crate::{mac::MacAddress, netns::Netns};

/// The name of the pod's end of its veth pair, as CNI runtimes choose it.
pub const POD_DEVICE: &str = "eth0";

/// The specification of a pod. By default it has no address, no route and no IPv6, so that its kernel sends no frames of its
/// own.
#[derive(Clone, Debug)]
pub struct PodSpec {
    pub(super) device: String,
    pub(super) mac: Option<MacAddress>,
    host_mac: Option<MacAddress>,
    pub(super) addresses: Vec<String>,
    host_route: bool,
    default_route: bool,
    master: Option<String>,
    mtu: Option<u32>,
    ipv6: bool,
    pub(super) sysctls: Vec<(String, String)>,
}

impl PodSpec {
    /// A pod whose host end has this device name (at most 15 bytes).
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            mac: None,
            host_mac: None,
            addresses: Vec::new(),
            host_route: false,
            default_route: false,
            master: None,
            mtu: None,
            ipv6: false,
            sysctls: Vec::new(),
        }
    }

    /// Sets the MAC of the pod's `eth0`; the default is unique for each pod.
    #[must_use]
    pub fn mac(mut self, mac: MacAddress) -> Self {
        self.mac = Some(mac);
        self
    }

    /// Sets the MAC of the host end; Calico uses ee:ee:ee:ee:ee:ee.
    #[must_use]
    pub fn host_mac(mut self, mac: MacAddress) -> Self {
        self.host_mac = Some(mac);
        self
    }

    /// Adds an address to `eth0`, with prefix length: `10.244.2.2/24`. IPv6 addresses skip duplicate address detection, so
    /// that they are usable at once.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Adds a host route (/32, /128) on the node to each address of the pod.
    #[must_use]
    pub fn host_route(mut self) -> Self {
        self.host_route = true;
        self
    }

    /// Adds an on-link default route through `eth0`.
    #[must_use]
    pub fn default_route(mut self) -> Self {
        self.default_route = true;
        self
    }

    /// Makes the host end a port of this bridge.
    #[must_use]
    pub fn master(mut self, bridge: impl Into<String>) -> Self {
        self.master = Some(bridge.into());
        self
    }

    /// Sets the MTU of both ends.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Enables IPv6 in the pod (link-local address, DAD, router solicitations) even without an IPv6 address.
    #[must_use]
    pub fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// Sets `proxy_arp` on the host end, as Calico does.
    #[must_use]
    pub fn proxy_arp(self) -> Self {
        self.host_sysctl("proxy_arp", "1")
    }

    /// Sets `rp_filter` on the host end: 0 off, 1 strict, 2 loose.
    #[must_use]
    pub fn rp_filter(self, value: u8) -> Self {
        self.host_sysctl("rp_filter", &value.to_string())
    }

    fn host_sysctl(mut self, key: &str, value: &str) -> Self {
        // A dot in a device name is written as a slash in a parameter name.
        let device = self.device.replace('.', "/");
        self.sysctls
            .push((format!("net.ipv4.conf.{device}.{key}"), value.to_owned()));
        self
    }

    pub(super) fn uses_ipv6(&self) -> bool {
        self.ipv6 || self.addresses.iter().any(|address| is_ipv6(address))
    }

    pub(super) fn create_line(&self, pod: &Pod) -> String {
        let mtu = self
            .mtu
            .map(|mtu| format!(" mtu {mtu}"))
            .unwrap_or_default();
        let host_mac = self
            .host_mac
            .map(|mac| format!(" address {mac}"))
            .unwrap_or_default();
        format!(
            "link add {}{host_mac}{mtu} type veth peer name {POD_DEVICE} address {}{mtu} netns {}",
            self.device,
            pod.mac,
            pod.netns.name()
        )
    }

    pub(super) fn pod_lines(&self) -> Vec<String> {
        let mut lines = vec!["link set lo up".to_owned()];
        lines.extend(
            self.addresses
                .iter()
                .map(|address| address_line("add", address)),
        );
        lines.push(format!("link set {POD_DEVICE} up"));
        if self.default_route {
            lines.push(format!("route add default dev {POD_DEVICE}"));
        }
        lines
    }

    pub(super) fn host_lines(&self) -> Vec<String> {
        let device = &self.device;
        let mut lines = Vec::new();
        if let Some(master) = &self.master {
            lines.push(format!("link set {device} master {master}"));
        }
        lines.push(format!("link set {device} up"));
        if self.host_route {
            lines.extend(self.addresses.iter().map(|address| {
                let (host, _) = address.split_once('/').unwrap_or((address, ""));
                if is_ipv6(address) {
                    format!("route add {host}/128 dev {device}")
                } else {
                    format!("route add {host}/32 dev {device} scope link")
                }
            }));
        }
        lines
    }
}

/// A pod: its namespace, and a veth pair to the node. Dropping it removes the namespace, and the kernel then removes the veth
/// pair; [`Pod::delete`] does the same as a container runtime.
#[derive(Debug)]
pub struct Pod {
    pub(super) netns: Netns,
    pub(super) node: String,
    pub(super) device: String,
    pub(super) mac: MacAddress,
    pub(super) addresses: Vec<String>,
}

impl Pod {
    /// The namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The name of the host end.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The MAC of `eth0`.
    #[must_use]
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// The addresses of its specification, without prefix length.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.addresses
            .iter()
            .filter_map(|text| text.split('/').next()?.parse().ok())
            .collect()
    }

    /// The first IPv4 address of its specification.
    ///
    /// # Errors
    /// The specification contains none.
    pub fn ipv4(&self) -> Result<Ipv4Addr> {
        for address in self.addresses() {
            if let IpAddr::V4(address) = address {
                return Ok(address);
            }
        }
        bail!(
            "the pod on {} was specified without an IPv4 address",
            self.device
        )
    }

    /// Adds an address (such as `10.0.0.1/32`) to `eth0`; the kernel does not announce IPv4 addresses.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn add_address(&self, address: &str) -> Result<()> {
        self.netns.ip(&address_line("add", address)).map(drop)
    }

    /// Removes an address from `eth0`.
    ///
    /// # Errors
    /// The address does not exist.
    pub fn remove_address(&self, address: &str) -> Result<()> {
        self.netns.ip(&address_line("delete", address)).map(drop)
    }

    /// Deletes the pod as a container runtime does: the device first, then the namespace. The device no longer exists when this
    /// returns.
    ///
    /// # Errors
    /// The device does not exist any more.
    pub fn delete(self) -> Result<()> {
        let mut command = std::process::Command::new("ip");
        command.args(["-n", &self.node, "link", "delete", &self.device]);
        crate::command::run_command(command, None).map(drop)
    }
}

fn is_ipv6(address: &str) -> bool {
    address.contains(':')
}

fn address_line(verb: &str, address: &str) -> String {
    let nodad = if verb == "add" && is_ipv6(address) {
        " nodad"
    } else {
        ""
    };
    format!("address {verb} {address} dev {POD_DEVICE}{nodad}")
}
