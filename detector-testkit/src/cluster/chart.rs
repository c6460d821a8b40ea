//! The chart, as the cluster can install it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Copies the chart of a checkout into a directory without its `kubeVersion`, and returns the copy.
///
/// The API server can be no newer than Debian's source package, and the chart refuses versions that should no longer
/// run; what it installs works on both.
///
/// # Errors
/// A file cannot be copied.
pub fn copy_chart(checkout: &Path, directory: &Path) -> Result<PathBuf> {
    let copy = directory.join("ip-conflict-detector");
    copy_directory(&checkout.join("deploy/helm/ip-conflict-detector"), &copy)?;
    remove_version(&copy)?;
    Ok(copy)
}

/// Copies `deploy` of a checkout into a directory, with the chart as by [`copy_chart`].
///
/// # Errors
/// A file cannot be copied.
pub fn copy_deployment(checkout: &Path, directory: &Path) -> Result<()> {
    copy_directory(&checkout.join("deploy"), &directory.join("deploy"))?;
    remove_version(&directory.join("deploy/helm/ip-conflict-detector"))
}

fn remove_version(chart: &Path) -> Result<()> {
    let file = chart.join("Chart.yaml");
    let chart = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let kept: String = chart
        .lines()
        .filter(|line| !line.starts_with("kubeVersion:"))
        .flat_map(|line| [line, "\n"])
        .collect();
    fs::write(&file, kept).with_context(|| format!("writing {}", file.display()))
}

/// The name of the image that the chart of a checkout uses by default.
///
/// # Errors
/// The chart does not have the expected lines.
pub fn chart_image(checkout: &Path) -> Result<String> {
    let chart = checkout.join("deploy/helm/ip-conflict-detector");
    let value = |file: &str, key: &str| {
        let text = fs::read_to_string(chart.join(file))
            .with_context(|| format!("reading {file} of the chart"))?;
        let value = text
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(": "))
            .with_context(|| format!("no {key} in {file} of the chart"))?;
        anyhow::Ok(value.trim_matches('"').to_owned())
    };
    Ok(format!(
        "{}:{}",
        value("values.yaml", "repository")?,
        value("Chart.yaml", "appVersion")?
    ))
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        // Follows symbolic links.
        if entry.path().is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copying {}", entry.path().display()))?;
        }
    }
    Ok(())
}
