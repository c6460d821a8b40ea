//! The `cleanup` command.

use crate::{
    cli::CleanupArgs,
    observe::ebpf::{TcError, leftovers},
    process::instance::{Instance, InstanceError},
};

/// Why nothing was removed, or not everything.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// An agent runs, or may run, in this network namespace.
    #[error("{0}, or use --force to remove the filters nevertheless")]
    Instance(#[from] InstanceError),
    /// The kernel refuses.
    #[error(transparent)]
    Tc(#[from] TcError),
}

/// Removes the filters that a killed agent left behind; returns the number of their devices. Holds the agent's lock
/// meanwhile, because a running agent would lose its filters.
///
/// # Errors
/// See [`CleanupError`].
pub fn run(args: &CleanupArgs) -> Result<usize, CleanupError> {
    let _instance = (!args.force)
        .then(|| Instance::take(&args.lock.run_dir))
        .transpose()?;
    Ok(leftovers::remove()?.len())
}
