//! Networks: where an address has to be unique (`docs/detection-rules.md`, section 2).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};

/// A network, as events, metrics and the API name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Network {
    /// `node`: what the node routes by its main table.
    #[default]
    Node,
    /// `vrf:<name>`: what the node routes by the table of a VRF.
    Vrf(String),
    /// `bridge:<name>`: the L2 domain of a bridge, or of another switch, that the node does not
    /// route. For a link-local address also that of a bridge that it does route.
    Bridge(String),
    /// `cni:<name>`: the network in the CNI result of ports of a switch other than a bridge.
    Cni(String),
    /// `link:<name>`: the link of one device, for a link-local address.
    Link(String),
}

/// The name of [`Network::Node`].
const NODE: &str = "node";

/// Not the name of a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a network")]
pub struct NotANetwork(String);

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str(NODE),
            Self::Vrf(name) => write!(f, "vrf:{name}"),
            Self::Bridge(name) => write!(f, "bridge:{name}"),
            Self::Cni(name) => write!(f, "cni:{name}"),
            Self::Link(name) => write!(f, "link:{name}"),
        }
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let parts = text.split_once(':').map(|(kind, name)| (kind, name.into()));
        match parts {
            None if text == NODE => Ok(Self::Node),
            Some(("vrf", name)) => Ok(Self::Vrf(name)),
            Some(("bridge", name)) => Ok(Self::Bridge(name)),
            Some(("cni", name)) => Ok(Self::Cni(name)),
            Some(("link", name)) => Ok(Self::Link(name)),
            _ => Err(NotANetwork(text.to_owned())),
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Node => serializer.serialize_str(NODE),
            _ => serializer.collect_str(self),
        }
    }
}

impl TryFrom<String> for Network {
    type Error = NotANetwork;

    fn try_from(text: String) -> Result<Self, NotANetwork> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Network;

    #[test]
    fn names_of_networks_are_read_back() {
        let name = || "a:b".to_owned();
        let networks = [
            (Network::Node, "node"),
            (Network::Vrf(name()), "vrf:a:b"),
            (Network::Bridge(name()), "bridge:a:b"),
            (Network::Cni(name()), "cni:a:b"),
            (Network::Link(name()), "link:a:b"),
        ];
        for (network, text) in networks {
            assert_eq!(network.to_string(), text);
            assert_eq!(text.parse(), Ok(network));
        }
        for text in ["", "node:", "vrf", "mesh:a"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
