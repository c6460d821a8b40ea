//! Settings of pod lookups.

use std::{
    convert::Infallible,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::Args;

use crate::{
    cli::{heading, parse_duration_within},
    kube_client::KubeMode,
};

/// A path, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSetting {
    /// Not used.
    Off,
    /// This path.
    At(PathBuf),
}

impl PathSetting {
    /// The path; `None` if it is not used.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Off => None,
            Self::At(path) => Some(path),
        }
    }
}

impl FromStr for PathSetting {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "off" | "" => Self::Off,
            path => Self::At(path.into()),
        })
    }
}

impl fmt::Display for PathSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(path) => path.display().fmt(f),
        }
    }
}

/// The container runtime's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CriSetting {
    /// Not used.
    Off,
    /// The first well-known socket that answers.
    Auto,
    /// This socket.
    At(PathBuf),
}

impl FromStr for CriSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            text => {
                let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
                if path.is_absolute() {
                    Ok(Self::At(path))
                } else {
                    Err("expected auto, off, or an absolute path of a socket, with or without unix://".to_owned())
                }
            }
        }
    }
}

impl fmt::Display for CriSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::At(path) => path.display().fmt(f),
        }
    }
}

/// Where pods are looked up; the same for every command.
#[derive(Args, Clone, Debug)]
pub struct PodLookupSettings {
    /// Socket of the container runtime's CRI, for pod lookups: a path, `auto` (containerd, k3s, CRI-O, cri-dockerd) or
    /// `off`.
    #[arg(
        long,
        value_name = "SOCKET",
        env = "IPCONFLICT_CRI_ENDPOINT",
        help_heading = heading::POD_NAMES,
        default_value = "auto"
    )]
    pub cri_endpoint: CriSetting,

    /// Directory of the CNI result cache, for pod lookups; or `off`.
    #[arg(
        long,
        value_name = "DIR",
        env = "IPCONFLICT_CNI_CACHE_DIR",
        help_heading = heading::POD_NAMES,
        default_value = "/var/lib/cni/results"
    )]
    pub cni_cache_dir: PathSetting,

    /// Use the Kubernetes API to look up pods and to create Events on the pods of a conflict: only in a cluster
    /// (`auto`), also with a kubeconfig (`on`), or never (`off`).
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_KUBE",
        help_heading = heading::POD_NAMES,
        default_value = "auto"
    )]
    pub kube: KubeMode,

    /// Pod labels to include in events, if the Kubernetes API is used. Repeatable.
    #[arg(
        long,
        value_name = "LABEL",
        env = "IPCONFLICT_POD_LABELS",
        help_heading = heading::POD_NAMES,
        value_delimiter = ','
    )]
    pub pod_labels: Vec<String>,

    /// Timeout of one pod lookup. No event waits for it; `check` prints what is known by then.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_LOOKUP_TIMEOUT", help_heading = heading::POD_NAMES, default_value = "2s", value_parser = lookup_timeout)]
    pub lookup_timeout: Duration,
}

fn lookup_timeout(text: &str) -> Result<Duration, String> {
    parse_duration_within(text, Duration::from_millis(10)..=Duration::from_secs(60))
}
