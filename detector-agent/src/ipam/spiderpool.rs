//! Allocations of Spiderpool (`spiderpool.spidernet.io`). A pod's `SpiderEndpoint`, which has its name, names the `SpiderIPPool` that each
//! of its addresses is from; the pool has the owners of all its addresses, as a JSON text.
//!
//! Required role: `get` on `spiderendpoints` and `spiderippools`.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ::kube::{
    Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use detector_engine::Ipam;
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use serde::Deserialize;

use super::{
    lease_records::{LeasesReader, Record, Records, get},
    leases::{Lease, is_name},
    source::Source,
};

pub(super) const SOURCE: Source = Source {
    ipam: Ipam::Spiderpool,
    serves: |_, ipam| ipam == "spiderpool",
    is_found_by_leases: true,
    reader: |id, network, context| {
        let ipam = Ipam::Spiderpool;
        Box::new(LeasesReader::new(
            id,
            ipam,
            network,
            context,
            Arc::new(Spiderpool),
        ))
    },
};

/// Reads its objects.
#[derive(Debug)]
struct Spiderpool;

impl Records for Spiderpool {
    fn place(&self) -> String {
        "spiderippools.spiderpool.spidernet.io".to_owned()
    }

    fn read<'r>(
        &'r self,
        client: Client,
        lease: &'r Lease,
        address: IpAddr,
    ) -> BoxFuture<'r, Result<Record, String>> {
        Box::pin(async move {
            let endpoints = resource("SpiderEndpoint", "spiderendpoints");
            let namespace = Some(lease.namespace.as_str());
            // That of a virtual machine has another name, so one that is missing proves nothing.
            let endpoint = get(client.clone(), &endpoints, namespace, &lease.pod).await?;
            let Some(pool) = endpoint.and_then(|endpoint| pool_of(&endpoint, address)) else {
                return Ok(Record::Unknown);
            };
            let pools = resource("SpiderIPPool", "spiderippools");
            let pool = get(client, &pools, None, &pool).await?;
            Ok(pool.map_or(Record::Unknown, |pool| in_pool(&pool, address)))
        })
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("spiderpool.spidernet.io", "v2beta1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// The pool that an endpoint has the address from (`WorkloadEndpointStatus`).
pub(super) fn pool_of(endpoint: &DynamicObject, address: IpAddr) -> Option<String> {
    #[derive(Deserialize)]
    struct Current {
        ips: Vec<Details>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Details {
        ipv4: Option<IpNet>,
        ipv6: Option<IpNet>,
        ipv4_pool: Option<String>,
        ipv6_pool: Option<String>,
    }
    let current = endpoint.data.get("status")?.get("current")?;
    let addresses = Current::deserialize(current).ok()?.ips.into_iter();
    let mut addresses = addresses.flat_map(|of| [(of.ipv4, of.ipv4_pool), (of.ipv6, of.ipv6_pool)]);
    let (_, pool) = addresses.find(|(net, _)| net.is_some_and(|net| net.addr() == address))?;
    pool.filter(|pool| is_name(pool))
}

/// What a pool has about an address (`IPPoolStatus.AllocatedIPs`).
pub(super) fn in_pool(pool: &DynamicObject, address: IpAddr) -> Record {
    #[derive(Deserialize)]
    struct Owner {
        /// `namespace/name`.
        pod: String,
    }
    let status = pool.data.get("status");
    let Some(text) = status.and_then(|status| status.get("allocatedIPs")) else {
        return Record::Free;
    };
    let owners = text
        .as_str()
        .map(serde_json::from_str::<HashMap<IpAddr, Owner>>);
    match owners {
        Some(Ok(owners)) => owners
            .get(&address)
            .map_or(Record::Free, |owner| Record::of_pod(&owner.pod)),
        _ => Record::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use ::kube::api::ObjectList;

    use super::*;

    fn objects() -> [DynamicObject; 2] {
        let bytes = include_bytes!("../../../fuzz/corpus/ipam_spiderpool/objects");
        let list: ObjectList<DynamicObject> = serde_json::from_slice(bytes).unwrap();
        list.items.try_into().unwrap()
    }

    #[test]
    fn endpoint_names_the_pool_of_each_address() {
        let [endpoint, _] = objects();
        let pool = |address: &str| pool_of(&endpoint, address.parse().unwrap());
        assert_eq!(pool("172.31.199.193").as_deref(), Some("worker-172"));
        assert_eq!(pool("fd00:172:31::c1").as_deref(), Some("worker-v6"));
        assert_eq!(pool("172.31.199.194"), None);
        let mut without = endpoint.clone();
        without.data["status"] = serde_json::Value::Null;
        assert_eq!(pool_of(&without, [172, 31, 199, 193].into()), None);
    }

    #[test]
    fn pool_names_the_pod() {
        let [_, mut pool] = objects();
        let of = |pool: &DynamicObject, last| in_pool(pool, [172, 31, 199, last].into());
        assert_eq!(of(&pool, 193), Record::of_pod("shop/web-1"));
        assert_eq!(of(&pool, 194), Record::of_pod("shop/web-2"));
        assert_eq!(of(&pool, 195), Record::Free);
        pool.data["status"]["allocatedIPs"] = "{".into();
        assert_eq!(of(&pool, 193), Record::Unknown);
        // Nothing is allocated.
        pool.data["status"] = serde_json::json!({"totalIPCount": 100});
        assert_eq!(of(&pool, 193), Record::Free);
    }
}
