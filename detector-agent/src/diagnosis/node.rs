//! What is known of the node.

use std::{fs, path::Path};

use detector_engine::diagnosis::{Known, NodeFacts, PluginStart, UnixTime};

use super::files::{birth, not_checked, source};

pub(super) fn facts(
    name: &str,
    cni_configuration: &Path,
    runtime_started: Known<UnixTime>,
    plugin_starts: Known<Vec<PluginStart>>,
) -> NodeFacts {
    NodeFacts {
        name: name.to_owned(),
        booted: booted(),
        runtime_started,
        // In a container, directories above what is mounted are as old as the container.
        etc_cni_born: birth(cni_configuration),
        opt_cni_born: birth(Path::new("/opt/cni")),
        var_lib_cni_born: birth(Path::new("/var/lib/cni")),
        plugin_starts,
    }
}

/// The line `btime` of /proc/stat: seconds since the epoch.
fn booted() -> Known<UnixTime> {
    let path = Path::new("/proc/stat");
    let seconds = fs::read_to_string(path).ok().and_then(|stat| {
        let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
        line.trim().parse::<u64>().ok()
    });
    match seconds {
        Some(seconds) => Known::Value(
            UnixTime(seconds.saturating_mul(1_000_000_000)),
            source(path),
        ),
        None => not_checked("when the node booted", "/proc/stat has no btime"),
    }
}
