//! Allocations that IPAM keeps in objects of the Kubernetes API that no label and no field restricts to a node. Each is read by its
//! name, which follows from a lease of the node.
//!
//! Invariants: an address is read only once a pod has it on a device that the agent tracks; what a pod can cause is bounded, because
//! only leases name objects; a quiet node reads one address a minute. An address whose record says nothing is not judged.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use ::kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use detector_engine::{Allocation, ChangedAddresses, Ipam, PoolId, PoolPart, Timestamp};
use futures_util::future::BoxFuture;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::{
    PoolRead,
    cni_config::Network,
    follower::Follower,
    leases::{Lease, Leases, ResultCache},
    snapshot_history::SnapshotHistory,
    source::{Context, PoolReader},
    whole_pool::{self, Allocations, Found, WholePool},
};
use crate::{
    kube_client::{KubeClient, NOT_USED},
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
/// Deadline for the record of an address.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A server that is away for less than this changes nothing.
const OUTAGE: Duration = Duration::from_secs(60);
/// Delays after a failed read.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

/// What IPAM has recorded about an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Allocated(Allocation),
    /// It has recorded that the address is free.
    Free,
    /// That is not known.
    Unknown,
}

impl Record {
    /// The address belongs to this pod (`namespace/name`).
    pub(super) fn of_pod(name: &str) -> Self {
        Self::Allocated(Allocation {
            owner: (!name.is_empty()).then(|| name.into()),
            ..Allocation::default()
        })
    }
}

/// How an IPAM records addresses.
pub(super) trait Records: Debug + Send + Sync {
    /// The objects in which the owners of addresses are.
    fn place(&self) -> String;

    /// The name of the address space of a lease: another one may have the same address for another pod.
    fn space<'l>(&self, _lease: &'l Lease) -> &'l str {
        ""
    }

    /// The record of an address that a pod was given with this lease, or why it cannot be read.
    fn read<'r>(
        &'r self,
        client: Client,
        lease: &'r Lease,
        address: IpAddr,
    ) -> BoxFuture<'r, Result<Record, String>>;
}

/// An object by its name; `None` if it, or its resource, does not exist.
///
/// # Errors
/// One sentence.
pub(super) async fn get(
    client: Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<DynamicObject>, String> {
    let api = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    api.get_opt(name).await.map_err(|error| {
        let resource = format!("{}.{}", resource.plural, resource.group);
        format!("{resource}: {error}")
    })
}

/// Reads the records of this node's leases.
#[derive(Debug)]
pub(super) struct LeasesReader {
    pool: WholePool,
    kube: Option<KubeClient>,
    results: Option<ResultCache>,
    records: Arc<dyn Records>,
    watch: Option<Follower<View, Request>>,
    /// Those that the task has.
    watched: Arc<Leases>,
    /// The addresses that were judged last.
    judged: BTreeSet<IpAddr>,
}

#[derive(Debug)]
enum Request {
    /// These are the leases from now on.
    Leases(Arc<Leases>),
    /// The newest record of this address is wanted.
    Address(IpAddr),
}

/// The records as last read.
#[derive(Clone, Debug, Default)]
struct View {
    /// Each with the time when its read began.
    records: BTreeMap<IpAddr, (Record, Timestamp)>,
    problem: Option<String>,
}

impl LeasesReader {
    pub(super) fn new(
        id: PoolId,
        ipam: Ipam,
        network: &Network,
        context: &Context<'_>,
        records: Arc<dyn Records>,
    ) -> Self {
        Self {
            pool: WholePool {
                id,
                ipam,
                network: network.name.clone(),
                // The leases show which addresses are its own.
                device_prefixes: Vec::new(),
                // Only addresses that pods have are read.
                can_detect_leaks: false,
                can_detect_deletion: false,
                record_delay: Duration::ZERO,
                history: SnapshotHistory::new(0),
            },
            kube: context.kube.cloned(),
            results: context.results.map(ResultCache::new),
            records,
            watch: None,
            watched: Arc::default(),
            judged: BTreeSet::new(),
        }
    }

    fn leases(&mut self) -> Result<Arc<Leases>, String> {
        let Some(results) = &mut self.results else {
            return Err("--cni-cache-dir is off".to_owned());
        };
        let directory = results.directory.display().to_string();
        let read = results.refresh();
        read.map_err(|why| format!("the leases in {directory}: {why}"))?;
        Ok(Arc::new(results.of(self.pool.ipam)))
    }

    /// The records of all leases.
    async fn read_all(&self, kube: &KubeClient, leases: &Leases) -> View {
        let mut view = View::default();
        for (address, leases) in leases {
            let began_at = clock::now();
            match read(kube, self.records.as_ref(), leases, *address).await {
                Ok(record) => drop(view.records.insert(*address, (record, began_at))),
                Err(why) => {
                    view.problem = Some(why);
                    break;
                }
            }
        }
        view
    }

    fn apply(&mut self, leases: &Leases, view: View, read_at: Timestamp) -> PoolRead {
        let (mut allocated, mut parts, mut unknown) = (Allocations::new(), vec![], vec![]);
        let records = view.records.into_iter();
        for (address, (record, at)) in records.filter(|(a, _)| leases.contains_key(a)) {
            match record {
                Record::Unknown => {
                    unknown.push(address);
                    continue;
                }
                Record::Free => {}
                Record::Allocated(allocation) => drop(allocated.insert(address, allocation)),
            }
            parts.push(PoolPart {
                range: address..=address,
                confirmed_at: Some(at),
            });
        }
        let judged: BTreeSet<_> = parts.iter().map(|part| *part.range.start()).collect();
        let found = match view.problem {
            Some(problem) => Found::Failed(problem),
            None => Found::All(allocated),
        };
        let place = self.records.place();
        let mut read = self.pool.apply(place, found, read_at, Some(parts));
        let pool = Arc::make_mut(&mut read.pool);
        let leased = leases.keys().filter(|address| !unknown.contains(address));
        pool.coverage.previously_allocated = leased.copied().collect();
        if judged != self.judged {
            // An address that was not judged may be now.
            read.changed = ChangedAddresses::All;
            self.judged = judged;
        }
        read
    }
}

impl PoolReader for LeasesReader {
    fn directory(&self) -> Option<&Path> {
        self.results.as_ref().map(|cache| cache.directory.as_path())
    }

    /// The task ends when the reader is dropped.
    fn follow(&mut self, changed: mpsc::UnboundedSender<PoolId>) {
        let Some(kube) = &self.kube else {
            return;
        };
        let (kube, records) = (kube.clone(), Arc::clone(&self.records));
        self.watch = Some(Follower::start(
            self.pool.id,
            changed,
            |publish, requests| RecordReads::new(kube, records, publish).run(requests),
        ));
    }

    fn request(&self, address: IpAddr) -> bool {
        if let Some(watch) = &self.watch {
            watch.request(Request::Address(address));
        }
        true
    }

    /// The leases as they are now, with the records that were read, or without a task with those that are read now.
    fn read(&mut self, _thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move {
            let read_at = clock::now();
            let leases = self.leases();
            let view = match (&leases, &self.watch, &self.kube) {
                (Err(why), ..) => View {
                    problem: Some(why.clone()),
                    ..View::default()
                },
                (Ok(leases), Some(watch), _) => {
                    if self.watched != *leases {
                        self.watched = Arc::clone(leases);
                        watch.request(Request::Leases(Arc::clone(leases)));
                    }
                    watch.view()
                }
                (Ok(leases), None, Some(kube)) => self.read_all(kube, leases).await,
                (Ok(_), None, None) => View {
                    problem: Some(NOT_USED.to_owned()),
                    ..View::default()
                },
            };
            Some(self.apply(&leases.unwrap_or_default(), view, read_at))
        })
    }
}

/// What the records of all leases of an address say together.
async fn read(
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

/// The task that reads records.
struct RecordReads<P> {
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
    fn new(kube: KubeClient, source: Arc<dyn Records>, publish: P) -> Self {
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
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
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
