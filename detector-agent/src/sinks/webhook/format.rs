//! The bodies of webhooks.
//!
//! Pod names are untrusted: Slack's control characters are escaped, and every text is truncated to the receiver's limit.

use detector_event::{
    AnyEvent, Change, ContractName as _,
    guidance::{Severity, StatusPageUrl},
    summary::scoped_address,
};
use serde_json::{Value, json};

use crate::sinks::{message::Message, notice::Notice, settings::Format};

/// Slack's limit for a section is 3000 characters.
const SLACK_SECTION: usize = 2900;
/// PagerDuty's limit for a summary is 1024 characters.
const PAGERDUTY_SUMMARY: usize = 1000;

impl Format {
    /// The value of `content-type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Cloudevents => "application/cloudevents+json; charset=UTF-8",
            Self::Slack | Self::Pagerduty => "application/json",
        }
    }

    /// The body for `message`; `routing_key` is PagerDuty's.
    ///
    /// # Errors
    /// Never in practice: a message is always JSON.
    pub fn body(
        self,
        message: &Message,
        routing_key: &str,
        status_page: Option<&StatusPageUrl>,
    ) -> serde_json::Result<Vec<u8>> {
        if self == Self::Cloudevents {
            return serde_json::to_vec(&message.events.first());
        }
        let notice = &Notice::new(message);
        let value = match self {
            Self::Pagerduty => pagerduty(message, notice, routing_key, status_page),
            Self::Slack | Self::Cloudevents => slack(notice, status_page),
        };
        serde_json::to_vec(&value)
    }
}

fn icon(notice: &Notice) -> &'static str {
    match notice.severity {
        _ if notice.change == Change::Resolved => ":white_check_mark:",
        Severity::Critical => ":rotating_light:",
        Severity::Warning => ":warning:",
        Severity::Info => ":information_source:",
    }
}

/// The status page with the conflict or the anomaly, or that of the node.
fn page_of(notice: &Notice, url: &StatusPageUrl) -> String {
    match notice.subject {
        Some(id) => url.of_finding(&notice.node, id),
        None => url.of_node(&notice.node),
    }
}

/// Title and URL of the pages to read on.
fn links(notice: &Notice, status_page: Option<&StatusPageUrl>) -> Vec<(String, String)> {
    let runbook = (notice.kind.runbook_title(), notice.kind.runbook_url());
    let status_page = status_page.map(|url| {
        let title = match notice.subject {
            Some(_) => "Details on the status page".to_owned(),
            None => format!("Status page of {}", notice.node),
        };
        (title, page_of(notice, url))
    });
    std::iter::once(runbook).chain(status_page).collect()
}

fn slack(notice: &Notice, status_page: Option<&StatusPageUrl>) -> Value {
    let mut lines = vec![format!(
        "{} *{}*: {}",
        icon(notice),
        notice.heading(),
        slack_text(&notice.finding)
    )];
    let further = [
        ("", &notice.effect),
        ("*Cause:* ", &notice.cause),
        ("*Next step:* ", &notice.next_step),
    ];
    let further = further.iter().filter(|(_, text)| !text.is_empty());
    lines.extend(further.map(|(label, text)| format!("{label}{}", slack_text(text))));
    if !notice.changed.is_empty() {
        lines.push(format!("*Changed:* {}", notice.changed.join(", ")));
    }
    let text = truncate(&lines.join("\n"), SLACK_SECTION);
    let mut blocks = vec![section(&text)];
    if !notice.list.is_empty() {
        let list = notice
            .list
            .iter()
            .map(|line| format!("• {}", slack_text(line)));
        blocks.push(section(&list.collect::<Vec<_>>().join("\n")));
    }
    let links = links(notice, status_page);
    let links = links.iter().map(|(title, url)| {
        let url = slack_text(url).replace('|', "%7C");
        format!("<{url}|{}>", slack_text(title))
    });
    blocks.push(slack_context(&links.collect::<Vec<_>>().join(" · ")));
    blocks.push(slack_context(&slack_text(&notice.context)));
    json!({"text": text, "blocks": blocks})
}

fn slack_context(text: &str) -> Value {
    json!({"type": "context", "elements": [{"type": "mrkdwn", "text": truncate(text, SLACK_SECTION)}]})
}

fn section(text: &str) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": truncate(text, SLACK_SECTION)}})
}

/// Escapes Slack's three control characters as its documentation requires.
fn slack_text(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// An event for PagerDuty.
fn pagerduty(
    message: &Message,
    notice: &Notice,
    routing_key: &str,
    status_page: Option<&StatusPageUrl>,
) -> Value {
    let action = match notice.change {
        Change::Raised | Change::Updated => "trigger",
        Change::Resolved => "resolve",
    };
    let (component, mut details) = match &message.events[..] {
        [AnyEvent::Conflict(event)] => (scoped_address(&event.data), json!(event.data)),
        [AnyEvent::Anomaly(event)] => (event.data.address.to_string(), json!(event.data)),
        events => {
            let details = json!({"findings": events.len(), "list": notice.list});
            (notice.node.clone(), details)
        }
    };
    for (key, text) in [
        ("traffic", &notice.effect),
        ("why", &notice.cause),
        ("next_step", &notice.next_step),
    ] {
        if !text.is_empty() {
            details[key] = json!(text);
        }
    }
    let links = links(notice, status_page);
    let links = links
        .iter()
        .map(|(text, href)| json!({"href": href, "text": text}));
    let mut event = json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": message.incident.to_string(),
        "client": "IP Conflict Detector",
        "links": links.collect::<Vec<_>>(),
        "payload": {
            "summary": truncate(&summary(notice), PAGERDUTY_SUMMARY),
            "source": notice.node,
            "severity": notice.severity.contract_name(),
            "timestamp": message.events.last().map(AnyEvent::time),
            "component": component,
            "group": notice.node,
            "class": notice.kind.contract_name(),
            "custom_details": details,
        },
    });
    if let Some(url) = status_page {
        event["client_url"] = json!(page_of(notice, url));
    }
    event
}

/// Title, finding and traffic in one line; PagerDuty shows who is paged little more.
fn summary(notice: &Notice) -> String {
    let finding = format!("{}: {}", notice.title, notice.finding);
    if notice.effect.is_empty() {
        finding
    } else {
        format!("{finding}. {}", notice.effect)
    }
}

fn truncate(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(characters - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use std::sync::Arc;

    use detector_engine::Network;
    use detector_event::{ChangedField, Event, samples};

    use super::*;

    fn body(format: Format, event: &Event) -> Value {
        any_body(format, &Message::of_event(event.clone().into()))
    }

    fn any_body(format: Format, message: &Message) -> Value {
        let status_page = "https://ip.example.org/{node}/?a=1&b=2".parse().unwrap();
        let body = format.body(message, "key", Some(&status_page)).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// A message of two conflicts of the same pods.
    fn window(change: Change) -> Message {
        let events = ["10.0.0.1", "10.0.0.2"].map(|address| {
            let mut event = samples::event(address, change, address, address);
            event.data.changed = vec![ChangedField::Pod, ChangedField::Evidence];
            event.into()
        });
        Message::of_window(change, samples::subject_id("first"), events.into()).unwrap()
    }

    #[test]
    fn an_anomaly_is_formatted_for_each_receiver() {
        let event = Message::of_event(samples::drift("10.0.0.1").into());
        let cloud = any_body(Format::Cloudevents, &event);
        assert_eq!(cloud["type"], "io.ipconflict.anomaly.raised");
        let slack = any_body(Format::Slack, &event);
        let text = slack["text"].as_str().unwrap();
        assert!(
            text.starts_with(":warning: *IPAM drift detected*: 10.0.0.1 of default/a"),
            "{text}"
        );
        let page = any_body(Format::Pagerduty, &event);
        assert_eq!(page["payload"]["severity"], "warning");
        assert_eq!(page["payload"]["class"], "ipam_drift");
        assert_eq!(page["dedup_key"], event.incident.to_string());
    }

    #[test]
    fn a_sweep_is_about_its_pod_and_as_severe_as_its_conflicts() {
        let event = Message::of_event(samples::sweep("10.0.0.1").into());
        let page = any_body(Format::Pagerduty, &event);
        assert_eq!(page["payload"]["severity"], "critical");
        assert_eq!(
            page["payload"]["summary"],
            "Address sweep: default/a (veth-a) on node-1: the pod on veth-a claims 4 addresses of others. The node's traffic for these addresses still goes to the victims."
        );
    }

    #[test]
    fn a_cloudevents_body_is_the_event_itself() {
        let event = samples::raised("10.0.0.1");
        assert_eq!(
            body(Format::Cloudevents, &event),
            serde_json::to_value(&event).unwrap()
        );
    }

    #[test]
    fn network_is_named_unless_it_is_the_nodes() {
        let mut event = samples::raised("10.0.0.1");
        let texts = |event: &Event| {
            let slack = body(Format::Slack, event)["text"].to_string();
            let page = body(Format::Pagerduty, event)["payload"]["summary"].to_string();
            [slack, page]
        };
        for text in texts(&event) {
            assert!(text.contains("10.0.0.1 is claimed by"), "{text}");
        }
        event.data.network = Network::Vrf("red".to_owned());
        for text in texts(&event) {
            assert!(text.contains("10.0.0.1 (vrf:red) is claimed by"), "{text}");
        }
    }

    #[test]
    fn slack_gets_finding_traffic_next_step_and_links_in_this_order() {
        let body = any_body(Format::Slack, &window(Change::Updated));
        let text = body["blocks"][0]["text"]["text"].as_str().unwrap();
        assert_eq!(body["text"], text);
        let lines: Vec<_> = text.lines().collect();
        let begins = [
            ":rotating_light: *IP conflicts updated*: 2 addresses are claimed by default/a",
            "Traffic for them goes to default/a (veth-a)",
            "*Next step:* Delete the pod that came last",
            "*Changed:* pods",
        ];
        assert_eq!(lines.len(), begins.len(), "{text}");
        for (line, begin) in lines.iter().zip(begins) {
            assert!(line.starts_with(begin), "{line}");
        }
        let links = body["blocks"][2]["elements"][0]["text"].as_str().unwrap();
        assert_eq!(
            links,
            "<https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks/IPAddressConflict.md#duplicate|Runbook IPAddressConflict> · <https://ip.example.org/node-1/?a=1&amp;b=2|Status page of node-1>"
        );
    }

    #[test]
    fn message_about_one_conflict_has_cluster_time_and_a_link_to_it() {
        let mut event = samples::raised("10.0.0.1");
        event.data.cluster = Some("east".to_owned());
        let slack = body(Format::Slack, &event);
        let text = slack["text"].as_str().unwrap();
        assert!(text.contains(" on node-1 (cluster east)"), "{text}");
        let blocks = slack["blocks"].to_string();
        assert!(
            blocks.contains("certain · since 2026-11-21 01:02:03Z"),
            "{blocks}"
        );
        let id = samples::subject_id("10.0.0.1").to_string();
        let link = format!("?a=1&amp;b=2&amp;id={id}|Details on the status page>");
        assert!(blocks.contains(&link), "{blocks}");
        // The id is part of the link alone.
        assert_eq!(blocks.matches(&id).count(), 1, "{blocks}");
    }

    #[test]
    fn end_names_who_kept_the_address() {
        let mut event = samples::resolved("10.0.0.1");
        event.data.claimants[1].left = Some(detector_engine::LeaveReason::DeviceRemoved);
        let slack = body(Format::Slack, &event);
        let text = slack["text"].as_str().unwrap();
        assert!(
            text.ends_with("claimed it for 1s, and default/a (veth-a) kept it"),
            "{text}"
        );
    }

    #[test]
    fn icon_follows_the_severity_until_it_is_over() {
        let icon_of = |message: &Message| {
            let text = any_body(Format::Slack, message)["text"].to_string();
            text.trim_matches('"').split(' ').next().unwrap().to_owned()
        };
        assert_eq!(icon_of(&window(Change::Raised)), ":rotating_light:");
        assert_eq!(icon_of(&window(Change::Resolved)), ":white_check_mark:");
        let sweep = Message::of_event(samples::sweep("10.0.0.1").into());
        assert_eq!(icon_of(&sweep), ":rotating_light:");
    }

    #[test]
    fn slack_control_characters_are_escaped() {
        let mut event = samples::raised("10.0.0.1");
        let pod = event.data.claimants[0].pod.as_mut().unwrap();
        Arc::make_mut(pod).name = "<!channel>&".to_owned();
        let body = body(Format::Slack, &event);
        let text = body["text"].as_str().unwrap();
        assert!(text.contains("IP conflict detected"), "{text}");
        assert!(
            text.contains("default/&lt;!channel&gt;&amp; (veth-a)"),
            "{text}"
        );
        assert!(!body.to_string().contains("<!channel>"), "{body}");
    }

    #[test]
    fn slack_messages_stay_within_slacks_limits() {
        let mut event = samples::raised("10.0.0.1");
        let one = event.data.claimants[0].clone();
        event.data.claimants = (0..64)
            .map(|n| {
                let mut claimant = one.clone();
                claimant.device = format!("{}{n}", "ü".repeat(2000));
                claimant
            })
            .collect();
        let body = body(Format::Slack, &event);
        for block in body["blocks"].as_array().unwrap() {
            let text = block["text"]["text"].as_str().unwrap_or_default();
            assert!(text.chars().count() <= SLACK_SECTION);
        }
    }

    #[test]
    fn pagerduty_events_share_one_dedup_key() {
        let raised = body(Format::Pagerduty, &samples::raised("10.0.0.1"));
        let resolved = body(Format::Pagerduty, &samples::resolved("10.0.0.1"));
        assert_eq!(raised["event_action"], "trigger");
        assert_eq!(raised["routing_key"], "key");
        assert_eq!(raised["payload"]["severity"], "critical");
        assert_eq!(resolved["event_action"], "resolve");
        assert_eq!(raised["dedup_key"], resolved["dedup_key"]);
        let summary = raised["payload"]["summary"].as_str().unwrap();
        assert_eq!(
            summary,
            "IP conflict: 10.0.0.1 is claimed by default/a (veth-a) and default/b (veth-b) on node-1. Traffic for it goes to default/a (veth-a); none of it goes to default/b (veth-b)."
        );
    }

    #[test]
    fn all_messages_of_an_incident_have_its_key() {
        let changes = [Change::Raised, Change::Updated, Change::Resolved];
        let bodies = changes.map(|change| any_body(Format::Pagerduty, &window(change)));
        let actions = bodies.each_ref().map(|body| body["event_action"].clone());
        assert_eq!(actions, ["trigger", "trigger", "resolve"]);
        for body in &bodies {
            assert_eq!(body["dedup_key"], bodies[0]["dedup_key"]);
            let summary = body["payload"]["summary"].as_str().unwrap();
            assert!(summary.chars().count() <= PAGERDUTY_SUMMARY, "{summary}");
            assert_eq!(body["client_url"], "https://ip.example.org/node-1/?a=1&b=2");
            assert_eq!(body["links"].as_array().unwrap().len(), 2);
            assert_eq!(body["payload"]["class"], "duplicate");
        }
        let details = &bodies[0]["payload"]["custom_details"];
        assert_eq!(details["findings"], 2);
        assert!(details["next_step"].is_string() && details["traffic"].is_string());
    }
}
