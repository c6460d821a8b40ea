//! Pairs of pods that take turns to cause conflicts: both pods of a pair announce the same address, and the event that raises
//! the conflict is timed.

use std::{
    cell::Cell,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    Agent, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, ReceivedEvent, event::Conflict,
};

/// How many conflicts each pair may cause with one agent. From four contested addresses on, a pod is reported as a sweep, and the
/// conflicts that are part of it are not sent to webhooks.
pub(super) const CONFLICTS_PER_PAIR: u32 = 3;
/// The largest number of pairs on one node.
const MAX_PAIRS: u32 = 200;

/// One pod of a pair, with a socket inside it.
#[derive(Debug)]
struct PairPod {
    pod: Pod,
    sender: FrameSender,
}

impl PairPod {
    fn announcement(&self, address: Ipv4Addr) -> Vec<u8> {
        Frame::announcement(self.pod.mac(), address).to_bytes()
    }
}

/// The pairs. The kernel program limits new claims per device; with enough pairs the conflicts stay below that limit.
#[derive(Debug)]
pub(super) struct PodPairs {
    pods: Vec<PairPod>,
    /// The address of conflict 0; the following conflicts have the following addresses.
    base: Ipv4Addr,
}

/// A conflict with the times of its cause and its report.
#[derive(Clone, Debug)]
pub(super) struct TimedConflict {
    /// The address.
    pub address: Ipv4Addr,
    /// Just before the second announcement was sent.
    pub sent: Instant,
    /// The event that raised it.
    pub received: ReceivedEvent,
    /// The event's data.
    pub conflict: Conflict,
}

impl TimedConflict {
    /// Microseconds from the second announcement to `at`.
    #[must_use]
    pub(super) fn elapsed_us(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.sent).as_secs_f64() * 1e6
    }

    /// Microseconds from the second announcement until the event line was read.
    #[must_use]
    pub(super) fn frame_to_line_us(&self) -> f64 {
        self.elapsed_us(self.received.at)
    }

    /// Microseconds from the kernel's timestamp to the creation of the event, as reported in the event.
    ///
    /// # Errors
    /// The event contains no latency.
    pub(super) fn kernel_to_event_us(&self) -> Result<f64> {
        self.conflict
            .latency_us
            .context("the raising event contains no latency")
    }
}

impl PodPairs {
    /// Creates pairs of pods on a node; `spec` completes the specification of each. Conflict 0 is about the address `base`.
    ///
    /// # Errors
    /// The number of pairs is out of range, or a pod cannot be created.
    pub(super) fn new(
        node: &Node,
        pairs: u32,
        base: Ipv4Addr,
        spec: impl Fn(PodSpec) -> PodSpec,
    ) -> Result<Self> {
        ensure!(
            (1..=MAX_PAIRS).contains(&pairs),
            "pairs must be between 1 and {MAX_PAIRS}"
        );
        let specs: Vec<_> = (0..pairs * 2)
            .map(|number| spec(PodSpec::new(format!("vethbench{number}"))))
            .collect();
        let pods = node.add_pods(&specs)?.into_iter().map(|pod| {
            let sender = FrameSender::open(&pod)?;
            Ok(PairPod { pod, sender })
        });
        Ok(Self {
            pods: pods.collect::<Result<_>>()?,
            base,
        })
    }

    /// The pods and the address of a conflict.
    fn pair(&self, number: u32) -> Result<(&PairPod, &PairPod, Ipv4Addr)> {
        let pairs = self.pods.len() / 2;
        let (first, second) = self
            .pods
            .chunks_exact(2)
            .nth(number as usize % pairs)
            .and_then(|pair| Some((pair.first()?, pair.get(1)?)))
            .context("there are no pairs")?;
        let address = Ipv4Addr::from(u32::from(self.base).wrapping_add(number));
        Ok((first, second, address))
    }

    /// Sends both announcements of conflict `number` with a pause after each, without waiting for an agent.
    ///
    /// # Errors
    /// A device does not exist any more.
    pub(super) fn announce(&self, number: u32, pause: Duration) -> Result<()> {
        let (first, second, address) = self.pair(number)?;
        for pod in [first, second] {
            pod.sender.send_bytes(&pod.announcement(address))?;
            thread::sleep(pause);
        }
        Ok(())
    }

    /// Sends both announcements of conflict `number` with a pause after each; runs `before` just before the second one, and `wait`
    /// with the address before the second pause. Returns the address, when the second one was sent, and the result of `wait`.
    ///
    /// # Errors
    /// A device does not exist any more, or `wait` fails.
    pub(super) fn cause<T>(
        &self,
        number: u32,
        pause: Duration,
        before: impl FnOnce(),
        wait: impl FnOnce(&str) -> Result<T>,
    ) -> Result<(Ipv4Addr, Instant, T)> {
        let (first, second, address) = self.pair(number)?;
        first.sender.send_bytes(&first.announcement(address))?;
        thread::sleep(pause);
        let announcement = second.announcement(address);
        let subject = address.to_string();
        before();
        let sent = Instant::now();
        second.sender.send_bytes(&announcement)?;
        let received = wait(&subject).with_context(|| format!("conflict {number} on {address}"))?;
        thread::sleep(pause);
        Ok((address, sent, received))
    }

    /// The devices whose announcements complete a conflict.
    pub(super) fn second_devices(&self) -> impl Iterator<Item = &str> {
        self.pods
            .iter()
            .skip(1)
            .step_by(2)
            .map(|pod| pod.pod.device())
    }

    /// Sends both announcements of conflict `number` with a pause after each; waits for the event that raises the conflict before
    /// the second pause.
    ///
    /// # Errors
    /// The agent does not raise the conflict.
    pub(super) fn cause_conflict(
        &self,
        agent: &Agent,
        number: u32,
        pause: Duration,
    ) -> Result<TimedConflict> {
        let event_count = Cell::new(0);
        let (address, sent, received) = self.cause(
            number,
            pause,
            || event_count.set(agent.event_count()),
            |subject| {
                agent.wait_event_after(event_count.get(), DEADLINE, |event| event.raises(subject))
            },
        )?;
        let conflict = received
            .event
            .conflict()
            .context("the raising event contains no conflict")?;
        Ok(TimedConflict {
            address,
            sent,
            received,
            conflict,
        })
    }
}
