//! Reads a mapping of the configuration file field by field, to report all errors at once.
//!
//! serde stops at the first error. Here each field is deserialised separately, and each error is collected with the path of
//! its field (`webhooks[0].url`).

use serde::de::DeserializeOwned;
use serde_yaml_ng::{Mapping, Value};

use super::errors::{Errors, similar, suggestion};

/// A mapping whose fields are read one by one.
#[derive(Debug)]
pub(super) struct Fields<'e> {
    path: String,
    /// Fields that have not been read yet.
    remaining: Mapping,
    /// Keys that were read, suggested in the error for an unknown key.
    known: Vec<&'static str>,
    /// Keys that are not there, which are errors.
    missing: Vec<&'static str>,
    errors: &'e mut Errors,
}

impl<'e> Fields<'e> {
    /// Starts reading `value`, found at `path`. Anything but a mapping adds an error and is treated as empty.
    pub(super) fn new(path: String, value: &Value, errors: &'e mut Errors) -> Self {
        let remaining = match value {
            Value::Mapping(mapping) => mapping.clone(),
            other => {
                errors.add_sentence(
                    &path,
                    format!(
                        "`{path}` is {}; expected a mapping of settings",
                        kind(other)
                    ),
                );
                Mapping::new()
            }
        };
        Self {
            path,
            remaining,
            known: Vec::new(),
            missing: Vec::new(),
            errors,
        }
    }

    /// The value of `key`; `None` if it is absent, or invalid, which adds an error.
    pub(super) fn take<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<T> {
        let value = self.raw(key)?;
        match serde_yaml_ng::from_value(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.add_error(key, &error);
                None
            }
        }
    }

    /// The value of `key`, a string, parsed by `parse`; otherwise as [`Fields::take`].
    pub(super) fn parse<T, E: std::fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text: String = self.take(key)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.add_error(key, &error);
                None
            }
        }
    }

    /// The value of `key`, a mapping, read by `read`; `None` if it is absent.
    pub(super) fn nested<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        let mapping = self.raw(key)?;
        let mut inner = Fields::new(format!("{}.{key}", self.path), &mapping, self.errors);
        let value = read(&mut inner);
        inner.finish();
        Some(value)
    }

    /// Adds the error that the value of `key` is invalid because of `reason`.
    pub(super) fn add_error(&mut self, key: &str, reason: &dyn std::fmt::Display) {
        self.errors.add(&format!("{}.{key}", self.path), reason);
    }

    /// Whether the value of `key` is known to be invalid.
    pub(super) fn is_invalid(&self, key: &str) -> bool {
        self.errors.has(&format!("{}.{key}", self.path))
    }

    /// Adds the error that `key` is missing, unless it is there and invalid, or there is no mapping.
    pub(super) fn add_missing(&mut self, key: &'static str, reason: &dyn std::fmt::Display) {
        if !self.is_invalid(key) && !self.errors.has(&self.path) {
            self.missing.push(key);
            self.add_error(key, reason);
        }
    }

    /// Adds an error for every key that was not read.
    pub(super) fn finish(self) {
        for key in self.remaining.keys() {
            let name = key
                .as_str()
                .map_or_else(|| kind(key).to_owned(), str::to_owned);
            let path = format!("{}.{name}", self.path);
            // A wrong name is not a missing value as well.
            if let Some(meant) = similar(&name, self.missing.iter().copied()) {
                self.errors.remove(&format!("{}.{meant}", self.path));
            }
            let suggestion = suggestion(&name, self.known.iter().copied());
            let text = format!("`{path}` is not a setting; {suggestion}");
            self.errors.add_sentence(&path, text);
        }
    }

    fn raw(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        match self.remaining.remove(key)? {
            Value::Null => {
                self.add_error(key, &"is empty; give a value or remove the key");
                None
            }
            value => Some(value),
        }
    }
}

/// Reads the list of mappings at `path`, each by `read`; items for which it returns `None` are left out.
pub(super) fn read_list<T>(
    path: &str,
    value: &Value,
    errors: &mut Errors,
    mut read: impl FnMut(&mut Fields<'_>) -> Option<T>,
) -> Vec<T> {
    let Value::Sequence(items) = value else {
        let text = format!("`{path}` is {}; expected a list", kind(value));
        errors.add_sentence(path, text);
        return Vec::new();
    };
    items
        .iter()
        .enumerate()
        .filter_map(|(n, item)| {
            let mut fields = Fields::new(format!("{path}[{n}]"), item, errors);
            let item = read(&mut fields);
            fields.finish();
            item
        })
        .collect()
}

/// The type of a value, as named in errors.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a tagged value",
    }
}
