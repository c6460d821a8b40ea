//! The task that reads the records of leased addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use detector_engine::Timestamp;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::{Record, Records, Request, View};
use crate::{
    ipam::{
        follower::{OUTAGE, TIMEOUT},
        leases::{Lease, Leases},
        whole_pool::{self, Allocations},
    },
    kube_client::KubeClient,
    process::{
        clock,
        timer::{DoublingDelay, RetryPolicy, sleep_until_some, with_jitter},
        token_bucket::TokenBucket,
    },
};

/// Time between two reads while nothing is in doubt: of the address that was read longest ago.
const RECHECK: Duration = Duration::from_secs(60);
/// Addresses in doubt that are read at once, and the time after which one more is.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_secs(2);
/// Most leases of an address that are looked up.
const MAX_LEASES: usize = 4;
/// Delays after a failed read.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

/// What the records of all leases of an address say together.
pub(super) async fn read(
    kube: &KubeClient,
    records: &dyn Records,
    leases: &[Arc<Lease>],
    address: IpAddr,
) -> Result<Record, String> {
    let mut spaces = leases.iter().map(|lease| records.space(lease));
    let first = spaces.next();
    if spaces.any(|space| Some(space) != first) {
        // Which of the pods that have the address it concerns is not known.
        return Ok(Record::Unknown);
    }
    let read = async {
        let (client, _) = kube.connect().await.map_err(|error| error.to_string())?;
        let (mut allocated, mut is_unknown) = (Allocations::new(), false);
        for lease in leases.iter().take(MAX_LEASES) {
            match records.read(client.clone(), lease, address).await? {
                Record::Allocated(allocation) => {
                    whole_pool::add(&mut allocated, address, allocation);
                }
                Record::Free => {}
                Record::Unknown => is_unknown = true,
            }
        }
        Ok(match (allocated.remove(&address), is_unknown) {
            (Some(allocation), _) => Record::Allocated(allocation),
            (None, true) => Record::Unknown,
            (None, false) => Record::Free,
        })
    };
    let late = |_| Err(format!("no response within {TIMEOUT:?}"));
    timeout(TIMEOUT, read).await.unwrap_or_else(late)
}

/// The task.
pub(super) struct RecordReads<P> {
    kube: KubeClient,
    source: Arc<dyn Records>,
    publish: P,
    leases: Arc<Leases>,
    records: BTreeMap<IpAddr, (Record, Timestamp)>,
    /// Leased addresses whose newest record is wanted.
    in_doubt: BTreeSet<IpAddr>,
    budget: TokenBucket<Instant>,
    recheck_at: Instant,
    failing: Option<(Instant, String)>,
    delay: DoublingDelay,
    retry_at: Instant,
    random: fastrand::Rng,
}

impl<P: Fn(View)> RecordReads<P> {
    pub(super) fn new(kube: KubeClient, source: Arc<dyn Records>, publish: P) -> Self {
        let now = Instant::now();
        Self {
            kube,
            source,
            publish,
            leases: Arc::default(),
            records: BTreeMap::new(),
            in_doubt: BTreeSet::new(),
            budget: TokenBucket::new(BURST, REFILL, now),
            recheck_at: now,
            failing: None,
            delay: DoublingDelay::new(DELAYS),
            retry_at: now,
            random: fastrand::Rng::new(),
        }
    }

    /// Runs until the sender of `requests` is dropped.
    pub(super) async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        loop {
            let due = self.next_due();
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.note(request),
                    None => return,
                },
                () = sleep_until_some(due) => {
                    if let Some(address) = self.next_address() {
                        self.read(address).await;
                        (self.publish)(self.view());
                    }
                }
            }
        }
    }

    fn note(&mut self, request: Request) {
        match request {
            Request::Address(address) => {
                if self.leases.contains_key(&address) {
                    self.in_doubt.insert(address);
                }
            }
            Request::Leases(leases) => {
                self.records
                    .retain(|address, _| leases.contains_key(address));
                self.in_doubt.retain(|address| leases.contains_key(address));
                // Another pod was given the address.
                let is_changed =
                    |address: &&IpAddr| leases.get(*address) != self.leases.get(*address);
                self.in_doubt
                    .extend(self.records.keys().filter(is_changed).copied());
                self.leases = leases;
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let due = match self.in_doubt.is_empty() {
            false => self.budget.next_at(),
            true if self.records.is_empty() => return None,
            true => self.recheck_at,
        };
        Some(due.max(self.retry_at))
    }

    /// The address to read now.
    fn next_address(&mut self) -> Option<IpAddr> {
        let now = Instant::now();
        if let Some(address) = self.in_doubt.first() {
            return self.budget.try_take(now).then_some(*address);
        }
        let oldest = self.records.iter().min_by_key(|(_, (_, at))| *at);
        oldest.map(|(address, _)| *address)
    }

    async fn read(&mut self, address: IpAddr) {
        let Some(leases) = self.leases.get(&address) else {
            return;
        };
        let began_at = clock::now();
        self.recheck_at = Instant::now() + with_jitter(RECHECK, &mut self.random);
        match read(&self.kube, self.source.as_ref(), leases, address).await {
            Ok(record) => {
                self.records.insert(address, (record, began_at));
                self.in_doubt.remove(&address);
                self.failing = None;
                self.delay.reset();
            }
            Err(why) => {
                let now = Instant::now();
                let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
                self.failing = Some((since, why));
                self.in_doubt.insert(address);
                self.retry_at = now + self.delay.advance_with_jitter(&mut self.random);
            }
        }
    }

    fn view(&self) -> View {
        let is_lost = |(since, _): &&(Instant, String)| {
            self.records.is_empty() || *since + OUTAGE <= Instant::now()
        };
        View {
            records: self.records.clone(),
            problem: self
                .failing
                .as_ref()
                .filter(is_lost)
                .map(|(_, why)| why.clone()),
        }
    }
}
