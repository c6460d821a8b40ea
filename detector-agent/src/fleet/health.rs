//! What `/readyz` and the log show of the comparison across nodes.

use std::time::Duration;

use detector_event::{State, counted};
use detector_fleet::Counts;
use tokio::time::Instant;
use tracing::{info, warn};

use super::registry::Problem;
use crate::{
    health::Part,
    process::{clock, log_budget::LogBudget},
};

/// A server that is away for less than this is not shown as away.
const AWAY_AFTER: Duration = Duration::from_secs(3);
/// A refusal is shown for this long after the last one; what was refused is tried again before.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// What does not work: since when, and why.
#[derive(Clone, Debug)]
struct Outage {
    since: Instant,
    why: String,
    is_logged: bool,
}

/// Which of the ways to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Requests,
    /// The watch of the conflicts.
    Watch,
    /// The watch of this agent's Node.
    Node,
}

/// The health of the comparison across nodes.
#[derive(Debug)]
pub(super) struct FleetHealth {
    part: Part,
    node: String,
    /// Of each way.
    outages: [Option<Outage>; 3],
    /// The custom resources that a way needs are not installed.
    are_missing: [bool; 3],
    /// Why this agent's Node is not known.
    node_problem: Option<String>,
    refused: Option<(Instant, String)>,
    reported: Option<(State, String)>,
    log_budget: LogBudget,
}

impl FleetHealth {
    pub(super) fn new(part: Part, node: String) -> Self {
        Self {
            part,
            node,
            outages: [None, None, None],
            are_missing: [false; 3],
            node_problem: None,
            refused: None,
            reported: None,
            log_budget: LogBudget::new(),
        }
    }

    /// The server answered; `true` if it did not before.
    pub(super) fn works(&mut self, way: Way) -> bool {
        let outage = self.outages[way as usize].take();
        if outage.as_ref().is_some_and(|outage| outage.is_logged) {
            info!(
                "the Kubernetes API can be used again; addresses are compared across nodes again"
            );
        }
        outage.is_some()
    }

    /// The custom resources are installed; `true` if they were not before.
    pub(super) fn found(&mut self, way: Way) -> bool {
        let was_missing = std::mem::take(&mut self.are_missing[way as usize]);
        if was_missing && !self.is_missing() {
            info!("the custom resources are installed; addresses are compared across nodes");
        }
        was_missing
    }

    fn is_missing(&self) -> bool {
        self.are_missing.contains(&true)
    }

    /// What was sent at `sent_at` failed.
    pub(super) fn fails(&mut self, way: Way, sent_at: Instant, problem: &Problem) {
        match problem {
            Problem::Away { why, .. } => {
                let outage = self.outages[way as usize].get_or_insert_with(|| Outage {
                    since: sent_at,
                    why: String::new(),
                    is_logged: false,
                });
                outage.why.clone_from(why);
                if outage.since.elapsed() >= AWAY_AFTER
                    && !std::mem::replace(&mut outage.is_logged, true)
                {
                    warn!(
                        "the Kubernetes API cannot be used: {why}; addresses are not compared across nodes until it can"
                    );
                }
            }
            Problem::NoSuchResource => {
                if !self.is_missing() {
                    warn!(
                        "the custom resources ipclaims and ipconflicts of ipconflict.io are not installed; addresses are not compared across nodes until they are (deploy/crds)"
                    );
                }
                self.are_missing[way as usize] = true;
            }
            Problem::Rejected(why) => {
                if self.log_budget.take(clock::now()) {
                    warn!("the Kubernetes API refuses a request: {why}");
                }
                self.refused = Some((Instant::now(), why.clone()));
            }
        }
    }

    /// This agent's Node was read, or why not.
    pub(super) fn node(&mut self, problem: Option<String>) {
        if let (Some(why), None) = (&problem, &self.node_problem) {
            warn!(
                node = self.node,
                "cannot read this agent's Node: {why}; addresses are not compared across nodes until it can (--node-name)"
            );
        }
        self.node_problem = problem;
    }

    /// Reports the state; `is_ready` once this agent's Node is known and the conflicts were listed. Returns whether addresses are
    /// compared.
    pub(super) fn report(&mut self, counts: Counts, is_ready: bool) -> bool {
        let now = Instant::now();
        if let Some((at, _)) = self.refused
            && now.saturating_duration_since(at) > REFUSED_FOR
        {
            self.refused = None;
        }
        let waiting = match counts.waiting {
            0 => String::new(),
            waiting => format!("; {waiting} to be updated"),
        };
        let registered = counted(
            counts.registered,
            "address or range",
            "addresses and ranges",
        );
        let outage = self.outages.iter().flatten().find(|o| o.is_logged);
        let state = if self.is_missing() {
            let why =
                "the custom resources ipclaims and ipconflicts of ipconflict.io are not installed";
            (State::Failed, format!("{why} (deploy/crds)"))
        } else if let Some(outage) = outage {
            let why = &outage.why;
            (
                State::Failed,
                format!("the Kubernetes API cannot be used: {why}{waiting}"),
            )
        } else if let Some(why) = &self.node_problem {
            let node = &self.node;
            (State::Failed, format!("cannot read the Node {node}: {why}"))
        } else if let Some((_, why)) = &self.refused {
            (
                State::Degraded,
                format!("{registered} registered{waiting}; a request was refused: {why}"),
            )
        } else if is_ready {
            (State::Works, format!("{registered} registered{waiting}"))
        } else {
            (State::Starting, "connecting".to_owned())
        };
        let is_working = matches!(state.0, State::Works | State::Degraded);
        if self.reported.as_ref() != Some(&state) {
            self.part.set(state.0, state.1.clone());
            self.reported = Some(state);
        }
        is_working
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use detector_event::Role;
    use tokio::time::advance;

    use super::*;
    use crate::health::Health;

    const SECOND: Duration = Duration::from_secs(1);

    fn fleet() -> (Health, FleetHealth) {
        let health = Health::default();
        let part = health.part(Role::Fleet, "fleet");
        (health, FleetHealth::new(part, "a".to_owned()))
    }

    fn reported(health: &Health, fleet: &mut FleetHealth) -> (State, String) {
        fleet.report(Counts::default(), true);
        let part = health.report().pop().unwrap();
        (part.state, part.detail)
    }

    fn away(why: &str) -> Problem {
        Problem::away(why.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn server_is_shown_as_away_after_three_seconds() {
        let (health, mut fleet) = fleet();
        let sent_at = Instant::now();
        fleet.fails(Way::Requests, sent_at, &away("first"));
        assert_eq!(reported(&health, &mut fleet).0, State::Works);
        advance(3 * SECOND).await;
        fleet.fails(Way::Requests, Instant::now(), &away("first"));
        let (state, detail) = reported(&health, &mut fleet);
        assert_eq!(state, State::Failed);
        assert!(detail.contains("first"), "{detail}");
        fleet.fails(Way::Requests, Instant::now(), &away("second"));
        let (_, detail) = reported(&health, &mut fleet);
        assert!(detail.contains("second"), "{detail}");
        assert!(fleet.works(Way::Requests) && !fleet.works(Way::Requests));
        assert_eq!(reported(&health, &mut fleet).0, State::Works);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_work_do_not_hide_a_watch_that_does_not() {
        let (health, mut fleet) = fleet();
        for _ in 0..2 {
            fleet.fails(Way::Watch, Instant::now(), &away("reset"));
            advance(3 * SECOND).await;
        }
        assert!(!fleet.works(Way::Requests));
        assert_eq!(reported(&health, &mut fleet).0, State::Failed);
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_is_shown_for_ten_minutes() {
        let (health, mut fleet) = fleet();
        let refusal = Problem::Rejected("denied".to_owned());
        fleet.fails(Way::Requests, Instant::now(), &refusal);
        let (state, detail) = reported(&health, &mut fleet);
        assert_eq!(state, State::Degraded);
        assert!(detail.contains("denied"), "{detail}");
        advance(599 * SECOND).await;
        assert_eq!(reported(&health, &mut fleet).0, State::Degraded);
        advance(2 * SECOND).await;
        assert_eq!(reported(&health, &mut fleet).0, State::Works);
    }

    #[test]
    fn both_custom_resources_have_to_be_installed() {
        let (health, mut fleet) = fleet();
        for way in [Way::Requests, Way::Watch] {
            fleet.fails(way, Instant::now(), &Problem::NoSuchResource);
        }
        assert!(fleet.found(Way::Requests));
        assert_eq!(reported(&health, &mut fleet).0, State::Failed);
        assert!(fleet.found(Way::Watch) && !fleet.found(Way::Watch));
        assert_eq!(reported(&health, &mut fleet).0, State::Works);
    }

    #[test]
    fn node_that_cannot_be_read_is_shown_until_it_can() {
        let (health, mut fleet) = fleet();
        fleet.report(Counts::default(), false);
        assert_eq!(health.report().pop().unwrap().state, State::Starting);
        fleet.node(Some("denied".to_owned()));
        let (state, detail) = reported(&health, &mut fleet);
        assert_eq!(state, State::Failed);
        assert!(detail.contains("the Node a: denied"), "{detail}");
        fleet.node(None);
        assert_eq!(reported(&health, &mut fleet).0, State::Works);
    }

    #[test]
    fn changed_numbers_are_shown() {
        let (health, mut fleet) = fleet();
        assert_eq!(
            reported(&health, &mut fleet).1,
            "0 addresses and ranges registered"
        );
        let counts = Counts {
            registered: 1,
            waiting: 2,
            ..Counts::default()
        };
        fleet.report(counts, true);
        let detail = health.report().pop().unwrap().detail;
        assert_eq!(detail, "1 address or range registered; 2 to be updated");
    }
}
