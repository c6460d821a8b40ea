//! A reference parser of ARP and Neighbour Discovery frames, written from the RFCs alone.
//!
//! It shares no code with the parser of the kernel program and works differently: it lists every fault of a frame instead of
//! stopping at the first, over slices and vectors, without regard for a verifier or for speed.
//!
//! Some rules are not an RFC's. These are the detector's own: more than two VLAN tags with an id, more than 64 tags in the frame
//! and more than eight extension headers are invalid; options behind the eighth are not read. These are Linux's: any hardware
//! address is accepted, a payload length of zero in front of hop-by-hop options means the rest of the frame, and an IPv4-mapped
//! address is none. Of the validity rules of RFC 4861, the checksum and the destination that a redirect is about are left to the
//! receiver's kernel.

use std::collections::BTreeSet;

/// The protocol of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimProtocol {
    /// RFC 826.
    Arp,
    /// RFC 4861.
    Ndp,
}

/// The fields of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFields {
    /// Its protocol.
    pub protocol: ClaimProtocol,
    /// A probe (RFC 5227 §2.1.1) or a DAD solicitation (RFC 4862 §5.4.2): the address is not in use yet.
    pub tentative: bool,
    /// The address, four or sixteen bytes.
    pub address: Vec<u8>,
    /// The hardware address that claims it.
    pub mac: [u8; 6],
    /// Source of the Ethernet header.
    pub ether_source: [u8; 6],
    /// VLAN ids, outermost first; without priority tags (802.1Q: id 0).
    pub vlans: Vec<u16>,
    /// A router advertisement (RFC 4861 §4.2).
    pub router: bool,
}

/// Result of the reference parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReferenceVerdict {
    /// The frame does not claim an address.
    Other,
    /// The frame would claim an address, but has these faults.
    Faulty(BTreeSet<&'static str>),
    /// A claim.
    Claim(ClaimFields),
}

/// Ethertypes (IANA).
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// 802.1Q's customer tag and 802.1ad's service tag.
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// Parses a frame; `outer_tag` is the control information of a tag outside the frame.
#[must_use]
pub fn read(frame: &[u8], outer_tag: Option<u16>) -> ReferenceVerdict {
    let Some((header, mut rest)) = frame.split_at_checked(14) else {
        return ReferenceVerdict::Other;
    };
    let mut ethertype = [header[12], header[13]];
    let mut tags: Vec<u16> = outer_tag.into_iter().collect();
    let mut in_frame = 0;
    while TAGS.contains(&ethertype) {
        if in_frame == 64 {
            return ReferenceVerdict::Faulty(BTreeSet::from(["tag_count"]));
        }
        in_frame += 1;
        let Some((tag, behind)) = rest.split_at_checked(4) else {
            return ReferenceVerdict::Faulty(BTreeSet::from(["truncated"]));
        };
        tags.push(u16::from_be_bytes([tag[0], tag[1]]));
        ethertype = [tag[2], tag[3]];
        rest = behind;
    }
    let mut parser = ReferenceParser {
        faults: BTreeSet::new(),
        claim: ClaimFields {
            protocol: ClaimProtocol::Arp,
            tentative: false,
            address: Vec::new(),
            mac: [0; 6],
            ether_source: bytes(header, 6),
            // The low twelve bits are the id; the others are priority and drop eligibility.
            vlans: tags
                .iter()
                .map(|tag| tag & 0x0fff)
                .filter(|id| *id != 0)
                .collect(),
            router: false,
        },
        claims: true,
    };
    // 802.1Q table 9-2: 0xfff is reserved.
    let vlans = &parser.claim.vlans;
    if vlans.len() > 2 || vlans.contains(&0x0fff) {
        parser.fault("vlan");
    }
    match ethertype {
        ARP => parser.arp(rest),
        IPV6 => match UpperLayer::of(rest) {
            UpperLayer::NeighbourDiscovery { at, fragmented } => parser.ndp(rest, at, fragmented),
            UpperLayer::OutOfReach => parser.fault("extension_header_count"),
            UpperLayer::Other => return ReferenceVerdict::Other,
        },
        _ => return ReferenceVerdict::Other,
    }
    if !parser.faults.is_empty() {
        ReferenceVerdict::Faulty(parser.faults)
    } else if parser.claims {
        ReferenceVerdict::Claim(parser.claim)
    } else {
        ReferenceVerdict::Other
    }
}

/// What an IPv6 packet carries.
enum UpperLayer {
    Other,
    /// ICMPv6 (58) of one of the five types of RFC 4861 §4, `at` this offset.
    NeighbourDiscovery {
        at: usize,
        fragmented: bool,
    },
    /// Behind more extension headers than are read.
    OutOfReach,
}

impl UpperLayer {
    /// RFC 8200 §4: a chain of headers; each begins with the type of the next one.
    fn of(packet: &[u8]) -> Self {
        let mut kinds: Vec<u8> = packet.get(6).copied().into_iter().collect();
        let mut at = 40;
        while let Some(kind) = kinds.last().copied() {
            let headers = kinds.len() - 1;
            let is_extension = match kind {
                // Routing, fragment, destination options.
                43 | 44 | 60 => true,
                // §4.1: hop-by-hop options "appear immediately after an IPv6 header only".
                0 => headers == 0,
                _ => false,
            };
            if !is_extension {
                let message = packet.get(at..).and_then(<[u8]>::first);
                if kind != 58 || !matches!(message, Some(133..=137)) {
                    break;
                }
                let fragmented = kinds.contains(&44);
                return Self::NeighbourDiscovery { at, fragmented };
            }
            if headers == 8 {
                return Self::OutOfReach;
            }
            let Some([next, length, ..]) = packet.get(at..) else {
                break;
            };
            // §4.5: eight bytes; §4.3, §4.4, §4.6: "in 8-octet units, not including the first 8 octets".
            at += if kind == 44 {
                8
            } else {
                8 + usize::from(*length) * 8
            };
            kinds.push(*next);
        }
        Self::Other
    }
}

struct ReferenceParser {
    faults: BTreeSet<&'static str>,
    claim: ClaimFields,
    /// Whether a message without a fault claims an address.
    claims: bool,
}

impl ReferenceParser {
    fn fault(&mut self, label: &'static str) {
        self.faults.insert(label);
    }

    /// RFC 826: hardware and protocol types, address lengths, operation, addresses of sender and target.
    fn arp(&mut self, packet: &[u8]) {
        if packet.len() < 28 {
            self.fault("truncated");
            return;
        }
        let field = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        // Ethernet, or IEEE 802 networks (RFC 1122 §2.3.3 names both encapsulations).
        let hardware_is_ethernet = [1, 6].contains(&field(0));
        if !hardware_is_ethernet || field(2) != 0x0800 || packet[4] != 6 || packet[5] != 4 {
            self.fault("arp_format");
        }
        let operation = field(6);
        if operation != 1 && operation != 2 {
            self.fault("arp_operation");
        }
        let (sender, target) = (&packet[14..18], &packet[24..28]);
        self.claim.protocol = ClaimProtocol::Arp;
        self.claim.mac = bytes(packet, 8);
        // RFC 5227 §1.1: a probe is a request with an all-zero sender address.
        self.claim.tentative = operation == 1 && sender.iter().all(|byte| *byte == 0);
        self.claim.address = if self.claim.tentative { target } else { sender }.to_vec();
        // "This host" and loopback (RFC 1122 §3.2.1.3), and from 224 multicast, reserved and broadcast.
        let first = self.claim.address[0];
        if first == 0 || first == 127 || first >= 224 {
            self.fault("address");
        }
    }

    /// RFC 4861 §4.3, §4.4 and §7.1.
    fn ndp(&mut self, packet: &[u8], at: usize, fragmented: bool) {
        let Some(message) = packet.get(at..).filter(|message| message.len() >= 8) else {
            self.fault("truncated");
            return;
        };
        // §4.1 to §4.5: what precedes the options.
        let fixed = match message[0] {
            133 => 8,
            134 => 16,
            137 => 40,
            _ => 24,
        };
        if packet[0] >> 4 != 6 {
            self.fault("ip_version");
        }
        // RFC 6980 §5: silently ignored when fragmented.
        if fragmented {
            self.fault("fragment");
        }
        if packet[7] != 255 {
            self.fault("hop_limit");
        }
        if message[1] != 0 {
            self.fault("icmp_code");
        }
        // "ICMP length (derived from the IP length) is 24 or more octets", or 8, 16 and 40.
        let end = match u16::from_be_bytes([packet[4], packet[5]]) {
            // RFC 2675 §2: the length is in the hop-by-hop options then. Linux does not insist on it.
            0 if packet[6] == 0 => packet.len(),
            length => 40 + usize::from(length),
        };
        if end < at + fixed {
            self.fault("icmp_length");
        }
        if end > packet.len() {
            self.fault("truncated");
        }
        if message.len() < fixed {
            self.fault("truncated");
            return;
        }
        let kind = message[0];
        let solicitation = kind == 135;
        let source = &packet[8..24];
        let is_unspecified = source.iter().all(|byte| *byte == 0);
        // A host that has no address yet asks for routers.
        if kind == 133 && is_unspecified {
            self.claims = false;
            return;
        }
        // §4.1 and §4.2 have no target.
        let target = if matches!(kind, 133 | 134) {
            source
        } else {
            &message[8..24]
        };
        // "Target Address is not a multicast address."
        if target[0] == 0xff {
            self.fault("address");
        }
        // §6.1.2 and §8.1: "IP Source Address is a link-local address."
        let is_link_local = source[0] == 0xfe && source[1] >> 6 == 2;
        if matches!(kind, 134 | 137) && !is_link_local {
            self.fault("ndp_contradiction");
        }
        self.claim.protocol = ClaimProtocol::Ndp;
        self.claim.router = kind == 134;
        // RFC 4862 §5.4.3: a solicitation from the unspecified address is duplicate address detection of its target.
        self.claim.tentative = solicitation && is_unspecified;
        let destination = &packet[24..40];
        let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];
        // "If the IP source address is the unspecified address, the IP destination address is a solicited-node multicast
        // address."
        if self.claim.tentative && !destination.starts_with(&group) {
            self.fault("ndp_contradiction");
        }
        // "If the IP Destination Address is a multicast address the Solicited flag is zero."
        if kind == 136 && destination[0] == 0xff && message[4] & 0x40 != 0 {
            self.fault("ndp_contradiction");
        }
        let claims_source = solicitation && !self.claim.tentative;
        self.claim.address = if claims_source { source } else { target }.to_vec();
        let (last, before) = (self.claim.address[15], &self.claim.address[..15]);
        let unspecified_or_loopback = last <= 1 && before.iter().all(|byte| *byte == 0);
        // RFC 4291 §2.5.5.2.
        let mapped = self
            .claim
            .address
            .starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        if unspecified_or_loopback || mapped || self.claim.address[0] == 0xff {
            self.fault("address");
        }
        self.claim.mac = self.claim.ether_source;
        if let Some(options) = packet.get(at + fixed..end) {
            // Target link-layer address (2) of a neighbour advertisement and a redirect, else the source's (1).
            let found = self.options(options, if matches!(kind, 136 | 137) { 2 } else { 1 });
            // Without it a redirect says nothing about a hardware address.
            self.claims = kind != 137 || found;
        }
    }

    /// RFC 4861 §4.6: type, length in units of eight bytes, value. "All included options have a length that is greater
    /// than zero."
    fn options(&mut self, mut rest: &[u8], wanted: u8) -> bool {
        let mut seen = 0;
        let mut found = false;
        while !rest.is_empty() && seen < 8 {
            seen += 1;
            let length = rest.get(1).map_or(0, |units| usize::from(*units) * 8);
            let Some((option, behind)) = rest.split_at_checked(length) else {
                self.fault("ndp_option");
                break;
            };
            if option.is_empty() {
                self.fault("ndp_option");
                break;
            }
            if option[0] == wanted && !found {
                found = true;
                // "If the IP source address is the unspecified address, there is no source link-layer address option."
                if self.claim.tentative {
                    self.fault("ndp_contradiction");
                }
                if option.len() == 8 {
                    self.claim.mac = bytes(option, 2);
                } else {
                    self.fault("ndp_option");
                }
            }
            rest = behind;
        }
        found
    }
}

/// Six bytes at `at`; the caller has checked the length.
fn bytes(from: &[u8], at: usize) -> [u8; 6] {
    std::array::from_fn(|index| from[at + index])
}
