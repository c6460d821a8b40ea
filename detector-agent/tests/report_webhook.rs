//! Webhooks over real sockets: signed, tried again, in order; TLS; what a receiver may do wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use detector_agent::{
    cli::Command,
    config,
    health::Health,
    report::{
        EventSink,
        event::{ConflictData, Event},
        metrics::{Delivery, Metrics},
        sinks::{Senders, SinksError},
        webhook::sign::{Secret, signature},
    },
    store::Store,
};
use detector_testkit::{
    DEADLINE, Mood, Posted, Receiver,
    receiver::{Stream, Wrap},
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The senders of a configuration, fed by hand.
struct Running {
    directory: TempDir,
    metrics: Arc<Metrics>,
    runtime: Runtime,
    senders: Option<Senders>,
    sinks: Vec<Box<dyn EventSink>>,
}

impl Running {
    /// With `webhooks:` as the configuration file has it; `DIR` in it is the directory that `prepare` fills.
    fn start(yaml: &str, prepare: impl FnOnce(&Path)) -> Result<Self, SinksError> {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        Self::in_directory(yaml, directory)
    }

    fn in_directory(yaml: &str, directory: TempDir) -> Result<Self, SinksError> {
        let path = directory.path();
        let file = path.join("config.yaml");
        fs::write(&file, yaml.replace("DIR", path.to_str().unwrap())).unwrap();
        let args = ["detector-agent", "run", "--config", file.to_str().unwrap()];
        let Command::Run(args) = config::parse(args.map(Into::into)).unwrap().command else {
            panic!("`run` was asked for");
        };
        // Two threads: the tests block theirs.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let metrics = Arc::new(Metrics::new());
        let store = Arc::new(Store::at(&path.join("state")));
        let health = Health::default();
        let (senders, sinks) = Senders::start(
            &args.sinks,
            Some(&store),
            &metrics,
            &health,
            runtime.handle(),
        )?;
        Ok(Self {
            directory,
            metrics,
            runtime,
            senders: Some(senders),
            sinks,
        })
    }

    fn offer(&mut self, event: Event) {
        let event = Arc::new(event);
        for sink in &mut self.sinks {
            sink.offer(&event);
        }
    }

    /// Waits until the sender has counted it, which comes after the receiver has it.
    fn wait_count(&self, sink: &str, outcome: &'static str, least: u64) {
        let begun = Instant::now();
        while self.count(sink, outcome) < least {
            assert!(begun.elapsed() < DEADLINE, "{outcome} stays below {least}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn count(&self, sink: &str, outcome: &'static str) -> u64 {
        let labels = Delivery {
            sink: sink.to_owned(),
            outcome,
        };
        self.metrics.deliveries.get_or_create(&labels).get()
    }

    /// Ends as the agent does on SIGTERM; gives the directory for the next start.
    fn stop(mut self) -> TempDir {
        let senders = self.senders.take().unwrap();
        self.runtime.block_on(senders.stop(Duration::from_secs(10)));
        self.directory
    }
}

fn event(id: &str, change: &str, conflict: &str) -> Event {
    let time = "2026-11-21T01:02:03.123456Z".to_owned();
    let over = change == "resolved";
    Event {
        specversion: "1.0".to_owned(),
        id: id.to_owned(),
        source: "ip-conflict-detector/node-1".to_owned(),
        event_type: format!("io.ipconflict.conflict.{change}"),
        subject: "10.0.0.1".to_owned(),
        time: time.clone(),
        datacontenttype: "application/json".to_owned(),
        data: ConflictData {
            conflict_id: conflict.to_owned(),
            node: "node-1".to_owned(),
            address: "10.0.0.1".to_owned(),
            vlan: None,
            inner_vlan: None,
            kind: "duplicate".to_owned(),
            confidence: "certain".to_owned(),
            state: if over { "resolved" } else { "active" }.to_owned(),
            raised_at: time.clone(),
            updated_at: time.clone(),
            resolved_at: over.then_some(time),
            latency_us: 40,
            traffic_goes_to: None,
            claimants: Vec::new(),
            claimants_omitted: 0,
        },
    }
}

fn accepted(posted: &[Posted]) -> usize {
    posted.iter().filter(|p| p.is_accepted()).count()
}

fn ids(posted: &[Posted]) -> Vec<&str> {
    posted.iter().map(|p| p.header("webhook-id")).collect()
}

/// One webhook named `hook` with quick retries.
fn hook(url: &str, more: &str) -> String {
    format!(
        "webhooks:\n- name: hook\n  url: {url}\n  timeout: 2s\n  retry: {{first: 20ms, longest: 100ms}}\n{more}"
    )
}

#[test]
fn a_request_is_signed_with_every_secret_and_carries_the_files_headers() {
    let receiver = Receiver::start().unwrap();
    let newer = format!("whsec_{}", STANDARD.encode([9; 32]));
    let yaml = hook(
        &receiver.url(),
        "  secret-files: [DIR/new, DIR/old]\n  header-files: {Authorization: DIR/auth}\n",
    );
    let mut running = Running::start(&yaml, |dir| {
        fs::write(dir.join("new"), &newer).unwrap();
        fs::write(dir.join("old"), format!("{SECRET}\n")).unwrap();
        fs::write(dir.join("auth"), "Bearer s3cr3t-token\n").unwrap();
    })
    .unwrap();
    running.offer(event("e1", "raised", "c1"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 1).unwrap();
    let request = &posted[0];
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/hook")
    );
    assert_eq!(request.header("authorization"), "Bearer s3cr3t-token");
    assert_eq!(
        request.header("content-type"),
        "application/cloudevents+json; charset=UTF-8"
    );
    assert_eq!(request.header("webhook-id"), "e1");
    assert_eq!(request.json().unwrap()["id"], "e1");
    let timestamp: i64 = request.header("webhook-timestamp").parse().unwrap();
    assert!((jiff::Timestamp::now().as_second() - timestamp).abs() < 60);
    let secrets = [&newer, SECRET].map(|s| Secret::parse(s).unwrap());
    let expected = signature(&secrets, "e1", timestamp, &request.body).unwrap();
    assert_eq!(request.header("webhook-signature"), expected);
    assert_eq!(expected.split(' ').count(), 2);
    // A rotation takes effect with the next request.
    fs::write(running.directory.path().join("old"), &newer).unwrap();
    running.offer(event("e2", "resolved", "c1"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 2).unwrap();
    let timestamp = posted[1].header("webhook-timestamp").parse().unwrap();
    let secrets = [&newer, &newer].map(|s| Secret::parse(s).unwrap());
    assert_eq!(
        posted[1].header("webhook-signature"),
        signature(&secrets, "e2", timestamp, &posted[1].body).unwrap()
    );
    let metrics = running.metrics.encode(None).unwrap();
    assert!(
        !metrics.contains("s3cr3t") && !metrics.contains("MfKQ"),
        "{metrics}"
    );
    running.wait_count("hook", "delivered", 2);
}

#[test]
fn whatever_goes_wrong_the_same_event_comes_again_before_the_next_of_its_conflict() {
    let receiver = Receiver::start().unwrap();
    let moods = [
        Mood::status(500),
        Mood::Reset,
        Mood::status(429),
        Mood::status(404),
        Mood::Answer(503, vec![("Retry-After", "0".to_owned())]),
        Mood::Hang,
    ];
    let failures = moods.len();
    let tried = std::sync::atomic::AtomicUsize::new(0);
    receiver.decide(move |_| {
        let n = tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        moods.get(n).cloned().unwrap_or(Mood::status(200))
    });
    let yaml = hook(&receiver.url(), "").replace("timeout: 2s", "timeout: 300ms");
    let mut running = Running::start(&yaml, |_| ()).unwrap();
    running.offer(event("e1", "raised", "c1"));
    running.offer(event("e2", "resolved", "c1"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 2).unwrap();
    let mut expected = vec!["e1"; failures + 1];
    expected.push("e2");
    assert_eq!(ids(&posted), expected);
    assert!(posted[..=failures].iter().all(|p| p.body == posted[0].body));
    running.stop();
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::start().unwrap();
    let receiver = Receiver::start().unwrap();
    receiver.be(Mood::Answer(307, vec![("Location", elsewhere.url())]));
    let mut running = Running::start(&hook(&receiver.url(), ""), |_| ()).unwrap();
    running.offer(event("e1", "raised", "c1"));
    receiver.wait_until(DEADLINE, |p| p.len() >= 3).unwrap();
    assert!(elsewhere.posted().is_empty());
    assert_eq!(running.count("hook", "delivered"), 0);
}

#[test]
fn a_gone_receiver_is_left_alone_until_the_next_start_and_others_are_served() {
    let gone = Receiver::start().unwrap();
    let other = Receiver::start().unwrap();
    gone.be(Mood::status(410));
    let yaml = format!(
        "{}- {{name: other, url: '{}'}}\n",
        hook(&gone.url(), ""),
        other.url()
    );
    let mut running = Running::start(&yaml, |_| ()).unwrap();
    running.offer(event("e1", "raised", "c1"));
    gone.wait_until(DEADLINE, |p| p.len() == 1).unwrap();
    other.wait_until(DEADLINE, |p| p.len() == 1).unwrap();
    running.offer(event("e2", "resolved", "c1"));
    other.wait_until(DEADLINE, |p| p.len() == 2).unwrap();
    running.wait_count("hook", "disabled", 1);
    assert_eq!(gone.posted().len(), 1);
    let directory = running.stop();
    assert_eq!(gone.posted().len(), 1);
    gone.be(Mood::status(200));
    let _running = Running::in_directory(&yaml, directory).unwrap();
    let posted = gone.wait_until(DEADLINE, |p| accepted(p) == 2).unwrap();
    assert_eq!(ids(&posted), ["e1", "e1", "e2"]);
}

/// `event`, with these kind and confidence and a claimant in this Kubernetes namespace.
fn about(id: &str, change: &str, conflict: &str, kind: &str, confidence: &str, ns: &str) -> Event {
    let mut event = event(id, change, conflict);
    event.data.kind = kind.to_owned();
    event.data.confidence = confidence.to_owned();
    event.data.raised_at = jiff::Timestamp::now().to_string();
    let claimant = serde_json::json!({
        "device": "veth1", "ifindex": 7, "mac": null, "master": null, "since": event.time,
        "pod": {"namespace": ns, "name": "web", "uid": null, "container_id": null, "via": "cri"},
        "pod_unknown_because": null, "evidence": []
    });
    event.data.claimants = vec![serde_json::from_value(claimant).unwrap()];
    event
}

#[test]
fn each_filter_lets_its_own_conflicts_pass_from_their_first_word_to_their_last() {
    let receiver = Receiver::start().unwrap();
    let url = |name: &str| format!("http://{}/{name}", receiver.address());
    let filters = [
        ("all", ""),
        ("hosts", "kinds: [host]"),
        ("shop", "namespaces: [shop]"),
        ("sure", "confidence: certain"),
        ("lasting", "min-duration: 400ms"),
    ];
    let mut yaml = "webhooks:\n".to_owned();
    for (name, only) in filters {
        yaml += &format!(
            "- {{name: {name}, url: '{}', only: {{{only}}}}}\n",
            url(name)
        );
    }
    let mut running = Running::start(&yaml, |_| ()).unwrap();
    running.offer(about("h1", "raised", "h", "host", "observed", "ops"));
    running.offer(about("d1", "raised", "d", "duplicate", "observed", "shop"));
    running.offer(about(
        "d2",
        "resolved",
        "d",
        "duplicate",
        "observed",
        "shop",
    ));
    // Of the one that lasts `sure` hears when it is certain; `lasting` later still.
    running.offer(about("h2", "updated", "h", "host", "certain", "ops"));
    let of = |posted: &[Posted], name: &str| -> Vec<(String, String)> {
        let path = format!("/{name}");
        let of = posted.iter().filter(|p| p.path == path);
        of.map(|p| {
            let event = p.json().unwrap();
            let kind = event["type"].as_str().unwrap().rsplit('.').next().unwrap();
            (p.header("webhook-id").to_owned(), kind.to_owned())
        })
        .collect()
    };
    receiver
        .wait_until(DEADLINE, |posted| of(posted, "lasting").len() == 1)
        .unwrap();
    running.offer(about("h3", "resolved", "h", "host", "certain", "ops"));
    running.stop();
    let posted = receiver.posted();
    let mut expected = std::collections::BTreeMap::new();
    expected.insert("hosts", "h1 raised, h2 updated, h3 resolved");
    expected.insert("shop", "d1 raised, d2 resolved");
    expected.insert("sure", "h2 raised, h3 resolved");
    expected.insert("lasting", "h2 raised, h3 resolved");
    for (name, expected) in expected {
        let told: Vec<_> = of(&posted, name)
            .iter()
            .map(|(id, kind)| format!("{id} {kind}"))
            .collect();
        assert_eq!(told.join(", "), expected, "{name}");
    }
    assert_eq!(of(&posted, "all").len(), 5);
}

#[test]
fn slack_and_pagerduty_are_told_in_their_own_forms() {
    let receiver = Receiver::start().unwrap();
    let yaml = format!(
        "webhooks:\n- {{name: chat, url-file: DIR/url, format: slack}}\n\
         - {{name: pager, url: 'http://{}/pager', format: pagerduty, routing-key-file: DIR/key}}\n",
        receiver.address()
    );
    let mut running = Running::start(&yaml, |dir| {
        let url = format!("http://{}/services/T0/s3cr3t\n", receiver.address());
        fs::write(dir.join("url"), url).unwrap();
        fs::write(dir.join("key"), "s3cr3t-routing-key\n").unwrap();
    })
    .unwrap();
    running.offer(about("e1", "raised", "c", "duplicate", "certain", "shop"));
    running.offer(about("e2", "resolved", "c", "duplicate", "certain", "shop"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 4).unwrap();
    let at = |path: &str| -> Vec<serde_json::Value> {
        let of = posted.iter().filter(|p| p.path == path);
        of.map(|p| p.json().unwrap()).collect()
    };
    let chat = at("/services/T0/s3cr3t");
    assert!(
        chat[0]["text"]
            .as_str()
            .unwrap()
            .contains("shop/web (veth1)"),
        "{chat:?}"
    );
    assert!(
        chat[1]["text"].as_str().unwrap().contains("resolved"),
        "{chat:?}"
    );
    let pager = at("/pager");
    assert_eq!(pager[0]["routing_key"], "s3cr3t-routing-key");
    let actions = [&pager[0]["event_action"], &pager[1]["event_action"]];
    assert_eq!(actions, ["trigger", "resolve"]);
    assert_eq!(pager[0]["dedup_key"], pager[1]["dedup_key"]);
    let metrics = running.metrics.encode(None).unwrap();
    assert!(!metrics.contains("s3cr3t"), "{metrics}");
}

#[test]
fn what_waits_survives_a_restart() {
    let mut receiver = Receiver::start().unwrap();
    receiver.refuse();
    let yaml = hook(&receiver.url(), "");
    let mut running = Running::start(&yaml, |_| ()).unwrap();
    for n in 0..50 {
        running.offer(event(&format!("r{n}"), "raised", &format!("c{n}")));
        running.offer(event(&format!("s{n}"), "resolved", &format!("c{n}")));
    }
    let directory = running.stop();
    receiver.admit().unwrap();
    let _running = Running::in_directory(&yaml, directory).unwrap();
    let posted = receiver
        .wait_until(DEADLINE, |p| accepted(p) == 100)
        .unwrap();
    let ids = ids(&posted);
    for n in 0..50 {
        let place = |id: String| ids.iter().position(|other| *other == id).unwrap();
        assert!(place(format!("r{n}")) < place(format!("s{n}")));
    }
}

#[test]
fn every_file_that_cannot_be_used_is_named_at_the_start() {
    let yaml = "webhooks:\n- {name: a, url: 'http://127.0.0.1:1', secret-files: [DIR/none]}\n\
                - {name: b, url-file: DIR/url}\n- {name: c, url: 'https://127.0.0.1:1', ca-file: DIR/url}\n\
                - {name: d, url: 'http://127.0.0.1:1', secret-files: [DIR/short]}\n\
                alertmanagers:\n- {name: e, url: 'http://127.0.0.1:1', header-files: {X-Key: DIR/empty}}\n";
    let error = Running::start(yaml, |dir| {
        fs::write(dir.join("url"), "not a url s3cr3t").unwrap();
        fs::write(dir.join("short"), "whsec_c2hvcnQ=").unwrap();
        fs::write(dir.join("empty"), "\n").unwrap();
    })
    .err()
    .unwrap()
    .to_string();
    for word in [
        "5 of the configured sinks",
        "`a`: cannot read",
        "/none",
        "`b`: ",
        "/url is no URL",
        "`c`: ",
        "/url holds no certificate",
        "`d`: ",
        "5 bytes",
        "`e`: ",
        "/empty is empty",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(
        !error.contains("s3cr3t") && !error.contains("c2hvcnQ"),
        "{error}"
    );
}

/// A certificate authority, and what it signed for 127.0.0.1 and for a client.
struct Certificates {
    ca: String,
    server: (String, Vec<u8>),
    client: (String, String),
}

fn certificates() -> Certificates {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let sign = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key)
    };
    let (server, server_key) = sign("127.0.0.1");
    let (client, client_key) = sign("agent");
    Certificates {
        ca: ca.pem(),
        server: (server, server_key.serialize_der()),
        client: (client, client_key.serialize_pem()),
    }
}

/// A receiver that speaks TLS and asks for a client certificate.
fn tls_receiver(certificates: &Certificates) -> Receiver {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der(&certificates.ca)).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::clone(&provider),
    )
    .build()
    .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certificates.server.1.clone()));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![der(&certificates.server.0)], key)
        .unwrap();
    let config = Arc::new(config);
    let wrap: Box<Wrap> = Box::new(move |stream| {
        let session =
            rustls::ServerConnection::new(Arc::clone(&config)).map_err(std::io::Error::other)?;
        Ok(Box::new(rustls::StreamOwned::new(session, stream)) as Box<dyn Stream>)
    });
    Receiver::start_with(wrap).unwrap()
}

#[test]
fn tls_trusts_the_given_authority_alone_and_shows_the_client_certificate() {
    let certificates = certificates();
    let stranger = self::certificates();
    let receiver = tls_receiver(&certificates);
    let url = format!("https://{}/hook", receiver.address());
    let files = "  ca-file: DIR/ca\n  client-cert-file: DIR/cert\n  client-key-file: DIR/key\n";
    let yaml = format!(
        "{}- name: wary\n  url: {url}\n  ca-file: DIR/stranger\n  retry: {{first: 20ms}}\n",
        hook(&url, files)
    );
    let mut running = Running::start(&yaml, |dir| {
        fs::write(dir.join("ca"), &certificates.ca).unwrap();
        fs::write(dir.join("stranger"), &stranger.ca).unwrap();
        fs::write(dir.join("cert"), &certificates.client.0).unwrap();
        fs::write(dir.join("key"), &certificates.client.1).unwrap();
    })
    .unwrap();
    running.offer(event("e1", "raised", "c1"));
    let posted = receiver.wait_until(DEADLINE, |p| accepted(p) == 1).unwrap();
    assert_eq!(ids(&posted), ["e1"]);
    running.wait_count("wary", "failed", 2);
    assert_eq!(receiver.posted().len(), 1);
    assert_eq!(running.count("wary", "delivered"), 0);
}

#[test]
fn raise_to_request_takes_milliseconds_with_fsync() {
    let receiver = Receiver::start().unwrap();
    let mut running = Running::start(&hook(&receiver.url(), ""), |_| ()).unwrap();
    let mut took = Vec::new();
    for n in 0..200 {
        let begun = Instant::now();
        running.offer(event(&format!("e{n}"), "raised", &format!("c{n}")));
        let posted = receiver.wait_until(DEADLINE, |p| p.len() > n).unwrap();
        took.push(posted[n].at - begun);
    }
    took.sort_unstable();
    let (half, most) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("raise to webhook request: p50 {half:?}, p99 {most:?}");
    // The target is 2 ms; a test machine that is busy with others gets ten times that.
    assert!(half < Duration::from_millis(20), "p50 {half:?}");
}
