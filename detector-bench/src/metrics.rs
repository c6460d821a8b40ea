//! Reads the agent's metrics.

use anyhow::{Context as _, Result};
use detector_testkit::{Node, http::TestClient};

/// The default origin of the agent's HTTP endpoints.
pub(crate) const AGENT_ORIGIN: &str = "http://127.0.0.1:9842";

/// One response of `/metrics`.
pub(crate) struct Metrics(String);

impl Metrics {
    /// Scrapes the agent that runs on a node.
    pub(crate) fn scrape(node: &Node) -> Result<Self> {
        let response = TestClient::new(node, AGENT_ORIGIN).get("/metrics")?;
        Ok(Self(response.body))
    }

    /// The sum of the series of a metric whose labels contain `label`; 0 if there is none.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        self.series(name)
            .filter(|series| series.contains(label))
            .filter_map(|series| series.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The value of a metric without labels.
    pub(crate) fn value(&self, name: &str) -> Result<f64> {
        let series = self.series(name).next();
        let value = series.with_context(|| format!("there is no metric {name}"))?;
        Ok(value.trim().parse()?)
    }

    /// Labels and value of each series of a metric.
    fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .lines()
            .filter_map(move |line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with(['{', ' ']))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::Metrics;

    #[test]
    fn only_series_of_the_named_metric_count() {
        let metrics = Metrics("a{k=\"x\"} 1\na{k=\"y\"} 2\na_b{k=\"x\"} 4\nc 8\n".to_owned());
        assert_eq!(metrics.sum("a", ""), 3.0);
        assert_eq!(metrics.sum("a", "k=\"x\""), 1.0);
        assert_eq!(metrics.sum("d", ""), 0.0);
        assert_eq!(metrics.value("c").unwrap(), 8.0);
        assert!(metrics.value("d").is_err());
    }
}
