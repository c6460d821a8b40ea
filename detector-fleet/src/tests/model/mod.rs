//! Several agents against a plain recomputation: random sequences of what happens to pods, agents, nodes and the server, with requests
//! that fail before or after they take effect, or take effect late, answers and watch events in any order between agents, watches that
//! begin behind or repeat events, and restarts with and without the journal.
//! [`detector_model_run`] sets the number of sequences, and repeats them.

mod agent;
mod checks;
mod ops;
mod world;

use world::World;

#[test]
fn conflicts_equal_a_plain_recomputation() {
    detector_model_run::run(ops::sequences, |(seed, ops)| {
        let mut world = World::new(seed);
        for op in &ops {
            world.run(op)?;
        }
        world.finish()
    });
}
