//! The command line. Every flag also has an environment variable and a key in the file given with `--config` (see
//! [`crate::config`]). The flag takes precedence over the environment, the environment over the file.

mod help;

use std::{net::IpAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use detector_client::{
    AgentAddress, Client, ClientError,
    packaging::{self, CompletionsArgs, ManArgs},
};
use detector_event::guidance::{RunbookUrl, StatusPageUrl};
use ipnet::IpNet;

use crate::{
    fleet::FleetSettings, http::Listen, ipam::IpamSettings, observe::ebpf::AttachMode,
    pods::PodLookupSettings, process::instance::socket_path, sinks::settings::SinkSettings,
};

/// Headings of `--help`, which group the flags.
pub mod heading {
    /// What is watched, and how.
    pub const DEVICES: &str = "Devices";
    /// The pods behind devices.
    pub const POD_NAMES: &str = "Pod names";
    /// IPAM allocations.
    pub const IPAM: &str = "IPAM";
    /// Addresses across nodes.
    pub const FLEET: &str = "Fleet";
    /// Events, results and logs.
    pub const OUTPUT: &str = "Output";
    /// Endpoints, and access to them.
    pub const HTTP: &str = "HTTP";
    /// What is kept on disk.
    pub const STATE: &str = "State";
    /// Details of detection.
    pub const TUNING: &str = "Tuning";
}

/// Detects IP addresses claimed by more than one pod, the moment it happens.
#[derive(Clone, Debug, Parser)]
#[command(name = "detector-agent", version = packaging::version(), about, after_help = help::AGENT, max_term_width = 110)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Monitor this node and report every conflict as it happens.
    #[command(after_help = help::RUN)]
    Run(Box<RunArgs>),
    /// Show what the agent on this node knows, or without one what a single look at the kernel state finds: exit code 0
    /// without conflicts, 1 with conflicts, 2 if the result is inconclusive.
    #[command(after_help = help::CHECK)]
    Check(Box<CheckArgs>),
    /// Explain the open conflicts and anomalies, all or those of ADDRESS, with cause, evidence and repair, as the agent on this node
    /// knows them, or without one as a single look at the node finds them: exit code 0 without conflicts, 1 with conflicts, 2 if the
    /// result is inconclusive.
    #[command(after_help = help::EXPLAIN)]
    Explain(Box<ExplainArgs>),
    /// Show the conflicts of a running agent live: a table in a terminal, otherwise one line per event.
    #[command(after_help = help::WATCH)]
    Watch(WatchArgs),
    /// Remove the filters that a killed agent left on devices.
    #[command(after_help = help::CLEANUP)]
    Cleanup(CleanupArgs),
    /// Print the version, with the commit that it was built from.
    Version,
    /// Write a shell's completions to stdout.
    Completions(CompletionsArgs),
    /// Write the manual pages, one for each command, into a directory.
    Man(ManArgs),
}

impl Command {
    /// The settings shared by `run`, `check` and `explain`.
    #[must_use]
    pub fn common(&self) -> Option<&CommonArgs> {
        match self {
            Self::Run(args) => Some(&args.common),
            Self::Check(args) => Some(&args.common),
            Self::Explain(args) => Some(&args.common),
            _ => None,
        }
    }
}

/// Settings shared by `run`, `check` and `explain`.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// YAML file with one key per flag, and for `run` also `webhooks` and `alertmanagers` (docs/configuration.md).
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_CONFIG")]
    pub config: Option<PathBuf>,

    /// Patterns of pod devices, such as `cali*` [default: every veth or netkit with its peer in another namespace, and
    /// tap*].
    #[arg(long, value_name = "GLOB", env = "IPCONFLICT_INTERFACES", help_heading = heading::DEVICES, num_args = 1.., value_delimiter = ',')]
    pub interfaces: Vec<String>,

    /// Patterns of devices to ignore; takes precedence over --interfaces.
    #[arg(long, value_name = "GLOB", env = "IPCONFLICT_EXCLUDE_INTERFACES", help_heading = heading::DEVICES, num_args = 1.., value_delimiter = ',')]
    pub exclude_interfaces: Vec<String>,

    /// Shared addresses (VIPs) that may move between pods: flapping is reported, duplicates are not. Repeatable.
    #[arg(long, value_name = "CIDR", env = "IPCONFLICT_ALLOW", help_heading = heading::TUNING, value_delimiter = ',', value_parser = parse_cidr)]
    pub allow: Vec<IpNet>,

    /// Name of this node in events [default: the host name].
    #[arg(long, value_name = "NAME", env = "IPCONFLICT_NODE_NAME", help_heading = heading::OUTPUT)]
    pub node_name: Option<String>,

    /// Name of this cluster in events and alerts.
    #[arg(long, value_name = "NAME", env = "IPCONFLICT_CLUSTER_NAME", help_heading = heading::OUTPUT)]
    pub cluster_name: Option<String>,

    /// URL of the directory with the runbooks, for links where the published ones cannot be reached.
    #[arg(long, value_name = "URL", env = "IPCONFLICT_RUNBOOK_URL", help_heading = heading::OUTPUT)]
    pub runbook_url: Option<RunbookUrl>,

    /// Pod lookups.
    #[command(flatten)]
    pub pods: PodLookupSettings,

    /// IPAM sources.
    #[command(flatten)]
    pub ipam: IpamSettings,

    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Settings of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Shared settings.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Write events as JSON, one per line, to stdout (`-`) or a file.
    #[arg(long, value_name = "-|PATH", env = "IPCONFLICT_EVENTS", help_heading = heading::OUTPUT)]
    pub events: Option<PathBuf>,

    /// Address for the status page, the API, metrics and probes; `none` disables them.
    #[arg(
        long,
        value_name = "ADDR",
        env = "IPCONFLICT_LISTEN",
        help_heading = heading::HTTP,
        default_value = "127.0.0.1:9842"
    )]
    pub listen: Listen,

    /// Address for /metrics, /healthz and /readyz alone, such as the node's, for Prometheus; or `none`.
    #[arg(
        long,
        value_name = "ADDR",
        env = "IPCONFLICT_METRICS_LISTEN",
        help_heading = heading::HTTP,
        default_value = "none"
    )]
    pub metrics_listen: Listen,

    /// Show addresses, devices and pods on /metrics; `false` leaves the counts.
    #[arg(long, env = "IPCONFLICT_METRICS_DETAIL", help_heading = heading::HTTP, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub metrics_detail: bool,

    /// URL at which people reach the status page, for links in alerts and messages; `{node}` stands for the node's name.
    #[arg(long, value_name = "URL", env = "IPCONFLICT_STATUS_PAGE_URL", help_heading = heading::OUTPUT)]
    pub status_page_url: Option<StatusPageUrl>,

    /// File with a token that clients must send (`Authorization: Bearer …`); not required for /healthz and /readyz.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_HTTP_TOKEN_FILE", help_heading = heading::HTTP)]
    pub http_token_file: Option<PathBuf>,

    /// Serve TLS with this certificate chain (PEM); reloaded when the file changes.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_TLS_CERT", help_heading = heading::HTTP)]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of --tls-cert.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_TLS_KEY", help_heading = heading::HTTP)]
    pub tls_key: Option<PathBuf>,

    /// Export one metric series per claimed address, to compare nodes in Prometheus.
    #[arg(long, env = "IPCONFLICT_EXPORT_CLAIMS", help_heading = heading::HTTP, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub export_claims: bool,

    /// Directory that preserves open conflicts, undelivered events and the history across restarts.
    #[arg(long, value_name = "DIR", env = "IPCONFLICT_STATE_DIR", help_heading = heading::STATE)]
    pub state_dir: Option<PathBuf>,

    /// How many ended conflicts and anomalies the history in --state-dir keeps, at most 100000.
    #[arg(long, value_name = "N", env = "IPCONFLICT_HISTORY_ENTRIES", help_heading = heading::STATE, default_value = "10000", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub history_entries: u32,

    /// How long the history in --state-dir keeps them, at most 366d.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_HISTORY_AGE", help_heading = heading::STATE, default_value = "30d", value_parser = parse_duration)]
    pub history_age: Duration,

    /// Detection across nodes.
    #[command(flatten)]
    pub fleet: FleetSettings,

    /// The lock that excludes agents.
    #[command(flatten)]
    pub lock: LockArgs,

    /// How to attach to devices: clsact (`tc`), TCX before all other programs (`tcx`), or TCX only on devices where
    /// another program uses it (`auto`).
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_ATTACH",
        help_heading = heading::DEVICES,
        default_value = "auto"
    )]
    pub attach: AttachMode,

    /// Observe through netlink only, without eBPF; ARP and NDP frames are not seen.
    #[arg(long, env = "IPCONFLICT_NO_EBPF", help_heading = heading::DEVICES, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub no_ebpf: bool,

    /// Log why the kernel programs reject a frame or do not publish an observation; rate-limited. Also enabled by a
    /// directive for `detector_ebpf` in RUST_LOG.
    #[arg(long, env = "IPCONFLICT_KERNEL_LOG", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub kernel_log: bool,

    /// Expire claims seen only in ARP/NDP after this time, unless the pod has the address assigned.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_CLAIM_TTL", help_heading = heading::TUNING, default_value = "10m", value_parser = parse_duration)]
    pub claim_ttl: Duration,

    /// Report an allowed address as flapping after this many moves within --flap-window (RFC 7432).
    #[arg(long, value_name = "N", env = "IPCONFLICT_FLAP_MOVES", help_heading = heading::TUNING, default_value = "5", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub flap_moves: u32,

    /// Time within which --flap-moves are counted (RFC 7432).
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_FLAP_WINDOW", help_heading = heading::TUNING, default_value = "180s", value_parser = parse_duration)]
    pub flap_window: Duration,

    /// File with the kernel's BTF.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_BTF", help_heading = heading::TUNING, hide = true)]
    pub btf: Option<PathBuf>,

    /// Size of the eBPF ring buffer in bytes, a power of two.
    #[arg(long, value_name = "BYTES", env = "IPCONFLICT_RING_BYTES", help_heading = heading::TUNING, default_value = "1048576", hide = true, value_parser = parse_ring_bytes)]
    pub ring_bytes: u32,

    /// Receive buffer size of the netlink sockets in bytes.
    #[arg(
        long,
        value_name = "BYTES",
        env = "IPCONFLICT_NETLINK_BYTES",
        help_heading = heading::TUNING,
        default_value = "4194304",
        hide = true
    )]
    pub netlink_bytes: usize,

    /// Webhooks and Alertmanagers; set in the configuration file only.
    #[arg(skip)]
    pub sinks: SinkSettings,
}

/// Settings of `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Shared settings.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Only the conflict of this address, and the anomalies of it and of the pods that have it.
    #[arg(value_name = "ADDRESS", help_heading = heading::OUTPUT)]
    pub address: Option<IpAddr>,

    /// Show every group of findings in full; otherwise many are listed, and the rest counted.
    #[arg(long, env = "IPCONFLICT_ALL", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub all: bool,

    /// Output format.
    #[arg(
        long,
        short = 'o',
        visible_alias = "output",
        value_name = "FORMAT",
        env = "IPCONFLICT_FORMAT",
        help_heading = heading::OUTPUT,
        default_value = "text"
    )]
    pub format: CheckFormat,

    /// Accept a node without any pod device; otherwise the result is then inconclusive (exit code 2).
    #[arg(long, env = "IPCONFLICT_ALLOW_NO_DEVICES", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_no_devices: bool,

    /// The agent to ask first; it has seen the frames that a single look at the kernel cannot see.
    #[command(flatten)]
    pub agent: AgentArgs,

    /// Only ask the agent whether it is ready: exit code 0 if it is, else 2.
    #[arg(long, env = "IPCONFLICT_READINESS", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub readiness: bool,

    /// Show the newest conflicts and anomalies that ended instead, as the agent knows them: exit code 0, or 2 if the history could not
    /// be read.
    #[arg(long, env = "IPCONFLICT_HISTORY", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub history: bool,

    /// Exit with 1 for anomalies as well, such as IPAM drift.
    #[arg(long, env = "IPCONFLICT_STRICT", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub strict: bool,
}

/// Settings of `explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// Shared settings, for a look without an agent.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Only the conflict of this address, and the anomalies of it and of the pods that have it.
    #[arg(value_name = "ADDRESS", help_heading = heading::OUTPUT)]
    pub address: Option<IpAddr>,

    /// Output format.
    #[arg(
        long,
        short = 'o',
        visible_alias = "output",
        value_name = "FORMAT",
        env = "IPCONFLICT_FORMAT",
        help_heading = heading::OUTPUT,
        default_value = "text"
    )]
    pub format: CheckFormat,

    /// The agent to ask first; it has seen what happened.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// The agent that `check`, `explain` and `watch` ask.
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// URL of another agent than the one in this network namespace; with `none`, `check` and `explain` ask no agent.
    #[arg(long, value_name = "URL", env = "IPCONFLICT_URL", help_heading = heading::HTTP)]
    pub url: Option<String>,

    /// File with the token that the agent at --url requires (--http-token-file).
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_TOKEN_FILE", help_heading = heading::HTTP)]
    pub token_file: Option<PathBuf>,

    /// CA certificates (PEM) to verify an https:// agent.
    #[arg(long, value_name = "FILE", env = "IPCONFLICT_CA_FILE", help_heading = heading::HTTP)]
    pub ca_file: Option<PathBuf>,

    /// Where the agent in this network namespace listens.
    #[command(flatten)]
    pub lock: LockArgs,
}

impl AgentArgs {
    /// Whether no agent is to be asked.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.url.as_deref() == Some("none")
    }

    /// A client of the agent.
    ///
    /// # Errors
    /// If the URL, a file or the network namespace is unusable.
    pub fn client(&self) -> Result<Client, ClientError> {
        match &self.url {
            Some(url) => Client::new(&AgentAddress {
                url: url.clone(),
                token_file: self.token_file.clone(),
                ca_file: self.ca_file.clone(),
            }),
            None => socket_path(&self.lock.run_dir)
                .map(Client::local)
                .map_err(|error| ClientError::Namespace(error.to_string())),
        }
    }
}

/// Settings of `watch`.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,

    /// Print lines even in a terminal.
    #[arg(long, env = "IPCONFLICT_LINES", help_heading = heading::OUTPUT, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub lines: bool,
}

/// Settings of `cleanup`.
#[derive(Args, Clone, Debug)]
pub struct CleanupArgs {
    /// Remove the filters even while an agent runs in this network namespace; it attaches again.
    #[arg(long, env = "IPCONFLICT_FORCE", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    pub force: bool,

    /// The lock that excludes agents.
    #[command(flatten)]
    pub lock: LockArgs,

    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The lock that excludes a second agent.
#[derive(Args, Clone, Debug)]
pub struct LockArgs {
    /// Directory of the lock that keeps a second agent from running in this network namespace, and of the socket at which
    /// commands find the agent; only root may be able to write it.
    #[arg(
        long,
        value_name = "DIR",
        env = "IPCONFLICT_RUN_DIR",
        help_heading = heading::STATE,
        default_value = "/run/ip-conflict-detector"
    )]
    pub run_dir: PathBuf,
}

/// Logging settings.
#[derive(Args, Clone, Copy, Debug)]
pub struct LogArgs {
    /// Format of the log lines on stderr.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "IPCONFLICT_LOG_FORMAT",
        help_heading = heading::OUTPUT,
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// Format of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable.
    Text,
    /// JSON.
    Json,
}

/// Output format of `check` and `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// Human-readable.
    Text,
    /// Human-readable, a line for each conflict and anomaly.
    Wide,
    /// JSON.
    Json,
}

pub(crate) fn parse_cidr(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "expected an address or a CIDR such as 10.0.0.10 or 10.0.0.0/28".to_owned())
}

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_duration_within(text, Duration::from_secs(1)..=LONGEST)
}

/// The longest duration that is accepted. Every point in time that is computed with it can be represented.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Parses a duration such as `90s` or `10m`.
///
/// # Errors
/// It is none, or not in the range; the text names both bounds.
pub(crate) fn parse_duration_within(
    text: &str,
    range: RangeInclusive<Duration>,
) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if range.contains(&duration) => Ok(duration),
        Ok(_) => Err(format!(
            "must be between {} and {}",
            format_bound(*range.start()),
            format_bound(*range.end())
        )),
        Err(_) => Err("expected a duration such as 90s or 10m".to_owned()),
    }
}

fn format_bound(duration: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match duration.as_secs() {
        seconds if seconds >= DAY && seconds % DAY == 0 => format!("{}d", seconds / DAY),
        _ => humantime::format_duration(duration).to_string(),
    }
}

fn parse_ring_bytes(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n >= 4096 && n.is_power_of_two() => Ok(n),
        _ => Err("expected a power of two of at least 4096".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_setting_has_a_heading() {
        let command = Cli::command();
        let commands = ["run", "check", "explain", "watch", "cleanup"];
        for command in commands
            .iter()
            .filter_map(|name| command.find_subcommand(name))
        {
            for argument in command.get_arguments() {
                let id = argument.get_id();
                let is_general = id == "config" || id == "force";
                assert!(
                    is_general || argument.get_help_heading().is_some(),
                    "{} {id}",
                    command.get_name()
                );
            }
        }
    }
}
