//! What each of the other programs writes, and which conflicts stand in it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    time::Instant,
};

/// A line and when it was read.
pub(super) type Line = (Instant, String);
/// When which address was told to be in conflict.
pub(super) type Seen = (Instant, Ipv4Addr);

/// A report of several lines; only one of a change has an old station.
pub(super) fn arpwatch_says(lines: &[Line]) -> Vec<Seen> {
    let mut address = None;
    let mut seen = Vec::new();
    for (at, line) in lines {
        if let Some((_, rest)) = line.split_once("ip address:") {
            address = rest.trim().parse().ok();
        } else if line.contains("old ethernet address:")
            && let Some(address) = address
        {
            seen.push((*at, address));
        }
    }
    seen
}

pub(super) fn arpalert_says(lines: &[Line]) -> Vec<Seen> {
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

/// `TIME STATION > …, ethertype ARP (0x0806), length 42: Request who-has A tell B, length 28`.
pub(super) fn tcpdump_says(lines: &[Line]) -> Vec<Seen> {
    changes(lines, |line| {
        let station = line.split(' ').nth(1)?;
        let (_, rest) = line.split_once(" tell ")?;
        Some((rest.split(',').next()?, station))
    })
}

/// `[NEIGH]ADDRESS dev br0 lladdr STATION STALE`, with or without the label.
pub(super) fn monitor_says(lines: &[Line]) -> Vec<Seen> {
    changes(lines, |line| {
        let line = line.strip_prefix("[NEIGH]").unwrap_or(line);
        let (_, rest) = line.split_once(" lladdr ")?;
        Some((line.split(' ').next()?, rest.split(' ').next()?))
    })
}

pub(super) fn bpftrace_says(lines: &[Line]) -> Vec<Seen> {
    changes(lines, |line| {
        let (address, station) = line.split_once(' ')?;
        // No station is given where an entry only changes its state.
        (station.starts_with("\\x") && !station.starts_with("\\x00\\x00\\x00"))
            .then_some((address, station))
    })
}

/// What a script would do: an address that comes with another station than before is in conflict.
fn changes<'a>(lines: &'a [Line], parse: fn(&'a str) -> Option<(&'a str, &'a str)>) -> Vec<Seen> {
    let mut stations: HashMap<Ipv4Addr, &str> = HashMap::new();
    let mut seen = Vec::new();
    for (at, line) in lines {
        let Some((address, station)) = parse(line) else {
            continue;
        };
        let Ok(IpAddr::V4(address)) = address.parse() else {
            continue;
        };
        if stations
            .insert(address, station)
            .is_some_and(|before| !before.eq_ignore_ascii_case(station))
        {
            seen.push((*at, address));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Line, arpalert_says, arpwatch_says, bpftrace_says, monitor_says, tcpdump_says};

    fn lines(text: &str) -> Vec<Line> {
        let now = Instant::now();
        text.lines().map(|line| (now, line.to_owned())).collect()
    }

    #[test]
    fn a_change_is_found_in_what_each_program_writes() {
        let arpwatch = "From: arpwatch\n ip address: 10.1.1.1\n ethernet address: 02:00:00:00:00:02\n old ethernet address: 02:00:00:00:00:01";
        assert_eq!(arpwatch_says(&lines(arpwatch)).len(), 1);
        let arpalert = "Nov 21 arpalert: seq=3, mac=02:00:00:00:00:02, ip=10.1.1.1, reference=02:00:00:00:00:01, type=mac_change, dev=br0";
        assert_eq!(arpalert_says(&lines(arpalert)).len(), 1);
        let frame = |mac| {
            format!(
                "05:00:00.000001 02:00:00:00:00:0{mac} > ff:ff:ff:ff:ff:ff, ethertype ARP (0x0806), length 42: Request who-has 10.1.1.1 tell 10.1.1.1, length 28\n"
            )
        };
        assert_eq!(tcpdump_says(&lines(&(frame(1) + &frame(2)))).len(), 1);
        assert_eq!(tcpdump_says(&lines(&(frame(1) + &frame(1)))).len(), 0);
        let monitor = "[NEIGH]10.1.1.1 dev br0 lladdr 02:00:00:00:00:01 STALE\n10.1.1.1 dev br0 lladdr 02:00:00:00:00:02 STALE";
        assert_eq!(monitor_says(&lines(monitor)).len(), 1);
        let bpftrace = r"10.1.1.1 \x02\x00\x00\x00\x00\x01
10.1.1.1 \x00\x00\x00\x00\x00\x00
10.1.1.1 \x02\x00\x00\x00\x00\x02";
        assert_eq!(bpftrace_says(&lines(bpftrace)).len(), 1);
    }
}
