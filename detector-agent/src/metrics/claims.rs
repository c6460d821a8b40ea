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

/// The most series; claims beyond are counted.
const SERIES: usize = 20_000;

/// The claimed addresses of one scrape, each once: a conflict on this node has metrics of its own, and a second series
/// of the same address would look like another node's.
#[derive(Debug, Default)]
pub struct ClaimSeries {
    addresses: HashSet<String>,
    series: Vec<ClaimInfo>,
    overflow: i64,
}

impl ClaimSeries {
    /// Adds a claim.
    pub fn add(&mut self, claim: ClaimInfo) {
        if self.addresses.contains(&claim.address) {
            return;
        }
        if self.series.len() >= SERIES {
            self.overflow += 1;
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
            "One claimed address of this node",
            None,
            MetricType::Gauge,
        )?;
        for claim in &self.series {
            one.encode(family.encode_family(claim)?)?;
        }
        let overflow = ConstGauge::new(self.overflow);
        overflow.encode(encoder.encode_descriptor(
            "claim_info_overflow",
            "Claims beyond the bound of ipconflict_claim_info",
            None,
            MetricType::Gauge,
        )?)
    }
}
