//! Datagrams of any content; see [`crate::fuzzing`].

use super::{
    decode::Messages,
    live::{Interpreter, of_pods},
    request::end_of_answer,
    selection::DeviceSelector,
};
use crate::engine::{Engine, Settings, TimedObservation, Timestamp};

/// Reads a datagram as each socket would, and lets an engine make of it what it can.
pub fn datagram(bytes: &[u8]) {
    let mut interpreter = Interpreter::new(DeviceSelector::default());
    let mut engine = Engine::new(Settings::default());
    let mut effects = Vec::new();
    let mut at = Timestamp(1);
    for message in Messages::of(bytes).flatten() {
        let mut observations = Vec::new();
        let _ = interpreter.of_node(message, |what| observations.push(what));
        // The lowest and the highest id that the kernel gives to a namespace.
        for nsid in [0, i32::MAX] {
            let _ = of_pods(message, nsid, |what| observations.push(what));
        }
        let _ = end_of_answer(message);
        for what in observations {
            at.0 += 1;
            engine.step(
                at,
                TimedObservation {
                    at,
                    observation: what,
                },
                &mut effects,
            );
            effects.clear();
        }
    }
    engine.expire(Timestamp(u64::MAX), &mut effects);
}
