//! Chooses the compiler for the eBPF programs.
//!
//! No prebuilt `core` exists for `bpfel-unknown-none`; it is built from the library source of exactly
//! the compiler in use. A candidate therefore needs its own library source.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    host::{is_executable, program_dirs},
    process,
    requirements::MissingDependency,
    workspace::Workspace,
};

/// Environment variable that names the rustc to use; its cargo has to be in the same directory.
pub(crate) const COMPILER_VARIABLE: &str = "DETECTOR_BPF_RUSTC";

/// Debian packages of a compiler with its library source.
pub(crate) const PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// Oldest release that compiles the workspace: `rust-version` in Cargo.toml.
const OLDEST: Release = Release {
    major: 1,
    minor: 95,
};

/// Variables that would change the toolchain or the options of the nested cargo.
const REMOVED_VARIABLES: &[&str] = &[
    "CARGO",
    "CARGO_BUILD_RUSTC",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTC_BOOTSTRAP",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
];

/// Origin of a candidate; earlier ones are preferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Named by [`COMPILER_VARIABLE`].
    Override,
    /// A nightly toolchain that rustup installed.
    Nightly,
    /// Any other rustc of the system, such as Debian's.
    System,
}

/// A compiler release: `1.96.0` and `1.96.0-nightly` are both 1.96.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    major: u32,
    minor: u32,
}

/// Output of `rustc -vV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    release: Release,
    /// Major version of its LLVM; the linker's must not be older.
    llvm: u32,
}

/// A rustc to consider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    origin: Origin,
    /// The compiler.
    pub(crate) rustc: PathBuf,
    /// The cargo in the same directory.
    cargo: Option<PathBuf>,
    version: Option<Version>,
    has_source: bool,
}

/// Why no compiler can be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompilerError {
    /// The override cannot be used.
    #[error("{COMPILER_VARIABLE} is {}, which cannot build eBPF programs: {reason}", .rustc.display())]
    Override {
        /// Its value.
        rustc: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// No candidate can be used; holds one objection for each.
    #[error("no Rust compiler found that can build the eBPF programs{}", in_parentheses(.0))]
    Missing(Vec<String>),
}

impl From<CompilerError> for MissingDependency {
    fn from(error: CompilerError) -> Self {
        let what = error.to_string();
        match error {
            CompilerError::Override { .. } => Self::misconfigured(what, COMPILER_VARIABLE),
            CompilerError::Missing(_) => Self::absent(
                what,
                "rustup toolchain install nightly --profile minimal --component rust-src",
            ),
        }
    }
}

fn in_parentheses(objections: &[String]) -> String {
    if objections.is_empty() {
        String::new()
    } else {
        format!(" ({})", objections.join("; "))
    }
}

/// Finds the compiler: the override, then a rustup nightly, then a compiler of the system.
///
/// `linker_llvm` is the newest LLVM that the linker reads, if known.
pub(crate) fn find(linker_llvm: Option<u32>) -> Result<Candidate, CompilerError> {
    if let Some(rustc) = env::var_os(COMPILER_VARIABLE) {
        return choose([inspect(Origin::Override, rustc.into())], linker_llvm);
    }
    let nightlies = rustup_nightlies()
        .into_iter()
        .map(|rustc| inspect(Origin::Nightly, rustc));
    let system = system_compilers()
        .into_iter()
        .map(|rustc| inspect(Origin::System, rustc));
    choose(nightlies.chain(system), linker_llvm)
}

/// The first candidate without an objection; an unusable override is an error.
fn choose(
    candidates: impl IntoIterator<Item = Candidate>,
    linker_llvm: Option<u32>,
) -> Result<Candidate, CompilerError> {
    let mut objections = Vec::new();
    for candidate in candidates {
        match candidate.objection(linker_llvm) {
            None => return Ok(candidate),
            Some(reason) if candidate.origin == Origin::Override => {
                return Err(CompilerError::Override {
                    rustc: candidate.rustc,
                    reason,
                });
            }
            Some(reason) => objections.push(format!("{}: {reason}", candidate.rustc.display())),
        }
    }
    Err(CompilerError::Missing(objections))
}

impl Candidate {
    /// Its cargo, without the environment variables that cargo and rustup set for this process.
    ///
    /// # Errors
    /// There is no cargo in its directory.
    pub(crate) fn cargo_command(&self, workspace: &Workspace) -> Result<Command> {
        let cargo = self
            .cargo
            .as_ref()
            .context("there is no cargo in the directory of the compiler")?;
        let mut command = Command::new(cargo);
        for variable in REMOVED_VARIABLES {
            command.env_remove(variable);
        }
        // The options of the profile and the target are the caller's.
        for (variable, _) in env::vars_os() {
            let name = variable.to_string_lossy();
            if ["CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_PKG_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(&variable);
            }
        }
        command
            .current_dir(workspace.root())
            .env("RUSTC", &self.rustc);
        Ok(command)
    }

    /// Lets its cargo accept `-Z` options.
    pub(crate) fn allow_unstable_options(&self, command: &mut Command) {
        if self.needs_bootstrap() {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
    }

    /// Whether it accepts unstable options only with `RUSTC_BOOTSTRAP` set.
    fn needs_bootstrap(&self) -> bool {
        self.origin != Origin::Nightly
    }

    fn objection(&self, linker_llvm: Option<u32>) -> Option<String> {
        let Some(version) = self.version else {
            return Some("`rustc -vV` failed".to_owned());
        };
        if version.release < OLDEST {
            let Release { major, minor } = version.release;
            return Some(format!(
                "it is {major}.{minor}, older than {}.{}",
                OLDEST.major, OLDEST.minor
            ));
        }
        if !self.has_source {
            return Some("it has no library source (rust-src)".to_owned());
        }
        if self.cargo.is_none() {
            return Some("there is no cargo in its directory".to_owned());
        }
        match linker_llvm {
            Some(linker) if version.llvm > linker => Some(format!(
                "its LLVM {} is newer than the linker's {linker}",
                version.llvm
            )),
            _ => None,
        }
    }
}

fn inspect(origin: Origin, rustc: PathBuf) -> Candidate {
    let version = process::try_output(Command::new(&rustc).arg("-vV"))
        .as_deref()
        .and_then(parse_version);
    let has_source = process::try_output(Command::new(&rustc).args(["--print", "sysroot"]))
        .is_some_and(|sysroot| {
            Path::new(sysroot.trim_end())
                .join("lib/rustlib/src/rust/library/core/Cargo.toml")
                .exists()
        });
    let cargo = Some(rustc.with_file_name("cargo")).filter(|cargo| is_executable(cargo));
    Candidate {
        origin,
        rustc,
        cargo,
        version,
        has_source,
    }
}

fn parse_version(text: &str) -> Option<Version> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let mut release = field("release: ")?.split(['.', '-']);
    let mut number = || release.next()?.parse().ok();
    let (major, minor) = (number()?, number()?);
    let llvm = field("LLVM version: ")?.split('.').next()?.parse().ok()?;
    Some(Version {
        release: Release { major, minor },
        llvm,
    })
}

/// Compilers of rustup's nightlies, `nightly` itself before dated ones, newest date first.
fn rustup_nightlies() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".rustup")));
    let Some(Ok(entries)) = home.map(|home| fs::read_dir(home.join("toolchains"))) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("nightly"))
        })
        .collect();
    // In descending order `nightly-x86_64…` precedes `nightly-2026-…`: letters sort after digits.
    names.sort_by(|a, b| b.cmp(a));
    names
        .into_iter()
        .map(|toolchain| toolchain.join("bin/rustc"))
        .filter(|rustc| is_executable(rustc))
        .collect()
}

/// Every rustc of the system, except rustup's proxies.
fn system_compilers() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in program_dirs() {
        let rustc = dir.join("rustc");
        if is_executable(&rustc) && !is_rustup_proxy(&rustc) && !found.contains(&rustc) {
            found.push(rustc);
        }
    }
    found
}

fn is_rustup_proxy(rustc: &Path) -> bool {
    let target = fs::canonicalize(rustc).unwrap_or_else(|_| rustc.to_path_buf());
    if target.file_name().is_some_and(|name| name == "rustup") {
        return true;
    }
    // rustup's installer creates the proxies as hard links.
    let identity =
        |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    match (identity(rustc), identity(&rustc.with_file_name("rustup"))) {
        (Ok(rustc), Ok(rustup)) => rustc == rustup,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn candidate(origin: Origin, rustc: &str) -> Candidate {
        Candidate {
            origin,
            rustc: rustc.into(),
            cargo: Some(Path::new(rustc).with_file_name("cargo")),
            version: Some(Version {
                release: Release {
                    major: 1,
                    minor: 96,
                },
                llvm: 22,
            }),
            has_source: true,
        }
    }

    #[test]
    fn first_candidate_without_objection_is_chosen() {
        let mut nightly = candidate(Origin::Nightly, "/n/rustc");
        nightly.has_source = false;
        let system = candidate(Origin::System, "/usr/bin/rustc");
        let other = candidate(Origin::System, "/opt/rustc");
        let chosen = choose([nightly, system.clone(), other], None).unwrap();
        assert_eq!(chosen, system);
        assert!(chosen.needs_bootstrap());
    }

    #[test]
    fn nightly_needs_no_bootstrap_variable() {
        assert!(!candidate(Origin::Nightly, "/n/rustc").needs_bootstrap());
    }

    #[test]
    fn unusable_override_is_an_error_with_the_reason() {
        let mut overridden = candidate(Origin::Override, "/mine/rustc");
        overridden.has_source = false;
        let fallback = candidate(Origin::System, "/usr/bin/rustc");
        let error = choose([overridden, fallback], None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "DETECTOR_BPF_RUSTC is /mine/rustc, which cannot build eBPF programs: \
             it has no library source (rust-src)"
        );
    }

    #[test]
    fn compiler_with_newer_llvm_than_the_linker_is_skipped() {
        let mut newer = candidate(Origin::Nightly, "/n/rustc");
        newer.version.as_mut().unwrap().llvm = 23;
        let system = candidate(Origin::System, "/usr/bin/rustc");
        assert_eq!(
            choose([newer.clone(), system.clone()], Some(22)),
            Ok(system)
        );
        assert_eq!(choose([newer.clone()], None), Ok(newer));
    }

    #[test]
    fn error_lists_every_objection_and_the_fix() {
        let mut old = candidate(Origin::System, "/usr/bin/rustc");
        old.version.as_mut().unwrap().release.minor = 63;
        let mut broken = candidate(Origin::System, "/opt/rustc");
        broken.version = None;
        let mut alone = candidate(Origin::System, "/alone/rustc");
        alone.cargo = None;
        let missing = MissingDependency::from(choose([old, broken, alone], None).unwrap_err());
        assert_eq!(
            missing.to_string(),
            "no Rust compiler found that can build the eBPF programs \
             (/usr/bin/rustc: it is 1.63, older than 1.95; /opt/rustc: `rustc -vV` failed; \
             /alone/rustc: there is no cargo in its directory); \
             fix: rustup toolchain install nightly --profile minimal --component rust-src"
        );
        assert!(!CompilerError::Missing(Vec::new()).to_string().contains('('));
    }

    #[test]
    fn release_and_llvm_are_parsed() {
        let text = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nrelease: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        let version = parse_version(text).unwrap();
        assert_eq!(
            version,
            Version {
                release: Release {
                    major: 1,
                    minor: 97
                },
                llvm: 22
            }
        );
        assert_eq!(parse_version("release: 1\n"), None);
        assert_eq!(parse_version(""), None);
    }
}
