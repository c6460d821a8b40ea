//! Limits the processor time of a process by a cgroup of its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// `cpu.cfs_period_us` and the second value of `cpu.max`, in microseconds.
const PERIOD_US: u32 = 100_000;
const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";

/// A cgroup with a quota; on drop its processes return to the root cgroup.
#[derive(Debug)]
pub(super) struct CpuQuota {
    parent: PathBuf,
    path: PathBuf,
}

impl CpuQuota {
    /// Limits a process to this percentage of one core.
    pub(super) fn apply(pid: u32, percent: u32) -> Result<Self> {
        let quota = PERIOD_US / 100 * percent;
        let is_v1 = Path::new(V1).join("cpu.cfs_period_us").exists();
        let parent = PathBuf::from(if is_v1 { V1 } else { V2 });
        let path = parent.join(format!("ipconflict-soak-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        let this = Self { parent, path };
        if is_v1 {
            this.write("cpu.cfs_period_us", PERIOD_US.to_string())?;
            this.write("cpu.cfs_quota_us", quota.to_string())?;
        } else {
            let controllers = this.parent.join("cgroup.subtree_control");
            fs::write(controllers, "+cpu").context("enabling the cpu controller")?;
            this.write("cpu.max", format!("{quota} {PERIOD_US}"))?;
        }
        this.write("cgroup.procs", pid.to_string())?;
        let members = fs::read_to_string(this.path.join("cgroup.procs"))?;
        ensure!(
            members.lines().any(|line| line == pid.to_string()),
            "process {pid} is not in {}",
            this.path.display()
        );
        Ok(this)
    }

    fn write(&self, file: &str, value: String) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, &value).with_context(|| format!("writing {value} to {}", path.display()))
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        let members = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}
