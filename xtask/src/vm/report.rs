//! The result of the tests on one kernel, from the guest's console.

use std::{
    collections::VecDeque,
    fs::File,
    io::Write as _,
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{artifact::Artifact, stdout::print_line};

/// Starts the lines that `init.sh` and `suite.sh` print for this module.
const MARKER: &str = "@@ ";
/// Lines of a binary's output that are kept, to be printed if it fails.
const MAX_OUTPUT_LINES: usize = 4000;
/// Last lines of the console that are printed if the guest dies or hangs: enough for a kernel's oops.
const CONSOLE_LINES: usize = 60;

/// The result of one kernel.
#[derive(Debug)]
pub(super) struct KernelReport {
    series: String,
    started: Instant,
    /// `None` until the guest has booted.
    release: Option<String>,
    exclusions: Vec<String>,
    /// Binaries that have not finished, in the order they run.
    pending: Vec<String>,
    passed_binaries: usize,
    passed_tests: usize,
    failures: Vec<String>,
    /// Output of the current binary.
    output: Vec<String>,
    /// The last lines of the console.
    console: VecDeque<String>,
    /// The guest died or was killed, so its last lines are printed.
    has_died: bool,
    /// The suite ran to its end.
    is_complete: bool,
}

impl KernelReport {
    pub(super) fn new(series: &str, exclusions: Vec<String>, binaries: &[Artifact]) -> Self {
        Self {
            series: series.to_owned(),
            started: Instant::now(),
            release: None,
            exclusions,
            pending: binaries.iter().map(|binary| binary.name.clone()).collect(),
            passed_binaries: 0,
            passed_tests: 0,
            failures: Vec::new(),
            output: Vec::new(),
            console: VecDeque::new(),
            has_died: false,
            is_complete: false,
        }
    }

    /// The guest could not be started.
    pub(super) fn not_started(series: &str, error: &anyhow::Error) -> Self {
        let mut report = Self::new(series, Vec::new(), &[]);
        report
            .failures
            .push(format!("the guest did not start: {error:#}"));
        report
    }

    /// Processes a line of the console and writes it to `log`.
    ///
    /// # Errors
    /// The log or stdout cannot be written.
    pub(super) fn process_line(&mut self, line: &str, log: &mut File) -> Result<()> {
        writeln!(log, "{line}").context("could not write the console log")?;
        if self.console.len() == CONSOLE_LINES {
            self.console.pop_front();
        }
        self.console.push_back(line.to_owned());
        let Some(message) = line
            .find(MARKER)
            .and_then(|at| line.get(at + MARKER.len()..))
        else {
            if let Some(count) = passed_count(line) {
                self.passed_tests += count;
            }
            if self.output.len() < MAX_OUTPUT_LINES {
                self.output.push(line.to_owned());
            }
            return Ok(());
        };
        let words: Vec<&str> = message.split(' ').collect();
        match words.as_slice() {
            ["booted", release] => {
                self.release = Some((*release).to_owned());
                print_line(format!("Linux {}: booted {release}", self.series))?;
            }
            ["begin", _] => self.output.clear(),
            ["end", name, status, seconds] => {
                self.pending.retain(|pending| pending != name);
                let series = &self.series;
                if *status == "0" {
                    self.passed_binaries += 1;
                    print_line(format!("Linux {series}: {name} passed in {seconds} s"))?;
                } else {
                    // The exit status of `timeout`.
                    let what = if *status == "124" {
                        "timed out"
                    } else {
                        "failed"
                    };
                    self.failures
                        .push(format!("{name} {what} after {seconds} s"));
                    print_line(format!(
                        "Linux {series}: {name} {what}; its output:{}",
                        indented(&self.output)
                    ))?;
                }
            }
            ["error", ..] => self.failures.push(message.to_owned()),
            ["done"] => self.is_complete = true,
            _ => {}
        }
        Ok(())
    }

    /// The guest exceeded its time limit.
    pub(super) fn guest_timed_out(&mut self, limit: Duration) {
        self.failures.push(format!(
            "the guest did not finish and was killed after {} s",
            limit.as_secs()
        ));
        self.has_died = true;
    }

    /// The guest powered off or died; `status` is the emulator's.
    pub(super) fn guest_exited(&mut self, status: ExitStatus) {
        if !self.is_complete {
            self.failures.push(format!(
                "the guest died before the end; the emulator ended with {status}"
            ));
            self.has_died = true;
        }
    }

    fn has_passed(&self) -> bool {
        self.failures.is_empty()
            && self.is_complete
            && self.pending.is_empty()
            && self.passed_tests > 0
    }

    /// Prints the report, in one piece because other guests may be running.
    ///
    /// # Errors
    /// stdout is closed.
    pub(super) fn print(&self) -> Result<()> {
        print_line(self.text())
    }

    fn text(&self) -> String {
        let mut text = format!(
            "Linux {} ({}): {} ({} tests in {} binaries passed, {} s)",
            self.series,
            self.release.as_deref().unwrap_or("did not boot"),
            if self.has_passed() {
                "passed"
            } else {
                "FAILED"
            },
            self.passed_tests,
            self.passed_binaries,
            self.started.elapsed().as_secs(),
        );
        text += &indented(&self.failures);
        if self.has_died {
            text += "\n    the last lines of its console:";
            text += &indented(&self.console);
        }
        if !self.pending.is_empty() && !self.failures.is_empty() {
            text += &indented([&format!("not run: {}", self.pending.join(", "))]);
        }
        for exclusion in &self.exclusions {
            text += &indented([&format!("excluded: {exclusion}")]);
        }
        text
    }
}

/// The lines, each on a line of its own, without the control characters that firmware and tests write.
fn indented<'a>(lines: impl IntoIterator<Item = &'a String>) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str("\n    ");
        text.extend(line.chars().filter(|c| !c.is_control() || *c == '\t'));
    }
    text
}

/// The number of passed tests in a line `test result: ok. 8 passed; 0 failed; …`.
fn passed_count(line: &str) -> Option<usize> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    counts.split_once(" passed")?.0.parse().ok()
}

/// Fails unless the tests passed on every kernel.
pub(super) fn check_all_passed(reports: &[KernelReport]) -> Result<()> {
    let failed: Vec<_> = reports
        .iter()
        .filter(|report| !report.has_passed())
        .map(|report| report.series.as_str())
        .collect();
    if !failed.is_empty() {
        bail!("the tests failed on Linux {}", failed.join(" and "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn report(lines: &[&str], binaries: usize) -> KernelReport {
        let mut report = KernelReport::new("0.0", Vec::new(), &[]);
        report.pending = (0..binaries).map(|n| format!("b{n}")).collect();
        let mut log = tempfile::tempfile().unwrap();
        for line in lines {
            report.process_line(line, &mut log).unwrap();
        }
        report
    }

    const RESULT: &str = "test result: ok. 3 passed; 0 failed; 0 ignored";

    #[test]
    fn every_planned_binary_has_to_pass() {
        let all = ["@@ begin b0", RESULT, "@@ end b0 0 2", "@@ done"];
        assert!(report(&all, 1).has_passed());
        assert!(!report(&all, 2).has_passed(), "one binary never ran");
    }

    #[test]
    fn dead_or_hanging_guest_or_no_tests_is_a_failure() {
        let mut died = report(&["@@ begin b0", RESULT, "@@ end b0 0 2"], 1);
        died.guest_exited(ExitStatus::default());
        assert!(!died.has_passed());
        let mut hung = report(&["@@ begin b0", RESULT], 1);
        hung.guest_timed_out(Duration::from_secs(1));
        assert!(!hung.has_passed());
        assert!(!report(&["@@ begin b0", "@@ end b0 0 2", "@@ done"], 1).has_passed());
    }

    #[test]
    fn report_of_a_dead_guest_ends_with_its_console() {
        let lines: Vec<String> = (0..100).map(|n| format!("[{n}] \u{1b}[2Joops")).collect();
        let mut report = report(&lines.iter().map(String::as_str).collect::<Vec<_>>(), 0);
        report.guest_exited(ExitStatus::from_raw(6));
        let text = report.text();
        assert!(text.contains("signal: 6"), "{text}");
        let shown: Vec<_> = text
            .lines()
            .filter(|line| line.ends_with("[2Joops"))
            .collect();
        assert_eq!(shown.len(), CONSOLE_LINES, "{text}");
        assert_eq!(shown.last(), Some(&"    [99] [2Joops"));
    }

    #[test]
    fn failed_binary_is_named() {
        let report = report(&["@@ begin b0", "@@ end b0 101 7", "@@ done"], 1);
        assert!(!report.has_passed());
        assert_eq!(report.failures, ["b0 failed after 7 s"]);
    }
}
