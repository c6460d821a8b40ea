//! Namespaces, pods and frames on the real kernel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    time::Instant,
};

use detector_testkit::{Frame, FrameSender, Mac, NaFlags, Netns, Node, PodSpec};

#[test]
fn a_namespace_is_gone_after_a_panic() {
    let path = std::thread::spawn(|| {
        let netns = Netns::new("panic").unwrap();
        assert!(netns.path().exists());
        std::panic::panic_any(netns.path().to_path_buf());
    })
    .join()
    .unwrap_err()
    .downcast::<PathBuf>()
    .unwrap();
    assert!(!path.exists(), "{} is still there", path.display());
}

#[test]
fn leftovers_of_a_dead_process_are_swept_with_what_runs_in_them() {
    // A process that has ended and been waited for: its id is nobody's.
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let name = format!("ipconflict-{}-0-left", gone.id());
    detector_testkit::netns::sweep_leftovers();
    let made = std::process::Command::new("ip")
        .args(["netns", "add", &name])
        .status()
        .unwrap();
    assert!(made.success());
    let mut inside = std::process::Command::new("ip")
        .args(["netns", "exec", &name, "sleep", "600"])
        .spawn()
        .unwrap();
    let namespace = std::fs::metadata(format!("/run/netns/{name}")).unwrap();
    let theirs = PathBuf::from(format!("/proc/{}/ns/net", inside.id()));
    let deadline = Instant::now() + std::time::Duration::from_secs(10);
    while std::fs::metadata(&theirs)
        .map(|data| std::os::unix::fs::MetadataExt::ino(&data))
        .ok()
        != Some(std::os::unix::fs::MetadataExt::ino(&namespace))
    {
        assert!(
            Instant::now() < deadline,
            "sleep did not enter its namespace"
        );
        std::thread::yield_now();
    }
    detector_testkit::netns::sweep_leftovers();
    assert!(!PathBuf::from("/run/netns").join(&name).exists());
    assert!(
        !inside.wait().unwrap().success(),
        "it was ended, it did not end"
    );
}

#[test]
fn what_runs_in_a_namespace_sees_only_its_devices() {
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
fn a_pod_is_as_specified() {
    let node = Node::new("spec").unwrap();
    node.add_bridge("cni0", &["10.244.2.1/24"]).unwrap();
    let mac: Mac = "9e:83:2f:5d:c5:1e".parse().unwrap();
    let pod = node
        .add_pod(
            &PodSpec::new("cali.with.dot")
                .mac(mac)
                .host_mac(Mac([0xee; 6]))
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
fn hundreds_of_pods_are_made_in_a_batch() {
    let node = Node::new("batch").unwrap();
    let specs: Vec<_> = (0..200)
        .map(|n| {
            PodSpec::new(format!("veth{n:08x}"))
                .address(format!("10.244.3.{n}/32"))
                .host_route()
        })
        .collect();
    let begun = Instant::now();
    let pods = node.add_pods(&specs).unwrap();
    let made = begun.elapsed();
    assert_eq!(
        node.ip("-o link show type veth").unwrap().lines().count(),
        200
    );
    node.delete_pods(pods).unwrap();
    println!(
        "200 pods: made in {made:?}, deleted in {:?}",
        begun.elapsed() - made
    );
    assert_eq!(node.ip("-o link show type veth").unwrap(), "");
}

#[test]
fn the_kernel_takes_an_arp_request_for_what_it_is() {
    let node = Node::new("arp").unwrap();
    let pod = node.add_pod(&PodSpec::new("vethaaaa")).unwrap();
    node.ip_batch(["address add 10.0.0.1/24 dev vethaaaa"])
        .unwrap();
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
fn the_kernel_takes_a_solicitation_and_an_advertisement_for_what_they_are() {
    let node = Node::new("ndp").unwrap();
    let pod = node.add_pod(&PodSpec::new("vethbbbb")).unwrap();
    node.ip_batch(["address add fd00::1/64 dev vethbbbb nodad"])
        .unwrap();
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
    // An advertisement that overrides changes the entry that the solicitation made.
    let other = Mac::local(0xabc);
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

fn wait_for_neighbour(node: &Node, address: &str, mac: Mac) {
    let deadline = Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let table = node.ip("neigh show").unwrap();
        if table
            .lines()
            .any(|line| line.starts_with(&format!("{address} ")) && line.contains(&mac.to_string()))
        {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{address} at {mac} is not in\n{table}"
        );
    }
}
