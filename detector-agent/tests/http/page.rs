//! The status page in a real browser, served by a real agent with real conflicts.

use std::{fs, path::PathBuf};

use detector_engine::ConflictKind;
use detector_event::SubjectKind;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec, browser::Browser,
};
use nix::sys::signal::Signal;

use crate::AGENT;

const PORT: u16 = 9842;
const PAGE: &str = "http://127.0.0.1:9842/";
const TAB: &str = "\u{e004}";
const LIVE: &str = "document.querySelector('#link').classList.contains('live')";
const ENTER: &str = "\u{e007}";

/// The path of a screenshot, kept after the test for a reviewer.
fn screenshot_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("status-page")
        .join(format!("{name}.png"))
}

/// A script that is true if the page shows `text`.
fn shows(text: &str) -> String {
    format!("document.body.innerText.includes({text:?})")
}

/// The console has no errors: no request was refused and no script threw.
fn assert_no_console_errors(browser: &Browser) {
    assert_eq!(browser.console_errors().unwrap(), Vec::<String>::new());
}

/// A browser that shows the page with a live connection.
fn open_live_page(node: &Node) -> Browser {
    let browser = Browser::start(node, PORT).unwrap();
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
fn conflict_is_shown_with_claimants_and_moves_to_the_history() {
    let node = Node::new("page").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    browser.wait(&shows("No IP address conflict")).unwrap();
    browser
        .wait(&shows("followed by the kernel programs"))
        .unwrap();
    browser.screenshot(&screenshot_path("1-calm")).unwrap();

    let _a = pod(&node, "veth1a2b3c4d", "10.244.2.10/32", true);
    let b = pod(&node, "veth5e6f7a8b", "10.244.2.10/32", false);
    browser.wait(&shows("1 IP address in conflict")).unwrap();
    browser
        .wait("document.querySelectorAll('.conflict .claimant').length === 2")
        .unwrap();
    // The claimant that the route leads to is marked as the receiver of the traffic.
    let winner = browser
        .eval("document.querySelector('.claimant.winner').innerText")
        .unwrap();
    let winner = winner.as_str().unwrap();
    assert!(
        winner.contains("Receives the traffic") && winner.contains("veth1a2b3c4d"),
        "{winner}"
    );
    for text in [
        "10.244.2.10",
        "veth5e6f7a8b",
        &b.mac().to_string(),
        "certain",
        "assigned",
    ] {
        // The MAC may arrive shortly after the conflict was raised; the page refreshes by itself.
        browser.wait(&shows(text)).unwrap();
    }
    assert_eq!(
        browser.eval("document.title").unwrap(),
        "(1) IP conflicts · testkit"
    );
    browser.screenshot(&screenshot_path("2-conflict")).unwrap();

    // A third claimant, seen only in frames, and more conflicts: the page updates without a reload.
    let c = pod(&node, "veth9c0d1e2f", "10.244.2.77/32", false);
    node.wait_attached(c.device()).unwrap();
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
    browser.wait(&shows("5 IP addresses in conflict")).unwrap();
    for (name, width, dark) in [
        ("3-many", 1280, false),
        ("4-dark", 1280, true),
        ("5-phone", 390, false),
        ("6-phone-dark", 390, true),
    ] {
        browser.emulate_screen(width, 900, dark).unwrap();
        browser.screenshot(&screenshot_path(name)).unwrap();
        // The page does not scroll sideways.
        assert_eq!(
            browser
                .eval("document.documentElement.scrollWidth <= innerWidth")
                .unwrap(),
            true,
            "{name}"
        );
    }
    browser.emulate_screen(1280, 900, false).unwrap();

    // Keyboard: `/` focuses the filter, which keeps only matching conflicts.
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
    browser.wait(&shows("No IP address conflict")).unwrap();
    browser
        .wait("document.querySelectorAll('#ended > details').length === 5")
        .unwrap();
    // A history entry opens by keyboard and shows why the claimants left.
    while browser.eval("document.activeElement.tagName").unwrap() != "SUMMARY" {
        browser.press_keys(TAB).unwrap();
    }
    browser.press_keys(ENTER).unwrap();
    browser
        .wait("document.querySelector('#ended > details[open]') !== null")
        .unwrap();
    browser.wait(&shows("Left: ")).unwrap();
    browser.screenshot(&screenshot_path("7-resolved")).unwrap();
    assert_no_console_errors(&browser);
    drop(agent);
}

#[test]
fn network_is_shown_unless_it_is_the_nodes() {
    let node = Node::new("networks").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    node.add_bridge("br0", &["10.244.2.1/24"]).unwrap();
    let mut pods = Vec::new();
    for device in ["vetha", "vethb"] {
        let spec = PodSpec::new(device).master("br0");
        let spec = spec.address("169.254.7.7/16").address("10.244.2.10/32");
        pods.push(node.add_pod(&spec).unwrap());
    }
    browser.wait(&shows("2 IP addresses in conflict")).unwrap();
    let tags = "[...document.querySelectorAll('.conflict')]\
        .map(c => c.querySelector('h3').innerText + ' '\
            + [...c.querySelectorAll('.tag')].filter(t => !t.closest('h4')).map(t => t.innerText).join(' ')).sort().join('; ')";
    let expected = "10.244.2.10 duplicate certain; 169.254.7.7 duplicate certain bridge:br0";
    let is_shown = format!("({tags}).toLowerCase() === {expected:?}");
    browser.wait(&is_shown).unwrap();
    assert_no_console_errors(&browser);
}

#[test]
fn lost_agent_is_shown_and_the_page_reconnects() {
    let node = Node::new("lost").unwrap();
    let mut agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    let _pods = [
        pod(&node, "vetha", "10.244.2.10/32", true),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    browser.wait(&shows("1 IP address in conflict")).unwrap();
    agent.signal(Signal::SIGKILL).unwrap();
    browser
        .wait("document.querySelector('#link').innerText === 'Disconnected'")
        .unwrap();
    browser.wait(&shows("may be out of date")).unwrap();
    browser
        .screenshot(&screenshot_path("8-disconnected"))
        .unwrap();
    agent.wait_exit(DEADLINE).ok();
    let _next = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    browser.wait(LIVE).unwrap();
    browser.wait(&shows("1 IP address in conflict")).unwrap();
}

#[test]
fn page_prompts_for_the_token() {
    let node = Node::new("pagetoken").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "an-unguessable-test-token").unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--http-token-file")
        .arg(file.path());
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let browser = Browser::start(&node, PORT).unwrap();
    browser.emulate_screen(1280, 700, false).unwrap();
    browser.open(PAGE).unwrap();
    browser
        .wait("!document.querySelector('#token-prompt').hidden")
        .unwrap();
    browser.press_keys(&format!("wrong{ENTER}")).unwrap();
    browser.wait(&shows("Invalid token")).unwrap();
    browser.screenshot(&screenshot_path("9-token")).unwrap();
    browser
        .press_keys(&format!("an-unguessable-test-token{ENTER}"))
        .unwrap();
    browser.wait(LIVE).unwrap();
    browser.wait(&shows("No IP address conflict")).unwrap();
}

#[test]
fn markup_in_names_is_shown_as_text() {
    let node = Node::new("hostile").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    // The kernel allows such a device name, and a runtime might allow such a pod name.
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
    assert_no_console_errors(&browser);
}

/// The page has the rule of `detector_event::clean` in its own language.
#[test]
fn hidden_characters_in_names_are_shown_as_replaced() {
    let node = Node::new("hiddenpage").unwrap();
    let command = AgentCommand::run(AGENT).args(["--interfaces", "*"]);
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let browser = open_live_page(&node);
    let device = "ve\u{202e}th\u{200b}a";
    let _pods = [
        pod(&node, device, "10.244.2.10/32", false),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    browser
        .wait("document.querySelectorAll('.conflict .claimant').length === 2")
        .unwrap();
    browser
        .wait(&shows(&detector_event::clean(device)))
        .unwrap();
    let page = browser.eval("document.documentElement.outerHTML").unwrap();
    let page = page.as_str().unwrap();
    for hidden in ['\u{202e}', '\u{200b}'] {
        assert!(!page.contains(hidden), "{page}");
    }
    assert_no_console_errors(&browser);
}

#[test]
fn anomaly_is_shown_as_text_until_it_resolves() {
    let node = Node::new("pageanom").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    browser.wait(&shows("Anomalies 0")).unwrap();

    // A device name may contain HTML markup.
    let _has = pod(&node, "veth<b>has", "10.244.2.10/32", true);
    let _hasnot = pod(&node, "vethhasnot", "10.244.2.11/32", true);
    node.ip("route replace 10.244.2.10/32 dev vethhasnot scope link")
        .unwrap();
    browser
        .wait("document.querySelectorAll('#conflicts .anomaly').length === 1")
        .unwrap();
    for text in [
        "1 anomaly",
        "Anomalies 1",
        "10.244.2.10",
        "veth<b>has",
        "Next: Delete the pod",
    ] {
        assert_eq!(browser.eval(&shows(text)).unwrap(), true, "{text}");
    }
    assert_eq!(
        browser
            .eval("document.querySelectorAll('#anomalies b').length")
            .unwrap(),
        0
    );
    browser.screenshot(&screenshot_path("10-anomaly")).unwrap();

    node.ip("route replace 10.244.2.10/32 dev veth<b>has scope link")
        .unwrap();
    browser.wait(&shows("Anomalies 0")).unwrap();
    assert_no_console_errors(&browser);
}

/// Where an element is in the window, in pixels from its top.
fn top_of(browser: &Browser, selector: &str) -> f64 {
    let top = format!("document.querySelector({selector:?}).getBoundingClientRect().top");
    browser.eval(&top).unwrap().as_f64().unwrap()
}

#[test]
fn address_sweep_is_one_card_with_its_victims() {
    let node = Node::new("pagesweep").unwrap();
    let victims: Vec<_> = (1..=40).map(|n| format!("10.244.3.{n}")).collect();
    let specs = victims.iter().enumerate();
    let mut specs: Vec<_> = specs
        .map(|(n, address)| PodSpec::new(format!("veth{n}")).address(format!("{address}/32")))
        .collect();
    specs.push(PodSpec::new("vethbad").address("10.244.3.250/32"));
    let pods = node.add_pods(&specs).unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    let offender = pods.last().unwrap();
    let claim = |address: &String| {
        Frame::gratuitous_reply(offender.mac(), address.parse().unwrap()).to_bytes()
    };
    let frames: Vec<_> = victims.iter().map(claim).collect();
    let sender = FrameSender::open(offender).unwrap();
    sender.send_all(&frames).unwrap();
    browser
        .wait("document.querySelectorAll('#active li').length === 40")
        .unwrap();
    for text in [
        "1 pod claims 40 addresses of others",
        "Address sweep",
        "40 victims",
        "the pod on vethbad claims 40 addresses of others",
        "vethbad",
        "Conflicts 40",
        "Anomalies 1",
        "Next: Check whether the pod",
    ] {
        browser.wait(&shows(text)).unwrap();
    }
    let cards = "document.querySelectorAll('#conflicts .card').length";
    assert_eq!(browser.eval(cards).unwrap(), 1);
    browser
        .eval("document.querySelector('#active details[data-key=members] summary').click()")
        .unwrap();
    browser.screenshot(&screenshot_path("11-sweep")).unwrap();
    // The navigation stays in view, and every section is one click away however many cards there are.
    browser.eval("window.scrollTo(0, 3000)").unwrap();
    for section in ["#health", "#conflicts"] {
        assert!(top_of(&browser, "#nav").abs() < 1.0);
        browser
            .eval(&format!(
                "document.querySelector('#nav a[href={section:?}]').click()"
            ))
            .unwrap();
        let below = top_of(&browser, section);
        let height = top_of(&browser, &format!("{section} h2")) - below;
        let visible = browser.eval("innerHeight").unwrap().as_f64().unwrap();
        assert!(
            below + height > 30.0 && below < visible,
            "{section}: {below}"
        );
    }
    // A victim has a page of its own, which leads back to the sweep.
    browser
        .eval("document.querySelector('#active li a').click()")
        .unwrap();
    browser.wait(LIVE).unwrap();
    browser
        .wait(&shows("Next: Decide about the pod of the address sweep"))
        .unwrap();
    assert_eq!(browser.eval(cards).unwrap(), 1);
    browser
        .eval("document.querySelector('.conflict a.tag').click()")
        .unwrap();
    browser.wait(LIVE).unwrap();
    browser.wait(&shows("Address sweep")).unwrap();
    assert_eq!(browser.eval(cards).unwrap(), 1);
    assert_no_console_errors(&browser);
}

#[test]
fn many_unrelated_conflicts_are_one_card_and_the_url_selects() {
    let node = Node::new("pagegroups").unwrap();
    let specs: Vec<_> = (0..60)
        .map(|n| PodSpec::new(format!("veth{n}")).address(format!("10.244.4.{}/32", n / 2)))
        .collect();
    let pods = node.add_pods(&specs).unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    browser.wait(&shows("30 IP addresses in conflict")).unwrap();
    let cards = "document.querySelectorAll('#conflicts .card').length";
    browser.wait(&format!("{cards} === 1")).unwrap();
    browser.wait(&shows("30 addresses")).unwrap();
    browser
        .screenshot(&screenshot_path("18-unrelated"))
        .unwrap();

    // The filter is part of the address of the page.
    browser.press_keys("/10.244.4.7").unwrap();
    browser.wait("location.search === '?q=10.244.4.7'").unwrap();
    browser.open(&format!("{PAGE}?q=10.244.4.7")).unwrap();
    browser.wait(LIVE).unwrap();
    browser.wait(&format!("{cards} === 1")).unwrap();
    assert_eq!(browser.eval(&shows("10.244.4.7")).unwrap(), true);

    // So is one conflict, also once it is over.
    browser
        .eval("document.querySelector('.conflict h3 a').click()")
        .unwrap();
    browser.wait("location.search.startsWith('?id=')").unwrap();
    browser.wait(LIVE).unwrap();
    browser
        .wait(&shows("One conflict or anomaly is shown. Show all"))
        .unwrap();
    browser.wait(&format!("{cards} === 1")).unwrap();
    drop(pods);
    browser
        .wait(&shows("It is not open; see the history below."))
        .unwrap();
    browser
        .wait("document.querySelectorAll('#ended > details[open]').length === 1")
        .unwrap();
    browser
        .screenshot(&screenshot_path("19-permalink"))
        .unwrap();
    assert_no_console_errors(&browser);
}

#[test]
fn anomaly_that_costs_traffic_is_never_green() {
    let node = Node::new("pagebanner").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    browser.wait(&shows("No IP address conflict")).unwrap();
    let _pods = [
        pod(&node, "vetha", "10.244.2.10/32", true),
        pod(&node, "vethb", "10.244.2.11/32", true),
    ];
    node.ip("route replace 10.244.2.10/32 dev vethb scope link")
        .unwrap();
    browser
        .wait(&shows("No IP address conflict, but 1 anomaly"))
        .unwrap();
    browser
        .wait(&shows(
            "The node's traffic for the address does not reach the pod.",
        ))
        .unwrap();
    let banner = "document.querySelector('#headline').className";
    assert_eq!(browser.eval(banner).unwrap(), "headline incomplete");
}

#[test]
fn what_does_not_work_comes_before_everything_else() {
    let node = Node::new("pagewrong").unwrap();
    let closed = node.run_in(|| Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?));
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let url = format!("http://{}/", closed.unwrap());
    fs::write(
        &config,
        format!("webhooks:\n- {{name: ops, url: '{url}'}}\n"),
    )
    .unwrap();
    let command = AgentCommand::run(AGENT).arg("--config").arg(&config);
    let _agent = Agent::start_ready(&node, &command).unwrap();
    let browser = open_live_page(&node);
    browser.wait(&shows("Health ok")).unwrap();
    let hidden = "document.querySelector('#problems').hidden";
    assert_eq!(browser.eval(hidden).unwrap(), true);

    let _pods = [
        pod(&node, "vetha", "10.244.2.10/32", true),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    let problem =
        "document.querySelector('#problems').innerText.includes('ops: accepts no events')";
    browser.wait(problem).unwrap();
    assert_eq!(browser.eval(hidden).unwrap(), false);
    assert_eq!(browser.eval(&shows("Health 1 problem")).unwrap(), true);
    assert!(top_of(&browser, "#problems") < top_of(&browser, "#nav"));
    let runbook =
        "document.querySelector('#problems a[target]').href.endsWith('/IPConflictSinkFailing.md')";
    assert_eq!(browser.eval(runbook).unwrap(), true);
    for (name, width) in [("12-problem", 1280), ("13-problem-phone", 390)] {
        browser.emulate_screen(width, 900, false).unwrap();
        browser.screenshot(&screenshot_path(name)).unwrap();
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(browser.eval(fits).unwrap(), true, "{name}");
    }
    assert_no_console_errors(&browser);
}

#[test]
fn whether_other_nodes_are_compared_with_is_shown() {
    let off = AgentCommand::run(AGENT);
    // Without the Kubernetes API.
    let failed = AgentCommand::run(AGENT).arg("--fleet=kubernetes");
    let runbook = "document.querySelector('#problems a[target]')?.href.split('/').pop() ?? ''";
    for (command, state, expected) in [
        (off, "Off", ""),
        (failed, "Failed", "IPConflictFleetBlind.md"),
    ] {
        let node = Node::new("pagefleet").unwrap();
        let _agent = Agent::start_ready(&node, &command).unwrap();
        let browser = open_live_page(&node);
        let row = format!("document.querySelector('#fleet').innerText.startsWith('{state}')");
        browser.wait(&row).unwrap();
        assert_eq!(browser.eval(runbook).unwrap(), expected);
        assert_no_console_errors(&browser);
    }
}

#[test]
fn next_step_and_runbook_are_those_of_the_api() {
    let node = Node::new("pagenext").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    let _pods = [
        pod(&node, "vetha", "10.244.2.10/32", true),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    browser.wait(&shows("Next: Delete ")).unwrap();
    let conflicts = browser
        .eval("fetch('api/v1/conflicts').then(response => response.json())")
        .unwrap();
    let step = conflicts["conflicts"][0]["guidance"]["next_step"].as_str();
    browser
        .wait(&shows(&format!("Next: {} Runbook", step.unwrap())))
        .unwrap();
    let link = "document.querySelector('.conflict .next a').href";
    let runbook = SubjectKind::Conflict(ConflictKind::Duplicate).runbook_url();
    assert_eq!(browser.eval(link).unwrap(), runbook);
    assert_no_console_errors(&browser);
}

#[test]
fn diagnosis_is_a_line_that_opens_to_its_details() {
    let node = Node::new("pagewhy").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    let _pods = [
        pod(&node, "vetha", "10.244.2.10/32", true),
        pod(&node, "vethb", "10.244.2.10/32", false),
    ];
    browser.wait(&shows("Why: ")).unwrap();
    browser.wait(&shows("cause unknown")).unwrap();
    let hidden = browser.eval(&shows("Not checked")).unwrap();
    assert_eq!(hidden, false);
    browser
        .eval("document.querySelector('.conflict .why > summary').click()")
        .unwrap();
    for text in ["Repair: ", "Not checked", "Ruled out: ", "Timeline"] {
        browser.wait(&shows(text)).unwrap();
    }
    browser.screenshot(&screenshot_path("7-why")).unwrap();
    browser.emulate_screen(390, 900, false).unwrap();
    assert_eq!(
        browser
            .eval("document.documentElement.scrollWidth <= innerWidth")
            .unwrap(),
        true
    );
    assert_no_console_errors(&browser);
}

#[test]
fn many_claimants_are_one_table_in_a_list_with_the_newest_first() {
    let node = Node::new("pagemany").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let browser = open_live_page(&node);
    let claimant = |n: usize| {
        let spec = PodSpec::new(format!("vethmany{n}")).address("10.244.2.10/32");
        if n == 4 { spec.host_route() } else { spec }
    };
    let specs: Vec<_> = (0..11).map(claimant).collect();
    let _many = node.add_pods(&specs).unwrap();
    let rows = "document.querySelectorAll('.conflict table.many > tbody > tr').length === 11";
    browser.wait(rows).unwrap();
    let cards = "document.querySelectorAll('.conflict .claimants').length";
    assert_eq!(browser.eval(cards).unwrap(), 0);
    browser
        .wait("document.querySelector('.many .winner')?.innerText.includes('Receives the traffic')")
        .unwrap();
    let winner = browser.eval("document.querySelector('.many .winner').innerText");
    let winner = winner.unwrap();
    assert!(winner.as_str().unwrap().contains("vethmany4"), "{winner}");

    // A newer conflict comes first, and an anomaly after the conflicts.
    let _pair = [
        pod(&node, "vetha", "10.244.2.11/32", true),
        pod(&node, "vethb", "10.244.2.11/32", false),
    ];
    let _astray = pod(&node, "vethc", "10.244.2.12/32", true);
    node.ip("route replace 10.244.2.12/32 dev vetha scope link")
        .unwrap();
    let order = "[...document.querySelectorAll('#conflicts .card h3')].map(h => h.innerText).join(' ') \
        === '10.244.2.11 10.244.2.10 10.244.2.12'";
    browser.wait(order).unwrap();

    // Details that are open stay open while the conflict is drawn again.
    browser
        .eval("document.querySelector('.many details[data-key^=evidence] summary').click()")
        .unwrap();
    let _last = pod(&node, "vethlast", "10.244.2.10/32", false);
    browser.wait(&rows.replace("11", "12")).unwrap();
    let open = "document.querySelectorAll('.many details[data-key^=evidence][open]').length";
    assert_eq!(browser.eval(open).unwrap(), 1);
    for (name, width, dark) in [
        ("14-many-claimants", 1280, false),
        ("15-many-claimants-dark", 1280, true),
        ("16-many-claimants-phone", 390, false),
        ("17-many-claimants-phone-dark", 390, true),
    ] {
        browser.emulate_screen(width, 900, dark).unwrap();
        browser.screenshot(&screenshot_path(name)).unwrap();
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        assert_eq!(browser.eval(fits).unwrap(), true, "{name}");
    }
    assert_no_console_errors(&browser);
}
