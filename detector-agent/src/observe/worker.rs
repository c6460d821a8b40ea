//! The thread that may wait: attaches the programs to devices and reads the kernel's tables.
//!
//! Every few seconds it looks whether the programs still stand where they see frames: the kernel tells when somebody removes a
//! filter, but not when somebody comes to stand before it. Jobs are done in order. A device's namespace is read only after the attach, so what was set in between is in the
//! reading.

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use tracing::{debug, warn};

use super::{
    ebpf::{AttachError, Programs},
    netlink::{BoundedSnapshot, DeviceSelector, NetlinkReader, Omitted, ReadError},
};
use crate::{
    clock,
    engine::{IfIndex, Observation, PodDevice, SnapshotScope, SnapshotToken, TimedObservation},
};

/// Between two looks at whether the programs still see frames, at least.
const LOOK: Duration = Duration::from_secs(5);
/// Every so many looks the filters of each device are listed, whatever the kernel told: a notice that the kernel had no
/// memory for is missing without a word.
const LISTED_EVERY: u32 = 60;
/// A look takes a few µs a device. With very many devices it comes less often, so that it never costs more than one part
/// in this many of a core.
const LOOK_SHARE: u32 = 2_000;

/// What the thread is asked to do.
#[derive(Debug)]
pub enum Job {
    /// Attach to a device, then, where a token is given, read its pod's namespace.
    Attach(PodDevice, Option<SnapshotToken>),
    /// A device is gone or none of ours any more.
    Detach(IfIndex),
    /// Read everything.
    ReadNode(SnapshotToken),
}

/// What the thread tells.
#[derive(Debug)]
pub enum Outcome {
    /// An attach is done; `false` where the device cannot be watched (it is gone, or the kernel refused).
    Attached(IfIndex, bool),
    /// A device had to be attached to anew; its frames were not seen for a while.
    Displaced(IfIndex),
    /// A reading is done, or failed.
    Observed(TimedObservation, Omitted),
}

/// What is attached to: each device's generation and name.
type Attached = HashMap<IfIndex, (u64, String)>;

/// The looks whether the programs still stand where they see frames.
#[derive(Debug, Default)]
struct Looks {
    done: u32,
    /// Devices that attaching anew failed for the last time, and was said to.
    failing: HashSet<IfIndex>,
}

/// The thread's own things.
#[derive(Debug)]
pub struct Worker {
    /// The kernel programs; `None` with `--no-ebpf`.
    pub programs: Option<Programs>,
    /// The socket to read with.
    pub requests: NetlinkReader,
    /// Which links are pod devices.
    pub selector: DeviceSelector,
}

impl Worker {
    /// Works until no one can ask any more, then detaches from every device.
    pub fn run(mut self, jobs: &Receiver<Job>, tell: impl Fn(Outcome)) {
        let mut attached = Attached::new();
        let mut next_look = Instant::now() + LOOK;
        let mut looks = Looks::default();
        loop {
            let wait = next_look.saturating_duration_since(Instant::now());
            let job = jobs.recv_timeout(wait);
            if Instant::now() >= next_look {
                let begun = Instant::now();
                self.look_again(&attached, &mut looks, &tell);
                next_look = Instant::now() + pause_after(begun.elapsed());
            }
            let job = match job {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match job {
                Job::Attach(device, read) => {
                    let ok = self.attach(&mut attached, &device);
                    if let Some(token) = read {
                        let reading =
                            self.requests
                                .read_device(&self.selector, device.ifindex, device.peer);
                        tell(observed(
                            token,
                            SnapshotScope::Device(device.ifindex),
                            reading,
                        ));
                    }
                    tell(Outcome::Attached(device.ifindex, ok));
                }
                Job::Detach(ifindex) => {
                    attached.remove(&ifindex);
                    if let Some(programs) = &mut self.programs {
                        programs.detach(ifindex);
                    }
                }
                Job::ReadNode(token) => {
                    let reading = self.requests.read_node(&self.selector);
                    tell(observed(token, SnapshotScope::Node, reading));
                }
            }
        }
        if let Some(programs) = &mut self.programs {
            programs.detach_all();
        }
    }

    fn look_again(&mut self, attached: &Attached, looks: &mut Looks, tell: &impl Fn(Outcome)) {
        let Some(programs) = &mut self.programs else {
            return;
        };
        looks.done = looks.done.wrapping_add(1);
        programs.begin_check(looks.done.is_multiple_of(LISTED_EVERY));
        looks
            .failing
            .retain(|ifindex| attached.contains_key(ifindex));
        for (ifindex, (_, name)) in attached {
            match programs.reattach_if_displaced(*ifindex, name) {
                Ok(false) | Err(AttachError::Vanished { .. }) => {}
                Ok(true) => {
                    looks.failing.remove(ifindex);
                    warn!(
                        device = name,
                        "somebody removed our filter, or came to stand before it: attached anew, and reading what was missed"
                    );
                    tell(Outcome::Displaced(*ifindex));
                }
                Err(error) if looks.failing.insert(*ifindex) => warn!(
                    device = name,
                    "{error}; frames of this device may not be seen until attaching works again, which is tried every {} s or, with very many devices, less often",
                    LOOK.as_secs()
                ),
                Err(error) => debug!(device = name, "still so: {error}"),
            }
        }
    }

    fn attach(&mut self, attached: &mut Attached, device: &PodDevice) -> bool {
        let Some(programs) = &mut self.programs else {
            return true;
        };
        let known = attached.get(&device.ifindex);
        if known.is_some_and(|(generation, _)| *generation == device.generation) {
            return true;
        }
        match programs.attach(device.ifindex, &device.name) {
            Ok(_) => {
                attached.insert(device.ifindex, (device.generation, device.name.clone()));
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

/// How long to wait after a look that took this long.
fn pause_after(look: Duration) -> Duration {
    (look * LOOK_SHARE).max(LOOK)
}

fn observed(
    token: SnapshotToken,
    scope: SnapshotScope,
    reading: Result<BoundedSnapshot, ReadError>,
) -> Outcome {
    let at = clock::now();
    match reading {
        Ok(BoundedSnapshot { snapshot, omitted }) => Outcome::Observed(
            TimedObservation {
                at,
                observation: Observation::Snapshot(token, scope, Box::new(snapshot)),
            },
            omitted,
        ),
        Err(error) => {
            warn!("reading the kernel's state failed, it will be read again: {error}");
            Outcome::Observed(
                TimedObservation {
                    at,
                    observation: Observation::SnapshotFailed(token),
                },
                Omitted::default(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_at_the_devices_costs_little_however_many_there_are() {
        assert_eq!(pause_after(Duration::from_micros(200)), LOOK);
        let long = Duration::from_millis(30);
        assert_eq!(pause_after(long), Duration::from_secs(60));
    }
}
