//! The incidents from the field that the tests of the agent reproduce, as the facts of one of their findings.

use super::*;

fn kinds(facts: &mut Facts, index: usize, evidence: EvidenceKind) {
    facts.claimants[index].evidence = vec![evidence];
}

fn node_named(facts: &mut Facts, name: &str) {
    name.clone_into(&mut facts.node.name);
    for claimant in &mut facts.claimants {
        name.clone_into(&mut claimant.node);
    }
}

/// `kindnet-state-wiped.json`: kubelet was stopped, the state directory on tmpfs deleted, and the node filled again.
#[test]
fn kindnet_state_wiped() {
    let mut facts = ipam_state_wiped();
    node_named(&mut facts, "kind-worker3");
    if let PoolState::HostLocal { filesystem, .. } = &mut pool_of(&mut facts).state {
        *filesystem = known(Filesystem::Tmpfs);
    }
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::IpamStateWiped);
    assert_eq!(diagnosis.confidence, CauseConfidence::Proven);
    assert_eq!(
        diagnosis.affected,
        Affected {
            addresses: 10,
            pods: 10
        }
    );
    assert_eq!(
        diagnosis.summary,
        "The reservations of host-local in /run/cni-ipam-state/kindnet were deleted by 2023-11-15 04:53:20Z, while 10 pods were running."
    );
    assert!(diagnosis.repair.contains("cordon kind-worker3"));
}

/// `rancher-restore.json`: a restore removed `/etc/cni`, `/opt/cni` and `/var/lib/cni` while pods ran on ports of `cni0`.
#[test]
fn rancher_restore() {
    let flannel = NetworkConfig {
        data_dir: Some("/var/lib/cni/networks".to_owned()),
        ..network("cbr0", "host-local")
    };
    let mut facts = node_reset();
    facts.node.opt_cni_born = known(minute(398));
    let pool = pool_of(&mut facts);
    pool.network = flannel.clone();
    "/var/lib/cni/networks/cbr0".clone_into(&mut pool.place);
    facts.claimants[1] = claimant("shop/web-2", B_CREATED, flannel);
    for claimant in &mut facts.claimants {
        claimant.bridge = Some("cni0".to_owned());
    }
    if let Known::Value(route, _) = &mut facts.route {
        "cni0".clone_into(&mut route.device);
        route.holder = known(RouteHolder::Node);
    }
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::NodeReset);
    assert_eq!(diagnosis.since, Some(minute(398)));
    let repair = &diagnosis.repair;
    assert!(
        repair.contains("write its reservation to /var/lib/cni/networks/cbr0"),
        "{repair}"
    );
}

/// `aws-ipamd-lost-runtime.json`: ipamd found no runtime at its start and took all addresses for free.
#[test]
fn aws_ipamd_lost_runtime() {
    let mut conflict = ipam_daemon_forgot();
    pool_of(&mut conflict).live_pods = known(LivePods {
        total: 17,
        without_allocation: 17,
        addresses_without_allocation: 17,
    });
    let mut drift = conflict.clone();
    drift.finding = FindingKind::Anomaly(AnomalyKind::IpamDrift);
    drift.claimants.truncate(1);
    pool_of(&mut drift).owners = absent();
    for facts in [conflict, drift] {
        let diagnosis = diagnose(&facts);
        assert_eq!(diagnosis.cause, Cause::IpamDaemonForgot);
        assert_eq!(diagnosis.since, Some(minute(400)));
        assert_eq!(diagnosis.affected.pods, 17);
        assert!(diagnosis.repair.contains("container runtime"));
    }
}

/// `calico-eleven-devices.json`: Calico with etcd, whose IPAM the agent cannot read.
fn calico_eleven_devices() -> Facts {
    let mut facts = released_by_calico();
    node_named(&mut facts, "slave-140");
    let calico = pool_of(&mut facts).network.clone();
    let claimants = (0..11).map(|n| {
        let mut claimant = claimant(&format!("prod/pod-{n}"), A_CREATED + n, calico.clone());
        claimant.has_permanent_neighbour = n != 6;
        claimant
    });
    facts.claimants = claimants.collect();
    for index in 0..11 {
        kinds(&mut facts, index, EvidenceKind::Neighbour);
    }
    facts.newest = not_checked();
    facts
}

#[test]
fn calico_eleven_devices_without_ipam() {
    let mut facts = calico_eleven_devices();
    facts.pool = not_checked();
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    let excluded = [
        Cause::SandboxGone,
        Cause::NotFromIpam,
        Cause::FramesOnly,
        Cause::TwoAllocators,
    ];
    assert!(
        excluded.iter().all(|c| diagnosis.ruled_out.contains(c)),
        "{diagnosis:#?}"
    );
    assert!(!diagnosis.not_checked.is_empty());
}

#[test]
fn calico_eleven_devices_after_the_block_was_created_again() {
    let mut facts = calico_eleven_devices();
    let pool = pool_of(&mut facts);
    pool.owners = known(vec![owner(OwnedBy::Claimants(vec![10]))]);
    pool.state = PoolState::Calico {
        block_created: known(minute(A_CREATED + 9)),
        secondary_node: absent(),
    };
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::BlockRecreated);
    assert!(diagnosis.repair.contains("Find out which pod came last"));
}

/// `calico-gateway-unresolved.json`: the pod's address has a route to the other claimant of a conflict that is not seen yet.
#[test]
fn calico_gateway_unresolved() {
    let mut facts = reverse_path_filter();
    facts.address = "192.168.156.177".parse().unwrap();
    "calic577831ffc7".clone_into(&mut facts.claimants[0].device);
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::ReversePathFilter);
    let evidence: Vec<_> = diagnosis.evidence.iter().map(|e| e.fact.as_str()).collect();
    assert_eq!(
        evidence,
        [
            "the route to 192.168.156.177 leads to veth-web-2 (protocol bird)",
            "rp_filter is 1"
        ]
    );
}

/// `calico-stale-endpoints.json`: a workload that lives and whose address is not allocated, in a block with handles of the old form.
#[test]
fn calico_stale_endpoints() {
    let mut facts = released_by_calico();
    facts.finding = FindingKind::Anomaly(AnomalyKind::IpamDrift);
    facts.claimants.truncate(1);
    node_named(&mut facts, "dev-slave-108");
    pool_of(&mut facts).owners = absent();
    assert_eq!(diagnose(&facts).cause, Cause::ReleasedInUse);
    // In etcd nothing keeps resource versions.
    facts.resource_versions = absent();
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    // Before the old pod's handle is deleted, the new one has the address by its name.
    assert_eq!(diagnose(&shared_handle()).cause, Cause::SharedHandle);
}
