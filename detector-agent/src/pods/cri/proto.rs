//! The part of the CRI in use: three calls of `runtime.v1.RuntimeService`.
//!
//! Written by hand from `cri-api/pkg/apis/runtime/v1/api.proto`: generated code would have some 15,000 lines, almost all
//! unused, and every build would need a protobuf compiler. prost skips fields that are not listed here.

use std::collections::HashMap;

pub(in crate::pods) const VERSION: &str = "/runtime.v1.RuntimeService/Version";
pub(in crate::pods) const LIST_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
pub(in crate::pods) const POD_SANDBOX_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct VersionRequest {
    #[prost(string, tag = "1")]
    pub(in crate::pods) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct VersionResponse {
    #[prost(string, tag = "2")]
    pub(in crate::pods) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(in crate::pods) runtime_version: String,
}

/// Without a filter, which lists all.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct ListPodSandboxRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::pods) items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(in crate::pods) id: String,
    #[prost(message, optional, tag = "2")]
    pub(in crate::pods) metadata: Option<PodSandboxMetadata>,
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub(in crate::pods) state: i32,
    /// Nanoseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub(in crate::pods) created_at: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(in crate::pods) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::pods) uid: String,
    #[prost(string, tag = "3")]
    pub(in crate::pods) namespace: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(in crate::pods) enum PodSandboxState {
    Ready = 0,
    NotReady = 1,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub(in crate::pods) pod_sandbox_id: String,
    #[prost(bool, tag = "2")]
    pub(in crate::pods) verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::pods) status: Option<PodSandboxStatus>,
    /// In a verbose answer: `info` is JSON in the runtime's own format.
    #[prost(map = "string, string", tag = "2")]
    pub(in crate::pods) info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodSandboxStatus {
    #[prost(message, optional, tag = "5")]
    pub(in crate::pods) network: Option<PodSandboxNetworkStatus>,
}

/// The addresses that kubelet puts into the pod's status.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub(in crate::pods) ip: String,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::pods) additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::pods) struct PodIp {
    #[prost(string, tag = "1")]
    pub(in crate::pods) ip: String,
}
