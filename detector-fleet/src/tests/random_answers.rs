//! One agent at a server that answers anything to anything: it does not panic, writes and deletes only what is its own, and what it
//! writes and keeps is bounded.

use std::{collections::BTreeMap, time::Duration};

use detector_engine::{Confidence, ConflictId, ConflictKind, ConflictScope, LeaveReason, Network};
use proptest::{prelude::*, test_runner::TestCaseError};

use super::{
    super::{Call, Mode, NodeState, Outcome, Report, Request, Stored, Version, conflict},
    agent::{Agent, address, other_address},
};
use crate::{
    Subject,
    objects::{
        self, ClaimSpec, ConflictCause, ConflictClaimant, ConflictSpec, ConflictState, Party,
    },
};

#[derive(Clone, Debug)]
enum Op {
    Local(Subject, Option<Mode>),
    /// The answer to one of the requests under way.
    Answer(usize, Outcome),
    Listed(Vec<Stored<ConflictSpec>>),
    Changed(Stored<ConflictSpec>),
    Deleted(Stored<ConflictSpec>),
    Complete,
    Wait(u64),
}

// Boxed below, because nested strategies take much of a test's stack.

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![Just(address()), Just(other_address())]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just(String::new()),
        4 => Just("web".to_owned()),
        1 => Just("ä".repeat(300)),
        1 => Just("\0\n\"".to_owned()),
    ]
}

fn party() -> BoxedStrategy<Party> {
    let node = prop_oneof![
        4 => Just("a".to_owned()),
        4 => Just("b".to_owned()),
        2 => Just("c".to_owned()),
        1 => Just(String::new()),
        1 => Just("../pods".to_owned()),
        1 => Just("n".repeat(300)),
    ];
    (node, boot(), text(), text(), text())
        .prop_map(|(node, boot_id, device, pod, pod_uid)| Party {
            node,
            boot_id,
            device,
            namespace: pod.clone(),
            pod,
            pod_uid,
            ..Party::default()
        })
        .boxed()
}

fn boot() -> impl Strategy<Value = String> {
    prop_oneof![Just("a-0".to_owned()), Just("b-0".to_owned()), text()]
}

fn version() -> impl Strategy<Value = Version> {
    let uid = prop_oneof![Just("1"), Just("2"), Just("")];
    let number = prop_oneof![
        (0_u8..20).prop_map(|n| n.to_string()),
        Just(String::new()),
        Just("x".to_owned()),
        Just("18446744073709551616".to_owned()),
    ];
    (uid, number).prop_map(|(uid, resource_version)| Version {
        uid: uid.to_owned(),
        resource_version,
    })
}

fn claim() -> BoxedStrategy<Stored<ClaimSpec>> {
    (version(), subject(), party())
        .prop_map(|(version, address, party)| Stored {
            version,
            spec: ClaimSpec { address, party },
        })
        .boxed()
}

fn claimant() -> BoxedStrategy<ConflictClaimant> {
    let number = || {
        prop_oneof![
            Just(0),
            Just(1),
            Just(2),
            Just(u32::MAX - 1),
            Just(u32::MAX)
        ]
    };
    let left = prop_oneof![3 => Just(None), 1 => Just(Some(LeaveReason::Expired))];
    (
        party(),
        number(),
        number(),
        any::<bool>(),
        any::<bool>(),
        any::<Option<bool>>(),
        left,
        proptest::option::of(text()),
    )
        .prop_map(
            |(
                party,
                asked,
                confirmed,
                active,
                terminating,
                rightful,
                left,
                unconfirmed_because,
            )| {
                ConflictClaimant {
                    party,
                    asked,
                    confirmed,
                    active,
                    terminating,
                    rightful,
                    unconfirmed_because,
                    left,
                }
            },
        )
        .boxed()
}

fn conflict() -> BoxedStrategy<Stored<ConflictSpec>> {
    let scope = prop_oneof![9 => Just(ConflictScope::Fleet), 1 => Just(ConflictScope::Node)];
    let state = prop_oneof![
        4 => Just(ConflictState::Active),
        4 => Just(ConflictState::Suspected),
        1 => Just(ConflictState::Resolved),
    ];
    let claimants = prop_oneof![
        9 => proptest::collection::vec(claimant(), 0..5),
        1 => claimant().prop_map(|c| many(&c)),
    ];
    (
        version(),
        subject(),
        scope,
        state,
        0_u128..3,
        text(),
        proptest::option::of(text()),
        claimants,
    )
        .prop_map(
            |(version, address, scope, state, id, column, cause, claimants)| {
                let cause = cause.map(|summary| ConflictCause {
                    summary,
                    ..ConflictCause::default()
                });
                let spec = ConflictSpec {
                    address,
                    conflict_id: ConflictId(id),
                    kind: ConflictKind::Duplicate,
                    scope,
                    network: Network::Node,
                    state,
                    confidence: Confidence::Certain,
                    raised_at: None,
                    resolved_at: None,
                    nodes: column.clone(),
                    pods: column,
                    cause: cause.map(Box::new),
                    claimants,
                };
                Stored { version, spec }
            },
        )
        .boxed()
}

/// More claimants than a conflict may have.
fn many(claimant: &ConflictClaimant) -> Vec<ConflictClaimant> {
    let each = |number: usize| {
        let mut claimant = claimant.clone();
        claimant.party.node = format!("node-{number}");
        claimant
    };
    (0..2 * objects::MAX_CLAIMANTS).map(each).collect()
}

fn outcome() -> BoxedStrategy<Outcome> {
    let node = (boot(), any::<bool>()).prop_map(|(boot_id, is_ready)| NodeState {
        uid: boot_id.clone(),
        boot_id,
        is_ready,
    });
    prop_oneof![
        4 => claim().prop_map(Outcome::Claim),
        4 => conflict().prop_map(Outcome::Conflict),
        2 => node.prop_map(Outcome::Node),
        1 => Just(Outcome::Deleted),
        1 => Just(Outcome::NotFound),
        1 => Just(Outcome::AlreadyExists),
        1 => Just(Outcome::Outdated),
        1 => Just(Outcome::Rejected),
        1 => Just(Outcome::Failed),
    ]
    .boxed()
}

fn op() -> BoxedStrategy<Op> {
    let mode = prop_oneof![
        2 => Just(None),
        4 => Just(Some(Mode::Register)),
        1 => Just(Some(Mode::Lookup)),
    ];
    prop_oneof![
        3 => (subject(), mode).prop_map(|(subject, mode)| Op::Local(subject, mode)),
        12 => (any::<usize>(), outcome()).prop_map(|(which, outcome)| Op::Answer(which, outcome)),
        1 => proptest::collection::vec(conflict(), 0..4).prop_map(Op::Listed),
        3 => conflict().prop_map(Op::Changed),
        1 => conflict().prop_map(Op::Deleted),
        1 => Just(Op::Complete),
        4 => prop_oneof![0_u64..100, 1_000_u64..20_000, 60_000_u64..400_000].prop_map(Op::Wait),
    ]
    .boxed()
}

/// The agent, and what it was answered.
struct Run {
    agent: Agent,
    under_way: Vec<Call>,
    claims: BTreeMap<Subject, Stored<ClaimSpec>>,
    /// Nodes that an answer has described; `None`: as missing.
    nodes: BTreeMap<String, Vec<Option<String>>>,
}

impl Run {
    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        let agent = &mut self.agent;
        match op {
            Op::Local(subject, mode) => {
                agent.sleep(Duration::from_nanos(1));
                let claim = mode.map(|mode| {
                    let mut claim = agent.local("web");
                    claim.mode = mode;
                    claim
                });
                agent.protocol.set_local(agent.now, subject, claim);
            }
            Op::Answer(which, outcome) => {
                if self.under_way.is_empty() {
                    return Ok(());
                }
                let call = self.under_way.swap_remove(which % self.under_way.len());
                self.learn(&call, &outcome);
                self.agent.answer(&call, outcome);
            }
            Op::Listed(conflicts) => agent.list(conflicts),
            Op::Changed(conflict) => agent.protocol.conflict_changed(agent.now, conflict),
            Op::Deleted(conflict) => agent.protocol.conflict_deleted(agent.now, conflict),
            Op::Complete => agent.protocol.local_is_complete(agent.now),
            Op::Wait(ms) => agent.sleep(Duration::from_millis(ms)),
        }
        while let Some(call) = self.agent.next() {
            self.check(&call)?;
            self.under_way.push(call);
        }
        for report in self.agent.reports() {
            check_report(&report)?;
        }
        let protocol = &self.agent.protocol;
        prop_assert!(protocol.entries.len() <= 2, "two subjects exist");
        prop_assert_eq!(protocol.pending_calls.len(), self.under_way.len());
        Ok(())
    }

    fn learn(&mut self, call: &Call, outcome: &Outcome) {
        match (outcome, &call.request) {
            (
                Outcome::Claim(stored),
                Request::CreateClaim(_)
                | Request::GetClaim
                | Request::ReplaceClaim(..)
                | Request::DeleteClaim(_),
            ) => {
                self.claims.insert(call.subject, stored.clone());
            }
            (Outcome::Node(state), Request::GetNode(node)) => {
                let boots = self.nodes.entry(node.clone()).or_default();
                boots.push(Some(state.boot_id.clone()));
            }
            (Outcome::NotFound, Request::GetNode(node)) => {
                self.nodes.entry(node.clone()).or_default().push(None);
            }
            _ => {}
        }
    }

    fn check(&self, call: &Call) -> Result<(), TestCaseError> {
        let known = self.claims.get(&call.subject);
        let is_known = |version: &Version| known.filter(|known| known.version == *version);
        match &call.request {
            Request::CreateClaim(spec) => check_claim(call.subject, spec),
            Request::ReplaceClaim(version, spec) => {
                let replaced = is_known(version).map(|known| &known.spec.party);
                let is_void = |party: &Party| {
                    let views = self.nodes.get(&party.node).into_iter().flatten();
                    party.node == "a"
                        || views
                            .clone()
                            .any(|boot| boot.as_ref() != Some(&party.boot_id))
                };
                prop_assert!(replaced.is_some_and(is_void), "replaces {replaced:?}");
                check_claim(call.subject, spec)
            }
            Request::DeleteClaim(version) => {
                let deleted = is_known(version).map(|known| known.spec.party.node.as_str());
                prop_assert_eq!(deleted, Some("a"), "deletes the claim of another");
                Ok(())
            }
            Request::CreateConflict(spec) | Request::ReplaceConflict(_, spec) => {
                prop_assert_eq!(spec.address, call.subject);
                prop_assert!(spec.claimants.len() <= objects::MAX_CLAIMANTS);
                prop_assert!(spec.nodes.chars().count() <= objects::MAX_COLUMN);
                prop_assert!(spec.pods.chars().count() <= objects::MAX_COLUMN);
                for claimant in &spec.claimants {
                    prop_assert!(conflict::is_name(&claimant.party.node));
                    let size = serde_json::to_vec(claimant).unwrap().len();
                    prop_assert!(size < 4_096, "{} bytes", size);
                }
                Ok(())
            }
            Request::GetNode(node) => {
                prop_assert!(conflict::is_name(node), "reads {node:?}");
                Ok(())
            }
            Request::GetClaim | Request::GetConflict | Request::DeleteConflict(_) => Ok(()),
        }
    }
}

fn check_claim(subject: Subject, spec: &ClaimSpec) -> Result<(), TestCaseError> {
    prop_assert_eq!(spec.address, subject);
    prop_assert_eq!((&*spec.party.node, &*spec.party.boot_id), ("a", "a-0"));
    Ok(())
}

fn check_report(report: &Report) -> Result<(), TestCaseError> {
    let claimants = &report.conflict.claimants;
    let mut nodes: Vec<_> = claimants.iter().map(|c| &c.party.node).collect();
    nodes.sort();
    nodes.dedup();
    prop_assert_eq!(nodes.len(), claimants.len(), "a node against itself");
    prop_assert!(
        nodes.iter().any(|node| **node == "a"),
        "it has no part in it"
    );
    prop_assert!(claimants.len() > 1, "no other node");
    Ok(())
}

#[test]
fn only_what_is_its_own_is_written_whatever_the_server_answers() {
    let ops = || proptest::collection::vec(op(), 1..40);
    detector_model_run::run(ops, |ops| {
        let mut run = Run {
            agent: Agent::starting("a", 0, BTreeMap::new()),
            under_way: Vec::new(),
            claims: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        for op in ops {
            run.apply(op)?;
        }
        Ok(())
    });
}
