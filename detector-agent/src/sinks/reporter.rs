//! Makes events and hands each to the event lines, the metrics and the sinks.

use std::{io, sync::Arc};

use tracing::{error, info};

use super::{
    EventSink,
    lines::{Lines, Written},
};
use crate::{
    engine::{Anomaly, Claimant, Conflict, IfIndex, PodDevice},
    event::{AnyEvent, Change, Event, EventMaker},
    health::{Part, State},
    metrics::Metrics,
    pods::PodLookups,
};

/// How the event lines are where all is well.
const LINES_WORK: &str = "written as they happen";

/// Hands every change of a conflict to the event lines, the metrics and the sinks.
#[derive(Debug)]
pub struct Reporter {
    maker: EventMaker,
    pods: PodLookups,
    lines: Option<Lines>,
    sinks: Vec<Box<dyn EventSink>>,
    metrics: Arc<Metrics>,
    lines_health: Option<Part>,
}

impl Reporter {
    /// A reporter without further sinks.
    #[must_use]
    pub fn new(
        maker: EventMaker,
        pods: PodLookups,
        lines: Option<Lines>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            maker,
            pods,
            lines,
            sinks: Vec::new(),
            metrics,
            lines_health: None,
        }
    }

    /// Shows by `part` how the event lines are.
    pub fn show_lines(&mut self, part: Part) {
        part.works(LINES_WORK);
        self.lines_health = Some(part);
    }

    /// Adds a sink.
    pub fn add_sink(&mut self, sink: Box<dyn EventSink>) {
        self.sinks.push(sink);
    }

    /// Reports one change.
    pub fn report(&mut self, change: Change, conflict: &Conflict) {
        let event = self
            .maker
            .event(change, conflict, |claimant| self.pods.pod_of(claimant));
        self.write_line(&event);
        conflict.present().for_each(|c| self.pods.request_lookup(c));
        self.metrics
            .conflict(change, &event.data, conflict.kind.name());
        let event = Arc::new(event);
        for sink in &mut self.sinks {
            sink.offer(&event);
        }
        let data = &event.data;
        let devices: Vec<_> = data
            .claimants
            .iter()
            .filter(|c| c.left.is_none())
            .map(|c| c.device.as_str())
            .collect();
        info!(
            conflict_id = data.conflict_id,
            kind = data.kind,
            confidence = data.confidence,
            traffic_goes_to = data.traffic_goes_to,
            latency_us = data.latency_us,
            "{} {}: claimed by {}",
            data.address,
            change.name(),
            devices.join(", ")
        );
    }

    /// Reports that an anomaly was raised or resolved.
    pub fn report_anomaly(&mut self, change: Change, anomaly: &Anomaly) {
        let event = self
            .maker
            .anomaly_event(change, anomaly, |holder| self.pods.pod_of(holder));
        self.write_line(&event);
        anomaly
            .holder
            .iter()
            .for_each(|h| self.pods.request_lookup(h));
        let event = Arc::new(event);
        for sink in &mut self.sinks {
            sink.offer_anomaly(&event);
        }
        let data = &event.data;
        info!(
            anomaly_id = data.anomaly_id,
            kind = data.kind,
            device = data.device,
            "{} {}: {}",
            data.kind,
            change.name(),
            data.detail
        );
    }

    fn write_line<D: serde::Serialize>(&mut self, event: &Event<D>) {
        let Some(lines) = &mut self.lines else {
            return;
        };
        let written = match serde_json::to_string(event) {
            Ok(line) => lines.write(&line),
            Err(e) => Err(e.into()),
        };
        let outcome = match written {
            Ok(Written::Accepted) => {
                self.show_how_lines_are(State::Works, LINES_WORK);
                "delivered"
            }
            Ok(Written::Dropped) if lines.has_ended() => "dropped",
            Ok(Written::Dropped) => {
                self.show_how_lines_are(
                    State::Degraded,
                    "the reader does not read: lines are dropped",
                );
                "dropped"
            }
            Err(e) => {
                self.lines_ended(&e);
                "failed"
            }
        };
        self.metrics.count_deliveries("lines", outcome, 1);
    }

    fn show_how_lines_are(&self, state: State, how: &'static str) {
        if let Some(part) = &self.lines_health {
            part.set(state, how);
        }
    }

    /// Said once: [`Lines`] gives an error once and writes nothing from then on.
    fn lines_ended(&self, error: &io::Error) {
        error!(
            "events can no longer be written to --events: {error}; no line follows until the agent is started again"
        );
        if let Some(part) = &self.lines_health {
            part.failed(format!("cannot be written any more: {error}"));
        }
    }

    /// Tells the sinks that dropped something what is active now. Call it only where that is known: not before the first
    /// snapshot is merged.
    pub fn catch_up(&mut self, active: impl FnOnce() -> (Vec<Conflict>, Vec<Anomaly>)) {
        if !self.sinks.iter().any(|sink| sink.is_behind()) {
            return;
        }
        let (conflicts, anomalies) = active();
        let pods = |claimant: &Claimant| self.pods.pod_of(claimant);
        let maker = &mut self.maker;
        let mut events: Vec<AnyEvent> = Vec::with_capacity(conflicts.len() + anomalies.len());
        for conflict in &conflicts {
            events.push(maker.event(Change::Updated, conflict, pods).into());
        }
        for anomaly in &anomalies {
            let event = maker.anomaly_event(Change::Updated, anomaly, pods);
            events.push(event.into());
        }
        for sink in self.sinks.iter_mut().filter(|sink| sink.is_behind()) {
            sink.catch_up(&events);
        }
    }

    /// Shows a conflict that an earlier agent raised and that goes on: in the metrics of what is active, nowhere else.
    pub fn show(&mut self, conflict: &Conflict) {
        let event = self.maker.event(Change::Updated, conflict, |claimant| {
            self.pods.pod_of(claimant)
        });
        self.metrics
            .conflict(Change::Updated, &event.data, conflict.kind.name());
        conflict.present().for_each(|c| self.pods.request_lookup(c));
    }

    /// A device appeared, or something about it changed.
    pub fn device_appeared(&self, device: &PodDevice) {
        self.pods.device_appeared(device);
    }

    /// A device is gone.
    pub fn device_gone(&self, ifindex: IfIndex, generation: u64) {
        self.pods.device_gone(ifindex, generation);
    }

    /// Writes what a slow reader has room for now.
    pub fn flush(&mut self) {
        if let Some(Err(e)) = self.lines.as_mut().map(Lines::flush) {
            self.lines_ended(&e);
        }
    }

    /// The event lines, to wait for room on.
    #[must_use]
    pub fn lines(&self) -> Option<&Lines> {
        self.lines.as_ref()
    }
}
