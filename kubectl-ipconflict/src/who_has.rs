//! Who claims an address, on all nodes.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr};

use detector_engine::Network;
use detector_event::{
    ClaimData, ClaimantData, ConflictData, clean, counted,
    summary::scope,
    text::{Claimants, Colour, anomaly_lines, cause_line, claimant_table, conflict_table, reasons},
};
use serde_json::{Value, json};

use super::{
    ask::{AgentAnswer, ClusterAnswers},
    report::Report,
};

/// What all agents know about an address.
pub(super) struct WhoHas {
    address: IpAddr,
    asked: ClusterAnswers,
}

impl WhoHas {
    pub(super) fn new(address: IpAddr, asked: ClusterAnswers) -> Self {
        Self { address, asked }
    }

    fn answers(&self) -> impl Iterator<Item = (&str, &AgentAnswer)> {
        let nodes = self.asked.nodes.iter();
        nodes.filter_map(|node| Some((node.agent.node.as_str(), node.answer.as_ref().ok()?)))
    }

    /// The claims, and the nodes that they are on.
    fn count(&self) -> (usize, usize) {
        let claims = self.answers().map(|(_, answer)| answer.claims.len());
        let claims = claims.filter(|claims| *claims > 0);
        claims.fold((0, 0), |(sum, nodes), claims| (sum + claims, nodes + 1))
    }

    /// Whether pods of several nodes claim the address in the network that nodes share. No agent can see that alone.
    fn is_on_several_nodes(&self) -> bool {
        let is_shared =
            |claim: &ClaimData| claim.network == Network::Node && !is_link_local(self.address);
        let nodes = self.answers();
        nodes
            .filter(|(_, answer)| answer.claims.iter().any(is_shared))
            .count()
            > 1
    }

    fn is_contested(&self) -> bool {
        let mut answers = self.answers();
        self.is_on_several_nodes()
            || answers.any(|(_, answer)| !answer.overview.conflicts.is_empty())
    }

    fn first_line(&self) -> String {
        let address = self.address;
        let (claims, nodes) = self.count();
        let of = counted(self.asked.total(), "node", "nodes");
        if claims == 0 {
            let gap = self.asked.gap_headline();
            return match gap {
                Some(gap) => {
                    format!("inconclusive: no pod device is known to claim {address}, but {gap}")
                }
                None => format!("no pod device on {of} claims {address}"),
            };
        }
        let claimants = counted(claims, "pod device", "pod devices");
        let contested = if self.is_contested() {
            ""
        } else {
            ", without conflict"
        };
        format!("{address} is claimed by {claimants} on {nodes} of {of}{contested}")
    }
}

/// Unique within one link only.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Where an address has to be unique: the network, and the VLAN tags.
type Scope<'a> = (&'a Network, Option<u16>, Option<u16>);

fn append_answer(text: &mut String, answer: &AgentAnswer, colour: Colour) {
    let conflicts = &answer.overview.conflicts;
    for conflict in conflicts {
        conflict_table(text, conflict, Claimants::WithSince, colour);
        cause_line(text, conflict.diagnosis.as_deref());
        if let Some(guidance) = &conflict.guidance {
            let _ = writeln!(text, "  next: {}", clean(&guidance.next_step));
            let _ = writeln!(text, "  runbook: {}", clean(&guidance.runbook_url));
        }
    }
    let is_shown = |claim: &ClaimData| {
        let is_of = |c: &ConflictData| (&c.network, c.vlan, c.inner_vlan) == scope_of(claim);
        conflicts.iter().any(is_of)
    };
    let mut others: BTreeMap<Scope<'_>, Vec<&ClaimantData>> = BTreeMap::new();
    for claim in answer.claims.iter().filter(|claim| !is_shown(claim)) {
        others
            .entry(scope_of(claim))
            .or_default()
            .push(&claim.claimant);
    }
    for ((network, vlan, inner_vlan), claimants) in others {
        let scope = scope(network, vlan, inner_vlan);
        let scope = scope.unwrap_or_else(|| "the node's network".to_owned());
        let _ = writeln!(text, "{}, no conflict", clean(&scope));
        claimant_table(text, &claimants, None, Claimants::WithSince, colour);
    }
    for anomaly in &answer.overview.anomalies {
        anomaly_lines(text, anomaly);
    }
}

fn scope_of(claim: &ClaimData) -> Scope<'_> {
    (&claim.network, claim.vlan, claim.inner_vlan)
}

impl Report for WhoHas {
    fn json(&self) -> Value {
        let mut document = self.asked.json();
        let (mut claims, mut conflicts, mut anomalies) = (Vec::new(), Vec::new(), Vec::new());
        for (node, answer) in self.answers() {
            for claim in &answer.claims {
                // Serialising it cannot fail.
                let mut claim = serde_json::to_value(claim).unwrap_or_default();
                claim["node"] = node.into();
                claims.push(claim);
            }
            conflicts.extend(&answer.overview.conflicts);
            anomalies.extend(&answer.overview.anomalies);
        }
        document["address"] = json!(self.address);
        document["contested"] = self.is_contested().into();
        document["claims"] = claims.into();
        document["conflicts"] = json!(conflicts);
        document["anomalies"] = json!(anomalies);
        document
    }

    fn text(&self, colour: Colour) -> String {
        let mut text = self.first_line() + "\n";
        self.asked.append_gaps(&mut text);
        if self.is_on_several_nodes() {
            text += "contested: pods on several nodes claim it; unless it is shared on purpose (a VIP, anycast), see docs/runbooks/IPAddressOnSeveralNodes.md\n";
        }
        for (node, answer) in self.answers() {
            let overview = &answer.overview;
            if answer.claims.is_empty()
                && overview.conflicts.is_empty()
                && overview.anomalies.is_empty()
            {
                continue;
            }
            let _ = writeln!(text, "\nnode {}", clean(node));
            append_answer(&mut text, answer, colour);
        }
        let claimants = self.answers().flat_map(|(_, answer)| &answer.claims);
        for reason in reasons(claimants.map(|claim| &claim.claimant)) {
            let _ = writeln!(text, "\npod unknown: {reason}");
        }
        text
    }

    fn exit_code(&self) -> u8 {
        match (self.is_contested(), self.asked.gaps().is_empty()) {
            (true, _) => 1,
            (false, false) => 2,
            (false, true) => 0,
        }
    }
}
