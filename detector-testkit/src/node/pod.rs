//! A pod: what it is to look like, and one that is there.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, bail};

use crate::{mac::Mac, netns::Netns};

/// The pod's end of its veth, as every CNI names it.
pub const POD_DEVICE: &str = "eth0";

/// What a pod is to look like. The default is quiet: no address, no route, no IPv6, nothing that it would send by
/// itself.
#[derive(Clone, Debug)]
pub struct PodSpec {
    pub(super) device: String,
    pub(super) mac: Option<Mac>,
    host_mac: Option<Mac>,
    pub(super) addresses: Vec<String>,
    host_route: bool,
    default_route: bool,
    master: Option<String>,
    mtu: Option<u32>,
    ipv6: bool,
    pub(super) sysctls: Vec<(String, String)>,
}

impl PodSpec {
    /// A pod whose host end has this name (at most 15 bytes).
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

    /// The MAC of the pod's `eth0`; without one each pod gets its own.
    #[must_use]
    pub fn mac(mut self, mac: Mac) -> Self {
        self.mac = Some(mac);
        self
    }

    /// The MAC of the host end; Calico sets ee:ee:ee:ee:ee:ee.
    #[must_use]
    pub fn host_mac(mut self, mac: Mac) -> Self {
        self.host_mac = Some(mac);
        self
    }

    /// One more address on `eth0`, with its prefix length: `10.244.2.2/24`. IPv6 ones come without duplicate address
    /// detection, so that they are usable at once.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// The host gets a route to each address of the pod (/32, /128, scope link).
    #[must_use]
    pub fn host_route(mut self) -> Self {
        self.host_route = true;
        self
    }

    /// The pod's default route goes out of `eth0`, on-link.
    #[must_use]
    pub fn default_route(mut self) -> Self {
        self.default_route = true;
        self
    }

    /// The host end is a port of this bridge.
    #[must_use]
    pub fn master(mut self, bridge: impl Into<String>) -> Self {
        self.master = Some(bridge.into());
        self
    }

    /// The MTU of both ends.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// IPv6 runs in the pod (link-local address, DAD, router solicitations) even without an IPv6 address of its own.
    #[must_use]
    pub fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// `proxy_arp` on the host end, as Calico sets it.
    #[must_use]
    pub fn proxy_arp(self) -> Self {
        self.host_sysctl("proxy_arp", "1")
    }

    /// `rp_filter` on the host end: 0 off, 1 strict, 2 loose.
    #[must_use]
    pub fn rp_filter(self, value: u8) -> Self {
        self.host_sysctl("rp_filter", &value.to_string())
    }

    fn host_sysctl(mut self, key: &str, value: &str) -> Self {
        // A dot in a device's name is a slash in a parameter's.
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

/// A pod: its namespace, and a veth pair to the node. Dropping it removes the namespace, and the kernel then the veth;
/// [`Pod::delete`] is the orderly way.
#[derive(Debug)]
pub struct Pod {
    pub(super) netns: Netns,
    pub(super) node: String,
    pub(super) device: String,
    pub(super) mac: Mac,
    pub(super) addresses: Vec<String>,
}

impl Pod {
    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The host end's name.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The MAC of its `eth0`.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The addresses it was made with, without prefix length.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.addresses
            .iter()
            .filter_map(|text| text.split('/').next()?.parse().ok())
            .collect()
    }

    /// The first IPv4 address it was made with.
    ///
    /// # Errors
    /// Where it has none.
    pub fn ipv4(&self) -> Result<Ipv4Addr> {
        for address in self.addresses() {
            if let IpAddr::V4(address) = address {
                return Ok(address);
            }
        }
        bail!(
            "the pod on {} was made without an IPv4 address",
            self.device
        )
    }

    /// Adds an address (`10.0.0.1/32`) to its `eth0`; the kernel sends nothing for an IPv4 one.
    ///
    /// # Errors
    /// Where `ip` refuses.
    pub fn add_address(&self, address: &str) -> Result<()> {
        self.netns.ip(&address_line("add", address)).map(drop)
    }

    /// Removes an address from its `eth0`.
    ///
    /// # Errors
    /// Where it is not there.
    pub fn remove_address(&self, address: &str) -> Result<()> {
        self.netns.ip(&address_line("delete", address)).map(drop)
    }

    /// Deletes it as a runtime does: the device first, then the namespace. The device is gone when this returns.
    ///
    /// # Errors
    /// Where the device is gone already.
    pub fn delete(self) -> Result<()> {
        let mut command = std::process::Command::new("ip");
        command.args(["-n", &self.node, "link", "delete", &self.device]);
        crate::netns::finish(command, None).map(drop)
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
