//! The `status` of an `IPConflict`: what follows from its `spec`, in the form that `kubectl wait` and other tools know. Agents write it
//! together with the `spec`, and read only that.

use detector_engine::{Confidence, diagnosis::Cause};
use detector_event::WallTime;
use serde::Serialize;

use super::objects::{ConflictCause, ConflictSpec, ConflictState};

/// The `status` of an `IPConflict`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConflictStatus {
    /// None while it is suspected, which the conventions of the Kubernetes API take for unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A condition, as the conventions of the Kubernetes API have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people. Absent if it is empty, which Kubernetes 1.20 takes for null.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when; `None` if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<WallTime>,
}

impl ConflictSpec {
    /// The conditions that follow from it.
    #[must_use]
    pub fn status(&self) -> ConflictStatus {
        let active = match self.state {
            ConflictState::Suspected => return ConflictStatus::default(),
            ConflictState::Active => Condition {
                kind: "Active",
                status: "True",
                reason: "Reported".to_owned(),
                message: "the address is claimed more than once".to_owned(),
                last_transition_time: self.raised_at,
            },
            ConflictState::Resolved => Condition {
                kind: "Active",
                status: "False",
                reason: "Resolved".to_owned(),
                message: "at most one claimant is left".to_owned(),
                last_transition_time: self.resolved_at,
            },
        };
        let (status, reason, message) = match self.confidence {
            Confidence::Certain => ("True", "Certain", None),
            Confidence::Observed => {
                let mut claimants = self.claimants.iter();
                let because = claimants.find_map(|c| c.unconfirmed_because.clone());
                ("False", "Observed", because)
            }
        };
        let confirmed = Condition {
            kind: "Confirmed",
            status,
            reason: reason.to_owned(),
            message: message.unwrap_or_default(),
            // The confidence has no time.
            last_transition_time: None,
        };
        ConflictStatus {
            conditions: vec![active, confirmed, cause_known(self.cause.as_deref())],
        }
    }
}

/// Its reason is the cause as in events, `unknown` included.
fn cause_known(cause: Option<&ConflictCause>) -> Condition {
    let (status, reason, message) = match cause {
        Some(cause) => ("True", &*cause.name, &*cause.summary),
        None => ("False", Cause::Unknown.name(), ""),
    };
    Condition {
        kind: "CauseKnown",
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        // Like the confidence.
        last_transition_time: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::samples::{self, report};

    /// Type, status and time of each condition.
    fn conditions(spec: &ConflictSpec) -> Vec<(&str, &str, Option<WallTime>)> {
        let conditions = spec.status().conditions.into_iter();
        conditions
            .map(|c| (c.kind, c.status, c.last_transition_time))
            .collect()
    }

    #[test]
    fn conditions_follow_from_the_state_the_confidence_and_the_cause() {
        let mut spec = report("10.244.1.5").conflict;
        let (raised, resolved) = (
            WallTime::from_unix_nanos(1_000),
            WallTime::from_unix_nanos(2_000),
        );
        (spec.raised_at, spec.resolved_at) = (raised, resolved);
        assert_eq!(
            conditions(&spec),
            [
                ("Active", "True", raised),
                ("Confirmed", "True", None),
                ("CauseKnown", "False", None)
            ]
        );
        assert_eq!(spec.status().conditions[2].reason, "unknown");
        let confirmed = serde_json::to_value(&spec.status().conditions[1]).unwrap();
        assert!(confirmed.get("message").is_none(), "{confirmed}");
        spec.confidence = Confidence::Observed;
        spec.state = ConflictState::Resolved;
        spec.claimants[0].unconfirmed_because = Some("silent".to_owned());
        spec.set_cause(Some(&samples::cause()));
        assert_eq!(
            conditions(&spec),
            [
                ("Active", "False", resolved),
                ("Confirmed", "False", None),
                ("CauseKnown", "True", None)
            ]
        );
        assert_eq!(spec.status().conditions[1].message, "silent");
        let known = &spec.status().conditions[2];
        assert_eq!(known.reason, "pod_cidr_twice");
        assert_eq!(known.message, samples::cause().summary);
        spec.state = ConflictState::Suspected;
        assert_eq!(conditions(&spec), []);
    }
}
