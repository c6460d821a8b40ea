//! The objects of the server and their history.

use std::collections::BTreeMap;

use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};

/// What a request names: a resource, all of it or that of a namespace, or one object.
#[derive(Debug)]
pub(super) struct Target<'p> {
    /// The path of the whole resource.
    resource: String,
    namespace: Option<&'p str>,
    name: Option<&'p str>,
}

impl<'p> Target<'p> {
    /// What a path names; `None` for anything else, such as a subresource.
    pub(super) fn parse(path: &'p str) -> Option<Self> {
        let parts: Vec<_> = path.split('/').skip(1).collect();
        let version = if path.starts_with("/api/") { 2 } else { 3 };
        let (version, rest) = parts.split_at_checked(version)?;
        let (namespace, plural, name) = match *rest {
            [plural] => (None, plural, None),
            [plural, name] => (None, plural, Some(name)),
            ["namespaces", namespace, plural] => (Some(namespace), plural, None),
            ["namespaces", namespace, plural, name] => (Some(namespace), plural, Some(name)),
            _ => return None,
        };
        Some(Self {
            resource: format!("/{}/{plural}", version.join("/")),
            namespace,
            name,
        })
    }

    fn key(&self, name: &str) -> String {
        key(self.namespace.unwrap_or_default(), name)
    }
}

/// By which a resource's objects are sorted.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// What a list or a watch selects.
#[derive(Debug)]
pub(super) struct Selection {
    resource: String,
    namespace: Option<String>,
    field: Option<(String, String)>,
    label: Option<(String, Label)>,
}

#[derive(Debug)]
enum Label {
    Is(String),
    Exists,
    IsAbsent,
}

impl Selection {
    pub(super) fn of(target: &Target<'_>, query: &BTreeMap<String, String>) -> Self {
        let field = query.get("fieldSelector").and_then(|s| s.split_once('='));
        let label = query.get("labelSelector").map(|selector| {
            match (selector.split_once('='), selector.strip_prefix('!')) {
                (Some((name, value)), _) => (name.to_owned(), Label::Is(value.to_owned())),
                (_, Some(name)) => (name.to_owned(), Label::IsAbsent),
                _ => (selector.clone(), Label::Exists),
            }
        });
        Self {
            resource: target.resource.clone(),
            namespace: target.namespace.map(str::to_owned),
            field: field
                .map(|(path, value)| (format!("/{}", path.replace('.', "/")), value.into())),
            label,
        }
    }

    fn has(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let namespace = self.namespace.as_ref();
        let field = self.field.as_ref();
        namespace.is_none_or(|namespace| metadata["namespace"] == **namespace)
            && field.is_none_or(|(path, value)| object.pointer(path) == Some(&json!(value)))
            && (self.label.as_ref()).is_none_or(|(name, wanted)| match wanted {
                Label::Is(value) => metadata["labels"][name] == **value,
                Label::Exists => !metadata["labels"][name].is_null(),
                Label::IsAbsent => metadata["labels"][name].is_null(),
            })
    }

    /// The line about a change, if a watch with this selection shows it: an object that is no longer selected is deleted for it.
    pub(super) fn line(&self, change: &Change) -> Option<String> {
        if change.resource != self.resource {
            return None;
        }
        let before = change.before.as_ref().filter(|object| self.has(object));
        let after = change.after.as_ref().filter(|object| self.has(object));
        let (kind, mut object) = match (before, after) {
            (None, Some(after)) => ("ADDED", after.clone()),
            (Some(_), Some(after)) => ("MODIFIED", after.clone()),
            (Some(before), None) => ("DELETED", before.clone()),
            (None, None) if change.is_bookmark() => ("BOOKMARK", bookmark()),
            (None, None) => return None,
        };
        object["metadata"]["resourceVersion"] = change.version.to_string().into();
        Some(line(kind, &object))
    }
}

/// What a watch sends about an object.
pub(super) fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn bookmark() -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"creationTimestamp": null},
        "spec": {"containers": null}, "status": {}})
}

/// A change of an object; of none if watches are only told the version.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    resource: String,
    before: Option<Value>,
    after: Option<Value>,
}

impl Change {
    fn is_bookmark(&self) -> bool {
        self.before.is_none() && self.after.is_none()
    }
}

/// All objects by resource, and then by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// That of the last change.
    pub(super) version: u64,
    pub(super) history: Vec<Change>,
    resources: BTreeMap<String, BTreeMap<String, Value>>,
}

/// A status code and the body.
pub(super) type Answer = (StatusCode, Value);

impl Objects {
    /// Makes a resource exist.
    pub(super) fn install(&mut self, path: &str) {
        if let Some(target) = Target::parse(path) {
            self.resources.entry(target.resource).or_default();
        }
    }

    /// Makes a resource and its objects disappear.
    pub(super) fn uninstall(&mut self, path: &str) {
        if let Some(target) = Target::parse(path) {
            self.resources.remove(&target.resource);
        }
    }

    /// Creates or replaces an object of a resource, which exists from then on.
    pub(super) fn apply(&mut self, path: &str, object: Value) {
        if let Some(target) = Target::parse(path) {
            self.store(&target, object);
        }
    }

    /// Deletes an object; none is no error.
    pub(super) fn delete(&mut self, path: &str, namespace: &str, name: &str) {
        if let Some(target) = Target::parse(path) {
            self.remove(target.resource, &key(namespace, name));
        }
    }

    /// Sends the current version to every watch of a resource.
    pub(super) fn bookmark(&mut self, path: &str) {
        self.version += 1;
        self.record(path.to_owned(), None, None);
    }

    /// The objects of a resource, or of a namespace.
    pub(super) fn all(&self, path: &str) -> Vec<Value> {
        let Some(target) = Target::parse(path) else {
            return Vec::new();
        };
        let selection = Selection::of(&target, &BTreeMap::new());
        let objects = self.resources.get(&target.resource).into_iter();
        let objects = objects.flat_map(BTreeMap::values);
        objects.filter(|o| selection.has(o)).cloned().collect()
    }

    /// An object, if there is one.
    pub(super) fn get(&self, path: &str, name: &str) -> Option<Value> {
        let target = Target::parse(path)?;
        let objects = self.resources.get(&target.resource)?;
        objects.get(&target.key(name)).cloned()
    }

    /// Every state of every object of a resource, in order.
    pub(super) fn states(&self, resource: &str) -> Vec<Value> {
        let changes = self.history.iter().filter(|c| c.resource == resource);
        changes.filter_map(|change| change.after.clone()).collect()
    }

    /// Answers a request that reads objects or changes one.
    pub(super) fn answer(
        &mut self,
        method: &Method,
        target: &Target<'_>,
        query: &BTreeMap<String, String>,
        body: Value,
    ) -> Answer {
        let Some(objects) = self.resources.get(&target.resource) else {
            return failure(404, "NotFound", None);
        };
        let (Some(name), false) = (target.name, method == Method::POST) else {
            return match *method {
                Method::GET => (StatusCode::OK, self.list(target, query)),
                _ => self.create(target, body),
            };
        };
        let Some(known) = objects.get(&target.key(name)).cloned() else {
            return failure(404, "NotFound", Some(name));
        };
        let wanted = match *method {
            Method::DELETE => &body["preconditions"],
            _ => &body["metadata"],
        };
        let differs = |key| !wanted[key].is_null() && wanted[key] != known["metadata"][key];
        if *method != Method::GET && (differs("uid") || differs("resourceVersion")) {
            return failure(409, "Conflict", Some(name));
        }
        let answer = match *method {
            Method::PUT => self.store(target, body),
            Method::PATCH => {
                let mut patched = known;
                merge(&mut patched, body);
                self.store(target, patched)
            }
            Method::DELETE => {
                self.remove(target.resource.clone(), &target.key(name));
                json!({"kind": "Status", "status": "Success"})
            }
            _ => known,
        };
        (StatusCode::OK, answer)
    }

    fn create(&mut self, target: &Target<'_>, object: Value) -> Answer {
        let name = text(&object["metadata"]["name"]).to_owned();
        let objects = self.resources.get(&target.resource);
        if objects.is_some_and(|objects| objects.contains_key(&target.key(&name))) {
            return failure(409, "AlreadyExists", Some(&name));
        }
        (StatusCode::CREATED, self.store(target, object))
    }

    /// A list in pages, except from version 0: the watch cache has no pages.
    fn list(&self, target: &Target<'_>, query: &BTreeMap<String, String>) -> Value {
        let selection = Selection::of(target, query);
        let is_cached = query.get("resourceVersion").is_some_and(|v| v == "0");
        let limit = query.get("limit").filter(|_| !is_cached);
        let limit = limit.and_then(|limit| limit.parse().ok());
        let after = query.get("continue");
        let objects = self.resources.get(&target.resource).into_iter().flatten();
        let mut items: Vec<_> = objects
            .filter(|(key, object)| selection.has(object) && after.is_none_or(|a| *key > a))
            .collect();
        let all = items.len();
        items.truncate(limit.unwrap_or(usize::MAX));
        let next = items.last().filter(|_| items.len() < all);
        let next = next.map_or("", |(key, _)| key.as_str());
        let values: Vec<_> = items.iter().map(|(_, object)| object).collect();
        json!({"kind": "List", "apiVersion": "v1", "items": values,
            "metadata": {"resourceVersion": self.version.to_string(), "continue": next}})
    }

    /// Stores an object with the next version.
    fn store(&mut self, target: &Target<'_>, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        if let Some(namespace) = target.namespace {
            metadata["namespace"] = namespace.into();
        }
        let key = key(text(&metadata["namespace"]), text(&metadata["name"]));
        let objects = self.resources.entry(target.resource.clone()).or_default();
        let before = objects.get(&key).cloned();
        metadata["resourceVersion"] = self.version.to_string().into();
        if metadata["uid"].is_null() {
            let new = || format!("uid-{}", self.version).into();
            let known = before.as_ref();
            metadata["uid"] = known.map_or_else(new, |known| known["metadata"]["uid"].clone());
        }
        objects.insert(key, object.clone());
        self.record(target.resource.clone(), before, Some(object.clone()));
        object
    }

    fn remove(&mut self, resource: String, key: &str) {
        self.version += 1;
        let objects = self.resources.get_mut(&resource);
        if let Some(gone) = objects.and_then(|objects| objects.remove(key)) {
            self.record(resource, Some(gone), None);
        }
    }

    fn record(&mut self, resource: String, before: Option<Value>, after: Option<Value>) {
        self.history.push(Change {
            version: self.version,
            resource,
            before,
            after,
        });
    }
}

/// Applies a merge patch (RFC 7386).
fn merge(value: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *value = patch;
        return;
    };
    if !value.is_object() {
        *value = Map::new().into();
    }
    for (name, field) in patch {
        match field {
            Value::Null => drop(value.as_object_mut().and_then(|v| v.remove(&name))),
            field => merge(&mut value[name], field),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A refusal; `name` is that of the object that it is about.
pub(super) fn failure(code: u16, reason: &str, name: Option<&str>) -> Answer {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code});
    if let Some(name) = name {
        status["details"] = json!({"name": name});
    }
    (StatusCode::from_u16(code).unwrap_or_default(), status)
}
