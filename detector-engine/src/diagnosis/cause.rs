//! The causes of conflicts and anomalies, and how sure a diagnosis is.

/// Why two pods have one address, or why an anomaly was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The state of `host-local` was deleted while pods were running.
    IpamStateWiped,
    /// The state of `host-local` did not survive a restart.
    IpamStateNotPersistent,
    /// A clean-up of the node deleted the state together with the network configuration.
    NodeReset,
    /// IPAM released the address of a running pod.
    ReleasedInUse,
    /// IPAM's record has two owners for the address.
    AllocatedTwice,
    /// The allocation's handle is that of every pod of this name.
    SharedHandle,
    /// Calico's block was deleted and created again.
    BlockRecreated,
    /// The AWS VPC CNI's ipamd lost the allocation in a restart.
    IpamDaemonForgot,
    /// The datastore went back to an earlier state.
    DatastoreRestored,
    /// Two networks assign addresses from overlapping ranges.
    TwoAllocators,
    /// A pod assigned the address to itself.
    NotFromIpam,
    /// A pod announces the address without having it.
    FramesOnly,
    /// A device was left over from a pod that was deleted.
    SandboxGone,
    /// Two nodes have the range.
    PodCidrTwice,
    /// An address of the node is in the range that pods are given addresses from.
    NodeAddressInRange,
    /// The address is meant to move between its holders.
    SharedOnPurpose,
    /// The kernel drops the pod's requests because its route to the pod leads elsewhere.
    ReversePathFilter,
    /// The node does not answer for a gateway that it does not have.
    NoProxyArp,
    /// The node has no route by which it would answer.
    NoRoute,
    /// The route leads to a device that was left over from a deleted pod.
    RouteOfDeletedPod,
    /// The route leads to another pod.
    RouteOfOtherPod,
    /// None of the others is proven or likely.
    Unknown,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 22] = [
        Self::IpamStateWiped,
        Self::IpamStateNotPersistent,
        Self::NodeReset,
        Self::ReleasedInUse,
        Self::AllocatedTwice,
        Self::SharedHandle,
        Self::BlockRecreated,
        Self::IpamDaemonForgot,
        Self::DatastoreRestored,
        Self::TwoAllocators,
        Self::NotFromIpam,
        Self::FramesOnly,
        Self::SandboxGone,
        Self::PodCidrTwice,
        Self::NodeAddressInRange,
        Self::SharedOnPurpose,
        Self::ReversePathFilter,
        Self::NoProxyArp,
        Self::NoRoute,
        Self::RouteOfDeletedPod,
        Self::RouteOfOtherPod,
        Self::Unknown,
    ];

    /// The name used in events and metrics (`docs/events.md`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IpamStateWiped => "ipam_state_wiped",
            Self::IpamStateNotPersistent => "ipam_state_not_persistent",
            Self::NodeReset => "node_reset",
            Self::ReleasedInUse => "released_in_use",
            Self::AllocatedTwice => "allocated_twice",
            Self::SharedHandle => "shared_handle",
            Self::BlockRecreated => "block_recreated",
            Self::IpamDaemonForgot => "ipam_daemon_forgot",
            Self::DatastoreRestored => "datastore_restored",
            Self::TwoAllocators => "two_allocators",
            Self::NotFromIpam => "not_from_ipam",
            Self::FramesOnly => "frames_only",
            Self::SandboxGone => "sandbox_gone",
            Self::PodCidrTwice => "pod_cidr_twice",
            Self::NodeAddressInRange => "node_address_in_range",
            Self::SharedOnPurpose => "shared_on_purpose",
            Self::ReversePathFilter => "reverse_path_filter",
            Self::NoProxyArp => "no_proxy_arp",
            Self::NoRoute => "no_route",
            Self::RouteOfDeletedPod => "route_of_deleted_pod",
            Self::RouteOfOtherPod => "route_of_other_pod",
            Self::Unknown => "unknown",
        }
    }
}

/// How sure a diagnosis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CauseConfidence {
    /// The facts leave no other cause of the table.
    Proven,
    /// The facts fit, and some that would prove it are not known.
    Likely,
}

impl CauseConfidence {
    /// The name used in events and metrics (`docs/events.md`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Likely => "likely",
        }
    }
}
