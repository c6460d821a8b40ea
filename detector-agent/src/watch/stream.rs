//! The agent's stream of events (server-sent events), read.

use hyper::body::Incoming;

use super::client::{ClientError, piece};
use crate::event::{AnomalyEvent, ContractName as _, Event, EventType, SubjectClass};

/// An event larger than this is not the agent's.
const EVENT: usize = 4 << 20;

/// An open stream of events.
pub(super) struct Events {
    url: String,
    body: Incoming,
    text: Vec<u8>,
}

/// What comes over it.
pub(super) enum Message {
    /// The stream begins, or goes on after the event that was named.
    Hello,
    Beat,
    /// Some were missed.
    Reset,
    Event {
        id: String,
        event: Box<Event>,
    },
    Anomaly {
        id: String,
        event: Box<AnomalyEvent>,
    },
}

impl Events {
    /// What the agent at `url` answers with.
    pub(super) fn over(url: String, body: Incoming) -> Self {
        Self {
            url,
            body,
            text: Vec::new(),
        }
    }

    /// The next message.
    pub(super) async fn next(&mut self) -> Result<Message, ClientError> {
        loop {
            while let Some(end) = find(&self.text, b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                let message = parse(&block).map_err(|reason| ClientError::Foreign {
                    url: self.url.clone(),
                    reason,
                })?;
                if let Some(message) = message {
                    return Ok(message);
                }
            }
            if self.text.len() > EVENT {
                return Err(ClientError::Broken("an event is too large".to_owned()));
            }
            match piece(&mut self.body).await? {
                Some(bytes) => self.text.extend_from_slice(&bytes),
                None => return Err(ClientError::Broken("the agent ended it".to_owned())),
            }
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// One block of the stream; `None` for what this version does not know.
pub(super) fn parse(block: &[u8]) -> Result<Option<Message>, String> {
    let text = String::from_utf8_lossy(block);
    let (mut kind, mut id, mut data) = ("", "", String::new());
    for line in text.lines() {
        match line.split_once(": ") {
            Some(("event", value)) => kind = value,
            Some(("id", value)) => id = value,
            Some(("data", value)) => data.push_str(value),
            _ => {}
        }
    }
    let message = match kind {
        "hello" => Message::Hello,
        "beat" => Message::Beat,
        "reset" => Message::Reset,
        "" if !data.is_empty() => {
            // What later versions tell may have data of another kind.
            let about: serde_json::Value =
                serde_json::from_str(&data).map_err(|e| e.to_string())?;
            let name = about["type"].as_str().unwrap_or_default();
            let is_conflict = EventType::from_contract_name(name)
                .is_some_and(|kind| kind.subject == SubjectClass::Conflict);
            if !is_conflict {
                let anomaly = serde_json::from_value(about).ok();
                return Ok(anomaly.map(|event| Message::Anomaly {
                    id: id.to_owned(),
                    event,
                }));
            }
            let event = serde_json::from_value(about).map_err(|e| e.to_string())?;
            Message::Event {
                id: id.to_owned(),
                event: Box::new(event),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_this_version_does_not_know_are_passed_over() {
        for block in [
            &b": a comment\n\n"[..],
            b"event: later\ndata: {}\n\n",
            b"data: {\"type\":\"io.ipconflict.anomaly.raised\"}\n\n",
            b"\n\n",
        ] {
            assert!(matches!(parse(block), Ok(None)));
        }
        assert!(matches!(
            parse(b"retry: 1\nevent: hello\ndata: {\"node\":\"a\",\"resumed\":true}\n\n"),
            Ok(Some(Message::Hello))
        ));
        assert!(parse(b"data: nonsense\n\n").is_err());
    }
}
