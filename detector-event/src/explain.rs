//! Why conflicts and anomalies are there, as text for a terminal: one block for each cause, however many findings it has.
//!
//! All texts of a diagnosis may contain names that pods choose: they are shown [cleaned](mod@crate::clean).

use std::{fmt::Write as _, net::IpAddr};

use detector_engine::AnomalyKind;

use crate::{
    Affected, AnomalyData, ConflictData, DiagnosisData, Guidance, SubjectId, TimelineEntry,
    WallTime, clean, counted,
    group::{Key, fold},
    row::duration_text,
    summary::{self, anomaly_line, anomaly_title, conflict_line, enumeration, scoped_address},
    text::{
        Claimants, Colour, Style, aligned, anomaly_heading, cause_line, conflict_table,
        guidance_lines, seconds_text,
    },
};

/// Findings named in a block; the others are counted.
pub const NAMED: usize = 10;
/// Facts with one reason that are named.
const NAMED_FACTS: usize = 4;

/// Findings with the same cause.
#[derive(Debug, Default)]
pub struct Incident<'a> {
    conflicts: Vec<&'a ConflictData>,
    anomalies: Vec<&'a AnomalyData>,
}

/// The incidents that these findings belong to: address sweeps first, then in the order of the findings, and last those without an
/// explanation. Each has its findings in the order of their addresses.
#[must_use]
pub fn incidents<'a>(
    conflicts: impl IntoIterator<Item = &'a ConflictData>,
    anomalies: impl IntoIterator<Item = &'a AnomalyData>,
) -> Vec<Incident<'a>> {
    enum Finding<'a> {
        Conflict(&'a ConflictData),
        Anomaly(&'a AnomalyData),
    }
    let conflicts = conflicts.into_iter();
    let conflicts = conflicts.map(|c| (Key::of_conflict(c), Finding::Conflict(c)));
    let anomalies = anomalies.into_iter();
    let anomalies = anomalies.map(|a| (Key::of_anomaly(a), Finding::Anomaly(a)));
    let groups = fold(conflicts.chain(anomalies)).into_iter();
    let mut incidents: Vec<_> = groups
        .map(|group| {
            let mut incident = Incident::default();
            for finding in group {
                match finding {
                    Finding::Conflict(conflict) => incident.conflicts.push(conflict),
                    Finding::Anomaly(anomaly) => incident.anomalies.push(anomaly),
                }
            }
            incident.conflicts.sort_by_key(|conflict| conflict.address);
            incident.anomalies.sort_by_key(|anomaly| anomaly.address);
            incident
        })
        .collect();
    incidents.sort_by_key(|incident| {
        let is_unexplained = incident.diagnosis().is_none();
        (incident.sweep().is_none(), is_unexplained)
    });
    incidents
}

impl Incident<'_> {
    /// The diagnosis of its first finding.
    #[must_use]
    pub fn diagnosis(&self) -> Option<&DiagnosisData> {
        let conflict = self.conflicts.first().map(|c| c.diagnosis.as_deref());
        let anomaly = || self.anomalies.first().map(|a| a.diagnosis.as_deref());
        conflict.or_else(anomaly).flatten()
    }

    /// The finding whose timeline is shown.
    #[must_use]
    pub fn first(&self) -> Option<SubjectId> {
        let conflict = self.conflicts.first().map(|c| c.conflict_id.into());
        conflict.or_else(|| self.anomalies.first().map(|a| a.anomaly_id.into()))
    }

    /// What to do about it: about the sweep, or about its first finding.
    fn guidance(&self) -> Option<&Guidance> {
        let sweep = self.sweep().map(|sweep| sweep.guidance.as_ref());
        let conflict = || self.conflicts.first().map(|c| c.guidance.as_ref());
        let anomaly = || self.anomalies.first().map(|a| a.guidance.as_ref());
        sweep.or_else(conflict).or_else(anomaly).flatten()
    }

    fn timeline(&self) -> &[TimelineEntry] {
        let conflict = self.conflicts.first().map(|c| c.timeline.as_deref());
        let anomaly = || self.anomalies.first().map(|a| a.timeline.as_deref());
        conflict.or_else(anomaly).flatten().unwrap_or_default()
    }

    /// Appends the incident to `out` as a block of text. That of several addresses has a timeline only if one of them was asked for:
    /// each address has its own.
    pub fn append_to(&self, out: &mut String, asked_for: Option<IpAddr>, colour: Colour) {
        // Writing to a string does not fail, here and below.
        match self.diagnosis() {
            Some(diagnosis) => {
                let since = match diagnosis.since {
                    Some(since) => format!(", since {}", since.to_seconds_text()),
                    None => String::new(),
                };
                let heading = colour.paint(Style::Alarm, diagnosis.cause.name());
                let _ = match diagnosis.has_cause() {
                    true => writeln!(out, "{heading}  {}{since}", diagnosis.confidence.name()),
                    false => writeln!(out, "{heading}"),
                };
                let _ = writeln!(out, "  {}", clean(&diagnosis.summary));
                self.append_findings(out);
                self.append_details(out, diagnosis, asked_for);
            }
            None => {
                let heading = colour.paint(Style::Alarm, "not explained");
                let _ = writeln!(out, "{heading}  the agent has no diagnosis of these");
                self.append_findings(out);
            }
        }
    }

    fn append_findings(&self, out: &mut String) {
        match (&self.conflicts[..], &self.anomalies[..]) {
            ([conflict], []) => {
                let _ = writeln!(out, "  finding: {}", clean(&conflict_line(conflict)));
                return;
            }
            ([], [anomaly]) => {
                let title = anomaly_title(anomaly.kind);
                let _ = writeln!(out, "  finding: {title}: {}", clean(&anomaly_line(anomaly)));
                return;
            }
            _ => {}
        }
        if let Some(sweep) = self.sweep() {
            let _ = writeln!(out, "  offender: {}", clean(&anomaly_line(sweep)));
        }
        for line in self.addresses_by_kind(NAMED) {
            let _ = writeln!(out, "  {line}");
        }
    }

    /// The address sweep that it is.
    #[must_use]
    pub fn sweep(&self) -> Option<&AnomalyData> {
        let mut anomalies = self.anomalies.iter().copied();
        anomalies.find(|anomaly| anomaly.kind == AnomalyKind::AddressSweep)
    }

    /// Appends what a list of findings has of it: one finding with its claimants, several with their first `limit` addresses.
    pub fn append_listed(
        &self,
        out: &mut String,
        limit: usize,
        now: Option<WallTime>,
        colour: Colour,
    ) {
        match (&self.conflicts[..], &self.anomalies[..]) {
            ([conflict], []) => conflict_table(out, conflict, Claimants::Plain, colour),
            ([], [anomaly]) => anomaly_heading(out, anomaly, colour),
            _ => self.append_several(out, limit, colour),
        }
        // One look knows no times.
        let raised_at = self.conflicts.iter().map(|c| c.raised_at);
        let raised_at = raised_at.chain(self.anomalies.iter().map(|a| a.raised_at));
        if let (Some(first), Some(now)) = (raised_at.min(), now) {
            let lasted = duration_text(first, now);
            let _ = writeln!(out, "  since: {} ({lasted})", first.to_seconds_text());
        }
        cause_line(out, self.diagnosis());
        guidance_lines(out, self.guidance());
    }

    fn append_several(&self, out: &mut String, limit: usize, colour: Colour) {
        if let Some(sweep) = self.sweep() {
            anomaly_heading(out, sweep, colour);
        }
        let mut indent = if self.sweep().is_some() { "  " } else { "" };
        for line in self.addresses_by_kind(limit) {
            let _ = writeln!(out, "{indent}{line}");
            indent = "  ";
        }
        let mut claimants: Vec<_> = self
            .conflicts
            .iter()
            .map(|c| summary::claimants(c))
            .collect();
        claimants.dedup();
        if let ([claimants], None) = (&claimants[..], self.sweep()) {
            let _ = writeln!(out, "  claimants: {}", clean(claimants));
        }
    }

    /// A line for each kind: `IPAM drift, 218 addresses: 10.0.0.1, 10.0.0.2 and 216 more`. An address
    /// sweep has none.
    fn addresses_by_kind(&self, limit: usize) -> Vec<String> {
        let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
        let title = match self.sweep() {
            Some(_) => "victims",
            None => "IP conflict",
        };
        let conflicts = self.conflicts.iter();
        let conflicts = conflicts.map(|c| (title.to_owned(), scoped_address(c)));
        let anomalies = self.anomalies.iter();
        let anomalies = anomalies.filter(|a| a.kind != AnomalyKind::AddressSweep);
        let anomalies =
            anomalies.map(|a| (anomaly_title(a.kind).to_owned(), a.address.to_string()));
        for (kind, address) in conflicts.chain(anomalies) {
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, addresses)) => addresses.push(address),
                None => kinds.push((kind, vec![address])),
            }
        }
        let lines = kinds.into_iter().map(|(kind, mut addresses)| {
            let found = counted(addresses.len(), "address", "addresses");
            let more = addresses.len().saturating_sub(limit);
            addresses.truncate(limit);
            let named = enumeration(addresses, more).unwrap_or_default();
            format!("{kind}, {found}: {}", clean(&named))
        });
        lines.collect()
    }

    fn append_details(
        &self,
        out: &mut String,
        diagnosis: &DiagnosisData,
        asked_for: Option<IpAddr>,
    ) {
        let mut affected = self.affected();
        affected.retain(|affected| affected.addresses > 1);
        let most = affected
            .into_iter()
            .max_by_key(|affected| affected.addresses);
        if let Some(Affected { addresses, pods }) = most {
            let addresses = counted(addresses, "address", "addresses");
            let pods = counted(pods, "pod", "pods");
            let _ = writeln!(out, "  affected: {addresses}, {pods}");
        }
        append_rows(
            out,
            "evidence",
            diagnosis.evidence.iter().map(|evidence| {
                [
                    seconds_text_or_none(evidence.at),
                    evidence.fact.clone(),
                    evidence.source.clone(),
                ]
            }),
        );
        match self.first_of_several_addresses() {
            Some(address) if asked_for.is_none() && !self.timeline().is_empty() => {
                let _ = writeln!(out, "  timeline: explain {address}");
            }
            _ => append_rows(
                out,
                "timeline",
                self.timeline().iter().map(|entry| {
                    [
                        seconds_text(Some(entry.at)),
                        entry.what.clone(),
                        entry.source.clone(),
                    ]
                }),
            ),
        }
        let _ = match self.guidance().filter(|_| !diagnosis.has_cause()) {
            Some(guidance) => writeln!(out, "  next: {}", clean(&guidance.next_step)),
            None => writeln!(out, "  repair: {}", clean(&diagnosis.repair)),
        };
        if !diagnosis.ruled_out.is_empty() {
            let names: Vec<_> = diagnosis
                .ruled_out
                .iter()
                .map(|cause| cause.name())
                .collect();
            let _ = writeln!(out, "  ruled out: {}", names.join(", "));
        }
        append_not_checked(out, diagnosis);
    }

    /// The address of the first finding; `None` if all are about the same one.
    fn first_of_several_addresses(&self) -> Option<IpAddr> {
        let conflicts = self.conflicts.iter().map(|c| c.address);
        let anomalies = self.anomalies.iter().map(|a| a.address);
        let mut all = conflicts.chain(anomalies);
        let first = all.next()?;
        all.any(|other| other != first).then_some(first)
    }

    fn affected(&self) -> Vec<Affected> {
        let conflicts = self.conflicts.iter().map(|c| &c.diagnosis);
        let anomalies = self.anomalies.iter().map(|a| &a.diagnosis);
        let diagnoses = conflicts.chain(anomalies).flatten();
        diagnoses.map(|diagnosis| diagnosis.affected).collect()
    }
}

fn seconds_text_or_none(time: Option<WallTime>) -> String {
    time.map_or_else(|| "-".to_owned(), WallTime::to_seconds_text)
}

fn append_rows(out: &mut String, title: &str, rows: impl Iterator<Item = [String; 3]>) {
    let rows: Vec<Vec<String>> = rows
        .map(|[at, what, source]| {
            let what = format!("{} ({})", clean(&what), clean(&source));
            vec![at, what]
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "  {title}:");
    for line in aligned(&rows) {
        let _ = writeln!(out, "    {line}");
    }
}

/// One line for each reason: most facts that were not checked have it in common.
fn append_not_checked(out: &mut String, diagnosis: &DiagnosisData) {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for fact in &diagnosis.not_checked {
        match reasons.iter_mut().find(|(known, _)| *known == fact.because) {
            Some((_, facts)) => facts.push(fact.what.clone()),
            None => reasons.push((&fact.because, vec![fact.what.clone()])),
        }
    }
    if !reasons.is_empty() {
        let _ = writeln!(out, "  not checked:");
    }
    for (because, mut facts) in reasons {
        let more = facts.len().saturating_sub(NAMED_FACTS);
        facts.truncate(NAMED_FACTS);
        let facts = enumeration(facts, more).unwrap_or_default();
        let _ = writeln!(out, "    {}: {}", clean(&facts), clean(because));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use detector_engine::diagnosis::{Cause, CauseConfidence};

    use super::*;
    use crate::{DiagnosisEvidence, NotChecked, samples};

    fn wiped(addresses: usize) -> DiagnosisData {
        let not_checked = |what: &str| NotChecked {
            what: what.to_owned(),
            because: "it is not collected".to_owned(),
        };
        DiagnosisData {
            cause: Cause::IpamStateWiped,
            confidence: CauseConfidence::Proven,
            since: Some(samples::time()),
            summary: "The reservations were deleted.".to_owned(),
            evidence: vec![DiagnosisEvidence {
                fact: "the directory was created".to_owned(),
                source: "file:/run/cni".to_owned(),
                at: Some(samples::time()),
            }],
            affected: Affected {
                addresses,
                pods: addresses,
            },
            repair: "Recreate the pods.".to_owned(),
            ruled_out: vec![Cause::NotFromIpam],
            not_checked: vec![not_checked("the route"), not_checked("the sysctls")],
        }
    }

    fn conflict(address: &str, diagnosis: Option<DiagnosisData>) -> ConflictData {
        ConflictData {
            diagnosis: diagnosis.map(Arc::new),
            ..samples::raised(address).data
        }
    }

    fn text(conflicts: &[ConflictData], anomalies: &[AnomalyData]) -> String {
        let mut text = String::new();
        for incident in incidents(conflicts, anomalies) {
            incident.append_to(&mut text, None, Colour::Off);
        }
        text
    }

    #[test]
    fn one_conflict_is_a_block_with_all_that_is_known() {
        let mut conflict = conflict("10.0.0.1", Some(wiped(1)));
        conflict.timeline = Some(Arc::from([TimelineEntry {
            at: samples::time(),
            what: "sandbox created".to_owned(),
            source: "cri".to_owned(),
        }]));
        assert_eq!(
            text(&[conflict], &[]),
            "ipam_state_wiped  proven, since 2026-11-21 01:02:03Z\n\
             \x20 The reservations were deleted.\n\
             \x20 finding: 10.0.0.1 is claimed by default/a (veth-a) and default/b (veth-b) on node-1; traffic goes to veth-a\n\
             \x20 evidence:\n\
             \x20   2026-11-21 01:02:03Z  the directory was created (file:/run/cni)\n\
             \x20 timeline:\n\
             \x20   2026-11-21 01:02:03Z  sandbox created (cri)\n\
             \x20 repair: Recreate the pods.\n\
             \x20 ruled out: not_from_ipam\n\
             \x20 not checked:\n\
             \x20   the route and the sysctls: it is not collected\n"
        );
    }

    #[test]
    fn wipe_of_200_pods_fits_on_one_screen() {
        let address = |n: usize| format!("10.0.0.{n}");
        let mut conflicts: Vec<_> = (1..=20)
            .map(|n| conflict(&address(n), Some(wiped(180 + n))))
            .collect();
        // As many facts as a wipe with a real host-local has.
        if let Some(first) = &mut conflicts[0].diagnosis {
            let first = Arc::make_mut(first);
            first.evidence = vec![first.evidence[0].clone(); 6];
        }
        let entry = TimelineEntry {
            at: samples::time(),
            what: "sandbox created".to_owned(),
            source: "cri".to_owned(),
        };
        conflicts[0].timeline = Some(vec![entry; 13].into());
        let drifts: Vec<_> = (21..=200)
            .map(|n| AnomalyData {
                diagnosis: Some(Arc::new(wiped(200))),
                ..samples::drift(&address(n)).data
            })
            .collect();
        let text = text(&conflicts, &drifts);
        assert!(text.lines().count() < 24, "{text}");
        assert!(
            text.contains("  affected: 200 addresses, 200 pods\n"),
            "{text}"
        );
        assert!(
            text.contains("  IP conflict, 20 addresses: 10.0.0.1, "),
            "{text}"
        );
        assert!(
            text.contains("  IPAM drift, 180 addresses: 10.0.0.21, "),
            "{text}"
        );
        assert!(text.contains(" and 170 more\n"), "{text}");
        assert!(text.contains("\n  timeline: explain 10.0.0.1\n"), "{text}");
    }

    #[test]
    fn unknown_causes_of_different_pods_are_different_incidents() {
        let unknown = || DiagnosisData {
            cause: Cause::Unknown,
            since: None,
            ..wiped(1)
        };
        let mut conflicts: Vec<_> = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
            .map(|address| conflict(address, Some(unknown())))
            .into();
        conflicts[2].claimants = vec![samples::claimant("veth-c", Some("c"))];
        conflicts.insert(0, conflict("10.0.0.4", None));
        let found = incidents(&conflicts, &[]);
        let found: Vec<_> = found.iter().map(|i| i.conflicts.len()).collect();
        assert_eq!(found, [2, 1, 1]);
        let text = text(&conflicts, &[]);
        let (_, last) = text.split_once("not explained").unwrap_or_default();
        assert!(last.contains("10.0.0.4"), "{text}");
    }

    #[test]
    fn sweep_is_first_and_has_its_victims_folded() {
        let sweep = samples::sweep("10.0.0.1").data;
        let victim = |n: usize| ConflictData {
            sweep: Some(sweep.anomaly_id),
            ..conflict(&format!("10.0.0.{n}"), None)
        };
        let mut conflicts: Vec<_> = (1..=40).map(victim).collect();
        conflicts.insert(0, conflict("10.0.1.1", Some(wiped(1))));
        let drift = samples::drift("10.0.2.1").data;
        let anomalies = [drift, sweep];
        let found = incidents(&conflicts, &anomalies);
        assert_eq!(found.len(), 3);
        let mut text = String::new();
        found[0].append_listed(&mut text, 2, None, Colour::Off);
        assert_eq!(
            text,
            "address_sweep  critical\n\
             \x20 the pod on veth-a claims 4 addresses of others (pod default/a)\n\
             \x20 victims, 40 addresses: 10.0.0.1, 10.0.0.2 and 38 more\n\
             \x20 effect: The node's traffic for these addresses still goes to the victims.\n\
             \x20 next: Check whether the pod default/a is meant to answer for these addresses (a VIP, a proxy); otherwise cut it off or delete it.\n\
             \x20 runbook: https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/runbooks/PodAddressSweep.md\n"
        );
    }

    #[test]
    fn conflicts_of_the_same_claimants_are_one_block() {
        let conflicts: Vec<_> = (1..=200)
            .map(|n| conflict(&format!("10.0.0.{n}"), None))
            .collect();
        let found = incidents(&conflicts, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        let mut text = String::new();
        found[0].append_listed(&mut text, NAMED, Some(samples::time()), Colour::Off);
        assert!(
            text.starts_with("IP conflict, 200 addresses: 10.0.0.1, "),
            "{text}"
        );
        let claimants = "\n  claimants: default/a (veth-a) and default/b (veth-b)\n  since: 2026-11-21 01:02:03Z (0 s)\n";
        assert!(text.contains(claimants), "{text}");
    }

    #[test]
    fn texts_cannot_steer_the_terminal() {
        let hostile = "web\x1b[2J\n\u{202e}".to_owned();
        let mut diagnosis = wiped(1);
        diagnosis.summary.clone_from(&hostile);
        diagnosis.repair.clone_from(&hostile);
        diagnosis.evidence[0].fact.clone_from(&hostile);
        diagnosis.not_checked[0].what.clone_from(&hostile);
        diagnosis.not_checked[0].because.clone_from(&hostile);
        let lines = text(&[conflict("10.0.0.1", Some(wiped(1)))], &[])
            .lines()
            .count();
        let text = text(&[conflict("10.0.0.1", Some(diagnosis))], &[]);
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        assert!(!text.contains('\u{202e}'), "{text:?}");
        // One more reason.
        assert_eq!(text.lines().count(), lines + 1, "{text}");
    }
}
