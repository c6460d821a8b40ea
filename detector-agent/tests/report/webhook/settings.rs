//! Webhook settings: filters, formats, files.

use std::fs;

use detector_event::{AnyEvent, State};
use detector_testkit::{DEADLINE, ReceivedRequest, Receiver};

use super::{RunningSinks, accepted, event, event_json};

/// A conflict event raised now, with this kind, confidence, and Kubernetes namespace of a claimant.
fn about(
    id: &str,
    change: &str,
    conflict: &str,
    kind: &str,
    confidence: &str,
    namespace: &str,
) -> AnyEvent {
    let mut event = event_json(id, change, conflict);
    let time = event["time"].clone();
    let data = &mut event["data"];
    data["kind"] = kind.into();
    data["confidence"] = confidence.into();
    data["raised_at"] = jiff::Timestamp::now().to_string().into();
    data["claimants"] = serde_json::json!([{
        "device": "veth1", "ifindex": 7, "mac": null, "master": null, "since": time,
        "pod": {"namespace": namespace, "name": "web", "uid": null, "container_id": null, "via": "cri"},
        "pod_unknown_because": null, "evidence": []
    }]);
    serde_json::from_value(event).unwrap()
}

#[test]
fn filters_pass_all_events_of_matching_conflicts() {
    let receiver = Receiver::start().unwrap();
    let url = |name: &str| format!("http://{}/{name}", receiver.address());
    let filters = [
        ("all", ""),
        ("hosts", "kinds: [host]"),
        ("shop", "namespaces: [shop]"),
        ("sure", "confidence: certain"),
        ("lasting", "min-duration: 400ms"),
    ];
    let mut yaml = "webhooks:\n".to_owned();
    for (name, only) in filters {
        yaml += &format!(
            "- {{name: {name}, url: '{}', only: {{{only}}}}}\n",
            url(name)
        );
    }
    let mut running = RunningSinks::start(&yaml, |_| ()).unwrap();
    running.report(about("h1", "raised", "h", "host", "observed", "ops"));
    running.report(about("d1", "raised", "d", "duplicate", "observed", "shop"));
    running.report(about(
        "d2",
        "resolved",
        "d",
        "duplicate",
        "observed",
        "shop",
    ));
    // `sure` gets the host conflict when it becomes certain, `lasting` after its minimum duration.
    running.report(about("h2", "updated", "h", "host", "certain", "ops"));
    let of = |posted: &[ReceivedRequest], name: &str| -> Vec<(String, String)> {
        let path = format!("/{name}");
        let of = posted.iter().filter(|p| p.path == path);
        of.map(|p| {
            let event = p.json().unwrap();
            let kind = event["type"].as_str().unwrap().rsplit('.').next().unwrap();
            (p.header("webhook-id").to_owned(), kind.to_owned())
        })
        .collect()
    };
    receiver
        .wait_until(DEADLINE, |posted| of(posted, "lasting").len() == 1)
        .unwrap();
    running.report(about("h3", "resolved", "h", "host", "certain", "ops"));
    running.stop();
    let posted = receiver.requests();
    let mut expected = std::collections::BTreeMap::new();
    expected.insert("hosts", "h1 raised, h2 updated, h3 resolved");
    expected.insert("shop", "d1 raised, d2 resolved");
    expected.insert("sure", "h2 raised, h3 resolved");
    expected.insert("lasting", "h2 raised, h3 resolved");
    for (name, expected) in expected {
        let delivered: Vec<_> = of(&posted, name)
            .iter()
            .map(|(id, kind)| format!("{id} {kind}"))
            .collect();
        assert_eq!(delivered.join(", "), expected, "{name}");
    }
    assert_eq!(of(&posted, "all").len(), 5);
}

#[test]
fn slack_and_pagerduty_get_their_own_formats() {
    let receiver = Receiver::start().unwrap();
    let yaml = format!(
        "webhooks:\n- {{name: chat, url-file: DIR/url, format: slack}}\n\
         - {{name: pager, url: 'http://{}/pager', format: pagerduty, routing-key-file: DIR/key}}\n",
        receiver.address()
    );
    let mut running = RunningSinks::start(&yaml, |dir| {
        let url = format!("http://{}/services/T0/s3cr3t\n", receiver.address());
        fs::write(dir.join("url"), url).unwrap();
        fs::write(dir.join("key"), "s3cr3t-routing-key\n").unwrap();
    })
    .unwrap();
    running.report(about("e1", "raised", "c", "duplicate", "certain", "shop"));
    running.report(about("e2", "resolved", "c", "duplicate", "certain", "shop"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 4).unwrap();
    let at = |path: &str| -> Vec<serde_json::Value> {
        let of = posted.iter().filter(|p| p.path == path);
        of.map(|p| p.json().unwrap()).collect()
    };
    let chat = at("/services/T0/s3cr3t");
    assert!(
        chat[0]["text"]
            .as_str()
            .unwrap()
            .contains("shop/web (veth1)"),
        "{chat:?}"
    );
    assert!(
        chat[1]["text"].as_str().unwrap().contains("resolved"),
        "{chat:?}"
    );
    let pager = at("/pager");
    assert_eq!(pager[0]["routing_key"], "s3cr3t-routing-key");
    let actions = [&pager[0]["event_action"], &pager[1]["event_action"]];
    assert_eq!(actions, ["trigger", "resolve"]);
    assert_eq!(pager[0]["dedup_key"], pager[1]["dedup_key"]);
    let step = &pager[0]["payload"]["custom_details"]["next_step"];
    assert!(
        step.as_str().unwrap().starts_with("Delete the pod"),
        "{step}"
    );
    assert!(pager[0]["links"][0]["href"].is_string());
    let metrics = running.metrics.encode(None).unwrap();
    assert!(!metrics.contains("s3cr3t"), "{metrics}");
}

#[test]
fn sinks_with_unusable_files_are_disabled_until_they_can_be_used() {
    let receiver = Receiver::start().unwrap();
    let url = format!("http://{}", receiver.address());
    let yaml = format!(
        "webhooks:\n- {{name: a, url: '{url}/a', header-files: {{X-Key: DIR/none}}}}\n\
         - {{name: b, url-file: DIR/url}}\n- {{name: c, url: 'https://127.0.0.1:1', ca-file: DIR/url}}\n\
         - {{name: d, url: 'http://127.0.0.1:1', secret-files: [DIR/short]}}\n- {{name: good, url: '{url}/good'}}\n\
         alertmanagers:\n- {{name: e, url: '{url}/e', header-files: {{X-Key: DIR/empty}}}}\n"
    );
    let mut running = RunningSinks::start(&yaml, |dir| {
        fs::write(dir.join("url"), "not a url s3cr3t").unwrap();
        fs::write(dir.join("short"), "whsec_c2hvcnQ=").unwrap();
        fs::write(dir.join("empty"), "\n").unwrap();
    })
    .unwrap();
    let sinks: Vec<_> = running.health.report();
    for (name, reasons) in [
        ("a", ["cannot read", "/none"]),
        ("b", ["/url", "is not a valid URL"]),
        ("c", ["/url", "has no certificate"]),
        ("d", ["/short", "5 bytes"]),
        ("e", ["/empty", "is empty"]),
    ] {
        let part = sinks.iter().find(|part| part.name == name);
        let part = part.unwrap();
        assert_eq!(part.state, State::Failed, "{part:?}");
        assert!(part.detail.starts_with("disabled: "), "{part:?}");
        for reason in reasons {
            assert!(part.detail.contains(reason), "{reason}: {part:?}");
        }
        assert!(
            !part.detail.contains("s3cr3t") && !part.detail.contains("c2hvcnQ"),
            "{part:?}"
        );
        assert!(running.count(name, "unusable") >= 1, "{name}");
    }
    // The others get their events.
    running.report(event("e1", "raised", "c"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 1).unwrap();
    assert_eq!(posted[0].path, "/good");
    // A file that can be used enables its sink, and what waited is sent.
    let directory = running.directory.path();
    fs::write(directory.join("none"), "key").unwrap();
    fs::write(directory.join("empty"), "key").unwrap();
    receiver
        .wait_until(DEADLINE, |posted| {
            ["/a", "/e/api/v2/alerts"]
                .iter()
                .all(|path| posted.iter().any(|p| p.path == *path && p.is_accepted()))
        })
        .unwrap();
    running.wait_count("a", "delivered", 1);
    assert_eq!(running.count("b", "delivered"), 0);
    running.stop();
}
