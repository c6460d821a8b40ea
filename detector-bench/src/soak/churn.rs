//! Creates and deletes pods, some with the address of another pod.

use std::{
    collections::{HashMap, VecDeque},
    net::Ipv4Addr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use detector_testkit::{Node, Pod, PodSpec, event::Conflict, random::Random};

/// Pods created and deleted at once.
const BATCH: u64 = 5;
/// One of this many pods gets the address of another pod.
const DUPLICATE_ONE_IN: u64 = 10;

/// State shared by all churn threads.
#[derive(Debug, Default)]
pub(super) struct ChurnState {
    /// Tells the threads to return.
    pub(super) stop: AtomicBool,
    pub(super) created: AtomicU64,
    pub(super) deleted: AtomicU64,
    /// Pods created with the address of another pod.
    pub(super) duplicates: AtomicU64,
    /// Every pod so far, by device.
    lives: Mutex<HashMap<String, PodLife>>,
}

/// When a pod had its address at most.
#[derive(Clone, Copy, Debug)]
struct PodLife {
    address: Ipv4Addr,
    /// Before its creation began.
    from: Instant,
    /// After it was deleted.
    until: Option<Instant>,
}

impl ChurnState {
    /// Checks that a raised conflict is true: every claimant is a pod that was given the address, and two of them had it at the same
    /// time.
    ///
    /// # Errors
    /// It is false; the error contains the claimant.
    pub(super) fn check_raised(&self, conflict: &Conflict) -> Result<()> {
        let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let mut claimants = Vec::new();
        for claimant in &conflict.claimants {
            let life = lives.get(&claimant.device).copied();
            let had = life.filter(|life| life.address.to_string() == conflict.address);
            ensure!(
                had.is_some(),
                "{} never had {} ({life:?}): {conflict:#?}",
                claimant.device,
                conflict.address
            );
            claimants.extend(had);
        }
        let overlap = |a: &PodLife, b: &PodLife| {
            a.until.is_none_or(|until| b.from <= until)
                && b.until.is_none_or(|until| a.from <= until)
        };
        let mut pairs = claimants
            .iter()
            .enumerate()
            .flat_map(|(n, a)| claimants[n + 1..].iter().map(move |b| (a, b)));
        ensure!(
            pairs.any(|(a, b)| overlap(a, b)),
            "no two claimants had {} at the same time: {conflict:#?}",
            conflict.address
        );
        Ok(())
    }

    fn begin(&self, device: &str, address: Ipv4Addr) {
        let life = PodLife {
            address,
            from: Instant::now(),
            until: None,
        };
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.insert(device.to_owned(), life);
    }

    fn end(&self, device: &str) {
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(life) = lives.get_mut(device) {
            life.until = Some(Instant::now());
        }
    }
}

/// The churn of one thread.
#[derive(Debug)]
pub(super) struct Churn<'a> {
    node: &'a Node,
    state: &'a ChurnState,
    random: Random,
    /// The number of the thread, part of device names and addresses.
    thread: u8,
    live: VecDeque<(Pod, Ipv4Addr)>,
    /// Live pods at once.
    population: usize,
    next: u64,
}

impl<'a> Churn<'a> {
    pub(super) fn new(
        node: &'a Node,
        state: &'a ChurnState,
        seed: u64,
        thread: u8,
        population: usize,
    ) -> Self {
        Self {
            node,
            state,
            random: Random(seed ^ (u64::from(thread) << 56)),
            thread,
            live: VecDeque::new(),
            population,
            next: 0,
        }
    }

    /// Creates and deletes `rate` pods per second, or as many as the machine can, until `stop` is set. Returns the live pods.
    pub(super) fn run(mut self, rate: f64) -> Result<Vec<Pod>> {
        let each = Duration::from_secs_f64(BATCH as f64 / rate);
        let mut due = Instant::now();
        while !self.state.stop.load(Ordering::Acquire) {
            self.step()?;
            due += each;
            let now = Instant::now();
            match due.checked_duration_since(now) {
                Some(left) => thread::sleep(left),
                // Missed batches are not made up for.
                None => due = now,
            }
        }
        Ok(self.live.into_iter().map(|(pod, _)| pod).collect())
    }

    fn step(&mut self) -> Result<()> {
        let mut addresses = Vec::new();
        for _ in 0..BATCH {
            addresses.push(self.address());
        }
        let specs: Vec<_> = addresses
            .iter()
            .zip(self.next..)
            .map(|(address, number)| {
                // Device names repeat after a while, as on a real node.
                let device = format!("veths{}x{}", self.thread, number % 100_000);
                self.state.begin(&device, *address);
                PodSpec::new(device).address(format!("{address}/32"))
            })
            .collect();
        self.next += BATCH;
        let pods = self.node.add_pods(&specs)?;
        self.live.extend(pods.into_iter().zip(addresses));
        self.state.created.fetch_add(BATCH, Ordering::Relaxed);
        let excess = self.live.len().saturating_sub(self.population);
        let removed: Vec<Pod> = self.live.drain(..excess).map(|(pod, _)| pod).collect();
        let count = u64::try_from(removed.len())?;
        let devices: Vec<_> = removed.iter().map(|pod| pod.device().to_owned()).collect();
        self.node.delete_pods(removed)?;
        for device in devices {
            self.state.end(&device);
        }
        self.state.deleted.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// An address of this thread's range; sometimes that of a live pod.
    fn address(&mut self) -> Ipv4Addr {
        if self.random.below(DUPLICATE_ONE_IN) == 0 && !self.live.is_empty() {
            let nth = self.random.below(self.live.len() as u64);
            let other = usize::try_from(nth).ok().and_then(|nth| self.live.get(nth));
            if let Some((_, address)) = other {
                self.state.duplicates.fetch_add(1, Ordering::Relaxed);
                return *address;
            }
        }
        // 10.<64 + thread>.x.y: far more addresses than live pods, so accidental duplicates are rare.
        let [.., high, low] = (self.random.below(65_000) as u32).to_be_bytes();
        Ipv4Addr::new(10, 64 + self.thread, high, low)
    }
}
