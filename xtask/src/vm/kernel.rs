//! The guests' kernels: Debian's cloud kernels of two long-term series, downloaded as packages and
//! unpacked under the target directory, never installed.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{files, process, workspace::Workspace};

/// A kernel series that the tests run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestKernel {
    /// Major and minor version.
    pub(super) series: &'static str,
    /// Whether it has TCX (since Linux 6.6, commit e420bed02507).
    pub(super) has_tcx: bool,
}

/// All series; 6.1 is the oldest one tested.
const KERNELS: [GuestKernel; 2] = [
    GuestKernel {
        series: "6.1",
        has_tcx: false,
    },
    GuestKernel {
        series: "6.12",
        has_tcx: true,
    },
];

/// An unpacked kernel package.
#[derive(Debug)]
pub(super) struct UnpackedKernel {
    dir: PathBuf,
    /// The kernel release (`uname -r`).
    pub(super) release: String,
}

impl GuestKernel {
    /// The kernels whose series is in `only`, or all if it is empty.
    ///
    /// # Errors
    /// `only` holds an unknown series.
    pub(super) fn select(only: &[String]) -> Result<Vec<Self>> {
        let known = KERNELS.map(|kernel| kernel.series);
        if let Some(unknown) = only.iter().find(|series| !known.contains(&series.as_str())) {
            bail!(
                "unknown kernel series `{unknown}`; available: {}",
                known.join(", ")
            );
        }
        let is_selected =
            |kernel: &Self| only.is_empty() || only.iter().any(|series| series == kernel.series);
        Ok(KERNELS.into_iter().filter(is_selected).collect())
    }

    /// Downloads and unpacks the newest package of the series, unless that was done before.
    ///
    /// # Errors
    /// The package lists have none, or it cannot be downloaded or unpacked.
    pub(super) fn fetch(self, workspace: &Workspace) -> Result<UnpackedKernel> {
        let package = self.newest_package()?;
        let dir = workspace.target().join("vm").join("kernels").join(&package);
        let complete = dir.join("complete");
        if !complete.exists() {
            files::create_dir(&dir)?;
            process::run(
                Command::new("apt-get")
                    .args(["download", "-qq", "--option", "APT::Sandbox::User=root"])
                    .arg(&package)
                    .current_dir(&dir),
            )?;
            let archive = find_entry(&dir, |name| name.ends_with(".deb"))?;
            process::run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&dir))?;
            let release = unpacked_release(&dir)?;
            process::run(
                Command::new("/sbin/depmod")
                    .arg("-b")
                    .arg(&dir)
                    .arg(&release),
            )?;
            files::write(&complete, "")?;
        }
        let release = unpacked_release(&dir)?;
        Ok(UnpackedKernel { dir, release })
    }

    fn newest_package(self) -> Result<String> {
        let pattern = format!(
            "^linux-image-{}\\.[0-9].*-cloud-amd64$",
            self.series.replace('.', "\\.")
        );
        let found =
            process::output(Command::new("apt-cache").args(["search", "--names-only", &pattern]))?;
        found
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .max_by_key(|name| version_numbers(name))
            .map(str::to_owned)
            .with_context(|| {
                format!(
                    "the package lists have no kernel {}: run `apt-get update`, or use a Debian release that has it",
                    self.series
                )
            })
    }
}

impl UnpackedKernel {
    /// The bootable image.
    pub(super) fn image(&self) -> PathBuf {
        self.dir
            .join("boot")
            .join(format!("vmlinuz-{}", self.release))
    }

    /// The modules, laid out as `/lib/modules`.
    pub(super) fn modules(&self) -> PathBuf {
        self.dir.join("lib").join("modules")
    }

    /// The files of `module` and its dependencies in load order; empty if it is built in.
    pub(super) fn module_files(&self, module: &str) -> Result<Vec<PathBuf>> {
        let steps = process::output(
            Command::new("/sbin/modprobe")
                .arg("-d")
                .arg(&self.dir)
                .args(["-S", &self.release, "--show-depends", module]),
        )?;
        let file = |line: &str| line.strip_prefix("insmod ").map(|f| f.trim().into());
        Ok(steps.lines().filter_map(file).collect())
    }
}

/// The numbers in a package name, for comparison: `6.12.9` is older than `6.12.117`.
fn version_numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

fn unpacked_release(dir: &Path) -> Result<String> {
    let modules = find_entry(&dir.join("lib").join("modules"), |_| true)?;
    let name = modules.file_name().unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

fn find_entry(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    files::read_dir(dir)?
        .filter_map(Result::ok)
        .find(|entry| is_wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .with_context(|| format!("{} has unexpected contents", dir.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn versions_are_compared_numerically() {
        assert!(version_numbers("linux-image-6.12.117") > version_numbers("linux-image-6.12.99"));
    }

    #[test]
    fn unknown_series_is_named() {
        let error = GuestKernel::select(&["5.4".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("`5.4`"), "{error}");
    }
}
