//! Kubernetes programs: the servers of `cluster`, and the clients that it and the tests use.

pub(crate) mod clients;
pub(crate) mod servers;

use anyhow::{Result, ensure};

/// Kubernetes' name of the only architecture that the programs are installed for.
const ARCHITECTURE: &str = "amd64";

fn require_architecture() -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the Kubernetes programs are only installed on {ARCHITECTURE}"
    );
    Ok(())
}
