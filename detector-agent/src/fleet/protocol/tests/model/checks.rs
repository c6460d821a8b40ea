//! The invariants, computed from what the nodes really have.

use proptest::{prop_assert, prop_assert_eq, test_runner::TestCaseError};

use super::{
    agent::{Interval, Node, SETTINGS},
    ops::SUBJECTS,
    world::{World, subject},
};
use crate::{
    engine::Confidence,
    fleet::{
        Subject,
        objects::ConflictState,
        protocol::{Mode, Report},
    },
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

    if conflict.confidence == Confidence::Observed {
        prop_assert!(
            world.has_faults,
            "{} has reported a holder that is not silent",
            me.name
        );
        let because = conflict
            .claimants
            .iter()
            .any(|c| c.unconfirmed_because.is_some());
        prop_assert!(because, "no reason is given: {conflict:?}");
        return Ok(());
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
        if let Some(conflict) = conflict {
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
    Ok(())
}

/// At rest, agents only verify: each claim of another every five minutes, the Node of another every minute.
pub(super) fn quiet(world: &World) -> Result<(), TestCaseError> {
    prop_assert_eq!(world.writes, 0, "written at rest");
    prop_assert!(world.reads < 400, "{} reads at rest", world.reads);
    Ok(())
}
