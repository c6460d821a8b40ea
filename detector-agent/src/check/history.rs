//! `check --history`: what ended, as the agent on this node knows it.

use std::{fmt::Write as _, io};

use detector_event::{
    answers::HistoryList,
    clean,
    history::{MAX_ROWS, ended_headline, ended_table},
};

use super::{CheckError, agent};
use crate::cli::{CheckArgs, CheckFormat};

/// The most entries of the JSON form.
const MAX_ENTRIES: usize = 10_000;

/// The newest entries of the history, in the requested format.
///
/// # Errors
/// If the agent does not answer: nothing else has recorded what ended.
pub(super) fn read(args: &CheckArgs) -> Result<String, CheckError> {
    if args.agent.is_none() {
        return Err(CheckError::NoHistory);
    }
    let client = args.agent.client().map_err(CheckError::Agent)?;
    let limit = match args.format {
        CheckFormat::Text | CheckFormat::Wide => MAX_ROWS,
        CheckFormat::Json => MAX_ENTRIES,
    };
    let list = agent::runtime()?
        .block_on(async { client.connect().await?.history(args.address, limit).await })
        .map_err(CheckError::Agent)?;
    match args.format {
        CheckFormat::Json => {
            Ok(serde_json::to_string_pretty(&list).map_err(io::Error::from)? + "\n")
        }
        CheckFormat::Text | CheckFormat::Wide => Ok(text(&list, client.url())),
    }
}

fn text(list: &HistoryList, url: &str) -> String {
    let has_more = list.end.next.is_some();
    let mut text = ended_headline(&list.history, has_more) + "\n";
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "source: the agent on {} ({})",
        clean(&list.head.node),
        clean(url)
    );
    ended_table(&mut text, &list.history);
    if has_more {
        text += "\nolder ones: --format json, or /api/v1/history\n";
    }
    text
}
