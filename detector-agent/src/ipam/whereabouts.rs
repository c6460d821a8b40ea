//! Allocations of whereabouts, which gives pods addresses of ranges that all nodes share (`whereabouts.cni.cncf.io`). Before it
//! returns an address, it writes the pod's name into two objects: the allocation in the range's `IPPool`, and an
//! `OverlappingRangeIPReservation` named by the address, unless ranges do not overlap according to the configuration.
//!
//! Required role: `get` on `overlappingrangeipreservations` and `ippools`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ::kube::{
    Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use detector_engine::Ipam;
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::{
    lease_records::{LeasesReader, Record, Records, get},
    leases::{Lease, is_name},
    source::Source,
};

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::Whereabouts,
    serves: |_, ipam| ipam == "whereabouts",
    is_found_by_leases: true,
    reader: |id, network, context| {
        let namespace = context.settings.whereabouts_namespace.clone();
        let records = Arc::new(Whereabouts { namespace });
        let ipam = Ipam::Whereabouts;
        Box::new(LeasesReader::new(id, ipam, network, context, records))
    },
};

/// Reads its objects.
#[derive(Debug)]
struct Whereabouts {
    /// Where they are.
    namespace: String,
}

impl Records for Whereabouts {
    fn place(&self) -> String {
        "overlappingrangeipreservations.whereabouts.cni.cncf.io".to_owned()
    }

    fn space<'l>(&self, lease: &'l Lease) -> &'l str {
        let name = lease.config.get("network_name");
        name.and_then(Value::as_str).unwrap_or_default()
    }

    fn read<'r>(
        &'r self,
        client: Client,
        lease: &'r Lease,
        address: IpAddr,
    ) -> BoxFuture<'r, Result<Record, String>> {
        Box::pin(async move {
            let Ok(config) = Config::deserialize(&lease.config) else {
                return Ok(Record::Unknown);
            };
            let namespace = Some(self.namespace.as_str());
            let reservations = resource(
                "OverlappingRangeIPReservation",
                "overlappingrangeipreservations",
            );
            for name in config.reservations(address) {
                let client = client.clone();
                if let Some(found) = get(client, &reservations, namespace, &name).await? {
                    return Ok(reserved_for(&found));
                }
            }
            let Some(name) = config.pool(address) else {
                return Ok(Record::Unknown);
            };
            let pool = get(client, &resource("IPPool", "ippools"), namespace, &name).await?;
            Ok(pool.map_or(Record::Unknown, |pool| in_pool(&pool, address)))
        })
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// The fields in use of its configuration (`IPAMConfig` in `pkg/types`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    range: String,
    #[serde(rename = "ipRanges")]
    ranges: Vec<Range>,
    /// Networks with different names have addresses of their own.
    network_name: String,
    /// Each node has a slice of the range, with a pool of its own. A number, or text such as `/26`.
    node_slice_size: Option<Value>,
}

#[derive(Deserialize)]
struct Range {
    range: String,
}

impl Config {
    /// The names that the reservation of an address may have (`NormalizeIP`): newer versions write all digits of an IPv6 address.
    fn reservations(&self, address: IpAddr) -> Vec<String> {
        let mut names = vec![self.named(&address.to_string())];
        if let IpAddr::V6(address) = address {
            let groups = address.segments().map(|group| format!("{group:04x}"));
            names.push(self.named(&groups.join("-")));
        }
        names.retain(|name| is_name(name) && !name.starts_with('-'));
        names
    }

    /// The name of the pool whose range has the address (`IPPoolName`).
    fn pool(&self, address: IpAddr) -> Option<String> {
        if self.node_slice_size.is_some() {
            return None;
        }
        let ranges = self.ranges.iter().map(|range| range.range.as_str());
        let mut ranges = [self.range.as_str()].into_iter().chain(ranges);
        let range = ranges.find_map(|range| {
            // Also written as `<first>-<last>/<length>`.
            let range = range.split_once('-').map_or(range, |(_, last)| last);
            let range: IpNet = range.trim().parse().ok()?;
            range.contains(&address).then(|| range.trunc())
        })?;
        let name = self.named(&range.to_string());
        is_name(&name).then_some(name)
    }

    fn named(&self, text: &str) -> String {
        let text = if text.ends_with(':') {
            format!("{text}0")
        } else {
            text.to_owned()
        };
        let text = text.replace([':', '/'], "-");
        match self.network_name.as_str() {
            "" => text,
            network => format!("{network}-{text}"),
        }
    }
}

/// The owner of a reservation or of an allocation.
#[derive(Deserialize)]
struct Owner {
    /// `namespace/name`.
    #[serde(default)]
    podref: String,
}

fn reserved_for(reservation: &DynamicObject) -> Record {
    let spec = reservation.data.get("spec").unwrap_or_default();
    Owner::deserialize(spec).map_or(Record::Unknown, |owner| Record::of_pod(&owner.podref))
}

/// What a pool has about an address. Its allocations are numbered from the address that its range is written with.
pub(super) fn in_pool(pool: &DynamicObject, address: IpAddr) -> Record {
    #[derive(Deserialize)]
    struct Spec {
        range: String,
        allocations: BTreeMap<String, Owner>,
    }
    let spec = pool.data.get("spec").unwrap_or_default();
    let Ok(spec) = Spec::deserialize(spec) else {
        return Record::Unknown;
    };
    let range = spec.range.parse::<IpNet>().ok();
    let Some(range) = range.filter(|range| range.contains(&address)) else {
        return Record::Unknown;
    };
    let offset = number(address).checked_sub(number(range.addr()));
    let owner = offset.and_then(|offset| spec.allocations.get(&offset.to_string()));
    owner.map_or(Record::Free, |owner| Record::of_pod(&owner.podref))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(Ipv4Addr::to_bits(address)),
        IpAddr::V6(address) => Ipv6Addr::to_bits(address),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use ::kube::api::ObjectList;
    use detector_engine::Allocation;
    use serde_json::json;

    use super::*;

    fn objects() -> Vec<DynamicObject> {
        let bytes = include_bytes!("../../../fuzz/corpus/ipam_whereabouts/objects");
        let list: ObjectList<DynamicObject> = serde_json::from_slice(bytes).unwrap();
        list.items
    }

    fn config(value: Value) -> Config {
        serde_json::from_value(value).unwrap()
    }

    fn pool_of(config: &Config, address: &str) -> Option<String> {
        config.pool(address.parse().unwrap())
    }

    #[test]
    fn names_of_objects_follow_from_the_configuration() {
        let plain = config(json!({"type": "whereabouts", "range": "192.168.2.225/28"}));
        assert_eq!(
            plain.reservations([192, 168, 2, 229].into()),
            ["192.168.2.229"]
        );
        assert_eq!(
            pool_of(&plain, "192.168.2.229").as_deref(),
            Some("192.168.2.224-28")
        );
        assert_eq!(pool_of(&plain, "192.168.3.1"), None);
        let named = config(json!({"network_name": "lan", "ipRanges": [
            {"range": "10.0.0.5-10.0.0.9/24"}, {"range": "fd00::/64"}]}));
        assert_eq!(
            pool_of(&named, "10.0.0.7").as_deref(),
            Some("lan-10.0.0.0-24")
        );
        assert_eq!(pool_of(&named, "fd00::7").as_deref(), Some("lan-fd00---64"));
        let names = named.reservations("fd00::".parse().unwrap());
        assert_eq!(
            names,
            ["lan-fd00--0", "lan-fd00-0000-0000-0000-0000-0000-0000-0000"]
        );
        let sliced = config(json!({"range": "10.0.0.0/16", "node_slice_size": "/24"}));
        assert_eq!(
            pool_of(&sliced, "10.0.0.7"),
            None,
            "which slice is not known"
        );
        let odd = config(json!({"range": "10.0.0.0/16", "network_name": "../x"}));
        assert_eq!(pool_of(&odd, "10.0.0.7"), None);
        assert!(odd.reservations([10, 0, 0, 7].into()).is_empty());
    }

    #[test]
    fn reservation_and_pool_name_the_pod() {
        let [reservation, pool] = objects().try_into().unwrap();
        assert_eq!(reserved_for(&reservation), Record::of_pod("shop/web-1"));
        let of = |address: &str| in_pool(&pool, address.parse().unwrap());
        assert_eq!(of("192.168.2.225"), Record::of_pod("shop/web-1"));
        // Early versions wrote no pod.
        assert_eq!(
            of("192.168.2.226"),
            Record::Allocated(Allocation::default())
        );
        assert_eq!(of("192.168.2.227"), Record::Free);
        assert_eq!(of("192.168.3.227"), Record::Unknown);
        let mut broken = pool;
        broken.data["spec"]["range"] = "all".into();
        assert_eq!(in_pool(&broken, [192, 168, 2, 227].into()), Record::Unknown);
    }
}
