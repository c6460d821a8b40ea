//! Why conflicts came about and anomalies were raised: collects the facts, and sends what follows from them to the event loop.
//!
//! ```text
//! events ──sink──► queue ──► collectors ──Facts──► rules (detector_engine::diagnosis) ──Explanation──► event loop ──► `updated` event
//! ```
//!
//! Off the hot path: a thread of its own reads files and waits for disks. No event waits for it; what is found follows as an update.
//!
//! Invariants: the queue has each open conflict and anomaly at most once, with its newest state; facts about pools are read
//! once for all findings that were due by then; what cannot be read is a fact that was not checked, never an absent one.

mod claimants;
mod collect;
mod files;
mod history;
mod node;
mod nodes;
mod plugins;
mod pool;
mod queue;
mod requests;
mod results;
mod routing;
mod sandboxes;
mod stored_history;
#[cfg(test)]
mod tests;
mod versions;

use std::{net::IpAddr, sync::Arc};

use detector_event::{Explanation, Explanations, SubjectId};

use crate::metrics::Metrics;

pub(crate) use collect::{Collector, Finding, Watched};
pub(crate) use history::PoolHistory;
use queue::Next;
pub(crate) use queue::{Findings, queue};

/// Explains what is queued, until the sink is dropped. `emit` gets each conflict or anomaly that was explained, its address, and whether
/// its diagnosis is news.
pub(crate) fn run(
    findings: &Findings,
    mut collector: Collector,
    explanations: &Arc<Explanations>,
    metrics: &Metrics,
    mut emit: impl FnMut(SubjectId, IpAddr, bool),
) {
    loop {
        let (event, due) = match findings.next(collector.next_look()) {
            Next::Finding(event, due) => (event, due),
            Next::Look => {
                collector.look();
                continue;
            }
            Next::Closed => {
                collector.close();
                return;
            }
        };
        let id = event.subject_id();
        let Some(facts) = collector.facts((&event).into(), due) else {
            continue;
        };
        let is_first = explanations.of(id).is_none();
        let explanation = Explanation::of(&facts);
        let diagnosis = Arc::clone(&explanation.diagnosis);
        let is_news = explanations.set(id, explanation);
        if is_first || is_news {
            metrics.count_diagnosis(&event, &diagnosis, is_first);
        }
        emit(id, facts.address, is_news);
    }
}
