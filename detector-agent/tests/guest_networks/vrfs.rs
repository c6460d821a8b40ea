//! VRFs are routing domains, and so networks of their own.

use crate::site::{ADDRESS, Site};

const VRFS: [&str; 4] = [
    "link add red type vrf table 1001",
    "link set red up",
    "link add blue type vrf table 1002",
    "link set blue up",
];

#[test]
fn one_address_in_two_vrfs_raises_nothing_until_a_device_moves() {
    let site = Site::new("vrfs", &VRFS);
    let _pods = [site.pod("vetha", "red"), site.pod("vethb", "blue")];
    site.assert_silent();
    site.node.ip("link set vethb master red").unwrap();
    site.expect("vrf:red", None, &["vetha", "vethb"]);
    site.node.ip("link set vethb nomaster").unwrap();
    site.expect_resolved();
}

#[test]
fn bridge_inside_a_vrf_is_part_of_it() {
    let site = Site::new("vrfbr", &VRFS);
    site.node
        .ip_batch([
            "link add br0 type bridge",
            "link set br0 master red",
            "address add 10.9.8.1/24 dev br0",
            "link set br0 up",
        ])
        .unwrap();
    let _pods = [site.pod("vetha", "br0"), site.pod("vethb", "blue")];
    site.assert_silent();
    let _third = site.pod("vethc", "red");
    site.expect("vrf:red", None, &["vetha", "vethc"]);
}

#[test]
fn traffic_follows_the_table_of_the_vrf() {
    let site = Site::new("vrfroute", &VRFS);
    let _pods = ["vetha", "vethb"].map(|device| site.pod(device, "red"));
    site.expect("vrf:red", None, &["vetha", "vethb"]);
    for device in ["vetha", "vethb"] {
        let routes = [
            format!("route replace {ADDRESS}/32 dev {device} vrf red"),
            // The main table has another receiver.
            format!("route replace {ADDRESS}/32 dev lo"),
        ];
        site.node.ip_batch(routes).unwrap();
        site.expect_receiver(device);
    }
}
