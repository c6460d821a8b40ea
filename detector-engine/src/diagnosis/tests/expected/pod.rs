//! What the table needs to know of one claimant.

use super::*;

/// What the facts of one claimant come to.
pub(super) struct Pod {
    pub(super) node: String,
    /// The times between which it was given the address.
    pub(super) given_from: Time,
    pub(super) given_by: Time,
    /// When the agent last saw its allocation, which is gone.
    pub(super) seen: Time,
    /// When it had its allocation for the last time that is known.
    pub(super) had_it: Time,
    pub(super) is_ready: bool,
    pub(super) is_stopped: bool,
    pub(super) is_gone: bool,
    pub(super) is_running_pod: bool,
    /// The network that gave it the address.
    pub(super) network: Option<NetworkConfig>,
    pub(super) given: Option<bool>,
    pub(super) allocated: Option<bool>,
    pub(super) assigned: bool,
    pub(super) only_announced: bool,
    pub(super) likely_other: bool,
    pub(super) has_result: bool,
    pub(super) runtime_has_it: bool,
    pub(super) result_missing: bool,
    pub(super) keeps_name: bool,
    pub(super) vip_label: bool,
    pub(super) controller: Option<(String, String, String)>,
    pub(super) is_pod_known: bool,
}

pub(super) fn pods(facts: &Facts) -> Vec<Pod> {
    (0..facts.claimants.len())
        .map(|index| pod(facts, index))
        .collect()
}

fn pod(facts: &Facts, index: usize) -> Pod {
    let c = &facts.claimants[index];
    let sandbox = c.sandbox.value();
    let state = sandbox.map(|s| s.state);
    let object = c.pod.value();
    let created = sandbox.and_then(|s| s.created);
    let owners = match facts.pool.value().map(|pool| &pool.owners) {
        Some(Known::Value(owners, _)) => Some(owners.clone()),
        Some(Known::Absent(_)) => Some(Vec::new()),
        _ => None,
    };
    let allocated = owners.and_then(|owners| {
        let mut names_it = false;
        let mut is_unclear = false;
        for owner in owners {
            match owner.is {
                OwnedBy::Claimants(claimants) => names_it |= claimants.contains(&index),
                OwnedBy::NotComparable => is_unclear = true,
                OwnedBy::Node | OwnedBy::Other => {}
            }
        }
        if names_it {
            Some(true)
        } else if is_unclear {
            None
        } else {
            Some(false)
        }
    });
    let mut network = None;
    let mut stored_at = None;
    for result in c.cni_results.value().into_iter().flatten() {
        if network.is_none() && result.addresses.contains(&facts.address) {
            network = Some(result.network.clone());
            stored_at = result.stored_at;
        }
    }
    let has_result = c.cni_results.value().is_some();
    let recorded = sandbox.is_some_and(|s| s.addresses.contains(&facts.address))
        || object.is_some_and(|o| o.addresses.contains(&facts.address))
        || allocated == Some(true);
    let given = match (has_result, recorded) {
        (true, _) => Some(network.is_some()),
        (false, true) => Some(true),
        (false, false) => None,
    };
    let is_gone = state == Some(SandboxState::Gone);
    let has_address = c.evidence.contains(&EvidenceKind::Address);
    let assigned = has_address || c.assignment.value().is_some();
    let announces =
        c.evidence.contains(&EvidenceKind::Arp) || c.evidence.contains(&EvidenceKind::Ndp);
    let other = c
        .allocated_addresses
        .value()
        .is_some_and(|own| own.iter().any(IpAddr::is_ipv4) && !own.contains(&facts.address));
    let result_missing = c.cni_results.is_absent();
    let given_from = created.map(|created| created.max(stored_at.unwrap_or(created)));
    let given_by = created.map(|created| {
        let latest = UnixTime(created.0 + 240 * SECOND);
        let assigned = c.assignment.value().and_then(|a| a.since);
        created.max(stored_at.or(assigned).unwrap_or(latest))
    });
    let mut seen = None;
    let releases = facts.pool.value().and_then(|pool| pool.releases.value());
    for release in releases.into_iter().flatten() {
        let is_its = matches!(&release.of, OwnedBy::Claimants(of) if of.contains(&index));
        let is_of_sandbox = created.is_some_and(|created| release.seen >= created);
        let until = release.at.unwrap_or(release.seen);
        if is_its && is_of_sandbox && given_by.is_some_and(|at| until >= at) {
            seen = seen.max(given_by.max(Some(release.seen)));
        }
    }
    Pod {
        node: c.node.clone(),
        given_from,
        given_by,
        seen,
        had_it: seen.or(given_from),
        is_ready: state == Some(SandboxState::Ready),
        is_stopped: state == Some(SandboxState::NotReady),
        is_gone,
        is_running_pod: object.is_some_and(|o| o.is_running),
        only_announced: c.assignment.is_absent()
            && announces
            && !has_address
            && !c.has_permanent_neighbour
            && given != Some(true)
            && !is_gone,
        likely_other: result_missing && assigned && given.is_none() && other,
        network,
        given,
        allocated,
        assigned,
        has_result,
        runtime_has_it: sandbox.is_some_and(|s| s.addresses.contains(&facts.address)),
        result_missing,
        keeps_name: object.is_some_and(|o| {
            o.earlier_pod_ended.value().is_some()
                || o.controller
                    .as_ref()
                    .is_some_and(|c| c.kind == "StatefulSet")
        }),
        vip_label: object.is_some_and(|o| o.vip_label.is_some()),
        controller: object.and_then(|o| {
            let controller = o.controller.clone()?;
            let namespace = o.name.split('/').next()?.to_owned();
            Some((namespace, controller.kind, controller.name))
        }),
        is_pod_known: object.is_some(),
    }
}

impl Pod {
    pub(super) fn took_it(&self) -> bool {
        self.given == Some(false) && self.assigned && !self.is_gone
    }

    pub(super) fn is_outside_ipam(&self) -> bool {
        self.is_gone || self.took_it() || self.only_announced
    }
}
