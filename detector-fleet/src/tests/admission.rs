//! The rules of the chart's admission policy for conflicts between nodes, as far as they need nothing but the objects. Its expressions are
//! evaluated in the tests of the chart; here, what agents write is held against the same rules.

use detector_engine::Confidence;

use crate::objects::{ConflictClaimant, ConflictSpec, ConflictState};

/// Whether the agent of `me` may write this.
///
/// # Errors
/// With the rule that refuses it.
pub(super) fn admit(
    me: &str,
    before: Option<&ConflictSpec>,
    after: &ConflictSpec,
) -> Result<(), &'static str> {
    match before {
        None => create(me, after),
        Some(before) => update(me, before, after),
    }
}

/// Whether the agent of `me` may delete this.
///
/// # Errors
/// With the rule that refuses it.
pub(super) fn admit_deletion(me: &str, before: &ConflictSpec) -> Result<(), &'static str> {
    let takes_part = before.claimants.iter().any(|c| c.party.node == me);
    let is_over = before.claimants.iter().all(|c| c.left.is_some());
    refuse(
        !takes_part && !is_over && !before.is_resolved(),
        "deletes that of others",
    )
}

fn refuse(is_refused: bool, why: &'static str) -> Result<(), &'static str> {
    if is_refused { Err(why) } else { Ok(()) }
}

fn is_unproven(c: &ConflictClaimant) -> bool {
    !c.active && c.confirmed == 0 && c.left.is_none() && c.unconfirmed_because.is_none()
}

fn create(me: &str, after: &ConflictSpec) -> Result<(), &'static str> {
    let [holder, contender] = &after.claimants[..] else {
        return Err("not the holder and this node");
    };
    refuse(
        holder.party.node == me || contender.party.node != me,
        "not the holder and this node",
    )?;
    let is_new =
        after.state == ConflictState::Suspected && after.confidence == Confidence::Observed;
    refuse(
        !is_new
            || holder.asked != 0
            || holder.rightful.is_some()
            || !after.claimants.iter().all(is_unproven),
        "proven from the start",
    )?;
    refuse(after.cause.is_some(), "explained before it is proven")
}

fn update(me: &str, before: &ConflictSpec, after: &ConflictSpec) -> Result<(), &'static str> {
    let of = |spec: &'_ ConflictSpec, node: &str| {
        let mut claimants = spec.claimants.iter();
        claimants.find(|c| c.party.node == node).cloned()
    };
    let about = |spec: &ConflictSpec| (spec.address, spec.conflict_id, spec.kind, spec.scope);
    refuse(about(before) != about(after), "about something else")?;
    let takes_part = |spec: &ConflictSpec| of(spec, me).is_some_and(|c| c.left.is_none());
    let may_explain = of(before, me).is_some() && takes_part(after);
    let is_own = after.cause.as_ref().is_none_or(|cause| cause.node == me);
    refuse(
        after.cause.is_some()
            && after.cause != before.cause
            && !(is_own && may_explain && after.state == ConflictState::Active),
        "explained by one that takes no part, or before it is proven",
    )?;
    if of(before, me).is_none() {
        let (joined, others) = after.claimants.split_last().ok_or("nobody")?;
        refuse(others != &before.claimants[..], "changes others on joining")?;
        refuse(
            joined.party.node != me || !is_unproven(joined),
            "joins as another, or proven",
        )?;
        return Ok(());
    }
    let mut but_first = after.claimants.iter().skip(1);
    refuse(
        after.is_resolved() && !but_first.all(|c| c.left.is_some()),
        "resolves what is not over",
    )?;
    let count = after.claimants.len();
    refuse(count > before.claimants.len() + 1, "adds several")?;
    let first_before = before.claimants.first();
    for (i, c) in after.claimants.iter().enumerate() {
        let earlier = of(before, &c.party.node);
        let is_confirmed =
            c.confirmed != 0 && earlier.as_ref().map(|e| e.confirmed) != Some(c.confirmed);
        refuse(
            is_confirmed && after.claimants[0].party.node != me,
            "confirms what another holds",
        )?;
        if c.party.node == me {
            continue;
        }
        let is_same = earlier.is_some_and(|mut earlier| {
            earlier.confirmed = c.confirmed;
            // As removing it: only if its Node is gone or was started again.
            earlier.left = c.left.or(earlier.left);
            earlier
                .unconfirmed_because
                .clone_from(&c.unconfirmed_because);
            earlier == *c
        });
        let was_first =
            first_before.is_some_and(|f| f.party.node == c.party.node && f.left.is_none());
        let says_nothing = c.asked == 0 && !c.active && c.left.is_none() && c.rightful.is_none();
        let is_new_holder = i == 0 && !was_first && says_nothing;
        refuse(!is_same && !is_new_holder, "changes another's entry")?;
    }
    Ok(())
}
