//! Plain data: what comes in, what is derived, and what goes out.

mod anomaly;
mod beginning;
mod conflict;
mod effect;
mod evidence_detail;
mod ids;
mod kernel_objects;
mod known_pod;
mod network;
mod observation;
mod pool;
mod record;
mod route_query;
mod scope;
mod settings;
mod snapshot;

pub use anomaly::*;
pub use beginning::*;
pub use conflict::*;
pub use effect::*;
pub use evidence_detail::*;
pub use ids::*;
pub use kernel_objects::*;
pub use known_pod::*;
pub use network::*;
pub use observation::*;
pub use pool::*;
pub use record::*;
pub use route_query::*;
pub use scope::is_link_local;
pub(crate) use scope::*;
pub use settings::*;
pub use snapshot::*;
