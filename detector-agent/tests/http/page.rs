//! The status page in a real browser, with a real agent and real conflicts behind it.

use std::{fs, path::PathBuf};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, browser::Browser,
};
use nix::sys::signal::Signal;

use crate::AGENT;

const PAGE: &str = "http://127.0.0.1:9842/";
const TAB: &str = "\u{e004}";
const LIVE: &str = "document.querySelector('#link').classList.contains('live')";
const ENTER: &str = "\u{e007}";

/// Where a person finds the pictures after the test.
fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("status-page")
        .join(format!("{name}.png"))
}

fn says(text: &str) -> String {
    format!("document.body.innerText.includes({text:?})")
}

/// Nothing was refused, nothing threw.
fn assert_content(browser: &Browser<'_>) {
    let complaints: Vec<_> = browser
        .console_errors()
        .unwrap()
        .into_iter()
        // The browser stands on the node itself and breaks requests off where a device comes or goes.
        .filter(|complaint| !complaint.contains("ERR_NETWORK_CHANGED"))
        .collect();
    assert_eq!(complaints, Vec::<String>::new());
}

/// A browser that shows the page, live.
fn on_the_page(node: &Node) -> Browser<'_> {
    let browser = Browser::start(node).unwrap();
    browser.emulate_screen(1280, 900, false).unwrap();
    browser.open(PAGE).unwrap();
    browser.wait(LIVE).unwrap();
    browser
}

fn pod(node: &Node, device: &str, address: &str, route: bool) -> Pod {
    let spec = PodSpec::new(device).address(address);
    node.add_pod(&if route { spec.host_route() } else { spec })
        .unwrap()
}

#[test]
fn a_conflict_appears_with_its_claimants_side_by_side_and_goes_into_the_history() {
    let node = Node::new("page").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = on_the_page(&node);
    browser.wait(&says("No IP address conflict")).unwrap();
    browser
        .wait(&says("followed by the kernel programs"))
        .unwrap();
    browser.screenshot(&picture("1-calm")).unwrap();

    let _a = pod(&node, "veth1a2b3c4d", "10.244.2.10/32", true);
    let b = pod(&node, "veth5e6f7a8b", "10.244.2.10/32", false);
    browser.wait(&says("1 IP address in conflict")).unwrap();
    browser
        .wait("document.querySelectorAll('.conflict .claimant').length === 2")
        .unwrap();
    // One of them is marked as the receiver of the traffic: the one the route leads to.
    let winner = browser
        .eval("document.querySelector('.claimant.winner').innerText")
        .unwrap();
    let winner = winner.as_str().unwrap();
    assert!(
        winner.contains("Receives the traffic") && winner.contains("veth1a2b3c4d"),
        "{winner}"
    );
    for told in [
        "10.244.2.10",
        "veth5e6f7a8b",
        &b.mac().to_string(),
        "certain",
        "assigned",
    ] {
        // Its MAC may be read a moment after the conflict was raised; the page looks again by itself.
        browser.wait(&says(told)).unwrap();
    }
    assert_eq!(
        browser.eval("document.title").unwrap(),
        "(1) IP conflicts · testkit"
    );
    browser.screenshot(&picture("2-conflict")).unwrap();

    // A third one, only heard, and more conflicts: the page keeps up without being loaded again.
    let c = pod(&node, "veth9c0d1e2f", "10.244.2.77/32", false);
    let announcement = Frame::announcement(c.mac(), "10.244.2.10".parse().unwrap());
    FrameSender::open(&c).unwrap().send(&announcement).unwrap();
    browser
        .wait("document.querySelectorAll('.conflict .claimant').length === 3")
        .unwrap();
    let mut more = Vec::new();
    for number in 0..4 {
        for side in ["a", "b"] {
            more.push(pod(
                &node,
                &format!("veth{number}{side}"),
                &format!("fd00:10:244::{number}/128"),
                false,
            ));
        }
    }
    browser.wait(&says("5 IP addresses in conflict")).unwrap();
    for (name, width, dark) in [
        ("3-many", 1280, false),
        ("4-dark", 1280, true),
        ("5-phone", 390, false),
        ("6-phone-dark", 390, true),
    ] {
        browser.emulate_screen(width, 900, dark).unwrap();
        browser.screenshot(&picture(name)).unwrap();
        // Nothing makes a person scroll sideways.
        assert_eq!(
            browser
                .eval("document.documentElement.scrollWidth <= innerWidth")
                .unwrap(),
            true,
            "{name}"
        );
    }
    browser.emulate_screen(1280, 900, false).unwrap();

    // By keyboard: `/` leads to the filter, which leaves what matches.
    browser.press_keys("/").unwrap();
    browser.press_keys("veth9c").unwrap();
    browser
        .wait("document.querySelectorAll('.conflict').length === 1")
        .unwrap();
    assert_eq!(
        browser
            .eval("document.querySelector('.conflict h3').innerText")
            .unwrap(),
        "10.244.2.10"
    );
    for _ in 0.."veth9c".len() {
        browser.press_keys("\u{e003}").unwrap();
    }
    browser
        .wait("document.querySelectorAll('.conflict').length === 5")
        .unwrap();

    drop(more);
    b.delete().unwrap();
    c.delete().unwrap();
    browser.wait(&says("No IP address conflict")).unwrap();
    browser
        .wait("document.querySelectorAll('#resolved > details').length === 5")
        .unwrap();
    // The history opens by keyboard, and tells why they left.
    while browser.eval("document.activeElement.tagName").unwrap() != "SUMMARY" {
        browser.press_keys(TAB).unwrap();
    }
    browser.press_keys(ENTER).unwrap();
    browser
        .wait("document.querySelector('#resolved > details[open]') !== null")
        .unwrap();
    browser.wait(&says("Left: ")).unwrap();
    browser.screenshot(&picture("7-resolved")).unwrap();
    assert_content(&browser);
    drop(agent);
}

#[test]
fn a_lost_agent_is_visible_and_the_page_finds_back_by_itself() {
    let node = Node::new("lost").unwrap();
    let mut agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = on_the_page(&node);
    let _pods = [
        pod(&node, "vetha", "10.244.2.10/32", true),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    browser.wait(&says("1 IP address in conflict")).unwrap();
    agent.signal(Signal::SIGKILL).unwrap();
    browser
        .wait("document.querySelector('#link').innerText === 'Disconnected'")
        .unwrap();
    browser.wait(&says("may be out of date")).unwrap();
    browser.screenshot(&picture("8-disconnected")).unwrap();
    agent.wait_exit(DEADLINE).ok();
    let _next = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    browser.wait(LIVE).unwrap();
    browser.wait(&says("1 IP address in conflict")).unwrap();
}

#[test]
fn with_a_token_the_page_asks_for_it() {
    let node = Node::new("pagetoken").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "a-token-that-nobody-guesses").unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--http-token-file")
        .arg(file.path());
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let browser = Browser::start(&node).unwrap();
    browser.emulate_screen(1280, 700, false).unwrap();
    browser.open(PAGE).unwrap();
    browser
        .wait("!document.querySelector('#token-prompt').hidden")
        .unwrap();
    browser.press_keys(&format!("wrong{ENTER}")).unwrap();
    browser.wait(&says("Invalid token")).unwrap();
    browser.screenshot(&picture("9-token")).unwrap();
    browser
        .press_keys(&format!("a-token-that-nobody-guesses{ENTER}"))
        .unwrap();
    browser.wait(LIVE).unwrap();
    browser.wait(&says("No IP address conflict")).unwrap();
}

#[test]
fn what_a_pod_says_is_shown_as_text_and_never_run() {
    let node = Node::new("hostile").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = on_the_page(&node);
    // A device may be named like this; so may a pod by a runtime that does not check.
    let device = "<b>&amp;x";
    let _pods = [
        pod(&node, device, "10.244.2.10/32", false),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    browser
        .wait("document.querySelectorAll('.conflict .claimant').length === 2")
        .unwrap();
    assert_eq!(
        browser.eval("document.querySelector('#active b')").unwrap(),
        serde_json::Value::Null
    );
    assert_eq!(
        browser
            .eval(&format!(
                "document.querySelector('#active').innerText.includes({device:?})"
            ))
            .unwrap(),
        true
    );
    assert_content(&browser);
}

#[test]
fn an_anomaly_appears_as_text_and_goes_when_it_is_over() {
    let node = Node::new("pageanom").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = on_the_page(&node);
    let hidden = "document.querySelector('#anomalies-section').hidden";
    assert_eq!(browser.eval(hidden).unwrap(), true);

    // A device's name may hold what a browser would take for markup.
    let _has = pod(&node, "veth<b>has", "10.244.2.10/32", true);
    let _hasnot = pod(&node, "vethhasnot", "10.244.2.11/32", true);
    node.ip("route replace 10.244.2.10/32 dev vethhasnot scope link")
        .unwrap();
    browser
        .wait("document.querySelectorAll('#anomalies li').length === 1")
        .unwrap();
    assert_eq!(browser.eval(hidden).unwrap(), false);
    for told in ["1 anomaly", "10.244.2.10", "veth<b>has"] {
        assert_eq!(browser.eval(&says(told)).unwrap(), true, "{told}");
    }
    assert_eq!(
        browser
            .eval("document.querySelectorAll('#anomalies b').length")
            .unwrap(),
        0
    );
    browser.screenshot(&picture("10-anomaly")).unwrap();

    node.ip("route replace 10.244.2.10/32 dev veth<b>has scope link")
        .unwrap();
    browser
        .wait("document.querySelector('#anomalies-section').hidden")
        .unwrap();
    assert_content(&browser);
}
