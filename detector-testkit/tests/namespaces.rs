//! Namespaces, pods and frames with the real kernel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::{fs::MetadataExt as _, process::ExitStatusExt as _},
    path::PathBuf,
    slice,
    time::Instant,
};

use anyhow::{Context as _, ensure};
use detector_testkit::{
    DEADLINE, Frame, FrameSender, MacAddress, NaFlags, Netns, Node, PodSpec, until,
};

#[test]
fn namespace_is_removed_after_a_panic() {
    let path = std::thread::spawn(|| {
        let netns = Netns::new("panic").unwrap();
        assert!(netns.path().exists());
        std::panic::panic_any(netns.path().to_path_buf());
    })
    .join()
    .unwrap_err()
    .downcast::<PathBuf>()
    .unwrap();
    assert!(!path.exists(), "{} still exists", path.display());
}

#[test]
fn leftovers_of_a_dead_process_are_removed_with_their_processes() {
    // The id of a process that has exited and was waited for belongs to no process.
    let mut exited = std::process::Command::new("true").spawn().unwrap();
    exited.wait().unwrap();
    let name = format!("ipconflict-{}-0-left", exited.id());
    detector_testkit::netns::remove_leftovers();
    let added = std::process::Command::new("ip")
        .args(["netns", "add", &name])
        .status()
        .unwrap();
    assert!(added.success());
    let mut inside = std::process::Command::new("ip")
        .args(["netns", "exec", &name, "sh", "-c"])
        // Like a pod of a container runtime: a child in a namespace of its own.
        .arg("unshare --net sleep 600; exit 1")
        .spawn()
        .unwrap();
    let namespace = std::fs::metadata(format!("/run/netns/{name}")).unwrap();
    let entered = PathBuf::from(format!("/proc/{}/ns/net", inside.id()));
    until(DEADLINE, "sleep to enter its namespace", || {
        ensure!(std::fs::metadata(&entered)?.ino() == namespace.ino());
        Ok(())
    })
    .unwrap();
    let child = until(DEADLINE, "the child in another namespace", || {
        let children = detector_testkit::process::children(inside.id());
        let child = *children.first().context("no child")?;
        let entered = std::fs::metadata(format!("/proc/{child}/ns/net"))?;
        ensure!(entered.ino() != namespace.ino());
        Ok(child)
    })
    .unwrap();
    detector_testkit::netns::remove_leftovers();
    assert!(!PathBuf::from("/run/netns").join(&name).exists());
    let status = inside.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it was not killed");
    until(DEADLINE, "the end of the child", || {
        let state = std::fs::read_to_string(format!("/proc/{child}/stat"));
        ensure!(!state.is_ok_and(|state| !state.contains(") Z ")), "it runs");
        Ok(())
    })
    .unwrap();
}

#[test]
fn command_in_a_namespace_sees_only_its_devices() {
    let netns = Netns::new("sees").unwrap();
    let links = netns.exec(&["ip", "-o", "link"]).unwrap();
    assert_eq!(links.lines().count(), 1, "{links}");
    assert!(links.contains("LOOPBACK,UP"), "{links}");
    netns.sysctl("net.ipv4.ip_forward", "1").unwrap();
    assert_eq!(
        netns
            .exec(&["cat", "/proc/sys/net/ipv4/ip_forward"])
            .unwrap()
            .trim(),
        "1"
    );
    let error = netns
        .exec(&["ip", "link", "show", "nothere"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("nothere"), "{error}");
}

#[test]
fn pod_matches_its_specification() {
    let node = Node::new("spec").unwrap();
    node.add_bridge("cni0", &["10.244.2.1/24"]).unwrap();
    let mac: MacAddress = "9e:83:2f:5d:c5:1e".parse().unwrap();
    let pod = node
        .add_pod(
            &PodSpec::new("cali.with.dot")
                .mac(mac)
                .host_mac(MacAddress([0xee; 6]))
                .address("10.244.2.10/32")
                .address("fd00::10/64")
                .host_route()
                .default_route()
                .mtu(1450)
                .master("cni0")
                .proxy_arp()
                .rp_filter(2),
        )
        .unwrap();
    assert_eq!(
        pod.addresses(),
        [
            IpAddr::V4(Ipv4Addr::new(10, 244, 2, 10)),
            "fd00::10".parse().unwrap()
        ]
    );
    let host = node.ip("-d link show cali.with.dot").unwrap();
    for wanted in ["ee:ee:ee:ee:ee:ee", "mtu 1450", "master cni0", "LOWER_UP"] {
        assert!(host.contains(wanted), "{wanted} in {host}");
    }
    assert!(
        node.ip("route")
            .unwrap()
            .contains("10.244.2.10 dev cali.with.dot scope link")
    );
    assert!(
        node.ip("-6 route")
            .unwrap()
            .contains("fd00::10 dev cali.with.dot")
    );
    assert_eq!(
        node.exec(&["cat", "/proc/sys/net/ipv4/conf/cali.with.dot/proxy_arp"])
            .unwrap()
            .trim(),
        "1"
    );
    assert_eq!(
        node.exec(&["cat", "/proc/sys/net/ipv4/conf/cali.with.dot/rp_filter"])
            .unwrap()
            .trim(),
        "2"
    );
    let eth0 = pod.netns().ip("address show eth0").unwrap();
    for wanted in [
        "9e:83:2f:5d:c5:1e",
        "mtu 1450",
        "10.244.2.10/32",
        "fd00::10/64",
    ] {
        assert!(eth0.contains(wanted), "{wanted} in {eth0}");
    }
    pod.delete().unwrap();
    assert!(node.ifindex("cali.with.dot").is_err());
}

#[test]
fn hundreds_of_pods_are_created_in_a_batch() {
    let node = Node::new("batch").unwrap();
    let specs: Vec<_> = (0..200)
        .map(|n| {
            PodSpec::new(format!("veth{n:08x}"))
                .address(format!("10.244.3.{n}/32"))
                .host_route()
        })
        .collect();
    let started = Instant::now();
    let pods = node.add_pods(&specs).unwrap();
    let created = started.elapsed();
    assert_eq!(
        node.ip("-o link show type veth").unwrap().lines().count(),
        200
    );
    node.delete_pods(pods).unwrap();
    println!(
        "200 pods: created in {created:?}, deleted in {:?}",
        started.elapsed() - created
    );
    assert_eq!(node.ip("-o link show type veth").unwrap(), "");
}

#[test]
fn kernel_learns_from_an_arp_request() {
    let node = Node::new("arp").unwrap();
    let pod = node.add_pod(&PodSpec::new("vethaaaa")).unwrap();
    node.ip_batch(["address add 10.0.0.1/24 dev vethaaaa"])
        .unwrap();
    node.wait_running(slice::from_ref(&pod)).unwrap();
    let sender = FrameSender::open(&pod).unwrap();
    sender
        .send(&Frame::request(
            pod.mac(),
            [10, 0, 0, 2].into(),
            [10, 0, 0, 1].into(),
        ))
        .unwrap();
    wait_for_neighbour(&node, "10.0.0.2", pod.mac());
}

#[test]
fn kernel_learns_from_solicitation_and_advertisement() {
    let node = Node::new("ndp").unwrap();
    let pod = node.add_pod(&PodSpec::new("vethbbbb")).unwrap();
    node.ip_batch(["address add fd00::1/64 dev vethbbbb nodad"])
        .unwrap();
    node.wait_running(slice::from_ref(&pod)).unwrap();
    node.netns().wait_local("fd00::1".parse().unwrap()).unwrap();
    let sender = FrameSender::open(&pod).unwrap();
    let address: Ipv6Addr = "fd00::2".parse().unwrap();
    sender
        .send(&Frame::solicitation(
            pod.mac(),
            address,
            "fd00::1".parse().unwrap(),
        ))
        .unwrap();
    wait_for_neighbour(&node, "fd00::2", pod.mac());
    // An advertisement with the override flag replaces the entry from the solicitation.
    let other = MacAddress::local(0xabc);
    sender
        .send(&Frame::advertisement(
            pod.mac(),
            address,
            Some(other),
            NaFlags::OVERRIDE,
        ))
        .unwrap();
    wait_for_neighbour(&node, "fd00::2", other);
}

fn wait_for_neighbour(node: &Node, address: &str, mac: MacAddress) {
    until(DEADLINE, format_args!("{address} at {mac}"), || {
        let table = node.ip("neigh show")?;
        let is_present = table.lines().any(|line| {
            line.starts_with(&format!("{address} ")) && line.contains(&mac.to_string())
        });
        ensure!(is_present, "the neighbour table is\n{table}");
        Ok(())
    })
    .unwrap();
}
