//! Which links are pod devices.

use globset::{Glob, GlobMatcher};

use super::decode::link::LinkFacts;
use crate::engine::{IfIndex, Link, LinkKind, Peer, VlanProtocol};

/// The driver of a link (`IFLA_INFO_KIND`), as far as it matters for selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDriver {
    /// `veth`.
    Veth,
    /// `netkit`.
    Netkit,
    /// `tun`, the driver of tap devices too.
    Tun,
    /// `bridge`.
    Bridge,
    /// `openvswitch`: the switch that is the master of its ports.
    OpenVswitch,
    /// `vrf`, with its routing table.
    Vrf {
        /// The number of the table.
        table: u32,
    },
    /// `vlan`, on a link of the same namespace.
    Vlan {
        /// That link.
        parent: IfIndex,
        /// Its VLAN id.
        id: u16,
        /// The protocol of its tags.
        protocol: VlanProtocol,
    },
    /// The namespace's loopback device.
    Loopback,
    /// Any other, or a physical device.
    Other,
}

/// Invalid device patterns, each with its reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid device pattern in --interfaces or --exclude-interfaces: {}", .0.join("; "))]
pub struct PatternError(Vec<String>);

/// Chooses pod devices.
///
/// Without patterns: a veth or netkit whose peer is in another namespace, and a tap device named `tap…`. With
/// patterns: every link whose name matches one, whatever its driver. Excluding patterns take precedence. A bridge or the
/// loopback device is never a pod device.
#[derive(Clone, Debug, Default)]
pub struct DeviceSelector {
    include: Vec<GlobMatcher>,
    exclude: Vec<GlobMatcher>,
}

impl DeviceSelector {
    /// From globs (`cali*`, `veth[0-9a-f]*`) on interface names.
    ///
    /// # Errors
    /// Names every pattern that is empty or not a valid glob.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, PatternError> {
        let mut wrong = Vec::new();
        let mut compile = |patterns: &[String]| -> Vec<GlobMatcher> {
            let mut compiled = Vec::with_capacity(patterns.len());
            for pattern in patterns {
                match Glob::new(pattern) {
                    Ok(_) if pattern.is_empty() => wrong.push("\"\" matches no device".to_owned()),
                    Ok(glob) => compiled.push(glob.compile_matcher()),
                    Err(error) => wrong.push(format!("{pattern:?}: {}", error.kind())),
                }
            }
            compiled
        };
        let selector = Self {
            include: compile(include),
            exclude: compile(exclude),
        };
        if wrong.is_empty() {
            Ok(selector)
        } else {
            Err(PatternError(wrong))
        }
    }

    /// The kind of a link with this name, driver and peer.
    #[must_use]
    pub fn kind(&self, name: &str, driver: LinkDriver, peer: Option<Peer>) -> LinkKind {
        let matches =
            |patterns: &[GlobMatcher]| patterns.iter().any(|pattern| pattern.is_match(name));
        match driver {
            LinkDriver::Bridge => return LinkKind::Bridge,
            LinkDriver::OpenVswitch => return LinkKind::Switch,
            LinkDriver::Vrf { table } => return LinkKind::Vrf { table },
            LinkDriver::Vlan {
                parent,
                id,
                protocol,
            } if !matches(&self.include) => {
                return LinkKind::Vlan {
                    parent,
                    id,
                    protocol,
                };
            }
            LinkDriver::Loopback => return LinkKind::Other,
            LinkDriver::Veth
            | LinkDriver::Netkit
            | LinkDriver::Tun
            | LinkDriver::Vlan { .. }
            | LinkDriver::Other => {}
        }
        let chosen = if self.include.is_empty() {
            match driver {
                LinkDriver::Veth | LinkDriver::Netkit => peer.is_some(),
                LinkDriver::Tun => name.starts_with("tap"),
                _ => false,
            }
        } else {
            matches(&self.include)
        };
        if chosen && !matches(&self.exclude) {
            LinkKind::Pod
        } else {
            LinkKind::Other
        }
    }

    /// A link as the engine represents it.
    pub(super) fn link(&self, facts: LinkFacts) -> Link {
        let peer = facts.peer();
        Link {
            kind: self.kind(&facts.name, facts.driver, peer),
            ifindex: facts.ifindex,
            name: facts.name,
            alias: facts.alias,
            mac: facts.mac,
            master: facts.master,
            peer,
            is_tap: facts.driver == LinkDriver::Tun,
            up: facts.up,
            running: facts.running,
            vlan_filtering: facts.vlan_filtering,
        }
    }

    /// The patterns of `include` that match none of these names.
    #[must_use]
    pub fn unmatched<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Vec<&str> {
        let matched = |pattern: &&GlobMatcher| names.clone().any(|name| pattern.is_match(name));
        self.include
            .iter()
            .filter(|pattern| !matched(pattern))
            .map(|pattern| pattern.glob().glob())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{DeviceSelector, LinkDriver};
    use crate::engine::{LinkKind, Peer};

    const PEER: Option<Peer> = Some(Peer {
        nsid: 0,
        ifindex: 2,
    });

    fn selector(include: &[&str], exclude: &[&str]) -> DeviceSelector {
        let owned = |patterns: &[&str]| {
            patterns
                .iter()
                .map(|&pattern| pattern.into())
                .collect::<Vec<_>>()
        };
        DeviceSelector::new(&owned(include), &owned(exclude)).unwrap()
    }

    #[test]
    fn by_default_pairs_into_pods_and_taps_are_pod_devices() {
        let default = selector(&[], &[]);
        assert_eq!(default.kind("cali1", LinkDriver::Veth, PEER), LinkKind::Pod);
        assert_eq!(
            default.kind("lxc1", LinkDriver::Netkit, PEER),
            LinkKind::Pod
        );
        assert_eq!(default.kind("tap1", LinkDriver::Tun, None), LinkKind::Pod);
        for (name, driver, peer) in [
            ("cali1", LinkDriver::Veth, None),
            ("tun1", LinkDriver::Tun, None),
            ("tap1", LinkDriver::Other, None),
            ("eth0", LinkDriver::Other, None),
            ("lo", LinkDriver::Loopback, None),
        ] {
            assert_eq!(default.kind(name, driver, peer), LinkKind::Other, "{name}");
        }
        assert_eq!(
            default.kind("cni0", LinkDriver::Bridge, None),
            LinkKind::Bridge
        );
    }

    #[test]
    fn patterns_select_by_name_whatever_the_driver() {
        let chosen = selector(&["cali*", "eth[12]"], &[]);
        assert_eq!(chosen.kind("cali1", LinkDriver::Veth, None), LinkKind::Pod);
        assert_eq!(chosen.kind("eth1", LinkDriver::Other, None), LinkKind::Pod);
        assert_eq!(
            chosen.kind("eth3", LinkDriver::Other, None),
            LinkKind::Other
        );
        assert_eq!(
            chosen.kind("veth1", LinkDriver::Veth, PEER),
            LinkKind::Other
        );
        assert_eq!(chosen.kind("tap1", LinkDriver::Tun, None), LinkKind::Other);
    }

    #[test]
    fn a_bridge_or_loopback_is_never_a_pod_device() {
        let all = selector(&["*"], &[]);
        assert_eq!(all.kind("cni0", LinkDriver::Bridge, None), LinkKind::Bridge);
        assert_eq!(all.kind("lo", LinkDriver::Loopback, None), LinkKind::Other);
    }

    #[test]
    fn exclusion_takes_precedence() {
        assert_eq!(
            selector(&[], &["cali9*"]).kind("cali91", LinkDriver::Veth, PEER),
            LinkKind::Other
        );
        assert_eq!(
            selector(&["cali*"], &["cali9*"]).kind("cali91", LinkDriver::Veth, PEER),
            LinkKind::Other
        );
    }

    #[test]
    fn every_invalid_pattern_is_named() {
        let wrong =
            DeviceSelector::new(&["cali[".into(), String::new()], &["{a".into()]).unwrap_err();
        let message = wrong.to_string();
        for pattern in ["\"cali[\"", "\"\"", "\"{a\""] {
            assert!(message.contains(pattern), "{message}");
        }
    }

    #[test]
    fn patterns_that_match_no_device_are_named() {
        let chosen = selector(&["cali*", "eni*"], &[]);
        assert_eq!(chosen.unmatched(["lo", "cali1"].into_iter()), ["eni*"]);
    }
}
