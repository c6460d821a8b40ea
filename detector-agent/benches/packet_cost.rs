//! Cost of loading and attaching, and cost of a packet in the classifier compared with an empty program (`BPF_PROG_TEST_RUN`;
//! needs root).
//!
//! Each figure is the minimum of many short batches, and the batches of all rows alternate: other load on the machine only
//! ever adds time, and some batches are short enough to be undisturbed.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::{Ebpf, programs::SchedClassifier};
use detector_agent::observe::ebpf::{
    AttachMode, EbpfOptions, KernelLog, LossCounters, Programs, RingReader, test_run,
};
use detector_bench::{Figure, Goal, figure::record};
use detector_testkit::{Frame, MacAddress, NaFlags, Node};
use nix::net::if_::if_nametoindex;

const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0a]);
/// The empty program, in an object of its own.
const EMPTY: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/detector-ebpf-empty.o"));
const BATCHES: u32 = 1_000;
/// Runs of one batch: about 100 µs, and few enough that their new claims fit into the ring.
const RUNS: u32 = 2_000;

struct Row {
    name: &'static str,
    frame: Vec<u8>,
    empty: Duration,
    cost: Duration,
}

impl Row {
    /// Data packets by the ratio to the empty program, claims by the difference.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one packet")]
    fn figures(&self) -> Vec<Figure> {
        const GROUP: &str = "Cost of a packet in the kernel program";
        let (empty, cost) = (self.empty.as_nanos() as f64, self.cost.as_nanos() as f64);
        let note = format!("{cost} ns, the empty program {empty} ns");
        if self.name.contains("data") {
            let name = format!("{}, by the empty program", self.name);
            return vec![
                Figure::new(GROUP, name, cost / empty, "×")
                    .goal(Goal::AtMost(1.1))
                    .note(note),
            ];
        }
        let more =
            Figure::new(GROUP, format!("{}, more", self.name), cost - empty, "ns").note(note);
        match self.name {
            "ARP, known claim" => vec![
                more.goal(Goal::Below(60.0)),
                Figure::new(GROUP, "ARP, known claim, one core", 1e9 / cost, "/s")
                    .note("the program alone, without the device's receive path"),
            ],
            "ARP, new claim" => vec![more.goal(Goal::Below(250.0))],
            _ => vec![more],
        }
    }
}

fn main() -> Result<()> {
    let arp = Frame::announcement(MAC, Ipv4Addr::new(10, 244, 2, 10)).to_bytes();
    let address = "fd00::a:b".parse()?;
    let ndp = Frame::advertisement(MAC, address, Some(MAC), NaFlags::OVERRIDE).to_bytes();
    let tagged = Frame::announcement(MAC, Ipv4Addr::new(10, 244, 2, 10))
        .vlan(7)
        .to_bytes();
    let malformed = Frame::request(MAC, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).to_bytes();

    loading_and_attaching()?;
    println!(
        "{:<36}{:>8}{:>8}{:>8}{:>8}",
        "packet", "empty", "ours", "more", "ratio"
    );
    measure(
        &EbpfOptions::default(),
        vec![
            row("IPv4 data", data_packet(0x0800, 0x45)),
            row("IPv6 data", data_packet(0x86dd, 0x60)),
            row("ARP, known claim", arp.clone()),
            row("ARP, known, one tag", tagged),
            row("NDP, known claim", ndp.clone()),
            row("ARP, rejected", malformed.clone()),
        ],
    )?;
    measure(
        &EbpfOptions {
            kernel_log: KernelLog::All,
            ..EbpfOptions::default()
        },
        vec![
            row("ARP, known claim, with kernel log", arp.clone()),
            row("ARP, rejected, with kernel log", malformed),
        ],
    )?;
    instructions()?;
    let every_claim_is_new = EbpfOptions {
        republish_after: Duration::ZERO,
        budget_per_second: 0,
        ..EbpfOptions::default()
    };
    measure(
        &every_claim_is_new,
        vec![row("ARP, new claim", arp), row("NDP, new claim", ndp)],
    )
}

/// The programs' instructions after the verifier has removed dead code, with the kernel log off and on.
fn instructions() -> Result<()> {
    const INSTRUCTION: u32 = 8;
    for kernel_log in [KernelLog::Off, KernelLog::All] {
        let (programs, _) = Programs::load(&EbpfOptions {
            kernel_log,
            ..EbpfOptions::default()
        })?;
        println!("instructions, kernel log {kernel_log:?}:");
        for (name, bytes) in programs.translated_sizes()? {
            println!("  {name:<28}{:>6}", bytes / INSTRUCTION);
        }
    }
    println!();
    Ok(())
}

/// Time to load the programs, and to attach to devices.
fn loading_and_attaching() -> Result<()> {
    const DEVICES: u32 = 100;
    const DEVICES_BY_TCX: u32 = 5;
    let node = Node::new("cost")?;
    node.netns().ip_batch(
        (0..DEVICES)
            .map(|number| format!("link add veth{number} type veth peer name peer{number}")),
    )?;
    node.netns().run_in(|| {
        let mut loading = Duration::MAX;
        for _ in 0..5 {
            let begin = Instant::now();
            drop(Programs::load(&EbpfOptions::default())?);
            loading = loading.min(begin.elapsed());
        }
        println!("loading and unloading the programs: {loading:.1?}");
        for (attach, devices) in [
            (AttachMode::Auto, DEVICES),
            (AttachMode::Tcx, DEVICES_BY_TCX),
        ] {
            let options = EbpfOptions {
                attach,
                ..EbpfOptions::default()
            };
            let (mut programs, _) = Programs::load(&options)?;
            let names: Vec<String> = (0..devices).map(|number| format!("veth{number}")).collect();
            let mut indexes = Vec::new();
            for name in &names {
                indexes.push(if_nametoindex(name.as_str())?);
            }
            let mut attaching = Vec::new();
            for (ifindex, name) in indexes.iter().zip(&names) {
                let begin = Instant::now();
                programs.attach(*ifindex, name)?;
                attaching.push(begin.elapsed());
            }
            let mut detaching = Vec::new();
            for ifindex in &indexes {
                let begin = Instant::now();
                programs.detach(*ifindex);
                detaching.push(begin.elapsed());
            }
            println!(
                "{attach:?}: attaching {}, detaching {}",
                spread(attaching),
                spread(detaching)
            );
        }
        println!();
        Ok(())
    })
}

/// Median and maximum.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let most = times.last().copied().unwrap_or_default();
    format!("{median:.1?} (at most {most:.1?})")
}

fn row(name: &'static str, frame: Vec<u8>) -> Row {
    Row {
        name,
        frame,
        empty: Duration::MAX,
        cost: Duration::MAX,
    }
}

fn measure(options: &EbpfOptions, mut rows: Vec<Row>) -> Result<()> {
    let (mut programs, mut reader) = Programs::load(options)?;
    let mut kernel_log = programs.take_kernel_log();
    let mut object = Ebpf::load(EMPTY)?;
    let empty: &mut SchedClassifier = object
        .program_mut("ipconflict_empty")
        .context("the object has no empty program")?
        .try_into()?;
    empty.load()?;
    for _ in 0..BATCHES {
        for row in &mut rows {
            let baseline = test_run(empty, &row.frame, RUNS)?;
            let ours = programs.test_run(&row.frame, RUNS)?;
            ensure!(ours.verdict == -1, "the program stopped a packet");
            row.empty = row.empty.min(baseline.each);
            row.cost = row.cost.min(ours.each);
            discard(&mut reader);
            if let Some(log) = &mut kernel_log {
                log.poll();
            }
        }
    }
    let mut figures = Vec::new();
    for row in rows {
        figures.extend(row.figures());
        let (empty, cost) = (row.empty.as_nanos(), row.cost.as_nanos());
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one packet")]
        let ratio = cost as f64 / empty as f64;
        println!(
            "{:<36}{empty:>8}{cost:>8}{:>8}{ratio:>8.2}",
            row.name,
            cost.saturating_sub(empty)
        );
    }
    let losses = programs.counters().read()?.losses();
    ensure!(
        losses == LossCounters::default(),
        "claims were lost, the figures are not theirs: {losses:?}"
    );
    record(&figures)
}

fn discard(reader: &mut RingReader) {
    while reader.drain(100_000, drop).more {}
}

/// 128 bytes that the classifier takes for a UDP packet.
fn data_packet(ethertype: u16, first: u8) -> Vec<u8> {
    const UDP: u8 = 17;
    let mut bytes = vec![0; 128];
    // Offsets of ethertype, first byte of the IP header, IPv6 next header, IPv4 protocol.
    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
    bytes[14] = first;
    bytes[20] = UDP;
    bytes[23] = UDP;
    bytes
}
