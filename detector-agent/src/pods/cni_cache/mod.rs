//! The CNI result cache: what a container runtime keeps of each plugin's answer (libcni, `cniCacheV1`), a file for each
//! network of each pod, named `<network>-<container id>-<interface>`.
//!
//! Invariants: at most [`MAX_FILES`] files of at most [`file::MAX_BYTES`] are looked at, none of which is waited for (only
//! regular files are opened); a file is read once and again when it changed; one that cannot be read or is half written
//! costs itself only, and is counted. Reading happens on a thread that may wait for the disk.

pub(super) mod file;

use std::{collections::HashMap, fs, io, os::unix::fs::MetadataExt as _, path::PathBuf};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

use super::{
    Record, Via,
    namespaces::Namespaces,
    source::{Problem, Source, SourceSnapshot},
};
use file::{Entry, Unusable, entry};

/// Files that are looked at.
const MAX_FILES: usize = 8_192;
/// The cache in one directory.
#[derive(Debug)]
pub struct CniCache {
    directory: PathBuf,
    /// The reader, between two readings.
    reader: Option<Reader>,
    /// A reading that is under way; it outlives a deadline, and the next question waits for it.
    reading: Option<JoinHandle<(Reader, Result<SourceSnapshot, Problem>)>>,
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

    async fn records(&mut self, _: Instant) -> Result<SourceSnapshot, Problem> {
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
    async fn finish(&mut self) -> Result<SourceSnapshot, Problem> {
        let Some(reading) = &mut self.reading else {
            return Ok(SourceSnapshot::default());
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

impl Reader {
    fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            namespaces: Namespaces::default(),
            known: HashMap::new(),
        }
    }

    fn read(&mut self) -> Result<SourceSnapshot, Problem> {
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
                    addresses: Vec::new(),
                    known_as: None,
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
        Ok(SourceSnapshot {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{file::MAX_BYTES, *};

    const PTP: &str = include_str!("../fixtures/containerd-1.6-ptp.json");
    const PODMAN: &str = include_str!("../fixtures/podman-4.json");

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
