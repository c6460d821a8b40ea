//! The container runtime, queried over its CRI socket: which pods there are, and in which network namespaces.
//!
//! How a device leads to its pod: the device's peer has a namespace id (`IFLA_LINK_NETNSID`); the runtime knows the path
//! of each sandbox's namespace; the kernel knows the id of the namespace at that path (`RTM_GETNSID`). If the path cannot
//! be opened (not mounted into the agent's container), `/proc/<pid>/ns/net` is used (with hostPID), else the device's
//! name in the runtime's CNI result.
//!
//! Invariants: each call has a deadline; a sandbox's status is requested once, because it does not change; namespace ids
//! are read again for every snapshot, because the kernel reuses them.

mod client;
mod listing;
pub(super) mod sandbox;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use detector_cri::{PodSandbox, PodSandboxState};
use detector_event::WallTime;
use detector_event::counted;
use detector_event::{Pod, Via};
use tokio::{task::JoinSet, time::Instant};
use tracing::debug;

use super::{
    CriSetting, PodRecord,
    netns::NetnsQueries,
    source::{PodSource, SourceError, SourceSnapshot},
};
use client::CriClient;
pub(crate) use listing::{ListedSandboxes, SandboxList};
use sandbox::SandboxNetwork;

/// Well-known sockets: containerd, containerd of k3s, CRI-O, Docker through cri-dockerd.
const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/run/crio/crio.sock",
    "/var/run/cri-dockerd.sock",
];
/// Most sandboxes in a snapshot; more than a node's kubelet runs, stopped ones included.
const MAX_SANDBOXES: usize = 8_192;
/// Concurrent status requests.
const MAX_CONCURRENT: usize = 16;
/// Longest id, name and uid.
const MAX_NAME: usize = 253;

/// The container runtime of this node.
#[derive(Debug)]
pub struct Cri {
    /// The configured socket; `None`: find one.
    configured: Option<PathBuf>,
    client: Option<CriClient>,
    /// By sandbox id.
    networks: HashMap<String, SandboxNetwork>,
    netns: NetnsQueries,
}

impl Cri {
    /// The runtime at the configured socket, or at a well-known one; `None` if switched off.
    #[must_use]
    pub fn new(setting: &CriSetting) -> Option<Self> {
        let configured = match setting {
            CriSetting::Off => return None,
            CriSetting::Auto => None,
            CriSetting::At(path) => Some(path.clone()),
        };
        Some(Self {
            configured,
            client: None,
            networks: HashMap::new(),
            netns: NetnsQueries::default(),
        })
    }

    async fn connect(&self, deadline: Instant) -> Result<CriClient, SourceError> {
        if let Some(path) = &self.configured {
            let (client, runtime) = CriClient::open(path.clone(), deadline).await?;
            debug!(socket = %path.display(), runtime, "container runtime found");
            return Ok(client);
        }
        find_runtime(SOCKETS.iter().map(PathBuf::from), deadline).await
    }

    /// Requests the status of sandboxes seen for the first time; returns how many are still missing at the deadline.
    async fn read_networks(
        &mut self,
        client: &CriClient,
        sandboxes: &[PodSandbox],
        deadline: Instant,
    ) -> Result<usize, SourceError> {
        let mut unknown: Vec<String> = sandboxes
            .iter()
            .map(|sandbox| sandbox.id.clone())
            .filter(|id| !self.networks.contains_key(id))
            .collect();
        let mut missing = unknown.len();
        let mut requests = JoinSet::new();
        loop {
            while requests.len() < MAX_CONCURRENT
                && let Some(id) = unknown.pop()
            {
                let client = client.clone();
                requests.spawn(async move { (client.status(id.clone(), deadline).await, id) });
            }
            let Some(finished) = requests.join_next().await else {
                return Ok(missing);
            };
            let Ok((status, id)) = finished else {
                continue;
            };
            match status {
                Ok(status) => {
                    if let Some(network) = SandboxNetwork::of(status) {
                        self.networks.insert(id, network);
                        missing -= 1;
                    }
                }
                Err(SourceError::Silent(_)) => return Ok(missing),
                // It was removed after it was listed.
                Err(SourceError::Failing(reason)) => debug!(reason, "pod sandbox disappeared"),
                Err(other) => return Err(other),
            }
        }
    }

    pub(super) fn records(&mut self, sandboxes: Vec<PodSandbox>) -> Vec<PodRecord> {
        let mut records = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            let Some(metadata) = sandbox.metadata else {
                continue;
            };
            let network = self.networks.get(&sandbox.id);
            let running = sandbox.state == PodSandboxState::Ready as i32;
            let namespace = network.and_then(|network| {
                let path = network.namespace.as_deref()?;
                self.netns.id_at(path).or_else(|| {
                    let pid = network.pid.filter(|_| running)?;
                    self.netns.id_at(Path::new(&format!("/proc/{pid}/ns/net")))
                })
            });
            let names = [
                &metadata.namespace,
                &metadata.name,
                &metadata.uid,
                &sandbox.id,
            ];
            if metadata.name.is_empty() || names.iter().any(|name| name.len() > MAX_NAME) {
                continue;
            }
            records.push(PodRecord {
                pod: Pod {
                    uid: Some(metadata.uid).filter(|uid| !uid.is_empty()),
                    container_id: Some(sandbox.id),
                    sandbox_created_at: WallTime::from_unix_nanos(sandbox.created_at),
                    ..Pod::named(metadata.namespace, metadata.name, Via::Cri)
                },
                namespace,
                devices: network.map(|n| n.devices.clone()).unwrap_or_default(),
                network: None,
                addresses: network.map(|n| n.addresses.clone()).unwrap_or_default(),
                secondary_addresses: Vec::new(),
                runtime_uid: None,
                running,
                created: sandbox.created_at,
            });
        }
        records
    }
}

impl PodSource for Cri {
    const VIA: Via = Via::Cri;

    fn target(&self) -> String {
        match (&self.client, &self.configured) {
            (Some(client), _) => client.path().display().to_string(),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "auto".to_owned(),
        }
    }

    async fn snapshot(&mut self, deadline: Instant) -> Result<SourceSnapshot, SourceError> {
        let (client, listed) = match self.client.take() {
            // The runtime may have restarted: connect again at once.
            Some(client) => match client.sandboxes(deadline).await {
                Ok(listed) => (client, listed),
                Err(error @ SourceError::Silent(_)) => return Err(error),
                Err(_) => self.connect_and_list(deadline).await?,
            },
            None => self.connect_and_list(deadline).await?,
        };
        let mut sandboxes = listed;
        let omitted = sandboxes.len().saturating_sub(MAX_SANDBOXES);
        sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
        sandboxes.truncate(MAX_SANDBOXES);
        {
            let ids: HashSet<&str> = sandboxes.iter().map(|s| s.id.as_str()).collect();
            self.networks.retain(|id, _| ids.contains(id.as_str()));
        }
        let missing = self.read_networks(&client, &sandboxes, deadline).await?;
        // A runtime without pods may be the wrong one: search again next time.
        if self.configured.is_some() || !sandboxes.is_empty() {
            self.client = Some(client);
        }
        let mut warning = String::new();
        if omitted > 0 {
            warning = format!(
                "skipped {} beyond the limit of {MAX_SANDBOXES}",
                counted(omitted, "pod", "pods")
            );
        } else if missing > 0 && missing == sandboxes.len() {
            return Err(SourceError::Silent(format!(
                "{} lists pods but does not answer status requests in time",
                self.target()
            )));
        }
        Ok(SourceSnapshot {
            records: self.records(sandboxes),
            warning,
        })
    }
}

impl Cri {
    async fn connect_and_list(
        &self,
        deadline: Instant,
    ) -> Result<(CriClient, Vec<PodSandbox>), SourceError> {
        let client = self.connect(deadline).await?;
        let listed = client.sandboxes(deadline).await?;
        Ok((client, listed))
    }
}

/// The first runtime that answers and has pods; else the first that answers; else the error of the first socket that
/// exists.
async fn find_runtime(
    sockets: impl Iterator<Item = PathBuf>,
    deadline: Instant,
) -> Result<CriClient, SourceError> {
    let (existing, missing): (Vec<_>, Vec<_>) = sockets.partition(|path| path.exists());
    if existing.is_empty() {
        let tried: Vec<_> = missing.iter().map(|p| p.display().to_string()).collect();
        return Err(SourceError::Missing(format!(
            "no container runtime socket found (tried {}); set --cri-endpoint",
            tried.join(", ")
        )));
    }
    let mut attempts = JoinSet::new();
    for (rank, path) in existing.into_iter().enumerate() {
        attempts.spawn(async move {
            let outcome = match CriClient::open(path, deadline).await {
                Ok((client, _)) => client
                    .sandboxes(deadline)
                    .await
                    .map(|sandboxes| (client, !sandboxes.is_empty())),
                Err(error) => Err(error),
            };
            (rank, outcome)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = attempts.join_next().await {
        outcomes.extend(outcome.ok());
    }
    outcomes.sort_by_key(|(rank, outcome)| {
        let has_pods = outcome.as_ref().map(|(_, has_pods)| *has_pods);
        (outcome.is_err(), !has_pods.unwrap_or_default(), *rank)
    });
    match outcomes.into_iter().next() {
        Some((_, Ok((client, _)))) => Ok(client),
        Some((_, Err(error))) => Err(error),
        None => Err(SourceError::Failing(
            "searching for a container runtime failed".to_owned(),
        )),
    }
}
