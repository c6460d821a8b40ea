//! Debian's real Alertmanager: a conflict is shown, silenced and resolved, and is one alert if Prometheus sends it as well.

use std::{fs, path::Path, time::Duration};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, PodSpec, ReceivedRequest, Receiver,
    alertmanager::Alertmanager, prometheus::Prometheus, until,
};
use serde_json::Value;

use crate::AGENT;

const ADDRESS: &str = "10.244.2.10";
const ALERTMANAGER: &str = Alertmanager::ADDRESS;
/// Bounds the time that Alertmanager takes to start and to group alerts.
const ALERTMANAGER_DEADLINE: Duration = Duration::from_secs(60);

/// An Alertmanager that notifies `receiver` of each alert at once.
fn start<'n>(node: &'n Node, receiver: &Receiver) -> Alertmanager<'n> {
    let configuration = format!(
        "route: {{receiver: hook, group_by: ['...'], group_wait: 1ms, group_interval: 1s, repeat_interval: 1h}}\n\
         receivers:\n- name: hook\n  webhook_configs: [{{url: '{}', send_resolved: true}}]\n",
        receiver.url()
    );
    Alertmanager::start(node, &configuration).unwrap()
}

/// The alerts for the address, from `amtool alert query` with these flags.
fn query(alertmanager: &Alertmanager<'_>, flags: &[&str]) -> anyhow::Result<Vec<Value>> {
    alertmanager.alerts(&[flags, &["alertname=IPAddressConflict"]].concat())
}

fn notified(posted: &[ReceivedRequest], status: &str) -> bool {
    posted.iter().filter_map(|p| p.json().ok()).any(|n| {
        n["alerts"].as_array().is_some_and(|alerts| {
            alerts
                .iter()
                .any(|a| a["status"] == status && a["labels"]["address"] == ADDRESS)
        })
    })
}

#[test]
fn alert_of_prometheus_and_of_the_agent_is_one() {
    let node = Node::new("bothalert").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let alertmanager = start(&node, &receiver);
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    let config = directory.path().join("config.yaml");
    let text = format!(
        "status-page-url: 'https://ip.example.org/{{node}}/'\n\
         alertmanagers:\n- {{name: am, url: 'http://{ALERTMANAGER}', labels: {{cluster: east}}}}\n"
    );
    fs::write(&config, text).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--no-ebpf")
        .arg("--config")
        .arg(&config);
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    agent.wait_raised(ADDRESS).unwrap();
    let of_agent = until(DEADLINE, "the agent's alert", || {
        let alerts = query(&alertmanager, &[])?;
        ensure!(alerts.len() == 1, "{alerts:?}");
        Ok(alerts[0].clone())
    })
    .unwrap();
    let page = of_agent["generatorURL"].as_str().unwrap();
    assert!(
        page.starts_with("https://ip.example.org/testkit/?id="),
        "{page}"
    );

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules = fs::read_to_string(root.join("deploy/prometheus/rules.yaml")).unwrap();
    let rules = rules.replace("for: 1m", "for: 1s");
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s, external_labels: {{cluster: east}}}}\n\
         rule_files: [rules.yaml]\n\
         alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{ALERTMANAGER}']}}]}}]}}\n\
         scrape_configs:\n\
         - {{job_name: ip-conflict-detector, static_configs: [{{targets: ['127.0.0.1:9842'], labels: {{node: testkit}}}}]}}\n\
         - {{job_name: prometheus, static_configs: [{{targets: ['127.0.0.1:9090']}}]}}\n"
    );
    let prometheus = Prometheus::start_with(&node, &config, &[("rules.yaml", &rules)]).unwrap();
    let alert = r#"ALERTS{alertname="IPAddressConflict",alertstate="firing"}"#;
    prometheus.wait(alert, |series| series.len() == 1).unwrap();
    prometheus
        .wait("prometheus_notifications_sent_total > 0", |series| {
            !series.is_empty()
        })
        .unwrap();
    // What Alertmanager has now is Prometheus' alert, without the agent's further annotations.
    let merged = until(DEADLINE, "the alert of Prometheus", || {
        let alerts = query(&alertmanager, &[])?;
        let is_prometheus = |alert: &Value| alert["annotations"].get("conflict_id").is_none();
        ensure!(alerts.iter().any(is_prometheus), "{alerts:?}");
        Ok(alerts)
    })
    .unwrap();
    let [merged] = &merged[..] else {
        panic!("{merged:?}");
    };
    assert_eq!(merged["labels"], of_agent["labels"]);
    for text in ["summary", "description", "runbook_url"] {
        let of = |alert: &Value| alert["annotations"][text].clone();
        assert_eq!(of(merged), of(&of_agent));
    }
    agent.terminate(ALERTMANAGER_DEADLINE).unwrap();
}

#[test]
fn alertmanager_shows_silences_and_resolves_a_conflict() {
    let node = Node::new("alerts").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let alertmanager = start(&node, &receiver);

    let config = directory.path().join("config.yaml");
    // The second one is down, which must not affect the first.
    let text = format!(
        "alertmanagers:\n- {{name: first, url: 'http://{ALERTMANAGER}', labels: {{cluster: east}}, resend-every: 1s}}\n\
         - {{name: down, url: 'http://127.0.0.1:1'}}\n"
    );
    fs::write(&config, text).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--no-ebpf")
        .arg("--config")
        .arg(&config);
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
        PodSpec::new("vethb").address("10.244.2.10/32"),
    ];
    let pods = node.add_pods(&specs).unwrap();
    agent.wait_raised(ADDRESS).unwrap();

    receiver
        .wait_until(ALERTMANAGER_DEADLINE, |posted| notified(posted, "firing"))
        .unwrap();
    let alerts = query(&alertmanager, &[]).unwrap();
    let [alert] = &alerts[..] else {
        panic!("{alerts:?}")
    };
    let labels = &alert["labels"];
    assert_eq!(labels["address"], ADDRESS);
    assert_eq!(labels["kind"], "duplicate");
    assert_eq!(labels["node"], "testkit");
    assert_eq!(labels["cluster"], "east");
    let summary = alert["annotations"]["summary"].as_str().unwrap();
    assert!(
        summary.contains("vetha") && summary.contains("vethb"),
        "{summary}"
    );

    // The alert is resent periodically and would expire otherwise.
    let ends_at =
        |alert: &Value| -> jiff::Timestamp { alert["endsAt"].as_str().unwrap().parse().unwrap() };
    let lapse = ends_at(alert);
    until(DEADLINE, "the alert to be sent again", || {
        let alerts = query(&alertmanager, &[])?;
        ensure!(
            alerts.iter().any(|alert| ends_at(alert) > lapse),
            "{alerts:?}"
        );
        Ok(())
    })
    .unwrap();

    let matcher = format!("address={ADDRESS}");
    let add = [
        "silence",
        "add",
        "--author=test",
        "--comment=known",
        "--duration=1h",
        &matcher,
    ];
    let silence = alertmanager.amtool(&add).unwrap();
    until(DEADLINE, "the alert to be silenced", || {
        ensure!(
            query(&alertmanager, &["--silenced"])?.len() == 1
                && query(&alertmanager, &["--active"])?.is_empty()
        );
        Ok(())
    })
    .unwrap();
    alertmanager
        .amtool(&["silence", "expire", silence.trim()])
        .unwrap();
    until(DEADLINE, "the silence to expire", || {
        ensure!(query(&alertmanager, &["--active"])?.len() == 1);
        Ok(())
    })
    .unwrap();

    pods[1].remove_address("10.244.2.10/32").unwrap();
    agent.wait_resolved(ADDRESS).unwrap();
    receiver
        .wait_until(ALERTMANAGER_DEADLINE, |posted| notified(posted, "resolved"))
        .unwrap();
    until(DEADLINE, "the alert to be resolved", || {
        ensure!(query(&alertmanager, &[])?.is_empty());
        Ok(())
    })
    .unwrap();
    // `endsAt` is the time of the resolution, not of the request.
    let posted = receiver.requests();
    let resolved = posted
        .iter()
        .filter_map(|p| p.json().ok())
        .flat_map(|n| n["alerts"].as_array().cloned().unwrap_or_default())
        .find(|a| a["status"] == "resolved")
        .unwrap();
    let end = agent
        .events()
        .into_iter()
        .find(|r| r.event.resolves(ADDRESS))
        .and_then(|r| r.event.conflict())
        .and_then(|c| c.resolved_at)
        .unwrap();
    let end: jiff::Timestamp = end.parse().unwrap();
    // Alertmanager stores milliseconds.
    let apart = ends_at(&resolved).duration_since(end).abs();
    assert!(apart.as_millis() <= 1, "{resolved}, {end}");
    agent.terminate(ALERTMANAGER_DEADLINE).unwrap();
}
