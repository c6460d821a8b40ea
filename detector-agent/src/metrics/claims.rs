//! `ipconflict_claim_info`: with `--export-claims`, one series for each claimed address of a network, so that a rule over all
//! nodes can find an address that is claimed on two of them.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text::encode_registry},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use super::address::AddressLabels;

/// Labels of one claimed address.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ClaimInfo {
    /// The address, network and VLAN.
    #[prometheus(flatten)]
    pub address: AddressLabels,
    /// The claiming pod's namespace, or empty.
    pub namespace: String,
    /// The claiming pod, or empty.
    pub pod: String,
}

/// The most series; addresses beyond are counted.
const SERIES: usize = 20_000;

/// The claimed addresses of one scrape, each once in each VLAN of each network: a conflict on this node has metrics of its
/// own, and a second series of the same address would look like another node's.
#[derive(Debug, Default)]
pub struct ClaimSeries {
    series: Vec<ClaimInfo>,
    /// The address added last, if there was no room for it.
    omitted: Option<AddressLabels>,
    overflow: i64,
}

impl ClaimSeries {
    /// Adds a claim. Those of one address in one VLAN of a network follow each other; the first one is shown.
    pub fn add(&mut self, claim: ClaimInfo) {
        let last = self.series.last().map(|last| &last.address);
        if self.omitted.as_ref().or(last) == Some(&claim.address) {
            return;
        }
        if self.series.len() < SERIES {
            self.series.push(claim);
        } else {
            self.overflow += 1;
            self.omitted = Some(claim.address);
        }
    }

    /// Appends the series as OpenMetrics text.
    pub(super) fn encode_into(self, text: &mut String) -> fmt::Result {
        let mut registry = Registry::with_prefix("ipconflict");
        registry.register_collector(Box::new(self));
        encode_registry(text, &registry)
    }
}

impl Collector for ClaimSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let one = ConstGauge::new(1i64);
        let mut family = encoder.encode_descriptor(
            "claim_info",
            "Always 1, for each address that a pod device of this node claims.",
            None,
            MetricType::Gauge,
        )?;
        for claim in &self.series {
            one.encode(family.encode_family(claim)?)?;
        }
        let overflow = ConstGauge::new(self.overflow);
        overflow.encode(encoder.encode_descriptor(
            "claim_info_overflow",
            "Number of claimed addresses without a series in ipconflict_claim_info, because of its bound.",
            None,
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use detector_engine::Network;

    use super::*;

    fn claim(number: usize, network: &Network, vlan: Option<u16>, pod: &str) -> ClaimInfo {
        let address = Ipv6Addr::from(0xfd00 << 112 | number as u128).into();
        ClaimInfo {
            address: AddressLabels::new(address, network, (vlan, None)),
            namespace: "shop".to_owned(),
            pod: pod.to_owned(),
        }
    }

    #[test]
    fn addresses_beyond_the_bound_are_counted_once() {
        let mut series = ClaimSeries::default();
        for number in 0..SERIES + 2 {
            series.add(claim(number, &Network::Node, None, "a"));
            series.add(claim(number, &Network::Node, None, "b"));
        }
        assert_eq!((series.series.len(), series.overflow), (SERIES, 2));
    }

    #[test]
    fn address_has_a_series_in_each_network_and_vlan() {
        let mut series = ClaimSeries::default();
        let bridge = Network::Bridge("br1".to_owned());
        for (network, vlan) in [
            (&Network::Node, None),
            (&Network::Node, Some(7)),
            (&bridge, None),
        ] {
            series.add(claim(1, network, vlan, "a"));
            series.add(claim(1, network, vlan, "b"));
        }
        let mut text = String::new();
        assert!(series.encode_into(&mut text).is_ok());
        for labels in [
            r#"address="fd00::1",network="node",vlan="",namespace="shop",pod="a""#,
            r#"address="fd00::1",network="node",vlan="7",namespace="shop",pod="a""#,
            r#"address="fd00::1",network="bridge:br1",vlan="",namespace="shop",pod="a""#,
        ] {
            assert!(
                text.contains(&format!("ipconflict_claim_info{{{labels}}} 1\n")),
                "{text}"
            );
        }
        assert_eq!(text.matches("ipconflict_claim_info{").count(), 3);
    }
}
