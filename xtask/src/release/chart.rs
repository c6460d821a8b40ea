//! The packaged chart.

use std::{path::Path, process::Command};

use anyhow::Result;

use super::Release;
use crate::{kubernetes::clients::CLIENTS, process, workspace::Workspace};

/// Writes `ip-conflict-detector-VERSION.tgz`.
pub(super) fn package(workspace: &Workspace, release: &Release, dist: &Path) -> Result<()> {
    process::run(
        Command::new(CLIENTS.link(workspace).join("helm"))
            .args(["package", "--destination"])
            .arg(dist)
            .arg(workspace.root().join("deploy/helm/ip-conflict-detector"))
            .env("SOURCE_DATE_EPOCH", release.epoch.to_string()),
    )
}
