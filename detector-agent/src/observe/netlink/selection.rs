//! Which links are pod devices.

use detector_engine::{IfIndex, Link, LinkKind, VlanProtocol};
use globset::{Glob, GlobMatcher};

use super::decode::link::{LinkFacts, OtherEnd};

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

impl LinkDriver {
    /// Whether its links are pairs.
    pub(super) fn is_pair(self) -> bool {
        matches!(self, Self::Veth | Self::Netkit)
    }
}

/// Invalid device patterns, each with its reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid device pattern in --interfaces or --exclude-interfaces: {}", .0.join("; "))]
pub struct PatternError(Vec<String>);

/// Chooses pod devices.
///
/// Without patterns: a veth or netkit whose other end is in another namespace or not connected yet, and a tap device named
/// `tap…`. With patterns: every link whose name matches one, whatever its driver. Excluding patterns take precedence. A bridge or the
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

    /// The kind of a link with this name, driver and other end.
    ///
    /// The first notification of a pair's end may precede the connection with the other end (`veth_newlink` in
    /// drivers/net/veth.c). Such an end is taken for a pod device, so that the program is attached before it can be up.
    fn kind(&self, name: &str, driver: LinkDriver, other_end: OtherEnd) -> LinkKind {
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
                LinkDriver::Veth | LinkDriver::Netkit => !matches!(other_end, OtherEnd::Here(_)),
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
            kind: self.kind(&facts.name, facts.driver, facts.other_end),
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

    use detector_engine::{LinkKind, Peer};

    use super::{DeviceSelector, LinkDriver, OtherEnd};

    const IN_POD: OtherEnd = OtherEnd::Elsewhere(Peer {
        nsid: 0,
        ifindex: 2,
    });
    const NONE: OtherEnd = OtherEnd::Unknown;

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
        assert_eq!(
            default.kind("cali1", LinkDriver::Veth, IN_POD),
            LinkKind::Pod
        );
        assert_eq!(
            default.kind("lxc1", LinkDriver::Netkit, IN_POD),
            LinkKind::Pod
        );
        assert_eq!(default.kind("tap1", LinkDriver::Tun, NONE), LinkKind::Pod);
        for (name, driver, other_end) in [
            ("cali1", LinkDriver::Veth, OtherEnd::Here(2)),
            ("tun1", LinkDriver::Tun, NONE),
            ("tap1", LinkDriver::Other, NONE),
            ("eth0", LinkDriver::Other, NONE),
            ("lo", LinkDriver::Loopback, NONE),
        ] {
            assert_eq!(
                default.kind(name, driver, other_end),
                LinkKind::Other,
                "{name}"
            );
        }
        assert_eq!(
            default.kind("cni0", LinkDriver::Bridge, NONE),
            LinkKind::Bridge
        );
    }

    /// Its first notification precedes the connection of the two ends.
    #[test]
    fn pair_that_is_not_connected_yet_is_a_pod_device() {
        let default = selector(&[], &[]);
        for driver in [LinkDriver::Veth, LinkDriver::Netkit] {
            assert_eq!(default.kind("cali1", driver, NONE), LinkKind::Pod);
        }
    }

    #[test]
    fn patterns_select_by_name_whatever_the_driver() {
        let chosen = selector(&["cali*", "eth[12]"], &[]);
        assert_eq!(chosen.kind("cali1", LinkDriver::Veth, NONE), LinkKind::Pod);
        assert_eq!(chosen.kind("eth1", LinkDriver::Other, NONE), LinkKind::Pod);
        assert_eq!(
            chosen.kind("eth3", LinkDriver::Other, NONE),
            LinkKind::Other
        );
        assert_eq!(
            chosen.kind("veth1", LinkDriver::Veth, IN_POD),
            LinkKind::Other
        );
        assert_eq!(chosen.kind("tap1", LinkDriver::Tun, NONE), LinkKind::Other);
    }

    #[test]
    fn a_bridge_or_loopback_is_never_a_pod_device() {
        let all = selector(&["*"], &[]);
        assert_eq!(all.kind("cni0", LinkDriver::Bridge, NONE), LinkKind::Bridge);
        assert_eq!(all.kind("lo", LinkDriver::Loopback, NONE), LinkKind::Other);
    }

    #[test]
    fn exclusion_takes_precedence() {
        assert_eq!(
            selector(&[], &["cali9*"]).kind("cali91", LinkDriver::Veth, IN_POD),
            LinkKind::Other
        );
        assert_eq!(
            selector(&["cali*"], &["cali9*"]).kind("cali91", LinkDriver::Veth, IN_POD),
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
