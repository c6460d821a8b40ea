//! `explain`: why the conflicts and anomalies are there that a running agent knows.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use detector_client::{AgentStatus, Client, ClientError, Overview, Timelines};
use detector_event::{clean, counted, explain::incidents, text::Colour};
use serde_json::{Value, json};

use crate::cli::{CheckFormat, ExplainArgs};

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The agent cannot be asked.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Prints why each open conflict and anomaly is there. Returns the exit code: 0 for no conflicts, 1 for conflicts, 2 if no conflict
/// is known but the agent does not see everything.
///
/// # Errors
/// If there is no result (exit code 2). The output is a complete JSON document in this case too, if JSON was requested.
pub fn run(args: &ExplainArgs) -> Result<u8, ExplainError> {
    let result = explain_and_print(args);
    if let (Err(error), CheckFormat::Json) = (&result, args.format) {
        let document = json!({ "error": error.to_string(), "conflicts": null, "anomalies": null });
        writeln!(io::stdout().lock(), "{document:#}")?;
    }
    result
}

fn explain_and_print(args: &ExplainArgs) -> Result<u8, ExplainError> {
    let client = args.agent.client()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let known = runtime.block_on(ask(&client, args))?;
    let text = match args.format {
        CheckFormat::Json => {
            serde_json::to_string_pretty(&known.json()).map_err(io::Error::from)? + "\n"
        }
        CheckFormat::Text => known.text(Colour::for_output(&io::stdout())),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(match (&known.overview.conflicts[..], &known.incomplete) {
        ([_, ..], _) => 1,
        ([], None) => 0,
        ([], Some(_)) => 2,
    })
}

/// What the agent knows.
#[derive(Debug)]
struct Known {
    url: String,
    version: String,
    /// Why conflicts may exist that are not known.
    incomplete: Option<String>,
    overview: Overview,
}

async fn ask(client: &Client, args: &ExplainArgs) -> Result<Known, ClientError> {
    let timelines = match args.format {
        CheckFormat::Json => Timelines::All,
        CheckFormat::Text => Timelines::OfIncidents,
    };
    let mut agent = client.connect().await?;
    let (overview, status) = agent.explained(args.address, timelines).await?;
    Ok(Known {
        url: client.url().to_owned(),
        incomplete: incomplete(&status),
        version: status.version,
        overview,
    })
}

fn incomplete(status: &AgentStatus) -> Option<String> {
    let reasons: Vec<_> = status.gaps().into_iter().map(|gap| gap.reason).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

impl Known {
    fn json(&self) -> Value {
        json!({
            "node": self.overview.node,
            "agent": { "url": self.url, "version": self.version },
            "incomplete": self.incomplete,
            "conflicts": self.overview.conflicts,
            "anomalies": self.overview.anomalies,
        })
    }

    fn text(&self, colour: Colour) -> String {
        let Overview {
            conflicts,
            anomalies,
            node,
            ..
        } = &self.overview;
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
        let mut text = match (&found[..], &self.incomplete) {
            ([], None) => "no IP address conflict and no anomaly".to_owned(),
            ([], Some(_)) => "inconclusive: no conflict and no anomaly is known".to_owned(),
            _ => found.join(" and "),
        };
        let source = format!("the agent on {node} ({})", self.url);
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "\nsource: {}", clean(&source));
        if let Some(reason) = &self.incomplete {
            let _ = writeln!(text, "incomplete: {}", clean(reason));
        }
        for incident in incidents(conflicts, anomalies) {
            text.push('\n');
            incident.append_to(&mut text, colour);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use detector_event::samples;

    use super::*;

    fn known(addresses: &[&str]) -> Known {
        let raised = |address: &&str| samples::raised(address).data;
        Known {
            url: "/run/agent".to_owned(),
            version: "1".to_owned(),
            incomplete: None,
            overview: Overview {
                node: "node-1".to_owned(),
                ready: true,
                conflicts: addresses.iter().map(raised).collect(),
                resolved: Vec::new(),
                anomalies: Vec::new(),
            },
        }
    }

    #[test]
    fn first_lines_say_how_much_was_found_and_by_whom() {
        let text = known(&[]).text(Colour::Off);
        let source = "source: the agent on node-1 (/run/agent)\n";
        assert_eq!(
            text,
            format!("no IP address conflict and no anomaly\n{source}")
        );
        let text = known(&["10.0.0.1", "10.0.0.2"]).text(Colour::Off);
        let first = format!("2 IP address conflicts\n{source}\nnot explained");
        assert!(text.starts_with(&first), "{text}");
        let blind = Known {
            incomplete: Some("the agent is not ready yet".to_owned()),
            ..known(&[])
        };
        let text = blind.text(Colour::Off);
        assert!(text.starts_with("inconclusive: "), "{text}");
        assert!(
            text.ends_with("incomplete: the agent is not ready yet\n"),
            "{text}"
        );
    }
}
