//! All incidents against the whole table.

use std::collections::BTreeSet;

use super::*;

#[test]
fn each_incident_has_its_cause() {
    for incident in &INCIDENTS {
        let diagnosis = diagnose(&(incident.facts)());
        let found = (diagnosis.cause, diagnosis.confidence, diagnosis.since);
        let expected = (
            incident.cause,
            incident.confidence,
            incident.since.map(minute),
        );
        assert_eq!(found, expected, "{diagnosis:#?}");
        assert!(!diagnosis.evidence.is_empty(), "{diagnosis:#?}");
    }
}

#[test]
fn each_cause_has_an_incident_and_a_name() {
    let with_incident: BTreeSet<_> = INCIDENTS.iter().map(|incident| incident.cause).collect();
    let in_table: BTreeSet<_> = RULES.iter().map(|rule| rule.cause).collect();
    let all = Cause::ALL
        .into_iter()
        .filter(|cause| *cause != Cause::Unknown);
    assert_eq!(with_incident, all.clone().collect());
    assert_eq!(in_table, all.collect());
    let names: BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
    assert_eq!(names.len(), Cause::ALL.len());
}

/// Its cause, a more general one, or none.
fn assert_not_explained_wrongly(incident: &Incident, facts: &Facts) {
    let diagnosis = diagnose(facts);
    let allowed = [Some(incident.cause), incident.refines, Some(Cause::Unknown)];
    assert!(
        allowed.contains(&Some(diagnosis.cause)),
        "{:?}: {diagnosis:#?}\n{facts:#?}",
        incident.cause
    );
}

#[test]
fn facts_that_are_missing_never_make_another_cause() {
    for incident in &INCIDENTS {
        let facts = (incident.facts)();
        for first in (0..).map_while(|nth| without(facts.clone(), nth)) {
            assert_not_explained_wrongly(incident, &first);
            for second in (0..).map_while(|nth| without(first.clone(), nth)) {
                assert_not_explained_wrongly(incident, &second);
            }
        }
    }
}

#[test]
fn fact_that_was_not_checked_is_listed() {
    for incident in &INCIDENTS {
        let facts = (incident.facts)();
        let is_listed = |facts: &Facts| !diagnose(facts).not_checked.is_empty();
        let mut erased = (0..).map_while(|nth| without(facts.clone(), nth));
        assert!(erased.any(|facts| is_listed(&facts)));
    }
    let wiped = diagnose(&ipam_state_wiped());
    assert_eq!(wiped.not_checked.len(), 1, "{wiped:#?}");
}

#[test]
fn fact_that_no_rule_reads_is_not_listed() {
    let mut calico = released_by_calico();
    calico.node.etc_cni_born = not_checked();
    calico.sysctls = not_checked();
    calico.nodes_with_range = not_checked();
    assert_eq!(diagnose(&calico).not_checked, []);
    let mut gateway = no_route();
    gateway.pool = not_checked();
    gateway.claimants[0].cni_results = not_checked();
    assert_eq!(diagnose(&gateway).not_checked, []);
}

#[test]
fn proven_cause_is_not_ruled_out() {
    for incident in &INCIDENTS {
        let facts = (incident.facts)();
        let rule = RULES.iter().find(|rule| rule.cause == incident.cause);
        assert!(
            !(rule.unwrap().is_ruled_out)(&facts),
            "{:?}",
            incident.cause
        );
    }
}

#[test]
fn nothing_is_proven_or_ruled_out_without_facts() {
    for incident in &INCIDENTS {
        let mut facts = (incident.facts)();
        for nth in (0..200).rev() {
            facts = without(facts.clone(), nth).unwrap_or(facts);
        }
        let diagnosis = diagnose(&facts);
        assert_eq!(diagnosis.cause, Cause::Unknown, "{diagnosis:#?}");
        let ruled_out = diagnosis.ruled_out;
        // What the engine itself observed is still there.
        let observed = [Cause::FramesOnly, Cause::PodCidrTwice];
        assert!(
            ruled_out.iter().all(|cause| observed.contains(cause)),
            "{ruled_out:?}"
        );
        assert!(diagnosis.evidence.is_empty());
    }
}

#[test]
fn texts_are_short_sentences() {
    for incident in &INCIDENTS {
        let diagnosis = diagnose(&(incident.facts)());
        for text in [&diagnosis.summary, &diagnosis.repair] {
            assert!(text.ends_with('.') && text.len() < 420, "{text}");
            assert!(!text.contains("  ") && !text.contains('?'), "{text}");
        }
    }
}
