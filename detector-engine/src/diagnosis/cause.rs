//! The causes of conflicts and anomalies, and how sure a diagnosis is.

use crate::names::named;

named! {
    /// Why two pods have one address, or why an anomaly was raised.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Cause {
        /// The state of `host-local` was deleted while pods were running.
        IpamStateWiped = "ipam_state_wiped",
        /// The state of `host-local` did not survive a restart.
        IpamStateNotPersistent = "ipam_state_not_persistent",
        /// A clean-up of the node deleted the state together with the network configuration.
        NodeReset = "node_reset",
        /// IPAM released the address of a running pod.
        ReleasedInUse = "released_in_use",
        /// IPAM's record has two owners for the address.
        AllocatedTwice = "allocated_twice",
        /// The allocation's handle is that of every pod of this name.
        SharedHandle = "shared_handle",
        /// Calico's block was deleted and created again.
        BlockRecreated = "block_recreated",
        /// The AWS VPC CNI's ipamd lost the allocation in a restart.
        IpamDaemonForgot = "ipam_daemon_forgot",
        /// The datastore went back to an earlier state.
        DatastoreRestored = "datastore_restored",
        /// Two networks assign addresses from overlapping ranges.
        TwoAllocators = "two_allocators",
        /// A pod assigned the address to itself.
        NotFromIpam = "not_from_ipam",
        /// A pod announces the address without having it.
        FramesOnly = "frames_only",
        /// A device was left over from a pod that was deleted.
        SandboxGone = "sandbox_gone",
        /// Two nodes have the range.
        PodCidrTwice = "pod_cidr_twice",
        /// An address of the node is in the range that pods are given addresses from.
        NodeAddressInRange = "node_address_in_range",
        /// The address is meant to move between its holders.
        SharedOnPurpose = "shared_on_purpose",
        /// The kernel drops the pod's requests because its route to the pod leads elsewhere.
        ReversePathFilter = "reverse_path_filter",
        /// The node does not answer for a gateway that it does not have.
        NoProxyArp = "no_proxy_arp",
        /// The node has no route by which it would answer.
        NoRoute = "no_route",
        /// The route leads to a device that was left over from a deleted pod.
        RouteOfDeletedPod = "route_of_deleted_pod",
        /// The route leads to another pod.
        RouteOfOtherPod = "route_of_other_pod",
        /// None of the others is proven or likely.
        Unknown = "unknown",
    }
}

named! {
    /// How sure a diagnosis is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum CauseConfidence {
        /// The facts leave no other cause of the table.
        Proven = "proven",
        /// The facts fit, and some that would prove it are not known.
        Likely = "likely",
    }
}
