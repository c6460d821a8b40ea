//! The part of the CRI that is asked: three calls of `runtime.v1.RuntimeService`.
//!
//! Written by hand from `cri-api/pkg/apis/runtime/v1/api.proto` instead of generated: the whole file makes some 15,000
//! lines of code of which these are used, and compiling it would need `protoc`, or a compiler of its own, in every
//! build. A field that is not named here is skipped by prost, as protobuf has it.

use std::collections::HashMap;

pub(in crate::identify) const VERSION: &str = "/runtime.v1.RuntimeService/Version";
pub(in crate::identify) const LIST_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
pub(in crate::identify) const POD_SANDBOX_STATUS: &str =
    "/runtime.v1.RuntimeService/PodSandboxStatus";

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct VersionRequest {
    #[prost(string, tag = "1")]
    pub(in crate::identify) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct VersionResponse {
    #[prost(string, tag = "2")]
    pub(in crate::identify) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(in crate::identify) runtime_version: String,
}

/// Without its filter: everything is listed.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct ListPodSandboxRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::identify) items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(in crate::identify) id: String,
    #[prost(message, optional, tag = "2")]
    pub(in crate::identify) metadata: Option<PodSandboxMetadata>,
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub(in crate::identify) state: i32,
    /// Nanoseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub(in crate::identify) created_at: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(in crate::identify) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::identify) uid: String,
    #[prost(string, tag = "3")]
    pub(in crate::identify) namespace: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(in crate::identify) enum PodSandboxState {
    Ready = 0,
    NotReady = 1,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub(in crate::identify) pod_sandbox_id: String,
    #[prost(bool, tag = "2")]
    pub(in crate::identify) verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::identify) struct PodSandboxStatusResponse {
    /// Of a verbose answer: `info` holds JSON of the runtime's own making.
    #[prost(map = "string, string", tag = "2")]
    pub(in crate::identify) info: HashMap<String, String>,
}
