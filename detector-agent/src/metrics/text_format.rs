//! The Prometheus text format 0.0.4, for readers that do not know OpenMetrics.

/// Converts what [`Metrics::encode`](super::Metrics::encode) returns from OpenMetrics to the Prometheus text format 0.0.4.
///
/// Samples are the same in both. OpenMetrics describes a family without the suffix of its samples, has units, infos and
/// an end marker; the older format describes the samples' name and has none of these.
#[must_use]
pub fn to_prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // HELP precedes TYPE, which decides the name in both.
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((family, kind)) = declared_type(line) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            text.push_str(&format!(
                "# HELP {family}{suffix} {help}\n# TYPE {family}{suffix} {kind}\n"
            ));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Family and type in a `# TYPE` line.
fn declared_type(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_described_by_the_names_of_their_samples() {
        let open = "# HELP a_seconds Help a.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{x=\"# TYPE\"} 1\n\
                    # HELP b Help b.\n# TYPE b info\nb_info{version=\"1\"} 1\n# HELP c Help c.\n# TYPE c histogram\nc_sum 1\n# EOF\n";
        let text = "# HELP a_seconds_total Help a.\n# TYPE a_seconds_total counter\na_seconds_total{x=\"# TYPE\"} 1\n\
                    # HELP b_info Help b.\n# TYPE b_info gauge\nb_info{version=\"1\"} 1\n# HELP c Help c.\n# TYPE c histogram\nc_sum 1\n";
        assert_eq!(to_prometheus_text(open), text);
    }
}
