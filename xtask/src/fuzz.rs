//! `fuzz`: runs libFuzzer over every parser of untrusted input, with the stable compiler.
//!
//! Sanitizer coverage is an LLVM pass that stable rustc can enable; no sanitizer is linked. The
//! instrumented build, found inputs and logs are in `target/fuzz`.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{files, process, setup, stdout::print_line, workspace::Workspace};

/// Time limit for one input.
const INPUT_SECONDS: u32 = 10;
/// Memory limit.
const MEMORY_MIB: u32 = 1024;

/// Bounds in bytes for the longest input of a corpus, from which `-max_len` is derived.
const MIN_INPUT: u64 = 32;
const MAX_INPUT: u64 = 8192;

/// Coverage instrumentation for libFuzzer: the flags of `cargo fuzz --sanitizer none`.
const COVERAGE: [&str; 7] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct FuzzOptions {
    /// Seconds per target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Targets to fuzz in parallel; default the number of CPUs
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// Add inputs that reached new code to fuzz/corpus
    #[arg(long)]
    keep: bool,
    /// Targets to fuzz; default all
    targets: Vec<String>,
}

/// Builds the fuzzer and fuzzes each target.
///
/// # Errors
/// The build or a target failed. A failing input is saved in the corpus, which `cargo test` replays.
pub(crate) fn run(workspace: &Workspace, options: &FuzzOptions) -> Result<()> {
    setup::ensure(workspace, &[setup::FUZZ])?;
    let corpus = workspace.root().join("fuzz/corpus");
    let targets = select_targets(&corpus, &options.targets)?;
    let runner = FuzzRunner {
        binary: build(workspace)?,
        corpus,
        work_dir: workspace.target().join("fuzz"),
    };
    let queue = Mutex::new(targets.iter());
    let jobs = options
        .jobs
        .map_or_else(thread::available_parallelism, |jobs| {
            usize::from(jobs).try_into().map_err(std::io::Error::other)
        })
        .map_or(1, usize::from);
    print_line(FuzzStats::HEADING)?;
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(target) = next else { break };
                    let result = runner
                        .fuzz(target, options)
                        .and_then(|stats| print_line(stats.row(target)));
                    if let Err(error) = result {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push(format!("{target}: {error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// The requested targets, or all: the subdirectories of the corpus (a test of `detector-fuzz` checks
/// that every target has one).
fn select_targets(corpus: &Path, requested: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in files::read_dir(corpus)? {
        all.extend(entry?.file_name().into_string().ok());
    }
    all.sort_unstable();
    if let Some(unknown) = requested.iter().find(|name| !all.contains(name)) {
        bail!(
            "unknown target `{unknown}`; the targets are {}",
            all.join(", ")
        );
    }
    all.retain(|name| requested.is_empty() || requested.contains(name));
    Ok(all)
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    let triple = host_triple()?;
    let target = workspace.target().join("fuzz");
    let mut command = workspace.cargo();
    command
        .args(["build", "--package", "detector-fuzz", "--bin", "fuzz"])
        .args(["--features", "libfuzzer", "--profile", "fuzz"])
        // With --target, the flags do not apply to build scripts and procedural macros.
        .args(["--target", &triple])
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
    process::run(&mut command)?;
    Ok(target.join(triple).join("fuzz/fuzz"))
}

fn host_triple() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = process::output(Command::new(rustc).arg("-vV"))?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("`rustc -vV` printed no host")
}

/// Runs the fuzzer.
struct FuzzRunner {
    binary: PathBuf,
    /// Committed inputs, one subdirectory per target.
    corpus: PathBuf,
    /// Found inputs and logs.
    work_dir: PathBuf,
}

impl FuzzRunner {
    /// Fuzzes one target; with `--keep`, adds found inputs to the corpus.
    fn fuzz(&self, target: &str, options: &FuzzOptions) -> Result<FuzzStats> {
        let committed = self.corpus.join(target);
        let found = self.work_dir.join("found").join(target);
        files::create_dir(&committed)?;
        files::create_dir(&found)?;
        let log = self.work_dir.join(format!("{target}.log"));
        let mut fuzz = self.command(target, &log)?;
        fuzz.arg(format!("-max_total_time={}", options.seconds))
            // Save a failing input to the corpus, which the tests replay.
            .arg(format!("-artifact_prefix={}/", committed.display()))
            .args([&found, &committed]);
        process::run(&mut fuzz).with_context(|| {
            format!(
                "an input made it fail: see {}, fix the bug and commit the input added to {}",
                log.display(),
                committed.display()
            )
        })?;
        let stats = FuzzStats::read(&log)?;
        if options.keep {
            let log = self.work_dir.join(format!("{target}.merge.log"));
            let mut merge = self.command(target, &log)?;
            process::run(merge.arg("-merge=1").args([&committed, &found]))
                .with_context(|| format!("could not merge the corpus: see {}", log.display()))?;
        }
        Ok(stats)
    }

    fn command(&self, target: &str, log: &Path) -> Result<Command> {
        let log = files::create(log)?;
        let mut command = Command::new(&self.binary);
        command
            .env("FUZZ_TARGET", target)
            .arg(format!(
                "-max_len={}",
                2 * longest_input(&self.corpus.join(target))?
            ))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .args(["-print_final_stats=1", "-detect_leaks=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(command)
    }
}

/// Size in bytes of the longest input in a directory, within bounds.
fn longest_input(dir: &Path) -> Result<u64> {
    let mut longest = MIN_INPUT;
    for entry in files::read_dir(dir)? {
        longest = longest.max(entry?.metadata()?.len());
    }
    Ok(longest.min(MAX_INPUT))
}

/// Statistics of a run, from libFuzzer's log.
#[derive(Debug, PartialEq, Eq)]
struct FuzzStats {
    runs: u64,
    duration: Duration,
    /// Control-flow edges reached.
    edges: u64,
    /// Inputs in the corpus.
    inputs: u64,
    peak_mib: u64,
}

impl FuzzStats {
    const HEADING: &str = "target                 inputs run   inputs/s   edges   corpus   memory";

    fn read(log: &Path) -> Result<Self> {
        let text = files::read(log)?;
        Self::parse(&String::from_utf8_lossy(&text))
            .with_context(|| format!("{} holds no statistics", log.display()))
    }

    fn parse(log: &str) -> Option<Self> {
        let statistic = |name: &str| {
            let mut lines = log.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        // `#123 DONE cov: 45 ft: 67 corp: 8/90b …`, `Done 123 runs in 4 second(s)`.
        let status = log.lines().rfind(|line| line.contains(" cov: "))?;
        let number = |key: &str| -> Option<u64> {
            let (_, rest) = status.split_once(key)?;
            let digits = rest
                .trim_start()
                .split(|c: char| !c.is_ascii_digit())
                .next()?;
            digits.parse().ok()
        };
        let done = log.lines().find_map(|line| line.strip_prefix("Done "))?;
        let seconds = done.split_whitespace().nth(3)?.parse().ok()?;
        Some(Self {
            runs: statistic("stat::number_of_executed_units:")?,
            duration: Duration::from_secs(seconds),
            edges: number(" cov:")?,
            inputs: number(" corp:")?,
            peak_mib: statistic("stat::peak_rss_mb:")?,
        })
    }

    fn row(&self, target: &str) -> String {
        let rate = self.runs / self.duration.as_secs().max(1);
        format!(
            "{:<20} {:>12} {rate:>10} {:>7} {:>8} {:>4} MiB",
            target, self.runs, self.edges, self.inputs, self.peak_mib
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_parsed_from_the_log() {
        let log = "INFO: seed\n#2\tINITED cov: 9 ft: 9 corp: 1/1b exec/s: 0 rss: 30Mb\n\
                   #4096\tDONE   cov: 112 ft: 230 corp: 31/402b lim: 64 exec/s: 2048 rss: 35Mb\n\
                   Done 4096 runs in 2 second(s)\n\
                   stat::number_of_executed_units: 4096\nstat::peak_rss_mb:              35\n";
        let expected = FuzzStats {
            runs: 4096,
            duration: Duration::from_secs(2),
            edges: 112,
            inputs: 31,
            peak_mib: 35,
        };
        assert_eq!(FuzzStats::parse(log), Some(expected));
        assert_eq!(FuzzStats::parse("BINGO"), None);
    }
}
