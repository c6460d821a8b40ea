//! Commands that run to completion.

use std::{
    io::{Seek as _, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// Runs a command to completion with `input` on stdin and returns its stdout.
pub(crate) fn run_command(mut command: Command, input: Option<&str>) -> Result<String> {
    let shown = format!("{command:?}");
    command.stdin(match input {
        // A file, because a pipe deadlocks with a command that writes more than a pipe holds before it has read its input:
        // iproute2 warns about lines of a batch.
        Some(input) => {
            let mut file = tempfile::tempfile().context("creating a temporary file")?;
            file.write_all(input.as_bytes())
                .and_then(|()| file.rewind())
                .with_context(|| format!("writing the input of {shown}"))?;
            Stdio::from(file)
        }
        None => Stdio::null(),
    });
    let output = command
        .output()
        .with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        bail!(
            "{shown}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim(),
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn command_may_write_much_before_it_reads_its_input() {
        let mut command = Command::new("timeout");
        command.args(["60", "sh", "-c", "seq 100000 >&2; wc -c"]);
        let input = "line\n".repeat(100_000);
        assert_eq!(run_command(command, Some(&input)).unwrap(), "500000\n");
    }
}
