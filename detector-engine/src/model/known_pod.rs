//! What records give an address to a pod. Records are written by the container runtime, the network plugin, IPAM or kubelet, never by
//! the pod itself.

use std::{net::IpAddr, sync::Arc};

use crate::model::{Allocation, Ipam};

/// The pod behind a device, as the sources know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPod {
    /// `namespace/name`.
    pub name: String,
    /// The id of its sandbox, by which IPAM names the owner of an allocation.
    pub sandbox: Option<Arc<str>>,
    /// The addresses that the runtime's record, the CNI results or the Kubernetes API give it; empty if none is known.
    pub addresses: Vec<IpAddr>,
    /// A record may give it further addresses: it has as many as are read of one.
    pub may_have_more_addresses: bool,
    /// The pod was recognised by the addresses on its device, which it may have assigned itself: that a record gives it one of
    /// these proves nothing.
    pub is_matched_by_address: bool,
}

impl KnownPod {
    /// Whether a record gives it `address`, or the allocation of the address does (`is_owner`); `None` if that is not known.
    pub(crate) fn is_rightful(&self, address: IpAddr, is_owner: Option<bool>) -> Option<bool> {
        if is_owner == Some(true) {
            return Some(true);
        }
        if self.addresses.contains(&address) {
            return (!self.is_matched_by_address).then_some(true);
        }
        if self.addresses.is_empty() || self.may_have_more_addresses {
            is_owner
        } else {
            Some(false)
        }
    }

    /// Whether the allocation is this pod's; `None` if the two cannot be compared.
    pub(crate) fn owns(&self, ipam: Ipam, allocation: &Allocation) -> Option<bool> {
        let owners = [&allocation.owner, &allocation.second_owner];
        let mut compared = owners
            .into_iter()
            .flatten()
            .map(|owner| self.is_owner(ipam, owner));
        let first = compared.next()?;
        match compared.next() {
            None => first,
            Some(second) if first == Some(true) || second == Some(true) => Some(true),
            Some(second) => first.and(second),
        }
    }

    fn is_owner(&self, ipam: Ipam, owner: &str) -> Option<bool> {
        match ipam {
            Ipam::KubeOvn | Ipam::Whereabouts | Ipam::Spiderpool => {
                // The name that was found through an address proves nothing about that address.
                (!self.is_matched_by_address).then(|| owner == self.name)
            }
            _ => {
                let sandbox = self.sandbox.as_deref()?;
                sandbox_of(ipam, owner).map(|of| of == sandbox)
            }
        }
    }
}

/// The sandbox that the owner of an allocation names; `None` if it names something else.
pub(crate) fn sandbox_of(ipam: Ipam, owner: &str) -> Option<&str> {
    match ipam {
        Ipam::HostLocal | Ipam::Aws | Ipam::Cilium | Ipam::Azure => Some(owner),
        Ipam::KubeOvn | Ipam::Whereabouts | Ipam::Spiderpool => None,
        // `<network>.<container id>`. Handles of earlier versions name the pod, those of virtual machines the machine.
        Ipam::Calico => {
            let (_, id) = owner.rsplit_once('.')?;
            is_container_id(id).then_some(id)
        }
    }
}

/// As containerd and CRI-O generate them.
fn is_container_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use super::*;

    fn pod(sandbox: Option<&str>) -> KnownPod {
        KnownPod {
            name: "shop/web-1".to_owned(),
            sandbox: sandbox.map(Arc::from),
            ..KnownPod::default()
        }
    }

    fn owned_by(owner: &str) -> Allocation {
        Allocation {
            owner: Some(owner.into()),
            ..Allocation::default()
        }
    }

    #[test]
    fn owner_is_compared_only_where_it_names_a_sandbox() {
        let (ours, theirs) = ("a".repeat(64), "b".repeat(64));
        let pod = pod(Some(&ours));
        let handle = |id: &str| owned_by(&format!("k8s-pod-network.{id}"));
        for ipam in [Ipam::HostLocal, Ipam::Aws, Ipam::Cilium, Ipam::Azure] {
            assert_eq!(pod.owns(ipam, &owned_by(&ours)), Some(true));
            assert_eq!(pod.owns(ipam, &owned_by(&theirs)), Some(false));
        }
        assert_eq!(pod.owns(Ipam::Calico, &handle(&ours)), Some(true));
        assert_eq!(pod.owns(Ipam::Calico, &handle(&theirs)), Some(false));
        assert_eq!(pod.owns(Ipam::Calico, &owned_by("shop.web-1")), None);
        assert_eq!(pod.owns(Ipam::HostLocal, &Allocation::default()), None);
        assert_eq!(
            self::pod(None).owns(Ipam::HostLocal, &owned_by(&ours)),
            None
        );
        let twice = Allocation {
            second_owner: Some(ours.as_str().into()),
            ..owned_by(&theirs)
        };
        assert_eq!(pod.owns(Ipam::HostLocal, &twice), Some(true));
    }

    #[test]
    fn owner_that_is_a_pod_is_compared_by_its_name() {
        let ours = pod(None);
        let by_address = KnownPod {
            is_matched_by_address: true,
            ..pod(None)
        };
        for ipam in [Ipam::KubeOvn, Ipam::Whereabouts, Ipam::Spiderpool] {
            let owns = |pod: &KnownPod, owner| pod.owns(ipam, &owned_by(owner));
            assert_eq!(owns(&ours, "shop/web-1"), Some(true));
            assert_eq!(owns(&ours, "shop/web-2"), Some(false));
            assert_eq!(owns(&by_address, "shop/web-1"), None);
        }
    }

    #[test]
    fn record_or_allocation_makes_a_pod_rightful() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let with = |addresses: &[&str], is_matched_by_address| KnownPod {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            is_matched_by_address,
            ..pod(None)
        };
        assert_eq!(with(&[], false).is_rightful(address, None), None);
        assert_eq!(
            with(&[], false).is_rightful(address, Some(false)),
            Some(false)
        );
        let given = with(&["10.0.0.1"], false);
        // After a wipe IPAM may have given it to another pod as well.
        assert_eq!(given.is_rightful(address, Some(false)), Some(true));
        let other = with(&["10.0.0.9"], false);
        assert_eq!(other.is_rightful(address, None), Some(false));
        assert_eq!(other.is_rightful(address, Some(true)), Some(true));
        let first = KnownPod {
            may_have_more_addresses: true,
            ..other
        };
        assert_eq!(first.is_rightful(address, None), None);
        assert_eq!(
            with(&["10.0.0.1"], true).is_rightful(address, None),
            None,
            "recognised by the address itself"
        );
    }
}
