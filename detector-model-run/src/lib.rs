//! How the model tests run: random sequences against a plain recomputation.
//!
//! `MODEL_SEQUENCES` (`cargo xtask test --model-sequences N`) sets the number of sequences (2,000 by default). They are divided among
//! one thread for each processor. `MODEL_SEED` (64 hex digits, printed by each thread at the start and with a failure) repeats those of
//! one thread.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    env,
    hash::{BuildHasher as _, RandomState},
    num::NonZero,
    thread,
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
pub fn run<S: Strategy>(
    sequence: impl Fn() -> S + Sync,
    test: impl Fn(S::Value) -> TestCaseResult + Sync,
) {
    let sequences = env::var("MODEL_SEQUENCES").map_or(2_000, |n| {
        n.parse().expect("MODEL_SEQUENCES is a number of sequences")
    });
    if let Ok(text) = env::var("MODEL_SEED") {
        return run_thread(&sequence(), &test, sequences, &seed_from(&text));
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = sequences.div_ceil(u32::try_from(threads).expect("few processors"));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| run_thread(&sequence(), &test, share, &random_seed()));
        }
    });
}

fn run_thread<S: Strategy>(
    sequence: &S,
    test: impl Fn(S::Value) -> TestCaseResult,
    sequences: u32,
    seed: &Seed,
) {
    let printed: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let repeat = format!("MODEL_SEQUENCES={sequences} MODEL_SEED={printed}");
    eprintln!("{repeat}");
    if let Err(error) = runner(sequences, seed).run(sequence, test) {
        panic!("{repeat}\n{error}");
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
