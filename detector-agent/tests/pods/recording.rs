//! The README's animated picture: what the commands print about two pods that a real containerd and the real `host-local` gave
//! one address. Written with `DEPLOY_UPDATE=1`, because times and device names differ in each run. The directory of the run is
//! left out of the paths.

use std::{fmt::Write as _, fs, path::Path};

use detector_testkit::{Agent, Containerd, DEADLINE, Node, golden::is_updating};

use super::diagnosis::{SUBNET, agent, begin, explained, run};
use crate::AGENT;

const PICTURE: &str = "../docs/images/conflict.svg";
/// Characters in a line.
const COLUMNS: usize = 104;
/// Pixels of a character and of a line.
const CHARACTER: f32 = 7.8;
const LINE: usize = 18;

/// What appears at once, and how many seconds after the previous one.
struct Step {
    text: String,
    class: &'static str,
    delay: f32,
}

#[test]
fn two_pods_one_address_and_its_cause_are_recorded() {
    let node = Node::new("recording").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    begin(&mut containerd);
    run(&mut containerd, &["web-1", "cart-1", "api-1", "db-1"]);
    let agent = Agent::start_ready(&node, &agent(&containerd)).unwrap();
    containerd.wipe_ipam().unwrap();
    // `host-local` starts again with the first address.
    run(&mut containerd, &["job-1", "job-2"]);
    let address = explained(&agent, 1).remove(0).address;

    let step = |text: &str, class, delay| Step {
        text: text.to_owned(),
        class,
        delay,
    };
    let story = format!(
        "# web-1 runs with {address}. Something deletes the node's IPAM state, and another pod is created."
    );
    let mut steps = vec![step(&story, "comment", 0.0)];
    let root = containerd.directory().display().to_string();
    for (command, expected, left_out) in [
        (
            "check".to_owned(),
            "1 IP address conflict",
            &["  cause:", ""][..],
        ),
        (
            format!("explain {address}"),
            "ipam_state_wiped  proven",
            &["  timeline:", "  repair:", "  ruled out:", ""],
        ),
    ] {
        let arguments = command.split(' ');
        let asked = containerd.agent_command(AGENT, arguments);
        let outcome = asked.run_to_end(&node, DEADLINE).unwrap();
        assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
        assert!(outcome.stdout.contains(expected), "{outcome:?}");
        let typed = format!("$ detector-agent {command}");
        steps.push(step(&typed, "command", 1.5));
        let printed = without(&outcome.stdout.replace(&root, ""), left_out);
        steps.push(step(&printed, "output", 0.7));
    }
    let picture = picture(&steps);
    if is_updating() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE), picture).unwrap();
    }
}

/// The text with an ellipsis in place of the lines from each odd mark to the next one; an empty mark is the end.
fn without(text: &str, marks: &[&str]) -> String {
    let mut shown = String::new();
    let mut marks = marks.iter();
    let (mut mark, mut is_shown) = (marks.next(), true);
    for line in text.lines() {
        if mark.is_some_and(|mark| !mark.is_empty() && line.starts_with(mark)) {
            is_shown = !is_shown;
            mark = marks.next();
            if !is_shown {
                shown.push_str("  …\n");
            }
        }
        if is_shown {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    shown
}

/// A terminal in which each step appears after its delay, and stays.
fn picture(steps: &[Step]) -> String {
    let (mut lines, mut y, mut at) = (String::new(), 14, 0.0);
    for step in steps {
        at += step.delay;
        for line in step.text.lines().flat_map(wrapped) {
            y += LINE;
            let line = line.trim_end().replace('&', "&amp;").replace('<', "&lt;");
            let class = step.class;
            writeln!(
                lines,
                r#"<text class="{class}" x="16" y="{y}" style="animation-delay:{at:.1}s">{line}</text>"#
            )
            .unwrap();
        }
    }
    let (width, height) = (COLUMNS as f32 * CHARACTER + 32.0, y + 20);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">
<style>
text {{ fill: #d0d7de; white-space: pre; animation: appear 0s both; }}
.comment {{ fill: #8b949e; }}
.command {{ fill: #7ee787; }}
@keyframes appear {{ from {{ visibility: hidden; }} to {{ visibility: visible; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
{lines}</svg>
"##
    )
}

/// A line in pieces that fit, the others indented as it is.
fn wrapped(line: &str) -> Vec<String> {
    let indent = line.len() - line.trim_start().len();
    let mut pieces = vec![" ".repeat(indent)];
    // Columns are aligned by several spaces, which stay.
    for word in line.trim_start().split_inclusive(' ') {
        let last = pieces.last_mut().unwrap();
        if last.chars().count() + word.trim_end().chars().count() > COLUMNS {
            pieces.push(" ".repeat(indent + 2));
        }
        pieces.last_mut().unwrap().push_str(word);
    }
    pieces
}
