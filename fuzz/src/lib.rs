//! What is fuzzed: every parser that reads what a pod, a file, a runtime or a client wrote.
//!
//! One [`Target`] each, with its corpus under `corpus/<name>/`. `cargo xtask fuzz` runs libFuzzer over them; the test of this
//! crate runs every file of the corpus through its target with no fuzzer at all, so whatever was found once is tried in
//! every test run. An input that broke something goes into the corpus under the name of what it broke.
//!
//! To add a target: a row in [`TARGETS`] (its function in `detector_agent::fuzzing` where it needs what is private there) and a
//! first input. Inputs that the fuzzer makes are at most twice as long as the longest of the corpus.

pub mod frames;
pub mod reference;

use detector_agent::fuzzing;

/// One thing that is fuzzed.
pub struct Target {
    /// Its name, which is its corpus' folder too.
    pub name: &'static str,
    /// Takes any input; panics where it breaks an invariant.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "cni_cache",
        run: fuzzing::cni_cache,
    },
    Target {
        name: "config",
        run: fuzzing::settings,
    },
    Target {
        name: "cri_sandboxes",
        run: fuzzing::cri_sandboxes,
    },
    Target {
        name: "cri_status",
        run: fuzzing::cri_status,
    },
    Target {
        name: "event_block",
        run: fuzzing::event_block,
    },
    Target {
        name: "frames",
        run: frames::compare,
    },
    Target {
        name: "http",
        run: fuzzing::http_requests,
    },
    Target {
        name: "ipam_aws_file",
        run: fuzzing::aws_file,
    },
    Target {
        name: "ipam_aws_port",
        run: fuzzing::aws_answer,
    },
    Target {
        name: "ipam_calico",
        run: fuzzing::calico_blocks,
    },
    Target {
        name: "ipam_host_local",
        run: fuzzing::host_local_reservation,
    },
    Target {
        name: "ipam_networks",
        run: fuzzing::cni_networks,
    },
    Target {
        name: "kube_pod",
        run: fuzzing::kube_pod,
    },
    Target {
        name: "netlink",
        run: fuzzing::netlink_datagram,
    },
    Target {
        name: "open_anomalies",
        run: fuzzing::open_anomalies,
    },
    Target {
        name: "open_conflicts",
        run: fuzzing::open_conflicts,
    },
    Target {
        name: "outbox_records",
        run: fuzzing::outbox_records,
    },
    Target {
        name: "ring_records",
        run: |bytes| drop(fuzzing::ring_record(bytes)),
    },
    Target {
        name: "retry_after",
        run: fuzzing::retry_after_header,
    },
    Target {
        name: "state_records",
        run: fuzzing::state_records,
    },
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
