//! Tests of matching devices with records.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use detector_engine::Peer;
use detector_event::Via;

use super::{sources::pod_in_alias, *};

fn pod(name: &str, via: Via) -> Pod {
    Pod {
        uid: Some(format!("uid-{name}")),
        container_id: Some(format!("cid-{name}")),
        ..Pod::named("default", name, via)
    }
}

fn record(name: &str, namespace: Option<NsId>, device: &str, created: i64) -> PodRecord {
    PodRecord {
        pod: pod(name, Via::Cri),
        namespace,
        devices: vec![device.to_owned()],
        network: None,
        addresses: Vec::new(),
        secondary_addresses: Vec::new(),
        runtime_uid: None,
        running: true,
        created,
    }
}

fn device(name: &str, nsid: Option<NsId>) -> PodDevice {
    PodDevice {
        ifindex: 7,
        generation: 1,
        name: name.to_owned(),
        alias: None,
        peer: nsid.map(|nsid| Peer { nsid, ifindex: 2 }),
    }
}

fn by_network(matcher: &DeviceMatcher, device: &PodDevice) -> Option<String> {
    matcher.by_network(device).map(|pod| pod.name.clone())
}

#[test]
fn namespace_takes_precedence_over_device_name() {
    let matcher = DeviceMatcher::new(vec![
        record("a", Some(1), "veth1", 1),
        record("b", Some(2), "veth2", 1),
    ]);
    assert_eq!(
        by_network(&matcher, &device("veth1", Some(2))).unwrap(),
        "b"
    );
    assert_eq!(by_network(&matcher, &device("net1", Some(1))).unwrap(), "a");
}

#[test]
fn device_name_matches_if_a_namespace_is_unknown() {
    let matcher = DeviceMatcher::new(vec![
        record("a", Some(1), "veth1", 1),
        record("b", None, "veth2", 1),
    ]);
    assert_eq!(by_network(&matcher, &device("veth1", None)).unwrap(), "a");
    assert_eq!(
        by_network(&matcher, &device("veth2", Some(9))).unwrap(),
        "b"
    );
    assert_eq!(by_network(&matcher, &device("veth1", Some(9))), None);
}

#[test]
fn newer_of_two_pods_with_one_device_name_wins() {
    let matcher = DeviceMatcher::new(vec![
        record("new", None, "cali1", 20),
        record("old", None, "cali1", 10),
    ]);
    assert_eq!(by_network(&matcher, &device("cali1", None)).unwrap(), "new");
}

#[test]
fn stopped_pod_is_matched_by_namespace_only() {
    let mut stopped = record("a", Some(1), "veth1", 1);
    stopped.running = false;
    let matcher = DeviceMatcher::new(vec![stopped]);
    assert_eq!(by_network(&matcher, &device("veth1", None)), None);
    assert_eq!(
        by_network(&matcher, &device("veth1", Some(1))).unwrap(),
        "a"
    );
}

#[test]
fn snapshot_older_than_device_is_not_matched_by_network() {
    let mut sources = SourceMatchers::default();
    let matcher = DeviceMatcher::new(vec![record("a", Some(1), "veth1", 1)]);
    sources.set(Via::Cri, 3, matcher);
    assert!(sources.find(&device("veth1", Some(1)), 4).is_none());
    assert!(sources.find(&device("veth1", Some(1)), 3).is_some());
}

#[test]
fn better_source_wins() {
    let mut sources = SourceMatchers::default();
    let from = |via| {
        let mut record = record("a", Some(1), "cali0d7763386da", 1);
        record.pod = pod("web-0", via);
        DeviceMatcher::new(vec![record])
    };
    let kube_only = |mut matcher: DeviceMatcher| {
        for record in &mut matcher.records {
            record.namespace = None;
            record.devices.clear();
        }
        DeviceMatcher::new(matcher.records)
    };
    let device = device("cali0d7763386da", Some(1));
    let via = |sources: &SourceMatchers| sources.find(&device, 0).map(|pod| pod.via);
    assert_eq!(via(&sources), None);
    sources.set(Via::CniCache, 1, kube_only(from(Via::CniCache)));
    assert_eq!(via(&sources), Some(Via::NameHash));
    sources.set(Via::Kube, 1, kube_only(from(Via::Kube)));
    assert_eq!(via(&sources), Some(Via::Kube));
    sources.set(Via::CniCache, 1, from(Via::CniCache));
    assert_eq!(via(&sources), Some(Via::CniCache));
    sources.set(Via::Cri, 1, from(Via::Cri));
    assert_eq!(via(&sources), Some(Via::Cri));
}

#[test]
fn kindnet_alias_contains_the_pod() {
    let mut device = device("knet0a1b2c3d", None);
    device.alias = Some("link-pod default/web-0".to_owned());
    let pod = SourceMatchers::default().find(&device, 0).unwrap();
    assert_eq!((&*pod.namespace, &*pod.name), ("default", "web-0"));
    assert_eq!(pod.via, Via::NameHash);
    for alias in ["link-pod /x", "link-pod x", "link-pod a/b c", "uplink a/b"] {
        assert_eq!(pod_in_alias(alias), None, "{alias}");
    }
}

fn with_addresses(name: &str, addresses: &[&str]) -> PodRecord {
    PodRecord {
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        devices: Vec::new(),
        ..record(name, None, "", 1)
    }
}

/// Each device's pod, or why it is not known.
fn by_address(
    records: Vec<PodRecord>,
    devices: &[(u8, &[&str], Option<&str>)],
) -> Vec<(u8, Result<String, String>)> {
    let matcher = DeviceMatcher::new(records);
    let candidates: Vec<_> = devices
        .iter()
        .map(|(device, addresses, known)| {
            let addresses: Vec<_> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            AddressCandidate {
                device: *device,
                is_bare: addresses.is_empty(),
                addresses,
                pod: known.map(|name| Arc::new(pod(name, Via::Cri))),
            }
        })
        .collect();
    let mut found: Vec<_> = matcher
        .by_address(&candidates)
        .into_iter()
        .map(|(device, outcome)| (device, outcome.map(|pod| pod.name.clone())))
        .collect();
    found.sort();
    found
}

#[test]
fn unique_address_identifies_the_pod() {
    let records = vec![
        with_addresses("a", &["10.0.0.1", "fd00::1"]),
        with_addresses("b", &["10.0.0.2"]),
    ];
    let devices: [(u8, &[&str], _); 3] = [
        (1, &["fd00::1", "10.0.0.1", "fe80::1"], None),
        (2, &["10.0.0.2"], None),
        (3, &["10.0.0.3"], None),
    ];
    let expected = [(1, Ok("a".to_owned())), (2, Ok("b".to_owned()))];
    assert_eq!(by_address(records, &devices), expected);
}

#[test]
fn shared_address_needs_a_second_address_to_match() {
    let twice = ["10.0.0.1"];
    let records = vec![with_addresses("a", &twice), with_addresses("b", &twice)];
    let found = by_address(records.clone(), &[(1, &twice, None), (2, &twice, None)]);
    let because = Err("its address is shared by default/a, default/b".to_owned());
    assert_eq!(found, [(1, because.clone()), (2, because)]);
    // A better source has already matched one of them.
    let found = by_address(records, &[(1, &twice, Some("a")), (2, &twice, None)]);
    assert_eq!(found, [(2, Ok("b".to_owned()))]);
    let records = vec![
        with_addresses("a", &["10.0.0.1", "fd00::1"]),
        with_addresses("b", &["10.0.0.1", "fd00::2"]),
    ];
    let devices: [(u8, &[&str], _); 2] = [
        (1, &["10.0.0.1", "fd00::1"], None),
        (2, &["10.0.0.1", "fd00::2"], None),
    ];
    let expected = [(1, Ok("a".to_owned())), (2, Ok("b".to_owned()))];
    assert_eq!(by_address(records, &devices), expected);
}

#[test]
fn address_on_two_devices_matches_neither() {
    let records = vec![with_addresses("a", &["10.0.0.1"])];
    let found = by_address(
        records,
        &[(1, &["10.0.0.1"], None), (2, &["10.0.0.1"], None)],
    );
    assert!(
        found.iter().all(|(_, outcome)| outcome.is_err()),
        "{found:?}"
    );
    assert_eq!(found.len(), 2);
}

/// Device 2 is that of a pod whose stack is a program, which shows no address: device 1 may have
/// taken it.
#[test]
fn taken_address_does_not_identify_a_pod() {
    let records = || vec![with_addresses("program", &["10.0.0.1"])];
    let devices: [(u8, &[&str], _); 2] = [(1, &["10.0.0.1"], None), (2, &[], None)];
    let found = by_address(records(), &devices);
    let because = "it has the address of default/program, but may have taken it: the pod of another device shows none";
    assert_eq!(found, [(1, Err(because.to_owned()))]);
    // Once the other device's pod is known, there is no doubt.
    let devices: [(u8, &[&str], _); 2] = [(1, &["10.0.0.1"], None), (2, &[], Some("other"))];
    assert_eq!(
        by_address(records(), &devices),
        [(1, Ok("program".to_owned()))]
    );
}

#[test]
fn ended_pod_has_no_address() {
    let mut ended = with_addresses("a", &["10.0.0.1"]);
    ended.running = false;
    let records = vec![ended, with_addresses("b", &["10.0.0.1"])];
    let found = by_address(records, &[(1, &["10.0.0.1"], None)]);
    assert_eq!(found, [(1, Ok("b".to_owned()))]);
}

#[test]
fn kube_details_are_added_to_the_same_pod_only() {
    let mut sources = SourceMatchers::default();
    let mut record = with_addresses("a", &[]);
    record.pod.terminating = true;
    record.runtime_uid = Some("static".to_owned());
    sources.set(Via::Kube, 1, DeviceMatcher::new(vec![record]));
    let complete = |uid: Option<&str>| {
        let uid = uid.map(str::to_owned);
        let pod = Pod {
            uid,
            ..Pod::named("default", "a", Via::Cri)
        };
        sources.with_details(Arc::new(pod))
    };
    for uid in [None, Some("uid-a"), Some("static")] {
        let pod = complete(uid);
        assert_eq!((pod.uid.as_deref(), pod.terminating), (Some("uid-a"), true));
        assert_eq!(pod.via, Via::Cri);
    }
    assert!(!complete(Some("earlier")).terminating);
}

#[test]
fn primary_addresses_are_of_the_best_source_that_has_any() {
    let of = |via: Via, cid: &str, addresses: &[&str]| PodRecord {
        pod: Pod {
            via,
            container_id: Some(format!("cid-{cid}")),
            ..pod("a", via)
        },
        ..with_addresses("a", addresses)
    };
    let mut sources = SourceMatchers::default();
    let addresses = |sources: &SourceMatchers, pod: Pod| {
        let pod = sources.with_details(Arc::new(pod));
        let addresses = pod.primary_addresses.iter();
        addresses.map(ToString::to_string).collect::<Vec<_>>()
    };
    let known = || pod("a", Via::CniCache);
    assert_eq!(addresses(&sources, known()), [""; 0]);
    let mut api = of(Via::Kube, "x", &["10.0.0.1", "fd00::1"]);
    api.pod.container_id = None;
    sources.set(Via::Kube, 1, DeviceMatcher::new(vec![api.clone()]));
    assert_eq!(addresses(&sources, known()), ["10.0.0.1", "fd00::1"]);
    let earlier = Pod {
        uid: Some("earlier".to_owned()),
        ..known()
    };
    assert_eq!(addresses(&sources, earlier), [""; 0], "of the same name");
    // With several interfaces there is a result for each.
    let cached = ["10.0.0.2"].map(|address| of(Via::CniCache, "a", &[address]));
    let secondary = of(Via::CniCache, "a", &[]);
    let others = of(Via::CniCache, "b", &["10.0.0.3"]);
    let records = cached.into_iter().chain([secondary, others]).collect();
    sources.set(Via::CniCache, 1, DeviceMatcher::new(records));
    assert_eq!(addresses(&sources, known()), ["10.0.0.2"]);
    let running = of(Via::Cri, "a", &["10.0.0.4"]);
    sources.set(Via::Cri, 1, DeviceMatcher::new(vec![running]));
    assert_eq!(addresses(&sources, known()), ["10.0.0.4"]);
    // What is known stays when no source has it any more.
    let named = Pod {
        primary_addresses: vec!["10.0.0.4".parse().unwrap()],
        ..known()
    };
    let none = SourceMatchers::default();
    assert_eq!(addresses(&none, named), ["10.0.0.4"]);
}
