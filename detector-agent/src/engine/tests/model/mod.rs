//! The engine against a plain recomputation: random sequences of operations on a node, with losses,
//! snapshots that overlap live updates, and restarts. After each delivered observation the open
//! conflicts equal those computed from the [`world`].
//!
//! `MODEL_SEQUENCES` (`cargo xtask test --model-sequences N`) sets the number of sequences (2,000
//! by default). `MODEL_SEED` (64 hex digits, printed at the start and with a failure) repeats a
//! run.

mod expected;
mod harness;
mod ops;
mod world;

use std::{
    env,
    hash::{BuildHasher, RandomState},
};

use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use harness::Harness;
use ops::ops;

#[test]
fn open_conflicts_equal_a_plain_recomputation() {
    let sequences = env::var("MODEL_SEQUENCES").map_or(2_000, |n| {
        n.parse().expect("MODEL_SEQUENCES is a number of sequences")
    });
    let seed = env::var("MODEL_SEED").map_or_else(|_| random_seed(), |text| seed_from(&text));
    let printed: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("{sequences} sequences, MODEL_SEED={printed}");

    let mut runner = runner(sequences, &seed);
    let result = runner.run(&ops(), |ops| {
        let mut harness = Harness::new();
        for op in ops {
            harness.run(op)?;
        }
        harness.finish()
    });
    if let Err(error) = result {
        panic!("MODEL_SEED={printed} MODEL_SEQUENCES={sequences}\n{error}");
    }
}

/// Otherwise the seed that a failure prints would be useless.
#[test]
fn seed_repeats_its_sequences() {
    let sequences = |seed: &[u8; 32]| {
        let mut runner = runner(20, seed);
        let next = |_| {
            let tree = ops().new_tree(&mut runner).expect("a sequence");
            format!("{:?}", tree.current())
        };
        (0..20).map(next).collect::<Vec<_>>()
    };
    let seed = random_seed();
    assert_eq!(sequences(&seed), sequences(&seed));
    assert_ne!(sequences(&seed), sequences(&random_seed()));
}

fn runner(sequences: u32, seed: &[u8; 32]) -> TestRunner {
    let config = Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, seed))
}

fn random_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    for chunk in seed.chunks_mut(8) {
        chunk.copy_from_slice(&RandomState::new().hash_one(0).to_be_bytes());
    }
    seed
}

fn seed_from(text: &str) -> [u8; 32] {
    let mut seed = [0; 32];
    assert_eq!(text.len(), 64, "MODEL_SEED is 64 hex digits");
    for (byte, digits) in seed.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = str::from_utf8(digits).expect("hex digits");
        *byte = u8::from_str_radix(digits, 16).expect("MODEL_SEED is 64 hex digits");
    }
    seed
}
