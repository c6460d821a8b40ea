//! `doctor`: lists each requirement as found, or as missing with its fix.

use std::{fs, path::Path};

use anyhow::{Result, bail};

use crate::{
    requirements::{Group, MissingDependency, REQUIREMENTS},
    stdout::print_line,
    workspace::Workspace,
};

/// What a probe found, or what is missing and the fix.
type ProbeResult = Result<String, MissingDependency>;

/// Prints one line per requirement.
///
/// # Errors
/// A requirement is missing.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut missing = 0_usize;
    let requirements = REQUIREMENTS.iter().map(|requirement| {
        let result = (requirement.probe)(workspace);
        (group_names(requirement.groups), requirement.name, result)
    });
    let kernel = [
        ("run", "kernel", kernel_release()),
        (
            "run",
            "kernel BTF",
            btf(Path::new("/sys/kernel/btf/vmlinux")),
        ),
        ("run", "privileges", capabilities()),
    ]
    .map(|(groups, name, result)| (groups.to_owned(), name, result));
    for (groups, name, result) in requirements.chain(kernel) {
        missing += usize::from(result.is_err());
        print_line(line(&groups, name, &result))?;
    }
    match missing {
        0 => Ok(()),
        1 => bail!("1 requirement is missing"),
        more => bail!("{more} requirements are missing"),
    }
}

fn line(groups: &str, name: &str, result: &ProbeResult) -> String {
    match result {
        Ok(found) => format!("✓ {groups}: {name}: {found}"),
        Err(missing) => format!("✗ {groups}: {name}: {missing}"),
    }
}

fn group_names(groups: &[Group]) -> String {
    groups
        .iter()
        .map(|group| match group {
            Group::Build => "build",
            Group::Demo => "demo",
            Group::Test => "test",
            Group::Vm => "test --vm",
            Group::Cluster => "cluster",
            Group::Release => "release",
            Group::Bench => "bench",
            Group::Lint => "lint",
            Group::Arm64 => "lint --arm64",
            Group::Fuzz => "fuzz",
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// The first kernel with every BPF helper that the kernel programs call.
const OLDEST_KERNEL: (u32, u32) = (5, 11);

fn kernel_release() -> ProbeResult {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    check_kernel(release.trim_end())
}

fn check_kernel(release: &str) -> ProbeResult {
    let (major, minor) = OLDEST_KERNEL;
    match parse_kernel(release) {
        Some(version) if version >= OLDEST_KERNEL => Ok(release.to_owned()),
        Some(_) => Err(MissingDependency::absent(
            format!("{release} lacks BPF helpers that the agent needs"),
            format!("boot Linux {major}.{minor} or newer"),
        )),
        None => Err(MissingDependency::absent(
            format!("cannot parse the kernel release {release:?}"),
            format!("boot Linux {major}.{minor} or newer"),
        )),
    }
}

fn parse_kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']);
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

fn btf(path: &Path) -> ProbeResult {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > 0 => Ok(path.display().to_string()),
        _ => Err(MissingDependency::absent(
            format!("{} is missing or empty", path.display()),
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y",
        )),
    }
}

/// The capabilities that the agent uses, with their bits from linux/capability.h.
const CAPABILITIES: [(&str, u32); 4] = [
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_BROADCAST", 11),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

fn capabilities() -> ProbeResult {
    check_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn check_capabilities(status: &str) -> ProbeResult {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(_, bit)| effective & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        Ok(CAPABILITIES.map(|(name, _)| name).join(" "))
    } else {
        Err(MissingDependency::absent(
            format!("this process does not have {}", missing.join(" ")),
            "run as root",
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn each_missing_capability_is_named() {
        let status = "Name:\txtask\nCapEff:\t0000008000001000\n";
        assert_eq!(
            check_capabilities(status).unwrap_err().to_string(),
            "this process does not have CAP_NET_BROADCAST CAP_PERFMON; fix: run as root"
        );
        assert!(check_capabilities("CapEff:\t000001ffffffffff\n").is_ok());
        assert!(check_capabilities("").is_err());
    }

    #[test]
    fn kernels_without_the_helpers_are_rejected() {
        assert!(check_kernel("6.18.0").is_ok());
        assert!(check_kernel("5.11.0-53-generic").is_ok());
        assert!(check_kernel("6.1+").is_ok());
        assert!(check_kernel("5.10.0-28-amd64").is_err());
        assert!(check_kernel("").is_err());
    }

    #[test]
    fn empty_btf_file_counts_as_missing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(btf(file.path()).is_err());
        assert!(btf(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn missing_requirement_is_one_line_with_its_fix() {
        let missing = Err(MissingDependency::absent("no y", "do x"));
        assert_eq!(line("run", "y", &missing), "✗ run: y: no y; fix: do x");
    }
}
