//! Pools of other IPAMs, as the IPAM watcher read them last: which address is allocated to whom is all that is known of them.

use std::{net::IpAddr, sync::Arc};

use detector_engine::{
    Allocation, Completeness, Ipam, Pool,
    diagnosis::{Known, NetworkConfig, PoolState, Source},
};

use super::record::{Allocations, FoundPool, Owner, OwnerIs, Scope};

/// Whether the address is, or may be, of the pool.
pub(super) fn may_have(pool: &Pool, address: IpAddr) -> bool {
    let ranges = &pool.coverage.ranges;
    pool.allocated.contains_key(&address)
        || ranges.is_empty()
        || ranges.iter().any(|range| range.contains(&address))
}

/// The pool of `network`. `is_only`: the node has no other network.
pub(super) fn pool(network: &NetworkConfig, is_only: bool, pool: &Pool) -> FoundPool {
    let place = pool.source.place.clone();
    let source = match place.starts_with('/') {
        true => Source::File(place.clone()),
        false => Source::KubernetesObject(place.clone()),
    };
    let ranges = &pool.coverage.ranges;
    FoundPool {
        network: NetworkConfig {
            ranges: ranges.clone(),
            ..network.clone()
        },
        allocations: match pool.completeness {
            Completeness::Unknown => Err("not all of it could be read".to_owned()),
            _ => Ok(Arc::new(allocations(pool))),
        },
        scope: match (ranges.is_empty(), is_only) {
            (false, _) => Scope::Ranges,
            (true, true) => Scope::Node,
            (true, false) => Scope::Unknown("the node has other networks".to_owned()),
        },
        place,
        address_source: source.clone(),
        releases: Known::Absent(source.clone()),
        source,
        state: match pool.source.ipam {
            Ipam::Whereabouts | Ipam::Spiderpool => PoolState::ByLease,
            _ => PoolState::Other,
        },
    }
}

fn allocations(pool: &Pool) -> Allocations {
    let owners = |(address, allocation): (&IpAddr, &Allocation)| {
        let named = [&allocation.owner, &allocation.second_owner];
        let named = named.into_iter().flatten();
        let mut owners: Vec<_> = named
            .map(|name| owner(name, allocation.not_a_pod))
            .collect();
        if owners.is_empty() {
            owners.push(Owner {
                name: "an owner that is not named".to_owned(),
                is: OwnerIs::Unnamed,
                at: None,
            });
        }
        (*address, owners)
    };
    pool.allocated.iter().map(owners).collect()
}

fn owner(name: &str, is_no_pod: bool) -> Owner {
    // As containerd and CRI-O make it.
    let is_sandbox = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Owner {
        is: match name.contains('/') {
            _ if is_no_pod => OwnerIs::Other,
            _ if is_sandbox => OwnerIs::Sandbox(name.to_owned()),
            true => OwnerIs::PodNamed(name.to_owned()),
            false => OwnerIs::Unnamed,
        },
        name: name.to_owned(),
        at: None,
    }
}
