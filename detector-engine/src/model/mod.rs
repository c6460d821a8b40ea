//! Plain data: what comes in, what is derived, and what goes out.

pub(crate) mod anomaly;
pub(crate) mod beginning;
pub(crate) mod conflict;
pub(crate) mod effect;
pub(crate) mod evidence_detail;
pub(crate) mod ids;
pub(crate) mod kernel_objects;
pub(crate) mod known_pod;
pub(crate) mod network;
pub(crate) mod observation;
pub(crate) mod pool;
pub(crate) mod record;
pub(crate) mod route_query;
pub(crate) mod scope;
pub(crate) mod settings;
pub(crate) mod snapshot;
