//! Proof that an agent had nothing to say, without sleeping: conflicts of our own are made afterwards, one through each
//! source the agent listens to, and when it names them it has dealt with all that came before.
//!
//! Holds because observations of one source are dealt with in the kernel's order.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::{
    agent::{Agent, DEADLINE, Received},
    frames::{Frame, FrameSender},
    node::{Node, Pod, PodSpec},
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two pods that will claim the same addresses when asked to. Their addresses are of 198.18.0.0/15 (RFC 2544), which
/// tests keep clear of.
#[derive(Debug)]
pub struct Barrier {
    first: Pod,
    second: Pod,
}

impl Barrier {
    /// Makes the pods. Before the agent starts, so that their frames are seen.
    ///
    /// # Errors
    /// As [`Node::add_pods`].
    pub fn prepare(node: &Node) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut pods = node.add_pods(&[
            PodSpec::new(format!("vethmark{number}a")),
            PodSpec::new(format!("vethmark{number}b")),
        ])?;
        let second = pods.pop().context("two pods were asked for")?;
        let first = pods.pop().context("two pods were asked for")?;
        Ok(Self { first, second })
    }

    /// Makes three conflicts of its own, by neighbour entries, ARP frames and the addresses of two new pods, waits for
    /// the agent to name each, and gives all other events that came before the last of them.
    ///
    /// # Errors
    /// Where the agent does not name them, or breaks the event contract.
    pub fn pass(&self, node: &Node, agent: &Agent) -> Result<Vec<Received>> {
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
            let named =
                |address: &String| events.iter().any(|received| received.event.raises(address));
            [&neighbour, &arp, &assigned].into_iter().all(named)
        })?;
        node.delete_pods(pods)?;
        Ok(others(events))
    }
}

/// The events that are not about a barrier's own conflicts.
#[must_use]
pub fn others(mut events: Vec<Received>) -> Vec<Received> {
    events.retain(|received| !is_own(&received.event.subject));
    events
}

/// Whether an address is a barrier's.
pub(crate) fn is_own(address: &str) -> bool {
    address.starts_with("198.18.")
}
