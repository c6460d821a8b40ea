//! The container runtime, asked over its CRI socket: which pods run, and in which network namespaces.
//!
//! The chain: the device's peer has a namespace id (`IFLA_LINK_NETNSID`); the runtime tells each sandbox's namespace
//! file; the kernel tells that file's id (`RTM_GETNSID`). Where the file cannot be opened (it is not mounted into the
//! agent's container), `/proc/<pid>/ns/net` serves (with hostPID), else the device's name in the runtime's CNI result.
//!
//! Invariants: each question has a deadline; a sandbox is asked about once (what is needed does not change in its
//! life), the files are looked at anew every time, because a namespace's id is given away again.

mod client;
pub(super) mod proto;
pub(super) mod sandbox;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use tokio::{task::JoinSet, time::Instant};
use tracing::debug;

use super::{
    CriSetting, Pod, Record, Via,
    namespaces::Namespaces,
    source::{Problem, Source, SourceSnapshot},
};
use client::Client;
use proto::{PodSandbox, PodSandboxState};
use sandbox::Network;

/// Where runtimes listen: containerd, k3s' containerd, CRI-O, Docker through cri-dockerd.
const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/run/crio/crio.sock",
    "/var/run/cri-dockerd.sock",
];
/// Sandboxes that are looked at; more than a node's kubelet runs, stopped ones included.
const MAX_SANDBOXES: usize = 8_192;
/// Sandboxes asked about side by side.
const SIDE_BY_SIDE: usize = 16;
/// Longest id, name, uid that is believed.
const MAX_NAME: usize = 253;

/// The container runtime of this node.
#[derive(Debug)]
pub struct Cri {
    /// The socket to use, or none to find one.
    given: Option<PathBuf>,
    client: Option<Client>,
    /// What was told of each sandbox.
    networks: HashMap<String, Network>,
    namespaces: Namespaces,
}

impl Cri {
    /// The runtime at the operator's socket, or at the first usual one that answers; `None` where it is not to be used.
    #[must_use]
    pub fn new(setting: &CriSetting) -> Option<Self> {
        let given = match setting {
            CriSetting::Off => return None,
            CriSetting::Auto => None,
            CriSetting::At(path) => Some(path.clone()),
        };
        Some(Self {
            given,
            client: None,
            networks: HashMap::new(),
            namespaces: Namespaces::default(),
        })
    }

    async fn connect(&self, deadline: Instant) -> Result<Client, Problem> {
        if let Some(path) = &self.given {
            let (client, runtime) = Client::open(path.clone(), deadline).await?;
            debug!("{} is {runtime}", path.display());
            return Ok(client);
        }
        find(SOCKETS.iter().map(PathBuf::from), deadline).await
    }

    /// Asks about the sandboxes that are new; gives how many did not answer in time.
    async fn learn(
        &mut self,
        client: &Client,
        sandboxes: &[PodSandbox],
        deadline: Instant,
    ) -> Result<usize, Problem> {
        let mut unknown: Vec<String> = sandboxes
            .iter()
            .map(|sandbox| sandbox.id.clone())
            .filter(|id| !self.networks.contains_key(id))
            .collect();
        let mut left = unknown.len();
        let mut asked = JoinSet::new();
        loop {
            while asked.len() < SIDE_BY_SIDE
                && let Some(id) = unknown.pop()
            {
                let client = client.clone();
                asked.spawn(async move { (client.info(id.clone(), deadline).await, id) });
            }
            let Some(answer) = asked.join_next().await else {
                return Ok(left);
            };
            let Ok((info, id)) = answer else { continue };
            match info {
                Ok(info) => {
                    // A runtime that says nothing more is not asked again either.
                    let network = info.map_or(Some(Network::default()), |i| Network::parse(&i));
                    if let Some(network) = network {
                        self.networks.insert(id, network);
                        left -= 1;
                    }
                }
                Err(Problem::Silent(_)) => return Ok(left),
                // It went since it was listed.
                Err(Problem::Failing(why)) => debug!("a sandbox is not known any more: {why}"),
                Err(other) => return Err(other),
            }
        }
    }

    pub(super) fn records(&mut self, sandboxes: Vec<PodSandbox>) -> Vec<Record> {
        let mut records = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            let Some(metadata) = sandbox.metadata else {
                continue;
            };
            let network = self.networks.get(&sandbox.id);
            let running = sandbox.state == PodSandboxState::Ready as i32;
            let namespace = network.and_then(|network| {
                let path = network.namespace.as_deref()?;
                self.namespaces.id_at(path).or_else(|| {
                    let pid = network.pid.filter(|_| running)?;
                    self.namespaces
                        .id_at(Path::new(&format!("/proc/{pid}/ns/net")))
                })
            });
            let words = [
                &metadata.namespace,
                &metadata.name,
                &metadata.uid,
                &sandbox.id,
            ];
            if metadata.name.is_empty() || words.iter().any(|word| word.len() > MAX_NAME) {
                continue;
            }
            records.push(Record {
                pod: Pod {
                    uid: Some(metadata.uid).filter(|uid| !uid.is_empty()),
                    container_id: Some(sandbox.id),
                    ..Pod::named(metadata.namespace, metadata.name, Via::Cri)
                },
                namespace,
                devices: network.map(|n| n.devices.clone()).unwrap_or_default(),
                addresses: Vec::new(),
                known_as: None,
                running,
                created: sandbox.created_at,
            });
        }
        records
    }
}

impl Source for Cri {
    const VIA: Via = Via::Cri;

    fn target(&self) -> String {
        match (&self.client, &self.given) {
            (Some(client), _) => client.path().display().to_string(),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "auto".to_owned(),
        }
    }

    async fn records(&mut self, deadline: Instant) -> Result<SourceSnapshot, Problem> {
        let (client, listed) = match self.client.take() {
            // A connection may have gone with the runtime it led to; a new one is tried at once.
            Some(client) => match client.sandboxes(deadline).await {
                Ok(listed) => (client, listed),
                Err(Problem::Silent(why)) => return Err(Problem::Silent(why)),
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
        let waiting = self.learn(&client, &sandboxes, deadline).await?;
        // Another runtime may be the one that runs the pods.
        if self.given.is_some() || !sandboxes.is_empty() {
            self.client = Some(client);
        }
        let mut remark = String::new();
        if omitted > 0 {
            remark = format!("{omitted} pods beyond {MAX_SANDBOXES} were left out");
        } else if waiting > 0 && waiting == sandboxes.len() {
            return Err(Problem::Silent(format!(
                "{} lists pods but does not tell of them in time",
                self.target()
            )));
        }
        Ok(SourceSnapshot {
            records: Cri::records(self, sandboxes),
            remark,
        })
    }
}

impl Cri {
    async fn connect_and_list(
        &self,
        deadline: Instant,
    ) -> Result<(Client, Vec<PodSandbox>), Problem> {
        let client = self.connect(deadline).await?;
        let listed = client.sandboxes(deadline).await?;
        Ok((client, listed))
    }
}

/// The runtime that runs pods among those that answer; else the first that answers; else the trouble with the first
/// socket that is there.
async fn find(
    sockets: impl Iterator<Item = PathBuf>,
    deadline: Instant,
) -> Result<Client, Problem> {
    let (there, missing): (Vec<_>, Vec<_>) = sockets.partition(|path| path.exists());
    if there.is_empty() {
        let looked_at: Vec<_> = missing.iter().map(|p| p.display().to_string()).collect();
        return Err(Problem::Missing(format!(
            "no container runtime's socket: nothing at {}; name one with --cri-endpoint",
            looked_at.join(", ")
        )));
    }
    let mut tried = JoinSet::new();
    for (rank, path) in there.into_iter().enumerate() {
        tried.spawn(async move {
            let outcome = match Client::open(path, deadline).await {
                Ok((client, _)) => client
                    .sandboxes(deadline)
                    .await
                    .map(|sandboxes| (client, !sandboxes.is_empty())),
                Err(problem) => Err(problem),
            };
            (rank, outcome)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = tried.join_next().await {
        outcomes.extend(outcome.ok());
    }
    outcomes.sort_by_key(|(rank, outcome)| {
        let has_pods = outcome.as_ref().map(|(_, has_pods)| *has_pods);
        (outcome.is_err(), !has_pods.unwrap_or_default(), *rank)
    });
    match outcomes.into_iter().next() {
        Some((_, Ok((client, _)))) => Ok(client),
        Some((_, Err(problem))) => Err(problem),
        None => Err(Problem::Failing("looking for a runtime failed".to_owned())),
    }
}
