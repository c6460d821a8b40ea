//! The guest's first file system: a shell, the modules that reach the shared one, and the script that goes there.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::kernel::Unpacked;
use crate::process;

/// What has to be loaded before the shared file system is there.
const MODULES: [&str; 3] = ["virtio_pci", "virtiofs", "overlay"];

/// Writes the archive for `kernel` into `folder` and says where.
///
/// # Errors
/// A file cannot be written, or a program that packs is missing.
pub(super) fn write(folder: &Path, kernel: &Unpacked) -> Result<PathBuf> {
    let root = folder.join("initramfs");
    // Left by a run that was ended.
    let _ = fs::remove_dir_all(&root);
    for part in [
        "bin", "proc", "sys", "dev", "host", "layer", "root", "modules",
    ] {
        let part = root.join(part);
        fs::create_dir_all(&part).with_context(|| format!("could not make {}", part.display()))?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).context("could not copy busybox")?;
    let mut number = 0;
    for module in MODULES {
        for file in kernel.files_of(module)? {
            number += 1;
            unpack(&file, &root.join("modules").join(format!("{number:03}.ko")))?;
        }
    }
    let init = root.join("init");
    fs::write(&init, include_str!("init.sh")).context("could not write init")?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
        .context("could not make init executable")?;
    let archive = folder.join("initramfs.cpio");
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

/// Modules are compressed in some kernels' packages; loading by path wants them plain.
fn unpack(from: &Path, to: &Path) -> Result<()> {
    if from.extension().is_some_and(|e| e == "xz") {
        process::run(
            Command::new("sh")
                .args(["-c", "xz --decompress --stdout \"$0\" > \"$1\""])
                .arg(from)
                .arg(to),
        )
    } else {
        fs::copy(from, to)
            .map(drop)
            .with_context(|| format!("could not copy {}", from.display()))
    }
}
