//! Tests of both: records and devices as a test says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{join::spelled_out, *};
use crate::{engine::Peer, pods::Via};

fn pod(name: &str, via: Via) -> Pod {
    Pod {
        uid: Some(format!("uid-{name}")),
        container_id: Some(format!("cid-{name}")),
        ..Pod::named("default", name, via)
    }
}

fn record(name: &str, namespace: Option<NsId>, device: &str, created: i64) -> Record {
    Record {
        pod: pod(name, Via::Cri),
        namespace,
        devices: vec![device.to_owned()],
        addresses: Vec::new(),
        known_as: None,
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

fn named(catalogue: &DeviceMatcher, device: &PodDevice) -> Option<String> {
    catalogue.by_network(device).map(|pod| pod.name.clone())
}

#[test]
fn the_namespace_decides_before_the_name() {
    let catalogue = DeviceMatcher::new(vec![
        record("a", Some(1), "veth1", 1),
        record("b", Some(2), "veth2", 1),
    ]);
    assert_eq!(named(&catalogue, &device("veth1", Some(2))).unwrap(), "b");
    assert_eq!(named(&catalogue, &device("net1", Some(1))).unwrap(), "a");
}

#[test]
fn a_name_counts_where_one_of_the_namespaces_is_unknown() {
    let catalogue = DeviceMatcher::new(vec![
        record("a", Some(1), "veth1", 1),
        record("b", None, "veth2", 1),
    ]);
    assert_eq!(named(&catalogue, &device("veth1", None)).unwrap(), "a");
    assert_eq!(named(&catalogue, &device("veth2", Some(9))).unwrap(), "b");
    assert_eq!(named(&catalogue, &device("veth1", Some(9))), None);
}

#[test]
fn of_two_pods_with_one_device_name_the_newer_is_right() {
    let catalogue = DeviceMatcher::new(vec![
        record("new", None, "cali1", 20),
        record("old", None, "cali1", 10),
    ]);
    assert_eq!(named(&catalogue, &device("cali1", None)).unwrap(), "new");
}

#[test]
fn a_stopped_pod_is_found_by_its_namespace_only() {
    let mut stopped = record("a", Some(1), "veth1", 1);
    stopped.running = false;
    let catalogue = DeviceMatcher::new(vec![stopped]);
    assert_eq!(named(&catalogue, &device("veth1", None)), None);
    assert_eq!(named(&catalogue, &device("veth1", Some(1))).unwrap(), "a");
}

#[test]
fn a_catalogue_older_than_the_device_names_nothing_by_network() {
    let mut catalogues = Catalogues::default();
    let catalogue = DeviceMatcher::new(vec![record("a", Some(1), "veth1", 1)]);
    catalogues.set(Via::Cri, 3, catalogue);
    assert!(catalogues.name(&device("veth1", Some(1)), 4).is_none());
    assert!(catalogues.name(&device("veth1", Some(1)), 3).is_some());
}

#[test]
fn the_better_source_names_the_device() {
    let mut catalogues = Catalogues::default();
    let from = |via| {
        let mut record = record("a", Some(1), "cali0d7763386da", 1);
        record.pod = pod("web-0", via);
        DeviceMatcher::new(vec![record])
    };
    let kube_only = |mut catalogue: DeviceMatcher| {
        for record in &mut catalogue.records {
            record.namespace = None;
            record.devices.clear();
        }
        DeviceMatcher::new(catalogue.records)
    };
    let device = device("cali0d7763386da", Some(1));
    let via = |catalogues: &Catalogues| catalogues.name(&device, 0).map(|pod| pod.via);
    assert_eq!(via(&catalogues), None);
    catalogues.set(Via::CniCache, 1, kube_only(from(Via::CniCache)));
    assert_eq!(via(&catalogues), Some(Via::NameHash));
    catalogues.set(Via::Kube, 1, kube_only(from(Via::Kube)));
    assert_eq!(via(&catalogues), Some(Via::Kube));
    catalogues.set(Via::CniCache, 1, from(Via::CniCache));
    assert_eq!(via(&catalogues), Some(Via::CniCache));
    catalogues.set(Via::Cri, 1, from(Via::Cri));
    assert_eq!(via(&catalogues), Some(Via::Cri));
}

#[test]
fn kindnets_alias_spells_the_pod_out() {
    let mut device = device("knet0a1b2c3d", None);
    device.alias = Some("link-pod default/web-0".to_owned());
    let pod = Catalogues::default().name(&device, 0).unwrap();
    assert_eq!((&*pod.namespace, &*pod.name), ("default", "web-0"));
    assert_eq!(pod.via, Via::NameHash);
    for alias in ["link-pod /x", "link-pod x", "link-pod a/b c", "uplink a/b"] {
        assert_eq!(spelled_out(alias), None, "{alias}");
    }
}

fn with_addresses(name: &str, addresses: &[&str]) -> Record {
    Record {
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        devices: Vec::new(),
        ..record(name, None, "", 1)
    }
}

/// Each device's pod, or why it is not known.
fn by_address(
    records: Vec<Record>,
    devices: &[(u8, &[&str], Option<&str>)],
) -> Vec<(u8, Result<String, String>)> {
    let catalogue = DeviceMatcher::new(records);
    let devices: Vec<_> = devices
        .iter()
        .map(|(device, addresses, known)| {
            let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
            (
                *device,
                addresses,
                known.map(|name| Arc::new(pod(name, Via::Cri))),
            )
        })
        .collect();
    let mut found: Vec<_> = catalogue
        .by_address(&devices)
        .into_iter()
        .map(|(device, verdict)| (device, verdict.map(|pod| pod.name.clone())))
        .collect();
    found.sort();
    found
}

#[test]
fn an_address_that_one_pod_has_and_one_device_tells_the_pod() {
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
fn two_pods_of_one_address_are_told_apart_by_another_address_or_not_at_all() {
    let twice = ["10.0.0.1"];
    let records = vec![with_addresses("a", &twice), with_addresses("b", &twice)];
    let found = by_address(records.clone(), &[(1, &twice, None), (2, &twice, None)]);
    let because = Err("default/a, default/b have its address".to_owned());
    assert_eq!(found, [(1, because.clone()), (2, because)]);
    // One of them is known by a better source: the other is the other.
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
fn a_stolen_address_names_neither_the_thief_nor_the_owner() {
    let records = vec![with_addresses("a", &["10.0.0.1"])];
    let found = by_address(
        records,
        &[(1, &["10.0.0.1"], None), (2, &["10.0.0.1"], None)],
    );
    assert!(
        found.iter().all(|(_, verdict)| verdict.is_err()),
        "{found:?}"
    );
    assert_eq!(found.len(), 2);
}

#[test]
fn a_pod_that_ended_has_no_address() {
    let mut ended = with_addresses("a", &["10.0.0.1"]);
    ended.running = false;
    let records = vec![ended, with_addresses("b", &["10.0.0.1"])];
    let found = by_address(records, &[(1, &["10.0.0.1"], None)]);
    assert_eq!(found, [(1, Ok("b".to_owned()))]);
}

#[test]
fn kubernetes_completes_what_another_source_told_of_the_same_pod_only() {
    let mut catalogues = Catalogues::default();
    let mut told = with_addresses("a", &[]);
    told.pod.terminating = true;
    told.known_as = Some("static".to_owned());
    catalogues.set(Via::Kube, 1, DeviceMatcher::new(vec![told]));
    let complete = |uid: Option<&str>| {
        let uid = uid.map(str::to_owned);
        let pod = Pod {
            uid,
            ..Pod::named("default", "a", Via::Cri)
        };
        catalogues.complete(Arc::new(pod))
    };
    for uid in [None, Some("uid-a"), Some("static")] {
        let pod = complete(uid);
        assert_eq!((pod.uid.as_deref(), pod.terminating), (Some("uid-a"), true));
        assert_eq!(pod.via, Via::Cri);
    }
    assert!(!complete(Some("earlier")).terminating);
}
