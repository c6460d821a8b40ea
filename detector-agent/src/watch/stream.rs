//! Parser of the agent's event stream (server-sent events).

use detector_client::{ClientError, next_chunk};
use detector_event::{AnomalyEvent, ContractName as _, Event, EventType, SubjectClass};
use hyper::body::Incoming;

/// Largest accepted event, in bytes.
const MAX_EVENT: usize = 4 << 20;

/// An open event stream.
pub(super) struct EventStream {
    url: String,
    body: Incoming,
    /// Received bytes that are not parsed yet.
    buffer: Vec<u8>,
}

/// One message of the stream.
pub(super) enum Message {
    /// The stream starts, or resumes after the requested event.
    Hello,
    Heartbeat,
    /// Events were lost.
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

impl EventStream {
    /// Reads the stream from `body`; `url` is used in errors.
    pub(super) fn new(url: String, body: Incoming) -> Self {
        Self {
            url,
            body,
            buffer: Vec::new(),
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// If the connection is lost or a block cannot be parsed.
    pub(super) async fn next(&mut self) -> Result<Message, ClientError> {
        loop {
            while let Some(end) = find(&self.buffer, b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let message = parse(&block).map_err(|reason| ClientError::InvalidResponse {
                    url: self.url.clone(),
                    reason,
                })?;
                if let Some(message) = message {
                    return Ok(message);
                }
            }
            if self.buffer.len() > MAX_EVENT {
                return Err(ClientError::ConnectionLost(
                    "an event is too large".to_owned(),
                ));
            }
            match next_chunk(&mut self.body).await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => {
                    return Err(ClientError::ConnectionLost(
                        "the agent closed the stream".to_owned(),
                    ));
                }
            }
        }
    }
}

fn find(text: &[u8], pattern: &[u8]) -> Option<usize> {
    text.windows(pattern.len())
        .position(|window| window == pattern)
}

/// Parses one block of the stream; `None` for a message type that this version does not know.
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
        "beat" => Message::Heartbeat,
        "reset" => Message::Reset,
        "" if !data.is_empty() => {
            // Later versions may add event types with other data.
            let event: serde_json::Value =
                serde_json::from_str(&data).map_err(|e| e.to_string())?;
            let name = event["type"].as_str().unwrap_or_default();
            let is_conflict = EventType::from_contract_name(name)
                .is_some_and(|kind| kind.subject == SubjectClass::Conflict);
            if !is_conflict {
                let anomaly = serde_json::from_value(event).ok();
                return Ok(anomaly.map(|event| Message::Anomaly {
                    id: id.to_owned(),
                    event,
                }));
            }
            let event = serde_json::from_value(event).map_err(|e| e.to_string())?;
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
    fn unknown_blocks_are_skipped() {
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
