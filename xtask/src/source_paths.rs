//! Where the sources of a build are on this machine. A release contains none of these paths, so that it does not depend on
//! where it was built.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{process, workspace::Workspace};

/// Compiler flags that replace the directories of cargo's sources, the checkout and the standard library's source with fixed
/// names.
///
/// # Errors
/// The compiler does not report where it is installed.
pub(crate) fn remap_flags(workspace: &Workspace, rustc: &Path) -> Result<Vec<OsString>> {
    let sysroot = process::output(Command::new(rustc).args(["--print", "sysroot"]))?;
    let library = Path::new(sysroot.trim_end()).join("lib/rustlib/src/rust");
    // The last matching prefix is used.
    let flags = cargo_home()
        .into_iter()
        .map(|home| remap(&home, "/cargo"))
        .chain([remap(workspace.root(), "/src"), remap(&library, "/rust")]);
    Ok(flags.collect())
}

fn remap(prefix: &Path, replacement: &str) -> OsString {
    let mut flag = OsString::from("--remap-path-prefix=");
    flag.push(prefix);
    flag.push("=");
    flag.push(replacement);
    flag
}

/// The directories whose paths a release must not contain.
pub(crate) fn of_this_machine(workspace: &Workspace) -> impl Iterator<Item = PathBuf> {
    cargo_home()
        .into_iter()
        .chain([workspace.root().to_path_buf()])
}

/// The directory of the dependencies' sources.
fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
}
