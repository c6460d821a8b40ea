//! One agent for each network namespace: a second one would attach again and report everything twice.
//!
//! The lock is `flock(2)` on a file that only the agent's user (root) can open, named after the network namespace. A
//! socket in the namespace itself could be bound by any process there, and would keep the agent from starting. The kernel
//! releases the lock when the process ends, however it ends; a file without a lock means nothing, nor does one of an
//! earlier namespace with the same inode.
//!
//! Beside the lock is the socket at which `check` and `watch` find the agent. Only root can put another one there,
//! whereas any process in the network namespace can listen on a port before the agent does.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, openat},
    libc::{O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW},
    sys::stat::Mode,
    unistd::geteuid,
};

/// The network namespace of this process.
const NAMESPACE: &str = "/proc/self/ns/net";

/// Why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another agent holds the lock.
    #[error(
        "another ip-conflict-detector is running in this network namespace (it holds the lock {}); stop it first",
        .0.display()
    )]
    Taken(PathBuf),
    /// The directory does not exist and cannot be created.
    #[error(
        "cannot create the directory {} for the agent's lock: {source}; mount a directory of the node there, or choose another with --run-dir",
        .path.display()
    )]
    Create {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could take the lock.
    #[error(
        "the agent's lock cannot be in {}, which {problem}; correct that, or choose another directory with --run-dir",
        .path.display()
    )]
    Unsafe {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The lock failed for another reason.
    #[error(
        "cannot use the agent's lock {}: {source}; check the permissions, or choose another directory with --run-dir",
        .path.display()
    )]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The lock, held until dropped.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    #[allow(dead_code, reason = "its lock is held until it is closed")]
    file: File,
}

/// Where the agent of this process's network namespace listens, if one runs with this directory.
///
/// # Errors
/// If the namespace cannot be determined.
pub fn socket_path(directory: &Path) -> Result<PathBuf, InstanceError> {
    Ok(directory.join(file_stem()?).with_extension(SOCKET))
}

/// Extension of the socket's file.
const SOCKET: &str = "sock";

/// The name of this process's network namespace in the directory, without an extension.
fn file_stem() -> Result<String, InstanceError> {
    let namespace = fs::metadata(NAMESPACE).map_err(io_error(Path::new(NAMESPACE)))?;
    Ok(format!("netns-{:x}-{}", namespace.dev(), namespace.ino()))
}

impl Instance {
    /// Takes the lock of this process's network namespace in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// If another agent holds it, or others than this user could.
    pub fn take(directory: &Path) -> Result<Self, InstanceError> {
        // Without a trailing slash, behind which a symbolic link would be followed.
        let directory: PathBuf = directory.components().collect();
        let opened = open_directory(&directory)?;
        let name = file_stem()? + ".lock";
        let path = directory.join(&name);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file: File = openat(
            &opened,
            name.as_str(),
            flags,
            Mode::from_bits_truncate(0o600),
        )
        .map_err(io::Error::from)
        .map_err(io_error(&path))?
        .into();
        // Every process that can open the file, even for reading only, can hold the lock.
        check(&file, &path, 0o077, "is accessible to other users")?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(InstanceError::Taken(path)),
            Err(TryLockError::Error(source)) => return Err(InstanceError::Io { path, source }),
        }
        // For people only, so that a full file system prevents no start.
        let _ = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { path, file })
    }

    /// Where this agent listens for commands on the node.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.with_extension(SOCKET)
    }
}

/// Opens the directory, which only this user may be able to write: others could put a file of theirs in the lock's place.
fn open_directory(path: &Path) -> Result<File, InstanceError> {
    if let Err(source) = DirBuilder::new().mode(0o700).create(path)
        && source.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(InstanceError::Create {
            path: path.to_owned(),
            source,
        });
    }
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
        .open(path);
    let opened = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(InstanceError::Unsafe {
                path: path.to_owned(),
                problem: "is a symbolic link or a file",
            });
        }
        other => other.map_err(io_error(path))?,
    };
    // kubelet creates a missing `hostPath` with the mode 0755.
    check(&opened, path, 0o022, "is writable for other users")?;
    Ok(opened)
}

fn check(
    file: &File,
    path: &Path,
    refused_mode: u32,
    problem: &'static str,
) -> Result<(), InstanceError> {
    let about = file.metadata().map_err(io_error(path))?;
    let problem = if about.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if about.mode() & refused_mode != 0 {
        problem
    } else {
        return Ok(());
    };
    Err(InstanceError::Unsafe {
        path: path.to_owned(),
        problem,
    })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> InstanceError {
    move |source| InstanceError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use std::{
        os::unix::fs::{PermissionsExt as _, symlink},
        process,
    };

    use super::*;

    fn lock_file(directory: &Path) -> PathBuf {
        fs::read_dir(directory)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn lock_excludes_until_dropped_and_its_file_has_the_pid() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("run");
        let first = Instance::take(&directory).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let file = lock_file(&directory);
        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
        let pid = fs::read_to_string(&file).unwrap();
        assert_eq!(pid, format!("{}\n", process::id()));
        let second = Instance::take(&directory).unwrap_err();
        assert!(matches!(second, InstanceError::Taken(path) if path == file));
        drop(first);
        fs::write(&file, "the id of a process that was killed").unwrap();
        let _next = Instance::take(&directory).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), pid);
    }

    #[test]
    fn directory_and_file_of_others_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("run");
        let problem = |directory: &Path| match Instance::take(directory).unwrap_err() {
            InstanceError::Unsafe { problem, .. } => problem,
            other => other.to_string().leak(),
        };
        drop(Instance::take(&directory).unwrap());
        // As kubelet creates it.
        set_mode(&directory, 0o755);
        drop(Instance::take(&directory).unwrap());
        for mode in [0o775, 0o757, 0o1777] {
            set_mode(&directory, mode);
            assert_eq!(problem(&directory), "is writable for other users");
        }
        set_mode(&directory, 0o700);
        let file = lock_file(&directory);
        for mode in [0o644, 0o640, 0o602] {
            set_mode(&file, mode);
            assert_eq!(problem(&directory), "is accessible to other users");
        }
        fs::remove_file(&file).unwrap();
        let elsewhere = parent.path().join("elsewhere");
        symlink(&elsewhere, &file).unwrap();
        assert!(problem(&directory).contains("cannot use the agent's lock"));
        assert!(!elsewhere.exists(), "a symbolic link is not followed");
        let link = parent.path().join("link");
        symlink(&directory, &link).unwrap();
        for link in [link.clone(), link.join(""), link.join(".")] {
            assert_eq!(problem(&link), "is a symbolic link or a file");
        }
    }

    #[test]
    fn missing_directory_that_cannot_be_created_is_named_with_the_remedy() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("missing/run");
        let error = Instance::take(&directory).unwrap_err().to_string();
        assert!(error.contains(directory.to_str().unwrap()), "{error}");
        assert!(error.contains("--run-dir"), "{error}");
    }
}
