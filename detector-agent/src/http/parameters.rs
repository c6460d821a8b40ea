//! Query parameters of the API: what may be given, and which items they select.
//!
//! Each parameter may be given once, so a request costs no more than its few parameters, however long its query is.

use std::{fmt::Display, net::IpAddr, str::FromStr};

use detector_engine::{Network, diagnosis::Cause};
use detector_event::{
    AnomalyData, ConflictData, ContractName as _, Pod, SubjectState, WallTime, row::Item,
};
use hyper::StatusCode;

use super::respond::{Reply, error};

/// The most items of one page.
pub(super) const MAX_LIMIT: usize = 10_000;
/// The longest value that an error repeats, in characters.
const SHOWN: usize = 40;

/// The parameters of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supported {
    /// Their names.
    pub(super) names: &'static [&'static str],
    /// The values of `kind`.
    pub(super) kinds: &'static [&'static str],
}

/// The parameters of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Only items in this state.
    pub(super) state: Option<SubjectState>,
    /// Only items of this kind.
    pub(super) kind: Option<&'static str>,
    /// Only items with this cause.
    pub(super) cause: Option<Cause>,
    /// Only what ended at this time or later.
    pub(super) since: Option<WallTime>,
    /// Only what ended before this time.
    pub(super) until: Option<WallTime>,
    /// Only items with a pod in this namespace.
    pub(super) namespace: Option<String>,
    /// Only items about this address.
    pub(super) address: Option<IpAddr>,
    /// Only items in this network.
    pub(super) network: Option<Network>,
    /// The most items.
    pub(super) limit: Option<usize>,
    /// Where the page begins.
    pub(super) cursor: Option<String>,
    /// Reasons for unknown pods are listed once, not for each claimant.
    pub(super) reasons_once: bool,
}

impl Parameters {
    /// Reads a query string.
    ///
    /// # Errors
    /// 400 that names the parameter which is unknown, repeated or invalid.
    pub(super) fn parse(query: Option<&str>, supported: Supported) -> Result<Self, Box<Reply>> {
        let mut parameters = Self::default();
        let mut given = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let Some(name) = supported.names.iter().find(|known| **known == name) else {
                return Err(unknown_parameter(&name, supported.names));
            };
            if given.contains(name) {
                return Err(bad_request(&format!("`{name}` is given twice")));
            }
            given.push(*name);
            parameters
                .set(name, &value, supported.kinds)
                .map_err(|expected| invalid(name, &value, &expected))?;
        }
        Ok(parameters)
    }

    /// Stores a value; the error is what would be valid.
    fn set(&mut self, name: &str, value: &str, kinds: &[&'static str]) -> Result<(), String> {
        match name {
            "state" => {
                let state = [SubjectState::Active, SubjectState::Resolved]
                    .into_iter()
                    .find(|state| state.name() == value);
                self.state = Some(state.ok_or_else(|| "active or resolved".to_owned())?);
            }
            "kind" => {
                let kind = kinds.iter().find(|kind| **kind == value);
                self.kind = Some(*kind.ok_or_else(|| format!("one of {}", kinds.join(", ")))?);
            }
            "cause" => {
                let cause = Cause::ALL.iter().find(|cause| cause.name() == value);
                let names = || Cause::ALL.iter().map(|cause| cause.name());
                let names = || names().collect::<Vec<_>>().join(", ");
                self.cause = Some(*cause.ok_or_else(|| format!("one of {}", names()))?);
            }
            "since" => self.since = Some(time(value)?),
            "until" => self.until = Some(time(value)?),
            "namespace" => self.namespace = Some(value.to_owned()),
            "address" => {
                let address = value.parse();
                let example = "an IP address such as 10.244.2.10";
                self.address = Some(address.map_err(|_| example.to_owned())?);
            }
            "network" => {
                let example = "node, or vrf:, bridge:, cni: or link: with a name";
                self.network = Some(value.parse().map_err(|_| example.to_owned())?);
            }
            "limit" => {
                let limit = value.parse().ok();
                let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit));
                let limit = limit.ok_or_else(|| format!("a number from 1 to {MAX_LIMIT}"))?;
                self.limit = Some(limit);
            }
            "cursor" => self.cursor = Some(value.to_owned()),
            // `reasons`
            _ if value == "once" => self.reasons_once = true,
            _ => return Err("once".to_owned()),
        }
        Ok(())
    }

    /// The position that `cursor` names, if it is given.
    ///
    /// # Errors
    /// 400 if it is none of a page of this list.
    pub(super) fn position<K: FromStr>(&self) -> Result<Option<Position<K>>, Box<Reply>> {
        let Some(cursor) = &self.cursor else {
            return Ok(None);
        };
        match cursor.parse() {
            Ok(position) => Ok(Some(position)),
            Err(NotAPosition) => Err(invalid("cursor", cursor, "`next` of the page before")),
        }
    }

    /// Whether it selects a conflict.
    pub(super) fn selects_conflict(&self, data: &ConflictData) -> bool {
        self.is_state(data.state)
            && self.is_kind(data.kind.contract_name())
            && self.is_address(data.address)
            && self.is_network(&data.network)
            && self.is_namespace(data.claimants.iter().map(|c| c.pod.as_deref()))
    }

    /// Whether it selects an anomaly.
    pub(super) fn selects_anomaly(&self, data: &AnomalyData) -> bool {
        self.is_kind(data.kind.contract_name())
            && self.is_address(data.address)
            && self.is_namespace(std::iter::once(data.pod.as_deref()))
    }

    /// Whether it selects an entry of the history. Anomalies are in no network of this kind.
    pub(super) fn selects_ended(&self, data: &Item) -> bool {
        let cause = data.diagnosis().map(|diagnosis| diagnosis.cause);
        self.cause.is_none_or(|wanted| cause == Some(wanted))
            && match data {
                Item::Conflict(conflict) => self.selects_conflict(conflict),
                Item::Anomaly(anomaly) => self.network.is_none() && self.selects_anomaly(anomaly),
            }
    }

    pub(super) fn is_state(&self, state: SubjectState) -> bool {
        self.state.is_none_or(|wanted| wanted == state)
    }

    pub(super) fn is_address(&self, address: IpAddr) -> bool {
        self.address.is_none_or(|wanted| wanted == address)
    }

    pub(super) fn is_network(&self, network: &Network) -> bool {
        self.network.as_ref().is_none_or(|wanted| wanted == network)
    }

    pub(super) fn is_namespace<'p>(&self, mut pods: impl Iterator<Item = Option<&'p Pod>>) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|wanted| pods.any(|pod| pod.is_some_and(|pod| pod.namespace == *wanted)))
    }

    fn is_kind(&self, kind: &str) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
    }
}

/// Where a page begins: a key of the list, and how many items of that key earlier pages have. It stays valid if the
/// items around it come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position<K> {
    pub(super) key: K,
    pub(super) skip: usize,
}

/// Not a position in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAPosition;

impl<K: Display> Display for Position<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}~{}", self.key, self.skip)
    }
}

impl<K: FromStr> FromStr for Position<K> {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let (key, skip) = text.split_once('~').ok_or(NotAPosition)?;
        Ok(Self {
            key: key.parse().map_err(|_| NotAPosition)?,
            skip: skip.parse().map_err(|_| NotAPosition)?,
        })
    }
}

fn time(value: &str) -> Result<WallTime, String> {
    let example = "a time such as 2026-11-25T08:00:00Z";
    value.parse().map_err(|_| example.to_owned())
}

fn unknown_parameter(name: &str, supported: &[&str]) -> Box<Reply> {
    let supported = match supported {
        [] => "none".to_owned(),
        names => format!("`{}`", names.join("`, `")),
    };
    let name = shortened(name);
    bad_request(&format!(
        "unknown query parameter `{name}`; supported: {supported}"
    ))
}

fn invalid(name: &str, value: &str, expected: &str) -> Box<Reply> {
    let value = shortened(value);
    bad_request(&format!("`{name}` is `{value}`; expected {expected}"))
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn bad_request(sentence: &str) -> Box<Reply> {
    Box::new(error(StatusCode::BAD_REQUEST, sentence))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use detector_event::samples;

    use super::*;
    use crate::http::{
        listed::{CONFLICT_PARAMETERS, HISTORY_PARAMETERS},
        respond::ResponseBody,
    };

    const LIST: Supported = Supported {
        kinds: &["duplicate", "host"],
        ..CONFLICT_PARAMETERS
    };

    fn refusal(query: &str, supported: Supported) -> String {
        let reply = Parameters::parse(Some(query), supported).unwrap_err();
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{query}");
        match reply.into_body() {
            ResponseBody::Full(Some(body)) => String::from_utf8(body.to_vec()).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn bad_parameters_are_named() {
        for (query, sentence) in [
            (
                "limit=0",
                "`limit` is `0`; expected a number from 1 to 10000",
            ),
            ("limit=10001", "`limit` is `10001`"),
            ("limit=-1", "`limit` is `-1`"),
            ("limit=1&limit=2", "`limit` is given twice"),
            (
                "state=open",
                "`state` is `open`; expected active or resolved",
            ),
            (
                "kind=flapping",
                "`kind` is `flapping`; expected one of duplicate, host",
            ),
            (
                "address=10.0.0.0/8",
                "`address` is `10.0.0.0/8`; expected an IP address",
            ),
            (
                "network=east",
                "`network` is `east`; expected node, or vrf:",
            ),
            ("reasons=", "`reasons` is ``; expected once"),
            (
                "adress=10.0.0.1",
                "unknown query parameter `adress`; supported: `state`, `kind`",
            ),
            ("kind=duplicate&&=x", "unknown query parameter ``"),
        ] {
            let text = refusal(query, LIST);
            assert!(text.contains(sentence), "{query}: {text}");
        }
        let none = Supported {
            names: &[],
            kinds: &[],
        };
        assert!(refusal("limit=1", none).contains("supported: none"));
        let long = format!("{}={}", "x".repeat(9000), "y".repeat(9000));
        assert!(refusal(&long, LIST).len() < 250);
        let long = format!("kind={}", "%00\u{1F600}\"".repeat(900));
        assert!(refusal(&long, LIST).len() < 600);
    }

    #[test]
    fn cause_and_end_select_from_the_history() {
        let mut data = samples::resolved("10.0.0.1").data;
        data.diagnosis = Some(samples::diagnosis(Cause::IpamStateWiped, 1).into());
        let [conflict, anomaly] = [
            Item::Conflict(Box::new(data)),
            Item::Anomaly(Box::new(samples::drift("10.0.0.1").data)),
        ];
        let selects = |query: &str| {
            let parameters = Parameters::parse(Some(query), HISTORY_PARAMETERS).unwrap();
            [&conflict, &anomaly].map(|item| parameters.selects_ended(item))
        };
        assert_eq!(selects("address=10.0.0.1"), [true, true]);
        assert_eq!(selects("cause=ipam_state_wiped"), [true, false]);
        assert_eq!(selects("cause=allocated_twice"), [false, false]);
        assert_eq!(selects("network=node"), [true, false]);
        assert_eq!(selects("kind=ipam_drift"), [false, true]);
        let text = refusal("cause=magic", HISTORY_PARAMETERS);
        assert!(text.contains("`cause` is `magic`; expected one of ipam_state_wiped"));
        let text = refusal("since=yesterday", HISTORY_PARAMETERS);
        assert!(text.contains("expected a time such as 2026-11-25T08:00:00Z"));
        let query = "since=2026-11-21T01:02:03Z&until=2026-11-21T02:02:03%2B01:00";
        let parameters = Parameters::parse(Some(query), HISTORY_PARAMETERS).unwrap();
        assert_eq!(parameters.since, parameters.until);
    }

    #[test]
    fn positions_are_read_back_and_anything_else_is_refused() {
        let position = Position::<IpAddr> {
            key: "fd00::1".parse().unwrap(),
            skip: 3,
        };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in [
            "",
            "~",
            "10.0.0.1",
            "10.0.0.1~",
            "10.0.0.1~-1",
            "10.0.0.1~1~2",
            "x~1",
        ] {
            assert_eq!(
                text.parse::<Position<IpAddr>>(),
                Err(NotAPosition),
                "{text}"
            );
            let parameters = Parameters {
                cursor: Some(text.to_owned()),
                ..Parameters::default()
            };
            assert!(parameters.position::<IpAddr>().is_err());
        }
    }

    #[test]
    fn all_given_parameters_must_match() {
        let data = samples::raised("10.0.0.1").data;
        let namespace = data.claimants.iter().find_map(|c| c.pod.as_ref());
        let namespace = namespace.unwrap().namespace.clone();
        let matching = format!(
            "state=active&kind=duplicate&namespace={namespace}&address=10.0.0.1&network=node"
        );
        let selects = |query: &str| {
            let parameters = Parameters::parse(Some(query), LIST).unwrap();
            parameters.selects_conflict(&data)
        };
        assert!(selects("") && selects(&matching));
        for other in [
            "state=resolved",
            "kind=host",
            "namespace=elsewhere",
            "address=10.0.0.2",
            "network=bridge:node",
        ] {
            assert!(!selects(other), "{other}");
        }
    }
}
