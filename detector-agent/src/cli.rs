//! The command line. Every flag also has an environment variable and a key in the file given with `--config`
//! (see [`crate::config`]); the flag wins over the environment, the environment over the file.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

use crate::{
    http::Listen, ipam::IpamSettings, observe::ebpf::AttachMode, pods::PodLookupSettings,
    sinks::settings::SinkSettings,
};

/// Names, the instant it happens, every IP address that two pods claim.
#[derive(Clone, Debug, Parser)]
#[command(name = "detector-agent", version, about, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the Contract.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Watch this node and report every conflict as it happens.
    Run(Box<RunArgs>),
    /// Look at the kernel's state once: exit 0 without a conflict, 1 with one, 2 when it could not tell.
    Check(Box<CheckArgs>),
    /// Show what a running agent sees, live: a table in a terminal, else one line for each event.
    Watch(WatchArgs),
    /// Remove what an agent that was killed left on the devices.
    Cleanup(CleanupArgs),
}

/// How to choose the devices and what the rules are; the same for every command.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// YAML file with the same settings as the flags, one key for each; for `run` also `webhooks` and `alertmanagers`
    /// (docs/configuration.md).
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_CONFIG")]
    pub config: Option<PathBuf>,

    /// Devices that pods hang on, as patterns like `cali*` [default: every veth or netkit whose peer is in another
    /// namespace, and tap*].
    #[arg(long, value_name = "GLOB", env = "IPCONFLICT_INTERFACES", num_args = 1.., value_delimiter = ',')]
    pub interfaces: Vec<String>,

    /// Devices to leave out, as patterns; wins over --interfaces.
    #[arg(long, value_name = "GLOB", env = "IPCONFLICT_EXCLUDE_INTERFACES", num_args = 1.., value_delimiter = ',')]
    pub exclude_interfaces: Vec<String>,

    /// Shared addresses (VIPs) that may move between pods; flapping is reported, a duplicate is not. Repeatable.
    #[arg(long, value_name = "CIDR", env = "IPCONFLICT_ALLOW", value_delimiter = ',', value_parser = cidr)]
    pub allow: Vec<IpNet>,

    /// Name of this node in events [default: the host name].
    #[arg(long, value_name = "NAME", env = "IPCONFLICT_NODE_NAME")]
    pub node_name: Option<String>,

    /// Where to look for pods.
    #[command(flatten)]
    pub pods: PodLookupSettings,

    /// Where IPAM's books are.
    #[command(flatten)]
    pub ipam: IpamSettings,

    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The daemon's settings.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Shared settings.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Write one event a line, as JSON, to stdout (`-`) or a file.
    #[arg(long, value_name = "-|PATH", env = "IPCONFLICT_EVENTS")]
    pub events: Option<PathBuf>,

    /// Where to serve the status page, metrics and the API; `none` serves nothing.
    #[arg(
        long,
        value_name = "ADDR",
        env = "IPCONFLICT_LISTEN",
        default_value = "127.0.0.1:9842"
    )]
    pub listen: Listen,

    /// File with a token that clients must bring (`Authorization: Bearer …`); /healthz and /readyz stay open.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_HTTP_TOKEN_FILE")]
    pub http_token_file: Option<PathBuf>,

    /// Serve TLS with this certificate chain (PEM); a replaced file is taken over.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// The private key to it (PEM).
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// A metric series for each claimed address, so that Prometheus can compare nodes.
    #[arg(long, env = "IPCONFLICT_EXPORT_CLAIMS", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub export_claims: bool,

    /// Directory that keeps open conflicts, and events that wait to be delivered, over a restart.
    #[arg(long, value_name = "DIR", env = "IPCONFLICT_STATE_DIR")]
    pub state_dir: Option<PathBuf>,

    /// How to attach to the devices: clsact (`tc`), TCX first in line (`tcx`), or TCX only where another program
    /// already stands on it (`auto`).
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_ATTACH",
        default_value = "auto"
    )]
    pub attach: AttachMode,

    /// Observe by netlink alone; frames are then not seen.
    #[arg(long, env = "IPCONFLICT_NO_EBPF", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub no_ebpf: bool,

    /// Log why the kernel programs reject a frame or do not publish an observation; rate-limited. Also enabled by a
    /// directive for `detector_ebpf` in RUST_LOG.
    #[arg(long, env = "IPCONFLICT_KERNEL_LOG", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub kernel_log: bool,

    /// How long a claim lives that was only heard, when the pod does not hold the address.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_CLAIM_TTL", default_value = "10m", value_parser = positive_duration)]
    pub claim_ttl: Duration,

    /// How many moves of an allowed address make it flap (RFC 7432).
    #[arg(long, value_name = "N", env = "IPCONFLICT_FLAP_MOVES", default_value = "5", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub flap_moves: u32,

    /// Within which time (RFC 7432).
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_FLAP_WINDOW", default_value = "180s", value_parser = positive_duration)]
    pub flap_window: Duration,

    /// The kernel's BTF.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_BTF", hide = true)]
    pub btf: Option<PathBuf>,

    /// Size of the ring buffer from the kernel in bytes, a power of two.
    #[arg(long, value_name = "BYTES", env = "IPCONFLICT_RING_BYTES", default_value = "1048576", hide = true, value_parser = ring_bytes)]
    pub ring_bytes: u32,

    /// Receive buffer of the netlink sockets in bytes.
    #[arg(
        long,
        value_name = "BYTES",
        env = "IPCONFLICT_NETLINK_BYTES",
        default_value = "4194304",
        hide = true
    )]
    pub netlink_bytes: usize,

    /// Webhooks and Alertmanagers; in the configuration file only.
    #[arg(skip)]
    pub sinks: SinkSettings,
}

/// Settings of a single look.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Shared settings.
    #[command(flatten)]
    pub common: CommonArgs,

    /// What to print.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "IPCONFLICT_FORMAT",
        default_value = "text"
    )]
    pub format: CheckFormat,

    /// Exit with 1 also where there are only anomalies, such as drift of IPAM's books.
    #[arg(long, env = "IPCONFLICT_STRICT", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub strict: bool,
}

/// Settings of the live view.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// The running agent.
    #[arg(
        long,
        value_name = "URL",
        env = "IPCONFLICT_URL",
        default_value = "http://127.0.0.1:9842"
    )]
    pub url: String,

    /// File with the token that the agent asks for.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// Certificates (PEM) that vouch for an https:// agent.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_CA_FILE")]
    pub ca_file: Option<PathBuf>,

    /// Lines also in a terminal.
    #[arg(long, env = "IPCONFLICT_LINES", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub lines: bool,
}

/// Settings of the clean-up.
#[derive(Args, Clone, Debug)]
pub struct CleanupArgs {
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How to log; the same for every command that logs.
#[derive(Args, Clone, Copy, Debug)]
pub struct LogArgs {
    /// Form of the log lines on stderr.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "IPCONFLICT_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Form of `check`'s answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

fn cidr(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| "expected an address or a CIDR such as 10.0.0.10 or 10.0.0.0/28".to_owned())
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(d) if d >= Duration::from_secs(1) => Ok(d),
        Ok(_) => Err("must be at least 1s".to_owned()),
        Err(_) => Err("expected a time such as 90s or 10m".to_owned()),
    }
}

fn ring_bytes(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n >= 4096 && n.is_power_of_two() => Ok(n),
        _ => Err("expected a power of two of at least 4096".to_owned()),
    }
}
