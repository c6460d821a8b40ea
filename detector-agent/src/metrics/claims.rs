//! `ipconflict_claim_info`: with `--export-claims`, one series for each claimed address, so that a rule over all nodes can
//! find an address that is claimed on two of them.

use std::{collections::HashSet, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text::encode_registry},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

/// Labels of one claimed address.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ClaimInfo {
    /// The address.
    pub address: String,
    /// The claiming pod's namespace, or empty.
    pub namespace: String,
    /// The claiming pod, or empty.
    pub pod: String,
}

/// The most series; addresses beyond are counted.
const SERIES: usize = 20_000;

/// The claimed addresses of one scrape, each once: a conflict on this node has metrics of its own, and a second series
/// of the same address would look like another node's.
#[derive(Debug, Default)]
pub struct ClaimSeries {
    addresses: HashSet<String>,
    series: Vec<ClaimInfo>,
    /// The last address that found no room.
    last_omitted: Option<String>,
    overflow: i64,
}

impl ClaimSeries {
    /// Adds a claim. Those of one address follow each other.
    pub fn add(&mut self, claim: ClaimInfo) {
        if self.addresses.contains(&claim.address) {
            return;
        }
        if self.series.len() >= SERIES {
            if self.last_omitted.as_ref() != Some(&claim.address) {
                self.overflow += 1;
                self.last_omitted = Some(claim.address);
            }
            return;
        }
        self.addresses.insert(claim.address.clone());
        self.series.push(claim);
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
            "One address that a pod device of this node claims",
            None,
            MetricType::Gauge,
        )?;
        for claim in &self.series {
            one.encode(family.encode_family(claim)?)?;
        }
        let overflow = ConstGauge::new(self.overflow);
        overflow.encode(encoder.encode_descriptor(
            "claim_info_overflow",
            "Claimed addresses without a series, because of the bound of ipconflict_claim_info",
            None,
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_beyond_the_bound_are_counted_once() {
        let mut series = ClaimSeries::default();
        let mut claim = |address: String, pod: &str| {
            series.add(ClaimInfo {
                address,
                namespace: "shop".to_owned(),
                pod: pod.to_owned(),
            });
        };
        for number in 0..SERIES + 2 {
            claim(format!("fd00::{number:x}"), "a");
            claim(format!("fd00::{number:x}"), "b");
        }
        assert_eq!((series.series.len(), series.overflow), (SERIES, 2));
    }
}
