//! Where a containerd of a test runs: mounts of its own, its configuration, and an end to what earlier runs left.

use std::{
    fs::{self, File},
    path::Path,
    thread,
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::cni::PLUGIN_DIRECTORY;

pub(super) const IMAGE: &str = "localhost/ipconflict-pause:1";

/// Every pause program's name begins so; the process id of its maker follows.
pub(super) const PROGRAM: &str = "ipconflict-pause-";

/// A mount namespace with an empty `/run` and `/var/lib`.
pub(super) fn private_mounts() -> Result<File> {
    thread::scope(|scope| {
        let made = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace (is this root?)")?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
                .context("making mounts private")?;
            // What lies below the empty ones stays in the list of mounts, where containerd would find it by its path.
            // One that is not there is as good as one that is gone.
            while umount2("/run/netns", MntFlags::MNT_DETACH).is_ok() {}
            for path in ["/run", "/var/lib"] {
                mount(
                    Some("tmpfs"),
                    path,
                    Some("tmpfs"),
                    MsFlags::empty(),
                    Some("size=256m"),
                )
                .with_context(|| format!("an empty {path}"))?;
            }
            File::open("/proc/thread-self/ns/mnt").context("opening the mount namespace")
        });
        made.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(super) fn config(directory: &Path) -> String {
    let path = directory.display();
    format!(
        r#"version = 2
root = "{path}/root"
state = "{path}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{path}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGIN_DIRECTORY}"
conf_dir = "{path}/net.d"
max_conf_num = 1
"#
    )
}

/// Ends the pods of test runs that are gone.
pub(super) fn sweep() {
    end_processes(|words| {
        let owner = words
            .first()
            .and_then(|program| program.strip_prefix('/')?.strip_prefix(PROGRAM))
            .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists())
    });
}

/// Kills the processes whose command line is of ours.
pub(super) fn end_processes(ours: impl Fn(&[String]) -> bool) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> = line
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        if ours(&words) {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}
