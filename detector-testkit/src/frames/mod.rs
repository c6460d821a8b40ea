//! ARP and Neighbour Discovery frames, and a socket that sends them from inside a pod.
//!
//! They are encoded here rather than with the crate that the agent parses with, so that one mistake cannot hide another.

mod sender;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mac::MacAddress;

pub use sender::{FrameSender, announce};

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const ICMPV6: u8 = 58;

/// ARP operations, RFC 826.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ArpOperation {
    /// Asks for the MAC of the target address.
    Request = 1,
    /// States the sender's address and MAC.
    Reply = 2,
}

/// Flags of a neighbour advertisement, RFC 4861 §4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NaFlags(pub u8);

impl NaFlags {
    /// The sender is a router.
    pub const ROUTER: Self = Self(0x80);
    /// A response to a solicitation.
    pub const SOLICITED: Self = Self(0x40);
    /// Replaces an existing cache entry.
    pub const OVERRIDE: Self = Self(0x20);

    /// The union of both sets of flags.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The part of an advertisement after the checksum.
fn advertisement_body(target: Ipv6Addr, option: Option<MacAddress>, flags: NaFlags) -> Vec<u8> {
    let mut body = vec![flags.0, 0, 0, 0];
    body.extend(target.octets());
    if let Some(option) = option {
        body.extend([2, 1]);
        body.extend(option.0);
    }
    body
}

/// An IPv6 extension header of eight bytes that a receiver steps over, RFC 8200 §4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExtensionHeader {
    /// Hop-by-hop options: only padding.
    HopByHop = 0,
    /// A routing header without segments left.
    Routing = 43,
    /// The only fragment of a packet (an atomic fragment, RFC 6946).
    Fragment = 44,
    /// Destination options: only padding.
    DestinationOptions = 60,
}

impl ExtensionHeader {
    /// The header in front of one of type `next`.
    fn bytes(self, next: u8) -> [u8; 8] {
        match self {
            // PadN of four bytes.
            Self::HopByHop | Self::DestinationOptions => [next, 0, 1, 4, 0, 0, 0, 0],
            Self::Routing | Self::Fragment => [next, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// An Ethernet frame, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    destination: MacAddress,
    source: MacAddress,
    vlans: Vec<u16>,
    ethertype: u16,
    payload: Vec<u8>,
}

impl Frame {
    /// An ARP message; the Ethernet source is the sender's MAC.
    #[must_use]
    pub fn arp(
        operation: ArpOperation,
        destination: MacAddress,
        (sender_mac, sender): (MacAddress, Ipv4Addr),
        (target_mac, target): (MacAddress, Ipv4Addr),
    ) -> Self {
        // Ethernet (1), IPv4, addresses of six and four bytes.
        let mut payload = vec![0x00, 0x01, 0x08, 0x00, 6, 4];
        payload.extend((operation as u16).to_be_bytes());
        payload.extend(sender_mac.0);
        payload.extend(sender.octets());
        payload.extend(target_mac.0);
        payload.extend(target.octets());
        Self {
            destination,
            source: sender_mac,
            vlans: Vec::new(),
            ethertype: ETHERTYPE_ARP,
            payload,
        }
    }

    /// An ARP announcement: a broadcast request for the sender's own address, RFC 5227 §3.
    #[must_use]
    pub fn announcement(mac: MacAddress, address: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Request,
            MacAddress::BROADCAST,
            (mac, address),
            (MacAddress::ZERO, address),
        )
    }

    /// An ARP probe for an address; the sender's address is unspecified, RFC 5227 §2.1.1.
    #[must_use]
    pub fn probe(mac: MacAddress, address: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Request,
            MacAddress::BROADCAST,
            (mac, Ipv4Addr::UNSPECIFIED),
            (MacAddress::ZERO, address),
        )
    }

    /// A broadcast ARP request from `sender` for `target`.
    #[must_use]
    pub fn request(mac: MacAddress, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Request,
            MacAddress::BROADCAST,
            (mac, sender),
            (MacAddress::ZERO, target),
        )
    }

    /// A gratuitous ARP reply: broadcast, with equal sender and target.
    #[must_use]
    pub fn gratuitous_reply(mac: MacAddress, address: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Reply,
            MacAddress::BROADCAST,
            (mac, address),
            (mac, address),
        )
    }

    /// A neighbour solicitation for `target` with the source link-layer option, RFC 4861 §4.3.
    #[must_use]
    pub fn solicitation(mac: MacAddress, source: Ipv6Addr, target: Ipv6Addr) -> Self {
        let mut body = vec![0; 4];
        body.extend(target.octets());
        body.extend([1, 1]);
        body.extend(mac.0);
        let group = solicited_node(target);
        Self::icmpv6(mac, group_mac(group), source, group, 135, &body)
    }

    /// A solicitation for duplicate address detection: from the unspecified address, without option, RFC 4862 §5.4.2.
    #[must_use]
    pub fn dad(mac: MacAddress, target: Ipv6Addr) -> Self {
        let mut body = vec![0; 4];
        body.extend(target.octets());
        let group = solicited_node(target);
        Self::icmpv6(
            mac,
            group_mac(group),
            Ipv6Addr::UNSPECIFIED,
            group,
            135,
            &body,
        )
    }

    /// An unsolicited neighbour advertisement of `target` to all nodes, sent from the address itself; `option` is the optional
    /// target link-layer address, RFC 4861 §4.4.
    #[must_use]
    pub fn advertisement(
        mac: MacAddress,
        target: Ipv6Addr,
        option: Option<MacAddress>,
        flags: NaFlags,
    ) -> Self {
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let body = advertisement_body(target, option, flags);
        Self::icmpv6(mac, group_mac(group), target, group, 136, &body)
    }

    /// The neighbour advertisement in response to a solicitation by `soliciting`, RFC 4861 §7.2.4.
    #[must_use]
    pub fn solicited_advertisement(
        mac: MacAddress,
        target: Ipv6Addr,
        option: Option<MacAddress>,
        (soliciting_mac, soliciting): (MacAddress, Ipv6Addr),
    ) -> Self {
        let flags = NaFlags::SOLICITED.union(NaFlags::OVERRIDE);
        let body = advertisement_body(target, option, flags);
        Self::icmpv6(mac, soliciting_mac, target, soliciting, 136, &body)
    }

    /// A router solicitation by `source` with the source link-layer option, RFC 4861 §4.1.
    #[must_use]
    pub fn router_solicitation(mac: MacAddress, source: Ipv6Addr) -> Self {
        let mut body = vec![0; 4];
        body.extend([1, 1]);
        body.extend(mac.0);
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
        Self::icmpv6(mac, group_mac(group), source, group, 133, &body)
    }

    /// A router advertisement by `router` to all nodes, with the source link-layer option and a prefix of 64 bits that hosts
    /// form addresses from, RFC 4861 §4.2.
    #[must_use]
    pub fn router_advertisement(mac: MacAddress, router: Ipv6Addr, prefix: Ipv6Addr) -> Self {
        // Hop limit 64, no flags, lifetime 1800 s, no times.
        let mut body = vec![64, 0, 0x07, 0x08];
        body.extend([0; 8]);
        body.extend([1, 1]);
        body.extend(mac.0);
        // On-link and autonomous, valid for 7200 s and preferred for 3600 s.
        body.extend([3, 4, 64, 0xc0]);
        body.extend(7200_u32.to_be_bytes());
        body.extend(3600_u32.to_be_bytes());
        body.extend([0; 4]);
        body.extend(prefix.octets());
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        Self::icmpv6(mac, group_mac(group), router, group, 134, &body)
    }

    /// A redirect by `router` to a host: packets to `address` go directly to it, and it has `mac`. RFC 4861 §4.5.
    #[must_use]
    pub fn redirect(
        mac: MacAddress,
        router: Ipv6Addr,
        address: Ipv6Addr,
        (host_mac, host): (MacAddress, Ipv6Addr),
    ) -> Self {
        let mut body = vec![0; 4];
        body.extend(address.octets());
        body.extend(address.octets());
        body.extend([2, 1]);
        body.extend(mac.0);
        Self::icmpv6(mac, host_mac, router, host, 137, &body)
    }

    /// An ICMPv6 message with hop limit 255 and a valid checksum; `body` follows the checksum.
    #[must_use]
    pub fn icmpv6(
        mac: MacAddress,
        destination_mac: MacAddress,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        kind: u8,
        body: &[u8],
    ) -> Self {
        let mut message = vec![kind, 0, 0, 0];
        message.extend(body);
        let checksum = icmpv6_checksum(source, destination, &message);
        if let Some(field) = message.get_mut(2..4) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
        // Version 6, traffic class 0, flow label 0.
        let mut payload = vec![0x60, 0, 0, 0];
        payload.extend(
            u16::try_from(message.len())
                .unwrap_or(u16::MAX)
                .to_be_bytes(),
        );
        payload.extend([ICMPV6, 255]);
        payload.extend(source.octets());
        payload.extend(destination.octets());
        payload.extend(message);
        Self {
            destination: destination_mac,
            source: mac,
            vlans: Vec::new(),
            ethertype: ETHERTYPE_IPV6,
            payload,
        }
    }

    /// Inserts extension headers, in this order, directly behind the header of an IPv6 packet.
    #[must_use]
    pub fn extension_headers(mut self, headers: &[ExtensionHeader]) -> Self {
        let [_, _, _, _, high, low, next, ..] = self.payload.as_mut_slice() else {
            return self;
        };
        let length = u16::from_be_bytes([*high, *low]);
        let added = u16::try_from(headers.len() * 8).unwrap_or(u16::MAX);
        [*high, *low] = length.saturating_add(added).to_be_bytes();
        let mut chain = Vec::new();
        for header in headers.iter().rev() {
            chain.splice(..0, header.bytes(*next));
            *next = *header as u8;
        }
        self.payload.splice(40..40, chain);
        self
    }

    /// Adds a VLAN tag. With two tags the first one added is the outer one, with the 802.1ad EtherType.
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Self {
        self.vlans.push(id & 0x0fff);
        self
    }

    /// Sets an Ethernet source that differs from the sender's MAC in the message.
    #[must_use]
    pub fn ether_source(mut self, mac: MacAddress) -> Self {
        self.source = mac;
        self
    }

    /// The bytes after the Ethernet header, so that a test can corrupt them.
    pub fn payload_mut(&mut self) -> &mut Vec<u8> {
        &mut self.payload
    }

    /// The encoded frame, without padding and frame check sequence.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(22 + self.payload.len());
        bytes.extend(self.destination.0);
        bytes.extend(self.source.0);
        for (index, id) in self.vlans.iter().enumerate() {
            let last = index + 1 == self.vlans.len();
            bytes.extend((if last { ETHERTYPE_VLAN } else { ETHERTYPE_QINQ }).to_be_bytes());
            bytes.extend(id.to_be_bytes());
        }
        bytes.extend(self.ethertype.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }
}

/// The solicited-node multicast address of `target`, RFC 4291 §2.7.1.
fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    )
}

/// The Ethernet address of an IPv6 multicast group, RFC 2464 §7.
fn group_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

/// The checksum over the pseudo-header and the message, RFC 8200 §8.1.
fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let mut bytes = Vec::with_capacity(40 + message.len());
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(
        u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    bytes.extend([0, 0, 0, ICMPV6]);
    bytes.extend(message);
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| match *pair {
            [high, low] => u32::from(u16::from_be_bytes([high, low])),
            [high] => u32::from(high) << 8,
            _ => 0,
        })
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}
