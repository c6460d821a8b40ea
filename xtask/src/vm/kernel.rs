//! The kernels: Debian's cloud kernels of two long-term series, fetched as packages and unpacked under the target
//! directory, never installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{process, workspace::Workspace};

/// A kernel series that the tests run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    /// Major and minor number.
    pub(super) series: &'static str,
    /// Has TCX (Linux 6.6, commit e420bed02507).
    pub(super) tcx: bool,
}

/// All of them. 6.1 is the oldest that is supported.
const KERNELS: [Kernel; 2] = [
    Kernel {
        series: "6.1",
        tcx: false,
    },
    Kernel {
        series: "6.12",
        tcx: true,
    },
];

/// A kernel's unpacked package.
#[derive(Debug)]
pub(super) struct Unpacked {
    folder: PathBuf,
    /// What `uname -r` says.
    pub(super) release: String,
}

impl Kernel {
    /// The kernels whose series are in `only`, or all where it is empty.
    ///
    /// # Errors
    /// A series that is not in the list.
    pub(super) fn chosen(only: &[String]) -> Result<Vec<Self>> {
        let known = KERNELS.map(|kernel| kernel.series);
        if let Some(unknown) = only.iter().find(|series| !known.contains(&series.as_str())) {
            bail!(
                "no kernel `{unknown}` to test on; there are: {}",
                known.join(", ")
            );
        }
        let wanted = |kernel: &Self| only.is_empty() || only.iter().any(|s| s == kernel.series);
        Ok(KERNELS.into_iter().filter(wanted).collect())
    }

    /// Fetches the newest package of the series, unless it is there.
    ///
    /// # Errors
    /// The package lists have none, or it cannot be fetched or unpacked.
    pub(super) fn fetch(self, workspace: &Workspace) -> Result<Unpacked> {
        let package = self.newest_package()?;
        let folder = workspace.target().join("vm").join("kernels").join(&package);
        if !folder.join("complete").exists() {
            fs::create_dir_all(&folder)
                .with_context(|| format!("could not make {}", folder.display()))?;
            process::run(
                Command::new("apt-get")
                    .args(["download", "-qq", "--option", "APT::Sandbox::User=root"])
                    .arg(&package)
                    .current_dir(&folder),
            )?;
            let archive = only_entry(&folder, |name| name.ends_with(".deb"))?;
            process::run(
                Command::new("dpkg-deb")
                    .arg("-x")
                    .arg(&archive)
                    .arg(&folder),
            )?;
            let release = release_in(&folder)?;
            process::run(
                Command::new("/sbin/depmod")
                    .arg("-b")
                    .arg(&folder)
                    .arg(&release),
            )?;
            fs::write(folder.join("complete"), "").context("could not note the kernel as whole")?;
        }
        let release = release_in(&folder)?;
        Ok(Unpacked { folder, release })
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
            .max_by_key(|name| numbers(name))
            .map(str::to_owned)
            .with_context(|| {
                format!(
                    "the package lists have no kernel {}: run `apt-get update`, or use a Debian whose sources have it",
                    self.series
                )
            })
    }
}

impl Unpacked {
    /// The bootable image.
    pub(super) fn image(&self) -> PathBuf {
        self.folder
            .join("boot")
            .join(format!("vmlinuz-{}", self.release))
    }

    /// The folder with the modules, as `/lib/modules` is laid out.
    pub(super) fn modules(&self) -> PathBuf {
        self.folder.join("lib").join("modules")
    }

    /// The files of `module` and of what it needs, in the order to load them; none where it is built in.
    pub(super) fn files_of(&self, module: &str) -> Result<Vec<PathBuf>> {
        let steps = process::output(
            Command::new("/sbin/modprobe")
                .arg("-d")
                .arg(&self.folder)
                .args(["-S", &self.release, "--show-depends", module]),
        )?;
        let file = |line: &str| line.strip_prefix("insmod ").map(|f| f.trim().into());
        Ok(steps.lines().filter_map(file).collect())
    }
}

/// `6.12.9` is older than `6.12.117`: the numbers in a name, as numbers.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

fn release_in(folder: &Path) -> Result<String> {
    let modules = only_entry(&folder.join("lib").join("modules"), |_| true)?;
    let name = modules.file_name().unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

fn only_entry(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    fs::read_dir(folder)
        .with_context(|| format!("could not read {}", folder.display()))?
        .filter_map(Result::ok)
        .find(|entry| wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .with_context(|| format!("{} does not hold what it should", folder.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(numbers("linux-image-6.12.117") > numbers("linux-image-6.12.99"));
    }

    #[test]
    fn a_kernel_nobody_knows_is_named() {
        let error = Kernel::chosen(&["5.4".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("`5.4`"), "{error}");
    }
}
