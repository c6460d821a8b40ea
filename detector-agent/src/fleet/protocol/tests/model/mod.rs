//! Several agents against a plain recomputation: random sequences of what happens to pods, agents, nodes and the server, with requests
//! that fail before or after they take effect, or take effect late, answers and watch events in any order between agents, and restarts
//! with and without the journal.
//!
//! `MODEL_SEQUENCES` (`cargo xtask test --model-sequences N`) sets the number of sequences (2,000 by default). `MODEL_SEED` (64 hex
//! digits, printed at the start and with a failure) repeats a run.

mod agent;
mod checks;
mod ops;
mod server;
mod world;

use std::hash::{BuildHasher as _, RandomState};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use world::World;

#[test]
fn conflicts_equal_a_plain_recomputation() {
    let sequences = std::env::var("MODEL_SEQUENCES").map_or(2_000, |n| n.parse().unwrap());
    let seed = std::env::var("MODEL_SEED").unwrap_or_else(|_| random_seed());
    let digits = |i: usize| u8::from_str_radix(&seed[2 * i..2 * i + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..32).map(digits).collect();
    eprintln!("{sequences} sequences, MODEL_SEED={seed}");

    let config = Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let result = TestRunner::new_with_rng(config, rng).run(&ops::sequences(), |(seed, ops)| {
        let mut world = World::new(seed);
        for op in &ops {
            world.run(op)?;
        }
        world.finish()
    });
    if let Err(error) = result {
        panic!("MODEL_SEED={seed} MODEL_SEQUENCES={sequences}\n{error}");
    }
}

/// 64 hex digits.
fn random_seed() -> String {
    let number = || RandomState::new().hash_one(0);
    (0..4).map(|_| format!("{:016x}", number())).collect()
}
