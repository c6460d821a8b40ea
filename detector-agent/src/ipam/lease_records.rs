//! Allocations that IPAM keeps in objects of the Kubernetes API that no label and no field restricts to a node. Each is read by its
//! name, which follows from a lease of the node.
//!
//! Invariants: an address is read only once a pod has it on a device that the agent tracks; what a pod can cause is bounded, because
//! only leases name objects; a quiet node reads one address a minute. An address without a conclusive record is not judged.

mod reads;
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
use tokio::sync::mpsc;

use self::reads::{RecordReads, read};
use super::{
    follower::Follower,
    leases::{Lease, Leases, ResultCache},
    network::Network,
    snapshot_history::SnapshotHistory,
    source::{Context, PoolRead, PoolReader},
    whole_pool::{Allocations, Found, WholePool},
};
use crate::{
    kube_client::{KubeClient, NOT_USED},
    process::clock,
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
    /// The addresses that were covered last, and those of them whose record was read.
    known: [BTreeSet<IpAddr>; 2],
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
            known: Default::default(),
        }
    }

    fn leases(&mut self) -> Result<Arc<Leases>, String> {
        let Some(results) = &mut self.results else {
            return Err("--cni-cache-dir is off".to_owned());
        };
        let directory = results.directory().display().to_string();
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
        let covered: BTreeSet<_> = leased.copied().collect();
        pool.coverage.previously_allocated.clone_from(&covered);
        let known = [covered, judged];
        if known != self.known {
            // The leases follow the addresses, and the records the leases: one that was not judged may be now.
            read.changed = ChangedAddresses::All;
            self.known = known;
        }
        read
    }
}

impl PoolReader for LeasesReader {
    fn directory(&self) -> Option<&Path> {
        self.results.as_ref().map(ResultCache::directory)
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
