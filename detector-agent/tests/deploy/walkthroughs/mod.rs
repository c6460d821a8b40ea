//! What people receive in an incident by Prometheus and Alertmanager, in a chat and by a pager, recorded from a real run into
//! docs/walkthroughs.md, with the output of commands for runbooks.
//!
//! Each incident is on a node with an agent of its own, in a cluster of its own; one Prometheus and one Alertmanager follow all of
//! them, with the rules and the example of `deploy/prometheus` in seconds instead of minutes.

mod incidents;
mod messages;
mod monitoring;
mod site;

use std::{fmt::Write as _, thread};

use detector_testkit::{Netns, Receiver};

use self::{
    incidents::INCIDENTS,
    messages::{Message, Way},
    monitoring::Monitoring,
    site::Site,
};
use crate::tools::{assert_current, read, root};

/// The page, and the lines around its generated part.
const PAGE: &str = "docs/walkthroughs.md";
const GENERATED: [&str; 2] = [
    "<!-- Recorded by a test: DEPLOY_UPDATE=1 cargo xtask test -- --test deploy walkthroughs -->\n",
    "\n<!-- End of the recorded part -->\n",
];

/// The most messages that a person gets in one way about an incident, from its beginning to its end.
const MOST_MESSAGES: usize = 3;

/// An incident, from its beginning to its end.
struct Incident {
    /// In labels and paths.
    name: &'static str,
    title: &'static str,
    /// What happened, for the page.
    story: &'static str,
    /// What the first message of each way names: the pod to look at, or how many they are.
    names: &'static str,
    /// Lets it happen, waits until all ways have notified, and ends it.
    run: fn(&mut Site<'_>),
    /// Runbooks, each with a command whose output in it is what the agent printed in this incident.
    samples: &'static [(&'static str, &'static str)],
}

/// What was recorded of an incident.
struct Record {
    messages: Vec<(Way, Vec<Message>)>,
    /// What `check` printed when people were notified.
    check: String,
}

fn record(incident: &Incident, site: &mut Site<'_>) -> Record {
    (incident.run)(site);
    site.wait_ended();
    Record {
        messages: Way::ALL.map(|way| (way, site.messages(way))).into(),
        check: site.printed("check").to_owned(),
    }
}

impl Record {
    fn assert_short_and_complete(&self, incident: &Incident) {
        for (way, messages) in &self.messages {
            let place = format!("{}, {way:?}: {messages:#?}", incident.name);
            assert!((2..=MOST_MESSAGES).contains(&messages.len()), "{place}");
            let ends: Vec<_> = messages.iter().map(|message| message.is_end).collect();
            assert!(!ends[0] && ends[messages.len() - 1], "{place}");
            assert!(messages[0].text.contains(incident.names), "{place}");
        }
        assert!(self.check.contains(incident.names), "{}", self.check);
    }

    fn section(&self, incident: &Incident) -> String {
        let mut text = format!("\n### {}\n\n{}\n", incident.title, incident.story);
        for (way, messages) in &self.messages {
            write!(text, "\n{}\n\n```text\n", way.heading()).unwrap();
            let texts: Vec<_> = messages.iter().map(|m| m.text.as_str()).collect();
            text += &texts.join("\n\n");
            text += "\n```\n";
        }
        let check = self.check.trim_end();
        write!(text, "\n`check` on the node:\n\n```text\n{check}\n```\n").unwrap();
        text
    }
}

/// Compares the output of a command in a runbook.
fn assert_sample_is_current(runbook: &str, command: &str, printed: &str) {
    let file = root().join("docs/runbooks").join(runbook);
    let page = read(&file);
    let command = format!(" -- /usr/local/bin/detector-agent {command}\n");
    let (head, rest) = page.split_once(&command).unwrap();
    let (_, tail) = rest.split_once("\n```\n").unwrap();
    let output = printed.trim_end();
    assert_current(&file, &format!("{head}{command}{output}\n```\n{tail}"));
}

#[test]
fn walkthroughs_have_what_people_receive() {
    let netns = Netns::new("monitoring").unwrap();
    let alerts = netns.run_in(Receiver::start).unwrap();
    let mut sites: Vec<_> = (INCIDENTS.iter())
        .map(|incident| {
            let commands = incident.samples.iter().map(|(_, command)| *command);
            let commands = commands.chain(["check"]).collect();
            Site::new(incident.name, commands, &netns, &alerts).unwrap()
        })
        .collect();
    let _monitoring = Monitoring::start(&netns, &sites, &alerts);
    let records: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (INCIDENTS.iter().zip(&mut sites))
            .map(|(incident, site)| scope.spawn(|| record(incident, site)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect::<Result<_, _>>().unwrap()
    });
    let mut text = String::new();
    for (incident, record) in INCIDENTS.iter().zip(&records) {
        text += &record.section(incident);
    }
    let file = root().join(PAGE);
    let page = read(&file);
    let [begin, end] = GENERATED;
    let (head, rest) = page.split_once(begin).unwrap();
    let (_, tail) = rest.split_once(end).unwrap();
    assert_current(&file, &format!("{head}{begin}{text}{end}{tail}"));
    for ((incident, record), site) in INCIDENTS.iter().zip(&records).zip(&sites) {
        record.assert_short_and_complete(incident);
        for (runbook, command) in incident.samples {
            assert_sample_is_current(runbook, command, site.printed(command));
        }
    }
}
