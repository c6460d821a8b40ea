//! Builds the pause image, which contains one static program that waits for signals, so that no test downloads an image.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::command::run_command;

const SOURCE: &str = "
#include <signal.h>
#include <unistd.h>
static void terminate(int signal) { (void)signal; _exit(0); }
int main(void) { signal(SIGTERM, terminate); signal(SIGINT, terminate); for (;;) pause(); }
";

/// Builds the image `name` as an archive in `directory`, in the format of `docker save`. Its program is `/<program>`, a unique
/// name by which its processes are found.
///
/// # Errors
/// `gcc` (with a static libc) or `tar` is missing.
pub fn build_archive(directory: &Path, name: &str, program: &str) -> Result<PathBuf> {
    let work = directory.join("pause");
    fs::create_dir(&work).context("creating a directory for the pause image")?;
    fs::write(work.join("pause.c"), SOURCE)?;
    run(
        &work,
        "gcc",
        &["-static", "-Os", "-s", "-o", program, "pause.c"],
    )
    .context("compiling the pause program (requires gcc and libc6-dev; `cargo xtask setup` installs them)")?;
    tar(&work, "layer.tar", &[program])?;
    let layer = fs::read(work.join("layer.tar"))?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Entrypoint": [format!("/{program}")]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&Sha256::digest(&layer)))]},
    });
    fs::write(work.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(work.join("manifest.json"), manifest.to_string())?;
    tar(
        &work,
        "image.tar",
        &["manifest.json", "config.json", "layer.tar"],
    )?;
    Ok(work.join("image.tar"))
}

fn tar(work: &Path, archive: &str, members: &[&str]) -> Result<()> {
    let mut args = vec!["--owner=0", "--group=0", "-cf", archive];
    args.extend(members);
    run(work, "tar", &args)
}

fn run(work: &Path, program: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.current_dir(work).args(args);
    run_command(command, None).map(drop)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
