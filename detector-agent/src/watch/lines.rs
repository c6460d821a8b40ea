//! One line for each event, for logs and pipes.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use tokio::sync::mpsc;

use super::{News, Present};
use crate::{
    clock::WallTime,
    engine::ConflictId,
    event::{
        AnomalyEvent, ConflictData, Event,
        summary::vlan_address,
        text::{self, clean},
    },
};

/// Writes until nobody reads any more, or the person ends it.
pub(super) async fn show(first: Present, mut news: mpsc::Receiver<News>) -> io::Result<()> {
    let mut out = io::stdout();
    let mut told = Told::default();
    write(&mut out, &told.catch_up(&first))?;
    loop {
        let news = tokio::select! {
            news = news.recv() => news,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(news) = news else { return Ok(()) };
        let written = match news {
            News::Present(present) => write(&mut out, &told.catch_up(&present)),
            News::Event(event) => write(&mut out, &told.event(&event)),
            News::Anomaly(event) => write(&mut out, &anomaly(&event)),
            News::Lost(why) => writeln!(io::stderr(), "{why}; trying again"),
        };
        match written {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
}

fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// What was written of the conflicts that are active: whatever happens unseen, each one that began also ends.
#[derive(Debug, Default)]
struct Told {
    active: BTreeMap<ConflictId, ConflictData>,
}

impl Told {
    /// The line of an event; empty where catching up has told it already.
    fn event(&mut self, event: &Event) -> String {
        let conflict = &event.data;
        let told = if conflict.is_resolved() {
            self.active.remove(&conflict.conflict_id).is_none()
        } else {
            let before = self.active.insert(conflict.conflict_id, conflict.clone());
            before.is_some_and(|before| before.updated_at == conflict.updated_at)
        };
        if told {
            return String::new();
        }
        line(event.time, event.event_type.change.name(), conflict)
    }

    /// The lines that lead from what was told to what is.
    fn catch_up(&mut self, present: &Present) -> String {
        let mut text = String::new();
        let now: BTreeMap<ConflictId, ConflictData> = present
            .conflicts
            .iter()
            .map(|conflict| (conflict.conflict_id, conflict.clone()))
            .collect();
        for (id, last) in &self.active {
            if now.contains_key(id) {
                continue;
            }
            let end = present.resolved.iter().find(|c| c.conflict_id == *id);
            text += &match end {
                Some(end) => line(end.updated_at, "resolved", end),
                // Over since a time that nobody saw; an agent that started anew may name it again.
                None => line(last.updated_at, "gone", last),
            };
        }
        for conflict in &present.conflicts {
            let told = self.active.get(&conflict.conflict_id);
            if told.is_none_or(|told| told.updated_at != conflict.updated_at) {
                text += &line(conflict.updated_at, "active", conflict);
            }
        }
        self.active = now;
        text
    }
}

/// Time, change, address, kind, and the sentence.
fn anomaly(event: &AnomalyEvent) -> String {
    let data = &event.data;
    format!(
        "{} {:8} {} {}: {}\n",
        event.time,
        event.event_type.change.name(),
        data.address,
        data.kind.name(),
        clean(&data.detail)
    )
}

/// Time, change, address, kind, confidence, claimants; the receiver of the traffic is marked.
fn line(time: WallTime, change: &str, conflict: &ConflictData) -> String {
    let claimants: Vec<String> = conflict
        .claimants
        .iter()
        .map(|claimant| {
            let device = clean(&claimant.device);
            let mut one = match &claimant.pod {
                Some(_) => format!("{} ({device})", text::pod(claimant)),
                None => device.into_owned(),
            };
            if text::receives_traffic(conflict, claimant) {
                one.insert(0, '→');
            }
            if let Some(reason) = claimant.left {
                one.push_str(&format!(" {}", text::left(reason)));
            }
            one
        })
        .collect();
    format!(
        "{time} {change:8} {} {} {}: {}\n",
        vlan_address(conflict),
        conflict.kind.name(),
        conflict.confidence.name(),
        claimants.join(", ")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use serde_json::json;

    use super::*;

    fn time(second: u8) -> WallTime {
        format!("2026-01-02T03:04:{second:02}Z").parse().unwrap()
    }

    fn conflict(state: &str, updated_at: WallTime) -> ConflictData {
        serde_json::from_value(json!({
            "conflict_id": "1", "node": "n", "address": "10.0.0.1", "vlan": null, "kind": "duplicate",
            "confidence": "certain", "state": state, "raised_at": time(1), "updated_at": updated_at,
            "resolved_at": null, "latency_us": 1, "traffic_goes_to": null, "claimants": [],
        }))
        .unwrap()
    }

    fn event(change: &str, data: &ConflictData) -> Event {
        serde_json::from_value(json!({
            "specversion": "1.0", "id": change, "source": "s", "subject": "10.0.0.1", "time": time(3),
            "type": format!("io.ipconflict.conflict.{change}"), "datacontenttype": "application/json",
            "data": data,
        }))
        .unwrap()
    }

    fn present(active: &[ConflictData], resolved: &[ConflictData]) -> Present {
        Present {
            node: "n".to_owned(),
            ready: true,
            conflicts: active.to_vec(),
            resolved: resolved.to_vec(),
        }
    }

    #[test]
    fn a_conflict_that_ended_unseen_is_ended_and_nothing_is_told_twice() {
        let active = conflict("active", time(1));
        let over = conflict("resolved", time(2));
        let mut told = Told::default();
        assert!(
            told.catch_up(&present(std::slice::from_ref(&active), &[]))
                .contains("active")
        );
        assert_eq!(told.event(&event("raised", &active)), "");
        assert_eq!(
            told.catch_up(&present(std::slice::from_ref(&active), &[])),
            ""
        );
        assert!(
            told.catch_up(&present(&[], std::slice::from_ref(&over)))
                .contains("resolved")
        );
        assert_eq!(told.event(&event("resolved", &over)), "");
        // A new agent may have forgotten it altogether.
        assert!(told.event(&event("raised", &active)).contains("raised"));
        assert!(told.catch_up(&present(&[], &[])).contains("gone"));
    }
}
