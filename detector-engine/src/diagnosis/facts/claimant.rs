//! What is known of one claimant.
//!
//! A sandbox is found by the namespace or the device, never by an address: a pod can assign any address to itself.

use std::net::IpAddr;

use crate::{
    diagnosis::{
        facts::NetworkConfig,
        known::{Known, UnixTime},
    },
    model::EvidenceKind,
};

/// A pod that claims the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimantFacts {
    /// Its device on the node.
    pub device: String,
    /// The bridge that the device is a port of.
    pub bridge: Option<String>,
    /// The name of its node.
    pub node: String,
    /// Its pod.
    pub pod: Known<PodFacts>,
    /// Its sandbox. Absent if no sandbox is known to have ever been behind the device.
    pub sandbox: Known<SandboxFacts>,
    /// What the network plugins returned to its sandbox. Absent if no result is stored.
    pub cni_results: Known<Vec<CniResult>>,
    /// The address in its namespace. Absent only if the namespace was watched for as long as the pod has claimed the address, and its
    /// stack is the kernel's.
    pub assignment: Known<Assignment>,
    /// The addresses that the pool has allocated to its sandbox.
    pub allocated_addresses: Known<Vec<IpAddr>>,
    /// The kinds of evidence for the claim.
    pub evidence: Vec<EvidenceKind>,
    /// Whether the node has a `PERMANENT` neighbour entry for it, which network plugins write.
    pub has_permanent_neighbour: bool,
}

/// A pod's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// `namespace/name`.
    pub name: String,
    /// Its controller.
    pub controller: Option<Controller>,
    /// A label that names software for virtual IPs (keepalived, kube-vip).
    pub vip_label: Option<String>,
    /// Whether its phase is `Running` and it is not being deleted.
    pub is_running: bool,
    /// `status.podIPs`, which kubelet writes.
    pub addresses: Vec<IpAddr>,
    /// When an earlier pod of the same name ended.
    pub earlier_pod_ended: Known<UnixTime>,
}

/// The controller of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Its kind.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

/// A sandbox, as the runtime has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxFacts {
    /// When it was created; of one that is gone, if that is still known.
    pub created: Option<UnixTime>,
    /// Its state.
    pub state: SandboxState,
    /// The addresses of its network status.
    pub addresses: Vec<IpAddr>,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxState {
    /// It runs.
    Ready,
    /// It was stopped.
    NotReady,
    /// The runtime no longer lists the sandbox that the device was created for.
    Gone,
}

/// What a network plugin returned to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniResult {
    /// The network's configuration at that time.
    pub network: NetworkConfig,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// When it was stored, after the plugin had set the sandbox up.
    pub stored_at: Option<UnixTime>,
}

/// An address in a pod's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// When it was assigned; `None` if that was before the agent could see it.
    pub since: Option<UnixTime>,
}
