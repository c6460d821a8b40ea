//! Finds conflicts in the output of the other programs.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    time::Instant,
};

/// A line and when it was read.
pub(super) type TimedLine = (Instant, String);
/// When a conflict on an address was reported.
pub(super) type Detection = (Instant, Ipv4Addr);

/// A report has several lines; only that of a changed MAC contains an old one.
pub(super) fn parse_arpwatch(lines: &[TimedLine]) -> Vec<Detection> {
    let mut address = None;
    let mut detections = Vec::new();
    for (at, line) in lines {
        if let Some((_, rest)) = line.split_once("ip address:") {
            address = rest.trim().parse().ok();
        } else if line.contains("old ethernet address:")
            && let Some(address) = address
        {
            detections.push((*at, address));
        }
    }
    detections
}

pub(super) fn parse_arpalert(lines: &[TimedLine]) -> Vec<Detection> {
    lines
        .iter()
        .filter(|(_, line)| line.contains("type=mac_change"))
        .filter_map(|(at, line)| {
            let (_, rest) = line.split_once("ip=")?;
            let address = rest.split([',', ' ']).next()?.parse().ok()?;
            Some((*at, address))
        })
        .collect()
}

/// `TIME MAC > …, ethertype ARP (0x0806), length 42: Request who-has A tell B, length 28`.
pub(super) fn parse_tcpdump(lines: &[TimedLine]) -> Vec<Detection> {
    changes(lines, |line| {
        let mac = line.split(' ').nth(1)?;
        let (_, rest) = line.split_once(" tell ")?;
        Some((rest.split(',').next()?, mac))
    })
}

/// `[NEIGH]ADDRESS dev br0 lladdr MAC STALE`, with or without the label.
pub(super) fn parse_monitor(lines: &[TimedLine]) -> Vec<Detection> {
    changes(lines, |line| {
        let line = line.strip_prefix("[NEIGH]").unwrap_or(line);
        let (_, rest) = line.split_once(" lladdr ")?;
        Some((line.split(' ').next()?, rest.split(' ').next()?))
    })
}

pub(super) fn parse_bpftrace(lines: &[TimedLine]) -> Vec<Detection> {
    changes(lines, |line| {
        let (address, mac) = line.split_once(' ')?;
        // The MAC is zero if only the state of an entry changes.
        (mac.starts_with("\\x") && !mac.starts_with("\\x00\\x00\\x00")).then_some((address, mac))
    })
}

/// As a script would do: an address that appears with another MAC than before is in conflict.
fn changes<'a>(
    lines: &'a [TimedLine],
    parse: fn(&'a str) -> Option<(&'a str, &'a str)>,
) -> Vec<Detection> {
    let mut macs: HashMap<Ipv4Addr, &str> = HashMap::new();
    let mut detections = Vec::new();
    for (at, line) in lines {
        let Some((address, mac)) = parse(line) else {
            continue;
        };
        let Ok(IpAddr::V4(address)) = address.parse() else {
            continue;
        };
        if macs
            .insert(address, mac)
            .is_some_and(|before| !before.eq_ignore_ascii_case(mac))
        {
            detections.push((*at, address));
        }
    }
    detections
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{
        TimedLine, parse_arpalert, parse_arpwatch, parse_bpftrace, parse_monitor, parse_tcpdump,
    };

    fn lines(text: &str) -> Vec<TimedLine> {
        let now = Instant::now();
        text.lines().map(|line| (now, line.to_owned())).collect()
    }

    #[test]
    fn changed_mac_is_found_in_the_output_of_each_program() {
        let arpwatch = "From: arpwatch\n ip address: 10.1.1.1\n ethernet address: 02:00:00:00:00:02\n old ethernet address: 02:00:00:00:00:01";
        assert_eq!(parse_arpwatch(&lines(arpwatch)).len(), 1);
        let arpalert = "Nov 21 arpalert: seq=3, mac=02:00:00:00:00:02, ip=10.1.1.1, reference=02:00:00:00:00:01, type=mac_change, dev=br0";
        assert_eq!(parse_arpalert(&lines(arpalert)).len(), 1);
        let frame = |mac| {
            format!(
                "05:00:00.000001 02:00:00:00:00:0{mac} > ff:ff:ff:ff:ff:ff, ethertype ARP (0x0806), length 42: Request who-has 10.1.1.1 tell 10.1.1.1, length 28\n"
            )
        };
        assert_eq!(parse_tcpdump(&lines(&(frame(1) + &frame(2)))).len(), 1);
        assert_eq!(parse_tcpdump(&lines(&(frame(1) + &frame(1)))).len(), 0);
        let monitor = "[NEIGH]10.1.1.1 dev br0 lladdr 02:00:00:00:00:01 STALE\n10.1.1.1 dev br0 lladdr 02:00:00:00:00:02 STALE";
        assert_eq!(parse_monitor(&lines(monitor)).len(), 1);
        let bpftrace = r"10.1.1.1 \x02\x00\x00\x00\x00\x01
10.1.1.1 \x00\x00\x00\x00\x00\x00
10.1.1.1 \x02\x00\x00\x00\x00\x02";
        assert_eq!(parse_bpftrace(&lines(bpftrace)).len(), 1);
    }
}
