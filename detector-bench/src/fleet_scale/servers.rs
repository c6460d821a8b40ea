//! Memory, CPU time and disk of the servers.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use detector_testkit::{
    Cluster,
    cluster::Server,
    process::{cpu_time, resident_kib},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};

use crate::Figure;

/// The servers with their names.
const SERVERS: [(Server, &str); 3] = [
    (Server::ApiServer, "API server"),
    (Server::Etcd, "etcd"),
    (Server::ControllerManager, "controller manager"),
];

/// Resident memory of each server, and the size of the database.
pub(super) fn memory(cluster: &Cluster, group: &str, when: &str) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (server, name) in SERVERS {
        let mib = mib(resident(cluster, server)?);
        figures.push(Figure::new(
            group,
            format!("{name}, resident, {when}"),
            mib,
            "MiB",
        ));
    }
    let file = cluster.database();
    let size = fs::metadata(&file).with_context(|| format!("reading {}", file.display()))?;
    let name = format!("etcd, database file, {when}");
    figures.push(Figure::new(group, name, mib(size.len()), "MiB"));
    Ok(figures)
}

/// Resident memory in bytes.
pub(super) fn resident(cluster: &Cluster, server: Server) -> Result<u64> {
    Ok(resident_kib(process_id(cluster, server)?)? * 1024)
}

/// CPU times so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuTimes {
    servers: [Duration; SERVERS.len()],
    /// Of this process, which acts as all clients.
    clients: Duration,
}

impl CpuTimes {
    pub(super) fn now(cluster: &Cluster) -> Result<Self> {
        let mut servers = [Duration::ZERO; SERVERS.len()];
        for (time, (server, _)) in servers.iter_mut().zip(SERVERS) {
            *time = cpu_time(process_id(cluster, server)?)?;
        }
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let clients = [usage.user_time(), usage.system_time()].map(|time| {
            let micros = u64::try_from(time.num_microseconds()).unwrap_or_default();
            Duration::from_micros(micros)
        });
        Ok(Self {
            servers,
            clients: clients.iter().sum(),
        })
    }

    /// What was used since `before`, in seconds.
    pub(super) fn figures(&self, before: &Self, group: &str, when: &str) -> Vec<Figure> {
        let names = SERVERS.iter().map(|(_, name)| *name);
        let times = self.servers.iter().zip(&before.servers);
        let servers = names.zip(times.map(|(now, before)| now.saturating_sub(*before)));
        let clients = (
            "the simulated clients",
            self.clients.saturating_sub(before.clients),
        );
        servers
            .chain([clients])
            .map(|(name, used)| {
                Figure::new(
                    group,
                    format!("CPU time of {name}, {when}"),
                    used.as_secs_f64(),
                    "s",
                )
            })
            .collect()
    }
}

fn process_id(cluster: &Cluster, server: Server) -> Result<u32> {
    let id = cluster.server_process_id(server);
    id.with_context(|| format!("{server:?} does not run"))
}

#[expect(clippy::cast_precision_loss, reason = "megabytes for a reader")]
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
