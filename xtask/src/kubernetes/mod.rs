//! Kubernetes programs: the servers of `cluster`, and the clients that it and the tests use.

pub(crate) mod clients;
pub(crate) mod servers;

use anyhow::{Result, ensure};

use crate::{cache::Cached, requirements::MissingDependency, workspace::Workspace};

/// Kubernetes' name of the only architecture that the programs are installed for.
const ARCHITECTURE: &str = "amd64";

/// Finds the pinned version; `task` installs it.
fn probe(workspace: &Workspace, cached: &Cached, task: &str) -> Result<String, MissingDependency> {
    let link = cached.link(workspace);
    if cached.is_present(workspace) {
        return Ok(format!("{} {}", link.display(), cached.version));
    }
    Err(MissingDependency::absent(
        format!("no {} at {}", cached.version, link.display()),
        format!("cargo xtask {task}"),
    ))
}

fn require_architecture() -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the Kubernetes programs are only installed on {ARCHITECTURE}"
    );
    Ok(())
}
