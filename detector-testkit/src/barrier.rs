//! Proves without sleeping that an agent reported nothing: the barrier causes conflicts of its own, one through each kernel
//! source; once the agent has reported them, it has processed everything before them.
//!
//! This holds because observations of one source are processed in the kernel's order.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::{
    agent::{Agent, DEADLINE, ReceivedEvent},
    frames::{Frame, FrameSender},
    node::{Node, Pod, PodSpec},
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two pods that claim the same addresses when the barrier is passed. The addresses are from 198.18.0.0/15 (RFC 2544), which
/// tests must not use otherwise.
#[derive(Debug)]
pub struct Barrier {
    first: Pod,
    second: Pod,
}

impl Barrier {
    /// Creates the pods. Called before the agent starts, so that it sees their frames.
    ///
    /// # Errors
    /// As [`Node::add_pods`].
    pub fn prepare(node: &Node) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut pods = node.add_pods(&[
            PodSpec::new(format!("vethmark{number}a")),
            PodSpec::new(format!("vethmark{number}b")),
        ])?;
        let second = pods.pop().context("two pods were requested")?;
        let first = pods.pop().context("two pods were requested")?;
        Ok(Self { first, second })
    }

    /// Causes three conflicts, by neighbour entries, ARP frames and the addresses of two new pods, waits until the agent has
    /// raised each, and returns all other events so far.
    ///
    /// # Errors
    /// The agent does not raise them, or violates the event contract.
    pub fn pass(&self, node: &Node, agent: &Agent) -> Result<Vec<ReceivedEvent>> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = number.to_be_bytes();
        let [neighbour, arp, assigned] =
            [128, 64, 0].map(|third| format!("198.18.{}.{low}", third | (high & 0x3f)));
        for pod in [&self.first, &self.second] {
            node.set_neighbour(neighbour.parse()?, pod.device(), pod.mac(), "permanent")?;
        }
        for pod in [&self.first, &self.second] {
            FrameSender::open(pod)?.send(&Frame::announcement(pod.mac(), arp.parse()?))?;
        }
        let pods = node.add_pods(&["c", "d"].map(|letter| {
            PodSpec::new(format!("vethmark{number}{letter}")).address(format!("{assigned}/32"))
        }))?;
        let events = agent.wait_until(DEADLINE, |events| {
            let is_raised =
                |address: &String| events.iter().any(|received| received.event.raises(address));
            [&neighbour, &arp, &assigned].into_iter().all(is_raised)
        })?;
        node.delete_pods(pods)?;
        Ok(without_own_conflicts(events))
    }
}

fn without_own_conflicts(mut events: Vec<ReceivedEvent>) -> Vec<ReceivedEvent> {
    events.retain(|received| !is_own(&received.event.subject));
    events
}

/// Whether an address belongs to a barrier.
pub(crate) fn is_own(address: &str) -> bool {
    address.starts_with("198.18.")
}
