//! What a message or an alert for a person contains, whatever its receiver: the finding, what happens to traffic, what to do, and
//! where to read on.
//!
//! The texts contain names of pods and devices, which are untrusted: they are [cleaned](clean), and the format of the receiver
//! escapes markup.

mod anomalies;
mod anomaly_group;
mod conflict_group;
mod conflicts;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, time::Duration};

use detector_engine::{AnomalyCause, AnomalyKind, ConflictKind};
use detector_event::{
    AnyEvent, Change, SubjectId, SubjectKind, WallTime, clean, guidance::Severity,
};

use self::{
    anomalies::AnomalyFacts, anomaly_group::AnomalyGroup, conflict_group::ConflictGroup,
    conflicts::ConflictFacts,
};
use crate::sinks::message::Message;

/// Lines of a message about several groups of findings; what is beyond is counted.
const LINES: usize = 10;

/// A message to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sinks) struct Notice {
    pub(in crate::sinks) change: Change,
    pub(in crate::sinks) severity: Severity,
    pub(in crate::sinks) kind: SubjectKind,
    /// What it is: `IP conflict`.
    pub(in crate::sinks) title: &'static str,
    /// What was found, with the pods' names.
    pub(in crate::sinks) finding: String,
    /// What happens to traffic; empty once it is over.
    pub(in crate::sinks) effect: String,
    /// Why it is there; empty if that is not known, and once it is over.
    pub(in crate::sinks) cause: String,
    /// What to do; empty once it is over.
    pub(in crate::sinks) next_step: String,
    /// What changed since the message before.
    pub(in crate::sinks) changed: Vec<&'static str>,
    /// Further addresses or conflicts, one line each.
    pub(in crate::sinks) list: Vec<String>,
    /// Kind, confidence and time.
    pub(in crate::sinks) context: String,
    pub(in crate::sinks) node: String,
    /// What it is about, if that is one conflict or anomaly.
    pub(in crate::sinks) subject: Option<SubjectId>,
}

impl Notice {
    /// The notice for a message. Conflicts of one kind with the same claimants are one group, and so are anomalies of one kind;
    /// several groups have a line each, the most severe first, then in the order of their addresses.
    pub(in crate::sinks) fn new(message: &Message) -> Self {
        let mut groups: Vec<(GroupKey, Vec<&AnyEvent>)> = Vec::new();
        let mut events: Vec<_> = message.events.iter().collect();
        events.sort_by_key(|event| event.address());
        for event in events {
            let key = GroupKey::of(event);
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, events)) => events.push(event),
                None => groups.push((key, vec![event])),
            }
        }
        let notices = groups.iter().filter_map(|(_, events)| {
            let of = Facts::new(message, events);
            let confidence = events.iter().map(|event| match event {
                AnyEvent::Conflict(event) => Some(event.data.confidence),
                AnyEvent::Anomaly(_) => None,
            });
            let confidence = confidence.max();
            Some((confidence, of.count, of_group(events, &of)?))
        });
        let mut notices: Vec<_> = notices.collect();
        notices.sort_by_key(|(confidence, count, notice)| {
            Reverse((notice.severity, *confidence, *count))
        });
        let notices: Vec<_> = notices
            .into_iter()
            .map(|(_, count, notice)| (count, notice))
            .collect();
        let notice = match &notices[..] {
            [(_, notice)] => notice.clone(),
            _ => of_groups(&notices, message),
        };
        notice.cleaned()
    }

    /// The notice for a single event.
    pub(in crate::sinks) fn of_event(event: &AnyEvent) -> Self {
        Self::new(&Message::of_event(event.clone()))
    }

    fn cleaned(self) -> Self {
        let clean = |text: String| clean(&text).into_owned();
        Self {
            finding: clean(self.finding),
            effect: clean(self.effect),
            cause: clean(self.cause),
            next_step: clean(self.next_step),
            list: self.list.into_iter().map(clean).collect(),
            context: clean(self.context),
            node: clean(self.node),
            ..self
        }
    }

    /// `IP conflict detected`.
    pub(in crate::sinks) fn heading(&self) -> String {
        let word = match self.change {
            Change::Raised => "detected",
            Change::Updated => "updated",
            Change::Resolved => "resolved",
        };
        format!("{} {word}", self.title)
    }
}

/// What the findings of one group have in common.
#[derive(PartialEq, Eq)]
enum GroupKey {
    Conflicts {
        kind: ConflictKind,
        /// The claimants' devices.
        devices: Vec<String>,
    },
    Anomalies {
        kind: AnomalyKind,
        /// Of drift, which then is about two pods.
        is_owned_by_another: bool,
    },
}

impl GroupKey {
    fn of(event: &AnyEvent) -> Self {
        match event {
            AnyEvent::Conflict(event) => {
                let claimants = conflict_group::members(&event.data).into_iter();
                let mut devices: Vec<_> = claimants.map(|c| c.device.clone()).collect();
                devices.sort();
                Self::Conflicts {
                    kind: event.data.kind,
                    devices,
                }
            }
            AnyEvent::Anomaly(event) => Self::Anomalies {
                kind: event.data.kind,
                is_owned_by_another: event.data.cause == AnomalyCause::OwnedByAnother,
            },
        }
    }
}

/// The notice for findings that have the same key; `None` without any.
fn of_group(events: &[&AnyEvent], of: &Facts<'_>) -> Option<Notice> {
    let conflicts = events.iter().filter_map(|event| match event {
        AnyEvent::Conflict(event) => Some(&event.data),
        AnyEvent::Anomaly(_) => None,
    });
    let anomalies = events.iter().filter_map(|event| match event {
        AnyEvent::Conflict(_) => None,
        AnyEvent::Anomaly(event) => Some(&event.data),
    });
    if let Some(group) = &ConflictGroup::of(conflicts) {
        return Some(ConflictFacts { group, of }.notice());
    }
    let group = &AnomalyGroup::of(anomalies)?;
    Some(AnomalyFacts { group, of }.notice())
}

/// The notice for several groups, each with its number of findings.
fn of_groups(groups: &[(usize, Notice)], message: &Message) -> Notice {
    let events: Vec<_> = message.events.iter().collect();
    let of = Facts::new(message, &events);
    let (count, node) = (of.count, &of.place);
    let has_only_conflicts = events.iter().all(|e| matches!(e, AnyEvent::Conflict(_)));
    let (title, finding) = match (has_only_conflicts, of.is_resolved()) {
        (true, false) => (
            "IP conflicts",
            format!("{count} addresses are in conflict on {node}"),
        ),
        (true, true) => (
            "IP conflicts",
            format!("{count} addresses are no longer in conflict on {node}"),
        ),
        (false, false) => ("IP address findings", format!("{count} findings on {node}")),
        (false, true) => (
            "IP address findings",
            format!("{count} findings on {node} are over"),
        ),
    };
    let lines = groups.iter().map(|(_, notice)| notice.finding.clone());
    let mut list: Vec<_> = lines.take(LINES).collect();
    let omitted: usize = groups.iter().skip(LINES).map(|(count, _)| count).sum();
    if omitted > 0 {
        list.push(format!("and {omitted} more, see the node's status page"));
    }
    let first = groups.first().map(|(_, notice)| notice);
    let cause = first.map_or("", |first| &first.cause);
    let is_common = groups.iter().all(|(_, notice)| notice.cause == cause);
    // The repair of a conflict names its pods, whatever else has the cause.
    let is_anomaly = first.is_some_and(|first| matches!(first.kind, SubjectKind::Anomaly(_)));
    let is_of_all = is_common && !cause.is_empty() && is_anomaly;
    let step = first.map(|first| first.next_step.as_str());
    let step = step.filter(|step| !step.is_empty());
    Notice {
        change: of.change,
        severity: first.map_or(Severity::Info, |first| first.severity),
        kind: first.map_or(SubjectKind::Conflict(ConflictKind::Duplicate), |first| {
            first.kind
        }),
        title,
        finding,
        effect: String::new(),
        cause: if is_common { cause } else { "" }.to_owned(),
        next_step: step.map_or_else(String::new, |step| match is_of_all {
            true => step.to_owned(),
            false => format!("Begin with the first one: {step}"),
        }),
        changed: of.changed.clone(),
        list,
        context: of.since(),
        node: of.node.to_owned(),
        subject: of.subject,
    }
}

/// What is known of the findings of a message, or of one group in it, as a whole.
struct Facts<'m> {
    change: Change,
    node: &'m str,
    cluster: Option<&'m str>,
    /// The node, with its cluster if that has a name.
    place: String,
    /// How many findings they are.
    count: usize,
    since: WallTime,
    lasted: Duration,
    /// What changed since the message before.
    changed: Vec<&'static str>,
    /// The finding, if it is one.
    subject: Option<SubjectId>,
}

impl<'m> Facts<'m> {
    fn new(message: &Message, events: &[&'m AnyEvent]) -> Self {
        let since = events.iter().map(|event| event.raised_at()).min();
        let since = since.unwrap_or_else(WallTime::now);
        let until = events.iter().filter_map(|event| event.resolved_at()).max();
        let mut changed = Vec::new();
        if message.change == Change::Updated {
            let fields = events.iter().filter_map(|event| match event {
                AnyEvent::Conflict(event) => Some(&event.data.changed),
                AnyEvent::Anomaly(_) => None,
            });
            changed.extend(fields.flatten().filter_map(|field| field.for_people()));
            changed.sort_unstable();
            changed.dedup();
        }
        let node = events.first().map_or("", |event| event.node());
        let cluster = events.first().and_then(|event| event.cluster());
        let place = match cluster {
            Some(cluster) => format!("{node} (cluster {cluster})"),
            None => node.to_owned(),
        };
        let subject = match events {
            [event] => Some(event.subject_id()),
            _ => None,
        };
        Self {
            change: message.change,
            node,
            cluster,
            place,
            count: events.len(),
            since,
            lasted: until.unwrap_or(since).since(since),
            changed,
            subject,
        }
    }

    fn is_resolved(&self) -> bool {
        self.change == Change::Resolved
    }

    /// When they began, for people.
    fn since(&self) -> String {
        format!("since {}", self.since.to_seconds_text())
    }

    /// How long they lasted, in whole seconds.
    fn lasted(&self) -> String {
        let lasted = Duration::from_secs(self.lasted.as_secs().max(1));
        let lasted = humantime::format_duration(lasted);
        match self.count {
            1 => lasted.to_string(),
            _ => format!("up to {lasted}"),
        }
    }
}
