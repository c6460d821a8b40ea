//! Pods that come and go, some with an address that a living one has.

use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use detector_testkit::{
    node::{Node, Pod, PodSpec},
    random::Random,
};

/// Pods made and deleted at once.
const BATCH: u64 = 5;
/// Of so many pods one gets an address that another has.
const DUPLICATE_ONE_IN: u64 = 10;

/// What all churning threads share.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// No more pods.
    pub(super) enough: AtomicBool,
    pub(super) made: AtomicU64,
    pub(super) deleted: AtomicU64,
    pub(super) duplicates: AtomicU64,
}

/// One thread's share of the churn.
#[derive(Debug)]
pub(super) struct Churn<'a> {
    node: &'a Node,
    tally: &'a Tally,
    random: Random,
    /// Which thread this is: part of device names and addresses.
    lane: u8,
    living: VecDeque<(Pod, Ipv4Addr)>,
    /// Pods alive at once.
    population: usize,
    next: u64,
}

impl<'a> Churn<'a> {
    pub(super) fn new(
        node: &'a Node,
        tally: &'a Tally,
        seed: u64,
        lane: u8,
        population: usize,
    ) -> Self {
        Self {
            node,
            tally,
            random: Random(seed ^ (u64::from(lane) << 56)),
            lane,
            living: VecDeque::new(),
            population,
            next: 0,
        }
    }

    /// Makes and deletes `rate` pods a second until it is enough; where the machine is too slow, as many as it can. The
    /// pods that live then are given back.
    pub(super) fn run(mut self, rate: f64) -> Result<Vec<Pod>> {
        let each = Duration::from_secs_f64(BATCH as f64 / rate);
        let mut due = Instant::now();
        while !self.tally.enough.load(Ordering::Acquire) {
            self.turn()?;
            due += each;
            let now = Instant::now();
            match due.checked_duration_since(now) {
                Some(left) => thread::sleep(left),
                // What could not be done in time is not made up for.
                None => due = now,
            }
        }
        Ok(self.living.into_iter().map(|(pod, _)| pod).collect())
    }

    fn turn(&mut self) -> Result<()> {
        let mut addresses = Vec::new();
        for _ in 0..BATCH {
            addresses.push(self.address());
        }
        let specs: Vec<_> = addresses
            .iter()
            .zip(self.next..)
            .map(|(address, number)| {
                // Names come again after a while, as those of a real node do.
                let device = format!("veths{}x{}", self.lane, number % 100_000);
                PodSpec::new(device).address(format!("{address}/32"))
            })
            .collect();
        self.next += BATCH;
        let pods = self.node.add_pods(&specs)?;
        self.living.extend(pods.into_iter().zip(addresses));
        self.tally.made.fetch_add(BATCH, Ordering::Relaxed);
        let over = self.living.len().saturating_sub(self.population);
        let going: Vec<Pod> = self.living.drain(..over).map(|(pod, _)| pod).collect();
        let count = u64::try_from(going.len())?;
        self.node.delete_pods(going)?;
        self.tally.deleted.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// An address of this thread's own, or one that a living pod has.
    fn address(&mut self) -> Ipv4Addr {
        if self.random.below(DUPLICATE_ONE_IN) == 0 && !self.living.is_empty() {
            let nth = self.random.below(self.living.len() as u64);
            let held = usize::try_from(nth)
                .ok()
                .and_then(|nth| self.living.get(nth));
            if let Some((_, address)) = held {
                self.tally.duplicates.fetch_add(1, Ordering::Relaxed);
                return *address;
            }
        }
        // 10.<64 + lane>.x.y: far more than live at once, so that these hardly meet.
        let [.., high, low] = (self.random.below(65_000) as u32).to_be_bytes();
        Ipv4Addr::new(10, 64 + self.lane, high, low)
    }
}
