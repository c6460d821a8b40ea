//! What is known of the node.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use detector_engine::diagnosis::{Known, NodeFacts, PluginStart, UnixTime};

use super::files::{birth, not_checked, source};

/// Most files of the network configuration whose times are read.
const MAX_FILES: usize = 1_024;

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
        cni_configured_since: unchanged_since(cni_configuration),
        // In a container, directories above what is mounted are as old as the container.
        etc_cni_born: birth(cni_configuration),
        opt_cni_born: birth(Path::new("/opt/cni")),
        var_lib_cni_born: birth(Path::new("/var/lib/cni")),
        plugin_starts,
    }
}

/// The last change of a directory or of a file in it: nothing sets back `st_ctime`.
fn unchanged_since(directory: &Path) -> Known<UnixTime> {
    let last = fs::read_dir(directory).and_then(|entries| {
        let mut last = changed_at(&fs::metadata(directory)?);
        for (number, entry) in entries.enumerate() {
            if number >= MAX_FILES {
                return Err(io::Error::other(format!(
                    "it has more than {MAX_FILES} files"
                )));
            }
            // Of a link, the file that it leads to counts as well.
            let entry = entry?;
            last = last.max(changed_at(&entry.metadata()?));
            last = last.max(changed_at(&fs::metadata(entry.path())?));
        }
        Ok(last)
    });
    let what = || format!("the last change of {}", directory.display());
    match last {
        Ok(Some(at)) => Known::Value(at, source(directory)),
        Ok(None) => not_checked(what(), "it is before 1970"),
        Err(error) => not_checked(what(), error.to_string()),
    }
}

fn changed_at(metadata: &fs::Metadata) -> Option<UnixTime> {
    let seconds = u64::try_from(metadata.ctime()).ok()?;
    let nanos = u64::try_from(metadata.ctime_nsec()).ok()?;
    Some(UnixTime(
        seconds.saturating_mul(1_000_000_000).saturating_add(nanos),
    ))
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
