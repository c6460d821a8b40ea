//! Datagrams of any content; see [`crate::fuzzing`].

use detector_engine::{Engine, Observation, Settings, TimedObservation, Timestamp};

use super::{
    decode::{link, pod_interface, route},
    listener::{Interpreter, pod_message},
    selection::DeviceSelector,
    wire::RawMessages,
};

/// Parses a datagram as each socket would, and feeds the observations to an engine.
pub fn datagram(bytes: &[u8]) {
    let mut interpreter = Interpreter::new(DeviceSelector::default());
    let mut engine = Engine::new(Settings::default());
    let mut effects = Vec::new();
    let mut at = Timestamp(1);
    for message in RawMessages::of(bytes).flatten() {
        let mut observations = Vec::new();
        let _ = interpreter.node_message(message, |found| observations.push(found));
        // The lowest and the highest id that the kernel gives to a namespace.
        for nsid in [0, i32::MAX] {
            let _ = pod_message(message, nsid, |found| observations.push(found));
        }
        let _ = message.end_of_answer();
        let _ = route::found_route(message.payload);
        let _ = link::forwarding(message.payload);
        let _ = pod_interface::pod_interface(message.payload);
        for observation in observations {
            at.0 += 1;
            engine.step(at, TimedObservation { at, observation }, &mut effects);
            effects.clear();
        }
    }
    engine.step(
        Timestamp(u64::MAX),
        TimedObservation::new(Timestamp(u64::MAX), Observation::DeadlineReached),
        &mut effects,
    );
}
