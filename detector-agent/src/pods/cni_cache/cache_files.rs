//! The files in a CNI result cache, each parsed again only after it was written again.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Most files that are read.
pub(crate) const MAX_FILES: usize = 8_192;

/// The regular files of one directory, at most [`MAX_FILES`], as a reader parses them.
#[derive(Debug)]
pub(crate) struct CacheFiles<T> {
    pub(crate) directory: PathBuf,
    files: HashMap<PathBuf, CachedFile<T>>,
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct CachedFile<T> {
    /// Inode, size and modification time (seconds, nanoseconds), which change when it is written again.
    version: (u64, u64, i64, i64),
    pub(crate) content: T,
}

impl<T> CachedFile<T> {
    /// When it was written, in nanoseconds of Unix time.
    pub(crate) fn written_at(&self) -> i64 {
        let (_, _, seconds, nanoseconds) = self.version;
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds)
    }
}

impl<T> CacheFiles<T> {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            files: HashMap::new(),
        }
    }

    /// Reads what has changed. Returns the number of files beyond [`MAX_FILES`].
    ///
    /// # Errors
    /// The directory cannot be listed; one that does not exist has no files.
    pub(crate) fn refresh(&mut self, parse: impl Fn(&Path) -> T) -> io::Result<usize> {
        let entries = fs::read_dir(&self.directory).inspect_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                self.files.clear();
            }
        })?;
        let mut previous = std::mem::take(&mut self.files);
        let mut skipped = 0;
        for path in entries.flatten().map(|entry| entry.path()) {
            // Links are not followed: runtimes do not create any here.
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            if self.files.len() >= MAX_FILES {
                skipped += 1;
                continue;
            }
            let version = (
                metadata.ino(),
                metadata.size(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            );
            let known = previous.remove(&path).filter(|f| f.version == version);
            let file = known.unwrap_or_else(|| CachedFile {
                version,
                content: parse(&path),
            });
            self.files.insert(path, file);
        }
        Ok(skipped)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CachedFile<T>> {
        self.files.values()
    }
}
