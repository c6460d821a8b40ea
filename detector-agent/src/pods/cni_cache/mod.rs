//! The CNI result cache, in which container runtimes keep the results of CNI plugins (libcni, `cniCacheV1`): one file
//! per network of each pod, named `<network>-<container id>-<interface>`.
//!
//! Invariants: at most [`cache_files::MAX_FILES`] files of at most [`file::MAX_BYTES`] are read; only regular files are opened; an
//! unchanged file is not read again; an unreadable or incomplete file is counted and skipped. Files are read on a thread
//! that may wait for the disk.

pub(crate) mod cache_files;
pub(super) mod file;

use std::{
    io,
    path::{Path, PathBuf},
};

use detector_event::Via;
use detector_event::counted;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

use super::{
    PodRecord,
    netns::NetnsQueries,
    source::{PodSource, SourceError, SourceSnapshot},
};
use cache_files::{CacheFiles, MAX_FILES};
use file::{CacheEntry, Unusable};

/// The cache in one directory.
#[derive(Debug)]
pub struct CniCache {
    directory: PathBuf,
    /// `None` while a read is in progress.
    reader: Option<CacheReader>,
    /// A read in progress. It may outlast the deadline of its query; the next query waits for its end.
    pending: Option<JoinHandle<(CacheReader, Result<SourceSnapshot, SourceError>)>>,
}

impl CniCache {
    /// The cache in this directory.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            reader: Some(CacheReader::new(&directory)),
            directory,
            pending: None,
        }
    }
}

impl PodSource for CniCache {
    const VIA: Via = Via::CniCache;

    fn target(&self) -> String {
        self.directory.display().to_string()
    }

    async fn snapshot(&mut self, _: Instant) -> Result<SourceSnapshot, SourceError> {
        if self.pending.is_some() {
            // It began before this query, so its snapshot may be older than the device that is looked up.
            self.finish().await.ok();
        }
        let mut reader = self
            .reader
            .take()
            .unwrap_or_else(|| CacheReader::new(&self.directory));
        self.pending = Some(spawn_blocking(move || {
            let snapshot = reader.read();
            (reader, snapshot)
        }));
        self.finish().await
    }
}

impl CniCache {
    async fn finish(&mut self) -> Result<SourceSnapshot, SourceError> {
        let Some(pending) = &mut self.pending else {
            return Ok(SourceSnapshot::default());
        };
        let finished = pending.await;
        self.pending = None;
        let (reader, snapshot) = finished.map_err(|error| {
            SourceError::Failing(format!("cannot read {}: {error}", self.directory.display()))
        })?;
        self.reader = Some(reader);
        snapshot
    }
}

/// Reads the directory and caches the files' content.
#[derive(Debug)]
struct CacheReader {
    netns: NetnsQueries,
    files: CacheFiles<Result<CacheEntry, Unusable>>,
}

impl CacheReader {
    fn new(directory: &Path) -> Self {
        Self {
            netns: NetnsQueries::default(),
            files: CacheFiles::new(directory),
        }
    }

    fn read(&mut self) -> Result<SourceSnapshot, SourceError> {
        let skipped = self.files.refresh(file::read).map_err(|error| {
            let directory = self.files.directory.display();
            match error.kind() {
                io::ErrorKind::NotFound => {
                    SourceError::Missing(format!("{directory} does not exist"))
                }
                io::ErrorKind::PermissionDenied => {
                    SourceError::Refused(format!("no permission to read {directory}"))
                }
                io::ErrorKind::NotADirectory => {
                    SourceError::Foreign(format!("{directory} is not a directory"))
                }
                _ => SourceError::Failing(format!("cannot read {directory}: {error}")),
            }
        })?;
        let broken = self.count(Unusable::Broken);
        let netns = &mut self.netns;
        let records = self
            .files
            .iter()
            .filter_map(|cached| {
                let entry = cached.content.as_ref().ok()?;
                Some(PodRecord {
                    pod: entry.pod.clone(),
                    namespace: entry
                        .namespace
                        .as_deref()
                        .and_then(|path| netns.id_at(path)),
                    devices: entry.devices.clone(),
                    network: entry.network.clone(),
                    addresses: entry.addresses.clone(),
                    secondary_addresses: entry.secondary_addresses.clone(),
                    runtime_uid: None,
                    running: true,
                    created: cached.written_at(),
                })
            })
            .collect();
        let mut warnings = Vec::new();
        if broken > 0 {
            warnings.push(format!(
                "skipped {}",
                counted(broken, "broken file", "broken files")
            ));
        }
        if skipped > 0 {
            warnings.push(format!(
                "skipped {} beyond the limit of {MAX_FILES}",
                counted(skipped, "file", "files")
            ));
        }
        Ok(SourceSnapshot {
            records,
            warning: warnings.join(", "),
        })
    }

    fn count(&self, reason: Unusable) -> usize {
        self.files
            .iter()
            .filter(|cached| cached.content.as_ref().err() == Some(&reason))
            .count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use super::{file::MAX_BYTES, *};

    const PTP: &str = include_str!("../fixtures/containerd-1.6-ptp.json");
    const PODMAN: &str = include_str!("../fixtures/podman-4.json");

    #[test]
    fn broken_files_are_counted_and_special_files_skipped() {
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
        let mut reader = CacheReader::new(cache.path());
        let snapshot = reader.read().unwrap();
        assert_eq!(snapshot.records.len(), 1);
        assert_eq!(snapshot.warning, "skipped 3 broken files");
    }

    #[test]
    fn changed_file_is_read_again() {
        let cache = tempfile::tempdir().unwrap();
        let file = cache.path().join("testkit-1-eth0");
        fs::write(&file, PTP.get(..100).unwrap()).unwrap();
        let mut reader = CacheReader::new(cache.path());
        assert_eq!(reader.read().unwrap().records.len(), 0);
        fs::write(&file, PTP).unwrap();
        let snapshot = reader.read().unwrap();
        assert_eq!((snapshot.records.len(), &*snapshot.warning), (1, ""));
        fs::remove_file(&file).unwrap();
        assert_eq!(reader.read().unwrap().records.len(), 0);
    }

    #[test]
    fn missing_directory_and_plain_file_are_different_errors() {
        let cache = tempfile::tempdir().unwrap();
        let missing = cache.path().join("missing");
        let error = CacheReader::new(&missing).read().unwrap_err();
        assert!(
            matches!(&error, SourceError::Missing(reason) if reason.contains("does not exist")),
            "{error}"
        );
        let file = cache.path().join("file");
        fs::write(&file, "").unwrap();
        let error = CacheReader::new(&file).read().unwrap_err();
        assert!(matches!(&error, SourceError::Foreign(_)), "{error}");
    }
}
