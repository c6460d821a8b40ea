//! The bodies of digests.

use serde_json::{Value, json};

use super::format::{
    PAGERDUTY_SUMMARY, SLACK_SECTION, section, slack_context, slack_mark, slack_text, truncate,
};
use crate::{event::Change, sinks::digest::Digest};

/// A Slack message.
pub(super) fn slack(digest: &Digest) -> Value {
    let (mark, word) = slack_mark(digest.change);
    let headline = format!(
        "{mark} *IP conflicts {word}*: {}",
        slack_text(&digest.line())
    );
    let mut blocks = vec![section(&headline)];
    let entries: Vec<_> = entries(digest)
        .map(|entry| format!("• {}", slack_text(&entry)))
        .collect();
    if !entries.is_empty() {
        blocks.push(section(&entries.join("\n")));
    }
    blocks.push(slack_context(&format!(
        "certain · {} · {}",
        digest.since, digest.digest_id
    )));
    json!({"text": truncate(&headline, SLACK_SECTION), "blocks": blocks})
}

/// An event for PagerDuty. All messages of one digest are one incident.
pub(super) fn pagerduty(digest: &Digest, routing_key: &str) -> Value {
    let action = match digest.change {
        Change::Raised | Change::Updated => "trigger",
        Change::Resolved => "resolve",
    };
    let summary = format!("IP conflicts: {}", digest.line());
    let entries: Vec<_> = std::iter::once(summary).chain(entries(digest)).collect();
    json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": digest.digest_id.to_string(),
        "client": "IP Conflict Detector",
        "payload": {
            "summary": truncate(&entries.join("; "), PAGERDUTY_SUMMARY),
            "source": digest.node,
            "severity": "critical",
            "timestamp": digest.time,
            "component": digest.node,
            "group": digest.node,
            "class": "digest",
            "custom_details": digest,
        },
    })
}

/// `10.244.2.10: default/a (veth1) and default/b (veth2)`, and how many are not listed.
fn entries(digest: &Digest) -> impl Iterator<Item = String> {
    let more = digest.joined.saturating_sub(digest.entries.len());
    let more = (more > 0).then(|| format!("and {more} more, see the node's status page"));
    let listed = digest.entries.iter();
    listed
        .map(|entry| format!("{}: {}", entry.address, entry.claimants))
        .chain(more)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;
    use crate::{
        event::samples,
        sinks::{digest::DigestEntry, message::Message, settings::Format},
    };

    fn digest(change: Change, joined: usize) -> Message {
        let entry = |n| DigestEntry {
            address: format!("10.0.0.{n}"),
            claimants: "default/<!channel> (veth-a) and default/b (veth-b)".to_owned(),
        };
        let digest = Digest {
            id: "run-digest-1".to_owned(),
            digest_id: samples::subject_id("storm"),
            change,
            node: "node-1".to_owned(),
            time: samples::time(),
            since: samples::time(),
            active: joined,
            total: joined,
            joined,
            entries: (0..joined.min(10)).map(entry).collect(),
        };
        Message::Digest(digest.into())
    }

    fn body(format: Format, message: &Message) -> Value {
        serde_json::from_slice(&format.body(message, "key").unwrap()).unwrap()
    }

    #[test]
    fn a_chat_message_says_how_many_and_names_the_first() {
        let body = body(Format::Slack, &digest(Change::Raised, 197));
        let text = body["text"].as_str().unwrap();
        assert_eq!(
            text,
            ":rotating_light: *IP conflicts detected*: 197 more addresses are claimed by several pods on node-1, since 2026-11-21T01:02:03.123456Z"
        );
        let list = body["blocks"][1]["text"]["text"].as_str().unwrap();
        assert!(
            list.starts_with("• 10.0.0.0: default/&lt;!channel&gt; (veth-a)"),
            "{list}"
        );
        assert!(
            list.ends_with("• and 187 more, see the node's status page"),
            "{list}"
        );
    }

    #[test]
    fn all_messages_of_a_digest_are_one_incident() {
        let messages = [Change::Raised, Change::Updated, Change::Resolved].map(|c| digest(c, 1));
        let bodies = messages.map(|message| body(Format::Pagerduty, &message));
        let actions = bodies.each_ref().map(|body| body["event_action"].clone());
        assert_eq!(actions, ["trigger", "trigger", "resolve"]);
        for body in &bodies {
            assert_eq!(body["dedup_key"], bodies[0]["dedup_key"]);
            let summary = body["payload"]["summary"].as_str().unwrap();
            assert!(summary.chars().count() <= PAGERDUTY_SUMMARY, "{summary}");
        }
    }
}
