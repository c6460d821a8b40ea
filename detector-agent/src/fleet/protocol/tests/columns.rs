//! The columns of an `IPConflict` are what `kubectl get` shows.

use super::super::{
    conflict::{completed, new},
    objects::{ConflictClaimant, ConflictSpec, MAX_COLUMN, Party},
};
use crate::engine::ConflictId;

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
