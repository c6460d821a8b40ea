//! What a pod's own tables say of an address it asks for.
//!
//! The kernel tells neighbours and routes only to a socket of the namespace itself. So a thread of its own enters the
//! namespace, opens the socket, reads and ends; no other thread ever leaves the agent's namespace. Needs CAP_SYS_ADMIN and
//! the file by which the container runtime keeps the namespace; without either the answer is "not known".

use std::{
    fs::{self, File, OpenOptions},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    thread,
};

use nix::{
    libc,
    sched::{CloneFlags, setns},
};
use tracing::debug;

use super::{Requests, lists, request::Asking};
use crate::engine::{Inside, Look, NsId, NudState};

/// Where container runtimes, Docker and `ip netns` keep namespaces.
const PLACES: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// Namespaces that are looked at to find one.
const MAX_NAMESPACES: usize = 8192;

impl Requests {
    /// Looks into a pod; `None` where that cannot be done.
    pub fn look_inside(&mut self, look: &Look) -> Option<Inside> {
        let namespace = self.namespace_file(look.peer.nsid)?;
        let look = *look;
        let reading = thread::Builder::new()
            .name("pod-reader".to_owned())
            .spawn(move || read(&namespace, &look));
        match reading.ok()?.join().ok()? {
            Ok(inside) => Some(inside),
            Err(why) => {
                debug!(
                    "the pod behind the device of index {} cannot be looked into: {why}",
                    look.ifindex
                );
                None
            }
        }
    }

    fn namespace_file(&mut self, wanted: NsId) -> Option<File> {
        for place in PLACES {
            let Ok(entries) = fs::read_dir(place) else {
                continue;
            };
            for entry in entries.filter_map(Result::ok).take(MAX_NAMESPACES) {
                let Some(file) = open_namespace(&entry.path()) else {
                    continue;
                };
                if let Ok(Some(id)) = self.namespace_id(file.as_fd())
                    && id == wanted
                {
                    return Some(file);
                }
            }
        }
        None
    }
}

fn read(namespace: &File, look: &Look) -> Result<Inside, String> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
    let mut asking = Asking::open().map_err(|error| error.to_string())?;
    let on = Some(look.peer.ifindex);
    let found = lists::neighbours(&mut asking, on, |n| n.address == look.target);
    let entry = found.map_err(|error| error.to_string())?.kept.pop();
    let is_gateway =
        lists::is_gateway(&mut asking, look.target).map_err(|error| error.to_string())?;
    Ok(Inside {
        resolved: entry.map(|n| n.state != NudState::Invalid),
        is_gateway,
    })
}

/// Opens the file of a namespace, without ever waiting, whatever stands there.
pub(crate) fn open_namespace(path: &Path) -> Option<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .ok()
}
