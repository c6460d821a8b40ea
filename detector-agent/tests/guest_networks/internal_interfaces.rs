//! Addresses on internal interfaces of a pod.

use crate::site::{ADDRESS, Site};

#[test]
fn address_on_a_dummy_or_an_ipvlan_interface_raises() {
    let interfaces = [
        ("dummy0", "link add dummy0 type dummy"),
        (
            "ipvlan0",
            "link add link eth0 name ipvlan0 type ipvlan mode l2",
        ),
    ];
    for (name, add) in interfaces {
        let site = Site::new(
            "internal",
            &[
                "link add cni0 type bridge",
                "link set cni0 up",
                "address add 10.9.8.1/24 dev cni0",
            ],
        );
        let _owner = site.pod("vetha", "cni0");
        let pod = site.quiet_pod("vethb", "cni0");
        let address = format!("address add {ADDRESS}/32 dev {name}");
        pod.netns().ip_batch([add, &address]).unwrap();
        let conflict = site.agent.wait_raised(ADDRESS).unwrap();
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    }
}
