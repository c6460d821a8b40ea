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
struct Entry {
    pod: Pod,
    namespace: Option<PathBuf>,
    devices: Vec<String>,
}

/// Why a file names no pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
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
    #[serde(default)]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default)]
    result: Option<CacheResult>,
}

#[derive(Debug, Deserialize)]
struct CacheResult {
    #[serde(default)]
    interfaces: Vec<CacheInterface>,
}

#[derive(Debug, Deserialize)]
struct CacheInterface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

fn parse(text: &[u8]) -> Result<Entry, Unusable> {
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
    let (Some(namespace), Some(name)) = (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) else {
        return Err(Unusable::Nameless);
    };
    let container_id = file
        .container_id
        .or_else(|| arg("K8S_POD_INFRA_CONTAINER_ID"));
    let interfaces = file.result.map(|result| result.interfaces);
    Ok(Entry {
        pod: Pod {
            namespace,
            name,
            uid: arg("K8S_POD_UID"),
            container_id: container_id.filter(|id| is_name(id)),
            via: Via::CniCache,
        },
        namespace: file
            .netns
            .filter(|path| path.starts_with('/') && path.len() <= 4096)
            .map(PathBuf::from),
        // The pod's own end has a sandbox, and so have devices inside it.
        devices: interfaces
            .unwrap_or_default()
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
