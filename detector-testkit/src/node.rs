//! A network namespace that acts as a Kubernetes node, with pods: each is a namespace connected to the node's by a veth pair.

mod pod;

use std::{
    net::IpAddr,
    ops::Deref,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, ensure};

use crate::{agent::DEADLINE, mac::MacAddress, netns::Netns, wait::until};
pub use pod::{POD_DEVICE, Pod, PodSpec};

/// The name of the agent's filters.
const FILTER: &str = "ipconflict_arp_ndp";

static NEXT_MAC: AtomicU32 = AtomicU32::new(1);

/// The node's namespace, which contains the agent and the host ends of the pods' veth pairs.
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
    /// Creates a node without pods and with loopback up.
    ///
    /// # Errors
    /// As [`Netns::new`].
    pub fn new(prefix: &str) -> Result<Self> {
        Ok(Self {
            netns: Netns::new(prefix)?,
        })
    }

    /// The namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Creates a pod.
    ///
    /// # Errors
    /// The device name is in use, or `ip` rejects the specification.
    pub fn add_pod(&self, spec: &PodSpec) -> Result<Pod> {
        self.add_pods(std::slice::from_ref(spec))?
            .pop()
            .context("one pod was requested")
    }

    /// Creates pods with two `ip` processes for all of them and one for each. The devices appear first, then their addresses;
    /// then the host ends go up and get their routes.
    ///
    /// # Errors
    /// As [`Node::add_pod`]; what was created is removed again.
    pub fn add_pods(&self, specs: &[PodSpec]) -> Result<Vec<Pod>> {
        let pods = specs
            .iter()
            .map(|spec| {
                Ok(Pod {
                    netns: Netns::bare(&spec.device, spec.uses_ipv6())?,
                    node: self.netns.name().to_owned(),
                    device: spec.device.clone(),
                    mac: spec.mac.unwrap_or_else(|| {
                        MacAddress::local(NEXT_MAC.fetch_add(1, Ordering::Relaxed))
                    }),
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

    /// Deletes pods as a container runtime does: the devices first, then their namespaces.
    ///
    /// # Errors
    /// A device does not exist any more.
    pub fn delete_pods(&self, pods: Vec<Pod>) -> Result<()> {
        self.ip_batch(pods.iter().map(|pod| format!("link delete {}", pod.device)))
    }

    /// Creates a bridge with these addresses (such as `10.244.2.1/24`) and sets it up.
    ///
    /// # Errors
    /// `ip` fails.
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

    /// Waits until both ends of the pods' veth pairs are running, so that what one pod sends arrives at the node and at the
    /// others.
    ///
    /// # Errors
    /// As [`Netns::wait_running`].
    pub fn wait_running(&self, pods: &[Pod]) -> Result<()> {
        pods.iter().try_for_each(|pod| {
            self.netns.wait_running(&pod.device)?;
            pod.netns.wait_running(POD_DEVICE)
        })
    }

    /// The ingress filters of a device, one per line of `tc`.
    ///
    /// # Errors
    /// `tc` fails.
    pub fn filters(&self, device: &str) -> Result<Vec<String>> {
        let listed = self.exec(&["tc", "filter", "show", "dev", device, "ingress"])?;
        let filters = listed.lines().filter(|line| line.contains("handle"));
        Ok(filters.map(str::to_owned).collect())
    }

    /// Waits until a running agent observes the frames of a device by its `clsact` filter. On a busy machine it may attach to
    /// a device that appears while it runs only after the pod's first frames, so a test that sends some waits first.
    ///
    /// # Errors
    /// The agent has not attached to it at the deadline.
    pub fn wait_attached(&self, device: &str) -> Result<()> {
        until(DEADLINE, format_args!("the filter on {device}"), || {
            let filters = self.filters(device)?;
            let is_attached = filters.iter().any(|filter| filter.contains(FILTER));
            ensure!(is_attached, "no filter of the agent: {filters:?}");
            Ok(())
        })
    }

    /// Creates or replaces a neighbour entry on a device; `state` as for `ip neigh`: `permanent`, `reachable`, ….
    ///
    /// # Errors
    /// `ip` fails.
    pub fn set_neighbour(
        &self,
        address: IpAddr,
        device: &str,
        mac: MacAddress,
        state: &str,
    ) -> Result<()> {
        self.ip(&format!(
            "neigh replace {address} lladdr {mac} dev {device} nud {state}"
        ))
        .map(drop)
    }
}
