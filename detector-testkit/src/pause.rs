//! The smallest pod there is: an image with one static program that waits for signals, made here, so that no test
//! fetches anything.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::netns::finish;

const SOURCE: &str = "
#include <signal.h>
#include <unistd.h>
static void end(int signal) { (void)signal; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
";

/// Builds the image `name` as an archive in `directory`, of the form `docker save` writes. Its program is
/// `/<program>`, so that its processes can be told from others.
///
/// # Errors
/// Where `gcc` (with a static libc) or `tar` is missing.
pub fn archive(directory: &Path, name: &str, program: &str) -> Result<PathBuf> {
    let work = directory.join("pause");
    fs::create_dir(&work).context("a directory for the pause image")?;
    fs::write(work.join("pause.c"), SOURCE)?;
    run(
        &work,
        "gcc",
        &["-static", "-Os", "-s", "-o", program, "pause.c"],
    )
    .context("compiling the pause program (gcc and libc6-dev; cargo xtask setup installs them)")?;
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
    finish(command, None).map(drop)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
