//! The invariants, computed from what the nodes really have.

use detector_engine::Confidence;
use proptest::{prop_assert, prop_assert_eq, test_runner::TestCaseError};

use super::{
    agent::{Interval, Node, SETTINGS},
    ops::SUBJECTS,
    world::{World, subject},
};
use crate::{
    Call, Mode, Report, Request, Subject,
    objects::{ConflictSpec, ConflictState},
    tests::server::Event,
};

/// A conflict is reported only if two nodes had the address at one moment, or the holder is silent, and no handover is.
pub(super) fn report(world: &World, node: usize, report: &Report) -> Result<(), TestCaseError> {
    if report.is_resolved || report.is_update || !report.is_reporter {
        return Ok(());
    }
    let conflict = &report.conflict;
    let me = &world.nodes[node];
    let mut names: Vec<_> = conflict.claimants.iter().map(|c| &c.party.node).collect();
    prop_assert!(
        names.contains(&&me.name),
        "{} reports what it has no part in",
        me.name
    );
    names.sort();
    names.dedup();
    prop_assert_eq!(
        names.len(),
        conflict.claimants.len(),
        "a node against itself"
    );

    rights(world, conflict)?;

    if conflict.confidence == Confidence::Observed {
        prop_assert!(
            world.has_faults,
            "{} has reported a holder that is not silent",
            me.name
        );
        return silence(world, node, report);
    }
    let subject = conflict.address;
    let mut mine = me.history.get(&subject).into_iter().flatten();
    let mine = mine.rfind(|i| me.clock(i.begin) == report.began);
    prop_assert!(
        mine.is_some(),
        "{} reports a claim that it never had",
        me.name
    );
    let mine = mine.unwrap();
    let others = world
        .nodes
        .iter()
        .filter(|n| n.name != me.name && names.contains(&&n.name));
    let mut overlaps = others
        .flat_map(|other| other.history.get(&subject).into_iter().flatten())
        .filter(|theirs| overlap(mine, theirs));
    let is_real = |theirs: &Interval| {
        let since = mine.begin.max(theirs.begin);
        let is_handover = mine.pod == theirs.pod
            || theirs.terminating.is_some_and(|at| at <= mine.begin)
            || mine.terminating.is_some_and(|at| at <= theirs.begin);
        let over = u64::try_from(SETTINGS.handover.as_nanos()).unwrap();
        !is_handover || world.now - since >= over
    };
    prop_assert!(
        overlaps.any(is_real),
        "{} reports what never was, or a handover: {conflict:?}",
        me.name
    );
    Ok(())
}

/// What is said about the right of a claimant its own node has had of that pod.
fn rights(world: &World, conflict: &ConflictSpec) -> Result<(), TestCaseError> {
    for c in &conflict.claimants {
        let Some(rightful) = c.rightful else { continue };
        let node = world.nodes.iter().find(|n| n.name == c.party.node);
        let history = node.and_then(|node| node.history.get(&conflict.address));
        let has_had = |i: &Interval| {
            format!("veth-{}", i.begin) == c.party.device && rightful == (i.mode == Mode::Register)
        };
        prop_assert!(
            history.into_iter().flatten().any(has_had),
            "no agent stated that: {c:?}"
        );
    }
    Ok(())
}

/// What is given as the reason was so after the deadline for an answer.
fn silence(world: &World, node: usize, report: &Report) -> Result<(), TestCaseError> {
    let first = &report.conflict.claimants[0];
    prop_assert!(
        first.unconfirmed_because.is_some(),
        "no reason is given: {report:?}"
    );
    let because = first.unconfirmed_because.as_deref().unwrap_or_default();
    let begin = report.began.0 - world.nodes[node].ahead;
    let confirmation = u64::try_from(SETTINGS.confirmation.as_nanos()).unwrap();
    let holder = world.nodes.iter().find(|n| n.name == first.party.node);
    prop_assert!(holder.is_some(), "unknown holder: {report:?}");
    let holder = holder.unwrap();
    let state = world.server.nodes.get(&holder.name);
    let until = match state {
        Some(state) if state.is_ready => holder.not_ready_until,
        _ => world.now,
    };
    if because.contains("not ready") {
        prop_assert!(until >= begin + confirmation, "it was ready: {report:?}");
    } else if !because.contains("not exist") {
        prop_assert!(
            world.now >= begin + 12 * confirmation,
            "too early: {report:?}"
        );
    }
    Ok(())
}

/// What a node writes agrees with what it has at that moment, whether its agent knows that already or not.
pub(super) fn request(world: &World, node: usize, call: &Call) -> Result<(), TestCaseError> {
    let me = &world.nodes[node];
    let live = me.live(call.subject);
    let is_registering = live.is_some_and(|i| i.mode == Mode::Register);
    let name = call.subject.object_name();
    match &call.request {
        Request::DeleteClaim(_) => {
            prop_assert!(!is_registering, "{} releases what it has", me.name);
        }
        Request::CreateClaim(_) => {
            prop_assert!(is_registering, "{} registers what is missing", me.name);
        }
        Request::ReplaceClaim(version, _) => {
            prop_assert!(is_registering, "{} registers what is missing", me.name);
            let replaced = world.server.claims.get(&name);
            let replaced = replaced.filter(|stored| stored.version == *version);
            if let Some(party) = replaced.map(|s| &s.spec.party)
                && party.node != me.name
            {
                let state = world.server.nodes.get(&party.node);
                let is_void = state.is_none_or(|state| state.boot_id != party.boot_id);
                prop_assert!(is_void, "{} takes a claim from {}", me.name, party.node);
            }
        }
        Request::ReplaceConflict(version, spec) => {
            let replaced = world.server.conflicts.get(&name);
            if let Some(before) = replaced.filter(|stored| stored.version == *version) {
                conflict_written(me, is_registering, &before.spec, spec)?;
            }
        }
        Request::DeleteConflict(version) => {
            let deleted = world.server.conflicts.get(&name);
            if let Some(deleted) = deleted.filter(|stored| stored.version == *version) {
                let is_active = deleted.spec.state == ConflictState::Active;
                prop_assert!(!is_active || !me.has_room, "not kept: {deleted:?}");
            }
        }
        _ => {}
    }
    Ok(())
}

fn conflict_written(
    me: &Node,
    is_registering: bool,
    before: &ConflictSpec,
    after: &ConflictSpec,
) -> Result<(), TestCaseError> {
    let find = |spec: &ConflictSpec, name: &str| {
        let mut claimants = spec.claimants.iter();
        claimants.find(|c| c.party.node == name).cloned()
    };
    if after.is_resolved() {
        prop_assert_eq!(before.state, ConflictState::Active);
        prop_assert!(me.has_room, "kept: {after:?}");
        prop_assert_eq!(after.raised_at, before.raised_at);
        prop_assert!(after.resolved_at >= after.raised_at, "{after:?}");
    }
    if let Some(cause) = after.cause.as_ref().filter(|_| after.cause != before.cause) {
        let mine = me.history.get(&after.address).into_iter().flatten();
        let mut found = mine.flat_map(|i| [me.cause(i, false), me.cause(i, true)]);
        prop_assert!(
            found.any(|found| found == **cause),
            "{} has not found {cause:?}",
            me.name
        );
    }
    for claimant in &after.claimants {
        let earlier = find(before, &claimant.party.node).unwrap_or_default();
        let confirms = claimant.confirmed != 0 && claimant.confirmed != earlier.confirmed;
        prop_assert!(
            !confirms || is_registering,
            "{} confirms what is missing",
            me.name
        );
    }
    let is_present = |spec| find(spec, &me.name).is_some_and(|c| c.left.is_none());
    let leaves = is_present(before) && !is_present(after);
    prop_assert!(
        !leaves || !is_registering,
        "{} leaves with the address",
        me.name
    );
    Ok(())
}

fn overlap(a: &Interval, b: &Interval) -> bool {
    let ends_after = |a: &Interval, b: &Interval| a.end.is_none_or(|end| end > b.begin);
    ends_after(a, b) && ends_after(b, a)
}

/// Nothing is under way and everything works: the objects are those that follow from what the nodes have.
pub(super) fn rest(world: &World) -> Result<(), TestCaseError> {
    for number in 0..SUBJECTS {
        of_subject(world, subject(number))?;
    }
    Ok(())
}

fn of_subject(world: &World, subject: Subject) -> Result<(), TestCaseError> {
    let having = |mode: Mode| {
        let has = move |node: &&Node| node.live(subject).is_some_and(|i| i.mode == mode);
        world.nodes.iter().filter(has).collect::<Vec<_>>()
    };
    let (registering, looking) = (having(Mode::Register), having(Mode::Lookup));
    let name = subject.object_name();
    let holder = world
        .server
        .claims
        .get(&name)
        .map(|stored| &stored.spec.party);
    let conflict = world.server.conflicts.get(&name).map(|stored| &stored.spec);
    let raised = world
        .nodes
        .iter()
        .filter_map(|n| Some((&n.name, n.raised.get(&subject)?)));
    let raised: Vec<_> = raised.collect();

    match holder {
        None => prop_assert!(registering.is_empty(), "{subject} is not registered"),
        Some(holder) => {
            let is_right = registering
                .iter()
                .any(|n| n.name == holder.node && n.boot_id() == holder.boot_id);
            let is_leak = registering.is_empty()
                && world
                    .nodes
                    .iter()
                    .any(|n| n.name == holder.node && n.may_leak);
            prop_assert!(
                is_right || is_leak,
                "{subject} is registered by {}",
                holder.node
            );
        }
    }
    let is_contested = !registering.is_empty() && registering.len() + looking.len() > 1;
    if !is_contested {
        prop_assert!(
            raised.is_empty(),
            "{subject} was not resolved by {raised:?}"
        );
        if let Some(conflict) = conflict.filter(|conflict| !conflict.is_resolved()) {
            let of_dead = |node: &Node| !node.is_up;
            let nodes = conflict.claimants.iter().map(|c| &c.party.node);
            let mut listed = nodes.filter_map(|name| world.nodes.iter().find(|n| n.name == *name));
            let has_user = !registering.is_empty();
            prop_assert!(
                listed.all(of_dead) && !has_user,
                "left behind: {conflict:?}"
            );
        }
        return Ok(());
    }
    prop_assert!(conflict.is_some(), "no conflict about {subject}");
    let conflict = conflict.unwrap();
    prop_assert_eq!(conflict.state, ConflictState::Active);
    let mut listed: Vec<_> = conflict
        .claimants
        .iter()
        .map(|c| c.party.node.clone())
        .collect();
    prop_assert_eq!(&listed[0], &holder.unwrap().node);
    let mut expected: Vec<_> = registering
        .iter()
        .chain(&looking)
        .map(|n| n.name.clone())
        .collect();
    listed.sort();
    expected.sort();
    prop_assert_eq!(listed, expected);
    let reporter = conflict.claimants.iter().find(|c| c.active).unwrap();
    prop_assert_eq!(raised, vec![(&reporter.party.node, &conflict.conflict_id)]);
    causes(registering.iter().chain(&looking).copied(), conflict)
}

/// The cause is one that the agent of a claimant has found for the claim that its node has now. It is as certain as the best of those
/// that are known, and every other claimant's agent shows it.
fn causes<'n>(
    claimants: impl Iterator<Item = &'n Node>,
    conflict: &ConflictSpec,
) -> Result<(), TestCaseError> {
    let subject = conflict.address;
    let cause = conflict.cause.as_deref();
    let mut has_finder = false;
    for node in claimants {
        let live = node.live(subject).unwrap();
        let possible = [true, false].map(|is_proven| node.cause(live, is_proven));
        let is_finder = cause.is_some_and(|cause| cause.node == node.name);
        has_finder |= is_finder;
        prop_assert!(
            !is_finder || possible.iter().any(|c| Some(c) == cause),
            "outdated: {cause:?}"
        );
        let known = node.known_causes.get(&subject);
        let known =
            known.filter(|(id, cause)| *id == conflict.conflict_id && possible.contains(cause));
        if let Some((_, known)) = known {
            let is_known = |confidence: &str| cause.is_some_and(|c| c.confidence == confidence);
            prop_assert!(
                is_known("proven") || known.confidence == "likely" && is_known("likely"),
                "{} knows {known:?}, the conflict has {cause:?}",
                node.name
            );
        }
        let shown = node.shown.get(&subject).and_then(|c| c.cause.as_deref());
        prop_assert_eq!(shown, cause.filter(|_| !is_finder), "of {}", node.name);
    }
    prop_assert!(
        cause.is_none() || has_finder,
        "found by no claimant: {cause:?}"
    );
    Ok(())
}

/// All conflicts are over: what is kept of an address is its last one, if that was active until then.
pub(super) fn kept(world: &World) -> Result<(), TestCaseError> {
    if world.is_cleared || world.is_tampered {
        return Ok(());
    }
    for subject in (0..SUBJECTS).map(subject) {
        let mut events = world.server.log.iter().rev();
        let last_open = events.find_map(|event| match event {
            Event::Changed(stored) if stored.spec.address == subject => {
                Some(&stored.spec).filter(|spec| !spec.is_resolved())
            }
            _ => None,
        });
        let last_active = last_open.filter(|spec| spec.state == ConflictState::Active);
        let kept = world.server.conflicts.get(&subject.object_name());
        prop_assert_eq!(
            kept.map(|stored| stored.spec.conflict_id),
            last_active.map(|spec| spec.conflict_id),
            "{}",
            subject
        );
    }
    Ok(())
}

/// At rest, agents only verify: each claim of another every five minutes, the Node of another every minute.
pub(super) fn quiet(world: &World) -> Result<(), TestCaseError> {
    prop_assert_eq!(world.writes, 0, "written at rest");
    prop_assert!(world.reads < 200, "{} reads at rest", world.reads);
    Ok(())
}
