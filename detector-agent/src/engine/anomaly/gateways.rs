//! Pods that ask for an address and get no answer.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use super::{
    super::observation::{IfIndex, Peer, Question, Timestamp, Vlan},
    lifecycle::Key,
    model::AnomalyKind,
};

/// Pods and targets that are followed at once.
const MAX_ASKING: usize = 4096;
/// Without a further question the pod is looked into after so long.
pub(in crate::engine) const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Without a further question it is over after so long. (A pod that has nothing to send does not ask either.)
pub(in crate::engine) const QUIET: Duration = Duration::from_secs(60);

/// A pod to look into: what does it know of its neighbour?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The pod's device.
    pub ifindex: IfIndex,
    /// The device's generation.
    pub generation: u64,
    /// The pod's end of it.
    pub peer: Peer,
    /// The address that the pod asks for.
    pub target: IpAddr,
}

/// What the pod's own tables say of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// It knows the hardware address (`Some(true)`), it asked in vain (`Some(false)`), or it holds no entry.
    pub resolved: Option<bool>,
    /// A route of the pod's leads by it.
    pub is_gateway: bool,
}

/// One pod that asks for one address.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Asking {
    pub(in crate::engine) asker: IpAddr,
    pub(in crate::engine) times: u16,
    pub(in crate::engine) last: Timestamp,
    /// The pod is being looked into.
    pub(in crate::engine) looking: bool,
}

/// All pods that ask.
#[derive(Debug, Default)]
pub(in crate::engine) struct Gateways {
    asking: BTreeMap<Key, Asking>,
}

impl Gateways {
    /// Notes a question; `None` at the bound.
    pub(in crate::engine) fn note(
        &mut self,
        key: Key,
        question: &Question,
        at: Timestamp,
    ) -> Option<&mut Asking> {
        if self.asking.len() >= MAX_ASKING && !self.asking.contains_key(&key) {
            return None;
        }
        let asking = self.asking.entry(key).or_insert(Asking {
            asker: question.asker,
            times: question.times,
            last: at,
            looking: false,
        });
        asking.last = asking.last.max(at);
        asking.times = question.times;
        asking.asker = question.asker;
        Some(asking)
    }

    pub(in crate::engine) fn get_mut(&mut self, key: &Key) -> Option<&mut Asking> {
        self.asking.get_mut(key)
    }

    pub(in crate::engine) fn remove(&mut self, key: &Key) {
        self.asking.remove(key);
    }

    /// Those that ask for one address.
    pub(in crate::engine) fn of(&self, address: IpAddr) -> Vec<(Key, Asking)> {
        let from = Key::of(AnomalyKind::GatewayUnresolved, address);
        self.asking
            .range(from..)
            .take_while(|(key, _)| key.address == address)
            .map(|(key, asking)| (*key, *asking))
            .collect()
    }

    /// All of them.
    pub(in crate::engine) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.asking.keys()
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.asking.is_empty()
    }
}

impl Key {
    /// Of a device that asks for an address.
    pub(in crate::engine) fn asked(
        target: IpAddr,
        ifindex: IfIndex,
        generation: u64,
        vlan: Vlan,
    ) -> Self {
        Self {
            device: Some((ifindex, generation)),
            vlan,
            ..Self::of(AnomalyKind::GatewayUnresolved, target)
        }
    }
}
