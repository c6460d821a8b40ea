//! `kubectl ipconflict`: the conflicts and anomalies of a cluster, why they are there, and who claims an address, as the agents on
//! all nodes know it.
//!
//! It asks every agent through a port-forward of the API server, which connects inside the pod's network and so reaches an
//! agent that listens on loopback only. The number of concurrent requests and the time per node are bounded; a node whose
//! agent cannot be asked is named, and never counts as free of conflicts.

mod agents;
pub mod args;
mod ask;
mod conflicts;
mod explain;
mod history;
mod report;
mod who_has;

use std::io::{self, Write as _};

use ::kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use detector_client::{
    AgentAddress, Client as AgentClient, ClientError, Timelines,
    packaging::{self, PackagingError},
};
use detector_event::text::Colour;
use serde_json::Value;

use agents::Agents;
use args::{Cli, ClusterArgs, Command, Output};
use ask::Question;
use report::Report;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The kubeconfig is missing or unusable.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// There is neither a kubeconfig nor a service account.
    #[error("no cluster is configured: {0}; set KUBECONFIG or use --kubeconfig")]
    NoCluster(String),
    /// No client can be made of the configuration.
    #[error("cannot set up a client for the API server: {0}")]
    Setup(::kube::Error),
    /// The API server refused or failed a list.
    #[error("cannot list {what}: {reason}")]
    List {
        /// What was listed.
        what: String,
        /// The cause.
        reason: String,
    },
    /// No pod is selected.
    #[error(
        "no pod in {place} has the labels {selector}; use --namespace or --all-namespaces, and --selector, to find the agents"
    )]
    NoAgents {
        /// The namespaces that were searched.
        place: String,
        /// The labels.
        selector: String,
    },
    /// There is no agent on a node that was named with `--node`.
    #[error("no node named {0} has an agent")]
    NoSuchNode(String),
    /// The settings for the agents are invalid.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// Completions or manual pages.
    #[error(transparent)]
    Packaging(#[from] PackagingError),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Runs the command. Returns the exit code: 0 for no conflicts, 1 for conflicts, 2 if none is known, but not every agent could
/// be asked or sees everything.
///
/// # Errors
/// If there is no result (exit code 2). The output is a complete JSON document in this case too, if JSON was requested.
pub fn run(cli: &Cli) -> Result<u8, PluginError> {
    match &cli.command {
        Some(Command::Completions(args)) => {
            packaging::write_completions::<Cli>(args)?;
            return Ok(0);
        }
        Some(Command::Man(args)) => {
            packaging::write_manual::<Cli>(args)?;
            return Ok(0);
        }
        Some(Command::WhoHas { .. } | Command::Explain { .. } | Command::History { .. }) | None => {
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(ask(cli));
    let (text, code) = match (&cli.cluster.output, result) {
        (Output::Json, Ok(report)) => (format!("{:#}\n", report.json()), report.exit_code()),
        (Output::Table, Ok(report)) => {
            let colour = Colour::for_output(&io::stdout());
            (report.text(colour), report.exit_code())
        }
        (Output::Json, Err(error)) => {
            let list = match cli.command {
                Some(Command::History { .. }) => "history",
                _ => "conflicts",
            };
            let document: Value = serde_json::json!({ "error": error.to_string(), list: null });
            writeln!(io::stdout().lock(), "{document:#}")?;
            return Err(error);
        }
        (Output::Table, Err(error)) => return Err(error),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(code)
}

async fn ask(cli: &Cli) -> Result<Box<dyn Report>, PluginError> {
    let args = &cli.cluster;
    let agent = AgentClient::new(&AgentAddress {
        url: args.agent_url.clone(),
        token_file: args.token_file.clone(),
        ca_file: args.ca_file.clone(),
    })?;
    let client = client(args).await?;
    let agents = Agents::find(&client, args).await?;
    let question = match cli.command {
        Some(Command::WhoHas { address }) => Question::Address(address),
        Some(Command::Explain { address }) => {
            let timelines = match args.output {
                Output::Json => Timelines::All,
                Output::Table => Timelines::OfIncidents,
            };
            Question::Why(address, timelines)
        }
        Some(Command::History { address }) => Question::Ended(address, history::limit(args.output)),
        _ => Question::Open,
    };
    let asked = ask::ask_all(&client, &agent, &agents, question, args).await;
    Ok(match question {
        Question::Address(address) => Box::new(who_has::WhoHas::new(address, asked)),
        Question::Why(address, _) => Box::new(explain::Explained::new(address, asked)),
        Question::Ended(..) => Box::new(history::Ended::new(asked)),
        Question::Open => Box::new(conflicts::Conflicts::new(asked)),
    })
}

async fn client(args: &ClusterArgs) -> Result<Client, PluginError> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let mut config = match &args.kubeconfig {
        Some(path) => {
            Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?
        }
        None if args.context.is_some() => Config::from_kubeconfig(&options).await?,
        None => Config::infer()
            .await
            .map_err(|error| PluginError::NoCluster(error.to_string()))?,
    };
    config.connect_timeout = Some(args.timeout);
    Client::try_from(config).map_err(PluginError::Setup)
}
