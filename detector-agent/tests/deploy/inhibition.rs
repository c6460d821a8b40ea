//! The inhibition rules of the example for Alertmanager, in a real one.

use std::{collections::BTreeSet, fs};

use anyhow::ensure;
use detector_testkit::{DEADLINE, Node, alertmanager::Alertmanager, until};

use crate::tools::deploy;

const SWEEP: &str = "PodAddressSweep cluster=east node=n1 address=10.244.2.10 device=vethbad";
const CONFLICT: &str = "IPAddressConflict cluster=east node=n3 address=10.244.3.10 network=node";

/// Alerts whose cause is another alert.
const INHIBITED: [&str; 8] = [
    "PodGatewayUnresolved cluster=east node=n1 address=169.254.1.1 device=vetha",
    "IPAddressConflictsBrief cluster=east node=n1 kind=duplicate",
    "IPAddressConflictsBeyondBound cluster=east node=n1",
    "IPAMDrift cluster=east node=n3 address=10.244.3.10 device=vethb",
    "PodRouteAstray cluster=east node=n3 address=10.244.3.10 device=vethb",
    "IPConflictDetectorDown cluster=east",
    "IPConflictDetectorBlind cluster=east",
    "IPAddressConflict cluster=east node=n5 address=10.244.5.10 network=node",
];

/// Alerts with a cause of their own.
const NOTIFIED: [&str; 11] = [
    SWEEP,
    CONFLICT,
    "IPConflictDetectorCoverageLow cluster=east",
    "IPAddressOnSeveralNodes cluster=east address=10.244.5.10 network=node",
    // Not part of the sweep on its node.
    "IPAddressConflict cluster=east node=n1 address=10.244.2.99 network=node",
    "PodGatewayUnresolved cluster=east node=n2 address=169.254.1.1 device=vetha",
    "IPAMDrift cluster=east node=n3 address=10.244.3.11 device=vethb",
    "IPAMDrift cluster=west node=n3 address=10.244.3.10 device=vethb",
    "IPConflictDetectorDown cluster=west",
    // Without details, of any addresses.
    "IPAddressConflict cluster=east node=n4 kind=duplicate",
    "IPAMDrift cluster=east node=n4 kind=ipam_drift",
];

/// The alerts of one state, written as above.
fn alerts_in_state(
    alertmanager: &Alertmanager<'_>,
    state: &str,
    given: &[&str],
) -> anyhow::Result<BTreeSet<String>> {
    let alerts = alertmanager.alerts(&[state])?;
    let found = alerts.iter().map(|alert| {
        let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default();
        let is_given = |text: &&&str| {
            let mut words = text.split(' ');
            words.next() == Some(label("alertname"))
                && words.clone().count() + 1 == alert["labels"].as_object().map_or(0, |l| l.len())
                && words.all(|word| word.split_once('=').is_some_and(|(n, v)| label(n) == v))
        };
        let text = given.iter().find(is_given);
        text.map_or_else(|| alert["labels"].to_string(), |text| (*text).to_owned())
    });
    Ok(found.collect())
}

#[test]
fn consequences_of_an_alert_are_not_notified() {
    let node = Node::new("inhibition").unwrap();
    let configuration = fs::read_to_string(deploy("prometheus/alertmanager.yaml")).unwrap();
    let alertmanager = Alertmanager::start(&node, &configuration).unwrap();
    for alert in INHIBITED.iter().chain(&NOTIFIED) {
        let words: Vec<_> = alert.split(' ').collect();
        alertmanager
            .amtool(&[&["alert", "add"], &words[..]].concat())
            .unwrap();
    }
    let expected = |alerts: &[&str]| alerts.iter().map(|a| (*a).to_owned()).collect();
    let (inhibited, notified): (BTreeSet<_>, BTreeSet<_>) =
        (expected(&INHIBITED), expected(&NOTIFIED));
    until(DEADLINE, "the alerts to be inhibited", || {
        let found = alerts_in_state(&alertmanager, "--inhibited", &INHIBITED)?;
        ensure!(found == inhibited, "inhibited: {found:#?}");
        let found = alerts_in_state(&alertmanager, "--active", &NOTIFIED)?;
        ensure!(found == notified, "active: {found:#?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn example_names_alerts_that_exist() {
    let rules = fs::read_to_string(deploy("prometheus/rules.yaml")).unwrap();
    let example = fs::read_to_string(deploy("prometheus/alertmanager.yaml")).unwrap();
    let matchers = example.split("alertname=").skip(1);
    let names: Vec<_> = matchers
        .filter_map(|rest| rest.trim_start_matches('~').split('"').nth(1))
        .flat_map(|names| names.split('|'))
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(rules.contains(&format!("alert: {name}\n")), "{name}");
    }
}
