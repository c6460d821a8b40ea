//! Gateways that are not answered, and routes that lead elsewhere.

use super::*;

#[test]
fn filter_is_the_cause_only_if_it_drops_and_the_route_strays() {
    for (rp_filter, expected) in [
        (0, Cause::Unknown),
        (1, Cause::ReversePathFilter),
        (2, Cause::Unknown),
    ] {
        let mut facts = reverse_path_filter();
        facts.sysctls = known(DeviceSysctls {
            rp_filter,
            proxy_arp: true,
            has_address: true,
        });
        assert_eq!(diagnose(&facts).cause, expected, "{rp_filter}");
    }
    assert_eq!(
        diagnose(&loose_path_filter()).cause,
        Cause::ReversePathFilter
    );
    let mut bridged = reverse_path_filter();
    bridged.claimants[0].bridge = Some("veth-web-2".to_owned());
    let diagnosis = diagnose(&bridged);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert!(diagnosis.ruled_out.contains(&Cause::ReversePathFilter));
}

/// net/ipv4/arp.c looks up the source before it considers proxy ARP.
#[test]
fn filter_comes_before_proxy_arp() {
    let mut facts = reverse_path_filter();
    facts.sysctls = known(DeviceSysctls {
        rp_filter: 1,
        proxy_arp: false,
        has_address: false,
    });
    assert_eq!(diagnose(&facts).cause, Cause::ReversePathFilter);
}

#[test]
fn node_that_has_the_gateway_needs_no_proxy_arp() {
    let mut facts = no_proxy_arp();
    facts.gateway_on_node = known("cni0".to_owned());
    let diagnosis = diagnose(&facts);
    assert_eq!(diagnosis.cause, Cause::Unknown);
    assert_eq!(
        diagnosis.ruled_out,
        [Cause::ReversePathFilter, Cause::NoRoute, Cause::NoProxyArp]
    );
}

#[test]
fn route_back_to_the_pod_is_no_route_to_the_gateway() {
    let mut facts = no_route();
    facts.gateway_route = known(route("veth-web-1", RouteHolder::Node));
    assert_eq!(diagnose(&facts).cause, Cause::NoRoute);
    facts.gateway_route = known(route("eth0", RouteHolder::Node));
    assert_eq!(diagnose(&facts).cause, Cause::Unknown);
}

#[test]
fn source_without_a_route_is_dropped_by_either_mode_of_the_filter() {
    for (rp_filter, expected) in [
        (0, Cause::Unknown),
        (1, Cause::NoRoute),
        (2, Cause::NoRoute),
    ] {
        let mut facts = reverse_path_filter();
        facts.route = absent();
        facts.sysctls = known(DeviceSysctls {
            rp_filter,
            proxy_arp: true,
            has_address: true,
        });
        assert_eq!(diagnose(&facts).cause, expected, "{rp_filter}");
    }
}

#[test]
fn stray_route_is_explained_by_what_is_behind_its_device() {
    let cases = [
        (known(RouteHolder::Node), Cause::Unknown),
        (not_checked(), Cause::Unknown),
        (absent(), Cause::Unknown),
        (known(RouteHolder::DeletedPod), Cause::RouteOfDeletedPod),
        (
            known(RouteHolder::Pod("a/b".to_owned())),
            Cause::RouteOfOtherPod,
        ),
    ];
    for (holder, expected) in cases {
        let mut facts = route_of_other_pod();
        if let Known::Value(route, _) = &mut facts.route {
            route.holder = holder;
        }
        assert_eq!(diagnose(&facts).cause, expected);
    }
    let mut right = route_of_other_pod();
    right.claimants[0].device = "veth-web-2".to_owned();
    assert_eq!(diagnose(&right).cause, Cause::Unknown);
}
