//! The node's name and boot.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io, process,
};

/// Why the node's name is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// The host name cannot be read.
    #[error("cannot read the host name ({0}); set --node-name")]
    HostName(nix::Error),
    /// The name is empty, too long, or has invalid characters.
    #[error(
        "`{0}` is not a valid node name; set --node-name or NODE_NAME to letters, digits, dots and dashes"
    )]
    Invalid(String),
}

/// `given`, else `NODE_NAME` as Kubernetes manifests set it, else the host name.
///
/// # Errors
/// If there is none, or it is invalid.
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
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.len() > 253 || !name.chars().all(is_valid) {
        return Err(NodeNameError::Invalid(name));
    }
    Ok(name)
}

/// Identifies the present boot.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(boot_id.trim().to_owned())
}

/// A number that differs between runs. Not for secrets.
#[must_use]
pub fn random() -> u64 {
    // The standard library seeds its hasher randomly.
    RandomState::new().hash_one(process::id())
}
