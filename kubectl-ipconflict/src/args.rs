//! The command line of `kubectl ipconflict`. Names of flags are those of kubectl where it has them.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use detector_client::packaging::{self, CompletionsArgs, ManArgs};

/// The sections of `--help` and of the manual page.
const HELP: &str = "\
Exit status:
  0  there is no conflict
  1  there are conflicts
  2  no conflict is known, but not every agent could be asked or sees everything

Examples:
  The conflicts and anomalies of all nodes:
    kubectl ipconflict
  Who has an address, and why it is contested:
    kubectl ipconflict who-has 10.244.2.12
    kubectl ipconflict explain 10.244.2.12

Files:
  ~/.kube/config  how to reach the cluster (--kubeconfig)

See also:
  kubectl(1), detector-agent(1)";

/// Shows the IP address conflicts and anomalies of a cluster, as the agents on its nodes know them.
///
/// Exit code 0 without conflicts, 1 with conflicts, 2 if the result is inconclusive: none is known, but not every agent could be
/// asked or sees everything.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-ipconflict",
    bin_name = "kubectl ipconflict",
    version = packaging::version(),
    after_help = HELP,
    max_term_width = 110,
    args_conflicts_with_subcommands = false
)]
pub struct Cli {
    /// The subcommand; without one the conflicts are listed.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The cluster, and what to ask it.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show which pods claim an address, on which nodes, since when and on what evidence. Exit code 1 if it is contested.
    WhoHas {
        /// The address.
        address: IpAddr,
    },
    /// Explain why the conflicts and anomalies are there: causes with their evidence, what happened around them, and what to repair.
    Explain {
        /// Only the conflicts of this address, and the anomalies of it and of the pods that have it.
        address: Option<IpAddr>,
    },
    /// Show the conflicts and anomalies that ended, newest first, with their causes. Exit code 0, or 2 if an agent could not be asked.
    History {
        /// Only those of this address.
        address: Option<IpAddr>,
    },
    /// Write a shell's completions to stdout.
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory.
    Man(ManArgs),
}

/// The cluster, and what to ask it.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Kubeconfig file [default: KUBECONFIG, ~/.kube/config].
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,

    /// Namespace of the agents.
    #[arg(
        short,
        long,
        value_name = "NAME",
        default_value = "ip-conflict-detector",
        global = true
    )]
    pub namespace: String,

    /// Look for agents in all namespaces.
    #[arg(short = 'A', long, global = true)]
    pub all_namespaces: bool,

    /// Labels of the agents.
    #[arg(
        short = 'l',
        long,
        value_name = "LABELS",
        default_value = "app.kubernetes.io/name=ip-conflict-detector",
        global = true
    )]
    pub selector: String,

    /// Ask only the agents on these nodes. Repeatable.
    #[arg(long = "node", value_name = "NAME", global = true)]
    pub nodes: Vec<String>,

    /// Output format.
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "table",
        global = true
    )]
    pub output: Output,

    /// Time that one node may take.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_timeout, global = true)]
    pub timeout: Duration,

    /// How many agents to ask at a time.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=256), global = true)]
    pub concurrency: u16,

    /// URL of each agent as seen in its own pod.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:9842",
        global = true
    )]
    pub agent_url: String,

    /// File with the token that the agents require (--http-token-file).
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,

    /// CA certificates (PEM) to verify agents with an https:// URL.
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable.
    Table,
    /// JSON (docs/kubectl.md).
    Json,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        Ok(_) => Err("must be more than 0s".to_owned()),
        Err(_) => Err("expected a duration such as 10s or 1m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
