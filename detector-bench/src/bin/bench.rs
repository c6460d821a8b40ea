//! Measures the agent, prints the figures, and appends them to the file in `BENCH_FIGURES`:
//! `bench --agent target/release/detector-agent latency`.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};
#[cfg(target_arch = "x86_64")]
use detector_bench::instructions;
use detector_bench::{
    Figure, Goal, attack, cni,
    comparison::Precision,
    delivery, endpoints,
    figure::record,
    flood,
    latency::{self, FloorReport, LatencyOptions},
    peers, pod_lookup,
    ratio::Ratio,
    scale,
    statistics::{latencies, percentile},
    throughput, traffic,
};

/// Measure the agent.
#[derive(Parser)]
struct Arguments {
    /// Path of the detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// Fewer repetitions: rough figures in a fraction of the time.
    #[arg(long)]
    quick: bool,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Detection latency on an idle node, and what [`Bench::Instructions`] counts.
    Latency {
        /// Number of conflicts.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// Instructions from the ring buffer to the event line; fails if they exceed the budget. The same on a busy machine.
    #[cfg(target_arch = "x86_64")]
    Instructions,
    /// Delivery latency: from a raised conflict to its event line and to the webhook's request.
    Report {
        /// Number of conflicts.
        #[arg(long)]
        conflicts: Option<u32>,
        /// State directory of the agent, on the disk to measure.
        #[arg(long)]
        state: Option<PathBuf>,
    },
    /// Detection latency with 250 pods and an ARP storm from another pod.
    Storm {
        /// Number of conflicts.
        #[arg(long)]
        conflicts: Option<u32>,
        /// Frames per second.
        #[arg(long, default_value_t = 100_000)]
        rate: u32,
    },
    /// Detection latency of the agent and of other programs in Debian, on the same frames.
    Peers {
        /// Number of conflicts.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// Claims per second before the first one is lost.
    Throughput,
    /// Memory, time from start to ready and idle CPU time by the number of pods.
    Scale {
        /// Numbers of pods.
        #[arg(long, value_delimiter = ',')]
        pods: Option<Vec<usize>>,
    },
    /// TCP and UDP between two pods without a program, with an empty one and with the agent's.
    Path {
        /// The object with the empty program, which `cargo xtask build` builds.
        #[arg(long, default_value = "target/ebpf/detector-ebpf-empty.o")]
        empty_program: PathBuf,
    },
    /// Duration of a CNI ADD with and without the agent.
    Cni,
    /// First lookup of all pods of a node; detection latency with an unresponsive runtime.
    Identify {
        /// Pairs of pods.
        #[arg(long)]
        pairs: Option<u32>,
        /// Number of conflicts per measurement.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// Probes and detection latency while pods hold connections to the endpoints.
    Endpoints {
        /// Connections of all pods together.
        #[arg(long, default_value_t = 1000)]
        connections: usize,
    },
    /// Memory, CPU time and latency while one pod sends as fast as it can.
    Flood {
        /// Number of frames.
        #[arg(long)]
        frames: Option<u64>,
        /// Number of conflicts meanwhile.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// CPU time, memory, log and latency under each attack that a pod can make in its own namespace.
    Attack {
        /// Seconds of each attack.
        #[arg(long)]
        seconds: Option<f64>,
    },
}

/// Conflicts whose instructions are counted.
#[cfg(target_arch = "x86_64")]
const INSTRUCTION_COUNTS: u32 = 5;
const LATENCY: &str = "Latency";
const POD_LOOKUP: &str = "Pod lookup";

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let figures = measure(&arguments)?;
    for figure in &figures {
        let Figure {
            name,
            value,
            uncertainty,
            unit,
            note,
            ..
        } = figure;
        match (value, uncertainty) {
            (Some(value), Some(uncertainty)) => {
                println!("{name:<60}{value:>12.2} ± {uncertainty:.2} {unit}  {note}");
            }
            (Some(value), None) => println!("{name:<60}{value:>12.2} {unit}  {note}"),
            (None, _) => println!("{name:<60}{:>12} {note}", "-"),
        }
    }
    record(&figures)
}

fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Figure>> {
    let agent = &arguments.agent;
    let count = |full: u32, quick: u32| if arguments.quick { quick } else { full };
    let seconds =
        |full: f64, quick: f64| Duration::from_secs_f64(if arguments.quick { quick } else { full });
    match &arguments.bench {
        Bench::Latency { conflicts } => {
            let options = LatencyOptions {
                conflicts: conflicts.unwrap_or(count(3000, 600)),
                ..LatencyOptions::default()
            };
            let report = latency::run_with_floor(agent, options)?;
            let mut figures = latency_figures(&report, "idle", (50, 60.0));
            figures.push(floor_ratio(&report, "idle", 50, Some(1.5)));
            figures.push(floor_ratio(&report, "idle", 99, None));
            #[cfg(target_arch = "x86_64")]
            figures.extend(instructions::run(agent, INSTRUCTION_COUNTS)?);
            Ok(figures)
        }
        #[cfg(target_arch = "x86_64")]
        Bench::Instructions => instructions::run(agent, INSTRUCTION_COUNTS),
        Bench::Report { conflicts, state } => {
            let options = delivery::DeliveryOptions {
                conflicts: conflicts.unwrap_or(count(500, 200)),
                state_dir: state.clone(),
                ..delivery::DeliveryOptions::default()
            };
            let report = delivery::run(agent, &options)?;
            let group = "Delivery latency";
            let mut figures = Vec::new();
            for (name, sample) in [
                ("raised to event line read", &report.line_us),
                ("raised to webhook request received", &report.webhook_us),
                (
                    "frame sent to webhook request received",
                    &report.frame_to_webhook_us,
                ),
            ] {
                figures.extend(latencies(group, name, sample));
            }
            Ok(figures)
        }
        Bench::Storm { conflicts, rate } => {
            let options = LatencyOptions {
                conflicts: conflicts.unwrap_or(count(3000, 600)),
                pairs: 125,
                storm_rate: *rate,
                ..LatencyOptions::default()
            };
            let report = latency::run_with_floor(agent, options)?;
            let name = "250 pods and an ARP storm";
            let mut figures = latency_figures(&report, name, (99, 1000.0));
            figures.push(floor_ratio(&report, name, 50, None));
            figures.push(floor_ratio(&report, name, 99, Some(2.0)));
            figures.push(
                Figure::new(LATENCY, "ARP storm", report.agent.storm_rate, "/s")
                    .note(format!("the slowest; {rate}/s requested")),
            );
            Ok(figures)
        }
        Bench::Peers { conflicts } => {
            let options = peers::PeerOptions {
                conflicts: conflicts.unwrap_or(count(500, 100)),
                pause: Duration::from_millis(8),
            };
            peers::run(agent, options)
        }
        Bench::Throughput => {
            let options = throughput::ThroughputOptions {
                repeated: seconds(4.0, 1.5),
                pods: 250,
                rates: if arguments.quick {
                    vec![200_000, 0]
                } else {
                    vec![200_000, 250_000, 300_000, 400_000, 0]
                },
            };
            throughput::run(agent, &options)
        }
        Bench::Scale { pods } => {
            let all = if arguments.quick {
                vec![110, 250, 1000]
            } else {
                vec![110, 250, 1000, 5000]
            };
            let options = scale::ScaleOptions {
                pods: pods.clone().unwrap_or(all),
                starts: count(3, 1) as usize,
                idle: seconds(20.0, 5.0),
                claims: 100,
                time_limit: seconds(150.0, 60.0),
            };
            scale::run(agent, &options)
        }
        Bench::Path { empty_program } => {
            let options = traffic::TrafficOptions {
                empty_object: empty_program.clone(),
                slice: Duration::from_millis(5),
                precision: Precision {
                    uncertainty: 0.1,
                    time_limit: seconds(28.0, 6.0),
                },
                whole_agent: seconds(40.0, 0.0),
            };
            traffic::run(agent, &options)
        }
        Bench::Cni => {
            let options = cni::CniOptions {
                time_limit: seconds(90.0, 14.0),
                stay: seconds(6.0, 3.0),
                uncertainty: 0.4,
            };
            cni::run(agent, options)
        }
        Bench::Identify { pairs, conflicts } => {
            let lookup = pod_lookup::run(agent, pairs.unwrap_or(count(125, 12)))?;
            println!("{lookup}");
            let options = LatencyOptions {
                conflicts: conflicts.unwrap_or(count(1000, 200)),
                ..LatencyOptions::default()
            };
            let report = pod_lookup::run_unresponsive(agent, options)?;
            let mut figures = vec![
                Figure::new(
                    POD_LOOKUP,
                    format!("first event to all {} pods known", lookup.pods),
                    lookup.all_known.as_secs_f64() * 1e3,
                    "ms",
                )
                .note("real pods in containerd, looked up through CRI"),
                Figure::new(
                    POD_LOOKUP,
                    "conflict to its cause, all at once after a wipe, p99",
                    percentile(&lookup.explained_ms, 99.0),
                    "ms",
                )
                .goal(Goal::Below(2_000.0)),
            ];
            figures.extend(latencies(
                POD_LOOKUP,
                "conflict, no pod source",
                &report.without.frame_to_line_us,
            ));
            figures.extend(latencies(
                POD_LOOKUP,
                "conflict, unresponsive CRI socket",
                &report.unresponsive.frame_to_line_us,
            ));
            Ok(figures)
        }
        Bench::Endpoints { connections } => {
            let options = endpoints::EndpointOptions {
                connections: *connections,
                probes: count(200, 50),
                conflicts: count(200, 50),
            };
            endpoints::run(agent, options)
        }
        Bench::Flood { frames, conflicts } => {
            let options = flood::FloodOptions {
                frames: frames.unwrap_or(if arguments.quick {
                    1_000_000
                } else {
                    2_000_000
                }),
                conflicts: conflicts.unwrap_or(100),
            };
            let report = flood::run(agent, options)?;
            Ok(flood_figures(&report))
        }
        Bench::Attack { seconds: each } => {
            let each = each.map_or_else(|| seconds(5.0, 1.0), Duration::from_secs_f64);
            attack::run(agent, each)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
fn flood_figures(report: &flood::FloodReport) -> Vec<Figure> {
    let group = "One pod sends new claims as fast as it can";
    let seconds = report.took.as_secs_f64();
    let growth = report.max_kib.saturating_sub(report.before_kib) as f64 / 1024.0;
    let mut figures = vec![
        Figure::new(group, "frames", report.frames as f64 / seconds, "/s"),
        Figure::new(group, "memory growth of the agent", growth, "MiB"),
        Figure::new(
            group,
            "CPU time of the agent",
            report.cpu_time.as_secs_f64() / seconds * 100.0,
            "% of a core",
        ),
    ];
    figures.extend(latencies(
        group,
        "frame sent to event line read",
        &report.frame_to_line_us,
    ));
    let agent = "of which kernel timestamp to event";
    figures.extend(latencies(group, agent, &report.kernel_to_event_us));
    figures
}

/// The figures of the agent and of the thread; `goal` is a percentile and its limit in microseconds.
fn latency_figures(report: &FloorReport, name: &str, goal: (u8, f64)) -> Vec<Figure> {
    let total = format!("frame sent to event line read, {name}");
    let (percent, limit) = goal;
    let mut figures: Vec<Figure> = latencies(LATENCY, &total, &report.agent.frame_to_line_us)
        .into_iter()
        .map(|figure| {
            if figure.name.ends_with(&format!(", p{percent}")) {
                figure.goal(Goal::Below(limit))
            } else {
                figure
            }
        })
        .collect();
    let agent = format!("of which kernel timestamp to event, {name}");
    figures.extend(latencies(LATENCY, &agent, &report.agent.kernel_to_event_us));
    let floor = format!("a thread that only passes the frame on, {name}");
    let floor_us: Vec<f64> = report
        .blocks
        .iter()
        .flat_map(|[_, floor]| floor.iter().copied())
        .collect();
    figures.extend(latencies(LATENCY, &floor, &floor_us));
    figures
}

/// The agent's percentile as a multiple of the thread's.
fn floor_ratio(report: &FloorReport, name: &str, percent: u8, goal: Option<f64>) -> Figure {
    let name = format!("frame sent to event line read, {name}, p{percent} by that of the thread");
    let ratio = Ratio::of_percentiles(&report.blocks, f64::from(percent));
    match goal {
        Some(most) => ratio.figure_with_goal(LATENCY, name, Goal::AtMost(most)),
        None => ratio.figure(LATENCY, name),
    }
}
