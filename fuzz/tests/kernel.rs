//! Compares the kernel program with the reference parser, on the corpus and on frames derived from it. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{env, fs, net::IpAddr, path::Path, time::Duration};

use detector_agent::observe::ebpf::{EbpfOptions, Programs, RingReader};
use detector_common::{Counter, RejectReason};
use detector_engine::{FrameClaim, FrameKind, Observation};
use detector_fuzz::{
    frames::{ParserVerdict, split},
    reference::{self, ClaimFields, ClaimProtocol},
};
use detector_testkit::random::Random;

/// Number of frames derived from those of the corpus.
const DERIVED: usize = 20_000;
/// Maximum length of a derived frame: all headers, 65 tags and a few extension headers and options.
const MAX_LENGTH: usize = 400;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frames");
    let mut frames = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let input = fs::read(entry.unwrap().path()).unwrap();
        // Only a real device keeps a tag outside the frame.
        frames.extend(split(&input).map(|(_, frame)| frame.to_vec()));
    }
    frames.sort_unstable();
    frames
}

/// Whether the kernel runs a program on the frame: it requires complete Ethernet and IP headers.
fn is_accepted(frame: &[u8]) -> bool {
    let is_arp = frame.get(12..14) == Some(&[0x08, 0x06]);
    frame.len() >= if is_arp { 14 } else { 54 }
}

/// A frame of the corpus with bytes changed, a part of another one, an additional tag, or another length.
fn derive(random: &mut Random, frames: &[Vec<u8>]) -> Vec<u8> {
    let below = |random: &mut Random, bound: usize| random.below(bound as u64) as usize;
    let mut frame = frames[below(random, frames.len())].clone();
    for _ in 0..1 + below(random, 4) {
        match below(random, 10) {
            0 => {
                let at = below(random, frame.len() + 1);
                frame.truncate(at);
            }
            1 => frame.resize(below(random, MAX_LENGTH), 0),
            2 if frame.len() > 14 => {
                let tag = [[0x81, 0x00], [0x88, 0xa8]][below(random, 2)];
                let [high, low, ..] = random.next_u64().to_be_bytes();
                frame.splice(12..12, [tag[0], tag[1], high, low]);
            }
            3 => {
                let other = &frames[below(random, frames.len())];
                let at = below(random, frame.len().min(other.len()) + 1);
                frame.truncate(at);
                frame.extend(&other[at.min(other.len())..]);
            }
            // Values with a meaning in some field, and limits.
            4 if !frame.is_empty() => {
                let at = below(random, frame.len());
                let values = [
                    0, 1, 2, 6, 8, 58, 127, 128, 133, 134, 135, 136, 137, 224, 254, 255,
                ];
                frame[at] = values[below(random, values.len())];
            }
            // An IPv6 extension header.
            5 if frame.len() > 54 && frame[12..14] == [0x86, 0xdd] => {
                let mut header = vec![0; 8 + 8 * below(random, 3)];
                header[0] = frame[20];
                header[1] = (header.len() / 8 - 1) as u8;
                frame[20] = [0, 43, 44, 60][below(random, 4)];
                frame[19] = frame[19].wrapping_add(header.len() as u8);
                frame.splice(54..54, header);
            }
            // Priority tags.
            6 if frame.len() > 14 => {
                let tags = [0x81, 0x00, 0, 0].repeat(below(random, 67));
                frame.splice(12..12, tags);
            }
            _ if !frame.is_empty() => {
                let at = below(random, frame.len());
                frame[at] = random.next_u64() as u8;
            }
            _ => {}
        }
    }
    frame.truncate(MAX_LENGTH);
    frame
}

struct Kernel {
    programs: Programs,
    reader: RingReader,
}

impl Kernel {
    /// Runs the program on a frame.
    fn parse(&mut self, frame: &[u8]) -> ParserVerdict {
        let before = self.programs.counters().read().unwrap();
        let result = self.programs.test_run(frame, 1).unwrap();
        assert_eq!(result.verdict, -1, "the frame was stopped: {frame:02x?}");
        let after = self.programs.counters().read().unwrap();
        let mut verdicts: Vec<_> = RejectReason::ALL
            .into_iter()
            .filter(|reason| {
                let counter = Counter::Rejected(*reason);
                after.get(counter) > before.get(counter)
            })
            .map(|reason| ParserVerdict::Rejected(reason.label()))
            .collect();
        let _ = self.reader.drain(usize::MAX, |stamped| {
            // Neighbour entries of the test's own namespace may change.
            match (stamped.observation, verdicts.last_mut()) {
                (Observation::Frame(claim), _) => {
                    verdicts.push(ParserVerdict::Claim(claim_fields(&claim)));
                }
                (Observation::RouterAdvertisement(_), Some(ParserVerdict::Claim(claim))) => {
                    claim.router = true;
                }
                _ => {}
            }
        });
        assert!(
            verdicts.len() <= 1,
            "{verdicts:?} of one frame {frame:02x?}"
        );
        verdicts.pop().unwrap_or(ParserVerdict::Other)
    }
}

fn claim_fields(claim: &FrameClaim) -> ClaimFields {
    ClaimFields {
        protocol: match claim.kind {
            FrameKind::Arp => ClaimProtocol::Arp,
            FrameKind::Ndp => ClaimProtocol::Ndp,
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
        router: false,
    }
}

#[test]
fn kernel_program_agrees_with_the_reference() {
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
    let derived = (0..DERIVED).map(|_| derive(&mut random, &frames));
    let mut verdicts = [0_u32; 3];
    for frame in frames
        .clone()
        .into_iter()
        .chain(derived)
        .filter(|f| is_accepted(f))
    {
        let (verdict, expected) = (kernel.parse(&frame), reference::read(&frame, None));
        assert!(
            verdict.agrees_with(&expected),
            "kernel: {verdict:?}\nreference: {expected:?}\nframe: {frame:02x?}"
        );
        verdicts[match verdict {
            ParserVerdict::Other => 0,
            ParserVerdict::Rejected(_) => 1,
            ParserVerdict::Claim(_) => 2,
        }] += 1;
    }
    println!("other, rejected, claims: {verdicts:?}");
    // Each kind of verdict must occur often enough for the comparison to mean something.
    assert!(verdicts.iter().all(|count| *count > 500), "{verdicts:?}");
}
