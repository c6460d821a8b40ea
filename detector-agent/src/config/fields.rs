//! Reads a mapping of the configuration file field by field, so that one mistake does not hide the next.
//!
//! serde alone stops at the first error; here each field is deserialised by itself, and what is wrong with it is
//! written down with its path (`webhooks[0].url`).

use serde::de::DeserializeOwned;
use serde_yaml_ng::{Mapping, Value};

use super::file::kind;

/// One mapping that is being read.
#[derive(Debug)]
pub struct Fields<'e> {
    path: String,
    left: Mapping,
    /// Keys that were asked for, for the hint at an unknown one.
    known: Vec<&'static str>,
    errors: &'e mut Vec<String>,
}

impl<'e> Fields<'e> {
    /// Begins with `value`, found at `path`; anything but a mapping is an error and reads as empty.
    pub fn new(path: String, value: &Value, errors: &'e mut Vec<String>) -> Self {
        let left = match value {
            Value::Mapping(mapping) => mapping.clone(),
            other => {
                errors.push(format!(
                    "`{path}` is {}; expected a mapping of settings",
                    kind(other)
                ));
                Mapping::new()
            }
        };
        Self {
            path,
            left,
            known: Vec::new(),
            errors,
        }
    }

    /// The field `key`; `None` where it is not given, or wrong, which is then written down.
    pub fn take<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<T> {
        let value = self.raw(key)?;
        match serde_yaml_ng::from_value(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(key, &error);
                None
            }
        }
    }

    /// The field `key`, a text, through `parse`.
    pub fn parse<T, E: std::fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text: String = self.take(key)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(key, &error);
                None
            }
        }
    }

    /// The field `key`, a mapping of its own, through `read`.
    pub fn nested<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        let value = self.raw(key)?;
        let mut inner = Fields::new(format!("{}.{key}", self.path), &value, self.errors);
        let read = read(&mut inner);
        inner.finish();
        Some(read)
    }

    /// Writes down that the field `key` is wrong.
    pub fn refuse(&mut self, key: &str, why: &dyn std::fmt::Display) {
        self.errors.push(format!("`{}.{key}`: {why}", self.path));
    }

    /// Ends the reading: every key that nobody asked for is unknown.
    pub fn finish(self) {
        for key in self.left.keys() {
            let name = key
                .as_str()
                .map_or_else(|| kind(key).to_owned(), str::to_owned);
            self.errors.push(format!(
                "`{}.{name}` is not a setting; the settings here are {}",
                self.path,
                self.known.join(", ")
            ));
        }
    }

    fn raw(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        match self.left.remove(key)? {
            Value::Null => {
                self.refuse(key, &"is empty; give a value or leave the key out");
                None
            }
            value => Some(value),
        }
    }
}

/// Reads a list of mappings at `path`, each through `read`.
pub fn list<T>(
    path: &str,
    value: &Value,
    errors: &mut Vec<String>,
    mut read: impl FnMut(&mut Fields<'_>) -> Option<T>,
) -> Vec<T> {
    let Value::Sequence(items) = value else {
        errors.push(format!("`{path}` is {}; expected a list", kind(value)));
        return Vec::new();
    };
    items
        .iter()
        .enumerate()
        .filter_map(|(n, item)| {
            let mut fields = Fields::new(format!("{path}[{n}]"), item, errors);
            let read = read(&mut fields);
            fields.finish();
            read
        })
        .collect()
}
