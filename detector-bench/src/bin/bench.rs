//! Measures the agent, prints what came out, and appends figures to the file that `BENCH_FIGURES` names:
//! `bench --agent target/release/detector-agent latency`.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};
use detector_bench::{
    Figure, Goal, cni, figure::record, flood, floor, identify, latency, path, peers, report, scale,
    statistics::latencies, throughput,
};

/// Measures the agent.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// Fewer repetitions: the shape of the figures in a fraction of the time.
    #[arg(long)]
    quick: bool,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Conflicts one after another on an idle node.
    Latency {
        /// How many.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// From a raised conflict to its event line and to a webhook's request.
    Report {
        /// How many.
        #[arg(long)]
        conflicts: Option<u32>,
        /// Directory on the disk to measure, which the agent keeps its state in.
        #[arg(long)]
        state: Option<PathBuf>,
    },
    /// The same with 250 pods and an ARP storm from one more.
    Storm {
        /// How many.
        #[arg(long)]
        conflicts: Option<u32>,
        /// Frames a second.
        #[arg(long, default_value_t = 100_000)]
        rate: u32,
    },
    /// The same frames for the agent and for the programs that Debian has.
    Peers {
        /// How many.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// Claims a second before the first is lost.
    Throughput,
    /// Memory, time from start to ready and idle processor time by the number of pods.
    Scale {
        /// Numbers of pods.
        #[arg(long, value_delimiter = ',')]
        pods: Option<Vec<usize>>,
    },
    /// TCP and UDP between two pods with and without the agent.
    Path,
    /// CNI ADD with and without the agent.
    Cni,
    /// Naming all pods of a node; conflicts with a runtime that hangs.
    Identify {
        /// Pairs of pods.
        #[arg(long)]
        pairs: Option<u32>,
        /// How many conflicts, each time.
        #[arg(long)]
        conflicts: Option<u32>,
    },
    /// Memory and processor time while one pod sends as fast as it can.
    Flood {
        /// How many frames.
        #[arg(long)]
        frames: Option<u64>,
        /// How many conflicts meanwhile.
        #[arg(long)]
        conflicts: Option<u32>,
    },
}

const LATENCY: &str = "Latency";

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let figures = measure(&arguments)?;
    for figure in &figures {
        let Figure {
            name,
            value,
            unit,
            note,
            ..
        } = figure;
        match value {
            Some(value) => println!("{name:<46}{value:>12.2} {unit}  {note}"),
            None => println!("{name:<46}{:>12} {note}", "-"),
        }
    }
    record(&figures)
}

fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Figure>> {
    let agent = &arguments.agent;
    let by_size = |full: u32, quick: u32| if arguments.quick { quick } else { full };
    let seconds =
        |full: f64, quick: f64| Duration::from_secs_f64(if arguments.quick { quick } else { full });
    match &arguments.bench {
        Bench::Latency { conflicts } => {
            let options = latency::Options {
                conflicts: conflicts.unwrap_or(by_size(5000, 1000)),
                ..latency::Options::default()
            };
            let report = latency::run(agent, options)?;
            let floor = floor::run(by_size(1000, 300), options.rest)?;
            let mut figures = latency_figures(
                &report,
                "idle",
                Goals {
                    p50: Some(60.0),
                    p99: None,
                },
            );
            let name = "a thread that only passes the frame on";
            figures.extend(latencies(LATENCY, name, &floor));
            Ok(figures)
        }
        Bench::Report { conflicts, state } => {
            let options = report::Options {
                conflicts: conflicts.unwrap_or(by_size(500, 200)),
                state: state.clone(),
                ..report::Options::default()
            };
            let report = report::run(agent, &options)?;
            let group = "Delivery latency";
            let mut figures = Vec::new();
            for (name, sample) in [
                ("raised to event line read", &report.line_us),
                ("raised to webhook request received", &report.webhook_us),
                ("frame sent to webhook request received", &report.outside_us),
            ] {
                figures.extend(latencies(group, name, sample));
            }
            Ok(figures)
        }
        Bench::Storm { conflicts, rate } => {
            let options = latency::Options {
                conflicts: conflicts.unwrap_or(by_size(5000, 1000)),
                pairs: 125,
                storm: *rate,
                ..latency::Options::default()
            };
            let report = latency::run(agent, options)?;
            let name = "250 pods and an ARP storm";
            let mut figures = latency_figures(
                &report,
                name,
                Goals {
                    p50: None,
                    p99: Some(1000.0),
                },
            );
            figures.push(
                Figure::new(LATENCY, "the storm's frames", report.storm, "/s")
                    .note(format!("{rate} asked for")),
            );
            Ok(figures)
        }
        Bench::Peers { conflicts } => {
            let options = peers::Options {
                conflicts: conflicts.unwrap_or(by_size(1000, 200)),
                rest: Duration::from_millis(8),
            };
            peers::run(agent, options)
        }
        Bench::Throughput => {
            let options = throughput::Options {
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
            let options = scale::Options {
                pods: pods.clone().unwrap_or(all),
                starts: by_size(3, 1) as usize,
                idle: seconds(20.0, 5.0),
                claims: 100,
                deadline: seconds(150.0, 60.0),
            };
            scale::run(agent, &options)
        }
        Bench::Path => {
            let options = path::Options {
                slice: seconds(0.2, 0.1),
                rounds: by_size(25, 20),
            };
            path::run(agent, options)
        }
        Bench::Cni => cni::run(agent, by_size(60, 12), seconds(60.0, 20.0)),
        Bench::Identify { pairs, conflicts } => {
            let named = identify::run(agent, pairs.unwrap_or(by_size(125, 12)))?;
            println!("{named}");
            let options = latency::Options {
                conflicts: conflicts.unwrap_or(by_size(1000, 200)),
                ..latency::Options::default()
            };
            let hanging = identify::run_hanging(agent, options)?;
            let group = "Naming pods";
            let mut figures = vec![
                Figure::new(
                    group,
                    format!("first event to all {} pods named", named.pods),
                    named.all_named.as_secs_f64() * 1e3,
                    "ms",
                )
                .note("real pods by containerd, asked by CRI"),
            ];
            figures.extend(latencies(
                group,
                "conflict, no source of names",
                &hanging.without.outside_us,
            ));
            figures.extend(latencies(
                group,
                "conflict, a CRI socket that hangs",
                &hanging.hanging.outside_us,
            ));
            Ok(figures)
        }
        Bench::Flood { frames, conflicts } => {
            let options = flood::Options {
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
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
fn flood_figures(report: &flood::Report) -> Vec<Figure> {
    let group = "One pod sends new claims as fast as it can";
    let seconds = report.took.as_secs_f64();
    let growth = report.most_kib.saturating_sub(report.before_kib) as f64 / 1024.0;
    let mut figures = vec![
        Figure::new(group, "frames", report.frames as f64 / seconds, "/s"),
        Figure::new(group, "growth of the agent's memory", growth, "MiB"),
        Figure::new(
            group,
            "the agent's processor time",
            report.processor.as_secs_f64() / seconds * 100.0,
            "% of a core",
        ),
    ];
    figures.extend(latencies(
        group,
        "frame sent to line read",
        &report.outside_us,
    ));
    let inside = "of it, kernel's timestamp to event";
    figures.extend(latencies(group, inside, &report.agent_us));
    figures
}

struct Goals {
    p50: Option<f64>,
    p99: Option<f64>,
}

fn latency_figures(report: &latency::Report, name: &str, goals: Goals) -> Vec<Figure> {
    let outside = format!("frame sent to line read, {name}");
    let [mut p50, mut p99, max] = latencies(LATENCY, &outside, &report.outside_us);
    if let Some(goal) = goals.p50 {
        p50 = p50.goal(Goal::Below(goal));
    }
    if let Some(goal) = goals.p99 {
        p99 = p99.goal(Goal::Below(goal));
    }
    let inside = format!("of it, kernel's timestamp to event, {name}");
    let mut figures = vec![p50, p99, max];
    figures.extend(latencies(LATENCY, &inside, &report.agent_us));
    figures
}
