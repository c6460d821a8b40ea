//! Bridges that filter VLANs, and VLAN interfaces on bridges.

use crate::site::{Site, announce};

const FILTERING: &str = "link add br0 type bridge vlan_filtering 1";

fn filtering(prefix: &str) -> Site {
    Site::new(prefix, &[FILTERING, "link set br0 up"])
}

impl Site {
    /// Makes a device an access port of a VLAN.
    fn access_port(&self, device: &str, id: u16) {
        self.bridge(&format!("vlan del dev {device} vid 1"));
        self.bridge(&format!("vlan add dev {device} vid {id} pvid untagged"));
    }
}

#[test]
fn access_ports_of_two_vlans_are_separate_until_they_share_one() {
    let site = filtering("access");
    let (a, b) = (
        site.quiet_pod("vetha", "br0"),
        site.quiet_pod("vethb", "br0"),
    );
    site.access_port("vetha", 10);
    site.access_port("vethb", 20);
    for pod in [&a, &b] {
        announce(pod, None);
        pod.netns().ip("address add 10.9.8.5/24 dev eth0").unwrap();
    }
    site.assert_silent();
    site.bridge("vlan add dev vethb vid 10 pvid untagged");
    site.expect("bridge:br0", Some(10), &["vetha", "vethb"]);
}

#[test]
fn access_port_and_the_tag_of_a_trunk_are_one_vlan() {
    let site = filtering("trunk");
    let (a, b) = (
        site.quiet_pod("vetha", "br0"),
        site.quiet_pod("vethb", "br0"),
    );
    site.access_port("vetha", 10);
    for id in [10, 20] {
        site.bridge(&format!("vlan add dev vethb vid {id}"));
    }
    announce(&a, None);
    announce(&b, Some(20));
    site.assert_silent();
    announce(&b, Some(10));
    site.expect("bridge:br0", Some(10), &["vetha", "vethb"]);
}

#[test]
fn tag_that_equals_the_ports_pvid_does_not_hide_a_claim() {
    let site = Site::new(
        "pvid",
        &[
            FILTERING,
            "address add 10.9.8.1/24 dev br0",
            "link set br0 up",
        ],
    );
    let _victim = site.pod("vetha", "br0");
    let attacker = site.quiet_pod("vethb", "br0");
    site.assert_silent();
    announce(&attacker, Some(1));
    site.expect("node", None, &["vetha", "vethb"]);
}

#[test]
fn vlan_belongs_to_the_node_while_its_interface_has_an_address() {
    let site = Site::new(
        "vlanif",
        &[
            FILTERING,
            "link set br0 up",
            "link add link br0 name br0.10 type vlan id 10",
            "link set br0.10 up",
            "link add br1 type bridge",
            "address add 10.9.8.1/24 dev br1",
            "link set br1 up",
        ],
    );
    site.bridge("vlan add dev br0 vid 10 self");
    let _routed = site.pod("vetha", "br1");
    let in_vlan = site.quiet_pod("vethb", "br0");
    site.access_port("vethb", 10);
    in_vlan
        .netns()
        .ip("address add 10.9.8.5/24 dev eth0")
        .unwrap();
    site.assert_silent();
    site.node.ip("address add 10.9.8.2/24 dev br0.10").unwrap();
    site.expect("node", None, &["vetha", "vethb"]);
    site.node.ip("address del 10.9.8.2/24 dev br0.10").unwrap();
    site.expect_resolved();
}

#[test]
fn filtering_that_is_switched_on_separates_the_ports() {
    let site = Site::new("switch", &["link add br0 type bridge", "link set br0 up"]);
    let _pods = ["vetha", "vethb"].map(|device| site.pod(device, "br0"));
    site.expect("bridge:br0", None, &["vetha", "vethb"]);
    site.access_port("vethb", 20);
    site.node
        .ip("link set br0 type bridge vlan_filtering 1")
        .unwrap();
    site.expect_resolved();
}
