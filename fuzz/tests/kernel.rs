//! The program in the kernel against the reference parser, on the corpus and on frames made of it. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{env, fs, net::IpAddr, path::Path, time::Duration};

use detector_agent::{
    engine::{FrameClaim, FrameKind, Observation},
    observe::ebpf::{EbpfOptions, Programs, RingReader, Subject},
};
use detector_common::{Counter, RejectReason};
use detector_fuzz::{
    frames::{Verdict, split},
    reference::{self, Claimed, Protocol},
};
use detector_testkit::random::Random;

/// Frames made of those of the corpus.
const MADE: usize = 20_000;
/// Longest frame that is made: all headers, both tags and more options than are read.
const LONGEST: usize = 200;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frames");
    let mut frames = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let input = fs::read(entry.unwrap().path()).unwrap();
        // A tag is only ever held apart by a real device.
        frames.extend(split(&input).map(|(_, frame)| frame.to_vec()));
    }
    frames.sort_unstable();
    frames
}

/// What the kernel runs a program on: a whole Ethernet header, and of an IP packet its header too.
fn is_admitted(frame: &[u8]) -> bool {
    let is_arp = frame.get(12..14) == Some(&[0x08, 0x06]);
    frame.len() >= if is_arp { 14 } else { 54 }
}

/// A frame of the corpus with bytes changed, a piece of another one, a tag more, or another length.
fn make(random: &mut Random, frames: &[Vec<u8>]) -> Vec<u8> {
    let below = |random: &mut Random, bound: usize| random.below(bound as u64) as usize;
    let mut frame = frames[below(random, frames.len())].clone();
    for _ in 0..1 + below(random, 4) {
        match below(random, 8) {
            0 => {
                let at = below(random, frame.len() + 1);
                frame.truncate(at);
            }
            1 => frame.resize(below(random, LONGEST), 0),
            2 if frame.len() > 14 => {
                let tag = [[0x81, 0x00], [0x88, 0xa8]][below(random, 2)];
                let [high, low, ..] = random.next_number().to_be_bytes();
                frame.splice(12..12, [tag[0], tag[1], high, low]);
            }
            3 => {
                let other = &frames[below(random, frames.len())];
                let at = below(random, frame.len().min(other.len()) + 1);
                frame.truncate(at);
                frame.extend(&other[at.min(other.len())..]);
            }
            // Small numbers and those at the edges are the ones that mean something.
            4 if !frame.is_empty() => {
                let at = below(random, frame.len());
                frame[at] = [0, 1, 2, 6, 8, 58, 127, 128, 135, 136, 224, 255][below(random, 12)];
            }
            _ if !frame.is_empty() => {
                let at = below(random, frame.len());
                frame[at] = random.next_number() as u8;
            }
            _ => {}
        }
    }
    frame.truncate(LONGEST);
    frame
}

struct Kernel {
    programs: Programs,
    reader: RingReader,
}

impl Kernel {
    /// Runs the program on a frame.
    fn read(&mut self, frame: &[u8]) -> Verdict {
        let before = self.programs.counters().read().unwrap();
        let trial = self.programs.trial(Subject::ArpNdp, frame, 1).unwrap();
        assert_eq!(
            trial.verdict, -1,
            "the frame was not let go on: {frame:02x?}"
        );
        let after = self.programs.counters().read().unwrap();
        let mut verdicts: Vec<_> = RejectReason::ALL
            .into_iter()
            .filter(|reason| {
                let counter = Counter::Rejected(*reason);
                after.get(counter) > before.get(counter)
            })
            .map(|reason| Verdict::Rejected(reason.label()))
            .collect();
        let _ = self.reader.drain(usize::MAX, |stamped| {
            // Neighbours of the test's own namespace may come and go.
            if let Observation::Frame(claim) = stamped.observation {
                verdicts.push(Verdict::Claim(claimed(&claim)));
            }
        });
        assert!(
            verdicts.len() <= 1,
            "{verdicts:?} of one frame {frame:02x?}"
        );
        verdicts.pop().unwrap_or(Verdict::Other)
    }
}

fn claimed(claim: &FrameClaim) -> Claimed {
    Claimed {
        protocol: match claim.kind {
            FrameKind::Arp => Protocol::Arp,
            FrameKind::Ndp => Protocol::Ndp,
        },
        tentative: claim.tentative,
        address: match claim.address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        },
        mac: claim.mac.0,
        ether_source: claim.ether_source.0,
        vlans: [claim.vlan.outer, claim.vlan.inner]
            .into_iter()
            .flatten()
            .collect(),
    }
}

#[test]
fn the_program_in_the_kernel_says_of_every_frame_what_the_rfcs_say() {
    let options = EbpfOptions {
        republish_after: Duration::ZERO,
        budget_per_second: 0,
        ..EbpfOptions::default()
    };
    let (programs, reader) = Programs::load(&options).unwrap();
    let mut kernel = Kernel { programs, reader };
    let seed = env::var("FRAMES_SEED").map_or_else(
        |_| u64::from(std::process::id()) << 32 | 0x5eed,
        |seed| seed.parse().expect("FRAMES_SEED is a number"),
    );
    println!("FRAMES_SEED={seed}");
    let mut random = Random(seed);
    let frames = corpus();
    let made = (0..MADE).map(|_| make(&mut random, &frames));
    let mut seen = [0_u32; 3];
    for frame in frames
        .clone()
        .into_iter()
        .chain(made)
        .filter(|f| is_admitted(f))
    {
        let (verdict, said) = (kernel.read(&frame), reference::read(&frame, None));
        assert!(
            verdict.agrees(&said),
            "kernel: {verdict:?}\nreference: {said:?}\nframe: {frame:02x?}"
        );
        seen[match verdict {
            Verdict::Other => 0,
            Verdict::Rejected(_) => 1,
            Verdict::Claim(_) => 2,
        }] += 1;
    }
    println!("other, rejected, claims: {seen:?}");
    // Frames that are all refused, or none of whose kind is met, would prove nothing.
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}
