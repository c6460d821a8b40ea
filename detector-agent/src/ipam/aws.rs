//! Allocations of the AWS VPC CNI's ipamd: from its checkpoint file, which it always replaces as a whole, or, if that does
//! not exist (old versions), from its introspection port.
//!
//! Every address on a device with the plugin's prefix comes from ipamd, except those of branch interfaces (security
//! groups for pods). These cannot be distinguished by name, so on a node that has some nothing is concluded.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use detector_engine::{Allocation, Ipam, PoolId, Timestamp};
use detector_event::error_chain;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use jiff::Timestamp as WallTime;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

use super::{
    files::{self, FileError},
    is_container_id,
    snapshot_history::SnapshotHistory,
    source::{PoolRead, PoolReader, Source},
    whole_pool::{self, Allocations, Found, MAX_ADDRESSES, WholePool},
};
use crate::process::clock;

/// Longest file and response, in bytes; an address takes some hundred.
pub(crate) const MAX_BYTES: u64 = 8 << 20;
/// Deepest nesting of the response that is searched.
const MAX_DEPTH: usize = 12;
/// Deadline for the response of the introspection port.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The supported version of the file.
const VERSION: &str = "vpc-cni-ipam/1";
/// Name prefix of the devices that ipamd creates for branch interfaces.
const BRANCH_PREFIX: &str = "vlan.eth";

/// The prefix of device names without a configured one.
const DEVICE_PREFIX: &str = "eni";
/// Time between reads: the introspection port has no notifications.
const RECHECK: Duration = Duration::from_secs(5);

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::Aws,
    serves: |plugin, _| plugin == "aws-cni",
    is_found_by_leases: false,
    reader: |id, network, context| {
        let prefix = network.device_prefix.as_deref().unwrap_or(DEVICE_PREFIX);
        let file = context.settings.aws_ipam_file.clone();
        let introspection = context.settings.aws_introspection;
        let names = (network.name.clone(), prefix);
        Box::new(AwsReader::new(id, names, file, introspection))
    },
};

/// Reads ipamd's allocations.
#[derive(Debug)]
pub(super) struct AwsReader {
    pool: WholePool,
    file: PathBuf,
    introspection: SocketAddr,
}

impl PoolReader for AwsReader {
    fn directory(&self) -> Option<&Path> {
        self.file.parent()
    }

    fn recheck(&self) -> Option<Duration> {
        Some(RECHECK)
    }

    fn read(&mut self, _thorough: bool) -> BoxFuture<'_, Option<PoolRead>> {
        Box::pin(async move { Some(self.read_file_or_port().await) })
    }
}

impl AwsReader {
    pub(super) fn new(
        id: PoolId,
        (network, device_prefix): (String, &str),
        file: PathBuf,
        introspection: SocketAddr,
    ) -> Self {
        Self {
            pool: WholePool {
                id,
                ipam: Ipam::Aws,
                network,
                // The plugin's device names have at most four characters before the hash.
                device_prefixes: vec![device_prefix.chars().take(4).collect()],
                can_detect_leaks: true,
                can_detect_deletion: true,
                record_delay: Duration::ZERO,
                history: SnapshotHistory::new(MAX_ADDRESSES),
            },
            file,
            introspection,
        }
    }

    /// Reads the file, or queries the port.
    async fn read_file_or_port(&mut self) -> PoolRead {
        let read_at = clock::now();
        let file = self.file.display();
        let (place, allocated) = match files::read(&self.file, MAX_BYTES) {
            Ok(bytes) => (file.to_string(), parse_file(&bytes)),
            Err(FileError::Missing) => {
                let allocated = introspect(self.introspection)
                    .await
                    .map_err(|reason| format!("{reason} ({file} does not exist)"));
                (format!("http://{}/v1/enis", self.introspection), allocated)
            }
            Err(FileError::Io(error)) => (file.to_string(), Err(error.to_string())),
            Err(error) => (file.to_string(), Err(format!("it {error}"))),
        };
        self.apply(place, allocated, has_branch_interfaces(), read_at)
    }

    /// Applies what was read at `place`, or the reason why nothing was.
    pub(super) fn apply(
        &mut self,
        place: String,
        allocated: Result<Allocations, String>,
        has_branch_interfaces: bool,
        read_at: Timestamp,
    ) -> PoolRead {
        let found = match allocated {
            Ok(allocated) if has_branch_interfaces => {
                let why = "addresses of branch interfaces are missing there";
                Found::InPart(allocated, why.to_owned())
            }
            Ok(allocated) => Found::All(allocated),
            Err(reason) => Found::Failed(reason),
        };
        self.pool.apply(place, found, read_at, None)
    }
}

/// Whether pods of this node use branch interfaces.
fn has_branch_interfaces() -> bool {
    let links = std::fs::read_dir("/sys/class/net");
    links.is_ok_and(|links| {
        links.filter_map(Result::ok).any(|link| {
            link.file_name()
                .to_string_lossy()
                .starts_with(BRANCH_PREFIX)
        })
    })
}

/// An allocation in ipamd's checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwsAllocation {
    pub(crate) address: IpAddr,
    pub(crate) container: Option<String>,
    /// `namespace/name`.
    pub(crate) pod: Option<String>,
    /// When it was made, in nanoseconds since the epoch.
    pub(crate) at: Option<u64>,
}

/// The allocations in ipamd's checkpoint file, by address.
pub(super) fn parse_file(bytes: &[u8]) -> Result<Allocations, String> {
    let mut found = Allocations::new();
    for allocation in parse_allocations(bytes)? {
        let new = allocation_of(allocation.container.as_deref());
        whole_pool::add(&mut found, allocation.address, new);
    }
    Ok(found)
}

/// Every allocation in ipamd's checkpoint file; invalid ones are skipped.
///
/// # Errors
/// Why it is not such a file.
pub(crate) fn parse_allocations(bytes: &[u8]) -> Result<Vec<AwsAllocation>, String> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("not valid JSON: {error}"))?;
    match value.get("version").and_then(Value::as_str) {
        Some(VERSION) => {}
        other => {
            return Err(format!(
                "unsupported version {}, expected {VERSION}",
                other.unwrap_or("(none)")
            ));
        }
    }
    let allocations = value
        .get("allocations")
        .filter(|a| !a.is_null())
        .map(|a| a.as_array().ok_or("`allocations` is not a list"))
        .transpose()?;
    let mut found = Vec::new();
    for allocation in allocations.into_iter().flatten().take(MAX_ADDRESSES) {
        let text = |key| allocation.get(key).and_then(Value::as_str);
        let metadata = |key| allocation.get("metadata")?.get(key)?.as_str();
        let pod = metadata("k8sPodNamespace").zip(metadata("k8sPodName"));
        for address in ["ipv4", "ipv6"].map(text).into_iter().flatten() {
            if let Ok(address) = address.parse() {
                found.push(AwsAllocation {
                    address,
                    container: text("containerID")
                        .filter(|id| is_container_id(id))
                        .map(str::to_owned),
                    pod: pod.map(|(namespace, name)| format!("{namespace}/{name}")),
                    at: allocation
                        .get("allocationTimestamp")
                        .and_then(Value::as_u64),
                });
            }
        }
    }
    Ok(found)
}

fn allocation_of(owner: Option<&str>) -> Allocation {
    Allocation {
        owner: owner.map(Arc::from),
        ..Allocation::default()
    }
}

/// The assigned addresses in a response of the introspection port. Versions differ in nesting and in how they mark an
/// assigned address: by a field `Assigned`, or by the times of the last assignment and its end.
pub(super) fn parse_introspection(bytes: &[u8]) -> Result<Allocations, String> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("not valid JSON: {error}"))?;
    if !value.is_object() {
        return Err("the response is not a JSON object".to_owned());
    }
    let mut found = Allocations::new();
    collect_assigned(&value, &mut found, 0);
    Ok(found)
}

fn collect_assigned(value: &Value, found: &mut Allocations, depth: usize) {
    if depth > MAX_DEPTH || found.len() >= MAX_ADDRESSES {
        return;
    }
    match value {
        Value::Object(fields) => {
            let address = fields.get("Address").and_then(Value::as_str);
            if let Some(address) = address.and_then(|a| a.parse().ok()) {
                if is_assigned(value) {
                    found.insert(address, allocation_of(None));
                }
                return;
            }
            for inner in fields.values() {
                collect_assigned(inner, found, depth + 1);
            }
        }
        Value::Array(items) => {
            for inner in items {
                collect_assigned(inner, found, depth + 1);
            }
        }
        _ => {}
    }
}

fn is_assigned(address: &Value) -> bool {
    if let Some(assigned) = address.get("Assigned").and_then(Value::as_bool) {
        return assigned;
    }
    let time = |key| -> Option<WallTime> {
        let time: WallTime = address.get(key)?.as_str()?.parse().ok()?;
        // Go's zero time is in the year 1.
        (time > WallTime::UNIX_EPOCH).then_some(time)
    };
    match (time("AssignedTime"), time("UnassignedTime")) {
        (Some(assigned), Some(unassigned)) => assigned > unassigned,
        (assigned, _) => assigned.is_some(),
    }
}

/// The assigned addresses, which the introspection port lists without their owners.
///
/// # Errors
/// One sentence.
pub(crate) async fn introspect(port: SocketAddr) -> Result<Allocations, String> {
    let body = timeout(TIMEOUT, fetch(port))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))?;
    parse_introspection(&body)
}

/// The body of `GET /v1/enis`.
async fn fetch(introspection: SocketAddr) -> Result<Bytes, String> {
    let failed = |error: hyper::Error| error_chain::one_line(&error);
    let stream = TcpStream::connect(introspection)
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    tokio::spawn(connection);
    let request = Request::get("/v1/enis")
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(failed)?;
    if response.status() != StatusCode::OK {
        return Err(format!("the port answered {}", response.status()));
    }
    let limit = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    let body = Limited::new(response.into_body(), limit).collect().await;
    Ok(body
        .map_err(|error| error_chain::one_line(&*error))?
        .to_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use detector_engine::Completeness;
    use detector_event::State;

    use super::*;

    fn reader() -> AwsReader {
        let network = ("aws-cni".to_owned(), "eni");
        AwsReader::new(
            PoolId(0),
            network,
            "/x/ipam.json".into(),
            ([127, 0, 0, 1], 1).into(),
        )
    }

    #[test]
    fn file_is_parsed_and_another_version_rejected() {
        let file = br#"{"version":"vpc-cni-ipam/1","allocations":[
            {"networkName":"aws-cni","containerID":"abc","ifName":"eth0","ipv4":"10.0.10.40","allocationTimestamp":1,
             "metadata":{"k8sPodNamespace":"default","k8sPodName":"web-0"}},{"ipv4":"nonsense"},7]}"#;
        let found = parse_file(file).unwrap();
        let addresses: Vec<_> = found.keys().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.10.40"]);
        assert!(parse_file(br#"{"version":"vpc-cni-ipam/2","allocations":[]}"#).is_err());
        for broken in [
            &b"{"[..],
            b"",
            b"[]",
            br#"{"version":"vpc-cni-ipam/1","allocations":7}"#,
        ] {
            assert!(
                parse_file(broken).is_err(),
                "{}",
                String::from_utf8_lossy(broken)
            );
        }
    }

    #[test]
    fn introspection_of_old_and_new_versions_is_parsed() {
        let old = br#"{"TotalIPs":2,"AssignedIPs":1,"ENIIPPools":{"eni-1":{"IPv4Addresses":{
            "10.0.10.1":{"Address":"10.0.10.1","Assigned":true},"10.0.10.2":{"Address":"10.0.10.2","Assigned":false}}}}}"#;
        let new = br#"{"TotalIPs":3,"ENIs":{"eni-1":{"AvailableIPv4Cidrs":{"10.0.10.0/28":{"IPAddresses":{
            "10.0.10.1":{"Address":"10.0.10.1","AssignedTime":"2026-01-02T00:00:00Z","UnassignedTime":"0001-01-01T00:00:00Z"},
            "10.0.10.2":{"Address":"10.0.10.2","AssignedTime":"2026-01-02T00:00:00Z","UnassignedTime":"2026-01-03T00:00:00Z"},
            "10.0.10.3":{"Address":"10.0.10.3","AssignedTime":"0001-01-01T00:00:00Z","UnassignedTime":"0001-01-01T00:00:00Z"}
            }}}}}}"#;
        for response in [&old[..], new] {
            let found = parse_introspection(response).unwrap();
            let addresses: Vec<_> = found.keys().map(ToString::to_string).collect();
            assert_eq!(addresses, ["10.0.10.1"]);
        }
        assert!(parse_introspection(b"<html>").is_err());
    }

    #[test]
    fn failed_read_keeps_the_last_snapshot_as_unknown() {
        let mut reader = reader();
        let found =
            parse_file(br#"{"version":"vpc-cni-ipam/1","allocations":[{"ipv4":"10.0.10.40"}]}"#);
        let first = reader.apply("f".to_owned(), found, false, Timestamp(1));
        assert_eq!(first.pool.completeness, Completeness::Complete);
        let broken = reader.apply("f".to_owned(), parse_file(b"{"), false, Timestamp(2));
        assert_eq!(broken.pool.completeness, Completeness::Unknown);
        assert_eq!(broken.pool.allocated.len(), 1);
        assert!(
            broken.state == State::Failed && broken.summary.contains("not valid JSON"),
            "{}",
            broken.summary
        );
        let branches = reader.apply("f".to_owned(), Ok(Allocations::new()), true, Timestamp(3));
        assert_eq!(branches.pool.completeness, Completeness::Unknown);
    }
}
