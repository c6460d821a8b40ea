//! `doctor`: what is there and what is missing, one line each, with the fix.

use std::{fs, path::Path};

use anyhow::{Result, bail};

use crate::{
    requirements::{Group, Missing, REQUIREMENTS},
    say::say,
    workspace::Workspace,
};

/// What a check found, or what is missing and the fix.
type Finding = Result<String, Missing>;

/// Prints every finding.
///
/// # Errors
/// Something is missing.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut missing = 0_usize;
    let requirements = REQUIREMENTS.iter().map(|requirement| {
        let finding = (requirement.probe)(workspace);
        (groups(requirement.groups), requirement.name, finding)
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
    .map(|(groups, name, finding)| (groups.to_owned(), name, finding));
    for (groups, name, finding) in requirements.chain(kernel) {
        missing += usize::from(finding.is_err());
        say(line(&groups, name, &finding))?;
    }
    match missing {
        0 => Ok(()),
        1 => bail!("one thing is missing"),
        more => bail!("{more} things are missing"),
    }
}

fn line(groups: &str, name: &str, finding: &Finding) -> String {
    match finding {
        Ok(found) => format!("✓ {groups}: {name}: {found}"),
        Err(missing) => format!("✗ {groups}: {name}: {missing}"),
    }
}

fn groups(groups: &[Group]) -> String {
    groups
        .iter()
        .map(|group| match group {
            Group::Build => "build",
            Group::Demo => "demo",
            Group::Test => "test",
            Group::Vm => "test --vm",
            Group::Bench => "bench",
            Group::Lint => "lint",
            Group::Fuzz => "fuzz",
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// The first kernel with ring buffers and the capabilities below.
const OLDEST_KERNEL: (u32, u32) = (5, 8);

fn kernel_release() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    judge_kernel(release.trim_end())
}

fn judge_kernel(release: &str) -> Finding {
    let (major, minor) = OLDEST_KERNEL;
    match parse_kernel(release) {
        Some(version) if version >= OLDEST_KERNEL => Ok(release.to_owned()),
        Some(_) => Err(Missing::absent(
            format!("{release} has no BPF ring buffers"),
            format!("boot Linux {major}.{minor} or newer"),
        )),
        None => Err(Missing::absent(
            format!("the release {release:?} is no version"),
            format!("boot Linux {major}.{minor} or newer"),
        )),
    }
}

fn parse_kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']);
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

fn btf(path: &Path) -> Finding {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > 0 => Ok(path.display().to_string()),
        _ => Err(Missing::absent(
            format!("{} is missing or empty", path.display()),
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y",
        )),
    }
}

/// The capabilities that the agent uses and their bits, from linux/capability.h.
const CAPABILITIES: [(&str, u32); 4] = [
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_BROADCAST", 11),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

fn capabilities() -> Finding {
    judge_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn judge_capabilities(status: &str) -> Finding {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let lacking: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(_, bit)| effective & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        Ok(CAPABILITIES.map(|(name, _)| name).join(" "))
    } else {
        Err(Missing::absent(
            format!("this process lacks {}", lacking.join(" ")),
            "become root",
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn lacking_capabilities_are_named_one_by_one() {
        let status = "Name:\txtask\nCapEff:\t0000008000001000\n";
        assert_eq!(
            judge_capabilities(status).unwrap_err().to_string(),
            "this process lacks CAP_NET_BROADCAST CAP_PERFMON; fix: become root"
        );
        assert!(judge_capabilities("CapEff:\t000001ffffffffff\n").is_ok());
        assert!(judge_capabilities("").is_err());
    }

    #[test]
    fn kernels_before_ring_buffers_are_refused() {
        assert!(judge_kernel("6.18.0").is_ok());
        assert!(judge_kernel("5.8.0-53-generic").is_ok());
        assert!(judge_kernel("6.1+").is_ok());
        assert!(judge_kernel("5.4.0-1").is_err());
        assert!(judge_kernel("").is_err());
    }

    #[test]
    fn an_empty_btf_file_is_as_good_as_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(btf(file.path()).is_err());
        assert!(btf(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_missing_thing_is_one_line_that_ends_with_its_fix() {
        let missing = Err(Missing::absent("no y", "do x"));
        assert_eq!(line("run", "y", &missing), "✗ run: y: no y; fix: do x");
    }
}
