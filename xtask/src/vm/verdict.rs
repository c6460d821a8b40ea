//! What a guest's console says, and what follows from it.

use std::{
    fs::File,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::plan::Binary;
use crate::say::say;

/// Marks the lines that are for us.
const MARK: &str = "@@ ";
/// Lines kept of a binary, to be shown where it failed.
const KEPT: usize = 4000;

/// How one kernel did.
#[derive(Debug)]
pub(super) struct Verdict {
    series: String,
    began: Instant,
    release: Option<String>,
    left_out: Vec<String>,
    /// Binaries that have not ended, in the order they run.
    waiting: Vec<String>,
    passed: usize,
    tests: usize,
    wrong: Vec<String>,
    output: Vec<String>,
    done: bool,
}

impl Verdict {
    pub(super) fn new(series: &str, left_out: Vec<String>, binaries: &[Binary]) -> Self {
        Self {
            series: series.to_owned(),
            began: Instant::now(),
            release: None,
            left_out,
            waiting: binaries.iter().map(|binary| binary.name.clone()).collect(),
            passed: 0,
            tests: 0,
            wrong: Vec::new(),
            output: Vec::new(),
            done: false,
        }
    }

    /// The guest could not even be started.
    pub(super) fn broken(series: &str, why: &anyhow::Error) -> Self {
        let mut verdict = Self::new(series, Vec::new(), &[]);
        verdict
            .wrong
            .push(format!("the guest did not start: {why:#}"));
        verdict
    }

    /// Takes a line of the console.
    ///
    /// # Errors
    /// It cannot be kept, or nobody reads what is said.
    pub(super) fn hear(&mut self, line: &str, log: &mut File) -> Result<()> {
        writeln!(log, "{line}").context("could not keep the guest's console")?;
        let Some(marked) = line.find(MARK).and_then(|at| line.get(at + MARK.len()..)) else {
            if let Some(count) = passed_in(line) {
                self.tests += count;
            }
            if self.output.len() < KEPT {
                self.output.push(line.to_owned());
            }
            return Ok(());
        };
        let words: Vec<&str> = marked.split(' ').collect();
        match words.as_slice() {
            ["booted", release] => {
                self.release = Some((*release).to_owned());
                say(format!("Linux {}: booted {release}", self.series))?;
            }
            ["begin", _] => self.output.clear(),
            ["end", name, status, seconds] => {
                self.waiting.retain(|waiting| waiting != name);
                let series = &self.series;
                if *status == "0" {
                    self.passed += 1;
                    say(format!("Linux {series}: {name} passed in {seconds} s"))?;
                } else {
                    let why = if *status == "124" { "hung" } else { "failed" };
                    self.wrong.push(format!("{name} {why} after {seconds} s"));
                    say(format!("Linux {series}: {name} {why}; its output:"))?;
                    for line in &self.output {
                        say(format!("    {line}"))?;
                    }
                }
            }
            ["broken", ..] => self.wrong.push(marked.to_owned()),
            ["done"] => self.done = true,
            _ => {}
        }
        Ok(())
    }

    /// The deadline came first.
    pub(super) fn hung(&mut self, deadline: Duration) {
        self.wrong.push(format!(
            "the guest hung: ended after {} s",
            deadline.as_secs()
        ));
    }

    /// The guest switched itself off, or died.
    pub(super) fn ended(&mut self) {
        if !self.done {
            self.wrong
                .push("the guest died before the end; see its console.log".to_owned());
        }
    }

    fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.done && self.waiting.is_empty() && self.tests > 0
    }

    /// Says it all.
    ///
    /// # Errors
    /// Nobody reads it.
    pub(super) fn print(&self) -> Result<()> {
        say(format!(
            "Linux {} ({}): {} — {} tests passed in {} binaries, {} s",
            self.series,
            self.release.as_deref().unwrap_or("did not boot"),
            if self.is_good() { "good" } else { "NOT GOOD" },
            self.tests,
            self.passed,
            self.began.elapsed().as_secs(),
        ))?;
        for wrong in &self.wrong {
            say(format!("    {wrong}"))?;
        }
        if !self.waiting.is_empty() && !self.wrong.is_empty() {
            say(format!("    not reached: {}", self.waiting.join(", ")))?;
        }
        for left_out in &self.left_out {
            say(format!("    left out: {left_out}"))?;
        }
        Ok(())
    }
}

/// `test result: ok. 8 passed; 0 failed; …`
fn passed_in(line: &str) -> Option<usize> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    counts.split_once(" passed")?.0.parse().ok()
}

/// Ends with an error unless every verdict is good.
///
/// # Errors
/// One is not.
pub(super) fn summarise(verdicts: &[Verdict]) -> Result<()> {
    let bad: Vec<_> = verdicts
        .iter()
        .filter(|verdict| !verdict.is_good())
        .map(|verdict| verdict.series.as_str())
        .collect();
    if !bad.is_empty() {
        bail!("the tests do not pass on Linux {}", bad.join(" and "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn heard(lines: &[&str], binaries: usize) -> Verdict {
        let mut verdict = Verdict::new("0.0", Vec::new(), &[]);
        verdict.waiting = (0..binaries).map(|n| format!("b{n}")).collect();
        let mut log = tempfile::tempfile().unwrap();
        for line in lines {
            verdict.hear(line, &mut log).unwrap();
        }
        verdict
    }

    const RESULT: &str = "test result: ok. 3 passed; 0 failed; 0 ignored";

    #[test]
    fn all_that_was_planned_has_to_pass() {
        let all = ["@@ begin b0", RESULT, "@@ end b0 0 2", "@@ done"];
        assert!(heard(&all, 1).is_good());
        assert!(!heard(&all, 2).is_good(), "one binary never ran");
    }

    #[test]
    fn a_guest_that_dies_hangs_or_runs_no_test_is_not_good() {
        let mut died = heard(&["@@ begin b0", RESULT, "@@ end b0 0 2"], 1);
        died.ended();
        assert!(!died.is_good());
        let mut hung = heard(&["@@ begin b0", RESULT], 1);
        hung.hung(Duration::from_secs(1));
        assert!(!hung.is_good());
        assert!(!heard(&["@@ begin b0", "@@ end b0 0 2", "@@ done"], 1).is_good());
    }

    #[test]
    fn a_failed_binary_is_named() {
        let verdict = heard(&["@@ begin b0", "@@ end b0 101 7", "@@ done"], 1);
        assert!(!verdict.is_good());
        assert_eq!(verdict.wrong, ["b0 failed after 7 s"]);
    }
}
