//! The fuzz targets: every parser of input from a pod, a file, a container runtime or a client.
//!
//! Each [`FuzzTarget`] has a corpus in `corpus/<name>/`. `cargo xtask fuzz` runs libFuzzer over them; the test of this crate
//! runs every file of the corpus through its target without a fuzzer, so that every finding stays a test case. An input that
//! broke something is added to the corpus under the name of what it broke.
//!
//! To add a target, add a row to [`TARGETS`] (with a function in `detector_agent::fuzzing` if it needs private items) and a first
//! input. The fuzzer generates inputs of at most twice the length of the longest in the corpus.

pub mod frames;
pub mod reference;

use detector_agent::fuzzing;

/// A fuzz target.
pub struct FuzzTarget {
    /// Its name, and the folder of its corpus.
    pub name: &'static str,
    /// Takes any input; panics if an invariant is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "cni_cache",
        run: fuzzing::cni_cache,
    },
    FuzzTarget {
        name: "config",
        run: fuzzing::settings,
    },
    FuzzTarget {
        name: "cri_sandboxes",
        run: fuzzing::cri_sandboxes,
    },
    FuzzTarget {
        name: "cri_status",
        run: fuzzing::cri_status,
    },
    FuzzTarget {
        name: "event_block",
        run: fuzzing::event_block,
    },
    FuzzTarget {
        name: "frames",
        run: frames::compare,
    },
    FuzzTarget {
        name: "http",
        run: fuzzing::http_requests,
    },
    FuzzTarget {
        name: "ipam_aws_file",
        run: fuzzing::aws_file,
    },
    FuzzTarget {
        name: "ipam_aws_port",
        run: fuzzing::aws_answer,
    },
    FuzzTarget {
        name: "ipam_azure",
        run: fuzzing::azure_endpoints,
    },
    FuzzTarget {
        name: "ipam_calico",
        run: fuzzing::calico_blocks,
    },
    FuzzTarget {
        name: "ipam_cilium",
        run: fuzzing::cilium_endpoint,
    },
    FuzzTarget {
        name: "ipam_host_local",
        run: fuzzing::host_local_reservation,
    },
    FuzzTarget {
        name: "ipam_kube_ovn",
        run: fuzzing::kube_ovn_objects,
    },
    FuzzTarget {
        name: "ipam_lease",
        run: fuzzing::ipam_lease,
    },
    FuzzTarget {
        name: "ipam_networks",
        run: fuzzing::cni_networks,
    },
    FuzzTarget {
        name: "ipam_spiderpool",
        run: fuzzing::spiderpool_objects,
    },
    FuzzTarget {
        name: "ipam_whereabouts",
        run: fuzzing::whereabouts_objects,
    },
    FuzzTarget {
        name: "kube_pod",
        run: fuzzing::kube_pod,
    },
    FuzzTarget {
        name: "netlink",
        run: fuzzing::netlink_datagram,
    },
    FuzzTarget {
        name: "open_anomalies",
        run: fuzzing::open_anomalies,
    },
    FuzzTarget {
        name: "open_conflicts",
        run: fuzzing::open_conflicts,
    },
    FuzzTarget {
        name: "outbox_records",
        run: fuzzing::outbox_records,
    },
    FuzzTarget {
        name: "ring_records",
        run: |bytes| drop(fuzzing::ring_record(bytes)),
    },
    FuzzTarget {
        name: "retry_after",
        run: fuzzing::retry_after_header,
    },
    FuzzTarget {
        name: "state_records",
        run: fuzzing::state_records,
    },
];

/// The target with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}
