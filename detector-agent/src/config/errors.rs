//! The errors of the configuration file, each with its line.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser};

/// Names that are at least this similar are suggested: one of five letters may have a typo or two.
const SIMILAR: f64 = 0.6;

/// An invalid setting.
#[derive(Debug)]
struct SettingError {
    /// Where it is, such as `webhooks[0].url`.
    path: String,
    text: String,
}

/// The invalid settings of one file.
#[derive(Debug, Default)]
pub(super) struct Errors(Vec<SettingError>);

impl Errors {
    /// Adds the error that the value at `path` is invalid because of `reason`.
    pub(super) fn add(&mut self, path: &str, reason: &dyn std::fmt::Display) {
        self.add_sentence(path, format!("`{path}`: {reason}"));
    }

    /// Adds an error about `path`, a full sentence.
    pub(super) fn add_sentence(&mut self, path: &str, text: String) {
        let path = path.to_owned();
        self.0.push(SettingError { path, text });
    }

    /// Whether there is an error about `path` itself.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.iter().any(|error| error.path == path)
    }

    /// Removes the errors about `path`.
    pub(super) fn remove(&mut self, path: &str) {
        self.0.retain(|error| error.path != path);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All errors in the order of the file, each with its line.
    pub(super) fn with_lines(self, lines: &Places) -> Vec<String> {
        let mut errors: Vec<_> = self
            .0
            .into_iter()
            .map(|error| (lines.line(&error.path), error.text))
            .collect();
        errors.sort_by_key(|(line, _)| line.unwrap_or(usize::MAX));
        let with_line = |(line, text): (Option<usize>, String)| match line {
            Some(line) => format!("line {line}: {text}"),
            None => text,
        };
        errors.into_iter().map(with_line).collect()
    }
}

/// The most similar name, if there is one that is meant.
pub(super) fn similar<'n>(key: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let similarity = |name: &&str| strsim::normalized_damerau_levenshtein(key, name);
    let similar = names.max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    similar.filter(|name| similarity(name) > SIMILAR)
}

/// A similar name, or all names.
pub(super) fn suggestion<'n>(key: &str, names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<_> = names.collect();
    match similar(key, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("supported: {}", names.join(", ")),
    }
}

/// The line and the text of each value of a YAML document, by its path. The deserialiser does not keep them, so the document is
/// parsed again.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<String, Place>);

#[derive(Debug)]
struct Place {
    line: usize,
    /// A scalar as it is written.
    text: Option<String>,
}

/// A mapping or sequence that is being read.
enum Collection {
    /// The path of the mapping, and the key whose value follows.
    Mapping(String, Option<String>),
    /// The path of the sequence, and the index of the next item.
    Sequence(String, usize),
}

impl Collection {
    /// Path of the node that begins here; for the key of a mapping, that of its value.
    fn place(&mut self, scalar: Option<&str>) -> String {
        match self {
            Self::Sequence(path, next) => {
                *next += 1;
                format!("{path}[{}]", *next - 1)
            }
            Self::Mapping(path, key) => {
                let named = key.take();
                let name = named.as_deref().or(scalar).unwrap_or_default();
                let place = if path.is_empty() {
                    name.to_owned()
                } else {
                    format!("{path}.{name}")
                };
                if named.is_none() {
                    *key = Some(name.to_owned());
                }
                place
            }
        }
    }
}

impl Places {
    pub(super) fn of(text: &str) -> Self {
        let mut lines = Self::default();
        let mut open: Vec<Collection> = Vec::new();
        // What follows an error has no lines; the deserialiser has read the text without one.
        for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
            let scalar = match &event {
                Event::Scalar(text, ..) => Some(text.as_ref()),
                Event::MappingStart(..) | Event::SequenceStart(..) | Event::Alias(_) => None,
                Event::MappingEnd | Event::SequenceEnd => {
                    open.pop();
                    continue;
                }
                _ => continue,
            };
            let place = match open.last_mut() {
                Some(collection) => collection.place(scalar),
                None => String::new(),
            };
            // The key comes before the value: its line is the setting's.
            if !place.is_empty() {
                let line = span.start.line();
                let known = lines.0.entry(place.clone());
                let known = known.or_insert(Place { line, text: None });
                known.text = scalar.map(str::to_owned);
            }
            match event {
                Event::MappingStart(..) => open.push(Collection::Mapping(place, None)),
                Event::SequenceStart(..) => open.push(Collection::Sequence(place, 0)),
                _ => {}
            }
        }
        lines
    }

    /// The scalar at `path` as it is written.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path)?.text.as_deref()
    }

    /// The line of the value at `path`, or of the innermost collection that would contain it.
    fn line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(line.line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_its_line() {
        let text = "# comment\nallow:\n- 10.0.0.0/8\n- ? {odd: key}\n  : x\n\nwebhooks:\n\
                    - name: a\n  only: {kinds: [host,\n    x], header.name: y}\n- &anchor\n  name: |\n    long\n- *anchor\nlast: 1\n";
        let lines = Places::of(text);
        for (path, line) in [
            ("allow", 2),
            ("allow[0]", 3),
            ("allow[1]", 4),
            ("webhooks", 7),
            ("webhooks[0]", 8),
            ("webhooks[0].name", 8),
            ("webhooks[0].only.kinds[1]", 10),
            ("webhooks[0].only.header.name", 10),
            // It is missing there.
            ("webhooks[0].url", 8),
            ("webhooks[1].name", 12),
            ("webhooks[2].name", 14),
            ("last", 15),
        ] {
            assert_eq!(lines.line(path), Some(line), "{path}");
        }
        assert_eq!(lines.line("unknown"), None);
    }

    #[test]
    fn suggestion_is_the_most_similar_name() {
        let names = ["url", "url-file", "claim-ttl", "claims"];
        let suggest = |key| suggestion(key, names.into_iter());
        assert_eq!(suggest("claim-tll"), "did you mean `claim-ttl`?");
        assert_eq!(suggest("ulr"), "did you mean `url`?");
        assert_eq!(
            suggest("colour"),
            "supported: url, url-file, claim-ttl, claims"
        );
    }
}
