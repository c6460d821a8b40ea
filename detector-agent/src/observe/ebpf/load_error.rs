//! Errors of loading the programs.

use std::{io, path::PathBuf};

use aya::{maps::MapError, programs::ProgramError};
use detector_event::error_chain::one_line;

use super::{btf::BtfError, tc::TcError};

/// The first kernel with every helper that the programs call: `bpf_ktime_get_coarse_ns` is the youngest.
const OLDEST_KERNEL: (u32, u32) = (5, 11);

/// Why the programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The agent was built without the programs.
    #[error(
        "this agent was built without its kernel programs; build it with `cargo xtask build`, or run it with --no-ebpf"
    )]
    Stub,
    /// A capability is missing.
    #[error("loading the kernel programs needs {0}; run as root, or grant it to the agent")]
    MissingCapability(&'static str),
    /// The kernel's type information is missing or unusable.
    #[error("cannot use the kernel's type information (BTF) in {path}: {problem}")]
    Btf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: BtfProblem,
    },
    /// The kernel refused although no capability is missing.
    #[error(
        "the kernel does not permit this process to load programs ({0}), probably because of a user namespace or kernel lockdown; run it in the host's user namespace, or with --no-ebpf"
    )]
    NotPermitted(io::Error),
    /// The verifier rejected a program.
    #[error(
        "the kernel's verifier rejected the program {program}: {source}; the verifier's reasons are logged at level debug"
    )]
    Verifier {
        /// The program.
        program: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refused, and is too old.
    #[error("Linux {}.{} or newer is needed, and this is {release}: {source}", OLDEST_KERNEL.0, OLDEST_KERNEL.1)]
    OldKernel {
        /// The kernel's release.
        release: String,
        /// What it refused.
        source: Box<Self>,
    },
    /// Another error of the kernel or the object.
    #[error("cannot load the kernel programs: {0}; --no-ebpf runs without them")]
    Kernel(String),
    /// The netlink socket for traffic control cannot be opened.
    #[error("cannot open a netlink socket for traffic control: {0}")]
    Tc(#[from] TcError),
}

impl LoadError {
    /// Names the kernel that is needed if this error is due to an old one. Releases are not compared before loading, because
    /// distributions add features to older kernels.
    pub(super) fn on_kernel(self, release: &str) -> Self {
        let is_old = version(release).is_some_and(|version| version < OLDEST_KERNEL);
        match self {
            Self::Verifier { .. } | Self::Kernel(_) if is_old => Self::OldKernel {
                release: release.to_owned(),
                source: Box::new(self),
            },
            error => error,
        }
    }
}

/// Major and minor version of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']);
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// What is wrong with the kernel's type information.
#[derive(Debug, thiserror::Error)]
pub enum BtfProblem {
    /// The file cannot be read.
    #[error("{0}; the kernel must be built with CONFIG_DEBUG_INFO_BTF")]
    Unreadable(io::Error),
    /// The file is empty.
    #[error("it is empty; the kernel must be built with CONFIG_DEBUG_INFO_BTF")]
    Empty,
    /// It is not BTF, or something is missing from it.
    #[error("{0}")]
    Unusable(String),
}

impl From<BtfError> for BtfProblem {
    fn from(error: BtfError) -> Self {
        Self::Unusable(error.to_string())
    }
}

pub(super) fn map_error(error: &MapError) -> LoadError {
    match error {
        MapError::CreateError { io_error, .. }
            if io_error.kind() == io::ErrorKind::PermissionDenied =>
        {
            LoadError::NotPermitted(
                io_error
                    .raw_os_error()
                    .map_or_else(|| io_error.kind().into(), io::Error::from_raw_os_error),
            )
        }
        error => LoadError::Kernel(one_line(error)),
    }
}

pub(super) fn program_error(program: &'static str, error: ProgramError) -> LoadError {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            if io_error.kind() == io::ErrorKind::PermissionDenied
                && verifier_log.to_string().is_empty()
            {
                return LoadError::NotPermitted(io_error);
            }
            tracing::debug!(program, log = %tail(&verifier_log.to_string()), "verifier log");
            LoadError::Verifier {
                program,
                source: io_error,
            }
        }
        error => LoadError::Kernel(format!("{program}: {}", one_line(&error))),
    }
}

/// The end of a verifier log, which has the reason.
fn tail(log: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = log.lines().collect();
    lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_old_kernels_name_the_version_needed() {
        let on = |release| {
            let refused = LoadError::Verifier {
                program: "p",
                source: io::Error::from_raw_os_error(22),
            };
            refused.on_kernel(release).to_string()
        };
        for old in ["5.10.0-28-amd64", "5.8.0", "4.19.0"] {
            let expected = format!("Linux 5.11 or newer is needed, and this is {old}: ");
            assert!(on(old).starts_with(&expected), "{}", on(old));
        }
        for other in ["5.11.0", "6.1.0-13-cloud-amd64", "6.18+", ""] {
            assert!(
                on(other).starts_with("the kernel's verifier"),
                "{}",
                on(other)
            );
        }
        let capability = LoadError::MissingCapability("CAP_BPF").on_kernel("5.10.0");
        assert!(matches!(capability, LoadError::MissingCapability(_)));
    }
}
