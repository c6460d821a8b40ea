//! ARP and Neighbour Discovery frames, byte by byte, and a socket that sends them from inside a pod.
//!
//! Built by hand rather than by the crate that the agent parses with, so that a mistake cannot stand on both sides.

mod sender;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mac::Mac;

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
    /// Who has the target address?
    Request = 1,
    /// The sender has it.
    Reply = 2,
}

/// Flags of a neighbour advertisement, RFC 4861 §4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NaFlags(pub u8);

impl NaFlags {
    /// The sender is a router.
    pub const ROUTER: Self = Self(0x80);
    /// An answer to a solicitation.
    pub const SOLICITED: Self = Self(0x40);
    /// Replaces what the receiver had.
    pub const OVERRIDE: Self = Self(0x20);

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What follows the checksum of an advertisement.
fn advertisement_body(target: Ipv6Addr, option: Option<Mac>, flags: NaFlags) -> Vec<u8> {
    let mut body = vec![flags.0, 0, 0, 0];
    body.extend(target.octets());
    if let Some(option) = option {
        body.extend([2, 1]);
        body.extend(option.0);
    }
    body
}

/// An Ethernet frame, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    destination: Mac,
    source: Mac,
    vlans: Vec<u16>,
    ethertype: u16,
    payload: Vec<u8>,
}

impl Frame {
    /// Any ARP message; the Ethernet source is the sender's MAC.
    #[must_use]
    pub fn arp(
        operation: ArpOperation,
        destination: Mac,
        (sender_mac, sender): (Mac, Ipv4Addr),
        (target_mac, target): (Mac, Ipv4Addr),
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
    pub fn announcement(mac: Mac, address: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Request,
            Mac::BROADCAST,
            (mac, address),
            (Mac::ZERO, address),
        )
    }

    /// An ARP probe: is the address free? The sender's address is unspecified, RFC 5227 §2.1.1.
    #[must_use]
    pub fn probe(mac: Mac, address: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Request,
            Mac::BROADCAST,
            (mac, Ipv4Addr::UNSPECIFIED),
            (Mac::ZERO, address),
        )
    }

    /// A plain ARP request: who has `target`, tell `sender`.
    #[must_use]
    pub fn request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Request,
            Mac::BROADCAST,
            (mac, sender),
            (Mac::ZERO, target),
        )
    }

    /// A gratuitous ARP reply: broadcast, sender and target are the same.
    #[must_use]
    pub fn gratuitous_reply(mac: Mac, address: Ipv4Addr) -> Self {
        Self::arp(
            ArpOperation::Reply,
            Mac::BROADCAST,
            (mac, address),
            (mac, address),
        )
    }

    /// A neighbour solicitation for `target` with the source link-layer option, RFC 4861 §4.3.
    #[must_use]
    pub fn solicitation(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> Self {
        let mut body = vec![0; 4];
        body.extend(target.octets());
        body.extend([1, 1]);
        body.extend(mac.0);
        let group = solicited_node(target);
        Self::icmpv6(mac, group_mac(group), source, group, 135, &body)
    }

    /// Duplicate address detection: a solicitation from the unspecified address, without option, RFC 4862 §5.4.2.
    #[must_use]
    pub fn dad(mac: Mac, target: Ipv6Addr) -> Self {
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

    /// A neighbour advertisement of `target` to all nodes, from the address itself; `option` is the target link-layer
    /// address, which a sender may leave out, RFC 4861 §4.4.
    #[must_use]
    pub fn advertisement(mac: Mac, target: Ipv6Addr, option: Option<Mac>, flags: NaFlags) -> Self {
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let body = advertisement_body(target, option, flags);
        Self::icmpv6(mac, group_mac(group), target, group, 136, &body)
    }

    /// The neighbour advertisement with which the holder of `target` answers the solicitation of `asking`, RFC 4861 §7.2.4.
    #[must_use]
    pub fn answer(
        mac: Mac,
        target: Ipv6Addr,
        option: Option<Mac>,
        (asking_mac, asking): (Mac, Ipv6Addr),
    ) -> Self {
        let flags = NaFlags::SOLICITED.and(NaFlags::OVERRIDE);
        let body = advertisement_body(target, option, flags);
        Self::icmpv6(mac, asking_mac, target, asking, 136, &body)
    }

    /// An ICMPv6 message with hop limit 255 and a right checksum; `body` follows the checksum.
    #[must_use]
    pub fn icmpv6(
        mac: Mac,
        destination_mac: Mac,
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
        // Version 6, no class, no flow label.
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

    /// Tags it; with two tags the first call is the outer one, and then of type 802.1ad.
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Self {
        self.vlans.push(id & 0x0fff);
        self
    }

    /// Gives it another Ethernet source than the sender's MAC in the message.
    #[must_use]
    pub fn ether_source(mut self, mac: Mac) -> Self {
        self.source = mac;
        self
    }

    /// What follows the Ethernet header, to be made malformed.
    pub fn payload_mut(&mut self) -> &mut Vec<u8> {
        &mut self.payload
    }

    /// The bytes on the wire, without frame check sequence and padding.
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

/// The multicast group that a solicitation for `target` goes to, RFC 4291 §2.7.1.
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
fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// The checksum over pseudo-header and message, RFC 8200 §8.1.
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
