//! The environment of a test's containerd: private mounts, configuration, removal of leftovers of earlier runs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::PLUGINS;
use crate::mounts::PrivateMounts;

/// The image of sandboxes, whose program waits for signals.
pub const IMAGE: &str = "localhost/ipconflict-pause:1";

/// The start of the name of every pause program; the id of the process that created it follows.
pub(super) const PROGRAM: &str = "ipconflict-pause-";

/// Creates a mount namespace with an empty `/run` and `/var/lib`; with the directory of a node's containerd also as
/// [`mount_node_paths`] does.
pub(super) fn private_mounts(node: Option<&Path>) -> Result<PrivateMounts> {
    PrivateMounts::create(|| {
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
            .context("making mounts private")?;
        // A mount hidden by the tmpfs stays in the list of mounts, where containerd would find it by its path. Fails when
        // nothing is mounted there any more.
        while umount2("/run/netns", MntFlags::MNT_DETACH).is_ok() {}
        for path in ["/run", "/var/lib"] {
            mount(
                Some("tmpfs"),
                path,
                Some("tmpfs"),
                MsFlags::empty(),
                Some("size=256m"),
            )
            .with_context(|| format!("mounting an empty {path}"))?;
        }
        node.map_or(Ok(()), mount_node_paths)
    })
}

/// Kernel parameters that kubelet sets for the whole machine, with the values that it sets.
const KUBELET_PARAMETERS: [(&str, &str); 4] = [
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

/// Mounts a containerd's directory where a node has it, an empty `/var/log`, and what keeps kubelet from changing the
/// machine. The mounts are shared, as on a node, so that later ones propagate to containers.
fn mount_node_paths(directory: &Path) -> Result<()> {
    let none = None::<&str>;
    let bind = |from: &Path, to: &str| {
        mount(Some(from), to, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("mounting {} on {to}", from.display()))
    };
    mount(
        Some("tmpfs"),
        "/var/log",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=256m"),
    )
    .context("mounting an empty /var/log")?;
    for (parameter, value) in KUBELET_PARAMETERS {
        // kubelet finds the value it would set, and writes nothing.
        let file = Path::new("/run/kernel-parameters").join(parameter.replace('/', "."));
        fs::create_dir_all("/run/kernel-parameters")?;
        fs::write(&file, value)?;
        bind(&file, &format!("/proc/sys/{parameter}"))?;
    }
    // /etc/cni need not exist on the machine.
    for path in ["/run/etc/upper/cni/net.d", "/run/etc/work"] {
        fs::create_dir_all(path)?;
    }
    mount(
        Some("overlay"),
        "/etc",
        Some("overlay"),
        MsFlags::empty(),
        Some("lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work"),
    )
    .context("mounting a writable layer on /etc")?;
    bind(&directory.join("net.d"), "/etc/cni/net.d")?;
    mount(none, "/", none, MsFlags::MS_SHARED | MsFlags::MS_REC, none)
        .context("making the mounts shared")?;
    fs::create_dir_all("/run/containerd")?;
    bind(directory, "/run/containerd")
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
bin_dir = "{path}/{PLUGINS}"
conf_dir = "{path}/net.d"
max_conf_num = 1
"#
    )
}

/// Kills the pods of test runs whose process no longer exists.
pub(super) fn remove_leftovers() {
    kill_processes(|arguments| {
        let owner = arguments
            .first()
            .and_then(|program| program.strip_prefix('/')?.strip_prefix(PROGRAM))
            .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists())
    });
}

/// Kills the processes whose command line `is_ours` accepts.
pub(super) fn kill_processes(is_ours: impl Fn(&[String]) -> bool) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments: Vec<String> = line
            .split(|byte| *byte == 0)
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        if is_ours(&arguments) {
            // Fails if it has exited meanwhile.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}
