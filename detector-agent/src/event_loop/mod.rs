//! The event loop's thread: waits for the kernel, steps the engine, reports events. Nothing here blocks.
//!
//! One thread does everything from the ring buffer to the event line, so no hand-over between threads adds latency. In each
//! round the netlink socket is drained before the ring buffer, because the kernel announces a device before its frames. While
//! there are very many notifications, they are read in batches ([`netlink_pace`]).
//!
//! [`Inputs`] are drained straight into [`Core::step`]; effects of a step are applied in [`effects`], snapshots of the kernel's
//! state are requested and merged in [`resync`], routes of addresses in conflict are looked up in [`route_lookups`], and what
//! can wait for a second is in [`tick`]. [`fleet_feed`] feeds the comparison with other nodes at the end of a round.

mod claimed;
mod core;
mod device_budgets;
mod device_jobs;
mod effects;
mod fleet;
mod fleet_feed;
mod message;
mod netlink_pace;
mod poller;
mod query;
mod reporter;
mod resync;
mod route_lookups;
mod self_check;
mod tick;

use std::{io, time::Duration};

use detector_engine::{Observation, TimedObservation};

use crate::{
    observe::{
        ebpf::RingReader,
        netlink::{DrainedSocket, NetlinkListener, Omitted},
        worker::WorkerEvent,
    },
    process::{clock, mailbox::Mailbox},
};
use fleet::FleetConflicts;
use netlink_pace::NetlinkPace;
use poller::Poller;

pub use self::core::{Core, Outputs};
pub use fleet_feed::FleetFeed;
pub use message::{EventLoopHandle, LoopMessage};
pub use query::Query;
pub use reporter::Reporter;
pub use resync::Readiness;

/// Maximum number of datagrams and records taken in one round, so that no source starves another.
const MAX_DATAGRAMS: usize = 256;
const MAX_RECORDS: usize = 4096;
/// Maximum number of datagrams taken before one snapshot is merged: more than a receive buffer holds, unless it is refilled
/// meanwhile.
const MAX_DATAGRAMS_BEFORE_SNAPSHOT: usize = 65_536;

/// The same for the ring buffer, in rounds of [`MAX_RECORDS`].
const MAX_RING_ROUNDS_BEFORE_SNAPSHOT: usize = 16;

/// Everything the event loop receives from.
#[derive(Debug)]
pub struct Inputs {
    /// Notifications of the kernel.
    pub netlink: NetlinkListener,
    /// Records of the kernel programs; `None` with `--no-ebpf`.
    pub ring: Option<RingReader>,
    /// Messages of other threads.
    pub mailbox: Mailbox<LoopMessage>,
}

/// The event loop before and while it runs.
#[derive(Debug)]
pub struct EventLoop {
    inputs: Inputs,
    core: Core,
    netlink_pace: NetlinkPace,
}

impl EventLoop {
    /// An event loop that does not run yet.
    #[must_use]
    pub fn new(inputs: Inputs, core: Core) -> Self {
        Self {
            inputs,
            core,
            netlink_pace: NetlinkPace::new(),
        }
    }

    /// Runs until [`LoopMessage::Stop`], then flushes what can be written without waiting.
    ///
    /// # Errors
    /// If waiting for the kernel, or receiving from it, fails for good.
    pub fn run(mut self) -> io::Result<()> {
        // Before any notification is stepped, because the first snapshot is older than this thread.
        self.core.start_resync_if_due(clock::now());
        let mut poller = Poller::new(&self.inputs)?;
        let mut has_more = false;
        while !self.core.is_stopping() {
            let timeout = if has_more {
                Duration::ZERO
            } else {
                let resume = self.netlink_pace.paused_until();
                poller.watch_netlink(&self.inputs.netlink, resume.is_none())?;
                let deadline = self.core.next_deadline();
                let deadline = resume.map_or(deadline, |at| at.min(deadline));
                deadline.since(clock::now())
            };
            poller.wait(timeout)?;
            has_more = self.round()?;
            if let Some(lines) = self.core.event_lines() {
                poller.watch_lines(lines)?;
            }
        }
        self.core.finish();
        Ok(())
    }

    /// One round over all inputs; `true` if one of them holds more.
    fn round(&mut self) -> io::Result<bool> {
        let mut has_more = false;
        if !self.netlink_pace.is_paused(clock::now()) {
            let drained = self.drain_netlink(MAX_DATAGRAMS)?;
            has_more = drained.more;
            self.netlink_pace.drained(drained, clock::now());
        }
        has_more |= self.drain_ring();
        self.core.deliver();
        self.drain_mailbox()?;
        self.core.run_timers(clock::now());
        Ok(has_more)
    }

    fn drain_netlink(&mut self, max_datagrams: usize) -> io::Result<DrainedSocket> {
        let Self { inputs, core, .. } = self;
        let drained = inputs
            .netlink
            .drain(max_datagrams, |observation| core.step(observation))
            .map_err(io::Error::other)?;
        if drained.overrun {
            core.step(TimedObservation {
                at: clock::now(),
                observation: Observation::NotificationsLost,
            });
            core.count_dropped("netlink_overrun", 1);
            core.request_resync("netlink_overrun");
        }
        if drained.undecodable > 0 {
            core.count_dropped("netlink_undecodable", drained.undecodable);
        }
        Ok(drained)
    }

    fn drain_ring(&mut self) -> bool {
        let Self { inputs, core, .. } = self;
        let Some(ring) = &mut inputs.ring else {
            return false;
        };
        let drained = ring.drain(MAX_RECORDS, |observation| core.step(observation));
        if drained.undecodable > 0 {
            core.count_dropped("ring_undecodable", drained.undecodable);
        }
        drained.more
    }

    fn drain_mailbox(&mut self) -> io::Result<()> {
        self.inputs.mailbox.clear_wakeup();
        while let Ok(message) = self.inputs.mailbox.next() {
            let message = match message {
                LoopMessage::Worker(WorkerEvent::Snapshot(snapshot, omitted)) => {
                    self.catch_up(snapshot, omitted)?
                }
                message => message,
            };
            self.core.handle(message);
        }
        Ok(())
    }

    /// Steps what the kernel reported before the snapshot was complete, as the engine requires: else an address in the
    /// snapshot meets claims whose removal is still queued, or is taken for one of an earlier pod with the same namespace
    /// id. A snapshot for which that cannot be done has failed. Records in the ring buffer only matter for neighbour
    /// entries, whose next update corrects them: a flood of them does not make a snapshot fail.
    fn catch_up(
        &mut self,
        mut snapshot: TimedObservation,
        mut omitted: Omitted,
    ) -> io::Result<LoopMessage> {
        let drained = self.drain_netlink(MAX_DATAGRAMS_BEFORE_SNAPSHOT)?;
        for _ in 0..MAX_RING_ROUNDS_BEFORE_SNAPSHOT {
            if !self.drain_ring() {
                break;
            }
        }
        if (drained.more || drained.overrun)
            && let Observation::Snapshot(token, ..) = snapshot.observation
        {
            snapshot.observation = Observation::SnapshotFailed(token);
            omitted = Omitted::default();
        }
        let event = WorkerEvent::Snapshot(snapshot, omitted);
        Ok(LoopMessage::Worker(event))
    }
}
