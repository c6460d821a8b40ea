//! Random conflicts, with a power cut at every single write.

use super::{super::OutboxBounds, world::Simulation};

/// Conflicts open at a time.
const OPEN: usize = 4;

/// A bound that is reached.
const TIGHT: OutboxBounds = OutboxBounds {
    events: 5,
    bytes: 1 << 20,
    open: 100,
};

/// A run with one crash at the operation `crash_at`; `false` if there were fewer.
fn live(seed: u64, crash_at: usize, bounds: OutboxBounds, ambiguous: bool) -> (Simulation, bool) {
    let mut simulation = Simulation::new(seed, bounds);
    simulation.ambiguous = ambiguous;
    live_on(simulation, seed, crash_at)
}

fn live_on(mut simulation: Simulation, seed: u64, crash_at: usize) -> (Simulation, bool) {
    simulation.disk.crash_at(crash_at);
    let mut crashed = false;
    let mut steps = 0;
    while steps < 12 {
        if simulation.run.is_none()
            && let Err(why) = simulation.start()
        {
            assert!(
                simulation.disk.is_off(),
                "seed {seed}, crash at {crash_at}: {why}"
            );
            crashed = true;
            let mut random = simulation.random.fork();
            simulation.disk.power_on(&mut random);
            continue;
        }
        for _ in 0..simulation.random.usize(1..6) {
            simulation.happen(OPEN);
        }
        simulation.store();
        let failing = if simulation.random.u8(..3) == 0 { 8 } else { 2 };
        simulation.deliver(6, failing);
        if simulation.disk.is_off() {
            crashed = true;
            simulation.die();
            let mut random = simulation.random.fork();
            simulation.disk.power_on(&mut random);
        }
        steps += 1;
    }
    if simulation.run.is_none() {
        simulation.start().unwrap();
    }
    simulation.disk.come_back();
    simulation.rejecting = false;
    simulation.finish();
    (simulation, crashed)
}

#[test]
fn a_crash_at_any_write_keeps_order_and_loses_nothing_stored() {
    for (seed, step) in [(0, 1), (1, 5)] {
        let mut crash_at = 0;
        loop {
            let (simulation, crashed) = live(seed, crash_at, OutboxBounds::default(), true);
            simulation.check_order();
            simulation.check_complete();
            if !crashed {
                println!("seed {seed}: {crash_at} writes");
                assert!(crash_at > 50, "only {crash_at} writes");
                break;
            }
            crash_at += step;
        }
    }
}

#[test]
fn rejected_events_cost_no_conflict_its_order_or_its_end() {
    let (mut superseded, mut crashes) = (0, 0);
    for (seed, bounds) in [(3, OutboxBounds::default()), (4, TIGHT)] {
        for crash_at in (0..).step_by(3) {
            let mut simulation = Simulation::new(seed, bounds);
            simulation.ambiguous = false;
            simulation.rejecting = true;
            let (simulation, crashed) = live_on(simulation, seed, crash_at);
            simulation.check_order();
            superseded += simulation.counted("all", "superseded");
            if !crashed {
                break;
            }
            crashes += 1;
        }
    }
    assert!(
        superseded > 100 && crashes > 50,
        "{superseded} superseded, {crashes} crashes"
    );
}

#[test]
fn at_the_bound_a_sink_gets_complete_conflicts() {
    let mut refused = 0;
    for seed in 0..60 {
        let (simulation, _) = live(seed, usize::MAX, TIGHT, true);
        refused += simulation.counted("all", "refused");
        simulation.check_order();
    }
    assert!(refused > 100, "the bound was hardly met: {refused}");
}

#[test]
fn a_crash_at_any_write_keeps_order_at_the_bound() {
    for crash_at in (0..).step_by(3) {
        let (simulation, crashed) = live(7, crash_at, TIGHT, true);
        simulation.check_order();
        if !crashed {
            break;
        }
    }
}
