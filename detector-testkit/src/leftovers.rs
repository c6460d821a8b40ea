//! Temporary directories whose name contains the id of the process that created them, so that a later run can remove those of
//! a killed one.

use std::{fs, path::Path, sync::Once};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// The start of every name; a label and the process id follow.
const PREFIX: &str = "ipconflict-";

static CLEAN_UP: Once = Once::new();

/// Creates one, removed on drop. The first call removes those of dead processes.
pub(crate) fn directory(label: &str) -> Result<TempDir> {
    CLEAN_UP.call_once(|| {
        // First the processes that use the directories.
        crate::netns::remove_leftovers();
        remove_dead(&std::env::temp_dir());
    });
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{label}-{}-", std::process::id()))
        .tempdir()
        .context("creating a temporary directory")
}

fn remove_dead(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner_of);
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            // Another run may be removing it too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The id of the process that created the directory of this name; `None` if it was not created here.
fn owner_of(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let (_label, owner) = (parts.next()?, parts.next()?);
    parts.next()?;
    owner.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_dead_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let mut exited = std::process::Command::new("true").spawn().unwrap();
        exited.wait().unwrap();
        let dead = format!("ipconflict-cluster-{}-x1", exited.id());
        let live = format!("ipconflict-cluster-{}-x1", std::process::id());
        let other = format!("ipconflict-cluster-{}", exited.id());
        for name in [&dead, &live, &other] {
            fs::create_dir_all(parent.path().join(name).join("a")).unwrap();
        }
        remove_dead(parent.path());
        for (name, remains) in [(&dead, false), (&live, true), (&other, true)] {
            assert_eq!(parent.path().join(name).exists(), remains, "{name}");
        }
    }
}
