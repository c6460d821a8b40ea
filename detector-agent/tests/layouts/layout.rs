//! A node with a running agent, and the comparison of what the agent reports with what the kernel has.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, LOOK_ARGS, Node, Pod, ReceivedEvent,
    conflicts_from_events, event::Conflict, http::TestClient, until,
};
use serde_json::Value;

use crate::{
    AGENT,
    kernel::{self, AttachedPod, Duplicate, Duplicates},
};

/// The addresses of barriers.
const OF_BARRIERS: &str = "198.18.";

/// An address, the devices of those that have it, and the one that the node's packets reach.
pub(crate) type Wanted<'a> = (&'a str, &'a [&'a str], Option<&'a str>);

/// A node as a plugin finds it, with a running agent.
pub(crate) struct Layout {
    pub(crate) node: Node,
    pub(crate) agent: Agent,
    barrier: Barrier,
}

impl Layout {
    /// A forwarding node with an uplink, `eth0`, and default routes through it.
    pub(crate) fn new(prefix: &str) -> Self {
        Self::with_args(prefix, &[])
    }

    /// [`Layout::new`] with more arguments for the agent.
    pub(crate) fn with_args(prefix: &str, args: &[&str]) -> Self {
        let node = Node::new(prefix).unwrap();
        // A pair with both ends in the node: no pod device.
        node.ip_batch([
            "link add eth0 type veth peer name far",
            "address add 192.0.2.10/24 dev eth0",
            "address add 2001:db8:ffff::10/64 dev eth0 nodad",
            "link set far up",
            "link set eth0 up",
            "route add default via 192.0.2.1",
            "route add default via 2001:db8:ffff::1",
        ])
        .unwrap();
        node.sysctl("net.ipv4.ip_forward", "1").unwrap();
        node.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        let barrier = Barrier::prepare(&node).unwrap();
        let command = AgentCommand::run(AGENT);
        let command = args.iter().fold(command, |command, arg| command.arg(*arg));
        let agent = Agent::start_ready(&node, &command).unwrap();
        Self {
            node,
            agent,
            barrier,
        }
    }

    /// Runs `ip` on the node.
    pub(crate) fn ip(&self, line: &str) {
        self.node.ip(line).unwrap();
    }

    /// Waits until the agent's open conflicts are what the kernel has among these pods, and requires the same of `check`.
    /// `wanted` states what this step is about, so that a layout that was not built as intended does not pass.
    pub(crate) fn expect(&self, pods: &[&dyn AttachedPod], wanted: &[Wanted<'_>]) {
        let agreed = until(DEADLINE, "the agent to report what the kernel has", || {
            let kernel = kernel::duplicates(&self.node, pods)?;
            ensure!(
                is_as_stated(&kernel, wanted),
                "expected {wanted:#?} of the kernel, which has {kernel:#?}"
            );
            let reported = self.reported()?;
            ensure!(
                reported == kernel,
                "the kernel has {kernel:#?}, and the agent reports {reported:#?}"
            );
            Ok(kernel)
        });
        let kernel = agreed.unwrap_or_else(|error| panic!("{error:#}\n{}", self.agent.log()));
        let check = AgentCommand::new(AGENT, LOOK_ARGS);
        let check = check.args(["--format", "json", "--allow-no-devices"]);
        let outcome = check.run_to_end(&self.node, DEADLINE).unwrap();
        let document = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(parse(&document).unwrap(), kernel, "check: {outcome:?}");
    }

    /// No address is held twice, and none is in conflict.
    pub(crate) fn expect_none(&self, pods: &[&dyn AttachedPod]) {
        self.expect(pods, &[]);
    }

    /// Nothing at all was reported so far: no conflict and no anomaly.
    pub(crate) fn expect_silence(&self, pods: &[&dyn AttachedPod]) {
        let events = self.events();
        assert!(events.is_empty(), "{events:#?}");
        self.expect_none(pods);
    }

    /// Waits until the agent's open `route_astray` anomalies are those of these addresses: of each, a pod has it that no
    /// packet of the node reaches.
    pub(crate) fn expect_astray(&self, wanted: &[&str]) {
        let client = TestClient::of_agent(&self.node);
        until(DEADLINE, format_args!("route_astray of {wanted:?}"), || {
            let answer = client.get("/api/v1/anomalies")?.json()?;
            let anomalies = answer.get("anomalies").and_then(Value::as_array);
            let astray = anomalies.context("no list of anomalies")?.iter();
            let astray = astray.filter(|anomaly| anomaly["kind"] == "route_astray");
            let mut addresses: Vec<_> = astray.filter_map(|a| a["address"].as_str()).collect();
            addresses.sort_unstable();
            ensure!(addresses == wanted, "{answer:#}");
            Ok(())
        })
        .unwrap();
    }

    /// The events so far, after everything that happened on the node has been processed. Those that are left open are the
    /// conflicts that the API lists.
    pub(crate) fn events(&self) -> Vec<ReceivedEvent> {
        let events = self.barrier.pass(&self.node, &self.agent).unwrap();
        let open = conflicts_from_events(&events).unwrap();
        let open: BTreeSet<_> = open.into_keys().map(|(address, _)| address).collect();
        let reported = self.reported().unwrap().into_keys();
        assert_eq!(open, reported.map(|address| address.to_string()).collect());
        events
    }

    /// The agent's open conflicts.
    pub(crate) fn reported(&self) -> Result<Duplicates> {
        let client = TestClient::of_agent(&self.node);
        let response = client.get("/api/v1/conflicts")?;
        ensure!(response.status == 200, "{response:?}");
        parse(&response.json()?)
    }
}

/// Gives a pod the link-local gateway that routed plugins use: an address that is nowhere assigned.
pub(crate) fn add_gateway(pod: &Pod, gateway: &str) {
    let routes = [
        format!("route add {gateway} dev eth0 scope link"),
        format!("route add default via {gateway} dev eth0"),
    ];
    pod.netns().ip_batch(routes).unwrap();
}

/// The result of an addition by a plugin that ignores EEXIST.
pub(crate) fn unless_present(result: Result<String>) {
    if let Err(error) = result {
        assert!(format!("{error:#}").contains("File exists"), "{error:#}");
    }
}

/// The conflicts in an answer of the API or of `check`, without those of barriers.
fn parse(document: &Value) -> Result<Duplicates> {
    let conflicts = document.get("conflicts").and_then(Value::as_array);
    let mut duplicates = Duplicates::new();
    for conflict in conflicts.context("no list of conflicts")? {
        let conflict: Conflict = serde_json::from_value(conflict.clone()).context("a conflict")?;
        if conflict.address.starts_with(OF_BARRIERS) {
            continue;
        }
        let present = conflict.claimants.into_iter().filter(|c| c.left.is_none());
        let mut holders: Vec<_> = present.map(|claimant| claimant.device).collect();
        holders.sort_unstable();
        let duplicate = Duplicate {
            kind: conflict.kind,
            holders,
            receiver: conflict.traffic_goes_to,
        };
        let previous = duplicates.insert(conflict.address.parse()?, duplicate);
        ensure!(previous.is_none(), "{} is listed twice", conflict.address);
    }
    Ok(duplicates)
}

/// Whether the duplicates are the stated ones.
fn is_as_stated(duplicates: &Duplicates, wanted: &[Wanted<'_>]) -> bool {
    duplicates.len() == wanted.len()
        && wanted.iter().all(|(address, holders, receiver)| {
            let mut holders = holders.to_vec();
            holders.sort_unstable();
            let address = address.parse().unwrap();
            duplicates.get(&address).is_some_and(|duplicate| {
                duplicate.holders == holders && duplicate.receiver.as_deref() == *receiver
            })
        })
}
