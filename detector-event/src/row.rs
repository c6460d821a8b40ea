//! A conflict or an anomaly as one row of a table, used by `watch` and `kubectl ipconflict`.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr};

use detector_engine::AnomalyKind;

use serde::{Deserialize, Serialize};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{
    AnomalyData, AnyEvent, ClaimantData, ConflictData, DiagnosisData, Guidance, SubjectId,
    SubjectKind, clean,
    group::{Key, fold},
    guidance::Severity,
    text,
};
use crate::WallTime;

/// Width between two names.
const SPACING: usize = 2;
/// A name is shortened to no less than this; further claimants are counted instead.
const SHORTEST_NAME: usize = 12;

/// A conflict or an anomaly.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Finding")
)]
pub enum Item {
    /// A conflict.
    Conflict(Box<ConflictData>),
    /// An anomaly.
    Anomaly(Box<AnomalyData>),
}

impl From<&AnyEvent> for Item {
    fn from(event: &AnyEvent) -> Self {
        match event {
            AnyEvent::Conflict(event) => Self::Conflict(Box::new(event.data.clone())),
            AnyEvent::Anomaly(event) => Self::Anomaly(Box::new(event.data.clone())),
        }
    }
}

impl Item {
    /// The id of the conflict or anomaly.
    #[must_use]
    pub fn id(&self) -> SubjectId {
        match self {
            Self::Conflict(conflict) => conflict.conflict_id.into(),
            Self::Anomaly(anomaly) => anomaly.anomaly_id.into(),
        }
    }

    /// How urgent it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::Conflict(conflict) => SubjectKind::Conflict(conflict.kind).severity(),
            Self::Anomaly(anomaly) => SubjectKind::Anomaly(anomaly.kind).severity(),
        }
    }

    fn key(&self) -> Key<'_> {
        match self {
            Self::Conflict(conflict) => Key::of_conflict(conflict),
            Self::Anomaly(anomaly) => Key::of_anomaly(anomaly),
        }
    }

    fn is_sweep(&self) -> bool {
        self.kind() == AnomalyKind::AddressSweep.name()
    }

    /// Whether it ended.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        match self {
            Self::Conflict(conflict) => conflict.is_resolved(),
            Self::Anomaly(anomaly) => anomaly.is_resolved(),
        }
    }

    /// The address, with its network and VLAN.
    #[must_use]
    pub fn address(&self) -> String {
        match self {
            Self::Conflict(conflict) => text::address(conflict),
            Self::Anomaly(anomaly) => anomaly.address.to_string(),
        }
    }

    /// The name of the node that reports it.
    #[must_use]
    pub fn node(&self) -> &str {
        match self {
            Self::Conflict(conflict) => &conflict.node,
            Self::Anomaly(anomaly) => &anomaly.node,
        }
    }

    /// The address alone.
    #[must_use]
    pub fn subject(&self) -> IpAddr {
        match self {
            Self::Conflict(conflict) => conflict.address,
            Self::Anomaly(anomaly) => anomaly.address,
        }
    }

    /// The next step and the runbook, while it is active.
    #[must_use]
    pub fn guidance(&self) -> Option<&Guidance> {
        match self {
            Self::Conflict(conflict) => conflict.guidance.as_ref(),
            Self::Anomaly(anomaly) => anomaly.guidance.as_ref(),
        }
    }

    /// The conflict or anomaly as events and the API show it.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        // Serialising these types cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Why it came about, if that is known.
    #[must_use]
    pub fn diagnosis(&self) -> Option<&DiagnosisData> {
        match self {
            Self::Conflict(conflict) => conflict.diagnosis.as_deref(),
            Self::Anomaly(anomaly) => anomaly.diagnosis.as_deref(),
        }
    }

    /// The name of its kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Conflict(conflict) => conflict.kind.name(),
            Self::Anomaly(anomaly) => anomaly.kind.name(),
        }
    }

    /// How certain a conflict is, or that it is none.
    #[must_use]
    pub fn confidence(&self) -> &'static str {
        match self {
            Self::Conflict(conflict) => conflict.confidence.name(),
            Self::Anomaly(_) => "anomaly",
        }
    }

    /// When it was raised, and when it was resolved.
    #[must_use]
    pub fn period(&self) -> (WallTime, Option<WallTime>) {
        match self {
            Self::Conflict(conflict) => (conflict.raised_at, conflict.resolved_at),
            Self::Anomaly(anomaly) => (anomaly.raised_at, anomaly.resolved_at),
        }
    }

    /// Whether every word (in lower case) occurs in it.
    #[must_use]
    pub fn matches(&self, words: &[&str]) -> bool {
        if words.is_empty() {
            return true;
        }
        let mut text = format!("{} {} {}", self.address(), self.kind(), self.confidence());
        let mut add = |part: &str| {
            text.push(' ');
            text.push_str(part);
        };
        match self {
            Self::Conflict(conflict) => {
                for claimant in &conflict.claimants {
                    add(&text::pod(claimant));
                    add(&text::device(conflict.scope, claimant));
                    add(&claimant.mac.map(|mac| mac.to_string()).unwrap_or_default());
                }
            }
            Self::Anomaly(anomaly) => {
                add(&text::pod_suffix(anomaly));
                add(anomaly.device.as_deref().unwrap_or_default());
                anomaly.addresses.iter().for_each(|a| add(&a.to_string()));
                add(&anomaly.detail);
            }
        }
        let text = text.to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

/// The items, those that a person reads as one together, the one that stands for them first: sweeps before everything else, then by
/// severity, and otherwise in the order of the items.
#[must_use]
pub fn groups<'a>(items: impl IntoIterator<Item = &'a Item>) -> Vec<Vec<&'a Item>> {
    let keyed = items.into_iter().map(|item| (item.key(), item));
    let mut groups = fold(keyed);
    for group in &mut groups {
        group.sort_by_key(|item| !item.is_sweep());
    }
    groups.sort_by_key(|group| {
        let first = group.first();
        let severity = first.map(|first| first.severity());
        (
            !first.is_some_and(|first| first.is_sweep()),
            Reverse(severity),
        )
    });
    groups
}

/// Groups of one item beyond this many of one kind have nothing in common but it. `page/groups.js` has the same bound.
const MAX_UNRELATED: usize = 20;

/// As [`groups`], and many items of one kind that belong to no other are one group as well, so that all of them fit on a screen.
#[must_use]
pub fn few_groups<'a>(items: impl IntoIterator<Item = &'a Item>) -> Vec<Vec<&'a Item>> {
    let groups = groups(items);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let single = |group: &[&'a Item]| match group {
        [one] => Some(one.kind()),
        _ => None,
    };
    for kind in groups.iter().filter_map(|group| single(group)) {
        *counts.entry(kind).or_default() += 1;
    }
    let mut first_of: HashMap<&str, usize> = HashMap::new();
    let mut few: Vec<Vec<&Item>> = Vec::new();
    for group in groups {
        let kind =
            single(&group).filter(|kind| counts.get(kind).is_some_and(|n| *n > MAX_UNRELATED));
        let known = kind.map(|kind| *first_of.entry(kind).or_insert(few.len()));
        match known.and_then(|index| few.get_mut(index)) {
            Some(unrelated) => unrelated.extend(group),
            None => few.push(group),
        }
    }
    few
}

/// The address of a group, with how many others it has: `10.0.0.1 +217`.
#[must_use]
pub fn group_address(group: &[&Item]) -> String {
    match group {
        [] => String::new(),
        [one] => one.address(),
        [first, rest @ ..] => format!("{} +{}", first.address(), rest.len()),
    }
}

/// Why a group is one, or the claimants of the first, in at most `width` columns.
#[must_use]
pub fn group_claimants(group: &[&Item], width: usize) -> String {
    let Some(first) = group.first() else {
        return String::new();
    };
    if group.iter().any(|item| item.key() != first.key()) {
        return shorten_end("different pods", width);
    }
    match first.diagnosis().and_then(DiagnosisData::cause_text) {
        Some(cause) if group.len() > 1 && !first.is_sweep() => shorten_end(&clean(&cause), width),
        _ => claimants(first, width),
    }
}

/// The claimants of a conflict, or the pod and what is wrong with it, in at most `width` columns.
#[must_use]
pub fn claimants(item: &Item, width: usize) -> String {
    match item {
        Item::Conflict(conflict) => conflict_claimants(conflict, width),
        Item::Anomaly(anomaly) => {
            let pod = anomaly.pod.as_ref();
            let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
            let who = pod.or_else(|| anomaly.device.clone());
            let who = who.map(|who| format!("{who}: ")).unwrap_or_default();
            shorten_end(&clean(&format!("{who}{}", anomaly.detail)), width)
        }
    }
}

fn role(conflict: &ConflictData, claimant: &ClaimantData) -> String {
    let role = conflict.mark(claimant);
    role.map(|role| format!(" ({role})")).unwrap_or_default()
}

/// Every name with its mark if they fit, else as many as fit shortened, the traffic's receiver always among them.
fn conflict_claimants(conflict: &ConflictData, width: usize) -> String {
    let mut shown: Vec<&ClaimantData> = conflict.claimants.iter().collect();
    let label = |claimant: &ClaimantData, width: usize| {
        let mark = if text::receives_traffic(conflict, claimant) {
            "→"
        } else {
            ""
        };
        let name = match &claimant.pod {
            Some(_) => text::pod(claimant),
            None => text::claimant(conflict.scope, claimant),
        };
        let role = role(conflict, claimant);
        let width = width.saturating_sub(role.len());
        format!("{mark}{}{role}", shorten_middle(&name, width))
    };
    let all: Vec<String> = shown.iter().map(|c| label(c, usize::MAX)).collect();
    let all = all.join("  ");
    if all.width() <= width {
        return all;
    }
    let total = shown.len() + conflict.claimants_omitted;
    let more = |shown: usize| match total - shown {
        0 => String::new(),
        more => format!("  +{more}"),
    };
    let receiver = shown
        .iter()
        .position(|c| text::receives_traffic(conflict, c));
    let fits = |count: &usize| {
        // One column for the mark.
        let roles = shown.iter().map(|c| role(conflict, c).len());
        let names = *count * (SHORTEST_NAME + SPACING) + 1 + roles.max().unwrap_or(0);
        names + more(*count).len() <= width + SPACING
    };
    let count = (1..=shown.len()).rev().find(fits).unwrap_or(1);
    if let Some(receiver) = receiver.filter(|receiver| *receiver >= count) {
        shown.swap(count - 1, receiver);
    }
    shown.truncate(count);
    let more = more(count);
    let room = width.saturating_sub(more.len() + (count - 1) * SPACING + 1);
    let labels: Vec<String> = shown.iter().map(|c| label(c, room / count)).collect();
    labels.join("  ") + &more
}

/// `text` in at most `width` columns, with an ellipsis for what its end loses.
#[must_use]
pub fn shorten_end(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = first_columns(text.chars(), width.saturating_sub(1));
    kept.push('…');
    kept
}

/// `text` in at most `width` columns; names of pods of one controller differ at their end, so the middle is left out.
fn shorten_middle(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let end: String = first_columns(text.chars().rev(), room / 2);
    let end: String = end.chars().rev().collect();
    first_columns(text.chars(), room - room / 2) + "…" + &end
}

/// As many characters as fit in `width` columns.
fn first_columns(text: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    text.take_while(|c| {
        used += c.width().unwrap_or(0);
        used <= width
    })
    .collect()
}

/// The time between the two, in its two largest units.
#[must_use]
pub fn duration_text(from: WallTime, to: WallTime) -> String {
    let seconds = to.since(from).as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}
