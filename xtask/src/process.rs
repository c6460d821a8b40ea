//! Starting other programs, with errors that name the command and how it ended.

use std::{
    ffi::OsStr,
    io,
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// The command as a person would type it, without its environment.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program()];
    words.extend(command.get_args());
    words
        .into_iter()
        .map(|word| quoted(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs to the end with this process's input and output.
///
/// # Errors
/// The program could not be started, or did not exit with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| not_started(command.get_program()))?;
    succeeded(command, status)
}

/// Runs to the end and returns what it printed; its errors go to this process's stderr.
///
/// # Errors
/// The program could not be started, did not exit with 0, or printed no UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| not_started(command.get_program()))?;
    succeeded(command, output.status)?;
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` did not print UTF-8", shown(command)))
}

/// Runs to the end and returns what it printed, or nothing when it could not run or failed.
pub(crate) fn probe(command: &mut Command) -> Option<String> {
    let output: io::Result<_> = command.stderr(Stdio::null()).output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

fn not_started(program: &OsStr) -> String {
    format!("could not start `{}`", program.to_string_lossy())
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("echo");
        command.args(["--plain=1", "two words", "it's", ""]);
        assert_eq!(shown(&command), r"echo --plain=1 'two words' 'it'\''s' ''");
    }

    #[test]
    fn failing_command_is_named_with_its_exit_status() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
    }

    #[test]
    fn missing_program_is_named() {
        let error = run(&mut Command::new("/nonexistent/tool")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not start `/nonexistent/tool`".to_owned()
        );
    }
}
