//! What a packet costs in the classifier, side by side with one that does nothing (`BPF_PROG_TEST_RUN`; needs root).
//!
//! Each figure is the least of several batches: what the machine does besides only ever adds.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use detector_agent::observe::ebpf::{EbpfOptions, Programs, RingReader, Subject};
use detector_testkit::{Frame, Mac, NaFlags};

const MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0x0a]);
const BATCHES: u32 = 9;
const RUNS: u32 = 1_000_000;
/// New claims of one batch, all of which fit into the ring.
const NEW_CLAIMS: u32 = 200_000;

fn main() -> Result<()> {
    let ipv4 = data_packet(0x0800, 0x45);
    let ipv6 = data_packet(0x86dd, 0x60);
    let arp = Frame::announcement(MAC, Ipv4Addr::new(10, 244, 2, 10)).to_bytes();
    let address = "fd00::a:b".parse()?;
    let ndp = Frame::advertisement(MAC, address, Some(MAC), NaFlags::OVERRIDE).to_bytes();
    let malformed = Frame::request(MAC, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).to_bytes();

    let (mut programs, mut reader) = Programs::load(&EbpfOptions::default())?;
    println!("{:<34}{:>8}{:>12}", "packet", "ns", "over empty");
    let mut row = |name: &str, subject, frame: &[u8]| -> Result<f64> {
        let mut least = Duration::MAX;
        for _ in 0..BATCHES {
            let trial = programs.trial(subject, frame, RUNS)?;
            ensure!(trial.verdict == -1, "the program stopped the packet");
            least = least.min(trial.each);
            discard(&mut reader);
        }
        let least = least.as_nanos() as f64;
        println!("{name:<34}{least:>8}");
        Ok(least)
    };
    row("IPv4 data, empty program", Subject::Empty, &ipv4)?;
    row("IPv4 data", Subject::ArpNdp, &ipv4)?;
    row("IPv6 data, empty program", Subject::Empty, &ipv6)?;
    row("IPv6 data", Subject::ArpNdp, &ipv6)?;
    row("ARP, empty program", Subject::Empty, &arp)?;
    row("ARP, known claim", Subject::ArpNdp, &arp)?;
    row("NDP, known claim", Subject::ArpNdp, &ndp)?;
    row("ARP, rejected", Subject::ArpNdp, &malformed)?;
    drop((programs, reader));

    let options = EbpfOptions {
        ring_bytes: 1 << 26,
        republish_after: Duration::ZERO,
        budget_per_second: 0,
        ..EbpfOptions::default()
    };
    let (mut programs, mut reader) = Programs::load(&options)?;
    for (name, frame) in [("ARP, new claim", &arp), ("NDP, new claim", &ndp)] {
        let mut least = Duration::MAX;
        for _ in 0..BATCHES {
            least = least.min(programs.trial(Subject::ArpNdp, frame, NEW_CLAIMS)?.each);
            discard(&mut reader);
        }
        println!("{name:<34}{:>8}", least.as_nanos());
    }
    ensure!(
        programs.counters().read()?.losses() == Default::default(),
        "claims were lost: the figures are not theirs"
    );
    Ok(())
}

fn discard(reader: &mut RingReader) {
    while reader.drain(100_000, drop).more {}
}

/// A UDP packet of 128 bytes, as far as the classifier looks.
fn data_packet(ethertype: u16, first: u8) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
    bytes[14] = first;
    bytes[20] = 17;
    bytes[23] = 17;
    bytes
}
