//! The table of causes: for each one what proves it, what makes it only likely, and what rules it out.

mod allocation;
mod claimant;
mod cluster;
mod host_local;
mod routing;

use crate::{
    diagnosis::{
        Evidence,
        cause::Cause,
        facts::{Facts, FindingKind},
        known::UnixTime,
    },
    model::{AnomalyKind, ConflictKind},
};

/// What speaks for a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proof {
    /// The facts.
    pub(super) evidence: Vec<Evidence>,
    /// When the cause began.
    pub(super) since: Option<UnixTime>,
    /// Whether it affects all pods of the pool that have no allocation, rather than the claimants alone.
    pub(super) affects_pool: bool,
}

impl Proof {
    fn of_claimants(
        since: Option<UnixTime>,
        evidence: impl IntoIterator<Item = Option<Evidence>>,
    ) -> Self {
        Self {
            evidence: evidence.into_iter().flatten().collect(),
            since,
            affects_pool: false,
        }
    }

    fn of_pool(
        since: Option<UnixTime>,
        evidence: impl IntoIterator<Item = Option<Evidence>>,
    ) -> Self {
        Self {
            affects_pool: true,
            ..Self::of_claimants(since, evidence)
        }
    }

    fn and(mut self, more: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(more);
        self
    }
}

/// A row of the table.
pub(super) struct Rule {
    pub(super) cause: Cause,
    /// The findings that it can explain.
    pub(super) applies_to: &'static [FindingKind],
    pub(super) proven: fn(&Facts) -> Option<Proof>,
    pub(super) likely: fn(&Facts) -> Option<Proof>,
    /// Never true of facts that prove it.
    pub(super) is_ruled_out: fn(&Facts) -> bool,
}

const DUPLICATE: FindingKind = FindingKind::Conflict(ConflictKind::Duplicate);
const HOST: FindingKind = FindingKind::Conflict(ConflictKind::Host);
const FLAPPING: FindingKind = FindingKind::Conflict(ConflictKind::Flapping);
const DRIFT: FindingKind = FindingKind::Anomaly(AnomalyKind::IpamDrift);
const OVERLAP: FindingKind = FindingKind::Anomaly(AnomalyKind::PodCidrOverlap);
const GATEWAY: FindingKind = FindingKind::Anomaly(AnomalyKind::GatewayUnresolved);
const ASTRAY: FindingKind = FindingKind::Anomaly(AnomalyKind::RouteAstray);

/// Nothing makes the cause likely: it is proven or not known.
fn never(_: &Facts) -> Option<Proof> {
    None
}

/// In the order in which they are asked; the first that is proven is the cause, else the first that is likely.
///
/// - What explains the claim of one pod alone comes first: the state of IPAM did not decide about an address that a pod took.
/// - Two networks come before the state of either: neither asks the other one's.
/// - Two owners, or an owner that is shared, are in a record that has the address; what follows needs one that has it not.
/// - `datastore_restored` explains a block that is older or younger than the pods.
/// - `node_reset` and `ipam_state_not_persistent` refine `ipam_state_wiped`. Of these two `node_reset` wins, because a clean-up
///   restarts the runtime as well; unless a boot emptied the file system, after which all directories are young.
/// - `ipam_state_wiped` comes before `released_in_use`: if the agent saw the reservations of most pods go, each of them is a released
///   one too.
pub(super) const RULES: [Rule; 21] = [
    Rule {
        cause: Cause::PodCidrTwice,
        applies_to: &[OVERLAP, DUPLICATE],
        proven: cluster::two_nodes_have_range,
        likely: never,
        is_ruled_out: cluster::one_node_has_range,
    },
    Rule {
        cause: Cause::SandboxGone,
        applies_to: &[DUPLICATE, HOST, DRIFT],
        proven: claimant::sandbox_is_gone,
        likely: claimant::sandbox_is_not_ready,
        is_ruled_out: claimant::all_sandboxes_run,
    },
    Rule {
        cause: Cause::NotFromIpam,
        applies_to: &[DUPLICATE, HOST, DRIFT],
        proven: claimant::address_is_self_assigned,
        likely: claimant::ipam_gives_another_address,
        is_ruled_out: claimant::all_were_given_the_address,
    },
    Rule {
        cause: Cause::FramesOnly,
        applies_to: &[DUPLICATE, HOST],
        proven: claimant::address_is_only_announced,
        likely: never,
        is_ruled_out: claimant::all_have_the_address,
    },
    Rule {
        cause: Cause::NodeAddressInRange,
        applies_to: &[HOST],
        proven: cluster::pool_gave_address_of_node,
        likely: never,
        is_ruled_out: cluster::address_is_reserved_for_node,
    },
    Rule {
        cause: Cause::TwoAllocators,
        applies_to: &[DUPLICATE, DRIFT],
        proven: allocation::two_networks_gave_address,
        likely: never,
        is_ruled_out: allocation::one_network_gave_address,
    },
    Rule {
        cause: Cause::AllocatedTwice,
        applies_to: &[DUPLICATE, DRIFT],
        proven: allocation::address_has_two_owners,
        likely: never,
        is_ruled_out: allocation::address_has_at_most_one_owner,
    },
    Rule {
        cause: Cause::SharedHandle,
        applies_to: &[DUPLICATE, DRIFT],
        proven: allocation::handle_is_shared_with_earlier_pod,
        likely: never,
        is_ruled_out: allocation::no_handle_is_a_pod_name,
    },
    Rule {
        cause: Cause::DatastoreRestored,
        applies_to: &[DUPLICATE, DRIFT],
        proven: cluster::resource_version_went_back,
        likely: never,
        is_ruled_out: cluster::resource_version_grew,
    },
    Rule {
        cause: Cause::BlockRecreated,
        applies_to: &[DUPLICATE, DRIFT],
        proven: allocation::block_is_younger_than_pod,
        likely: allocation::block_is_younger_and_maybe_restored,
        is_ruled_out: allocation::block_is_older_than_pods,
    },
    Rule {
        cause: Cause::IpamDaemonForgot,
        applies_to: &[DUPLICATE, DRIFT],
        proven: allocation::daemon_started_after_pod,
        likely: never,
        is_ruled_out: allocation::daemon_started_before_pods,
    },
    Rule {
        cause: Cause::NodeReset,
        applies_to: &[DUPLICATE, DRIFT],
        proven: host_local::node_was_cleaned,
        likely: never,
        is_ruled_out: host_local::node_was_not_cleaned,
    },
    Rule {
        cause: Cause::IpamStateNotPersistent,
        applies_to: &[DUPLICATE, DRIFT],
        proven: host_local::state_was_lost_in_restart,
        likely: never,
        is_ruled_out: host_local::nothing_restarted,
    },
    Rule {
        cause: Cause::IpamStateWiped,
        applies_to: &[DUPLICATE, DRIFT],
        proven: host_local::state_was_deleted,
        likely: host_local::most_pods_lack_reservations,
        is_ruled_out: host_local::other_pods_have_reservations,
    },
    Rule {
        cause: Cause::ReleasedInUse,
        applies_to: &[DUPLICATE, DRIFT],
        proven: allocation::live_lease_was_released,
        likely: allocation::allocation_names_another_node,
        is_ruled_out: allocation::state_is_younger_than_pods,
    },
    Rule {
        cause: Cause::SharedOnPurpose,
        applies_to: &[DUPLICATE, FLAPPING],
        proven: never,
        likely: claimant::address_moves_between_holders,
        is_ruled_out: claimant::address_was_given_or_stays,
    },
    // In the order in which the kernel looks (net/ipv4/arp.c, arp_process): the source and the route first, then proxy ARP.
    Rule {
        cause: Cause::ReversePathFilter,
        applies_to: &[GATEWAY],
        proven: routing::filter_drops_requests,
        likely: never,
        is_ruled_out: routing::filter_passes_requests,
    },
    Rule {
        cause: Cause::NoRoute,
        applies_to: &[GATEWAY],
        proven: routing::node_has_no_route,
        likely: never,
        is_ruled_out: routing::node_has_routes,
    },
    Rule {
        cause: Cause::NoProxyArp,
        applies_to: &[GATEWAY],
        proven: routing::proxy_arp_is_off,
        likely: never,
        is_ruled_out: routing::node_answers_for_gateway,
    },
    Rule {
        cause: Cause::RouteOfDeletedPod,
        applies_to: &[ASTRAY],
        proven: routing::route_leads_to_deleted_pod,
        likely: never,
        is_ruled_out: routing::route_does_not_lead_to_deleted_pod,
    },
    Rule {
        cause: Cause::RouteOfOtherPod,
        applies_to: &[ASTRAY],
        proven: routing::route_leads_to_other_pod,
        likely: never,
        is_ruled_out: routing::route_does_not_lead_to_other_pod,
    },
];
