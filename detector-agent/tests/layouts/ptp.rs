//! The plugin `ptp` (kind, GKE): the gateway's address on every host end, a host route that the first pod keeps because the
//! plugin ignores EEXIST, and ARP for the gateway from each pod.

use detector_testkit::{Cni, CniPod, DEADLINE, wait_reachable};

use crate::layout::Layout;

const SUBNET: &str = "10.244.2.0/24";
const ADDRESS: &str = "10.244.2.2";

/// A pod with [`ADDRESS`], even if another pod has it: the state of `host-local` was lost.
fn pod(layout: &Layout, cni: &Cni, name: &str) -> CniPod {
    cni.wipe().unwrap();
    let pod = cni.add_pod(&layout.node, name).unwrap();
    assert_eq!(pod.address().unwrap().to_string(), ADDRESS);
    pod
}

fn device(pod: &CniPod) -> String {
    pod.device().unwrap().to_owned()
}

/// Three pods with [`ADDRESS`]; the first has the route.
fn three_pods(layout: &Layout, cni: &Cni) -> [CniPod; 3] {
    let pods = ["a", "b", "c"].map(|name| pod(layout, cni, name));
    let devices = pods.each_ref().map(device);
    let [a, b, c] = devices.each_ref().map(String::as_str);
    let [first, second, third] = &pods;
    layout.expect(&[first, second, third], &[(ADDRESS, &[a, b, c], Some(a))]);
    pods
}

#[test]
fn pods_without_a_duplicate_raise_nothing() {
    let layout = Layout::new("ptp");
    let cni = Cni::ptp("kindnet", SUBNET).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| cni.add_pod(&layout.node, name).unwrap());
    for pod in [&b, &c] {
        let address = pod.address().unwrap();
        wait_reachable(a.netns(), address, DEADLINE).unwrap();
        wait_reachable(&layout.node, address, DEADLINE).unwrap();
    }
    let gateways = layout.node.ip("-o address show to 10.244.2.1").unwrap();
    assert_eq!(gateways.lines().count(), 3, "{gateways}");
    layout.expect_silence(&[&a, &b, &c]);
}

#[test]
fn first_pod_keeps_the_route_until_it_is_deleted() {
    let layout = Layout::new("ptp");
    let cni = Cni::ptp("kindnet", SUBNET).unwrap();
    let [first, second, third] = three_pods(&layout, &cni);
    let [a, b, c] = [&first, &second, &third].map(device);
    let (a, b, c) = (a.as_str(), b.as_str(), c.as_str());
    // The node's packets reach the first, and all of them have the address.
    wait_reachable(&layout.node, ADDRESS.parse().unwrap(), DEADLINE).unwrap();
    layout.expect(
        &[&first, &second, &third],
        &[(ADDRESS, &[a, b, c], Some(a))],
    );
    cni.remove_pod(&layout.node, first).unwrap();
    layout.expect(&[&second, &third], &[(ADDRESS, &[b, c], None)]);
    // The next pod finds no route and gets the traffic of the earlier two.
    let fourth = pod(&layout, &cni, "d");
    let d = device(&fourth);
    let d = d.as_str();
    layout.expect(
        &[&second, &third, &fourth],
        &[(ADDRESS, &[b, c, d], Some(d))],
    );
    cni.remove_pod(&layout.node, second).unwrap();
    layout.expect(&[&third, &fourth], &[(ADDRESS, &[c, d], Some(d))]);
    cni.remove_pod(&layout.node, fourth).unwrap();
    layout.expect_none(&[&third]);
    // The survivor cannot be reached until its route is programmed again.
    layout.expect_astray(&[ADDRESS]);
    layout.ip(&format!("route add {ADDRESS}/32 dev {c} scope host"));
    layout.expect_astray(&[]);
    wait_reachable(&layout.node, ADDRESS.parse().unwrap(), DEADLINE).unwrap();
    layout.events();
}

/// A namespace that is lost with its device, without DEL: the plugin never runs, and the allocation stays.
#[test]
fn route_goes_with_the_namespace_of_the_first_pod() {
    let layout = Layout::new("ptp");
    let cni = Cni::ptp("kindnet", SUBNET).unwrap();
    let [first, second, third] = three_pods(&layout, &cni);
    let [b, c] = [&second, &third].map(device);
    let (b, c) = (b.as_str(), c.as_str());
    drop(first);
    layout.expect(&[&second, &third], &[(ADDRESS, &[b, c], None)]);
    layout.ip(&format!("route add {ADDRESS}/32 dev {c} scope host"));
    layout.expect(&[&second, &third], &[(ADDRESS, &[b, c], Some(c))]);
    drop(second);
    layout.expect_none(&[&third]);
    layout.events();
}
