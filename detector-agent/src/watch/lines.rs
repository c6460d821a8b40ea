//! Prints one line per event, for logs and pipes.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use detector_client::Overview;
use detector_engine::{AnomalyId, ConflictId};
use detector_event::{
    AnomalyData, AnomalyEvent, Change, ConflictData, Event, WallTime, clean, text,
};
use tokio::sync::mpsc;

use super::Update;

/// Prints lines until stdout is closed or Ctrl-C is pressed.
pub(super) async fn show(first: Overview, mut updates: mpsc::Receiver<Update>) -> io::Result<()> {
    let mut out = io::stdout();
    let mut printed = Printed::default();
    write(&mut out, &printed.catch_up(&first))?;
    loop {
        let update = tokio::select! {
            update = updates.recv() => update,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(update) = update else { return Ok(()) };
        let written = match update {
            Update::Overview(overview) => write(&mut out, &printed.catch_up(&overview)),
            Update::Conflict(event) => write(&mut out, &printed.apply(&event)),
            Update::Anomaly(event) => write(&mut out, &printed.apply_anomaly(&event)),
            Update::Disconnected(reason) => writeln!(io::stderr(), "{reason}; reconnecting"),
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

/// The active conflicts and open anomalies as last printed. Each one that was printed as active is printed as ended once, even
/// if its events were missed. While a conflict is part of an address sweep, the lines of the sweep stand for its raise and its
/// updates.
#[derive(Debug, Default)]
struct Printed {
    active: BTreeMap<ConflictId, ConflictData>,
    anomalies: BTreeMap<AnomalyId, AnomalyData>,
}

impl Printed {
    /// The line of an event; empty if the same state was printed already, or a sweep stands for it.
    fn apply(&mut self, event: &Event) -> String {
        let conflict = &event.data;
        let is_known = if conflict.is_resolved() {
            self.active.remove(&conflict.conflict_id).is_none()
        } else if conflict.sweep.is_some() {
            true
        } else {
            let before = self.active.insert(conflict.conflict_id, conflict.clone());
            before.is_some_and(|before| before.updated_at == conflict.updated_at)
        };
        if is_known {
            return String::new();
        }
        conflict_line(event.time, event.event_type.change.name(), conflict)
    }

    /// The line of an event; empty for the raise or the end of an anomaly that was printed already.
    fn apply_anomaly(&mut self, event: &AnomalyEvent) -> String {
        let anomaly = &event.data;
        let change = event.event_type.change;
        let is_known = if anomaly.is_resolved() {
            self.anomalies.remove(&anomaly.anomaly_id).is_none()
        } else {
            let before = self.anomalies.insert(anomaly.anomaly_id, anomaly.clone());
            change == Change::Raised && before.is_some()
        };
        if is_known {
            return String::new();
        }
        anomaly_line(event.time, change.name(), anomaly)
    }

    /// The lines for all differences between the printed state and `overview`.
    fn catch_up(&mut self, overview: &Overview) -> String {
        let mut text = String::new();
        let is_shown = |conflict: &&ConflictData| {
            conflict.sweep.is_none() || self.active.contains_key(&conflict.conflict_id)
        };
        let current: BTreeMap<ConflictId, ConflictData> = overview
            .conflicts
            .iter()
            .filter(is_shown)
            .map(|conflict| (conflict.conflict_id, conflict.clone()))
            .collect();
        for (id, last) in &self.active {
            if current.contains_key(id) {
                continue;
            }
            let end = overview.resolved.iter().find(|c| c.conflict_id == *id);
            text += &match end {
                Some(end) => conflict_line(end.updated_at, "resolved", end),
                // Its end was missed. A restarted agent may raise it again.
                None => conflict_line(last.updated_at, "gone", last),
            };
        }
        for conflict in overview.conflicts.iter().filter(|c| c.sweep.is_none()) {
            let printed = self.active.get(&conflict.conflict_id);
            if printed.is_none_or(|printed| printed.updated_at != conflict.updated_at) {
                text += &conflict_line(conflict.updated_at, "active", conflict);
            }
        }
        self.active = current;
        self.catch_up_anomalies(overview, &mut text);
        text
    }

    fn catch_up_anomalies(&mut self, overview: &Overview, text: &mut String) {
        let current: BTreeMap<AnomalyId, AnomalyData> = overview
            .anomalies
            .iter()
            .map(|anomaly| (anomaly.anomaly_id, anomaly.clone()))
            .collect();
        for (id, last) in &self.anomalies {
            if !current.contains_key(id) {
                *text += &anomaly_line(last.raised_at, "gone", last);
            }
        }
        for anomaly in &overview.anomalies {
            if !self.anomalies.contains_key(&anomaly.anomaly_id) {
                *text += &anomaly_line(anomaly.raised_at, "active", anomaly);
            }
        }
        self.anomalies = current;
    }
}

/// Time, change, address, kind, detail and pod.
fn anomaly_line(time: WallTime, change: &str, anomaly: &AnomalyData) -> String {
    format!(
        "{time} {change:8} {} {}: {}{}\n",
        anomaly.address,
        anomaly.kind.name(),
        clean(&anomaly.detail),
        text::pod_suffix(anomaly)
    )
}

/// Time, change, address, kind, confidence and claimants; `→` marks the claimant that receives the traffic.
fn conflict_line(time: WallTime, change: &str, conflict: &ConflictData) -> String {
    let claimants: Vec<String> = conflict
        .claimants
        .iter()
        .map(|claimant| {
            let mut label = text::claimant(conflict.scope, claimant);
            if text::receives_traffic(conflict, claimant) {
                label.insert(0, '→');
            }
            if let Some(mark) = conflict.mark(claimant) {
                label.push_str(&format!(" ({mark})"));
            }
            if let Some(reason) = claimant.left {
                label.push_str(&format!(" {}", text::left(reason)));
            }
            label
        })
        .collect();
    format!(
        "{time} {change:8} {} {} {}: {}\n",
        text::address(conflict),
        conflict.kind.name(),
        conflict.confidence.name(),
        claimants.join(", ")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use detector_event::samples;
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

    fn overview(active: &[ConflictData], resolved: &[ConflictData]) -> Overview {
        Overview {
            node: "n".to_owned(),
            ready: true,
            conflicts: active.to_vec(),
            resolved: resolved.to_vec(),
            anomalies: Vec::new(),
        }
    }

    #[test]
    fn missed_end_is_printed_and_nothing_is_printed_twice() {
        let active = conflict("active", time(1));
        let resolved = conflict("resolved", time(2));
        let mut printed = Printed::default();
        assert!(
            printed
                .catch_up(&overview(std::slice::from_ref(&active), &[]))
                .contains("active")
        );
        assert_eq!(printed.apply(&event("raised", &active)), "");
        assert_eq!(
            printed.catch_up(&overview(std::slice::from_ref(&active), &[])),
            ""
        );
        assert!(
            printed
                .catch_up(&overview(&[], std::slice::from_ref(&resolved)))
                .contains("resolved")
        );
        assert_eq!(printed.apply(&event("resolved", &resolved)), "");
        // A restarted agent may not know it.
        assert!(printed.apply(&event("raised", &active)).contains("raised"));
        assert!(printed.catch_up(&overview(&[], &[])).contains("gone"));
    }

    #[test]
    fn sweep_stands_for_its_victims() {
        let with_sweep = |id: &str, state, at| ConflictData {
            conflict_id: serde_json::from_value(json!(id)).unwrap(),
            sweep: Some(AnomalyId(7)),
            ..conflict(state, at)
        };
        let mut printed = Printed::default();
        let before = conflict("active", time(1));
        assert!(printed.apply(&event("raised", &before)).contains("raised"));
        // The first is known, and becomes a part of the sweep; the second is one from its beginning.
        let [first, second] = ["1", "2"].map(|id| with_sweep(id, "active", time(2)));
        assert_eq!(printed.apply(&event("updated", &first)), "");
        assert_eq!(printed.apply(&event("raised", &second)), "");
        let both = overview(&[first, second], &[]);
        assert_eq!(printed.catch_up(&both), "");
        let [first, second] = ["1", "2"].map(|id| with_sweep(id, "resolved", time(3)));
        assert_eq!(printed.apply(&event("resolved", &second)), "");
        assert!(
            printed
                .apply(&event("resolved", &first))
                .contains("resolved")
        );
        // One that remains when the sweep is over.
        let alone = conflict("active", time(4));
        assert!(printed.apply(&event("updated", &alone)).contains("updated"));
    }

    #[test]
    fn open_anomalies_are_printed_once_and_their_end_too() {
        let event = samples::drift("10.0.0.9");
        let with = |anomalies: &[AnomalyData]| Overview {
            anomalies: anomalies.to_vec(),
            ..overview(&[], &[])
        };
        let mut printed = Printed::default();
        let anomaly = std::slice::from_ref(&event.data);
        let line = printed.catch_up(&with(anomaly));
        assert!(line.contains("active   10.0.0.9 ipam_drift: "), "{line}");
        assert_eq!(printed.apply_anomaly(&event), "");
        assert_eq!(printed.catch_up(&with(anomaly)), "");
        assert!(printed.catch_up(&with(&[])).contains("gone     10.0.0.9"));
        assert!(printed.apply_anomaly(&event).contains("raised   10.0.0.9"));
    }
}
