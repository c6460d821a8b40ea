//! A state of `host-local` that is gone, and what only looks like that.

use super::*;

struct Files {
    directory: Known<FileFacts>,
    lock: Known<FileFacts>,
    filesystem: Filesystem,
    removals: Vec<Removal>,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            directory: born(0),
            lock: born(0),
            filesystem: Filesystem::Disk,
            removals: Vec::new(),
        }
    }
}

/// A wiped state with these files.
fn with_files(files: Files) -> Facts {
    let mut facts = ipam_state_wiped();
    pool_of(&mut facts).state = PoolState::HostLocal {
        directory: files.directory,
        lock: files.lock,
        filesystem: known(files.filesystem),
        removals: known(files.removals),
    };
    facts
}

fn live(facts: &mut Facts, total: usize, without_allocation: usize) {
    pool_of(facts).live_pods = known(LivePods {
        total,
        without_allocation,
        addresses_without_allocation: 2 * without_allocation,
    });
}

fn removal(item: RemovedItem, at: u64) -> Removal {
    Removal {
        item,
        at: minute(at),
    }
}

fn reservation(address: &str, at: u64) -> Removal {
    removal(RemovedItem::Reservation(address.parse().unwrap()), at)
}

fn wiped_at(facts: &Facts) -> Option<UnixTime> {
    let diagnosis = diagnose(facts);
    assert_eq!(
        verdict(facts),
        (Cause::IpamStateWiped, CauseConfidence::Proven)
    );
    diagnosis.since
}

#[test]
fn files_younger_than_the_pod_prove_a_wipe() {
    let young_directory = with_files(Files {
        directory: born(300),
        lock: absent(),
        ..Files::default()
    });
    assert_eq!(wiped_at(&young_directory), Some(minute(300)));
    let young_lock = with_files(Files {
        lock: born(350),
        ..Files::default()
    });
    assert_eq!(wiped_at(&young_lock), Some(minute(350)));
    let gone = with_files(Files {
        directory: absent(),
        lock: absent(),
        ..Files::default()
    });
    assert_eq!(wiped_at(&gone), None);
}

#[test]
fn deletion_that_the_agent_saw_is_exact() {
    for item in [RemovedItem::Directory, RemovedItem::Lock] {
        let facts = with_files(Files {
            directory: born(400),
            removals: vec![removal(item, 390)],
            ..Files::default()
        });
        assert_eq!(wiped_at(&facts), Some(minute(390)));
        assert!(diagnose(&facts).summary.contains(" deleted at "));
    }
    let by_birth = diagnose(&ipam_state_wiped());
    assert!(by_birth.summary.contains(" deleted by "), "{by_birth:?}");
}

/// The directory was read in the middle, and a pod had ended before.
#[test]
fn all_addresses_of_one_deletion_have_the_time_of_the_first() {
    let after = |seconds: u64| UnixTime(minute(390).0 + seconds * 1_000_000_000);
    let at = |at, mut removal: Removal| {
        removal.at = at;
        removal
    };
    let (own, other) = (reservation(ADDRESS, 0), reservation("10.244.2.77", 0));
    let directory = removal(RemovedItem::Directory, 0);
    let ended = reservation("10.244.2.78", 389);
    for removals in [
        [
            at(after(0), own),
            at(after(4), other),
            at(after(8), directory),
        ],
        [at(after(0), other), at(after(4), other), at(after(8), own)],
    ] {
        let mut facts = with_files(Files {
            directory: born(400),
            removals: [&[ended], &removals[..]].concat(),
            ..Files::default()
        });
        live(&mut facts, 4, 3);
        assert_eq!(wiped_at(&facts), Some(minute(390)));
    }
}

#[test]
fn deletion_with_one_pod_is_proven_only_if_it_was_seen() {
    let with = |removals: Vec<Removal>| {
        let mut facts = with_files(Files {
            directory: born(400),
            removals,
            ..Files::default()
        });
        live(&mut facts, 1, 1);
        facts
    };
    let seen = with(vec![
        reservation(ADDRESS, 390),
        removal(RemovedItem::Directory, 390),
    ]);
    assert_eq!(wiped_at(&seen), Some(minute(390)));
    let found = diagnose(&with(Vec::new()));
    assert_eq!(found.cause, Cause::Unknown);
    assert!(!found.ruled_out.contains(&Cause::IpamStateWiped));
}

#[test]
fn lease_that_was_released_after_a_deletion_is_no_part_of_it() {
    let mut facts = with_files(Files {
        removals: vec![removal(RemovedItem::Lock, 200), reservation(ADDRESS, 390)],
        ..Files::default()
    });
    live(&mut facts, 12, 1);
    assert_eq!(
        verdict(&facts),
        (Cause::ReleasedInUse, CauseConfidence::Proven)
    );
}

#[test]
fn reservations_that_go_together_are_a_wipe() {
    let mut removals: Vec<_> = (1..=5)
        .map(|n| reservation(&format!("10.244.2.{n}"), 390))
        .collect();
    let facts = |removals: &[Removal]| {
        with_files(Files {
            removals: removals.to_vec(),
            ..Files::default()
        })
    };
    let mut most = facts(&removals);
    live(&mut most, 12, 10);
    assert_eq!(wiped_at(&most), Some(minute(390)));
    // Two of many, as happens when pods end.
    let mut few = facts(&[removals[0], reservation(ADDRESS, 390)]);
    live(&mut few, 12, 10);
    assert_eq!(
        verdict(&few),
        (Cause::ReleasedInUse, CauseConfidence::Proven)
    );
    // The others went at other times.
    for (n, removal) in removals.iter_mut().enumerate() {
        removal.at = minute(390 + 10 * n as u64);
    }
    let mut one_by_one = facts(&removals);
    live(&mut one_by_one, 12, 10);
    assert_eq!(
        verdict(&one_by_one),
        (Cause::ReleasedInUse, CauseConfidence::Proven)
    );
}

#[test]
fn lease_that_was_released_before_the_wipe_is_no_part_of_it() {
    let facts = with_files(Files {
        directory: born(400),
        removals: vec![
            reservation(ADDRESS, 200),
            removal(RemovedItem::Directory, 390),
        ],
        ..Files::default()
    });
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

#[test]
fn removal_from_before_the_pod_is_none_of_its_own() {
    let facts = with_files(Files {
        removals: vec![
            removal(RemovedItem::Directory, 50),
            reservation(ADDRESS, 60),
        ],
        ..Files::default()
    });
    assert_eq!(
        verdict(&facts),
        (Cause::ReleasedInUse, CauseConfidence::Proven)
    );
    assert_eq!(diagnose(&facts).since, None);
}

#[test]
fn most_pods_without_reservation_are_likely_a_wipe() {
    let unborn = |without| {
        let mut facts = with_files(Files {
            directory: born(None),
            lock: born(None),
            ..Files::default()
        });
        live(&mut facts, 10, without);
        facts
    };
    assert_eq!(
        verdict(&unborn(6)),
        (Cause::IpamStateWiped, CauseConfidence::Likely)
    );
    assert_eq!(diagnose(&unborn(5)).cause, Cause::Unknown);
    // Another network may have given the address.
    let mut unclear = unborn(6);
    unclear.claimants[0].cni_results = not_checked();
    assert_eq!(
        verdict(&unclear),
        (Cause::IpamStateWiped, CauseConfidence::Likely)
    );
    unclear.overlapping_networks = known(vec![network("cbr0", "host-local")]);
    assert_eq!(diagnose(&unclear).cause, Cause::Unknown);
}

#[test]
fn one_pod_without_reservation_is_no_wipe() {
    let mut facts = with_files(Files::default());
    live(&mut facts, 20, 1);
    let ruled_out = diagnose(&facts).ruled_out;
    assert!(ruled_out.contains(&Cause::IpamStateWiped));
    // The directory is younger than the pod. The others may be younger still.
    let mut facts = ipam_state_wiped();
    live(&mut facts, 20, 1);
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert!(!diagnosis.ruled_out.contains(&Cause::IpamStateWiped));
}

#[test]
fn drift_after_a_wipe_needs_no_second_pod() {
    let mut facts = ipam_state_wiped();
    facts.finding = FindingKind::Anomaly(AnomalyKind::IpamDrift);
    facts.claimants.truncate(1);
    pool_of(&mut facts).owners = absent();
    assert_eq!(wiped_at(&facts), Some(minute(400)));
    // Dual stack.
    live(&mut facts, 19, 10);
    let affected = diagnose(&facts).affected;
    assert_eq!((affected.addresses, affected.pods), (20, 10));
}

#[test]
fn wipe_on_this_node_does_not_explain_a_pod_on_another() {
    let mut facts = ipam_state_wiped();
    facts.claimants[1].node = "node-2".to_owned();
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

#[test]
fn wipe_does_not_explain_a_pod_that_was_not_given_the_address() {
    let mut facts = ipam_state_wiped();
    facts.claimants[1].cni_results = known(Vec::new());
    assert_eq!(diagnose(&facts).cause, Cause::NotFromIpam);
    facts.claimants[1].assignment = not_checked();
    facts.claimants[1].evidence = vec![EvidenceKind::Arp];
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

/// Its sandbox is created before the directory, and its reservation afterwards.
#[test]
fn first_pod_of_a_network_is_no_victim_of_a_wipe() {
    let mut facts = with_files(Files {
        directory: born(A_CREATED + 1),
        lock: born(A_CREATED + 1),
        ..Files::default()
    });
    if let Known::Value(results, _) = &mut facts.claimants[0].cni_results {
        results[0].stored_at = Some(minute(A_CREATED + 2));
    }
    assert_eq!(
        verdict(&facts),
        (Cause::ReleasedInUse, CauseConfidence::Proven)
    );
}

#[test]
fn state_from_within_a_setup_of_unknown_length_proves_nothing() {
    let facts = |directory| {
        let mut facts = with_files(Files {
            directory: born(directory),
            lock: absent(),
            ..Files::default()
        });
        if let Known::Value(results, _) = &mut facts.claimants[0].cni_results {
            results[0].stored_at = None;
        }
        facts.claimants[0].assignment = known(Assignment { since: None });
        facts
    };
    for (directory, expected) in [
        (100, Cause::ReleasedInUse),
        (101, Cause::Unknown),
        (104, Cause::Unknown),
    ] {
        assert_eq!(diagnose(&facts(directory)).cause, expected, "{directory}");
    }
    assert_eq!(wiped_at(&facts(A_CREATED + 5)), Some(minute(A_CREATED + 5)));
}

#[test]
fn tmpfs_alone_is_a_wipe() {
    let mut facts = ipam_state_not_persistent();
    facts.node.booted = known(minute(0));
    // Long before the state was lost.
    facts.node.runtime_started = known(minute(200));
    assert_eq!(wiped_at(&facts), Some(minute(400)));
    // In a container that is a node, the runtime starts with the file system.
    facts.node.runtime_started = known(minute(396));
    assert_eq!(diagnose(&facts).cause, Cause::IpamStateNotPersistent);
    assert_eq!(diagnose(&facts).since, Some(minute(396)));
}

#[test]
fn restart_of_the_runtime_does_not_empty_a_disk() {
    let mut facts = ipam_state_not_persistent();
    if let PoolState::HostLocal { filesystem, .. } = &mut pool_of(&mut facts).state {
        *filesystem = known(Filesystem::Disk);
    }
    assert_eq!(
        diagnose(&facts).cause,
        Cause::IpamStateNotPersistent,
        "a boot"
    );
    facts.node.booted = known(minute(200));
    assert_eq!(wiped_at(&facts), Some(minute(400)));
}

#[test]
fn deletion_that_the_agent_saw_is_no_lost_file_system() {
    let mut facts = ipam_state_not_persistent();
    if let PoolState::HostLocal { removals, .. } = &mut pool_of(&mut facts).state {
        *removals = known(vec![removal(RemovedItem::Directory, 398)]);
    }
    assert_eq!(wiped_at(&facts), Some(minute(398)));
}

#[test]
fn clean_up_needs_all_mounted_directories_or_all_of_var_lib_cni() {
    let mut facts = node_reset();
    facts.node.var_lib_cni_born = known(minute(0));
    facts.claimants[0].cni_results = ipam_state_wiped().claimants[0].cni_results.clone();
    assert_eq!(diagnose(&facts).cause, Cause::NodeReset);
    facts.node.opt_cni_born = known(minute(0));
    assert_eq!(diagnose(&facts).cause, Cause::IpamStateWiped);
    facts.node.opt_cni_born = known(minute(399));
    assert_eq!(diagnose(&facts).cause, Cause::NodeReset);
    // Installed again long before.
    facts.node.etc_cni_born = known(minute(200));
    assert_eq!(diagnose(&facts).cause, Cause::IpamStateWiped);
    facts.node.var_lib_cni_born = known(minute(399));
    assert_eq!(diagnose(&facts).cause, Cause::NodeReset);
}

#[test]
fn clean_up_restarts_the_runtime_as_well() {
    let mut facts = node_reset();
    facts.node.runtime_started = known(minute(397));
    assert_eq!(diagnose(&facts).cause, Cause::NodeReset);
    // After a boot of a node in memory all directories are young.
    let mut booted = ipam_state_not_persistent();
    booted.node.etc_cni_born = known(minute(397));
    booted.node.opt_cni_born = known(minute(397));
    booted.node.var_lib_cni_born = known(minute(397));
    assert_eq!(diagnose(&booted).cause, Cause::IpamStateNotPersistent);
}

#[test]
fn missing_cni_result_has_to_be_explained() {
    let mut facts = node_reset();
    facts.overlapping_networks = known(vec![network("cbr0", "host-local")]);
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    let mut facts = ipam_state_wiped();
    facts.claimants[0].cni_results = absent();
    live(&mut facts, 20, 10);
    facts.node.cni_configured_since = known(minute(A_CREATED + 1));
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

/// The only network that has been configured since before the pods gave them what the runtime has recorded.
#[test]
fn configuration_that_is_older_than_the_pods_replaces_their_results() {
    let mut facts = ipam_state_wiped();
    for claimant in &mut facts.claimants {
        claimant.cni_results = not_checked();
        claimant.assignment = known(Assignment { since: None });
    }
    live(&mut facts, 20, 10);
    let wiped = (Cause::IpamStateWiped, CauseConfidence::Proven);
    assert_eq!(verdict(&facts), wiped);
    let evidence = diagnose(&facts).evidence;
    let is_configuration =
        |e: &Evidence| e.fact == "the network configuration was changed last" && e.at.is_some();
    assert!(evidence.iter().any(is_configuration), "{evidence:#?}");
    let near_misses: [fn(&mut Facts); 5] = [
        |facts| facts.node.cni_configured_since = not_checked(),
        |facts| facts.node.cni_configured_since = known(minute(A_CREATED)),
        |facts| facts.overlapping_networks = not_checked(),
        |facts| pool_of(facts).network.ranges.clear(),
        |facts| sandbox_of(facts, 0).addresses.clear(),
    ];
    for change in near_misses {
        let mut facts = facts.clone();
        change(&mut facts);
        assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    }
}
