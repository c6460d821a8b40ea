//! The addresses of a cluster. They exist only in its own namespaces, so that every cluster can have the same.

/// The address family of nodes, pods and services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    #[default]
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
    fn pick<T>(self, v4: T, v6: T) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }

    /// The control plane's address, the nodes' gateway.
    pub(super) fn control_address(self) -> String {
        self.pick("10.123.0.1", "fd00:123::1").to_owned()
    }

    /// The address of a node, counted from 1.
    #[must_use]
    pub fn node_address(self, number: usize) -> String {
        match self {
            Self::V4 => format!("10.123.0.{}", 10 + number),
            Self::V6 => format!("fd00:123::{:x}", 0x10 + number),
        }
    }

    pub(super) fn prefix_length(self) -> u8 {
        self.pick(24, 64)
    }

    /// The pods' subnet on a node.
    #[must_use]
    pub fn pod_subnet(self, number: usize) -> String {
        match self {
            Self::V4 => format!("10.244.{number}.0/24"),
            Self::V6 => format!("fd00:244:0:{number:x}::/64"),
        }
    }

    pub(super) fn default_route(self) -> &'static str {
        self.pick("0.0.0.0/0", "::/0")
    }

    pub(super) fn service_subnet(self) -> &'static str {
        self.pick("10.96.0.0/16", "fd00:96::/112")
    }

    /// The API server's service: the first address of the subnet.
    pub(super) fn service_address(self) -> &'static str {
        self.pick("10.96.0.1/32", "fd00:96::1/128")
    }

    pub(super) fn unspecified(self) -> &'static str {
        self.pick("0.0.0.0", "::")
    }

    pub(super) fn api_origin(self) -> String {
        format!("https://{}", self.bracketed(&self.control_address()))
    }

    /// An address as it is written in a URL.
    #[must_use]
    pub fn bracketed(self, address: &str) -> String {
        self.pick(address.to_owned(), format!("[{address}]"))
    }

    /// Addresses are usable at once, without duplicate address detection.
    pub(super) fn no_dad(self) -> &'static str {
        self.pick("", " nodad")
    }

    pub(super) fn forwarding(self) -> &'static str {
        self.pick("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
    }
}
