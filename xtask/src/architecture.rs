//! The architectures that a release is built for.

use std::env::consts::ARCH;

use anyhow::{Context as _, Result};

/// An architecture, and its name in each place that has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64, little-endian.
    Arm64,
}

impl Architecture {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// That of this machine.
    ///
    /// # Errors
    /// It is none of them.
    pub(crate) fn of_this_machine() -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|architecture| architecture.rust_name() == ARCH)
            .with_context(|| format!("{ARCH} is not supported"))
    }

    /// Name in OCI images, Kubernetes and Debian.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Name in Rust.
    pub(crate) fn rust_name(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Rust's target.
    pub(crate) fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.rust_name())
    }

    /// Debian's C compiler for it, native or cross.
    pub(crate) fn c_compiler(self) -> String {
        format!("{}-linux-gnu-gcc", self.rust_name())
    }

    /// The emulator that runs its programs on another machine; `None` if this machine is one.
    pub(crate) fn emulator(self) -> Option<String> {
        (self.rust_name() != ARCH).then(|| format!("qemu-{}-static", self.rust_name()))
    }
}
