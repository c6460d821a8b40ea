//! Attempts to keep the agent from starting by taking the lock of its network namespace first.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{PermissionsExt as _, chown, symlink},
            net::{SocketAddr, UnixListener},
        },
    },
    path::Path,
};

use detector_testkit::{Agent, AgentCommand, DEADLINE, Node};

use crate::AGENT;

const UNPRIVILEGED: u32 = 65534;
/// A process without privileges, and one with all of them in a user namespace of its own.
const ATTACKERS: [&[&str]; 2] = [
    &[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ],
    &[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "unshare",
        "--user",
        "--map-root-user",
    ],
];

/// What others did to the directory.
type Preparation = fn(&Path);

fn run_in(directory: &Path) -> AgentCommand {
    AgentCommand::run(AGENT).arg("--run-dir").arg(directory)
}

/// A directory as kubelet makes one: readable for everyone.
fn readable_directory(path: &Path) {
    if !path.exists() {
        fs::create_dir(path).unwrap();
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// An abstract socket belongs to the first process of the network namespace that binds it.
#[test]
fn socket_squatted_in_the_namespace_keeps_no_agent_from_starting() {
    let node = Node::new("squat").unwrap();
    let _squatter = node
        .run_in(|| {
            let address = SocketAddr::from_abstract_name("ip-conflict-detector")?;
            Ok(UnixListener::bind_addr(&address)?)
        })
        .unwrap();
    Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
}

#[test]
fn lock_cannot_be_taken_or_replaced_without_root() {
    let node = Node::new("locked").unwrap();
    let parent = tempfile::tempdir().unwrap();
    readable_directory(parent.path());
    let directory = parent.path().join("run");
    readable_directory(&directory);
    let mut agent = Agent::start_ready(&node, &run_in(&directory)).unwrap();
    let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap();
    let file = file.path();
    let pid = fs::read_to_string(&file).unwrap();
    assert_eq!(pid.trim(), agent.pid().to_string());
    agent.kill().unwrap();

    let [file, other] =
        [file.clone(), directory.join("other")].map(|path| path.display().to_string());
    let new_directory = parent.path().join("new").display().to_string();
    let attempts: [&[&str]; 7] = [
        &["flock", "--nonblock", &file, "true"],
        &["flock", "--nonblock", "--shared", &file, "true"],
        &["chmod", "0666", &file],
        &["rm", "--force", &file],
        &["mv", "--force", &file, &other],
        &["ln", "--symbolic", "/dev/null", &other],
        &["mkdir", &new_directory],
    ];
    for attacker in ATTACKERS {
        // The attacker itself can run.
        node.exec(&[attacker, &["true"]].concat()).unwrap();
        for attempt in attempts {
            let error = node.exec(&[attacker, attempt].concat()).unwrap_err();
            let error = format!("{error:#}");
            let is_denied = error.contains("ermission denied") || error.contains("not permitted");
            assert!(is_denied, "{attempt:?}: {error}");
        }
    }
    // The file of the killed agent is no obstacle.
    Agent::start_ready(&node, &run_in(&directory)).unwrap();
}

/// Nothing that others prepared is used, and the sentence names it: a lock there would be theirs.
#[test]
fn directory_of_others_is_refused_and_named() {
    let node = Node::new("prepared").unwrap();
    let parent = tempfile::tempdir().unwrap();
    let prepare: [(&str, Preparation); 4] = [
        ("owned", |path| {
            readable_directory(path);
            chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }),
        ("writable", |path| {
            readable_directory(path);
            fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).unwrap();
        }),
        ("link", |path| symlink("/tmp", path).unwrap()),
        ("absent/run", |_| {}),
    ];
    for (name, prepare) in prepare {
        let directory = parent.path().join(name);
        prepare(&directory);
        let outcome = run_in(&directory).run_to_end(&node, DEADLINE).unwrap();
        assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
        let mut lines = outcome.stderr.trim().lines();
        let sentence = lines.next().unwrap();
        assert_eq!(lines.next(), None, "{outcome:?}");
        let is_named = sentence.contains(directory.to_str().unwrap());
        assert!(is_named && sentence.contains("--run-dir"), "{sentence}");
    }
}
