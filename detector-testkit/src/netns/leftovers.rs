//! Removal of namespaces whose creating process, named in the namespace name, no longer exists.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{DIRECTORY, PREFIX, remove};
use crate::process::children;

/// Removes the namespaces of dead processes and kills what still runs in them, such as the agent of a killed test, with its
/// child processes.
pub fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(owner_of) else {
            continue;
        };
        if Path::new("/proc").join(owner.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        kill_processes_in(&path);
        // Another run may be removing it too; whatever remains is removed by the next run.
        let _ = remove(&path);
    }
}

/// The id of the process that created the namespace of this name; `None` if it was not created here.
fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

fn kill_processes_in(namespace: &Path) {
    let Ok(wanted) = fs::metadata(namespace).map(|data| (data.dev(), data.ino())) else {
        return;
    };
    let Ok(processes) = fs::read_dir("/proc") else {
        return;
    };
    let mut pids: Vec<u32> = Vec::new();
    for process in processes.flatten() {
        let inside = fs::metadata(process.path().join("ns/net"))
            .is_ok_and(|data| (data.dev(), data.ino()) == wanted);
        let name = process.file_name();
        if inside && let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            pids.push(pid);
        }
    }
    // A container runtime's processes are inside, those of its pods are not.
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        next += 1;
        pids.extend(children(parent));
    }
    for pid in pids {
        if let Ok(pid) = i32::try_from(pid) {
            // It may have been killed as a child process as well.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::owner_of;

    #[test]
    fn owner_is_the_process_id_in_the_name() {
        assert_eq!(owner_of("ipconflict-4711-0-node"), Some(4711));
        assert_eq!(owner_of("cni-4711"), None);
        assert_eq!(owner_of("ipconflict-x-0-node"), None);
    }
}
