//! The lines of the kernel log (`--kernel-log`).
//!
//! aya-log transports text. All lines have the same columns, which [`LogLine::parse`] reads, with [codes](LogEvent::code)
//! instead of names: a table of strings in a kernel program would need relocations that the loader does not support.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::{FromStr, SplitAsciiWhitespace},
};

use crate::{DropReason, RecordKind, RejectReason};

/// A line of the kernel log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The device; `None` for a neighbour update of another network namespace or family.
    pub ifindex: Option<u32>,
    /// What happened.
    pub event: LogEvent,
    /// The NUD state of a neighbour entry, or the namespace or family that it is ignored for; 0 if not applicable.
    pub detail: u32,
    /// The frame's Ethernet source.
    pub ether_source: Option<[u8; 6]>,
    /// The hardware address claimed, or the neighbour's.
    pub mac: Option<[u8; 6]>,
    /// The address claimed, or the neighbour's.
    pub address: Option<IpAddr>,
    /// The target address of a rejected frame.
    pub target: Option<IpAddr>,
}

impl LogLine {
    /// Reads the columns of a line: interface index, event code, IP version, detail, Ethernet source, hardware address,
    /// address, target. Zero stands for an absent value; an IPv4 address is in the first four bytes of an IPv6 address.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut columns = text.split_ascii_whitespace();
        let ifindex = number(&mut columns)?;
        let event = LogEvent::from_code(number(&mut columns)?)?;
        let ip_version = number(&mut columns)?;
        Some(Self {
            ifindex: (ifindex != 0).then_some(ifindex),
            event,
            detail: number(&mut columns)?,
            ether_source: mac(columns.next()?)?,
            mac: mac(columns.next()?)?,
            address: address(columns.next()?, ip_version)?,
            target: address(columns.next()?, ip_version)?,
        })
    }
}

fn number(columns: &mut SplitAsciiWhitespace<'_>) -> Option<u32> {
    columns.next()?.parse().ok()
}

/// `Some(None)` for the zero address.
fn mac(text: &str) -> Option<Option<[u8; 6]>> {
    let mut mac = [0; 6];
    let mut bytes = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    Some((mac != [0; 6]).then_some(mac))
}

/// `Some(None)` for no address.
fn address(text: &str, ip_version: u32) -> Option<Option<IpAddr>> {
    let address = Ipv6Addr::from_str(text).ok()?;
    let [a, b, c, d, ..] = address.octets();
    Some(match ip_version {
        4 => Some(Ipv4Addr::new(a, b, c, d).into()),
        6 => Some(address.into()),
        _ => None,
    })
}

/// Why the kernel programs did not publish something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A frame is not a valid claim.
    Rejected(RejectReason),
    /// An observation was lost.
    Dropped(DropReason),
    /// The same observation was published recently.
    AlreadyPublished(RecordKind),
    /// A neighbour update is none that the agent follows.
    Ignored(IgnoreReason),
}

/// Why a neighbour update is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreReason {
    /// The entry belongs to another network namespace than the agent's.
    OtherNetns,
    /// The entry is neither IPv4 nor IPv6.
    OtherFamily,
}

impl IgnoreReason {
    /// Every reason.
    pub const ALL: [Self; 2] = [Self::OtherNetns, Self::OtherFamily];

    /// The reason in a log line.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::OtherNetns => "other_netns",
            Self::OtherFamily => "other_family",
        }
    }
}

impl LogEvent {
    /// The number that stands for the event in a log line.
    #[must_use]
    #[inline(always)]
    pub const fn code(self) -> u32 {
        match self {
            Self::Rejected(reason) => reason as u32,
            Self::Dropped(reason) => 0x100 | reason as u32,
            Self::AlreadyPublished(kind) => 0x200 | kind as u32,
            Self::Ignored(reason) => 0x300 | reason as u32,
        }
    }

    /// The event with this code; `None` if there is none.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let rejected = RejectReason::ALL.into_iter().map(Self::Rejected);
        let dropped = DropReason::ALL.into_iter().map(Self::Dropped);
        let published = RecordKind::ALL.into_iter().map(Self::AlreadyPublished);
        let ignored = IgnoreReason::ALL.into_iter().map(Self::Ignored);
        rejected
            .chain(dropped)
            .chain(published)
            .chain(ignored)
            .find(|event| event.code() == code)
    }

    /// The reason in a log line.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Rejected(reason) => reason.label(),
            Self::Dropped(reason) => reason.label(),
            Self::AlreadyPublished(_) => "already_published",
            Self::Ignored(reason) => reason.label(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_columns_of_a_line() {
        let line = LogLine::parse("7 3 4 0 02:00:00:00:00:0a 02:00:00:00:00:0b af4:20a:: ::");
        let expected = LogLine {
            ifindex: Some(7),
            event: LogEvent::Rejected(RejectReason::ArpOperation),
            detail: 0,
            ether_source: Some([2, 0, 0, 0, 0, 0x0a]),
            mac: Some([2, 0, 0, 0, 0, 0x0b]),
            address: Some(Ipv4Addr::new(10, 244, 2, 10).into()),
            target: Some(Ipv4Addr::UNSPECIFIED.into()),
        };
        assert_eq!(line, Some(expected));
        let ignored =
            LogLine::parse("0 768 0 4026531840 00:00:00:00:00:00 00:00:00:00:00:00 :: ::");
        let expected = LogLine {
            ifindex: None,
            event: LogEvent::Ignored(IgnoreReason::OtherNetns),
            detail: 4_026_531_840,
            ether_source: None,
            mac: None,
            address: None,
            target: None,
        };
        assert_eq!(ignored, Some(expected));
    }

    #[test]
    fn other_text_is_no_line() {
        for text in [
            "",
            "7",
            "7 9999 4 0 02:00:00:00:00:0a 02:00:00:00:00:0b :: ::",
            "7 3 4 0 x",
        ] {
            assert_eq!(LogLine::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_code_maps_back_to_its_event() {
        let events = (0..0x400).filter_map(|code| LogEvent::from_code(code).map(|e| (code, e)));
        let mut count = 0;
        for (code, event) in events {
            assert_eq!(event.code(), code);
            count += 1;
        }
        let all = RejectReason::ALL.len()
            + DropReason::ALL.len()
            + RecordKind::ALL.len()
            + IgnoreReason::ALL.len();
        assert_eq!(count, all);
        assert_eq!(LogEvent::from_code(u32::MAX), None);
    }
}
