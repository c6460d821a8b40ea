//! How the model tests run: random sequences against a plain recomputation.
//!
//! `MODEL_SEQUENCES` (`cargo xtask test --model-sequences N`) sets the number of sequences (2,000 by default). `MODEL_SEED` (64 hex
//! digits, printed at the start and with a failure) repeats a run.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    env,
    hash::{BuildHasher as _, RandomState},
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner},
};

/// What decides the sequences.
pub type Seed = [u8; 32];

/// Runs `test` with the sequences that the environment asks for.
///
/// # Panics
/// With the seed, if a sequence fails.
pub fn run<S: Strategy>(sequence: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    let sequences = env::var("MODEL_SEQUENCES").map_or(2_000, |n| {
        n.parse().expect("MODEL_SEQUENCES is a number of sequences")
    });
    let seed = env::var("MODEL_SEED").map_or_else(|_| random_seed(), |text| seed_from(&text));
    let printed: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("{sequences} sequences, MODEL_SEED={printed}");
    if let Err(error) = runner(sequences, &seed).run(sequence, test) {
        panic!("MODEL_SEED={printed} MODEL_SEQUENCES={sequences}\n{error}");
    }
}

/// Makes the same sequences from the same seed.
pub fn runner(sequences: u32, seed: &Seed) -> TestRunner {
    let config = Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, seed))
}

/// A seed that no other run has.
#[must_use]
pub fn random_seed() -> Seed {
    let mut seed = [0; 32];
    for chunk in seed.chunks_mut(8) {
        chunk.copy_from_slice(&RandomState::new().hash_one(0).to_be_bytes());
    }
    seed
}

fn seed_from(text: &str) -> Seed {
    let mut seed = [0; 32];
    assert_eq!(text.len(), 64, "MODEL_SEED is 64 hex digits");
    for (byte, digits) in seed.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = str::from_utf8(digits).expect("hex digits");
        *byte = u8::from_str_radix(digits, 16).expect("MODEL_SEED is 64 hex digits");
    }
    seed
}
