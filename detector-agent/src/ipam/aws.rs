//! The AWS VPC CNI's ipamd: its checkpoint file, which it replaces whole, and where that is absent (old versions) the
//! introspection port, which is asked every now and then.
//!
//! Every address on a device with the plugin's prefix comes from ipamd, except those of branch interfaces (security
//! groups for pods): where the node has some that cannot be told from others by name, nothing is concluded.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp as Wall;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    Read,
    files::{self, FileError},
    kept::Kept,
};
use crate::{
    clock,
    engine::{Allocation, Completeness, Coverage, Ipam, Pool, PoolId, PoolSource, Timestamp},
    health::State,
};

/// Bytes of the file or the answer: some hundred for each address.
const MAX_BYTES: u64 = 8 << 20;
/// Addresses that are taken.
pub(super) const MAX_ADDRESSES: usize = 16_384;
/// Depth of the answer that is looked through.
const MAX_DEPTH: usize = 12;
/// How long the port may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The version of the file that is known.
const VERSION: &str = "vpc-cni-ipam/1";
/// What ipamd's file begins its device names of branch interfaces' VLANs with.
const BRANCH: &str = "vlan.eth";

/// ipamd's books.
#[derive(Debug)]
pub(super) struct Aws {
    id: PoolId,
    network: String,
    prefix: String,
    pub(super) file: PathBuf,
    port: SocketAddr,
    kept: Kept<Allocation>,
}

impl Aws {
    pub(super) fn new(
        id: PoolId,
        (network, prefix): (String, String),
        file: PathBuf,
        port: SocketAddr,
    ) -> Self {
        Self {
            id,
            network,
            prefix,
            file,
            port,
            kept: Kept::new(MAX_ADDRESSES),
        }
    }

    /// The file's directory, to be watched.
    pub(super) fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    /// Reads the file, or asks the port.
    pub(super) async fn read(&mut self) -> Read {
        let read_at = clock::now();
        let (place, found) = match files::read(&self.file, MAX_BYTES) {
            Ok(bytes) => (self.file.display().to_string(), of_file(&bytes)),
            Err(FileError::Missing) => {
                let place = format!("http://{}/v1/enis", self.port);
                let found = timeout(PATIENCE, ask(self.port))
                    .await
                    .unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
                    .and_then(|bytes| of_port(&bytes));
                let missing =
                    |why| format!("{} is not there, and {place}: {why}", self.file.display());
                (place.clone(), found.map_err(missing))
            }
            Err(why) => (self.file.display().to_string(), Err(why.to_string())),
        };
        self.take(place, found, has_branches(), read_at)
    }

    pub(super) fn take(
        &mut self,
        place: String,
        found: Result<BTreeMap<IpAddr, Allocation>, String>,
        branches: bool,
        read_at: Timestamp,
    ) -> Read {
        let (found, books, state, told) = match found {
            Ok(found) if branches => {
                let told = format!(
                    "{} addresses assigned by {place}; branch interfaces are in use, whose addresses it does not hold: drift is not judged",
                    found.len()
                );
                (Some(found), Completeness::Unknown, State::Failed, told)
            }
            Ok(found) => {
                let told = format!("{} addresses assigned by {place}", found.len());
                let books = if self.kept.is_losing(&found, read_at) {
                    Completeness::Deleted
                } else {
                    Completeness::Complete
                };
                (Some(found), books, State::Works, told)
            }
            Err(why) => {
                let told = format!("{why}; drift is not judged");
                (None, Completeness::Unknown, State::Failed, told)
            }
        };
        let touched = self.kept.replace(found, books, &place);
        let pool = Pool {
            id: self.id,
            source: Arc::new(PoolSource {
                ipam: Ipam::Aws,
                network: self.network.clone(),
                place,
            }),
            coverage: Coverage {
                ranges: Vec::new(),
                device_prefixes: vec![self.prefix.clone()],
                previously_allocated: self.kept.formerly.clone(),
            },
            completeness: books,
            allocated: self.kept.held.clone(),
            can_detect_leaks: books == Completeness::Complete,
            read_at,
        };
        Read {
            pool: Arc::new(pool),
            touched,
            state,
            told,
        }
    }
}

/// Whether branch interfaces carry pods of this node.
fn has_branches() -> bool {
    let links = std::fs::read_dir("/sys/class/net");
    links.is_ok_and(|links| {
        links
            .filter_map(Result::ok)
            .any(|link| link.file_name().to_string_lossy().starts_with(BRANCH))
    })
}

/// The file's allocations.
pub(super) fn of_file(bytes: &[u8]) -> Result<BTreeMap<IpAddr, Allocation>, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("ipamd's file is no JSON: {error}"))?;
    match value.get("version").and_then(Value::as_str) {
        Some(VERSION) => {}
        other => {
            return Err(format!(
                "ipamd's file is of version {}, not {VERSION}",
                other.unwrap_or("none")
            ));
        }
    }
    let allocations = value
        .get("allocations")
        .filter(|a| !a.is_null())
        .map(|a| {
            a.as_array()
                .ok_or("ipamd's file has no list of allocations")
        })
        .transpose()?;
    let mut found = BTreeMap::new();
    for allocation in allocations.into_iter().flatten().take(MAX_ADDRESSES) {
        let text = |key| allocation.get(key).and_then(Value::as_str);
        for key in ["ipv4", "ipv6"] {
            if let Some(address) = text(key).and_then(|a| a.parse().ok()) {
                let owner = text("containerID").filter(|id| is_id(id));
                found.insert(address, allocation_of(owner));
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

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 128 && id.chars().all(|c| c.is_ascii_graphic())
}

/// The assigned addresses in the port's answer. Versions differ in how deep they stand and how they say it: a field
/// `Assigned`, or the times of the last assignment and its end.
pub(super) fn of_port(bytes: &[u8]) -> Result<BTreeMap<IpAddr, Allocation>, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("the port's answer is no JSON: {error}"))?;
    if !value.is_object() {
        return Err("the port's answer is no object".to_owned());
    }
    let mut found = BTreeMap::new();
    collect(&value, &mut found, 0);
    Ok(found)
}

fn collect(value: &Value, found: &mut BTreeMap<IpAddr, Allocation>, depth: usize) {
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
                collect(inner, found, depth + 1);
            }
        }
        Value::Array(items) => {
            for inner in items {
                collect(inner, found, depth + 1);
            }
        }
        _ => {}
    }
}

fn is_assigned(address: &Value) -> bool {
    if let Some(assigned) = address.get("Assigned").and_then(Value::as_bool) {
        return assigned;
    }
    let time = |key| -> Option<Wall> {
        let time: Wall = address.get(key)?.as_str()?.parse().ok()?;
        // Go's zero time stands in year 1.
        (time > Wall::UNIX_EPOCH).then_some(time)
    };
    match (time("AssignedTime"), time("UnassignedTime")) {
        (Some(assigned), Some(ended)) => assigned > ended,
        (assigned, _) => assigned.is_some(),
    }
}

/// HTTP/1.0: the answer ends with the connection.
async fn ask(port: SocketAddr) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(port).await.map_err(failed)?;
    let request = b"GET /v1/enis HTTP/1.0\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.map_err(failed)?;
    let mut answer = Vec::new();
    let mut limited = stream.take(MAX_BYTES + 1);
    limited.read_to_end(&mut answer).await.map_err(failed)?;
    if answer.len() as u64 > MAX_BYTES {
        return Err(format!("the answer is larger than {MAX_BYTES} bytes"));
    }
    body(answer)
}

/// What an HTTP answer holds, where it says that all is well.
pub(super) fn body(mut answer: Vec<u8>) -> Result<Vec<u8>, String> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let Some(end) = end else {
        return Err("the answer is no HTTP".to_owned());
    };
    let status = answer.split(|b| *b == b' ').nth(1).unwrap_or_default();
    if status != b"200" {
        return Err(format!(
            "the port answered {}",
            String::from_utf8_lossy(status)
        ));
    }
    Ok(answer.split_off(end + 4))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    fn aws() -> Aws {
        let network = ("aws-cni".to_owned(), "eni".to_owned());
        Aws::new(
            PoolId(0),
            network,
            "/x/ipam.json".into(),
            ([127, 0, 0, 1], 1).into(),
        )
    }

    #[test]
    fn the_files_allocations_are_read_and_another_version_is_refused() {
        let file = br#"{"version":"vpc-cni-ipam/1","allocations":[
            {"networkName":"aws-cni","containerID":"abc","ifName":"eth0","ipv4":"10.0.10.40","allocationTimestamp":1,
             "metadata":{"k8sPodNamespace":"default","k8sPodName":"web-0"}},{"ipv4":"nonsense"},7]}"#;
        let found = of_file(file).unwrap();
        let addresses: Vec<_> = found.keys().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.10.40"]);
        assert!(of_file(br#"{"version":"vpc-cni-ipam/2","allocations":[]}"#).is_err());
        for broken in [
            &b"{"[..],
            b"",
            b"[]",
            br#"{"version":"vpc-cni-ipam/1","allocations":7}"#,
        ] {
            assert!(
                of_file(broken).is_err(),
                "{}",
                String::from_utf8_lossy(broken)
            );
        }
    }

    #[test]
    fn the_port_is_read_in_the_form_of_old_and_of_new_versions() {
        let old = br#"{"TotalIPs":2,"AssignedIPs":1,"ENIIPPools":{"eni-1":{"IPv4Addresses":{
            "10.0.10.1":{"Address":"10.0.10.1","Assigned":true},"10.0.10.2":{"Address":"10.0.10.2","Assigned":false}}}}}"#;
        let new = br#"{"TotalIPs":3,"ENIs":{"eni-1":{"AvailableIPv4Cidrs":{"10.0.10.0/28":{"IPAddresses":{
            "10.0.10.1":{"Address":"10.0.10.1","AssignedTime":"2026-01-02T00:00:00Z","UnassignedTime":"0001-01-01T00:00:00Z"},
            "10.0.10.2":{"Address":"10.0.10.2","AssignedTime":"2026-01-02T00:00:00Z","UnassignedTime":"2026-01-03T00:00:00Z"},
            "10.0.10.3":{"Address":"10.0.10.3","AssignedTime":"0001-01-01T00:00:00Z","UnassignedTime":"0001-01-01T00:00:00Z"}
            }}}}}}"#;
        for answer in [&old[..], new] {
            let found = of_port(answer).unwrap();
            let addresses: Vec<_> = found.keys().map(ToString::to_string).collect();
            assert_eq!(addresses, ["10.0.10.1"]);
        }
        assert!(of_port(b"<html>").is_err());
    }

    #[test]
    fn unreadable_books_conclude_nothing_and_keep_what_was_read() {
        let mut aws = aws();
        let found =
            of_file(br#"{"version":"vpc-cni-ipam/1","allocations":[{"ipv4":"10.0.10.40"}]}"#);
        let first = aws.take("f".to_owned(), found, false, Timestamp(1));
        assert_eq!(first.pool.completeness, Completeness::Complete);
        let broken = aws.take("f".to_owned(), of_file(b"{"), false, Timestamp(2));
        assert_eq!(broken.pool.completeness, Completeness::Unknown);
        assert_eq!(broken.pool.allocated.len(), 1);
        assert!(
            broken.state == State::Failed && broken.told.contains("no JSON"),
            "{}",
            broken.told
        );
        let branches = aws.take("f".to_owned(), Ok(BTreeMap::new()), true, Timestamp(3));
        assert_eq!(branches.pool.completeness, Completeness::Unknown);
    }
}
