//! What the container runtime says of the sandboxes of pods now.

use std::time::Instant;

use detector_engine::diagnosis::{Known, SandboxFacts, SandboxState, Source, UnixTime};
use detector_event::{Pod, Via};

use super::{
    claimants::unix,
    files::{birth, not_checked},
};
use crate::pods::{ListedSandboxes, SandboxList};

/// Asks the runtime, once for all findings that were due by then.
#[derive(Debug)]
pub(super) struct Sandboxes {
    /// `None` if the runtime is not to be asked.
    list: Option<SandboxList>,
    known: Option<(Instant, Result<ListedSandboxes, String>)>,
}

impl Sandboxes {
    pub(super) fn new(list: Option<SandboxList>) -> Self {
        Self { list, known: None }
    }

    /// What was read before `due` is read again.
    pub(super) fn refresh(&mut self, due: Instant) {
        self.known.take_if(|(read_at, _)| *read_at < due);
    }

    fn listed(&mut self) -> Result<&ListedSandboxes, String> {
        let list = self.list.as_mut();
        let list = list.ok_or("the container runtime is not to be asked")?;
        let (_, listed) = self.known.get_or_insert_with(|| {
            let read_at = Instant::now();
            (read_at, list.read().map_err(|error| error.to_string()))
        });
        listed.as_ref().map_err(Clone::clone)
    }

    /// When the container runtime was started: containerd and CRI-O create their socket then. That of cri-dockerd is systemd's.
    pub(super) fn runtime_started(&mut self) -> Known<UnixTime> {
        const WHAT: &str = "the start of the container runtime";
        if let Err(why) = self.listed() {
            return not_checked(WHAT, why);
        }
        let socket = self.list.as_ref().and_then(SandboxList::socket);
        match socket {
            Some(socket) if !socket.ends_with("cri-dockerd.sock") => birth(socket),
            _ => not_checked(WHAT, "the socket does not tell"),
        }
    }

    /// The sandbox of a pod. Only of those that the runtime has listed before it is known that they are gone.
    pub(super) fn of(&mut self, pod: &Pod) -> Known<SandboxFacts> {
        let what = || format!("the sandbox of {}/{}", pod.namespace, pod.name);
        let (Some(created), Some(id)) = (pod.sandbox_created_at, &pod.container_id) else {
            return not_checked(what(), "the container runtime was not reached");
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
