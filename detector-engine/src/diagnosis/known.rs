//! A fact with its source, which distinguishes "absent" from "not checked".

use std::{fmt, ops::Add, time::Duration};

/// A wall-clock time in nanoseconds since the Unix epoch. Displayed as RFC 3339 in UTC, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

impl Add<Duration> for UnixTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(self.0.into()) {
            Ok(time) => time.strftime("%F %TZ").fmt(f),
            Err(_) => write!(f, "{} ns after the epoch", self.0),
        }
    }
}

/// Where a fact is from. No source is one that a pod can write to, except the labels of a pod's object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A file or directory of the node: its contents, or its birth time.
    File(String),
    /// What the agent saw happen to files, as inotify reports it.
    FileHistory(String),
    /// The container runtime.
    Cri,
    /// An object of the Kubernetes API: its kind and name.
    KubernetesObject(String),
    /// A sysctl, by its path below `/proc/sys`.
    Sysctl(String),
    /// The kernel's routes and addresses.
    Netlink,
    /// What the engine observed.
    Engine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{path}"),
            Self::FileHistory(path) => write!(f, "history:{path}"),
            Self::Cri => f.write_str("cri"),
            Self::KubernetesObject(object) => write!(f, "kubernetes:{object}"),
            Self::Sysctl(path) => write!(f, "sysctl:{path}"),
            Self::Netlink => f.write_str("netlink"),
            Self::Engine => f.write_str("engine"),
        }
    }
}

/// A fact that could not be collected.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NotChecked {
    /// Which fact, in a few words.
    pub what: String,
    /// Why not, in a few words.
    pub because: String,
}

/// A fact. [`Known::value`] gives what is there; that something is absent has to be asked for by [`Known::is_absent`], which a fact
/// that was not checked is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// It is there.
    Value(T, Source),
    /// The source was read, and it is not there.
    Absent(Source),
    /// The source was not read.
    NotChecked(NotChecked),
}

impl<T> Known<T> {
    /// What is there; `None` if it is absent or was not checked.
    #[must_use]
    pub fn value(&self) -> Option<&T> {
        self.found().map(|(value, _)| value)
    }

    /// As [`Known::value`], with the source.
    #[must_use]
    pub fn found(&self) -> Option<(&T, &Source)> {
        match self {
            Self::Value(value, source) => Some((value, source)),
            Self::Absent(_) | Self::NotChecked(_) => None,
        }
    }

    /// Whether the source was read and it is not there.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }

    /// The source that was read; `None` if none was.
    #[must_use]
    pub fn source(&self) -> Option<&Source> {
        match self {
            Self::Value(_, source) | Self::Absent(source) => Some(source),
            Self::NotChecked(_) => None,
        }
    }

    /// Why it was not checked.
    #[must_use]
    pub fn not_checked(&self) -> Option<&NotChecked> {
        match self {
            Self::NotChecked(not_checked) => Some(not_checked),
            Self::Value(..) | Self::Absent(_) => None,
        }
    }
}
