//! `watch` with and without a terminal on a running agent, and the text output of `check`.

use std::{
    fs,
    io::{Read, Write as _},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec};

use crate::AGENT;

/// A running program whose output is read as it arrives.
struct RunningProgram {
    child: Child,
    pieces: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl RunningProgram {
    fn start(node: &Node, program: &str, args: &[&str]) -> Self {
        let mut child = node
            .run_in(|| {
                Ok(Command::new(program)
                    .args(args)
                    .env("TERM", "xterm")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()?)
            })
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (to, pieces) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                if to.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            pieces,
            seen: String::new(),
        }
    }

    /// Waits until the output since the last wait contains `text`.
    fn wait(&mut self, text: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.seen.contains(text) {
            let piece = self.piece(until);
            let piece = piece.unwrap_or_else(|| panic!("{text:?} is not in {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&piece));
        }
        self.seen.clear();
    }

    /// Waits until the terminal's screen shows `text`.
    fn wait_screen(&mut self, screen: &mut vt100::Parser, text: &str) {
        let until = Instant::now() + DEADLINE;
        while !screen.screen().contents().contains(text) {
            let piece = self
                .piece(until)
                .unwrap_or_else(|| panic!("{text:?} is not on\n{}", screen.screen().contents()));
            screen.process(&piece);
        }
    }

    fn piece(&self, until: Instant) -> Option<Vec<u8>> {
        let left = until.saturating_duration_since(Instant::now());
        self.pieces.recv_timeout(left).ok()
    }

    fn press(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
    }

    fn wait_success(mut self) {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < until, "the program does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Fails only if the program has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn duplicate(node: &Node) -> Vec<Pod> {
    let winner = PodSpec::new("vetha").address("10.244.2.10/32").host_route();
    let loser = PodSpec::new("vethb").address("10.244.2.10/32");
    vec![
        node.add_pod(&winner).unwrap(),
        node.add_pod(&loser).unwrap(),
    ]
}

#[test]
fn without_a_terminal_each_event_is_a_line() {
    let node = Node::new("watchlines").unwrap();
    let mut agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let mut pods = duplicate(&node);
    agent.wait_raised("10.244.2.10").unwrap();
    let mut watching = RunningProgram::start(&node, AGENT, &["watch"]);
    watching.wait("active   10.244.2.10 duplicate certain: →vetha, vethb (newest)\n");
    pods.pop().unwrap().delete().unwrap();
    watching.wait("resolved 10.244.2.10 duplicate certain: →vetha, vethb left: ");
    // It reconnects to an agent that was restarted.
    agent.kill().unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _third = node
        .add_pod(&PodSpec::new("vethc").address("10.244.2.10/32"))
        .unwrap();
    watching.wait(" 10.244.2.10 duplicate certain: →vetha, vethc (newest)\n");
}

#[test]
fn terminal_shows_a_table_with_details_on_enter() {
    let node = Node::new("watchtable").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // `script` provides a terminal.
    let command = format!("stty rows 24 cols 100; exec {AGENT} watch");
    let mut watching = RunningProgram::start(&node, "script", &["-qec", &command, "/dev/null"]);
    let mut screen = vt100::Parser::new(24, 100, 0);
    watching.wait_screen(&mut screen, "No IP address conflict.");
    let _pods = duplicate(&node);
    watching.wait_screen(&mut screen, "→vetha  vethb");
    agent.wait_raised("10.244.2.10").unwrap();
    watching.press("\r");
    watching.wait_screen(&mut screen, "→ unknown  receives the traffic");
    watching.wait_screen(&mut screen, "vetha   MAC 02:");
    watching.press("\x1b");
    watching.wait_screen(&mut screen, "CLAIMANTS");
    watching.press("q");
    watching.wait_success();
}

#[test]
fn missing_agent_or_token_is_one_sentence() {
    let node = Node::new("watchnone").unwrap();
    let error_of = |args: &[&str]| {
        let args = ["watch"].iter().chain(args).copied();
        let outcome = AgentCommand::new(AGENT, args)
            .run_to_end(&node, DEADLINE)
            .unwrap();
        assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
        assert_eq!(outcome.stderr.trim().lines().count(), 1, "{outcome:?}");
        outcome.stderr
    };
    assert!(error_of(&[]).contains("no agent answers at /run/"));
    assert!(error_of(&["--url", "nonsense"]).contains("--url"));
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "an-unguessable-test-token").unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--http-token-file")
        .arg(token.path());
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let origin = "http://127.0.0.1:9842";
    let url = ["--url", origin];
    assert!(error_of(&url).contains("--token-file"));
    let path = token.path().display().to_string();
    let at_port = ["watch", "--url", origin, "--token-file", &path];
    let mut watching =
        [&["watch"][..], &at_port].map(|args| RunningProgram::start(&node, AGENT, args));
    let _pods = duplicate(&node);
    for program in &mut watching {
        program.wait("10.244.2.10");
    }
}

#[test]
fn check_marks_the_winner_and_colours_only_on_a_terminal() {
    let node = Node::new("checktable").unwrap();
    let _pods = duplicate(&node);
    let plain = AgentCommand::new(AGENT, ["check"])
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert!(!plain.stdout.contains('\x1b'), "{}", plain.stdout);
    let winner = plain
        .stdout
        .lines()
        .find(|line| line.contains("vetha"))
        .unwrap();
    assert!(winner.trim_start().starts_with('→'), "{}", plain.stdout);
    let loser = plain
        .stdout
        .lines()
        .find(|line| line.contains("vethb"))
        .unwrap();
    let column = |line: &str| line.chars().take_while(|c| *c != 'v').count();
    assert_eq!(column(winner), column(loser), "{}", plain.stdout);

    let on_terminal = |environment: &str| {
        let command = format!("{environment} {AGENT} check");
        let outcome = AgentCommand::new("script", ["-qec", &command, "/dev/null"])
            .env("TERM", "xterm")
            .run_to_end(&node, DEADLINE)
            .unwrap();
        outcome.stdout
    };
    assert!(on_terminal("env -u NO_COLOR").contains("\x1b["));
    assert!(!on_terminal("env NO_COLOR=1").contains('\x1b'));
}
