//! Which addresses on internal interfaces of a pod's namespace concern a device.
//!
//! Linux answers ARP for every IPv4 address of the namespace on each interface, unless `arp_ignore` is set (`arp_process` in
//! net/ipv4/arp.c), but NDP only for addresses of the interface itself (`ndisc_recv_ns` in net/ipv6/ndisc.c). A macvlan or ipvlan
//! interface on top of the device answers for all of its own. Addresses on `lo` and dummies that the pod does not answer for are
//! listed as such: it may send from them (`inet_select_addr`). Bridges, tunnels and interfaces of other devices in the namespace
//! are left out: a pod that is a node itself has them, with addresses of its own networks.
//!
//! Bounds: [`MAX_INTERFACES`] and [`MAX_INTERNAL_ADDRESSES`] in one namespace. Omissions are counted.

use std::{collections::BTreeMap, net::IpAddr};

use detector_engine::{
    AssignedAddress, IfIndex, InternalAddress, InternalPlace, MAX_INTERNAL_ADDRESSES, NsId, Peer,
};

use super::{
    decode::pod_interface::{self, PodInterface, PodInterfaceKind},
    dumps,
    request::{ReadError, RequestSocket},
};

/// Maximum number of internal interfaces of one namespace that are read.
const MAX_INTERFACES: usize = 64;

/// The addresses of a namespace on interfaces that are no device's peer.
#[derive(Debug, Default)]
pub(super) struct InternalInterfaces {
    addresses: BTreeMap<IfIndex, Vec<AssignedAddress>>,
    count: usize,
    /// How many addresses there are beyond the bounds.
    pub(super) omitted: u64,
}

impl InternalInterfaces {
    /// Adds an address, unless there are too many.
    pub(super) fn push(&mut self, ifindex: IfIndex, address: AssignedAddress) {
        let is_new = !self.addresses.contains_key(&ifindex);
        if self.count >= MAX_INTERNAL_ADDRESSES
            || (is_new && self.addresses.len() >= MAX_INTERFACES)
        {
            self.omitted += 1;
            return;
        }
        self.count += 1;
        self.addresses.entry(ifindex).or_default().push(address);
    }

    /// Reads the interfaces. An interface that is gone meanwhile has none.
    pub(super) fn read(
        self,
        socket: &mut RequestSocket,
        nsid: NsId,
    ) -> Result<Vec<(PodInterface, Vec<AssignedAddress>)>, ReadError> {
        let mut interfaces = Vec::new();
        for (ifindex, addresses) in self.addresses {
            match pod_interface(socket, Peer { nsid, ifindex }) {
                Ok(found) => interfaces.extend(found.map(|found| (found, addresses))),
                Err(ReadError::Refused { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(interfaces)
    }
}

/// The interface at a peer; `None` if it or its namespace is
/// gone.
fn pod_interface(
    socket: &mut RequestSocket,
    peer: Peer,
) -> Result<Option<PodInterface>, ReadError> {
    dumps::one_link_as(
        socket,
        "an interface inside a pod",
        peer.ifindex,
        Some(peer.nsid),
        |payload| pod_interface::pod_interface(payload).map(Some),
    )
}

/// The addresses of these interfaces that concern the interface `own`.
pub(super) fn concerning(
    own: IfIndex,
    interfaces: &[(PodInterface, Vec<AssignedAddress>)],
) -> Vec<InternalAddress> {
    // A pod that shares an address on purpose (LVS, direct return) sets it on `lo` as well as on `all`.
    let ignores_arp = interfaces
        .iter()
        .any(|(interface, _)| interface.ignores_arp);
    let mut found = Vec::new();
    for (interface, addresses) in interfaces {
        let (is_local, mac) = match interface.kind {
            PodInterfaceKind::Local => (true, None),
            PodInterfaceKind::Above(lower) if lower == own => (false, interface.mac),
            PodInterfaceKind::Above(_) | PodInterfaceKind::Other => continue,
        };
        let place = |address: IpAddr| match is_local {
            false => InternalPlace::Above,
            true if address.is_ipv6() || ignores_arp => InternalPlace::LocalSilent,
            true => InternalPlace::Local,
        };
        found.extend(addresses.iter().map(|info| InternalAddress {
            address: info.address,
            interface: interface.name.clone(),
            mac,
            place: place(info.address),
        }));
    }
    found
}
