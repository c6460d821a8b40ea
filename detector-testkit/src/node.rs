//! A namespace that plays a Kubernetes node, and pods on it: each a namespace of its own and a veth pair whose host end
//! stands in the node's.

mod pod;

use std::{
    net::IpAddr,
    ops::Deref,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result};

use crate::{mac::Mac, netns::Netns};
pub use pod::{POD_DEVICE, Pod, PodSpec};

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
