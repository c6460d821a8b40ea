//! What is remembered of pools.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use detector_engine::{ChangedAddresses, Coverage, PoolPart, PoolSource, Timestamp};

use super::*;

const PLACE: &str = "/var/lib/cni/networks/pods";

fn read(completeness: Completeness, addresses: &[&str]) -> PoolUpdate {
    let allocated = addresses
        .iter()
        .map(|a| (a.parse().unwrap(), Allocation::default()));
    let pool = Pool {
        id: PoolId(1),
        source: Arc::new(PoolSource {
            ipam: Ipam::HostLocal,
            network: "pods".to_owned(),
            place: PLACE.to_owned(),
        }),
        coverage: Coverage::default(),
        completeness,
        allocated: allocated.collect::<BTreeMap<IpAddr, _>>(),
        can_detect_leaks: false,
        record_delay: Duration::ZERO,
        read_at: Timestamp(1),
        parts: None,
    };
    PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All)
}

fn items(history: &PoolHistory) -> Vec<RemovedItem> {
    let removals = history.at(PLACE);
    removals.value().unwrap().iter().map(|r| r.item).collect()
}

#[test]
fn release_and_wipe_are_told_apart() {
    let history = PoolHistory::default();
    assert!(history.at(PLACE).not_checked().is_some());
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    history.note(&read(Completeness::Complete, &all));
    assert_eq!(items(&history), []);
    history.note(&read(Completeness::Complete, &all[1..]));
    let released = |address: &str| RemovedItem::Reservation(address.parse().unwrap());
    assert_eq!(items(&history), [released("10.0.0.1")]);
    // Nothing is known of what cannot be read.
    history.note(&read(Completeness::Unknown, &[]));
    history.note(&read(Completeness::Deleted, &[]));
    let expected = [
        released("10.0.0.1"),
        RemovedItem::Directory,
        released("10.0.0.2"),
        released("10.0.0.3"),
    ];
    assert_eq!(items(&history), expected);
}

#[test]
fn history_is_bounded() {
    let history = PoolHistory::default();
    let address = |n: u16| format!("10.0.{}.{}", n / 256, n % 256);
    let many: Vec<_> = (0..5_000).map(address).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    history.note(&read(Completeness::Complete, &many));
    history.note(&read(Completeness::Complete, &[]));
    assert_eq!(items(&history).len(), MAX_REMOVALS);
}

const BLOCKS: &str = "ipamblocks";

/// A read of the blocks with these addresses, and what they have allocated to whom.
fn read_blocks(blocks: &[&str], allocated: &[(&str, &str)]) -> PoolUpdate {
    let PoolUpdate::Read(pool, changed) = read(Completeness::Complete, &[]) else {
        unreachable!()
    };
    let part = |block: &&str| PoolPart {
        range: {
            let range: ipnet::IpNet = block.parse().unwrap();
            range.network()..=range.broadcast()
        },
        confirmed_at: None,
    };
    let allocation = |(address, owner): &(&str, &str)| {
        let allocation = Allocation {
            owner: Some((*owner).into()),
            ..Allocation::default()
        };
        (address.parse().unwrap(), allocation)
    };
    let pool = Pool {
        source: Arc::new(PoolSource {
            ipam: Ipam::Calico,
            network: "pods".to_owned(),
            place: BLOCKS.to_owned(),
        }),
        allocated: allocated.iter().map(allocation).collect(),
        parts: Some(blocks.iter().map(part).collect()),
        ..Pool::clone(&pool)
    };
    PoolUpdate::Read(Arc::new(pool), changed)
}

/// The owners of an address that the agent has seen and that are gone, and whether it saw them go.
fn releases(history: &PoolHistory, address: &str) -> Vec<(String, bool)> {
    let releases = history.releases(BLOCKS, address.parse().unwrap());
    let release = |r: SeenRemoval| (r.owner.unwrap().to_string(), r.at.is_some());
    releases.unwrap().into_iter().map(release).collect()
}

#[test]
fn allocation_of_another_owner_is_a_release() {
    let history = PoolHistory::default();
    let block = ["10.0.0.0/26"];
    history.note(&read_blocks(&block, &[("10.0.0.1", "a")]));
    history.note(&read_blocks(&block, &[("10.0.0.1", "b")]));
    assert_eq!(releases(&history, "10.0.0.1"), [("a".to_owned(), true)]);
    // A block that is no longer read proves no release.
    history.note(&read_blocks(&[], &[]));
    assert_eq!(releases(&history, "10.0.0.1").len(), 1);
}

#[test]
fn release_between_two_runs_is_seen_once_the_block_was_read() {
    let first = PoolHistory::default();
    let blocks = ["10.0.0.0/26", "10.0.1.0/26"];
    let allocated = [("10.0.0.1", "a"), ("10.0.1.1", "b"), ("10.0.0.2", "c")];
    first.note(&read_blocks(&blocks, &allocated));
    let memory = first.take_changed(false).unwrap();
    assert_eq!(first.take_changed(false), None);
    let second = PoolHistory::default();
    second.note(&read_blocks(&blocks[..1], &[("10.0.0.2", "c")]));
    second.continue_from(memory.clone());
    assert_eq!(releases(&second, "10.0.0.1"), [("a".to_owned(), false)]);
    assert_eq!(releases(&second, "10.0.0.2"), []);
    assert_eq!(releases(&second, "10.0.1.1"), []);
    second.note(&read_blocks(&blocks, &[("10.0.0.2", "c")]));
    assert_eq!(releases(&second, "10.0.1.1"), [("b".to_owned(), false)]);
    // The same if it was loaded before the first read.
    let third = PoolHistory::default();
    third.continue_from(memory);
    third.note(&read_blocks(&blocks, &[]));
    assert_eq!(releases(&third, "10.0.0.1"), [("a".to_owned(), false)]);
}
