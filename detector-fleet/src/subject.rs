//! What is registered, and the name of its objects.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// An address of a pod, or a range of addresses of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Subject {
    /// An address that a pod claims.
    Address(IpAddr),
    /// A range that a node assigns addresses from: a podCIDR, or the block of an IPAM.
    Range(IpNet),
}

/// Neither an address nor a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an IP address nor a CIDR")]
pub struct NotASubject(String);

impl Subject {
    /// The range `net`, without the bits of a host.
    #[must_use]
    pub fn range(net: IpNet) -> Self {
        Self::Range(net.trunc())
    }

    /// The name of its `IPClaim` and of its `IPConflict`: its text with `-` for `:` and `/`. A name of Kubernetes begins and ends with a
    /// letter or digit (RFC 1123), so an address that begins or ends with `::` gets a `0` there: `::1` is `0--1`.
    ///
    /// A range of IPv6 with fewer than two zero groups at its end can have the name of an address (`fd00::1:2:3:0/112` and
    /// `fd00::1:2:3:0:112`). The objects hold the subject itself, so such a pair is never mistaken for a conflict.
    #[must_use]
    pub fn object_name(&self) -> String {
        let mut name = self.to_string().replace([':', '/'], "-");
        if name.starts_with('-') {
            name.insert(0, '0');
        }
        if name.ends_with('-') {
            name.push('0');
        }
        name
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Range(net) => net.fmt(f),
        }
    }
}

impl FromStr for Subject {
    type Err = NotASubject;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, NotASubject> {
        let address = text.parse().map(Self::Address).ok();
        let range = || text.parse().map(Self::range).ok();
        address
            .or_else(range)
            .ok_or_else(|| NotASubject(text.to_owned()))
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.to_string()
    }
}

impl TryFrom<String> for Subject {
    type Error = NotASubject;

    fn try_from(text: String) -> Result<Self, NotASubject> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn object_names_are_names_of_kubernetes() {
        for (text, name) in [
            ("10.244.1.5", "10.244.1.5"),
            ("10.244.1.0/24", "10.244.1.0-24"),
            ("fd00:10:244:1::5", "fd00-10-244-1--5"),
            ("fd00:10:244:1::/64", "fd00-10-244-1---64"),
            ("::1", "0--1"),
            ("fd00::", "fd00--0"),
            ("::/0", "0---0"),
        ] {
            let subject: Subject = text.parse().unwrap();
            assert_eq!(subject.object_name(), name);
            assert_eq!(subject.to_string(), text);
        }
    }

    #[test]
    fn range_has_no_bits_of_a_host() {
        let subject: Subject = "10.244.1.7/24".parse().unwrap();
        assert_eq!(subject.to_string(), "10.244.1.0/24");
        assert!("10.244.1".parse::<Subject>().is_err());
    }
}
