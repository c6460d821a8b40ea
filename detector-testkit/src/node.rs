//! A namespace that plays a Kubernetes node, and pods on it: each a namespace of its own and a veth pair whose host end
//! stands in the node's.

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::Deref,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, bail};

use crate::{mac::Mac, netns::Netns};

/// The pod's end of its veth, as every CNI names it.
pub const POD_DEVICE: &str = "eth0";

static NEXT_MAC: AtomicU32 = AtomicU32::new(1);

/// The node: the agent and the host ends of the pods' veths stand in it.
#[derive(Debug)]
pub struct Node {
    netns: Netns,
}

impl Deref for Node {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.netns
    }
}

impl Node {
    /// An empty node with loopback up.
    ///
    /// # Errors
    /// As [`Netns::new`].
    pub fn new(prefix: &str) -> Result<Self> {
        Ok(Self {
            netns: Netns::new(prefix)?,
        })
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Makes one pod.
    ///
    /// # Errors
    /// Where a name is taken, or `ip` refuses what the specification says.
    pub fn add_pod(&self, spec: &PodSpec) -> Result<Pod> {
        self.add_pods(std::slice::from_ref(spec))?
            .pop()
            .context("one pod was asked for")
    }

    /// Makes pods: two `ip` processes for all of them and one for each. Their devices appear first, then their
    /// addresses, then the host ends go up and get their routes.
    ///
    /// # Errors
    /// As [`Node::add_pod`]; what was made is removed again.
    pub fn add_pods(&self, specs: &[PodSpec]) -> Result<Vec<Pod>> {
        let pods = specs
            .iter()
            .map(|spec| {
                Ok(Pod {
                    netns: Netns::bare(&spec.device, spec.uses_ipv6())?,
                    node: self.netns.name().to_owned(),
                    device: spec.device.clone(),
                    mac: spec
                        .mac
                        .unwrap_or_else(|| Mac::local(NEXT_MAC.fetch_add(1, Ordering::Relaxed))),
                    addresses: spec.addresses.clone(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        self.ip_batch(
            specs
                .iter()
                .zip(&pods)
                .map(|(spec, pod)| spec.create_line(pod)),
        )?;
        for (spec, pod) in specs.iter().zip(&pods) {
            if !spec.sysctls.is_empty() {
                self.run_in(|| {
                    spec.sysctls
                        .iter()
                        .try_for_each(|(key, value)| crate::netns::write_sysctl(key, value))
                })?;
            }
            pod.netns.ip_batch(spec.pod_lines())?;
        }
        self.ip_batch(specs.iter().flat_map(PodSpec::host_lines))?;
        Ok(pods)
    }

    /// Deletes pods as a runtime does: the devices first, then their namespaces.
    ///
    /// # Errors
    /// Where a device is gone already.
    pub fn delete_pods(&self, pods: Vec<Pod>) -> Result<()> {
        self.ip_batch(pods.iter().map(|pod| format!("link delete {}", pod.device)))
    }

    /// Makes a bridge with these addresses (`10.244.2.1/24`), up.
    ///
    /// # Errors
    /// Where `ip` refuses.
    pub fn add_bridge(&self, name: &str, addresses: &[&str]) -> Result<()> {
        let mut lines = vec![format!("link add {name} type bridge")];
        lines.extend(
            addresses
                .iter()
                .map(|address| format!("address add {address} dev {name}")),
        );
        lines.push(format!("link set {name} up"));
        self.ip_batch(lines)
    }

    /// Puts a neighbour entry of the kernel's on a device: `state` as `ip neigh` has it, `permanent`, `reachable`, ….
    ///
    /// # Errors
    /// Where `ip` refuses.
    pub fn set_neighbour(
        &self,
        address: IpAddr,
        device: &str,
        mac: Mac,
        state: &str,
    ) -> Result<()> {
        self.ip(&format!(
            "neigh replace {address} lladdr {mac} dev {device} nud {state}"
        ))
        .map(drop)
    }
}

/// What a pod is to look like. The default is quiet: no address, no route, no IPv6, nothing that it would send by
/// itself.
#[derive(Clone, Debug)]
pub struct PodSpec {
    device: String,
    mac: Option<Mac>,
    host_mac: Option<Mac>,
    addresses: Vec<String>,
    host_route: bool,
    default_route: bool,
    master: Option<String>,
    mtu: Option<u32>,
    ipv6: bool,
    sysctls: Vec<(String, String)>,
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

    fn uses_ipv6(&self) -> bool {
        self.ipv6 || self.addresses.iter().any(|address| is_ipv6(address))
    }

    fn create_line(&self, pod: &Pod) -> String {
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

    fn pod_lines(&self) -> Vec<String> {
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

    fn host_lines(&self) -> Vec<String> {
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
    netns: Netns,
    node: String,
    device: String,
    mac: Mac,
    addresses: Vec<String>,
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
