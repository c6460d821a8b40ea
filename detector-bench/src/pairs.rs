//! Pairs of pods that come into conflict, one pair after the other: a pod announces an address, its neighbour announces it
//! too, and what the agent says of it is waited for.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use detector_testkit::{
    agent::{Agent, DEADLINE, ReceivedEvent},
    event::Conflict,
    frames::{Frame, FrameSender},
    node::{Node, Pod, PodSpec},
};

/// Most pairs of one node.
const MOST: u32 = 200;

/// A pod, and the socket inside it.
#[derive(Debug)]
struct Side {
    pod: Pod,
    sender: FrameSender,
}

impl Side {
    fn claim(&self, address: Ipv4Addr) -> Vec<u8> {
        Frame::announcement(self.pod.mac(), address).to_bytes()
    }
}

/// The pairs. Each device has a budget of new claims in the kernel; with enough pairs the conflicts stay below it.
#[derive(Debug)]
pub(super) struct Pairs {
    sides: Vec<Side>,
    /// The address of conflict 0; the next conflicts have the next ones.
    base: Ipv4Addr,
}

/// A conflict that was made, and what the agent said.
#[derive(Clone, Debug)]
pub(super) struct Made {
    /// The address.
    pub address: Ipv4Addr,
    /// Just before the second claim was handed to the kernel.
    pub sent: Instant,
    /// The event that raised it.
    pub received: ReceivedEvent,
    /// What that event holds.
    pub conflict: Conflict,
}

impl Made {
    /// From the second claim to `at`, microseconds.
    #[must_use]
    pub(super) fn until(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.sent).as_secs_f64() * 1e6
    }

    /// From the second claim to the event line in the reader's hands, microseconds.
    #[must_use]
    pub(super) fn outside_us(&self) -> f64 {
        self.until(self.received.at)
    }

    /// From the kernel's timestamp to the event, as the agent says it, microseconds.
    ///
    /// # Errors
    /// Where the event does not say it.
    pub(super) fn agent_us(&self) -> Result<f64> {
        self.conflict
            .latency_us
            .context("a raising event holds its latency")
    }
}

impl Pairs {
    /// So many pairs on a node, each pod as `spec` makes it of its bare device; conflict 0 is about `base`.
    ///
    /// # Errors
    /// Where there would be none or too many, or a pod cannot be made.
    pub(super) fn new(
        node: &Node,
        pairs: u32,
        base: Ipv4Addr,
        spec: impl Fn(PodSpec) -> PodSpec,
    ) -> Result<Self> {
        ensure!(
            (1..=MOST).contains(&pairs),
            "pairs must be between 1 and {MOST}"
        );
        let specs: Vec<_> = (0..pairs * 2)
            .map(|number| spec(PodSpec::new(format!("vethbench{number}"))))
            .collect();
        let sides = node.add_pods(&specs)?.into_iter().map(|pod| {
            let sender = FrameSender::open(&pod)?;
            Ok(Side { pod, sender })
        });
        Ok(Self {
            sides: sides.collect::<Result<_>>()?,
            base,
        })
    }

    fn turn(&self, number: u32) -> Result<(&Side, &Side, Ipv4Addr)> {
        let pairs = self.sides.len() / 2;
        let (first, second) = self
            .sides
            .chunks_exact(2)
            .nth(number as usize % pairs)
            .and_then(|pair| Some((pair.first()?, pair.get(1)?)))
            .context("there are no pairs")?;
        let address = Ipv4Addr::from(u32::from(self.base).wrapping_add(number));
        Ok((first, second, address))
    }

    /// Both claims of conflict `number`, with a rest after each, whatever an agent says of them.
    ///
    /// # Errors
    /// Where a device is gone.
    pub(super) fn claim(&self, number: u32, rest: Duration) -> Result<()> {
        let (first, second, address) = self.turn(number)?;
        for side in [first, second] {
            side.sender.send_bytes(&side.claim(address))?;
            thread::sleep(rest);
        }
        Ok(())
    }

    /// The same, and waits for the event that raises the conflict before it rests the second time.
    ///
    /// # Errors
    /// Where the agent does not raise it.
    pub(super) fn conflict(&self, agent: &Agent, number: u32, rest: Duration) -> Result<Made> {
        let (first, second, address) = self.turn(number)?;
        first.sender.send_bytes(&first.claim(address))?;
        thread::sleep(rest);
        let claim = second.claim(address);
        let subject = address.to_string();
        let seen = agent.event_count();
        let sent = Instant::now();
        second.sender.send_bytes(&claim)?;
        let received = agent
            .wait_event_after(seen, DEADLINE, |event| event.raises(&subject))
            .with_context(|| format!("conflict {number} on {address}"))?;
        let conflict = received
            .event
            .conflict()
            .context("a raising event holds a conflict")?;
        thread::sleep(rest);
        Ok(Made {
            address,
            sent,
            received,
            conflict,
        })
    }
}
