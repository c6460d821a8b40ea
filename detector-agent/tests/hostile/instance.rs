//! Attempts to keep the agent from starting by taking the lock of its network namespace first.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{PermissionsExt as _, chown, symlink},
            net::{SocketAddr, UnixListener},
        },
    },
    path::Path,
    thread,
};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, PodSpec, announce, http::TestClient, until,
};

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
    let files = fs::read_dir(&directory).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let [file, socket] = <[_; 2]>::try_from(files).unwrap();
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "only root can connect");
    let pid = fs::read_to_string(&file).unwrap();
    assert_eq!(pid.trim(), agent.pid().to_string());
    agent.kill().unwrap();

    let [file, socket, other] =
        [file.clone(), socket, directory.join("other")].map(|path| path.display().to_string());
    let new_directory = parent.path().join("new").display().to_string();
    let attempts: [&[&str]; 9] = [
        &["flock", "--nonblock", &file, "true"],
        &["flock", "--nonblock", "--shared", &file, "true"],
        &["chmod", "0666", &file],
        &["rm", "--force", &file],
        &["mv", "--force", &file, &other],
        &["chmod", "0666", &socket],
        &["rm", "--force", &socket],
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

/// Any process in the node's network can hold the agent's ports before it starts. Whatever that process answers, the agent
/// detects, the commands on the node find the agent, and no token reaches the process.
#[test]
fn squatted_ports_stop_no_agent_and_get_no_token() {
    let node = Node::new("squatport").unwrap();
    node.ip("address add 192.0.2.1/32 dev lo").unwrap();
    let ports = ["127.0.0.1:9842", "192.0.2.1:9843"];
    let squatters = ports.map(|port| {
        let listener = node.run_in(|| Ok(TcpListener::bind(port)?)).unwrap();
        // Answers what a client would like to hear, and returns the first request.
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            let ready = b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"ready\":true}";
            stream.write_all(ready).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        })
    });
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "an-unguessable-test-token").unwrap();
    let command = AgentCommand::run(AGENT)
        .args(["--metrics-listen", ports[1], "--http-token-file"])
        .arg(token.path());
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
        PodSpec::new("vethb"),
    ];
    let pods = node.add_pods(&specs).unwrap();
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    announce(&pods[1], "10.244.2.10".parse().unwrap()).unwrap();
    agent.wait_raised("10.244.2.10").unwrap();
    let check = |args: &[&str]| {
        AgentCommand::new(AGENT, ["check"].iter().chain(args).copied())
            .run_to_end(&node, DEADLINE)
            .unwrap()
    };
    let found = check(&[]);
    assert_eq!(found.code().unwrap(), 1, "{found:?}");
    let impaired = "endpoint 127.0.0.1:9842: not served: the port is in use by another program";
    assert!(found.stdout.contains(impaired), "{found:?}");
    let path = token.path().to_str().unwrap();
    assert_eq!(
        check(&["--readiness", "--token-file", path])
            .code()
            .unwrap(),
        0
    );

    for (port, squatter) in ports.into_iter().zip(squatters) {
        node.run_in(|| Ok(TcpStream::connect(port)?.write_all(b"the first request")?))
            .unwrap();
        assert_eq!(squatter.join().unwrap(), "the first request");
        let client = TestClient::new(&node, format!("http://{port}"));
        until(DEADLINE, "the free port to be served", || {
            let answer = client.get("/healthz")?;
            anyhow::ensure!(answer.body.contains("alive"), "{}", answer.body);
            Ok(())
        })
        .unwrap();
    }
    agent.kill().unwrap();
    let code = |args: &[&str]| check(args).code().unwrap();
    assert_eq!(
        code(&["--readiness"]),
        2,
        "the socket of a killed agent is no agent"
    );
    let next = Agent::start_ready(&node, &command).unwrap();
    assert_eq!(code(&["--readiness"]), 0);
    drop(next);
}
