//! A JSON object with one long list in it, written in chunks; and the keys of its items.

use std::{fmt, net::IpAddr, str::FromStr};

use bytes::Bytes;
use detector_engine::Timestamp;
use detector_event::answers::AnswerEnd;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    Sources,
    parameters::NotAPosition,
    respond::{Chunk, Truncated},
};
/// The most reasons of unknown pods that are listed once; further ones stay where they are.
const REASONS: usize = 64;

/// The place of a conflict or an anomaly in its list: by age, so that those raised later do not move it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ItemKey<I> {
    raised_at: Timestamp,
    pub(super) address: IpAddr,
    pub(super) id: I,
}

impl<I> From<(Timestamp, IpAddr, I)> for ItemKey<I> {
    fn from((raised_at, address, id): (Timestamp, IpAddr, I)) -> Self {
        Self {
            raised_at,
            address,
            id,
        }
    }
}

impl<I: fmt::Display> fmt::Display for ItemKey<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.raised_at.0, self.address, self.id)
    }
}

impl<I: TryFrom<String>> FromStr for ItemKey<I> {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let mut parts = text.splitn(3, '_');
        let mut part = || parts.next().ok_or(NotAPosition);
        let (raised_at, address, id) = (part()?, part()?, part()?);
        Ok(Self {
            raised_at: Timestamp(raised_at.parse().map_err(|_| NotAPosition)?),
            address: address.parse().map_err(|_| NotAPosition)?,
            id: id.to_owned().try_into().map_err(|_| NotAPosition)?,
        })
    }
}

/// The answer that is being written.
pub(super) struct List {
    text: String,
    is_first: bool,
    to: mpsc::Sender<Chunk>,
    /// The reasons listed once, if they are.
    reasons: Option<Vec<String>>,
}

impl List {
    pub(super) fn begin(
        sources: &Sources,
        name: &str,
        reasons_once: bool,
        to: mpsc::Sender<Chunk>,
    ) -> Self {
        // Serialising these types cannot fail, nor those of items.
        let mut text = serde_json::to_string(&sources.head()).unwrap_or_default();
        text.pop();
        text.push_str(&format!(",\"{name}\":["));
        Self {
            text,
            is_first: true,
            to,
            reasons: reasons_once.then(Vec::new),
        }
    }

    /// Adds an item.
    pub(super) fn add(&mut self, item: &impl Serialize) {
        let json = match &mut self.reasons {
            None => serde_json::to_string(item),
            Some(reasons) => serde_json::to_value(item).map(|mut item| {
                list_reasons_once(&mut item, reasons);
                item.to_string()
            }),
        };
        let Ok(json) = json else {
            return;
        };
        if !self.is_first {
            self.text.push(',');
        }
        self.is_first = false;
        self.text.push_str(&json);
    }

    /// Ends the list and adds another one.
    pub(super) fn add_list(&mut self, name: &str, items: &[impl Serialize]) {
        self.text.push_str(&format!("],\"{name}\":["));
        self.is_first = true;
        for item in items {
            self.add(item);
        }
    }

    /// Sends what was added; `false` if the client disconnected.
    pub(super) async fn send(&mut self) -> bool {
        let text = std::mem::take(&mut self.text);
        text.is_empty() || self.to.send(Ok(Bytes::from(text))).await.is_ok()
    }

    /// Ends the list and the answer; `next` is where the next page begins.
    pub(super) async fn end(mut self, next: Option<String>) {
        let end = AnswerEnd {
            next,
            pod_unknown_reasons: self.reasons.take(),
        };
        let rest = serde_json::to_string(&end).unwrap_or_default();
        self.text.push_str(&format!("],{}\n", &rest[1..]));
        self.send().await;
    }

    pub(super) async fn abort(self) {
        // A failed send means that the client disconnected.
        let _ = self.to.send(Err(Truncated)).await;
    }
}

/// Moves the reason of each unknown pod to `reasons`, and leaves its index there.
fn list_reasons_once(item: &mut Value, reasons: &mut Vec<String>) {
    let mut replace = |subject: &mut Value| {
        let Some(Value::String(reason)) = subject.get("pod_unknown_because") else {
            return;
        };
        let index = match reasons.iter().position(|known| known == reason) {
            Some(index) => index,
            None if reasons.len() < REASONS => {
                reasons.push(reason.clone());
                reasons.len() - 1
            }
            None => return,
        };
        subject["pod_unknown_because"] = Value::Null;
        subject["pod_unknown_reason"] = index.into();
    };
    replace(item);
    let claimants = item.get_mut("claimants").and_then(Value::as_array_mut);
    claimants.into_iter().flatten().for_each(replace);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use detector_engine::ConflictId;
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_read_back() {
        for address in ["fd00::1", "10.0.0.1"] {
            let key = ItemKey::from((Timestamp(7), address.parse().unwrap(), ConflictId(9)));
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        for text in [
            "",
            "7",
            "7_",
            "7_10.0.0.1",
            "7_10.0.0.1_",
            "7_x_9",
            "-1_10.0.0.1_9",
        ] {
            assert_eq!(
                text.parse::<ItemKey<ConflictId>>(),
                Err(NotAPosition),
                "{text}"
            );
        }
    }

    #[test]
    fn each_reason_is_listed_once_up_to_the_bound() {
        let mut reasons = Vec::new();
        let claimant = |reason: &str| json!({"pod": null, "pod_unknown_because": reason});
        let mut item = json!({
            "pod_unknown_because": "a",
            "claimants": [claimant("b"), claimant("a"), {"pod": {}, "pod_unknown_because": null}],
        });
        list_reasons_once(&mut item, &mut reasons);
        assert_eq!(reasons, ["a", "b"]);
        assert_eq!(item["pod_unknown_reason"], 0);
        assert_eq!(item["claimants"][0]["pod_unknown_reason"], 1);
        assert_eq!(item["claimants"][1]["pod_unknown_reason"], 0);
        assert!(item["claimants"][1]["pod_unknown_because"].is_null());
        assert!(item["claimants"][2].get("pod_unknown_reason").is_none());
        for number in 0..REASONS {
            let mut item = claimant(&format!("reason {number}"));
            list_reasons_once(&mut item, &mut reasons);
            assert_eq!(item["pod_unknown_because"].is_null(), number < REASONS - 2);
        }
        assert_eq!(reasons.len(), REASONS);
    }
}
