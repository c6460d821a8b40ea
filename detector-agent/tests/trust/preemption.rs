//! Filters that others add on a pod's device do not blind the agent, and stay.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, http::TestClient, until,
};

use crate::{
    AGENT,
    leftovers::{
        assert_frames_are_seen, command, filters, is_ours, tcx_program_ids, two_pods, wait_for,
    },
};

/// Adds a filter that accepts every frame and ends the chain, so that those behind it see nothing. No actions are needed.
fn tc_filter(node: &Node, device: &str, verb: &str, place: &str) -> Result<String> {
    let words = ["tc", "filter", verb, "dev", device, "ingress"];
    let program = [
        "protocol",
        "all",
        "bpf",
        "direct-action",
        "bytecode",
        "1,6 0 0 0,",
    ];
    let words = words.into_iter().chain(place.split_whitespace());
    node.exec(&words.chain(program).collect::<Vec<_>>())
}

/// Adds a `u32` filter at priority 1 that accepts every frame. No filter can run before it on clsact.
fn add_unprecedable_filter(node: &Node, device: &str) {
    let filter = "protocol all prio 1 u32 match u32 0 0 flowid 1:1";
    let words = ["tc", "filter", "add", "dev", device, "ingress"];
    let words = words.into_iter().chain(filter.split_whitespace());
    node.exec(&words.collect::<Vec<_>>()).unwrap();
}

fn others(node: &Node, device: &str) -> Vec<String> {
    let mut filters = filters(node, device);
    filters.retain(|filter| !is_ours(filter));
    filters
}

fn is_ours_first(node: &Node, device: &str) -> bool {
    let filters = filters(node, device);
    let ours = filters.iter().filter(|filter| is_ours(filter)).count();
    ours == 1 && is_ours(&filters[0])
}

/// The value after a word in `tc`'s output.
fn value_after<'a>(filter: &'a str, word: &str) -> &'a str {
    let mut words = filter.split_whitespace().skip_while(|other| *other != word);
    words.nth(1).unwrap()
}

/// `prio … handle …` of our filter.
fn place_of_ours(node: &Node, device: &str) -> String {
    let filters = filters(node, device);
    let ours = filters.iter().find(|filter| is_ours(filter)).unwrap();
    let (priority, handle) = (value_after(ours, "pref"), value_after(ours, "handle"));
    format!("prio {priority} handle {handle}")
}

/// A node with two pods; the agent finds one at its start and the other later.
fn early_and_late_pod(prefix: &str, attach: &str) -> (Node, Vec<Pod>, Agent) {
    let node = Node::new(prefix).unwrap();
    let mut pods = vec![node.add_pod(&PodSpec::new("vetha")).unwrap()];
    let agent = Agent::start_ready(&node, &command(attach)).unwrap();
    pods.push(node.add_pod(&PodSpec::new("vethb")).unwrap());
    wait_for(|| is_ours_first(&node, "vethb"));
    (node, pods, agent)
}

#[test]
fn later_filters_hide_nothing_and_keep_their_order() {
    let (node, pods, agent) = early_and_late_pod("infront", "tc");
    let steps = [
        ("add", Some("")),
        ("add", Some("prio 40000")),
        ("add", Some("prio 100")),
        ("add", Some("prio 100")),
        // At our priority.
        ("add", None),
        // Our own filter, replaced by theirs.
        ("replace", None),
        ("replace", Some("prio 3 handle 7")),
        ("replace", Some("prio 3 handle 7")),
        ("add", Some("prio 1")),
        // The newest filter of a priority runs first.
        ("add", Some("prio 1")),
        ("replace", None),
    ];
    let mut times = Vec::new();
    for (number, (verb, place)) in (10..).zip(steps) {
        for device in ["vetha", "vethb"] {
            let ours = place_of_ours(&node, device);
            let place = match (verb, place) {
                (_, Some(place)) => place,
                ("replace", None) => ours.as_str(),
                (_, None) => ours.split(" handle").next().unwrap(),
            };
            tc_filter(&node, device, verb, place).unwrap();
            let theirs = others(&node, device);
            let added = Instant::now();
            until(DEADLINE, "the agent's filter to be first", || {
                let now = filters(&node, device);
                ensure!(is_ours_first(&node, device), "{verb} {place}: {now:#?}");
                Ok(())
            })
            .unwrap();
            times.push(added.elapsed());
            assert_eq!(others(&node, device), theirs, "{verb} {place}");
        }
        assert_frames_are_seen(&pods, &agent, number);
    }
    // The rest of them may have waited for the processor.
    times.sort();
    let median = times[times.len() / 2];
    assert!(median < Duration::from_secs(1), "{times:?}");
}

#[test]
fn filters_from_before_the_start_hide_nothing() {
    let (node, pods, _barrier) = two_pods("before");
    for device in ["vetha", "vethb"] {
        node.exec(&["tc", "qdisc", "add", "dev", device, "clsact"])
            .unwrap();
    }
    tc_filter(&node, "vetha", "add", "prio 1").unwrap();
    tc_filter(&node, "vetha", "add", "prio 2").unwrap();
    tc_filter(&node, "vethb", "add", "").unwrap();
    let theirs = ["vetha", "vethb"].map(|device| others(&node, device));
    let mut agent = Agent::start_ready(&node, &command("tc")).unwrap();
    assert!(is_ours_first(&node, "vetha") && is_ours_first(&node, "vethb"));
    assert_frames_are_seen(&pods, &agent, 10);
    agent.terminate(DEADLINE).unwrap();
    assert_eq!(
        ["vetha", "vethb"].map(|device| filters(&node, device)),
        theirs
    );
}

#[test]
fn filter_that_cannot_be_preceded_is_avoided_by_tcx() {
    let (node, pods, agent) = early_and_late_pod("avoided", "auto");
    for device in ["vetha", "vethb"] {
        add_unprecedable_filter(&node, device);
        let theirs = others(&node, device);
        wait_for(|| tcx_program_ids(&node, device).len() == 1);
        wait_for(|| filters(&node, device) == theirs);
    }
    assert_frames_are_seen(&pods, &agent, 10);
}

#[test]
fn filter_that_cannot_be_preceded_shows_in_the_health() {
    let (node, pods, agent) = early_and_late_pod("health", "tc");
    let client = TestClient::new(&node, "http://127.0.0.1:9842");
    let wait_for_health = |state: &str, detail: &str, preempted: u32| {
        until(DEADLINE, format!("the state {state}"), || {
            let ready = client.get("/readyz")?.json()?;
            let parts = ready["parts"].as_array().unwrap();
            let part = parts.iter().find(|part| part["name"] == "kernel programs");
            let part = part.unwrap();
            let is_there = part["state"] == state && part["detail"] == detail;
            ensure!(is_there, "{part}");
            let metrics = client.get("/metrics")?.body;
            let line = format!("\nipconflict_devices_preempted {preempted}\n");
            ensure!(metrics.contains(&line));
            Ok(())
        })
        .unwrap();
    };
    let all = "attached to all 2 pod devices";
    wait_for_health("works", all, 0);
    add_unprecedable_filter(&node, "vethb");
    let detail =
        format!("{all}; on 1 of them another program's filter runs first and may hide frames");
    wait_for_health("degraded", &detail, 1);
    let check = AgentCommand::new(AGENT, ["check"]);
    let check = check.run_to_end(&node, DEADLINE).unwrap();
    assert_eq!(check.code().unwrap(), 2, "{check:?}");
    assert!(check.stdout.starts_with("inconclusive: "), "{check:?}");
    assert!(check.stdout.contains("may hide frames"), "{check:?}");
    let words = "tc filter del dev vethb ingress prio 1";
    node.exec(&words.split(' ').collect::<Vec<_>>()).unwrap();
    wait_for_health("works", all, 0);
    assert_frames_are_seen(&pods, &agent, 10);
}

/// A network plugin makes sure that there is a clsact qdisc, and then adds its filter.
fn set_up(node: &Node, device: &str) -> Result<()> {
    node.exec(&["tc", "qdisc", "replace", "dev", device, "clsact"])?;
    tc_filter(node, device, "replace", "prio 5 handle 1")?;
    Ok(())
}

#[test]
fn stopping_leaves_clsact_to_a_plugin_that_is_about_to_use_it() {
    let (node, _pods, mut agent) = early_and_late_pod("between", "tc");
    for device in ["vetha", "vethb"] {
        node.exec(&["tc", "qdisc", "replace", "dev", device, "clsact"])
            .unwrap();
    }
    agent.terminate(DEADLINE).unwrap();
    for device in ["vetha", "vethb"] {
        tc_filter(&node, device, "add", "prio 5").unwrap();
    }
}

#[test]
fn stopping_while_a_plugin_sets_up_pods_loses_no_filter() {
    let node = Node::new("stoprace").unwrap();
    let specs: Vec<_> = (0..12).map(|n| PodSpec::new(format!("veth{n}"))).collect();
    let pods = node.add_pods(&specs).unwrap();
    let devices: Vec<_> = pods.iter().map(Pod::device).collect();
    for _ in 0..3 {
        let mut agent = Agent::start_ready(&node, &command("auto")).unwrap();
        thread::scope(|scope| {
            let plugin = scope.spawn(|| {
                for device in &devices {
                    set_up(&node, device).unwrap();
                }
            });
            agent.terminate(DEADLINE).unwrap();
            plugin.join().unwrap();
        });
        for device in &devices {
            let left = filters(&node, device);
            assert_eq!(left.len(), 1, "{device}: {left:#?}");
            assert_eq!(value_after(&left[0], "pref"), "5");
            let words = ["tc", "filter", "del", "dev", device, "ingress"];
            node.exec(&words).unwrap();
        }
    }
}
