//! `explain`: why the conflicts and anomalies are there that a running agent knows, or that one look at the node finds.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::IpAddr,
};

use detector_client::{Client, Timelines};
use detector_event::{clean, counted, explain::incidents, text::Colour};

use crate::{
    check::{
        self, CheckError, Findings,
        agent::{self, Answer},
    },
    cli::{CheckFormat, ExplainArgs},
};

/// Prints why each open conflict and anomaly is there. Returns the exit code: 0 for no conflicts, 1 for conflicts, 2 if no conflict
/// is known but not everything was seen.
///
/// # Errors
/// If there is no result (exit code 2). The output is a complete JSON document in this case too, if JSON was requested.
pub fn run(args: &ExplainArgs) -> Result<u8, CheckError> {
    let result = explain_and_print(args);
    if let (Err(error), CheckFormat::Json) = (&result, args.format) {
        let document =
            serde_json::json!({ "error": error.to_string(), "conflicts": null, "anomalies": null });
        writeln!(io::stdout().lock(), "{document:#}")?;
    }
    result
}

fn explain_and_print(args: &ExplainArgs) -> Result<u8, CheckError> {
    let findings = find(args)?;
    let output = match args.format {
        CheckFormat::Json => {
            serde_json::to_string_pretty(&findings.json()).map_err(io::Error::from)? + "\n"
        }
        CheckFormat::Text | CheckFormat::Wide => {
            let colour = Colour::for_output(&io::stdout());
            text(&findings, args.address, colour)
        }
    };
    check::print(&output)?;
    Ok(match (&findings.conflicts[..], findings.incomplete()) {
        ([_, ..], _) => 1,
        ([], None) => 0,
        ([], Some(_)) => 2,
    })
}

fn find(args: &ExplainArgs) -> Result<Findings, CheckError> {
    let timelines = match args.format {
        CheckFormat::Json => Timelines::All,
        CheckFormat::Text | CheckFormat::Wide => Timelines::OfIncidents,
    };
    let explained = async |client: &Client| {
        let mut connection = client.connect().await?;
        connection.explained(args.address, timelines).await
    };
    let no_agent = match agent::ask(&args.agent, explained)? {
        Answer::Findings(findings) => return Ok(*findings),
        Answer::None(reason) => reason,
        Answer::Unusable(error) => return Err(CheckError::Agent(error)),
    };
    let look = check::explained_look(&args.common, args.address, no_agent.clone());
    look.map_err(|look| CheckError::Neither {
        look: Box::new(look),
        agent: no_agent,
    })
}

fn text(findings: &Findings, address: Option<IpAddr>, colour: Colour) -> String {
    let (conflicts, anomalies) = (&findings.conflicts, &findings.anomalies);
    let found = [
        (
            conflicts.len(),
            "IP address conflict",
            "IP address conflicts",
        ),
        (anomalies.len(), "anomaly", "anomalies"),
    ];
    let found = found.into_iter().filter(|(count, ..)| *count > 0);
    let found: Vec<_> = found.map(|(n, one, many)| counted(n, one, many)).collect();
    let incomplete = findings.incomplete();
    let mut text = match (&found[..], &incomplete) {
        ([], None) => "no IP address conflict and no anomaly".to_owned(),
        ([], Some(_)) => "inconclusive: no conflict and no anomaly is known".to_owned(),
        _ => found.join(" and "),
    };
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "\nsource: {}", clean(&findings.source_text()));
    if let Some(reason) = incomplete {
        let _ = writeln!(text, "incomplete: {}", clean(&reason));
    }
    for incident in incidents(conflicts, anomalies) {
        text.push('\n');
        incident.append_to(&mut text, address, colour);
    }
    text
}

#[cfg(test)]
mod tests {
    use detector_client::{AgentStatus, Overview};
    use detector_event::samples;

    use super::*;

    fn findings(ready: bool, addresses: &[&str]) -> Findings {
        let raised = |address: &&str| samples::raised(address).data;
        let overview = Overview {
            node: "node-1".to_owned(),
            ready: true,
            conflicts: addresses.iter().map(raised).collect(),
            resolved: Vec::new(),
            anomalies: Vec::new(),
        };
        let status = AgentStatus::sample(ready, Some(1), &[]);
        agent::findings(overview, status, "/run/agent")
    }

    #[test]
    fn first_lines_say_how_much_was_found_and_by_whom() {
        let shown = text(&findings(true, &[]), None, Colour::Off);
        let source = "source: the agent on node-1 (/run/agent)\n";
        assert_eq!(
            shown,
            format!("no IP address conflict and no anomaly\n{source}")
        );
        let shown = text(
            &findings(true, &["10.0.0.1", "10.0.0.2"]),
            None,
            Colour::Off,
        );
        let first = format!("2 IP address conflicts\n{source}\nnot explained");
        assert!(shown.starts_with(&first), "{shown}");
        let shown = text(&findings(false, &[]), None, Colour::Off);
        assert!(shown.starts_with("inconclusive: "), "{shown}");
        assert!(shown.contains("\nincomplete: "), "{shown}");
    }
}
