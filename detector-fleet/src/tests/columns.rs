//! The fields of an `IPConflict` that follow from its claimants: the columns that `kubectl get` shows, and how certain it is.

use detector_engine::{Confidence, ConflictId};

use super::super::{
    conflict::{completed, new},
    objects::{ConflictClaimant, ConflictSpec, MAX_COLUMN, Party},
};

fn conflict(parties: impl Iterator<Item = Party>) -> ConflictSpec {
    let mut spec = new(super::agent::address(), ConflictId(7));
    spec.claimants = parties
        .map(|party| ConflictClaimant {
            party,
            ..ConflictClaimant::default()
        })
        .collect();
    completed(spec, None)
}

#[test]
fn columns_name_four_and_count_the_others() {
    let spec = conflict((0..6).map(|number| Party {
        node: format!("node-{number}"),
        namespace: "shop".to_owned(),
        pod: format!("web-{number}"),
        ..Party::default()
    }));
    assert_eq!(spec.nodes, "node-0, node-1, node-2, node-3 and 2 more");
    assert_eq!(
        spec.pods,
        "shop/web-0, shop/web-1, shop/web-2, shop/web-3 and 2 more"
    );
}

#[test]
fn longest_names_of_kubernetes_fit_into_the_schema() {
    let spec = conflict((0..6).map(|number| Party {
        node: format!("{number}{}", "n".repeat(252)),
        namespace: "n".repeat(63),
        pod: "p".repeat(253),
        ..Party::default()
    }));
    for column in [&spec.nodes, &spec.pods] {
        assert!(column.len() <= MAX_COLUMN, "{} bytes", column.len());
        assert!(column.ends_with(" and 3 more"), "{column}");
    }
}

#[test]
fn conflict_is_certain_while_a_claimant_is_confirmed_or_the_holder_is_not_silent() {
    let party = |node: &str| Party {
        node: node.to_owned(),
        ..Party::default()
    };
    let mut spec = conflict(["a", "b", "c"].map(party).into_iter());
    let contender = |spec: &mut ConflictSpec, number: usize, confirmed| {
        let c = &mut spec.claimants[number];
        (c.active, c.asked, c.confirmed) = (true, 1, confirmed);
    };
    contender(&mut spec, 1, 1);
    contender(&mut spec, 2, 0);
    spec.claimants[0].unconfirmed_because = Some("silent".to_owned());
    let spec = completed(spec, None);
    assert_eq!(spec.confidence, Confidence::Certain);
    let mut asks_again = spec.clone();
    asks_again.claimants[0].unconfirmed_because = None;
    asks_again.claimants[1].asked = 2;
    assert_eq!(completed(asks_again, None).confidence, Confidence::Certain);
    let mut left = spec;
    left.claimants.remove(1);
    assert_eq!(completed(left, None).confidence, Confidence::Observed);
}
