//! The commands of the runbooks: complete, and run as written on a made-up incident.
//!
//! What needs a cluster or a container runtime (`kubectl`, `crictl`) is played by the scripts in
//! `stand-ins/`; everything else is real. Repairs in the state of a network plugin are only parsed.

use std::{collections::BTreeSet, env, fs, net::UdpSocket, path::Path, process::Command};

use detector_engine::diagnosis::Cause;
use detector_testkit::{
    Agent, AgentCommand, Cni, DEADLINE, Frame, FrameSender, Node, Outcome, Pod, PodSpec,
};

use crate::{
    AGENT,
    docs::{metric_names, quoted},
    tools::{output, read, root},
};

/// The sections whose commands change nothing in the state of a network plugin.
const RUN: [&str; 6] = [
    "Look",
    "What `explain` says",
    "Stop the damage",
    "Stop it from becoming a conflict",
    "Many addresses at once",
    "Verify",
];

struct Runbook {
    name: String,
    commands: Vec<RunbookCommand>,
    /// Inline code outside of code blocks.
    inline: Vec<String>,
}

struct RunbookCommand {
    section: String,
    text: String,
    place: Place,
}

/// Where a command is entered.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Workstation,
    /// On the workstation; opens a shell on the node for the rest of its block.
    Opens,
    Node,
}

/// How the shell on a node is opened, as docs/faq.md has it: commands with the prompt `#` are entered there.
const NODE_SHELL: &str = "kubectl -n ip-conflict-detector debug node/$NODE -it --profile=sysadmin --image=busybox:1.37 -- chroot /host sh";
/// Programs of the runbooks that are of use on the node only.
const NODE_PROGRAMS: [&str; 14] = [
    "bridge", "cat", "crictl", "curl", "grep", "head", "ip", "ls", "nsenter", "printf", "stat",
    "sysctl", "tc", "uptime",
];

fn runbooks() -> Vec<Runbook> {
    let folder = fs::read_dir(root().join("docs/runbooks")).unwrap();
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| Runbook::read(path)).collect()
}

fn runbook(name: &str) -> Runbook {
    Runbook::read(&root().join("docs/runbooks").join(format!("{name}.md")))
}

/// Whether bash takes this for a whole command.
fn is_complete(command: &str) -> bool {
    let parsed = output(Command::new("bash").args(["-n", "-c", command]));
    parsed.status.success() && !command.ends_with('\\')
}

impl Runbook {
    fn read(path: &Path) -> Self {
        let text = read(path);
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut section = String::new();
        let (mut commands, mut inline) = (Vec::new(), Vec::new());
        // Steps of a list are indented.
        let mut lines = text.lines().map(str::trim_start);
        while let Some(line) = lines.next() {
            if let Some(heading) = line.strip_prefix("## ") {
                heading.clone_into(&mut section);
            } else if line == "```console" {
                let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
                let mut place = Place::Workstation;
                for (prompt, text) in commands_in(&block, &name) {
                    let mut push = |text, place| {
                        let section = section.clone();
                        commands.push(RunbookCommand {
                            section,
                            text,
                            place,
                        });
                    };
                    if prompt == ROOT && place == Place::Workstation {
                        push(NODE_SHELL.to_owned(), Place::Opens);
                        place = Place::Node;
                    }
                    assert_eq!(prompt == ROOT, place == Place::Node, "{name}: {text}");
                    push(text, place);
                }
            } else if line.starts_with("```") {
                let _other: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            } else {
                let spans = line.split('`').skip(1).step_by(2);
                inline.extend(spans.map(str::to_owned));
            }
        }
        Self {
            name,
            commands,
            inline,
        }
    }

    /// The commands of these sections, as one script, in which a shell on the node reads those of its block.
    fn script(&self) -> String {
        let mut script = String::new();
        let mut in_shell = false;
        let commands = self.commands.iter();
        for command in commands.filter(|command| RUN.contains(&command.section.as_str())) {
            if in_shell && command.place != Place::Node {
                script += "END\n";
            }
            script += &command.text;
            in_shell = command.place != Place::Workstation;
            script += match command.place {
                Place::Opens => " <<'END'\n",
                _ => "\n",
            };
        }
        script + if in_shell { "END\n" } else { "" }
    }
}

/// The prompts of a user, and of root on the node.
const PROMPTS: [&str; 2] = ["$ ", ROOT];
const ROOT: &str = "# ";

/// A command begins with a prompt and may continue on further lines; other lines are its output. Each with its prompt.
fn commands_in(block: &[&str], name: &str) -> Vec<(&'static str, String)> {
    let mut commands = Vec::new();
    let mut lines = block.iter();
    while let Some(line) = lines.next() {
        let is_prompt = |prompt: &&&str| line.starts_with(**prompt);
        let Some(prompt) = PROMPTS.iter().find(is_prompt) else {
            continue;
        };
        let first = &line[prompt.len()..];
        let mut command = first.to_owned();
        while !is_complete(&command) {
            let next = lines
                .next()
                .unwrap_or_else(|| panic!("{name}: not a command: {command}"));
            command = format!("{command}\n{next}");
        }
        commands.push((*prompt, command));
    }
    commands
}

/// The names after each `$` in `text`; lower case is jq's.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        (!name.is_empty()).then_some(name)
    })
}

#[test]
fn commands_use_only_variables_that_are_set() {
    let walkthroughs = Runbook::read(&root().join("docs/walkthroughs.md"));
    assert!(walkthroughs.commands.len() > 10);
    for runbook in runbooks().into_iter().chain([walkthroughs]) {
        let name = &runbook.name;
        let mut set = BTreeSet::new();
        let mut on_node = BTreeSet::new();
        let mut anywhere = BTreeSet::new();
        for RunbookCommand { text, place, .. } in &runbook.commands {
            if *place == Place::Opens {
                on_node.clear();
            }
            let set = match place {
                Place::Node => &mut on_node,
                _ => &mut set,
            };
            let (code, _comment) = text.split_once(" # ").unwrap_or((text, ""));
            assert!(
                !code.contains('…'),
                "{name}: not to be run as it is: {code}"
            );
            for variable in variables(code) {
                let assignment = format!("{variable}=");
                let is_set = set.contains(variable) || code.starts_with(&assignment);
                assert!(is_set, "{name}: ${variable} is not set before: {code}");
            }
            if let Some((variable, _)) = text.split_once('=')
                && variable.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            {
                set.insert(variable);
                anywhere.insert(variable);
            }
        }
        for code in &runbook.inline {
            for variable in variables(code) {
                assert!(
                    anywhere.contains(variable),
                    "{name}: ${variable} is never set: {code}"
                );
            }
        }
    }
}

/// The program that a command starts with, also within `NAME=$(…)`.
fn program(command: &str) -> &str {
    let command = match command.split_once("=$(") {
        Some((name, inner)) if !name.contains(' ') => inner,
        _ => command,
    };
    command.split_whitespace().next().unwrap_or_default()
}

#[test]
fn commands_for_the_node_have_a_shell_on_it() {
    let mut shells = 0;
    for runbook in runbooks() {
        let name = &runbook.name;
        for RunbookCommand { text, place, .. } in &runbook.commands {
            let program = program(text);
            match place {
                Place::Workstation => assert!(
                    !NODE_PROGRAMS.contains(&program) && !text.contains(" debug node/"),
                    "{name}: on which machine? {text}"
                ),
                Place::Opens => shells += 1,
                Place::Node => assert!(
                    !["kubectl", "calicoctl"].contains(&program),
                    "{name}: not on the node: {text}"
                ),
            }
        }
    }
    assert!(shells > 10, "{shells}");
    let opened = format!("\n$ {NODE_SHELL}\n");
    assert_eq!(read("docs/faq.md").matches(&opened).count(), 1);
}

#[test]
fn named_metrics_and_reasons_are_documented() {
    let reference = read("docs/metrics.md");
    let rules = read("deploy/prometheus/rules.yaml");
    for entry in fs::read_dir(root().join("docs/runbooks")).unwrap() {
        let path = entry.unwrap().path();
        let text = read(&path);
        for name in metric_names(&text) {
            let known = match name.contains(':') {
                true => rules.contains(&format!("record: {name}\n")),
                false => reference.contains(&format!("`{name}")),
            };
            assert!(known, "{}: {name}", path.display());
        }
    }
    let blind = read("docs/runbooks/IPConflictDetectorBlind.md");
    let (_, table) = blind.split_once("| reason |").unwrap();
    let rows = table.lines().filter_map(|l| l.strip_prefix("| `"));
    let mut count = 0;
    for row in rows {
        let (reasons, _) = row.split_once(" | ").unwrap();
        for reason in quoted(&format!("`{reasons}")) {
            count += 1;
            assert!(reference.contains(&format!("| `{reason}`")), "{reason}");
        }
    }
    assert!(count > 8, "{count}");
}

/// Runs the commands of a runbook on a node, where they may fail, but not for lack of a program, a
/// variable or an operand. `netns` is what the container runtime names.
fn follow(runbook: &Runbook, node: &Node, agent: &Agent, netns: &str) -> Outcome {
    let log = tempfile::NamedTempFile::new().unwrap();
    fs::write(log.path(), agent.log()).unwrap();
    let stand_ins = root().join("detector-agent/tests/deploy/stand-ins");
    let path = format!("{}:{}", stand_ins.display(), env::var("PATH").unwrap());
    let outcome = AgentCommand::new("bash", ["-u", "-c", &runbook.script()])
        .env("PATH", path)
        .env("AGENT_BINARY", AGENT)
        .env("AGENT_LOG", log.path())
        .env("NETNS", netns)
        .run_to_end(node, DEADLINE)
        .unwrap();
    let faults = [
        "not found",
        "unbound variable",
        "parameter not set",
        "syntax error",
        "sage:",
        "jq: error",
    ];
    for fault in faults {
        assert!(
            !outcome.stderr.contains(fault),
            "{}: {outcome:?}",
            runbook.name
        );
    }
    outcome
}

/// A node with an agent and pods.
struct Incident {
    node: Node,
    pods: Vec<Pod>,
    agent: Agent,
}

impl Incident {
    fn new(prefix: &str, pods: &[PodSpec]) -> Self {
        let node = Node::new(prefix).unwrap();
        let pods = node.add_pods(pods).unwrap();
        let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
        Self { node, pods, agent }
    }

    fn follow(&self, runbook: &Runbook) -> Outcome {
        follow(
            runbook,
            &self.node,
            &self.agent,
            self.pods[0].netns().name(),
        )
    }
}

fn assert_prints(outcome: &Outcome, texts: &[&str]) {
    for text in texts {
        assert!(outcome.stdout.contains(text), "{text}: {outcome:?}");
    }
}

#[test]
fn duplicate_is_followed_from_the_alert_to_its_end() {
    let specs = ["vethfirst", "vethsecond"].map(|d| PodSpec::new(d).address("10.244.2.10/24"));
    let incident = Incident::new("rbconflict", &specs);
    incident.agent.wait_raised("10.244.2.10").unwrap();
    let outcome = incident.follow(&runbook("IPAddressConflict"));
    let finding = "  finding: 10.244.2.10 is claimed by ";
    assert_prints(&outcome, &["1 IP address conflict: 10.244.2.10", finding]);
    // The device of the pod that is to be deleted by hand.
    incident.agent.wait_resolved("10.244.2.10").unwrap();
}

#[test]
fn sweep_is_followed_from_the_alert_to_its_end() {
    let address = |n| format!("10.244.3.{n}");
    let specs: Vec<_> = (1..=8)
        .map(|n| PodSpec::new(format!("veth{n}")).address(format!("{}/32", address(n))))
        .chain([PodSpec::new("vethbad").address("10.244.3.250/32")])
        .collect();
    let incident = Incident::new("rbsweep", &specs);
    let bad = incident.pods.last().unwrap();
    let claim = |n| Frame::gratuitous_reply(bad.mac(), address(n).parse().unwrap()).to_bytes();
    let frames: Vec<_> = (1..=8).map(claim).collect();
    FrameSender::open(bad).unwrap().send_all(&frames).unwrap();
    let found = incident.agent.wait_log(DEADLINE, "Address sweep").unwrap();
    assert!(found.contains("vethbad"), "{found}");
    let outcome = incident.follow(&runbook("PodAddressSweep"));
    assert_prints(&outcome, &["address_sweep", "kubectl -n shop delete pod"]);
}

#[test]
fn drift_is_followed_from_the_alert_to_the_pod() {
    let node = Node::new("rbdrift").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let conf = tempfile::tempdir().unwrap();
    cni.write_config(conf.path()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let pod = cni.add_pod(&node, "web-1").unwrap();
    cni.cache_result(cache.path(), &pod).unwrap();
    let command = AgentCommand::run(AGENT)
        .args(["--ipam=auto", "--cri-endpoint=off", "--cni-conf-dir"])
        .arg(conf.path())
        .arg("--cni-cache-dir")
        .arg(cache.path());
    let agent = Agent::start_ready(&node, &command).unwrap();
    cni.wipe().unwrap();
    agent.wait_log(DEADLINE, "ipam_drift").unwrap();
    let outcome = follow(&runbook("IPAMDrift"), &node, &agent, "unused");
    assert_prints(
        &outcome,
        &[
            "ipam_drift",
            &pod.address().unwrap().to_string(),
            "kubectl delete pod --wait=false -n default web-1",
        ],
    );
    cni.remove_pod(&node, pod).unwrap();
}

#[test]
fn dead_gateway_is_followed_from_the_alert_to_the_cause() {
    let spec = PodSpec::new("vethfirst").address("10.244.2.10/32");
    let incident = Incident::new("rbgateway", &[spec.host_route()]);
    let pod = &incident.pods[0];
    for route in ["169.254.1.1 scope link", "default via 169.254.1.1"] {
        pod.netns()
            .ip(&format!("route add {route} dev eth0"))
            .unwrap();
    }
    pod.netns()
        .run_in(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            // The kernel requests the gateway three times.
            let _ = socket.send_to(b"x", "203.0.113.7:9");
            Ok(())
        })
        .unwrap();
    incident
        .agent
        .wait_log(DEADLINE, "gateway_unresolved")
        .unwrap();
    let outcome = incident.follow(&runbook("PodGatewayUnresolved"));
    let states = ["FAILED", "INCOMPLETE"];
    assert_prints(&outcome, &["gateway_unresolved"]);
    assert!(
        states.iter().any(|s| outcome.stdout.contains(s)),
        "{outcome:?}"
    );
}

#[test]
fn blind_agent_names_the_device_as_its_runbook_promises() {
    let incident = Incident::new("rbblind", &["vetha", "vethb"].map(PodSpec::new));
    let change = |n: u32| {
        let address = format!("10.100.{}.{}/32", n / 256, n % 256);
        ["add", "del"].map(|verb| format!("address {verb} {address} dev eth0"))
    };
    let pod = &incident.pods[1];
    pod.netns().ip_batch((0..4_096).flat_map(change)).unwrap();
    let log = incident
        .agent
        .wait_log(DEADLINE, "changes of the addresses")
        .unwrap();
    assert!(log.contains("vethb"), "{log}");
    let outcome = incident.follow(&runbook("IPConflictDetectorBlind"));
    assert_prints(&outcome, &["no IP address conflict"]);
}

#[test]
fn every_cause_has_a_section_and_a_symptom() {
    let page = read("docs/runbooks/Causes.md");
    let (_, symptoms) = page.split_once("\n## Symptoms\n").unwrap();
    let (symptoms, _) = symptoms.split_once("\n## ").unwrap();
    for cause in Cause::ALL.map(Cause::name) {
        let section = format!("\n<a id=\"{cause}\"></a>\n## `{cause}`\n");
        assert!(page.contains(&section), "{cause}");
        let link = format!("[`{cause}`](#{cause})");
        assert!(symptoms.contains(&link), "{cause}");
    }
}

#[test]
fn first_steps_of_every_runbook_run() {
    let incident = Incident::new(
        "rball",
        &[PodSpec::new("vethfirst").address("10.244.2.10/24")],
    );
    for runbook in runbooks() {
        assert!(
            !runbook.script().is_empty(),
            "{} has no commands",
            runbook.name
        );
        incident.follow(&runbook);
    }
}
