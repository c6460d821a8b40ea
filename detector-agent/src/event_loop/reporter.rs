//! Creates events and passes each to the event lines, the metrics and the sinks.
//!
//! The line is written at once. Everything else wakes other threads, which would compete with the reader of the line for the
//! processors, and with the lines of further conflicts; it waits for [`Reporter::deliver`], when the event loop has read what there is
//! for now.

#[cfg(test)]
mod tests;

use std::{io, sync::Arc};

use detector_engine::{Anomaly, Claimant, Conflict, IfIndex, KnownPod, PodDevice, Reported};
use detector_event::{
    AnyEvent, Change, ConflictData, ContractName as _, DiagnosisData, EventMaker, EventSubject,
    State, SubjectId, diagnosis_digest,
    guidance::Severity,
    summary::{anomaly_subject, anomaly_title, claimants, resolve_reason, scoped_address},
    write_json,
};
use detector_fleet::objects::ConflictCause;
use tracing::{error, info, warn};

use crate::{
    health::Part,
    metrics::Metrics,
    pods::{LookupRequest, PodLookups},
    process::clock,
    sinks::{
        EventSink,
        lines::{Lines, WriteOutcome},
    },
};

/// The event lines' health while they work.
const LINES_WORK: &str = "written as they happen";

/// Reports every change of a conflict or an anomaly to the event lines, the metrics, the sinks and the log.
#[derive(Debug)]
pub struct Reporter {
    maker: EventMaker,
    pods: PodLookups,
    lines: Option<Lines>,
    /// The last line, whose memory the next one uses.
    line: Vec<u8>,
    sinks: Vec<Box<dyn EventSink>>,
    metrics: Arc<Metrics>,
    lines_health: Option<Part>,
    /// Written as lines and not delivered yet, in order. Empty between two rounds of the event loop, and bounded by what one
    /// round reads.
    written: Vec<WrittenEvent>,
}

/// An event whose line is written.
#[derive(Debug)]
struct WrittenEvent {
    event: AnyEvent,
    /// Lookups of its claimants whose pod is not known.
    lookups: Vec<LookupRequest>,
    /// Whether it contains nothing new: then it has no line and no log, and the sinks know.
    is_unchanged: bool,
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
            line: Vec::new(),
            sinks: Vec::new(),
            metrics,
            lines_health: None,
            written: Vec::new(),
        }
    }

    /// Reports the health of the event lines through `part`.
    pub fn report_lines_health(&mut self, part: Part) {
        part.works(LINES_WORK);
        self.lines_health = Some(part);
    }

    /// The name of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        self.maker.node()
    }

    /// Adds a sink.
    pub fn add_sink(&mut self, sink: Box<dyn EventSink>) {
        self.sinks.push(sink);
    }

    /// Reports one change of a conflict. `last` is what the last event about it contained; an update that contains
    /// nothing else is no event. Returns what this one contains.
    pub fn report_conflict(
        &mut self,
        change: Change,
        conflict: &Conflict,
        last: Option<&Reported>,
    ) -> Option<Reported> {
        let pods = |claimant: &Claimant| self.pods.pod_of(claimant);
        let mut event = self.maker.event(&clock::moment(), change, conflict, pods);
        if let Some(last) = last.filter(|_| change == Change::Updated) {
            event.data.compare_with(last);
            if event.data.changed.is_empty() {
                // After a restart: pods are known again, which the metrics and the sinks were not started with.
                self.written.push(WrittenEvent {
                    event: event.into(),
                    lookups: Vec::new(),
                    is_unchanged: true,
                });
                return None;
            }
        }
        let event = Arc::new(event);
        self.emit(AnyEvent::Conflict(Arc::clone(&event)), conflict.into());
        Some(event.data.reported())
    }

    /// Reports one change of an anomaly. Returns the latency in microseconds, and the hash of its diagnosis.
    pub fn report_anomaly(&mut self, change: Change, anomaly: &Anomaly) -> (u64, u64) {
        let pods = |claimant: &Claimant| self.pods.pod_of(claimant);
        let event = self
            .maker
            .anomaly_event(&clock::moment(), change, anomaly, pods);
        let reported = (
            event.data.latency_us,
            diagnosis_digest(event.data.diagnosis.as_deref()),
        );
        self.emit(event.into(), anomaly.into());
        reported
    }

    /// The hash of the diagnosis of a conflict or an anomaly.
    #[must_use]
    pub fn diagnosis_of(&self, id: SubjectId) -> u64 {
        let explanation = self.maker.explanations().of(id);
        diagnosis_digest(explanation.as_ref().map(|found| &*found.diagnosis))
    }

    /// The cause of a conflict or an anomaly, if this agent knows it by itself.
    #[must_use]
    pub fn cause_of(&self, id: SubjectId) -> Option<ConflictCause> {
        ConflictCause::of(&*self.maker.explanations().found_here(id)?)
    }

    /// What the agent of another node found about a conflict or an anomaly that is open.
    pub fn set_found_elsewhere(&mut self, id: SubjectId, diagnosis: Option<DiagnosisData>) {
        // What is over is forgotten with its delivery.
        self.deliver();
        self.maker.explanations().set_elsewhere(id, diagnosis);
    }

    /// What a conflict or an anomaly was explained with is not shown any more.
    pub fn forget_explanation(&self, id: SubjectId) {
        self.maker.explanations().remove(id);
    }

    fn emit(&mut self, event: AnyEvent, subject: EventSubject<'_>) {
        self.write_line(&event);
        self.written.push(WrittenEvent {
            event,
            lookups: self.wanted_lookups(subject),
            is_unchanged: false,
        });
    }

    fn wanted_lookups(&self, subject: EventSubject<'_>) -> Vec<LookupRequest> {
        let wanted = subject
            .claimants()
            .filter_map(|c| self.pods.wanted_lookup(c));
        wanted.collect()
    }

    /// Passes the events that are written as lines on to the metrics, the sinks and the log, and has their pods looked up.
    pub fn deliver(&mut self) {
        for WrittenEvent {
            event,
            lookups,
            is_unchanged,
        } in std::mem::take(&mut self.written)
        {
            self.metrics.count_event(&event);
            for sink in &mut self.sinks {
                if is_unchanged {
                    sink.on_unchanged_update(&event);
                } else {
                    sink.on_event(&event);
                }
            }
            if !is_unchanged {
                log(&event);
            }
            lookups
                .into_iter()
                .for_each(|wanted| self.pods.send(wanted));
        }
    }

    fn write_line(&mut self, event: &AnyEvent) {
        let Some(lines) = &mut self.lines else {
            return;
        };
        self.line.clear();
        let serialised = write_json(event, &mut self.line);
        let written = serialised
            .map_err(io::Error::from)
            .and_then(|()| lines.write(&self.line));
        let outcome = match written {
            Ok(WriteOutcome::Accepted) => {
                self.set_lines_health(State::Works, LINES_WORK);
                "delivered"
            }
            Ok(WriteOutcome::Dropped) if lines.has_failed() => "dropped",
            Ok(WriteOutcome::Dropped) => {
                self.set_lines_health(State::Degraded, "the reader is too slow: lines are dropped");
                "dropped"
            }
            Err(e) => {
                self.lines_failed(&e);
                "failed"
            }
        };
        self.metrics.count_deliveries("lines", outcome, 1);
    }

    fn set_lines_health(&self, state: State, how: &'static str) {
        if let Some(part) = &self.lines_health {
            part.set(state, how);
        }
    }

    /// Called once: [`Lines`] returns an error once and writes nothing from then on.
    fn lines_failed(&self, error: &io::Error) {
        error!(
            "cannot write to --events: {error}; no event line is written until the agent is restarted"
        );
        if let Some(part) = &self.lines_health {
            part.failed(format!("cannot be written: {error}"));
        }
    }

    /// Gives the sinks that dropped something all that is active now. To be called only once that is known: after the
    /// first snapshot is merged.
    pub fn catch_up(&mut self, active: impl FnOnce() -> (Vec<Conflict>, Vec<Anomaly>)) {
        self.deliver();
        if !self.sinks.iter().any(|sink| sink.is_behind()) {
            return;
        }
        let (conflicts, anomalies) = active();
        let subjects = conflicts.iter().map(EventSubject::from);
        let subjects = subjects.chain(anomalies.iter().map(EventSubject::from));
        let pods = |claimant: &Claimant| self.pods.pod_of(claimant);
        let events: Vec<_> = subjects
            .map(|subject| {
                self.maker
                    .any_event(&clock::moment(), Change::Updated, subject, pods)
            })
            .collect();
        for sink in self.sinks.iter_mut().filter(|sink| sink.is_behind()) {
            sink.catch_up(&events);
        }
    }

    /// Passes the state of an active conflict or anomaly to the metrics and the sinks, without an event: one that an
    /// earlier agent raised, or whose pod became known. Returns what an event about the conflict would contain.
    pub fn report_state<'s>(&mut self, subject: impl Into<EventSubject<'s>>) -> Option<Reported> {
        self.deliver();
        let subject = subject.into();
        let pods = |claimant: &Claimant| self.pods.pod_of(claimant);
        let event = self
            .maker
            .any_event(&clock::moment(), Change::Updated, subject, pods);
        self.metrics.count_event(&event);
        for sink in &mut self.sinks {
            sink.on_current_state(&event);
        }
        let wanted = self.wanted_lookups(subject);
        wanted.into_iter().for_each(|wanted| self.pods.send(wanted));
        match &event {
            AnyEvent::Conflict(event) => Some(event.data.reported()),
            AnyEvent::Anomaly(_) => None,
        }
    }

    /// Passes on one change of a conflict or an anomaly that the agent of another node reports.
    pub fn report_remote<'s>(&mut self, change: Change, subject: impl Into<EventSubject<'s>>) {
        self.deliver();
        let pods = |claimant: &Claimant| self.pods.pod_of(claimant);
        let event = self
            .maker
            .any_event(&clock::moment(), change, subject.into(), pods);
        for sink in &mut self.sinks {
            sink.on_remote_event(&event);
        }
    }

    /// What the engine compares with the claims of these devices (index and generation), of those whose pod is known.
    #[must_use]
    pub fn known_pods<'d>(
        &self,
        devices: impl Iterator<Item = &'d (IfIndex, u64)>,
    ) -> Vec<(IfIndex, u64, KnownPod)> {
        self.pods.known_pods(devices)
    }

    /// A device appeared, or something about it changed.
    pub fn device_appeared(&mut self, device: &PodDevice) {
        self.deliver();
        self.pods.device_appeared(device);
    }

    /// A device is gone.
    pub fn device_gone(&mut self, ifindex: IfIndex, generation: u64) {
        self.deliver();
        self.pods.device_gone(ifindex, generation);
    }

    /// Writes what a slow reader has room for now.
    pub fn flush(&mut self) {
        if let Some(Err(e)) = self.lines.as_mut().map(Lines::flush) {
            self.lines_failed(&e);
        }
    }

    /// The event lines, to wait for room on.
    #[must_use]
    pub fn lines(&self) -> Option<&Lines> {
        self.lines.as_ref()
    }
}

/// Logs at the level of the severity, as information what is over.
macro_rules! log_at {
    ($is_over:expr, $severity:expr, $($line:tt)+) => {
        if $is_over || $severity == Severity::Info {
            info!(severity = $severity.contract_name(), $($line)+)
        } else {
            warn!(severity = $severity.contract_name(), $($line)+)
        }
    };
}

/// `IP conflict on 10.244.2.10: shop/web-1 (va) and shop/web-2 (vb)`, `IPAM drift on 10.244.2.10 resolved: …`.
fn log(event: &AnyEvent) {
    let change = match event.change() {
        Change::Raised => "",
        Change::Updated => " updated",
        Change::Resolved => " resolved",
    };
    let severity = event.kind().severity();
    match event {
        // The line of the sweep stands for it.
        AnyEvent::Conflict(event) if event.data.sweep.is_some() => {}
        AnyEvent::Conflict(event) => {
            let data = &event.data;
            let (pods, devices) = pods_and_devices(data);
            log_at!(
                data.is_resolved(),
                severity,
                event = event.event_type.contract_name(),
                conflict_id = %data.conflict_id,
                address = %data.address,
                network = %data.network,
                pods,
                devices,
                kind = data.kind.name(),
                confidence = data.confidence.name(),
                traffic_goes_to = data.traffic_goes_to,
                latency_us = data.latency_us,
                "IP conflict on {}{change}: {}",
                scoped_address(data),
                claimants(data)
            );
        }
        AnyEvent::Anomaly(event) => {
            let data = &event.data;
            let text = if data.is_resolved() {
                resolve_reason(data)
            } else {
                &data.detail
            };
            log_at!(
                data.is_resolved(),
                severity,
                event = event.event_type.contract_name(),
                anomaly_id = %data.anomaly_id,
                address = %data.address,
                kind = data.kind.name(),
                cause = data.cause.name(),
                device = data.device,
                "{} on {}{change}: {text}",
                anomaly_title(data.kind),
                anomaly_subject(data)
            );
        }
    }
}

/// The pods and the devices of the claimants that have not left, or of all if every one has.
fn pods_and_devices(data: &ConflictData) -> (String, String) {
    let mut listed: Vec<_> = data.present().collect();
    if listed.is_empty() {
        listed = data.claimants.iter().collect();
    }
    let pods = listed.iter().filter_map(|claimant| claimant.pod.as_ref());
    let pods: Vec<_> = pods
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    let devices: Vec<_> = listed.iter().map(|c| c.device.as_str()).collect();
    (pods.join(", "), devices.join(", "))
}
