//! The engine against a plain recomputation: random sequences of operations on a node, with losses,
//! snapshots that overlap live updates, and restarts. After each delivered observation the open
//! conflicts equal those computed from the [`world`]. [`detector_model_run`] sets the number of
//! sequences, and repeats them.

mod expected;
mod harness;
mod macs;
mod ops;
mod world;

use proptest::strategy::{Strategy as _, ValueTree as _};

use detector_model_run::Seed;
use harness::Harness;
use ops::ops;

#[test]
fn open_conflicts_equal_a_plain_recomputation() {
    detector_model_run::run(ops, |ops| {
        let mut harness = Harness::new();
        for op in ops {
            harness.run(op)?;
        }
        harness.finish()
    });
}

/// Otherwise the seed that a failure prints would be useless.
#[test]
fn seed_repeats_its_sequences() {
    let sequences = |seed: &Seed| {
        let mut runner = detector_model_run::runner(20, seed);
        let next = |_| {
            let tree = ops().new_tree(&mut runner).expect("a sequence");
            format!("{:?}", tree.current())
        };
        (0..20).map(next).collect::<Vec<_>>()
    };
    let seed = detector_model_run::random_seed();
    assert_eq!(sequences(&seed), sequences(&seed));
    assert_ne!(
        sequences(&seed),
        sequences(&detector_model_run::random_seed())
    );
}
