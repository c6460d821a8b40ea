//! What packages ship beside the agent: shell completions and manual pages.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_loads_the_completions() {
    let script = stdout(Command::new(AGENT).args(["completions", "bash"]));
    let mut bash = Command::new("bash")
        .args([
            "--norc",
            "-c",
            "source /dev/stdin && complete -p detector-agent",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let output = bash.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for shell in ["zsh", "fish"] {
        let script = stdout(Command::new(AGENT).args(["completions", shell]));
        assert!(script.contains("claim-ttl"), "{script}");
    }
}

#[test]
fn each_command_has_a_manual_page_with_its_settings() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    stdout(Command::new(AGENT).arg("man").arg(&pages));
    for (name, setting) in [
        ("detector-agent", "watch"),
        ("detector-agent-run", "IPCONFLICT_CLAIM_TTL"),
        ("detector-agent-check", "IPCONFLICT_STRICT"),
        ("detector-agent-watch", "IPCONFLICT_URL"),
        ("detector-agent-cleanup", "IPCONFLICT_FORCE"),
    ] {
        let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH ") && page.contains(setting), "{page}");
        for section in ["EXIT STATUS", "FILES", "SEE ALSO"] {
            assert!(
                page.contains(&format!(".SH \"{section}\"\n"))
                    || page.contains(&format!(".SH {section}\n")),
                "{section}: {page}"
            );
        }
    }
}

#[test]
fn help_has_examples_and_version_names_the_commit() {
    let help = stdout(Command::new(AGENT).args(["check", "--help"]));
    assert!(
        help.contains("\nExamples:\n") && help.contains("detector-agent check 10.244.2.12\n"),
        "{help}"
    );
    let [short, long] = ["version", "--version"].map(|arg| stdout(Command::new(AGENT).arg(arg)));
    assert_eq!(short, long);
    assert!(
        short.starts_with("detector-agent 0.") && short.contains("(commit "),
        "{short}"
    );
}

#[test]
fn help_is_grouped_by_headings() {
    let help = stdout(Command::new(AGENT).args(["run", "--help"]));
    let headings: Vec<_> = help
        .lines()
        .filter_map(|line| line.strip_suffix(':'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    assert_eq!(
        headings,
        [
            "Options",
            "Devices",
            "Tuning",
            "Output",
            "Pod names",
            "IPAM",
            "HTTP",
            "State",
            "Fleet",
            "Exit status",
            "Examples",
            "Files",
            "See also"
        ]
    );
}
