//! The present sandboxes of the container runtime, and what follows for those of pods.

use std::{path::PathBuf, sync::Arc, time::Instant};

use detector_engine::diagnosis::{Known, SandboxFacts, SandboxState, Source, UnixTime};
use detector_event::{Pod, Via};

use super::files::{birth, not_checked, unix};
use crate::pods::{ListedSandboxes, PodDirectory, SandboxList};

const NOT_REACHED: &str = "the container runtime was not reached";

/// Asks the runtime that the pod lookups use, once for all findings that were due by then. Another runtime of the node has other
/// sandboxes, so that one of the pods missing there would prove nothing.
#[derive(Debug)]
pub(super) struct Sandboxes {
    list: SandboxList,
    directory: Arc<PodDirectory>,
    known: Option<(Instant, Result<ListedSandboxes, String>)>,
}

impl Sandboxes {
    pub(super) fn new(list: SandboxList, directory: Arc<PodDirectory>) -> Self {
        Self {
            list,
            directory,
            known: None,
        }
    }

    /// With a runtime that lists these, whether or not each is ready.
    #[cfg(test)]
    pub(super) fn listing(mut self, listed: ListedSandboxes) -> Self {
        let never = Instant::now() + std::time::Duration::from_hours(1);
        self.known = Some((never, Ok(listed)));
        self
    }

    /// What was read before `due` is read again.
    pub(super) fn refresh(&mut self, due: Instant) {
        self.known.take_if(|(read_at, _)| *read_at < due);
    }

    /// The socket at which the pod lookups reach the runtime.
    fn socket(&self) -> Result<PathBuf, String> {
        let sources = self.directory.sources();
        let target = sources.iter().find(|source| source.via == Via::Cri);
        let socket = target.map(|source| PathBuf::from(&source.target));
        let socket = socket.filter(|socket| socket.is_absolute());
        socket.ok_or_else(|| NOT_REACHED.to_owned())
    }

    fn listed(&mut self) -> Result<&ListedSandboxes, String> {
        let known = match self.known.take() {
            Some(known) => known,
            None => {
                let read = |socket| self.list.read(socket).map_err(|error| error.to_string());
                (Instant::now(), self.socket().and_then(read))
            }
        };
        let (_, listed) = self.known.insert(known);
        listed.as_ref().map_err(Clone::clone)
    }

    /// When the container runtime was started: containerd and CRI-O create their socket then. That of cri-dockerd is systemd's.
    pub(super) fn runtime_started(&self) -> Known<UnixTime> {
        const WHAT: &str = "the start of the container runtime";
        match self.socket() {
            Ok(socket) if !socket.ends_with("cri-dockerd.sock") => birth(&socket),
            Ok(_) => not_checked(WHAT, "the socket of cri-dockerd is older than the runtime"),
            Err(why) => not_checked(WHAT, why),
        }
    }

    /// The sandbox of a pod. Only of those that the runtime has listed before it is known that they are gone.
    pub(super) fn of(&mut self, pod: &Pod) -> Known<SandboxFacts> {
        let what = || format!("the sandbox of {}/{}", pod.namespace, pod.name);
        let (Some(created), Some(id)) = (pod.sandbox_created_at, &pod.container_id) else {
            return not_checked(what(), NOT_REACHED);
        };
        let state = match self.listed() {
            Ok(listed) => match listed.get(id) {
                Some(true) => SandboxState::Ready,
                Some(false) => SandboxState::NotReady,
                None => SandboxState::Gone,
            },
            Err(why) => return not_checked(what(), why),
        };
        let addresses = match pod.via {
            Via::Cri => pod.primary_addresses.clone(),
            _ => Vec::new(),
        };
        let facts = SandboxFacts {
            created: unix(created),
            state,
            addresses,
        };
        Known::Value(facts, Source::Cri)
    }
}
