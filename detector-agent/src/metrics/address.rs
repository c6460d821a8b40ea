//! Labels of an address.

use std::{
    fmt::{self, Write as _},
    net::IpAddr,
};

use detector_engine::Network;
use detector_event::summary::vlan_id;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// An IP address as a label's value.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct AddressLabel(IpAddr);

impl From<IpAddr> for AddressLabel {
    fn from(address: IpAddr) -> Self {
        Self(address)
    }
}

impl EncodeLabelValue for AddressLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        write!(encoder, "{}", self.0)
    }
}

/// An address and where it has to be unique.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct AddressLabels {
    /// The address.
    pub address: AddressLabel,
    /// The network.
    pub network: String,
    /// The VLAN, `outer.inner` with two tags, or empty.
    pub vlan: String,
}

impl AddressLabels {
    /// Labels of an address in a VLAN, if any, of a network.
    #[must_use]
    pub fn new(address: IpAddr, network: &Network, vlan: (Option<u16>, Option<u16>)) -> Self {
        Self {
            address: AddressLabel(address),
            network: network.to_string(),
            vlan: vlan_id(vlan.0, vlan.1).unwrap_or_default(),
        }
    }
}
