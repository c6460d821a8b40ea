//! Operator mistakes: each gives one clear sentence and the right exit code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{fs, os::unix::fs::PermissionsExt as _};

use detector_testkit::{Agent, AgentCommand, Barrier, DEADLINE, Node, Outcome, PodSpec};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn run_with(node: &Node, args: &[&str]) -> Outcome {
    let args = ["run", "--events", "-"].iter().chain(args).copied();
    // With backtraces enabled the error is still one sentence.
    AgentCommand::new(AGENT, args)
        .env("RUST_BACKTRACE", "1")
        .run_to_end(node, DEADLINE)
        .unwrap()
}

/// Exit code 2 and one line on stderr.
fn one_sentence(outcome: &Outcome) -> &str {
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    let line = outcome.stderr.trim();
    assert_eq!(
        line.lines().count(),
        1,
        "more than a sentence:\n{}",
        outcome.stderr
    );
    line
}

#[test]
fn unknown_flag_is_named() {
    let node = Node::new("flag").unwrap();
    let outcome = run_with(&node, &["--no-such-flag"]);
    assert_eq!(outcome.code().unwrap(), 2);
    assert!(
        outcome.stderr.contains("--no-such-flag"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.stdout, "");
}

#[test]
fn bad_value_is_named_with_its_flag() {
    let node = Node::new("value").unwrap();
    for (flag, value) in [
        ("--allow", "10.0.0.0/40"),
        ("--listen", "nowhere"),
        ("--metrics-listen", "192.0.2.7"),
        ("--attach", "sideways"),
        ("--log-format", "xml"),
    ] {
        let outcome = run_with(&node, &[flag, value]);
        assert_eq!(outcome.code().unwrap(), 2, "{flag}");
        assert!(
            outcome.stderr.contains(flag) && outcome.stderr.contains(value),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn bad_value_in_the_environment_is_named() {
    let node = Node::new("env").unwrap();
    let outcome = AgentCommand::new(AGENT, ["run"])
        .env("IPCONFLICT_ATTACH", "sideways")
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 2);
    assert!(outcome.stderr.contains("sideways"), "{}", outcome.stderr);
}

#[test]
fn all_errors_of_the_config_file_are_reported_at_once() {
    let node = Node::new("file").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.yaml");
    fs::write(
        &path,
        "interfacs: ['cali*']\nallow: ['10.0.0.0/40']\nattach: sideways\nlisten: '127.0.0.1:1'\n",
    )
    .unwrap();
    let outcome = run_with(&node, &["--config", path.to_str().unwrap()]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    for wanted in [
        "agent.yaml",
        "interfacs",
        "allow",
        "10.0.0.0/40",
        "attach",
        "sideways",
    ] {
        assert!(
            outcome.stderr.contains(wanted),
            "{wanted} is not in {}",
            outcome.stderr
        );
    }
    assert!(
        !outcome.stderr.contains("listen"),
        "nothing is wrong with `listen`: {}",
        outcome.stderr
    );
}

#[test]
fn unreadable_config_file_is_named() {
    let node = Node::new("unreadable").unwrap();
    let outcome = run_with(&node, &["--config", "/nonexistent/agent.yaml"]);
    assert!(one_sentence(&outcome).contains("/nonexistent/agent.yaml"));
    let directory = tempfile::tempdir().unwrap();
    let outcome = run_with(&node, &["--config", directory.path().to_str().unwrap()]);
    assert!(one_sentence(&outcome).contains(directory.path().to_str().unwrap()));
}

#[test]
fn invalid_yaml_is_named() {
    let node = Node::new("noyaml").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.yaml");
    for content in [
        &b"interfaces: [unclosed"[..],
        b"\xff\xfe\x00",
        b"- a\n- list\n",
    ] {
        fs::write(&path, content).unwrap();
        let outcome = run_with(&node, &["--config", path.to_str().unwrap()]);
        assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
        assert!(outcome.stderr.contains("agent.yaml"), "{}", outcome.stderr);
    }
}

#[test]
fn missing_capability_is_named() {
    let node = Node::new("caps").unwrap();
    // CAP_SYS_ADMIN implies CAP_BPF and CAP_PERFMON, so it is dropped along with them.
    for (dropped, named) in [
        ("-all", "CAP_"),
        ("-net_admin", "CAP_NET_ADMIN"),
        ("-bpf,-sys_admin", "CAP_BPF"),
        ("-perfmon,-sys_admin", "CAP_PERFMON"),
        ("-net_broadcast", "CAP_NET_BROADCAST"),
    ] {
        let command = [
            "--bounding-set",
            dropped,
            "--inh-caps",
            "-all",
            AGENT,
            "run",
            "--events",
            "-",
        ];
        let outcome = AgentCommand::new("setpriv", command)
            .run_to_end(&node, DEADLINE)
            .unwrap();
        let sentence = one_sentence(&outcome);
        assert!(sentence.contains(named), "{dropped}: {sentence}");
    }
}

#[test]
fn unprivileged_user_gets_the_missing_capability_named() {
    let node = Node::new("user").unwrap();
    // A copy that the user `nobody` can execute.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("detector-agent");
    fs::copy(AGENT, &copy).unwrap();
    let copy = copy.to_str().unwrap();
    let command = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        copy,
        "run",
        "--events",
        "-",
    ];
    let outcome = AgentCommand::new("setpriv", command)
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert!(
        one_sentence(&outcome).contains("CAP_"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn kernel_without_btf_is_reported_in_one_sentence() {
    let node = Node::new("btf").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty");
    fs::write(&empty, "").unwrap();
    let garbage = directory.path().join("garbage");
    fs::write(&garbage, [0x9f; 4096]).unwrap();
    let missing = directory.path().join("missing");
    let by_environment = AgentCommand::new(AGENT, ["run"])
        .env("IPCONFLICT_BTF", &empty)
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert!(one_sentence(&by_environment).contains("BTF"));
    for path in [empty, garbage, missing] {
        let outcome = run_with(&node, &["--btf", path.to_str().unwrap()]);
        let sentence = one_sentence(&outcome);
        assert!(
            sentence.contains("BTF") && sentence.contains(path.to_str().unwrap()),
            "{sentence}"
        );
    }
}

#[test]
fn unwritable_event_file_is_named() {
    let node = Node::new("events").unwrap();
    let outcome = AgentCommand::new(AGENT, ["run", "--events", "/nonexistent/events"])
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert!(one_sentence(&outcome).contains("/nonexistent/events"));
}

#[test]
fn invalid_glob_is_named() {
    let node = Node::new("badglob").unwrap();
    let outcome = run_with(&node, &["--interfaces", "cali[*"]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert!(outcome.stderr.contains("cali[*"), "{}", outcome.stderr);
}

#[test]
fn glob_without_a_match_warns_and_the_agent_runs() {
    let node = Node::new("glob").unwrap();
    let _other = node
        .add_pod(&PodSpec::new("vethother").address("10.244.2.10/32"))
        .unwrap();
    let agent = Agent::start_ready(
        &node,
        &AgentCommand::run(AGENT).arg("--interfaces").arg("cali*"),
    )
    .unwrap();
    let log = agent.log();
    let warned = log
        .lines()
        .any(|line| line.contains(r#""level":"WARN""#) && line.contains("cali*"));
    assert!(warned, "no warning that names the pattern in:\n{log}");
    let specs = ["cali1", "cali2"].map(|device| PodSpec::new(device).address("10.244.2.10/32"));
    let _pods = node.add_pods(&specs).unwrap();
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    assert_eq!(
        raised.event.conflict().unwrap().devices(),
        ["cali1", "cali2"],
        "an excluded device is no claimant"
    );
}

#[test]
fn device_that_vanishes_during_attach_logs_no_warning() {
    let node = Node::new("vanish").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let pod = detector_testkit::Netns::new("vanishpod").unwrap();
    let lines = (0..300).flat_map(|number| {
        [
            format!(
                "link add vethgone{number} type veth peer name eth{number} netns {}",
                pod.name()
            ),
            format!("link set vethgone{number} up"),
            format!("link delete vethgone{number}"),
        ]
    });
    node.ip_batch(lines).unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
    let log = agent.log();
    // The barrier's own conflicts are warnings.
    let mut lines = log.lines().filter(|line| !line.contains("io.ipconflict."));
    let warning = lines
        .find(|line| line.contains(r#""level":"ERROR""#) || line.contains(r#""level":"WARN""#));
    assert_eq!(warning, None, "a pod that goes away logs no warning");
}
