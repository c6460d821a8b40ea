//! Programs that take long to build or to download, kept outside the checkout: all checkouts of the user share them.
//!
//! A directory's name contains the version. It appears complete or not at all.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::{files, workspace::Workspace};

/// A directory in the cache, with a link to it in `target/tools`.
pub(crate) struct Cached {
    /// The link's name.
    pub(crate) name: &'static str,
    /// Version of the content.
    pub(crate) version: &'static str,
}

impl Cached {
    /// The link in `target/tools`, through which tasks and tests use the directory.
    pub(crate) fn link(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(self.name)
    }

    /// Whether the link leads to this version.
    pub(crate) fn is_present(&self, workspace: &Workspace) -> bool {
        let is_linked = |directory: PathBuf| {
            fs::read_link(self.link(workspace)).is_ok_and(|target| target == directory)
                && directory.is_dir()
        };
        self.directory().is_ok_and(is_linked)
    }

    /// Creates the directory, unless another checkout did, and links to it.
    ///
    /// `make` gets a directory for its intermediate files and the one to fill.
    pub(crate) fn install(
        &self,
        workspace: &Workspace,
        make: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<()> {
        let directory = self.directory()?;
        fill(&directory, make)?;
        files::create_dir(&workspace.tools())?;
        let link = self.link(workspace);
        // A link to another version; if there is none, there is nothing to remove.
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&directory, &link)
            .with_context(|| format!("could not create the link {}", link.display()))
    }

    fn directory(&self) -> Result<PathBuf> {
        let variable = |name| env::var_os(name).map(PathBuf::from);
        let cache = variable("XDG_CACHE_HOME")
            // As the XDG Base Directory Specification has it, a relative path is ignored.
            .filter(|path| path.is_absolute())
            .or_else(|| variable("HOME").map(|home| home.join(".cache")))
            .context("neither XDG_CACHE_HOME nor HOME is set")?;
        let name = format!("{}-{}", self.name, self.version);
        Ok(cache.join("ip-conflict-detector").join(name))
    }
}

fn fill(directory: &Path, make: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
    let parent = directory.parent().unwrap_or(directory);
    files::create_dir(parent)?;
    let lock = files::create(&directory.with_added_extension("lock"))?;
    // Two checkouts do not build it at the same time.
    let _locked = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("could not lock {}", directory.display()))?;
    if directory.is_dir() {
        return Ok(());
    }
    let work = directory.with_added_extension("partial");
    // Left by a run that was killed.
    remove_dir(&work)?;
    let output = work.join("output");
    files::create_dir(&output)?;
    let made = make(&work, &output).and_then(|()| {
        fs::rename(&output, directory)
            .with_context(|| format!("could not create {}", directory.display()))
    });
    remove_dir(&work).and(made)
}

fn remove_dir(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use anyhow::bail;

    use super::*;

    #[test]
    fn directory_is_made_once() {
        let cache = tempfile::tempdir().unwrap();
        let directory = cache.path().join("a/tool-1.2.3");
        fill(&directory, |_, output| {
            files::write(&output.join("tool"), "1")
        })
        .unwrap();
        fill(&directory, |_, _| bail!("made again")).unwrap();
        assert_eq!(files::read_text(&directory.join("tool")).unwrap(), "1");
    }

    #[test]
    fn nothing_remains_of_a_failed_attempt() {
        let cache = tempfile::tempdir().unwrap();
        let directory = cache.path().join("tool-1.2.3");
        let error = fill(&directory, |work, output| {
            files::write(&work.join("source"), "")?;
            files::write(&output.join("half"), "")?;
            bail!("no compiler")
        });
        assert_eq!(error.unwrap_err().to_string(), "no compiler");
        let names: Vec<_> = fs::read_dir(cache.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["tool-1.2.3.lock"]);
    }
}
