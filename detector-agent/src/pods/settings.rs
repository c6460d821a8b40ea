//! Where to look for pods, as the operator says.

use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, ValueEnum};

/// A path, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSetting {
    /// Not to be used.
    Off,
    /// There.
    At(PathBuf),
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
    /// Not to be used.
    Off,
    /// The first of the usual ones that answers.
    Auto,
    /// This one.
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

/// Whether to use the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KubeSetting {
    /// In a pod of a cluster.
    Auto,
    /// With a kubeconfig (`KUBECONFIG`, `~/.kube/config`), else as in a pod.
    On,
    /// Not to be used.
    Off,
}

/// Where to look for the pods behind devices; the same for every command.
#[derive(Args, Clone, Debug)]
pub struct IdentifySettings {
    /// Socket of the container runtime's CRI, to name pods: a path, `auto` (containerd, k3s, CRI-O, cri-dockerd) or
    /// `off`.
    #[arg(
        long,
        value_name = "SOCKET",
        env = "IPCONFLICT_CRI_ENDPOINT",
        default_value = "auto"
    )]
    pub cri_endpoint: CriSetting,

    /// Directory of the CNI result cache, to name pods; or `off`.
    #[arg(
        long,
        value_name = "DIR",
        env = "IPCONFLICT_CNI_CACHE_DIR",
        default_value = "/var/lib/cni/results"
    )]
    pub cni_cache_dir: PathSetting,

    /// The Kubernetes API, to name pods and to tell conflicts as events on them: in a cluster (`auto`), also with a
    /// kubeconfig (`on`), or `off`.
    #[arg(
        long,
        value_name = "MODE",
        env = "IPCONFLICT_KUBE",
        default_value = "auto"
    )]
    pub kube: KubeSetting,

    /// Labels of pods to show in events, when the Kubernetes API is used. Repeatable.
    #[arg(
        long,
        value_name = "LABEL",
        env = "IPCONFLICT_POD_LABELS",
        value_delimiter = ','
    )]
    pub pod_labels: Vec<String>,

    /// How long one look-up of pods may take. No event waits for it; `check` prints what it has by then.
    #[arg(long, value_name = "TIME", env = "IPCONFLICT_LOOKUP_TIMEOUT", default_value = "2s", value_parser = lookup_timeout)]
    pub lookup_timeout: Duration,
}

fn lookup_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_millis(10)..=Duration::from_secs(60)).contains(&time) => {
            Ok(time)
        }
        Ok(_) => Err("must be between 10ms and 1m".to_owned()),
        Err(_) => Err("expected a time such as 500ms or 2s".to_owned()),
    }
}
