//! Who this node is.

use std::{
    hash::{BuildHasher, RandomState},
    process,
};

/// Why the node has no name.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// The host name cannot be read.
    #[error("cannot read this host's name ({0}); give one with --node-name")]
    HostName(nix::Error),
    /// The name given is empty, or has characters that do not belong in a name.
    #[error(
        "`{0}` is no node name; give letters, digits, dots and dashes with --node-name or NODE_NAME"
    )]
    Invalid(String),
}

/// The name given, else `NODE_NAME` as Kubernetes manifests set it, else the host's.
///
/// # Errors
/// Where there is none, or it is not one.
pub fn name(given: Option<&str>) -> Result<String, NodeNameError> {
    let name = match given
        .map(str::to_owned)
        .or_else(|| std::env::var("NODE_NAME").ok())
    {
        Some(name) => name,
        None => nix::unistd::gethostname()
            .map_err(NodeNameError::HostName)?
            .to_string_lossy()
            .into_owned(),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.len() > 253 || !name.chars().all(fits) {
        return Err(NodeNameError::Invalid(name));
    }
    Ok(name)
}

/// A number that differs from run to run; not for secrets.
#[must_use]
pub fn random() -> u64 {
    // The standard library seeds its hasher from the system's randomness.
    RandomState::new().hash_one(process::id())
}
