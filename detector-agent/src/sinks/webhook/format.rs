//! The bodies of webhooks.
//!
//! Pod names are untrusted: Slack's control characters are escaped, and every text is truncated to the receiver's limit.

use serde_json::{Value, json};

use super::digest_body;
use crate::{
    engine::{AnomalyKind, Confidence},
    event::{
        AnomalyData, AnyEvent, Change, ContractName as _, Event,
        summary::{anomaly_line, anomaly_title, claimant, conflict_line, scoped_address},
    },
    sinks::{message::Message, settings::Format},
};

/// Slack's limit for a section is 3000 characters.
pub(super) const SLACK_SECTION: usize = 2900;
/// PagerDuty's limit for a summary is 1024 characters.
pub(super) const PAGERDUTY_SUMMARY: usize = 1000;

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
    pub fn body(self, message: &Message, routing_key: &str) -> serde_json::Result<Vec<u8>> {
        let value = match (self, message) {
            (Self::Cloudevents, message) => return serde_json::to_vec(message),
            (Self::Slack, Message::Event(event)) => match event {
                AnyEvent::Conflict(conflict) => slack(conflict, event.change()),
                AnyEvent::Anomaly(anomaly) => slack_anomaly(&anomaly.data, event.change()),
            },
            (Self::Slack, Message::Digest(digest)) => digest_body::slack(digest),
            (Self::Pagerduty, Message::Event(event)) => pagerduty(event, routing_key),
            (Self::Pagerduty, Message::Digest(digest)) => {
                digest_body::pagerduty(digest, routing_key)
            }
        };
        serde_json::to_vec(&value)
    }
}

pub(super) fn slack_mark(change: Change) -> (&'static str, &'static str) {
    match change {
        Change::Resolved => (":white_check_mark:", "resolved"),
        Change::Updated => (":warning:", "updated"),
        Change::Raised => (":rotating_light:", "detected"),
    }
}

fn slack_anomaly(data: &AnomalyData, change: Change) -> Value {
    let (mark, word) = slack_mark(change);
    let headline = format!(
        "{mark} *{} {word}*: {}",
        anomaly_title(data.kind),
        slack_text(&anomaly_line(data))
    );
    let context = format!(
        "{} · {} · {}",
        data.kind.name(),
        data.raised_at,
        data.anomaly_id
    );
    json!({"text": truncate(&headline, SLACK_SECTION), "blocks": [section(&headline), slack_context(&context)]})
}

pub(super) fn slack_context(text: &str) -> Value {
    json!({"type": "context", "elements": [{"type": "mrkdwn", "text": truncate(text, SLACK_SECTION)}]})
}

fn slack(event: &Event, change: Change) -> Value {
    let data = &event.data;
    let (mark, word) = slack_mark(change);
    let headline = format!(
        "{mark} *IP conflict {word}*: {}",
        slack_text(&conflict_line(data))
    );
    let claimants: Vec<String> = data
        .claimants
        .iter()
        .map(|c| {
            let name = slack_text(&claimant(c));
            let mac = c
                .mac
                .map_or_else(|| "unknown MAC".to_owned(), |mac| mac.to_string());
            match c.left {
                Some(left) => format!("• {name}, {mac}: left ({})", left.name().replace('_', " ")),
                None => {
                    let kinds: Vec<_> = c.evidence.iter().map(|e| e.kind.name()).collect();
                    format!("• {name}, {mac}: seen by {}", kinds.join(", "))
                }
            }
        })
        .collect();
    let mut blocks = vec![section(&headline)];
    if !claimants.is_empty() {
        blocks.push(section(&claimants.join("\n")));
    }
    blocks.push(slack_context(&format!(
        "{} · {} · {} · {}",
        data.kind.name(),
        data.confidence.name(),
        data.raised_at,
        data.conflict_id
    )));
    json!({"text": truncate(&headline, SLACK_SECTION), "blocks": blocks})
}

pub(super) fn section(text: &str) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": truncate(text, SLACK_SECTION)}})
}

/// Escapes Slack's three control characters as its documentation requires.
pub(super) fn slack_text(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn pagerduty(event: &AnyEvent, routing_key: &str) -> Value {
    let action = if event.is_resolved() {
        "resolve"
    } else {
        "trigger"
    };
    let (summary, node, severity, component, details) = match event {
        AnyEvent::Conflict(event) => {
            let data = &event.data;
            let severity = if data.confidence == Confidence::Certain {
                "critical"
            } else {
                "error"
            };
            let summary = format!("IP conflict: {}", conflict_line(data));
            (
                summary,
                &data.node,
                severity,
                scoped_address(data),
                json!(data),
            )
        }
        AnyEvent::Anomaly(event) => {
            let data = &event.data;
            let summary = format!("{}: {}", anomaly_title(data.kind), anomaly_line(data));
            // It stands for conflicts, each of which would be an error.
            let severity = if data.kind == AnomalyKind::AddressSweep {
                "error"
            } else {
                "warning"
            };
            (
                summary,
                &data.node,
                severity,
                data.address.to_string(),
                json!(data),
            )
        }
    };
    json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": event.subject_id().to_string(),
        "client": "IP Conflict Detector",
        "payload": {
            "summary": truncate(&summary, PAGERDUTY_SUMMARY),
            "source": node,
            "severity": severity,
            "timestamp": event.time(),
            "component": component,
            "group": node,
            "class": event.kind().contract_name(),
            "custom_details": details,
        },
    })
}

pub(super) fn truncate(text: &str, characters: usize) -> String {
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

    use super::*;
    use crate::{engine::Network, event::samples};

    fn body(format: Format, event: &Event) -> Value {
        any_body(format, &event.clone().into())
    }

    fn any_body(format: Format, event: &AnyEvent) -> Value {
        let message = Message::Event(event.clone());
        serde_json::from_slice(&format.body(&message, "key").unwrap()).unwrap()
    }

    #[test]
    fn an_anomaly_is_formatted_for_each_receiver() {
        let event = AnyEvent::from(samples::drift("10.0.0.1"));
        let cloud = any_body(Format::Cloudevents, &event);
        assert_eq!(cloud["type"], "io.ipconflict.anomaly.raised");
        let slack = any_body(Format::Slack, &event);
        let text = slack["text"].as_str().unwrap();
        assert!(
            text.contains("IPAM drift detected") && text.contains("10.0.0.1"),
            "{text}"
        );
        let page = any_body(Format::Pagerduty, &event);
        assert_eq!(page["payload"]["severity"], "warning");
        assert_eq!(page["payload"]["class"], "ipam_drift");
        assert_eq!(page["dedup_key"], event.subject_id().to_string());
    }

    #[test]
    fn a_sweep_is_about_its_pod_and_as_severe_as_its_conflicts() {
        let event = AnyEvent::from(samples::sweep("10.0.0.1"));
        let page = any_body(Format::Pagerduty, &event);
        assert_eq!(page["payload"]["severity"], "error");
        assert_eq!(
            page["payload"]["summary"],
            "Address sweep: default/a (veth-a) on node-1: the pod on veth-a claims 4 addresses of others"
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
        event.data.claimants = vec![one; 64];
        for claimant in &mut event.data.claimants {
            claimant.device = "ü".repeat(200);
        }
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
            "IP conflict: 10.0.0.1 is claimed by default/a (veth-a) and default/b (veth-b) on node-1; traffic goes to veth-a"
        );
    }
}
