//! The part of the CRI that is asked: three calls of `runtime.v1.RuntimeService`.
//!
//! Written by hand from `cri-api/pkg/apis/runtime/v1/api.proto` instead of generated: the whole file makes some 15,000
//! lines of code of which these are used, and compiling it would need `protoc`, or a compiler of its own, in every
//! build. A field that is not named here is skipped by prost, as protobuf has it.

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

/// Without its filter: everything is listed.
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
    /// Of a verbose answer: `info` holds JSON of the runtime's own making.
    #[prost(map = "string, string", tag = "2")]
    pub(in crate::pods) info: HashMap<String, String>,
}
