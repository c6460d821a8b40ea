//! What a piece of evidence is in detail. Rules use it as it is; events, records and people get its text.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::model::{Mac, NudState};

/// More about a piece of evidence. As text in events and in records of open conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "String")]
pub enum EvidenceDetail {
    /// Of a neighbour entry: its state.
    State(NudState),
    /// Of a neighbour entry on a bridge: it had this hardware address before, and returned to it.
    Flapping,
    /// Of an address: IPv6 duplicate address detection is running.
    Tentative,
    /// Of an address: IPv6 duplicate address detection failed.
    DadFailed,
    /// Of an address: the kernel formed it from a prefix that a router advertised.
    Autoconfigured,
    /// Of an address: the node has it.
    OnNode,
    /// Of an address: this internal interface of the pod has it.
    OnInterface(String),
    /// Of frames.
    Frame {
        /// Whether only probes were seen.
        probe: bool,
        /// The sender, if it is not the hardware address that the frame claims.
        sent_by: Option<Mac>,
    },
    /// Anything else, for people.
    Text(String),
}

const FLAPPING: &str = "FLAPPING";
const TENTATIVE: &str = "TENTATIVE";
const DAD_FAILED: &str = "DADFAILED";
const AUTOCONFIGURED: &str = "AUTOCONFIGURED";
const ON_NODE: &str = "on the node";
/// Before the name of an interface, which contains no space (`dev_valid_name` in `net/core/dev.c`).
const ON: &str = "on ";
const PROBE: &str = "probe";
const SENT_BY: &str = "sent by ";

impl fmt::Display for EvidenceDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(state) => f.write_str(state.name()),
            Self::Flapping => f.write_str(FLAPPING),
            Self::Tentative => f.write_str(TENTATIVE),
            Self::DadFailed => f.write_str(DAD_FAILED),
            Self::Autoconfigured => f.write_str(AUTOCONFIGURED),
            Self::OnNode => f.write_str(ON_NODE),
            Self::OnInterface(name) => write!(f, "{ON}{name}"),
            Self::Frame { probe, sent_by } => {
                let probe = if *probe { PROBE } else { "" };
                match sent_by {
                    None => f.write_str(probe),
                    Some(mac) if probe.is_empty() => write!(f, "{SENT_BY}{mac}"),
                    Some(mac) => write!(f, "{probe}, {SENT_BY}{mac}"),
                }
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for EvidenceDetail {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<String> for EvidenceDetail {
    /// Reads what `Display` writes.
    fn from(text: String) -> Self {
        let sent_by = |text: &str| text.strip_prefix(SENT_BY)?.parse().ok();
        let (probe, sender) = match text.strip_prefix(PROBE) {
            Some(rest) => (true, rest.strip_prefix(", ").unwrap_or(rest)),
            None => (false, text.as_str()),
        };
        let sender = sent_by(sender);
        if text == PROBE || sender.is_some() {
            return Self::Frame {
                probe,
                sent_by: sender,
            };
        }
        match text.as_str() {
            FLAPPING => Self::Flapping,
            TENTATIVE => Self::Tentative,
            DAD_FAILED => Self::DadFailed,
            AUTOCONFIGURED => Self::Autoconfigured,
            ON_NODE => Self::OnNode,
            other => match (NudState::named(other), other.strip_prefix(ON)) {
                (Some(state), _) => Self::State(state),
                (None, Some(name)) if !name.contains(' ') => Self::OnInterface(name.to_owned()),
                _ => Self::Text(text),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_written_as_text_and_read_back() {
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let frame = |probe, sent_by| EvidenceDetail::Frame { probe, sent_by };
        for (detail, text) in [
            (EvidenceDetail::State(NudState::Permanent), "PERMANENT"),
            (EvidenceDetail::State(NudState::Reachable), "REACHABLE"),
            (EvidenceDetail::State(NudState::Probe), "PROBE"),
            (EvidenceDetail::Flapping, "FLAPPING"),
            (EvidenceDetail::Tentative, "TENTATIVE"),
            (EvidenceDetail::DadFailed, "DADFAILED"),
            (EvidenceDetail::Autoconfigured, "AUTOCONFIGURED"),
            (EvidenceDetail::OnNode, "on the node"),
            (EvidenceDetail::OnInterface("lo".to_owned()), "on lo"),
            (frame(true, None), "probe"),
            (frame(false, Some(mac)), "sent by 02:00:00:00:00:09"),
            (frame(true, Some(mac)), "probe, sent by 02:00:00:00:00:09"),
            (
                EvidenceDetail::Text("on another node".to_owned()),
                "on another node",
            ),
            (EvidenceDetail::Text("probes".to_owned()), "probes"),
        ] {
            assert_eq!(detail.to_string(), text);
            let json = serde_json::json!(detail);
            assert_eq!(json, text);
            assert_eq!(serde_json::from_value(json).ok(), Some(detail));
        }
    }
}
