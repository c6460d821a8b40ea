//! The CNI result cache: what a container runtime keeps of each plugin's answer (libcni, `cniCacheV1`), a file for each
//! network of each pod, named `<network>-<container id>-<interface>`.
//!
//! Invariants: at most [`MAX_FILES`] files of at most [`MAX_BYTES`] are looked at, none of which is waited for (only
//! regular files are opened); a file is read once and again when it changed; one that cannot be read or is half written
//! costs itself only, and is counted. Reading happens on a thread that may wait for the disk.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::libc;
use serde::Deserialize;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

use super::{
    Pod, Record, Via,
    namespaces::Namespaces,
    source::{Problem, Source, Told},
};

/// Files that are looked at.
const MAX_FILES: usize = 8_192;
/// Bytes of one file: most of it is the plugin's configuration.
const MAX_BYTES: u64 = 256 * 1024;
/// Longest name of a pod or a namespace, uid or container id that is believed.
const MAX_NAME: usize = 253;
/// Devices and interfaces of one result.
const MAX_INTERFACES: usize = 64;

/// The cache in one directory.
#[derive(Debug)]
pub struct CniCache {
    directory: PathBuf,
    /// The reader, between two readings.
    reader: Option<Reader>,
    /// A reading that is under way; it outlives a deadline, and the next question waits for it.
    reading: Option<JoinHandle<(Reader, Result<Told, Problem>)>>,
}

impl CniCache {
    /// The cache in this directory.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            reader: Some(Reader::new(directory.clone())),
            directory,
            reading: None,
        }
    }
}

impl Source for CniCache {
    const VIA: Via = Via::CniCache;

    fn target(&self) -> String {
        self.directory.display().to_string()
    }

    async fn records(&mut self, _: Instant) -> Result<Told, Problem> {
        if self.reading.is_some() {
            // Begun before this question: what it holds may be older than what is asked about.
            self.finish().await.ok();
        }
        let mut reader = self
            .reader
            .take()
            .unwrap_or_else(|| Reader::new(self.directory.clone()));
        self.reading = Some(spawn_blocking(move || {
            let told = reader.read();
            (reader, told)
        }));
        self.finish().await
    }
}

impl CniCache {
    async fn finish(&mut self) -> Result<Told, Problem> {
        let Some(reading) = &mut self.reading else {
            return Ok(Told::default());
        };
        let done = reading.await;
        self.reading = None;
        let (reader, told) = done.map_err(|error| {
            Problem::Failing(format!(
                "reading {} failed: {error}",
                self.directory.display()
            ))
        })?;
        self.reader = Some(reader);
        told
    }
}

/// Reads the directory, remembering what it has read.
#[derive(Debug)]
struct Reader {
    directory: PathBuf,
    namespaces: Namespaces,
    known: HashMap<PathBuf, Known>,
}

/// A file that was read.
#[derive(Debug)]
struct Known {
    /// Inode, size and time of last change: what differs when it was written again.
    version: (u64, u64, i64, i64),
    entry: Result<Entry, Unusable>,
}

/// What one file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pod: Pod,
    pub(super) namespace: Option<PathBuf>,
    pub(super) devices: Vec<String>,
}

/// Why a file names no pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It cannot be read, is half written, or is none of libcni's.
    Broken,
    /// A pod's network without the pod's name: another user of CNI, or a libcni of before 0.8.
    Nameless,
}

impl Reader {
    fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            namespaces: Namespaces::default(),
            known: HashMap::new(),
        }
    }

    fn read(&mut self) -> Result<Told, Problem> {
        let directory = self.directory.display();
        let entries = fs::read_dir(&self.directory).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing(format!("{directory} does not exist")),
            io::ErrorKind::PermissionDenied => {
                Problem::Refused(format!("{directory} may not be read"))
            }
            io::ErrorKind::NotADirectory => {
                Problem::Foreign(format!("{directory} is no directory"))
            }
            _ => Problem::Failing(format!("{directory} cannot be read: {error}")),
        })?;
        let mut before = std::mem::take(&mut self.known);
        let mut omitted = 0_usize;
        for path in entries.flatten().map(|entry| entry.path()) {
            // The link itself, not what it points to: nothing here is a link of a runtime's.
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            if self.known.len() >= MAX_FILES {
                omitted += 1;
                continue;
            }
            let version = (
                metadata.ino(),
                metadata.size(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            );
            let known = match before.remove(&path) {
                Some(known) if known.version == version => known,
                _ => Known {
                    version,
                    entry: entry(&path),
                },
            };
            self.known.insert(path, known);
        }
        let broken = self.count(Unusable::Broken);
        let namespaces = &mut self.namespaces;
        let records = self
            .known
            .values()
            .filter_map(|known| {
                let entry = known.entry.as_ref().ok()?;
                let (_, _, seconds, nanoseconds) = known.version;
                Some(Record {
                    pod: entry.pod.clone(),
                    namespace: entry
                        .namespace
                        .as_deref()
                        .and_then(|path| namespaces.id_at(path)),
                    devices: entry.devices.clone(),
                    running: true,
                    created: seconds
                        .saturating_mul(1_000_000_000)
                        .saturating_add(nanoseconds),
                })
            })
            .collect();
        let mut remarks = Vec::new();
        if broken > 0 {
            remarks.push(format!("{broken} broken files were skipped"));
        }
        if omitted > 0 {
            remarks.push(format!("{omitted} files beyond {MAX_FILES} were left out"));
        }
        Ok(Told {
            records,
            remark: remarks.join(", "),
        })
    }

    fn count(&self, why: Unusable) -> usize {
        self.known
            .values()
            .filter(|known| known.entry.as_ref().err() == Some(&why))
            .count()
    }
}

fn entry(path: &Path) -> Result<Entry, Unusable> {
    let file = open(path).map_err(|_| Unusable::Broken)?;
    let mut text = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut text);
    if read.is_err() || text.len() as u64 > MAX_BYTES {
        return Err(Unusable::Broken);
    }
    parse(&text)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// `cniCacheV1` of libcni, as far as it is needed. Of the `result`'s versions 0.3 to 1.1 have `interfaces`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheFile {
    kind: Option<String>,
    container_id: Option<String>,
    netns: Option<String>,
    cni_args: Option<Vec<(String, String)>>,
    result: Option<CacheResult>,
}

#[derive(Debug, Deserialize)]
struct CacheResult {
    interfaces: Option<Vec<CacheInterface>>,
}

#[derive(Debug, Deserialize)]
struct CacheInterface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

pub(super) fn parse(text: &[u8]) -> Result<Entry, Unusable> {
    let file: CacheFile = serde_json::from_slice(text).map_err(|_| Unusable::Broken)?;
    if file.kind.as_deref() != Some("cniCacheV1") {
        return Err(Unusable::Nameless);
    }
    let args = file.cni_args.unwrap_or_default();
    let arg = |name: &str| {
        args.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
            .filter(|value| is_name(value))
    };
    let (Some(pod_namespace), Some(name)) = (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) else {
        return Err(Unusable::Nameless);
    };
    let container_id = file
        .container_id
        .or_else(|| arg("K8S_POD_INFRA_CONTAINER_ID"));
    let interfaces = file
        .result
        .and_then(|result| result.interfaces)
        .unwrap_or_default();
    // Older versions of libcni keep the namespace's file with the pod's own interface only.
    let sandbox = interfaces.iter().map(|interface| &interface.sandbox);
    let namespace = file.netns.iter().chain(sandbox);
    Ok(Entry {
        pod: Pod {
            namespace: pod_namespace,
            name,
            uid: arg("K8S_POD_UID"),
            container_id: container_id.filter(|id| is_name(id)),
            via: Via::CniCache,
        },
        namespace: namespace
            .filter(|path| path.starts_with('/') && path.len() <= 4096)
            .map(PathBuf::from)
            .next(),
        devices: interfaces
            .into_iter()
            .filter(|interface| interface.sandbox.is_empty())
            .map(|interface| interface.name)
            .filter(|name| (1..=15).contains(&name.len()))
            .take(MAX_INTERFACES)
            .collect(),
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const PTP: &str = include_str!("fixtures/containerd-1.6-ptp.json");
    const LOOPBACK: &str = include_str!("fixtures/containerd-1.6-loopback.json");
    const OLD: &str = include_str!("fixtures/libcni-0.7-result.json");
    const PODMAN: &str = include_str!("fixtures/podman-4.json");

    #[test]
    fn containerds_entry_names_pod_namespace_file_and_host_device() {
        let entry = parse(PTP.as_bytes()).unwrap();
        let pod = &entry.pod;
        assert_eq!((&*pod.namespace, &*pod.name), ("default", "new-1"));
        assert_eq!(pod.uid.as_deref(), Some("uid-new-1"));
        assert_eq!(
            pod.container_id.as_deref(),
            Some("37666bd171fae7a154b9fc4f4f1e362890a99ee08640589643bd69a8c254672d")
        );
        assert_eq!(pod.via, Via::CniCache);
        assert_eq!(entry.devices, ["veth63a506ba"]);
        let file = "/var/run/netns/cni-5fcc2183-6c3d-1ab3-fc21-09b463aafe79";
        assert_eq!(entry.namespace.as_deref(), Some(Path::new(file)));
    }

    #[test]
    fn the_loopback_plugins_entry_has_no_host_device() {
        assert_eq!(parse(LOOPBACK.as_bytes()).unwrap().devices, [""; 0]);
    }

    #[test]
    fn entries_without_a_pod_are_no_damage_and_half_written_ones_are() {
        assert_eq!(parse(OLD.as_bytes()), Err(Unusable::Nameless));
        assert_eq!(parse(PODMAN.as_bytes()), Err(Unusable::Nameless));
        for length in [0, 1, PTP.len() / 2, PTP.trim_end().len() - 1] {
            let half = PTP.get(..length).unwrap();
            assert_eq!(parse(half.as_bytes()), Err(Unusable::Broken), "{length}");
        }
        for broken in [
            "[]",
            "null",
            r#"{"kind":7}"#,
            r#"{"kind":"cniCacheV1","cniArgs":[["a"]]}"#,
        ] {
            assert_eq!(parse(broken.as_bytes()), Err(Unusable::Broken), "{broken}");
        }
    }

    #[test]
    fn names_that_nobody_can_have_are_not_believed() {
        let long = "x".repeat(MAX_NAME + 1);
        for name in ["", "a b", "a\\u0007b", &long] {
            let text = PTP.replace("\"new-1\"", &format!("\"{name}\""));
            assert_eq!(parse(text.as_bytes()), Err(Unusable::Nameless), "{name}");
        }
    }

    #[test]
    fn damaged_files_are_skipped_with_a_count_and_nothing_is_waited_for() {
        let cache = tempfile::tempdir().unwrap();
        let at = |name: &str| cache.path().join(name);
        fs::write(at("good"), PTP).unwrap();
        fs::write(at("nameless"), PODMAN).unwrap();
        fs::write(at("half"), PTP.get(..100).unwrap()).unwrap();
        fs::write(at("empty"), "").unwrap();
        let padded = PTP.trim_end().to_owned() + &" ".repeat(usize::try_from(MAX_BYTES).unwrap());
        fs::write(at("huge"), padded).unwrap();
        fs::create_dir(at("directory")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(at("good"), at("link")).unwrap();
        let mut reader = Reader::new(cache.path().to_owned());
        let told = reader.read().unwrap();
        assert_eq!(told.records.len(), 1);
        assert_eq!(told.remark, "3 broken files were skipped");
    }

    #[test]
    fn a_file_that_was_half_written_is_read_again_when_it_is_whole() {
        let cache = tempfile::tempdir().unwrap();
        let file = cache.path().join("testkit-1-eth0");
        fs::write(&file, PTP.get(..100).unwrap()).unwrap();
        let mut reader = Reader::new(cache.path().to_owned());
        assert_eq!(reader.read().unwrap().records.len(), 0);
        fs::write(&file, PTP).unwrap();
        let told = reader.read().unwrap();
        assert_eq!((told.records.len(), &*told.remark), (1, ""));
        fs::remove_file(&file).unwrap();
        assert_eq!(reader.read().unwrap().records.len(), 0);
    }

    #[test]
    fn a_directory_that_is_none_says_so() {
        let cache = tempfile::tempdir().unwrap();
        let missing = cache.path().join("missing");
        let problem = Reader::new(missing).read().unwrap_err();
        assert!(
            matches!(&problem, Problem::Missing(why) if why.contains("does not exist")),
            "{problem}"
        );
        let file = cache.path().join("file");
        fs::write(&file, "").unwrap();
        let problem = Reader::new(file).read().unwrap_err();
        assert!(matches!(&problem, Problem::Foreign(_)), "{problem}");
    }
}
