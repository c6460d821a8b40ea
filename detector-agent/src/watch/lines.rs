//! One line for each event, for logs and pipes.

use std::io::{self, Write};

use tokio::sync::mpsc;

use super::{News, Present};
use crate::report::{
    event::ConflictData,
    text::{self, clean},
};

/// Writes until nobody reads any more, or the person ends it.
pub(super) async fn show(first: Present, mut news: mpsc::Receiver<News>) -> io::Result<()> {
    let mut out = io::stdout();
    let mut last = state_lines(&first);
    write(&mut out, &last)?;
    loop {
        let news = tokio::select! {
            news = news.recv() => news,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(news) = news else { return Ok(()) };
        let written = match news {
            News::Present(present) => {
                // What was shown already is not shown again.
                let lines = state_lines(&present);
                let written = if lines == last {
                    Ok(())
                } else {
                    write(&mut out, &lines)
                };
                last = lines;
                written
            }
            News::Event(event) => {
                let change = event.event_type.rsplit('.').next().unwrap_or_default();
                last.clear();
                write(&mut out, &line(&event.time, change, &event.data))
            }
            News::Lost(why) => {
                last.clear();
                writeln!(io::stderr(), "{why}; trying again")
            }
        };
        match written {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
}

fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn state_lines(present: &Present) -> String {
    present
        .conflicts
        .iter()
        .map(|conflict| line(&conflict.updated_at, "active", conflict))
        .collect()
}

/// Time, change, address, kind, confidence, claimants; the receiver of the traffic is marked.
fn line(time: &str, change: &str, conflict: &ConflictData) -> String {
    let claimants: Vec<String> = conflict
        .claimants
        .iter()
        .map(|claimant| {
            let device = clean(&claimant.device);
            let mut one = match &claimant.pod {
                Some(_) => format!("{} ({device})", text::pod(claimant)),
                None => device.into_owned(),
            };
            if text::is_winner(conflict, claimant) {
                one.insert(0, '→');
            }
            if let Some(left) = &claimant.left {
                one.push_str(&format!(" left: {}", clean(&left.replace('_', " "))));
            }
            one
        })
        .collect();
    format!(
        "{} {change:8} {} {} {}: {}\n",
        clean(time),
        text::address(conflict),
        clean(&conflict.kind),
        clean(&conflict.confidence),
        claimants.join(", ")
    )
}
