//! The manifest with which krew installs the kubectl plugin from the archives.

use std::{fmt::Write as _, path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::{NAME, Release};
use crate::{architecture::Architecture, build::PLUGIN, files, process};

/// Name of the file, which is that of the plugin in krew's index.
const MANIFEST: &str = "ipconflict.yaml";

const REPOSITORY: &str = "https://github.com/ipconflict/ip-conflict-detector";

/// Writes `ipconflict.yaml` for the archives in the directory.
pub(super) fn write(release: &Release, dist: &Path) -> Result<()> {
    let version = &release.version;
    let mut text = format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: ipconflict
spec:
  version: v{version}
  homepage: {REPOSITORY}
  shortDescription: List IP addresses that several pods claim
  description: |
    Lists the IP address conflicts of all nodes with their pods, the pod that
    receives the traffic, and the cause; who claims an address; and what ended.
  caveats: |
    It asks the agents of IP Conflict Detector, which have to run in the cluster:
    {REPOSITORY}/blob/v{version}/docs/install.md
  platforms:
"
    );
    for architecture in Architecture::ALL {
        let architecture = architecture.name();
        let archive = format!("{NAME}-{version}-linux-{architecture}.tar.gz");
        let sum = process::output(Command::new("sha256sum").arg(dist.join(&archive)))?;
        let sum = sum.split(' ').next().context("sha256sum printed no sum")?;
        write!(
            text,
            "    - selector:
        matchLabels: {{os: linux, arch: {architecture}}}
      uri: {REPOSITORY}/releases/download/v{version}/{archive}
      sha256: {sum}
      files:
        - {{from: \"*/{PLUGIN}\", to: .}}
        - {{from: \"*/LICENSE-*\", to: .}}
      bin: {PLUGIN}
"
        )?;
    }
    files::write(&dist.join(MANIFEST), text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::release::tests::release;

    #[test]
    fn manifest_names_each_archive_with_its_sum() {
        let dist = tempfile::tempdir().unwrap();
        for (architecture, content) in [("amd64", "a"), ("arm64", "b")] {
            let name = format!("ip-conflict-detector-1.2.3-linux-{architecture}.tar.gz");
            files::write(&dist.path().join(name), content).unwrap();
        }
        write(&release(), dist.path()).unwrap();
        let manifest = files::read_text(&dist.path().join(MANIFEST)).unwrap();
        for part in [
            "  version: v1.2.3\n",
            "matchLabels: {os: linux, arch: amd64}",
            "/releases/download/v1.2.3/ip-conflict-detector-1.2.3-linux-amd64.tar.gz\n      sha256: ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\n",
            "/releases/download/v1.2.3/ip-conflict-detector-1.2.3-linux-arm64.tar.gz\n      sha256: 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\n",
            "      bin: kubectl-ipconflict\n",
        ] {
            assert!(manifest.contains(part), "{part} in\n{manifest}");
        }
        // krew refuses longer ones.
        let short = manifest
            .lines()
            .find_map(|line| line.strip_prefix("  shortDescription: "));
        assert!(short.unwrap().len() <= 50);
    }
}
