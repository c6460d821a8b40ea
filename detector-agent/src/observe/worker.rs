//! The thread that may wait: attaches the programs to devices and reads the kernel's tables.
//!
//! Jobs are done in order. A device's namespace is read only after the attach, so what was set in between is in the
//! reading.

use std::{collections::HashMap, sync::mpsc::Receiver};

use tracing::{debug, warn};

use super::{
    ebpf::{AttachError, Programs},
    netlink::{DeviceSelector, LeftOut, ReadError, Reading, Requests},
};
use crate::{
    clock,
    detect::{Device, IfIndex, Inside, Look, Observation, ReadScope, ReadToken, Stamped},
};

/// What the thread is asked to do.
#[derive(Debug)]
pub enum Job {
    /// Attach to a device, then, where a token is given, read its pod's namespace.
    Attach(Device, Option<ReadToken>),
    /// A device is gone or none of ours any more.
    Detach(IfIndex),
    /// Look what a pod's own tables say of an address that it asks for.
    LookInside(Look),
    /// Read everything.
    ReadNode(ReadToken),
}

/// What the thread tells.
#[derive(Debug)]
pub enum Outcome {
    /// An attach is done; `false` where the device cannot be watched (it is gone, or the kernel refused).
    Attached(IfIndex, bool),
    /// A pod was looked into; `None` where that cannot be done.
    Inside(Look, Option<Inside>),
    /// A reading is done, or failed.
    Observed(Stamped, LeftOut),
}

/// The thread's own things.
#[derive(Debug)]
pub struct Worker {
    /// The kernel programs; `None` with `--no-ebpf`.
    pub programs: Option<Programs>,
    /// The socket to read with.
    pub requests: Requests,
    /// Which links are pod devices.
    pub selector: DeviceSelector,
}

impl Worker {
    /// Works until no one can ask any more, then detaches from every device.
    pub fn run(mut self, jobs: &Receiver<Job>, tell: impl Fn(Outcome)) {
        let mut attached = HashMap::<IfIndex, u64>::new();
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Attach(device, read) => {
                    let ok = self.attach(&mut attached, &device);
                    if let Some(token) = read {
                        let reading =
                            self.requests
                                .read_device(&self.selector, device.ifindex, device.peer);
                        tell(observed(token, ReadScope::Device(device.ifindex), reading));
                    }
                    tell(Outcome::Attached(device.ifindex, ok));
                }
                Job::Detach(ifindex) => {
                    attached.remove(&ifindex);
                    if let Some(programs) = &mut self.programs {
                        programs.detach(ifindex);
                    }
                }
                Job::LookInside(look) => {
                    let inside = self.requests.look_inside(&look);
                    tell(Outcome::Inside(look, inside));
                }
                Job::ReadNode(token) => {
                    let reading = self.requests.read_node(&self.selector);
                    tell(observed(token, ReadScope::Node, reading));
                }
            }
        }
        if let Some(programs) = &mut self.programs {
            programs.detach_all();
        }
    }

    fn attach(&mut self, attached: &mut HashMap<IfIndex, u64>, device: &Device) -> bool {
        let Some(programs) = &mut self.programs else {
            return true;
        };
        if attached.get(&device.ifindex) == Some(&device.generation) {
            return true;
        }
        match programs.attach(device.ifindex, &device.name) {
            Ok(_) => {
                attached.insert(device.ifindex, device.generation);
                true
            }
            Err(AttachError::Vanished { .. }) => {
                debug!(
                    device = device.name,
                    "the device was gone before the programs were attached"
                );
                false
            }
            Err(error) => {
                warn!(
                    device = device.name,
                    "{error}; frames of this device are not seen, its addresses still are"
                );
                false
            }
        }
    }
}

fn observed(token: ReadToken, scope: ReadScope, reading: Result<Reading, ReadError>) -> Outcome {
    let at = clock::now();
    match reading {
        Ok(Reading { snapshot, left_out }) => Outcome::Observed(
            Stamped {
                at,
                what: Observation::Read(token, scope, Box::new(snapshot)),
            },
            left_out,
        ),
        Err(error) => {
            warn!("reading the kernel's state failed, it will be read again: {error}");
            Outcome::Observed(
                Stamped {
                    at,
                    what: Observation::ReadFailed(token),
                },
                LeftOut::default(),
            )
        }
    }
}
