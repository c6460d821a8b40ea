//! Entry points of the fuzz targets: one function per parser of untrusted input, which takes arbitrary bytes. Compiled only
//! with the feature `fuzzing`; the agent does not use them.
//!
//! Each function returns for every input, in time and memory bounded by the input's length. It panics if an invariant is
//! violated.

pub use detector_engine::fuzzing::open_conflicts;

pub use crate::{
    config::file::fuzzing::settings,
    http::fuzzing::requests as http_requests,
    ipam::fuzzing::{
        aws_answer, aws_file, azure_endpoints, calico_blocks, cilium_endpoint, cni_networks,
        host_local_reservation, ipam_lease, kube_ovn_objects, spiderpool_objects,
        whereabouts_objects,
    },
    observe::{ebpf::fuzzing::ring_record, netlink::fuzzing::datagram as netlink_datagram},
    persist::fuzzing::{open_anomalies, state_records},
    pods::fuzzing::{cni_cache, cri_sandboxes, cri_status, kube_pod},
    sinks::{fuzzing::retry_after_header, outbox::fuzzing::outbox_records},
    watch::fuzzing::event_block,
};
