//! The guest's initramfs: busybox, the modules needed to mount the shared file system, and `init.sh`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::kernel::UnpackedKernel;
use crate::{files, process};

/// Modules that `init.sh` needs before the shared file system is mounted.
const MODULES: [&str; 3] = ["virtio_pci", "virtiofs", "overlay"];

/// Writes the initramfs for `kernel` into `dir` and returns its path.
///
/// # Errors
/// A file cannot be written, or `cpio` or `xz` failed.
pub(super) fn write(dir: &Path, kernel: &UnpackedKernel) -> Result<PathBuf> {
    let root = dir.join("initramfs");
    // Left by an earlier run.
    let _ = fs::remove_dir_all(&root);
    for subdir in [
        "bin", "proc", "sys", "dev", "host", "layer", "root", "modules",
    ] {
        files::create_dir(&root.join(subdir))?;
    }
    files::copy(Path::new("/bin/busybox"), &root.join("bin/busybox"))?;
    let mut number = 0;
    for module in MODULES {
        for file in kernel.module_files(module)? {
            number += 1;
            unpack(&file, &root.join("modules").join(format!("{number:03}.ko")))?;
        }
    }
    let init = root.join("init");
    files::write(&init, include_str!("init.sh"))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
        .context("could not make init executable")?;
    let archive = dir.join("initramfs.cpio");
    process::run(
        Command::new("sh")
            .args([
                "-c",
                "find . | cpio --quiet --create --format=newc > \"$0\"",
            ])
            .arg(&archive)
            .current_dir(&root),
    )?;
    Ok(archive)
}

/// Copies a module, decompressed: some kernel packages compress modules, and `insmod` needs them plain.
fn unpack(from: &Path, to: &Path) -> Result<()> {
    if from.extension().is_some_and(|extension| extension == "xz") {
        process::run(
            Command::new("sh")
                .args(["-c", "xz --decompress --stdout \"$0\" > \"$1\""])
                .arg(from)
                .arg(to),
        )
    } else {
        files::copy(from, to)
    }
}
