//! The names of CNI networks that devices are in.

use crate::model::CniNetworkId;

use std::sync::Arc;

/// Bound on the names of CNI networks. Ports with another name are in the network of their switch.
const MAX_CNI_NETWORKS: usize = 1_024;

/// The names, within [`MAX_CNI_NETWORKS`].
#[derive(Debug, Default)]
pub(crate) struct CniNetworks(Vec<Arc<str>>);

impl CniNetworks {
    /// The id of the network with this name; `None` at the bound.
    pub(crate) fn id(&mut self, name: &Arc<str>) -> Option<CniNetworkId> {
        let known = self.0.iter().position(|known| known == name);
        if known.is_none() && self.0.len() < MAX_CNI_NETWORKS {
            self.0.push(Arc::clone(name));
            return Some(CniNetworkId(self.0.len() - 1));
        }
        known.map(CniNetworkId)
    }

    pub(crate) fn name(&self, id: CniNetworkId) -> &str {
        self.0.get(id.0).map_or("", |name| name)
    }
}
