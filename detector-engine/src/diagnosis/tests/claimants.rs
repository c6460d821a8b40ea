//! Pods that have the address without IPAM, and pods that are wrongly suspected of that.

use super::*;

#[test]
fn pod_without_cni_result_is_likely_not_from_ipam_if_it_was_given_another_address() {
    let mut facts = not_from_ipam();
    facts.claimants[1].cni_results = absent();
    assert_eq!(
        verdict(&facts),
        (Cause::NotFromIpam, CauseConfidence::Likely)
    );
    for own in [
        known(vec!["fd00::9".parse().unwrap()]),
        absent(),
        not_checked(),
    ] {
        facts.claimants[1].allocated_addresses = own;
        assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    }
}

#[test]
fn third_claimant_is_not_explained_by_one_that_took_the_address() {
    let mut facts = released_in_use();
    facts
        .claimants
        .push(not_from_ipam().claimants.pop().unwrap());
    assert_eq!(diagnose(&facts).cause, Cause::ReleasedInUse);
    facts.claimants.remove(1);
    assert_eq!(diagnose(&facts).cause, Cause::NotFromIpam);
}

#[test]
fn pods_whose_stack_cannot_be_seen_are_not_blamed_for_frames() {
    let mut facts = frames_only();
    facts.claimants[1].assignment = not_checked();
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    let mut programmed = frames_only();
    programmed.claimants[1].has_permanent_neighbour = true;
    assert_eq!(diagnose(&programmed).cause, Cause::Unknown);
    let mut given = frames_only();
    given.claimants[1].cni_results = released_in_use().claimants[1].cni_results.clone();
    assert_ne!(diagnose(&given).cause, Cause::FramesOnly);
}

#[test]
fn device_that_never_had_a_sandbox_is_no_leftover() {
    let mut facts = sandbox_gone();
    facts.claimants[0].sandbox = absent();
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
    let mut stopped = sandbox_gone();
    sandbox_of(&mut stopped, 0).state = SandboxState::NotReady;
    assert_eq!(
        verdict(&stopped),
        (Cause::SandboxGone, CauseConfidence::Likely)
    );
}

#[test]
fn labels_make_a_vip_likely_and_take_nothing_from_a_pod_that_was_given_it() {
    let mut facts = shared_on_purpose();
    for index in 0..2 {
        pod_of(&mut facts, index).controller = None;
    }
    assert_eq!(
        verdict(&facts),
        (Cause::SharedOnPurpose, CauseConfidence::Likely)
    );
    for index in 0..2 {
        pod_of(&mut facts, index).vip_label = None;
    }
    assert_eq!(diagnose(&facts).cause, Cause::NotFromIpam);
    let mut stolen = shared_on_purpose();
    stolen.claimants[0] = released_in_use().claimants.remove(0);
    assert_eq!(diagnose(&stolen).cause, Cause::NotFromIpam);
}

#[test]
fn replicas_share_on_purpose_only_within_a_namespace() {
    let mut facts = shared_on_purpose();
    for index in 0..2 {
        pod_of(&mut facts, index).vip_label = None;
    }
    assert_eq!(
        verdict(&facts),
        (Cause::SharedOnPurpose, CauseConfidence::Likely)
    );
    pod_of(&mut facts, 1).name = "other/web-2".to_owned();
    assert_eq!(diagnose(&facts).cause, Cause::NotFromIpam);
}

/// Labels, evidence and the address in its namespace are a pod's own; the rest is written by others.
#[test]
fn what_a_pod_does_proves_nothing_against_another() {
    let own = [
        Cause::NotFromIpam,
        Cause::FramesOnly,
        Cause::SharedOnPurpose,
    ];
    for incident in &INCIDENTS {
        let before = (incident.facts)();
        for index in 0..before.claimants.len() {
            let mut labelled = before.clone();
            pod_of(&mut labelled, index).vip_label = Some("app=keepalived".to_owned());
            let diagnosis = diagnose(&labelled);
            assert_eq!(diagnosis.cause, incident.cause, "{diagnosis:#?}");
            for (assignment, evidence) in [
                (absent(), EvidenceKind::Arp),
                (known(Assignment { since: None }), EvidenceKind::Address),
            ] {
                let mut changed = before.clone();
                changed.claimants[index].assignment = assignment;
                changed.claimants[index].evidence = vec![evidence];
                let diagnosis = diagnose(&changed);
                let is_unchanged = diagnosis.cause == incident.cause;
                let is_about_it = own.contains(&diagnosis.cause);
                let is_open = diagnosis.cause == Cause::Unknown;
                assert!(is_unchanged || is_about_it || is_open, "{diagnosis:#?}");
            }
        }
    }
}
