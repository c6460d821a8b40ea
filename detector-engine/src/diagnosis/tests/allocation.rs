//! What IPAM's record says, and what it does not say.

use super::*;

fn owners(facts: &mut Facts, owners: &[OwnedBy]) {
    pool_of(facts).owners = known(owners.iter().cloned().map(owner).collect());
}

#[test]
fn released_lease_names_its_time_and_who_started_before() {
    let mut facts = released_in_use();
    let removal = |at| Removal {
        item: RemovedItem::Reservation(address()),
        at: minute(at),
    };
    if let PoolState::HostLocal { removals, .. } = &mut pool_of(&mut facts).state {
        *removals = known(vec![removal(50), removal(400)]);
    }
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::ReleasedInUse);
    assert_eq!(diagnosis.since, Some(minute(400)));
    let names_plugin = |diagnosis: &Diagnosis| {
        let mut facts = diagnosis.evidence.iter().map(|evidence| &evidence.fact);
        facts.any(|fact| fact.contains("kindnet-x was started (restart 2)"))
    };
    assert!(names_plugin(&diagnosis), "{diagnosis:#?}");
    facts.node.plugin_starts = known(vec![plugin_start(300)]);
    assert!(!names_plugin(&diagnose(&facts)));
}

#[test]
fn lease_is_not_released_while_the_pod_has_it_or_is_gone() {
    let mut owned = released_in_use();
    owners(&mut owned, &[OwnedBy::Claimants(vec![0])]);
    // B was given the address too, and nothing says by what.
    owned.claimants[1].cni_results = not_checked();
    owned.node.cni_configured_since = not_checked();
    assert_eq!(diagnose(&owned).cause, Cause::Unknown);
    let mut stopped = released_in_use();
    sandbox_of(&mut stopped, 0).state = SandboxState::NotReady;
    assert_eq!(
        verdict(&stopped),
        (Cause::SandboxGone, CauseConfidence::Likely)
    );
    let mut unclear = released_in_use();
    owners(&mut unclear, &[OwnedBy::NotComparable]);
    assert_eq!(diagnose(&unclear).cause, Cause::Unknown);
}

#[test]
fn lease_in_the_datastore_may_be_lost_in_a_restore_that_nobody_noticed() {
    for mut facts in [released_by_calico(), released_reservation()] {
        assert_eq!(diagnose(&facts).cause, Cause::ReleasedInUse);
        for versions in [absent(), not_checked()] {
            facts.resource_versions = versions;
            assert_eq!(diagnose(&facts).cause, Cause::Unknown);
        }
    }
    let mut young_agent = released_by_calico();
    if let Known::Value(versions, _) = &mut young_agent.resource_versions {
        versions.kept_at = minute(A_CREATED + 1);
    }
    assert_eq!(diagnose(&young_agent).cause, Cause::Unknown);
}

#[test]
fn allocation_that_was_seen_proves_its_release() {
    let with = |release: Release, block: u64| {
        let mut facts = released_from_older_pod();
        let pool = pool_of(&mut facts);
        pool.releases = known(vec![release]);
        if let PoolState::Calico { block_created, .. } = &mut pool.state {
            *block_created = known(minute(block));
        }
        diagnose(&facts)
    };
    let between_two_runs = with(release(0, 350, None), 0);
    assert_eq!(between_two_runs.cause, Cause::ReleasedInUse);
    assert_eq!(between_two_runs.since, None);
    let last_seen = "the agent last saw 10.244.2.5 allocated to shop/web-1";
    let mut evidence = between_two_runs.evidence.iter();
    assert!(evidence.any(|e| e.fact == last_seen && e.at == Some(minute(350))));
    assert_eq!(with(release(0, 350, 400), 380).cause, Cause::BlockRecreated);
    // The datastore may have been replaced since; it was the allocation of another pod, or of an earlier one; the present block had it.
    let of_another = Release {
        of: OwnedBy::Other,
        ..release(0, 350, 400)
    };
    for (release, block) in [
        (release(0, 250, 400), 0),
        (of_another, 0),
        (release(0, A_CREATED - 1, 400), 0),
        (release(0, 350, 400), 200),
    ] {
        assert_eq!(with(release, block).cause, Cause::Unknown);
    }
}

/// The pool is read between the sandbox and the network plugin's result, and then not before the release.
#[test]
fn allocation_that_went_after_the_pod_was_set_up_was_there_meanwhile() {
    let with = |stored: u64, release: Release| {
        let mut facts = released_by_calico();
        pool_of(&mut facts).releases = known(vec![release]);
        if let Known::Value(results, _) = &mut facts.claimants[0].cni_results {
            results[0].stored_at = Some(minute(stored));
        }
        diagnose(&facts)
    };
    let set_up = A_CREATED + 2;
    let found = with(set_up, release(0, A_CREATED + 1, 400));
    assert_eq!(found.cause, Cause::ReleasedInUse);
    assert_eq!(found.since, Some(minute(400)));
    // It is not known when it went, or it went before.
    for at in [None, Some(set_up - 1)] {
        let found = with(set_up, release(0, A_CREATED + 1, at));
        assert_eq!(found.since, None, "{at:?}");
    }
}

#[test]
fn networks_of_whereabouts_share_their_reservations() {
    let mut facts = released_reservation();
    let results = |facts: &mut Facts, ipam: &str| {
        let other = NetworkConfig {
            name: "another".to_owned(),
            ipam: ipam.to_owned(),
            ..pool_of(facts).network.clone()
        };
        facts.claimants[1] = claimant("shop/web-2", B_CREATED, other);
        diagnose(facts).cause
    };
    assert_eq!(results(&mut facts, "whereabouts"), Cause::ReleasedInUse);
    assert_eq!(results(&mut facts, "static"), Cause::TwoAllocators);
}

#[test]
fn allocation_for_this_node_predicts_nothing() {
    let mut facts = release_predicted();
    assert_eq!(
        verdict(&facts),
        (Cause::ReleasedInUse, CauseConfidence::Likely)
    );
    if let PoolState::Calico { secondary_node, .. } = &mut pool_of(&mut facts).state {
        *secondary_node = known("node-1".to_owned());
    }
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

#[test]
fn two_owners_count_only_if_no_pod_is_missing_among_them() {
    let mut facts = allocated_twice();
    owners(&mut facts, &[OwnedBy::Claimants(vec![1]), OwnedBy::Other]);
    assert_eq!(diagnose(&facts).cause, Cause::ReleasedInUse);
    let not_comparable = [OwnedBy::Claimants(vec![0]), OwnedBy::NotComparable];
    owners(&mut facts, &not_comparable);
    assert_eq!(diagnose(&facts).cause, Cause::AllocatedTwice);
    owners(&mut facts, &[OwnedBy::Claimants(vec![0, 1])]);
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert!(diagnosis.ruled_out.contains(&Cause::AllocatedTwice));
}

#[test]
fn two_owners_begin_with_the_second() {
    let mut facts = allocated_twice();
    if let Known::Value(owners, _) = &mut pool_of(&mut facts).owners {
        owners[0].allocated_at = Some(minute(100));
        owners[1].allocated_at = Some(minute(500));
    }
    assert_eq!(diagnose(&facts).since, Some(minute(500)));
    if let Known::Value(owners, _) = &mut pool_of(&mut facts).owners {
        owners[0].allocated_at = None;
    }
    assert_eq!(diagnose(&facts).since, None);
}

#[test]
fn handle_is_shared_only_by_pods_that_keep_their_names() {
    let mut facts = shared_handle();
    pod_of(&mut facts, 0).controller = Some(Controller {
        kind: "ReplicaSet".to_owned(),
        name: "web-5d9".to_owned(),
    });
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    pod_of(&mut facts, 0).earlier_pod_ended = known(minute(90));
    assert_eq!(diagnose(&facts).cause, Cause::SharedHandle);
    if let Known::Value(owners, _) = &mut pool_of(&mut facts).owners {
        owners[0].is_pod_name = false;
    }
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert!(diagnosis.ruled_out.contains(&Cause::SharedHandle));
}

#[test]
fn daemon_forgets_only_pods_that_run() {
    let mut facts = ipam_daemon_forgot();
    let names_reason = |evidence: &Evidence| evidence.fact.contains("Unable to connect");
    assert!(diagnose(&facts).evidence.iter().any(names_reason));
    pod_of(&mut facts, 0).is_running = false;
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    let mut early = ipam_daemon_forgot();
    if let PoolState::Aws { started, .. } = &mut pool_of(&mut early).state {
        *started = known(minute(0));
    }
    let diagnosis = diagnose(&early);
    assert_eq!(diagnosis.cause, Cause::ReleasedInUse);
    assert!(diagnosis.ruled_out.contains(&Cause::IpamDaemonForgot));
}

#[test]
fn daemon_forgets_only_what_it_may_have_known() {
    let mut facts = ipam_daemon_forgot();
    if let PoolState::Aws { started, .. } = &mut pool_of(&mut facts).state {
        *started = known(minute(A_CREATED + 1));
    }
    assert_eq!(diagnose(&facts).cause, Cause::IpamDaemonForgot);
    // It may have started while the pod was set up.
    if let Known::Value(results, _) = &mut facts.claimants[0].cni_results {
        results[0].stored_at = None;
    }
    facts.claimants[0].assignment = not_checked();
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

#[test]
fn one_network_or_disjoint_ranges_are_no_two_allocators() {
    let mut facts = two_allocators();
    let disjoint = NetworkConfig {
        ranges: vec!["10.9.0.0".parse().unwrap()..="10.9.0.255".parse().unwrap()],
        ..network("cbr0", "host-local")
    };
    facts.claimants[0] = claimant("shop/web-1", A_CREATED, disjoint.clone());
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    // Nor does the state of one pool explain what another network gave.
    let mut wiped = ipam_state_wiped();
    wiped.claimants[1] = claimant("shop/web-2", B_CREATED, disjoint);
    assert_eq!(diagnose(&wiped).cause, Cause::Unknown);
    facts.claimants[0] = claimant("shop/web-1", A_CREATED, kindnet());
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::IpamStateWiped);
    assert!(diagnosis.ruled_out.contains(&Cause::TwoAllocators));
}

#[test]
fn networks_of_one_name_with_other_state_are_two() {
    for other in [
        network("kindnet", "calico-ipam"),
        NetworkConfig {
            data_dir: Some("/var/lib/cni/networks".to_owned()),
            ..kindnet()
        },
    ] {
        let mut facts = two_allocators();
        facts.claimants[0] = claimant("shop/web-1", A_CREATED, other);
        assert_eq!(diagnose(&facts).cause, Cause::TwoAllocators);
    }
}

#[test]
fn drift_of_a_pod_of_another_network_is_two_allocators() {
    let mut facts = two_allocators();
    facts.finding = FindingKind::Anomaly(AnomalyKind::IpamDrift);
    facts.claimants.truncate(1);
    pool_of(&mut facts).owners = absent();
    assert_eq!(
        verdict(&facts),
        (Cause::TwoAllocators, CauseConfidence::Proven)
    );
    pool_of(&mut facts).network.ranges = Vec::new();
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}
