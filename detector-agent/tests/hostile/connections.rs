//! Pods that take the connections of the endpoints: silent, slow and half-open ones, from one pod and from several, at
//! the address for metrics and at one that serves everything. The node's own probes are answered all the while, and a
//! conflict is reported.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, ClientBehaviour, DEADLINE, MacAddress, Node, Pod, PodClients, PodSpec,
    announce, http::TestClient, send_half_open, tls, until,
};

use crate::AGENT;

const NODE_ADDRESS: &str = "192.0.2.1";
const NODE_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 1]);
const ENDPOINT: &str = "192.0.2.1:9842";
const LOOPBACK: &str = "127.0.0.1:9842";
/// kubelet waits five seconds, as the chart sets it. An answer takes about a millisecond, but the tests are run side by
/// side.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
const PROBES: usize = 20;
/// Of one source, in docs/limits.md.
const PER_SOURCE: usize = 16;

/// Pods that reach the address of their node, and the agent.
struct Site {
    agent: Agent,
    pods: Vec<Pod>,
    node: Node,
}

impl Site {
    /// With this many pods of `addresses` addresses each; the first two are for a conflict.
    fn new(name: &str, pods: usize, addresses: usize, command: &AgentCommand) -> Self {
        let node = Node::new(name).unwrap();
        node.ip(&format!("address add {NODE_ADDRESS}/32 dev lo"))
            .unwrap();
        let specs: Vec<_> = (0..pods)
            .map(|pod| {
                let spec = PodSpec::new(format!("veth{pod}"))
                    .host_mac(NODE_MAC)
                    .host_route()
                    .default_route();
                (1..=addresses).fold(spec, |spec, n| spec.address(format!("10.244.{pod}.{n}/32")))
            })
            .collect();
        let pods = node.add_pods(&specs).unwrap();
        let agent = Agent::start_ready(&node, command).unwrap();
        Self { agent, pods, node }
    }

    fn attackers(&self) -> &[Pod] {
        &self.pods[2..]
    }

    /// Starts `count` clients in all attackers together.
    fn attack(&self, server: &str, count: usize, behaviour: ClientBehaviour) -> Vec<PodClients> {
        let each = count / self.attackers().len();
        self.attackers()
            .iter()
            .map(|pod| PodClients::start(pod, address(server), each, behaviour).unwrap())
            .collect()
    }

    /// Both probes answer at both addresses, again and again, and a conflict is reported.
    fn assert_unaffected(&self) {
        for probe in 0..PROBES {
            for origin in [LOOPBACK, ENDPOINT] {
                let client = TestClient::new(&self.node, format!("http://{origin}"));
                for path in ["/healthz", "/readyz"] {
                    let started = Instant::now();
                    let answer = client.get(path).unwrap();
                    let took = started.elapsed();
                    assert_eq!(answer.status, 200, "{origin}{path}, probe {probe}");
                    assert!(
                        took < PROBE_TIMEOUT,
                        "{origin}{path}, probe {probe}: {took:?}"
                    );
                }
            }
        }
        self.assert_conflict_is_raised();
    }

    fn assert_conflict_is_raised(&self) {
        for pod in &self.pods[..2] {
            announce(pod, [10, 9, 8, 7].into()).unwrap();
        }
        let conflict = self.agent.wait_raised("10.9.8.7").unwrap();
        assert_eq!(conflict.devices(), ["veth0", "veth1"]);
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// As the chart sets it.
fn metrics_on_the_node() -> AgentCommand {
    AgentCommand::run(AGENT).args(["--metrics-listen", ENDPOINT])
}

/// The setting that exposes everything.
fn everything_everywhere() -> AgentCommand {
    AgentCommand::run(AGENT).args(["--listen", "0.0.0.0:9842"])
}

#[test]
fn silent_connections_of_one_pod_do_not_delay_probes() {
    let site = Site::new("silent1", 3, 1, &metrics_on_the_node());
    let clients = site.attack(ENDPOINT, 1000, ClientBehaviour::Silent);
    site.assert_unaffected();
    until(DEADLINE, "the surplus to be closed", || {
        let open: usize = clients.iter().map(PodClients::open).sum();
        // Those of the last round may be open for a moment.
        ensure!((1..=PER_SOURCE + 50).contains(&open), "{open} are open");
        Ok(())
    })
    .unwrap();
}

#[test]
fn silent_connections_of_many_pods_do_not_delay_probes() {
    for (name, command) in [
        ("silentn", metrics_on_the_node()),
        ("silentall", everything_everywhere()),
    ] {
        let site = Site::new(name, 22, 1, &command);
        let _clients = site.attack(ENDPOINT, 1000, ClientBehaviour::Silent);
        site.assert_unaffected();
    }
}

#[test]
fn slow_requests_do_not_delay_probes() {
    for (name, pods, command) in [
        ("slow1", 3, metrics_on_the_node()),
        ("slown", 22, everything_everywhere()),
    ] {
        let site = Site::new(name, pods, 1, &command);
        let _clients = site.attack(ENDPOINT, 1000, ClientBehaviour::SlowRequest);
        site.assert_unaffected();
    }
}

#[test]
fn clients_that_never_read_do_not_delay_probes() {
    for (name, path) in [("unread", "/metrics"), ("streams", "/api/v1/events")] {
        let site = Site::new(name, 12, 1, &everything_everywhere());
        let _clients = site.attack(ENDPOINT, 400, ClientBehaviour::NeverRead(path));
        site.assert_unaffected();
    }
}

#[test]
fn half_open_connections_do_not_delay_probes() {
    for (name, pods) in [("halfopen1", 3), ("halfopenn", 12)] {
        let site = Site::new(name, pods, 1, &metrics_on_the_node());
        let SocketAddr::V4(server) = address(ENDPOINT) else {
            unreachable!("it is an IPv4 address");
        };
        let each = 5000 / site.attackers().len();
        for pod in site.attackers() {
            send_half_open(&site.node, pod, NODE_MAC, server, each).unwrap();
        }
        // State 3 of the kernel is SYN_RECV (include/net/tcp_states.h).
        until(DEADLINE, "half-open connections", || {
            let sockets = site.node.exec(&["cat", "/proc/net/tcp"])?;
            let state = |line: &&str| line.split_whitespace().nth(3) == Some("03");
            let half_open = sockets.lines().filter(state).count();
            ensure!(half_open > 100, "{half_open}");
            Ok(())
        })
        .unwrap();
        site.assert_unaffected();
    }
}

#[test]
fn unfinished_tls_handshakes_do_not_delay_probes() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = tls::self_signed(folder.path()).unwrap();
    let command = metrics_on_the_node().args(["--tls-cert", &chain, "--tls-key", &key]);
    let site = Site::new("tlshalf", 12, 1, &command);
    let _clients = site.attack(ENDPOINT, 1000, ClientBehaviour::HalfTlsHandshake);
    for probe in 0..PROBES {
        for server in [LOOPBACK, ENDPOINT] {
            let started = Instant::now();
            let answer = tls::get_health(&site.node, address(server), &chain).unwrap();
            let took = started.elapsed();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(took < PROBE_TIMEOUT, "{server}, probe {probe}: {took:?}");
        }
    }
    site.assert_conflict_is_raised();
}

/// Every source has as many connections as every other one, so none of them gives way for its number.
#[test]
fn connections_from_many_addresses_do_not_displace_the_nodes() {
    let site = Site::new("sources", 4, 150, &everything_everywhere());
    let client = TestClient::new(&site.node, format!("http://{LOOPBACK}"));
    let mut streams: Vec<_> = (0..8)
        .map(|_| client.events("/api/v1/events").unwrap())
        .collect();
    let _clients = site.attack(ENDPOINT, 300, ClientBehaviour::NeverRead("/api/v1/events"));
    site.assert_unaffected();
    for stream in &mut streams {
        let message = stream.next_message().unwrap();
        assert!(message.data.contains("10.9.8.7"), "{message:?}");
    }
}

/// Prometheus runs in a pod as well.
#[test]
fn a_pod_with_one_connection_is_served_while_others_have_many() {
    let site = Site::new("fair", 22, 1, &metrics_on_the_node());
    let _clients = site.attack(ENDPOINT, 1000, ClientBehaviour::SlowRequest);
    let prometheus = TestClient::new(site.pods[0].netns(), format!("http://{ENDPOINT}"));
    for scrape in 0..PROBES {
        let answer = prometheus.get("/metrics");
        let answer = answer.with_context(|| format!("scrape {scrape}")).unwrap();
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn pods_reach_the_metrics_and_nothing_else() {
    let site = Site::new("scope", 3, 1, &metrics_on_the_node());
    let pod = TestClient::new(site.attackers()[0].netns(), format!("http://{ENDPOINT}"));
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(pod.get(path).unwrap().status, 200, "{path}");
    }
    for path in ["/", "/api/v1/conflicts", "/api/v1/claims", "/api/v1/events"] {
        assert_eq!(pod.get(path).unwrap().status, 404, "{path}");
    }
}

/// With 128 descriptors, connections may take 32 of them.
#[test]
fn connections_leave_descriptors_for_everything_else() {
    let limited = ["--nofile=128:128", AGENT].map(str::to_owned);
    let run = detector_testkit::RUN_ARGS.map(str::to_owned);
    let command = AgentCommand::new("prlimit", limited.into_iter().chain(run))
        .args(["--listen", "0.0.0.0:9842"]);
    let site = Site::new("nofile", 12, 1, &command);
    let descriptors = || {
        fs::read_dir(format!("/proc/{}/fd", site.agent.pid()))
            .unwrap()
            .count()
    };
    let before = descriptors();
    let _clients = site.attack(ENDPOINT, 400, ClientBehaviour::Silent);
    site.assert_unaffected();
    let added = descriptors().saturating_sub(before);
    assert!(added <= 32 + 2, "{added} of 128");
    let log = site.agent.log();
    assert!(!log.contains("accepting HTTP connections failed"), "{log}");
}
