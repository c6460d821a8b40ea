//! What the kernel has and does, asked through iproute2. Nothing here knows the agent or its rules, except for what an
//! address is compared with: link-local addresses are unique only on their link, and the node is one holder.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::{Context as _, Result};
use detector_testkit::{CniPod, Netns, Node, Pod};
use serde_json::Value;

/// A pod and the host end of its veth pair.
pub(crate) trait AttachedPod {
    /// The pod's namespace.
    fn netns(&self) -> &Netns;
    /// The host end.
    fn host_device(&self) -> &str;
}

impl AttachedPod for Pod {
    fn netns(&self) -> &Netns {
        Self::netns(self)
    }

    fn host_device(&self) -> &str {
        self.device()
    }
}

impl AttachedPod for CniPod {
    fn netns(&self) -> &Netns {
        Self::netns(self)
    }

    fn host_device(&self) -> &str {
        self.device().unwrap()
    }
}

/// An address that two or more have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Duplicate {
    /// `duplicate`, or `host` if the node itself has it.
    pub(crate) kind: String,
    /// The sorted devices of those that have it: the host ends of pods, and the node's own device.
    pub(crate) holders: Vec<String>,
    /// The one of them that the node's packets reach.
    pub(crate) receiver: Option<String>,
}

/// All duplicates of a node.
pub(crate) type Duplicates = BTreeMap<IpAddr, Duplicate>;

/// The addresses that two or more of these pods and the node have.
pub(crate) fn duplicates(node: &Node, pods: &[&dyn AttachedPod]) -> Result<Duplicates> {
    let on_node = assigned(node)?;
    let mut holders: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
    for pod in pods {
        for address in assigned(pod.netns())?.into_keys() {
            holders
                .entry(address)
                .or_default()
                .insert(pod.host_device());
        }
    }
    let mut duplicates = Duplicates::new();
    for (address, mut devices) in holders {
        let own = on_node.get(&address);
        devices.extend(own.map(String::as_str));
        if devices.len() < 2 {
            continue;
        }
        let receiver = receiver(node, address)?;
        let duplicate = Duplicate {
            kind: if own.is_some() { "host" } else { "duplicate" }.to_owned(),
            receiver: receiver.filter(|device| devices.contains(device.as_str())),
            holders: devices.into_iter().map(str::to_owned).collect(),
        };
        duplicates.insert(address, duplicate);
    }
    Ok(duplicates)
}

/// The sorted host ends of the pods that have an address.
pub(crate) fn holders(address: IpAddr, pods: &[&dyn AttachedPod]) -> Result<Vec<String>> {
    let mut holders = Vec::new();
    for pod in pods {
        if assigned(pod.netns())?.contains_key(&address) {
            holders.push(pod.host_device().to_owned());
        }
    }
    holders.sort_unstable();
    Ok(holders)
}

/// The device that the node's packets to an address reach: its own device that has the address, the port of a bridge, or the
/// device they leave through. `None` if the kernel has no path.
pub(crate) fn receiver(node: &Node, address: IpAddr) -> Result<Option<String>> {
    let answer = match json(node, &format!("-j -d route get {address}")) {
        Ok(answer) => answer,
        // No route, or one that rejects or discards.
        Err(error) if format!("{error:#}").contains("RTNETLINK answers") => return Ok(None),
        Err(error) => return Err(error),
    };
    let route = answer.get(0).context("an empty answer")?;
    if text(route, "type") == Some("local") {
        return Ok(assigned(node)?.remove(&address));
    }
    let Some(device) = text(route, "dev") else {
        return Ok(None);
    };
    let links = json(node, &format!("-j -d link show dev {device}"))?;
    if links
        .pointer("/0/linkinfo/info_kind")
        .and_then(Value::as_str)
        != Some("bridge")
    {
        return Ok(Some(device.to_owned()));
    }
    let next_hop = match text(route, "gateway") {
        Some(gateway) => gateway.parse().context("the gateway")?,
        None => address,
    };
    let Some(mac) = lladdr(node, device, next_hop)? else {
        return Ok(None);
    };
    port(node, device, &mac)
}

/// The hardware address of a neighbour entry.
pub(crate) fn lladdr(node: &Node, device: &str, address: IpAddr) -> Result<Option<String>> {
    let entries = json(node, &format!("-j neigh show dev {device} to {address}"))?;
    let mac = entries.pointer("/0/lladdr").and_then(Value::as_str);
    Ok(mac.map(str::to_owned))
}

/// The port behind which a bridge has a hardware address.
pub(crate) fn port(node: &Node, bridge: &str, mac: &str) -> Result<Option<String>> {
    let shown = node.exec(&["bridge", "-j", "fdb", "show", "br", bridge])?;
    let entries: Value = serde_json::from_str(&shown).context("the output of bridge fdb")?;
    let entry = items(&entries).find(|entry| {
        // The hardware addresses of the ports themselves are permanent.
        text(entry, "mac") == Some(mac) && text(entry, "state") != Some("permanent")
    });
    let device = entry.and_then(|entry| text(entry, "ifname"));
    Ok(device.map(str::to_owned))
}

/// The addresses of a namespace that must be unique beyond one link, each with the first device that has it.
fn assigned(netns: &Netns) -> Result<BTreeMap<IpAddr, String>> {
    let mut found = BTreeMap::new();
    for link in items(&json(netns, "-j address show")?) {
        let device = text(link, "ifname").context("a link without a name")?;
        for info in link.get("addr_info").into_iter().flat_map(items) {
            // A link that has no address has an empty object here.
            let Some(local) = text(info, "local") else {
                continue;
            };
            let address: IpAddr = local.parse().context("an address")?;
            let is_link_local = match address {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            };
            if !is_link_local && !address.is_loopback() {
                found.entry(address).or_insert_with(|| device.to_owned());
            }
        }
    }
    Ok(found)
}

fn json(netns: &Netns, line: &str) -> Result<Value> {
    let shown = netns.ip(line)?;
    // iproute2 prints nothing for some empty lists.
    if shown.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(&shown).with_context(|| format!("the output of ip {line}: {shown}"))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text<'v>(object: &'v Value, field: &str) -> Option<&'v str> {
    object.get(field)?.as_str()
}
