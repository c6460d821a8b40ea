//! Runs other programs; errors name the command and its exit status.

use std::{
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use detector_testkit::process::children;
use nix::{
    sys::{
        prctl::set_child_subreaper,
        signal::{Signal, kill},
    },
    unistd::Pid,
};

/// The command as one would type it in a shell, without its environment.
pub(crate) fn command_line(command: &Command) -> String {
    let mut words = vec![command.get_program()];
    words.extend(command.get_args());
    words
        .into_iter()
        .map(|word| shell_quote(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn shell_quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Starts a program.
///
/// # Errors
/// It could not be started.
pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().with_context(|| start_failure(command))
}

/// Runs a program to its end; it shares stdin, stdout and stderr with this process.
///
/// # Errors
/// It could not be started, or its exit status is not 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| start_failure(command))?;
    check_status(command, status)
}

/// Like [`run`], but kills the program and all its descendants after `limit`.
///
/// # Errors
/// As [`run`], or the program ran longer than `limit`.
pub(crate) fn run_with_limit(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = spawn(command)?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("could not wait for a program")? {
            return check_status(command, status);
        }
        if Instant::now() >= deadline {
            kill_tree(child.id());
            child.wait().context("could not wait for a program")?;
            bail!(
                "`{}` was killed: it took longer than {limit:?}",
                command_line(command)
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a program to its end and returns its stdout; stderr is shared with this process.
///
/// # Errors
/// It could not be started, its exit status is not 0, or its output is not UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| start_failure(command))?;
    check_status(command, output.status)?;
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` did not print UTF-8", command_line(command)))
}

/// Like [`output`], but returns `None` on any failure and discards stderr.
pub(crate) fn try_output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    let stdout = output.status.success().then_some(output.stdout)?;
    String::from_utf8(stdout).ok()
}

/// Makes this process the parent of orphaned descendants, so that [`kill_children`] reaches them.
pub(crate) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(true).context("could not become a child subreaper")
}

/// Kills all descendants of this process.
pub(crate) fn kill_children() {
    for child in children(std::process::id()) {
        kill_tree(child);
    }
}

/// Kills a child of this process and all its descendants.
///
/// Each process is stopped before its children are listed, so that it cannot fork in between.
fn kill_tree(root: u32) {
    let mut pids = vec![root];
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        next += 1;
        signal(parent, Signal::SIGSTOP);
        pids.extend(children(parent));
    }
    for pid in pids {
        signal(pid, Signal::SIGKILL);
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        // The process may have exited already.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

fn start_failure(command: &Command) -> String {
    format!(
        "could not start `{}`",
        command.get_program().to_string_lossy()
    )
}

fn check_status(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", command_line(command));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs;

    use super::*;

    #[test]
    fn command_line_can_be_pasted_into_a_shell() {
        let mut command = Command::new("echo");
        command.args(["--plain=1", "two words", "it's", ""]);
        assert_eq!(
            command_line(&command),
            r"echo --plain=1 'two words' 'it'\''s' ''"
        );
    }

    #[test]
    fn failing_command_is_named_with_its_exit_status() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
    }

    #[test]
    fn program_over_its_limit_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = run_with_limit(
            Command::new("sh").args(["-c", &script]),
            Duration::from_millis(500),
        )
        .unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        let pid = fs::read_to_string(&file).unwrap();
        let status = || fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        let deadline = Instant::now() + Duration::from_secs(10);
        // Gone, or a zombie: its new parent need not have reaped it yet.
        while status().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "{pid} still runs");
            thread::sleep(Duration::from_millis(1));
        }
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
