//! What a person reads of a message, without what differs from run to run.

use detector_testkit::ReceivedRequest;
use serde_json::Value;

/// The id of a sandbox without its last two digits.
const SANDBOX: &str = "5d1f0c9e77a1b3c42f6e8d90a5b7c1e3f4a2968d0b7e5c31f8a6d4e2b9c07f";

/// How a person is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Alertmanager,
    Chat,
    Pager,
}

/// A message as a person reads it.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) text: String,
    /// It reports the end.
    pub(super) is_end: bool,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Alertmanager, Self::Chat, Self::Pager];

    /// The path of its webhook.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Alertmanager => "/alerts",
            Self::Chat => "/chat",
            Self::Pager => "/pager",
        }
    }

    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Alertmanager => {
                "Prometheus and Alertmanager, with the texts of `deploy/prometheus/alertmanager.tmpl`:"
            }
            Self::Chat => "The agent's message to a chat:",
            Self::Pager => "The agent's message to a pager:",
        }
    }

    pub(super) fn message(self, request: &ReceivedRequest) -> Message {
        let body = request.json().unwrap();
        let text = |pointer: &str| {
            let text = body.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        match self {
            Self::Alertmanager => {
                let title = text("/attachments/0/title");
                Message {
                    is_end: title.starts_with("[RESOLVED]"),
                    text: format!("{title}\n{}", text("/attachments/0/text")),
                }
            }
            Self::Chat => {
                let blocks = body["blocks"].as_array().unwrap().iter();
                let blocks = blocks.map(|block| {
                    let text = block.pointer("/text/text");
                    let text = text.or_else(|| block.pointer("/elements/0/text"));
                    shown(text.and_then(Value::as_str).unwrap())
                });
                Message {
                    is_end: text("/text").starts_with(":white_check_mark:"),
                    text: blocks.collect::<Vec<_>>().join("\n"),
                }
            }
            Self::Pager => {
                let action = text("/event_action");
                let mut lines = vec![format!("{action}: {}", text("/payload/summary"))];
                for key in ["why", "next_step"] {
                    let value = text(&format!("/payload/custom_details/{key}"));
                    if !value.is_empty() {
                        lines.push(format!("{key}: {value}"));
                    }
                }
                Message {
                    is_end: action == "resolve",
                    text: lines.join("\n"),
                }
            }
        }
    }
}

/// Slack's markup as it is shown: pictures, and the titles of links.
fn shown(markup: &str) -> String {
    let mut text = markup.to_owned();
    for (name, picture) in [
        (":rotating_light:", "🚨"),
        (":warning:", "⚠️"),
        (":information_source:", "ℹ️"),
        (":white_check_mark:", "✅"),
    ] {
        text = text.replace(name, picture);
    }
    while let Some((before, link)) = text.split_once('<') {
        let (link, after) = link.split_once('>').unwrap();
        let (_, title) = link.split_once('|').unwrap();
        text = format!("{before}{title}{after}");
    }
    let escaped = [("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"), ("*", "")];
    escaped
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
}

/// The text with these replacements, with fixed times and durations, and with MAC addresses and sandboxes that are numbered.
pub(super) fn normalised(text: &str, replacements: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (from, to) in replacements {
        text = text.replace(from, to);
    }
    let (mut macs, mut sandboxes) = (Vec::new(), Vec::new());
    let lines = text.lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let words = words.iter().enumerate().map(|(n, word)| {
            let unit = words.get(n + 1).map_or("", |next| core(next));
            fixed(word, unit, &mut macs, &mut sandboxes)
        });
        words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A word without the punctuation around it.
fn core(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_ascii_alphanumeric())
}

/// The number of a name: which of the known ones it is, from 1.
fn number(known: &mut Vec<String>, name: &str) -> usize {
    let position = known.iter().position(|known| known == name);
    position.unwrap_or_else(|| {
        known.push(name.to_owned());
        known.len() - 1
    }) + 1
}

fn fixed(word: &str, unit: &str, macs: &mut Vec<String>, sandboxes: &mut Vec<String>) -> String {
    let core = core(word);
    let digits: String = (core.chars())
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    let fixed = match digits.as_str() {
        "0000-00-00" => "2026-11-21".to_owned(),
        "00:00:00Z" => "09:30:00Z".to_owned(),
        "0s" | "00s" => "20s".to_owned(),
        "0" | "00" if unit == "s" => "20".to_owned(),
        socket if socket.starts_with("unix:/run/") => {
            "unix:/run/ip-conflict-detector/netns-4-4026531840.sock".to_owned()
        }
        _ if core.len() == 17 && core.split(':').all(|byte| byte.len() == 2) => {
            format!("02:00:00:00:00:{:02x}", number(macs, core))
        }
        _ if core.len() == 64 && core.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{SANDBOX}{:02x}", number(sandboxes, core))
        }
        _ => return word.to_owned(),
    };
    word.replace(core, &fixed)
}
