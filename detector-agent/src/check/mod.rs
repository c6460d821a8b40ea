//! `check`: prints the conflicts and anomalies that the agent on this node knows. If none answers, it looks at the kernel
//! state once, and names what such a look cannot see. With `--history` it prints what ended.

pub(crate) mod agent;
mod history;
mod own_look;
mod report;

use std::{
    io::{self, Write as _},
    net::IpAddr,
};

use detector_client::{Client, ClientError, Gap};
use detector_event::text::Colour;

use crate::{
    cli::{CheckArgs, CheckFormat, CommonArgs},
    observe::netlink::{OpenError, PatternError, ReadError},
    process::node::NodeNameError,
};
use agent::Answer;
pub(crate) use report::Findings;

/// Why the check has no result.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The agent cannot be asked.
    #[error(transparent)]
    Agent(ClientError),
    /// With `--url none`.
    #[error("only an agent knows what ended, and none was asked (--url none)")]
    NoHistory,
    /// The system refuses what a client of the agent needs.
    #[error("cannot start a client of the agent: {0}")]
    Runtime(io::Error),
    /// Neither the agent nor the kernel could be read.
    #[error("{look}; {agent}")]
    Neither {
        /// Why the kernel state could not be read.
        look: Box<CheckError>,
        /// Why the agent gave no answer.
        agent: String,
    },
    /// A device pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The node name cannot be determined.
    #[error(transparent)]
    NodeName(#[from] NodeNameError),
    /// The netlink socket cannot be opened.
    #[error(transparent)]
    Netlink(#[from] OpenError),
    /// The kernel state cannot be read.
    #[error("cannot read the kernel state: {0}")]
    Read(#[from] ReadError),
    /// Pod lookups cannot be started.
    #[error("cannot look up pods: {0}")]
    PodLookup(io::Error),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Prints what is known about the node. Returns the exit code: 0 for no conflicts, 1 for conflicts, 2 if no conflict is known
/// but the agent or the look does not see everything that it should. With `--history` it is 0.
///
/// # Errors
/// If the check has no result (exit code 2). The output is a complete JSON document in this case too, if JSON was requested.
pub fn run(args: &CheckArgs) -> Result<u8, CheckError> {
    let result = check_and_print(args);
    if let (Err(error), CheckFormat::Json) = (&result, args.format) {
        let list = if args.history { "history" } else { "conflicts" };
        let document = serde_json::json!({ "error": error.to_string(), list: null });
        print(&format!("{document:#}\n"))?;
    }
    result
}

fn check_and_print(args: &CheckArgs) -> Result<u8, CheckError> {
    if args.readiness {
        return print_readiness(args);
    }
    if args.history {
        print(&history::read(args)?)?;
        return Ok(0);
    }
    let mut findings = find(args)?;
    findings.address = args.address;
    if findings.devices == Some(0) && !args.allow_no_devices {
        findings.gaps.insert(
            0,
            Gap {
                headline: "there is no pod device",
                reason: "there is no pod device; with --allow-no-devices this is accepted"
                    .to_owned(),
            },
        );
    }
    print(&match args.format {
        CheckFormat::Json => {
            serde_json::to_string_pretty(&findings.json()).map_err(io::Error::from)? + "\n"
        }
        CheckFormat::Text => findings.text(args.all, Colour::for_output(&io::stdout())),
        CheckFormat::Wide => findings.wide(),
    })?;
    let strict = args.strict && !findings.anomalies.is_empty();
    Ok(match (&findings.conflicts[..], &findings.gaps[..]) {
        ([_, ..], _) => 1,
        ([], _) if strict => 1,
        ([], []) => 0,
        ([], _) => 2,
    })
}

/// What one look at the node finds, about everything or an address, with why it is so. `no_agent`: why no agent is asked.
///
/// # Errors
/// If the kernel state cannot be read.
pub(crate) fn explained_look(
    args: &CommonArgs,
    address: Option<IpAddr>,
    no_agent: String,
) -> Result<Findings, CheckError> {
    let mut look = own_look::look(args, no_agent)?;
    if let Some(address) = address {
        look.retain_address(address);
    }
    look.explain(args).map_err(CheckError::PodLookup)?;
    Ok(look.findings)
}

/// Writes the result. A reader that has read enough is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn print_readiness(args: &CheckArgs) -> Result<u8, CheckError> {
    let answer = agent::readiness(&args.agent)?;
    let ready = answer.is_ok();
    let (Ok(detail) | Err(detail)) = answer;
    let line = match args.format {
        CheckFormat::Json => serde_json::json!({ "ready": ready, "detail": detail }).to_string(),
        CheckFormat::Text | CheckFormat::Wide => detail,
    };
    print(&(line + "\n"))?;
    Ok(if ready { 0 } else { 2 })
}

fn find(args: &CheckArgs) -> Result<Findings, CheckError> {
    let overview =
        async |client: &Client| agent::overview(client, args.address, args.allow_no_devices).await;
    let (reason, gap) = match agent::ask(&args.agent, overview)? {
        Answer::Findings(findings) => return Ok(*findings),
        Answer::None(reason) => (reason, None),
        Answer::Unusable(error) => {
            let reason = error.to_string();
            let gap = Gap {
                headline: "no conflict in one look, but the agent could not be asked",
                reason: reason.clone(),
            };
            (reason, Some(gap))
        }
    };
    match own_look::look(&args.common, reason.clone()) {
        Ok(mut look) => {
            if let Some(address) = args.address {
                look.retain_address(address);
            }
            look.findings.gaps.extend(gap);
            Ok(look.findings)
        }
        Err(look) => Err(CheckError::Neither {
            look: Box::new(look),
            agent: reason,
        }),
    }
}
