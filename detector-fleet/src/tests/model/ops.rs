//! What happens in a sequence.

use proptest::prelude::*;

pub(super) const NODES: usize = 4;
pub(super) const SUBJECTS: usize = 2;

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A pod on the node gets the address.
    Set {
        node: usize,
        subject: usize,
        pod: u8,
        lookup: bool,
    },
    Clear {
        node: usize,
        subject: usize,
    },
    /// Its deletion begins.
    Terminate {
        node: usize,
        subject: usize,
    },
    /// The agent of one of the nodes that show a conflict learns its cause.
    Explain {
        node: usize,
        subject: usize,
        is_proven: bool,
    },
    /// The agent is killed.
    Crash {
        node: usize,
    },
    Start {
        node: usize,
        journal: bool,
    },
    /// An agent that was started learns what its node has.
    Feed {
        node: usize,
    },
    /// The machine restarts; its pods are gone.
    Reboot {
        node: usize,
        journal: bool,
    },
    /// The machine is gone for good, and its Node deleted.
    Remove {
        node: usize,
    },
    /// The Node is deleted and made again while the machine runs.
    Recreate {
        node: usize,
    },
    /// The agent cannot reach the server.
    Cut {
        node: usize,
        cut: bool,
    },
    /// The watch repeats its last events.
    Resume {
        node: usize,
    },
    Ready {
        node: usize,
        ready: bool,
    },
    /// So many requests of ten fail.
    Faults {
        of_ten: u8,
    },
    /// Objects are deleted by hand.
    DeleteClaim {
        subject: usize,
    },
    DeleteConflict {
        subject: usize,
    },
    /// A resolved conflict has been kept for long enough.
    Expire {
        subject: usize,
    },
    /// There is room for further resolved conflicts of the node, or is not.
    Room {
        node: usize,
        has_room: bool,
    },
    /// So many steps of anything that is under way.
    Steps {
        count: u16,
    },
    /// Everything under way happens, and then time passes.
    Wait {
        ms: u32,
    },
}

/// The operations, and a seed for what is under way.
pub(super) fn sequences() -> impl Strategy<Value = (u64, Vec<Op>)> {
    (any::<u64>(), proptest::collection::vec(op(), 1..30))
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 0..NODES;
    let subject = || 0..SUBJECTS;
    let wait = prop_oneof![0_u32..50, 50_u32..20_000, 20_000_u32..200_000];
    prop_oneof![
        8 => (node(), subject(), 0_u8..3, prop::bool::weighted(0.15))
            .prop_map(|(node, subject, pod, lookup)| Op::Set { node, subject, pod, lookup }),
        4 => (node(), subject()).prop_map(|(node, subject)| Op::Clear { node, subject }),
        1 => (node(), subject()).prop_map(|(node, subject)| Op::Terminate { node, subject }),
        4 => (node(), subject(), any::<bool>())
            .prop_map(|(node, subject, is_proven)| Op::Explain { node, subject, is_proven }),
        2 => node().prop_map(|node| Op::Crash { node }),
        2 => (node(), prop::bool::weighted(0.8)).prop_map(|(node, journal)| Op::Start { node, journal }),
        2 => node().prop_map(|node| Op::Feed { node }),
        1 => (node(), any::<bool>()).prop_map(|(node, journal)| Op::Reboot { node, journal }),
        1 => node().prop_map(|node| Op::Remove { node }),
        1 => node().prop_map(|node| Op::Recreate { node }),
        2 => (node(), any::<bool>()).prop_map(|(node, cut)| Op::Cut { node, cut }),
        1 => node().prop_map(|node| Op::Resume { node }),
        1 => (node(), any::<bool>()).prop_map(|(node, ready)| Op::Ready { node, ready }),
        2 => prop_oneof![Just(0_u8), Just(3), Just(10)].prop_map(|of_ten| Op::Faults { of_ten }),
        1 => subject().prop_map(|subject| Op::DeleteClaim { subject }),
        1 => subject().prop_map(|subject| Op::DeleteConflict { subject }),
        2 => subject().prop_map(|subject| Op::Expire { subject }),
        1 => (node(), any::<bool>()).prop_map(|(node, has_room)| Op::Room { node, has_room }),
        8 => (1_u16..60).prop_map(|count| Op::Steps { count }),
        6 => wait.prop_map(|ms| Op::Wait { ms }),
    ]
}
