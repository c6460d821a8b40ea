//! The engine against a plain recomputation: random sequences of what happens on a node, with words lost, readings that
//! overlap live words, and restarts; after each word that was not lost the open conflicts are those of the [`world`].
//!
//! `MODEL_SEQUENCES` (`cargo xtask test --model-sequences N`) sets how many sequences are run: 2,000 by default. `MODEL_SEED`
//! (64 hex digits, printed at the start and with a failure) repeats a run.

mod claims;
mod script;
mod world;

use std::{
    env,
    hash::{BuildHasher, RandomState},
};

use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use script::{Script, ops};

#[test]
fn open_conflicts_equal_a_plain_recomputation() {
    let sequences = env::var("MODEL_SEQUENCES").map_or(2_000, |n| {
        n.parse().expect("MODEL_SEQUENCES is a number of sequences")
    });
    let seed = env::var("MODEL_SEED").map_or_else(|_| random_seed(), |text| seed_from(&text));
    let shown: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("{sequences} sequences, MODEL_SEED={shown}");

    let mut runner = runner(sequences, &seed);
    let result = runner.run(&ops(), |ops| {
        let mut script = Script::new();
        for op in ops {
            script.run(op)?;
        }
        script.finish()
    });
    if let Err(error) = result {
        panic!("MODEL_SEED={shown} MODEL_SEQUENCES={sequences}\n{error}");
    }
}

/// What a failure prints is worth nothing otherwise.
#[test]
fn a_seed_repeats_its_sequences() {
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
