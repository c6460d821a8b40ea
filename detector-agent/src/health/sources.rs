//! Health of the observation sources.

use std::sync::Arc;

use detector_engine::Timestamp;
use detector_event::{Role, State};

use super::{Health, Part};

/// What the event loop knows about its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Pod devices on the node.
    pub devices: usize,
    /// Pod devices with programs attached.
    pub attached: usize,
    /// Pod devices on which other programs may hide frames from ours.
    pub preempted: usize,
    /// Attachments in progress.
    pub attaching: usize,
    /// The first full snapshot is merged.
    pub has_snapshot: bool,
    /// A full snapshot is in flight.
    pub snapshot_in_flight: bool,
    /// Why a resync is pending, if one is.
    pub resync: Option<&'static str>,
}

/// Keeps the health of the sources up to date, from the event loop.
#[derive(Debug)]
pub struct SourceHealth {
    health: Arc<Health>,
    /// `None` with `--no-ebpf`.
    programs: Option<Part>,
    netlink: Part,
    last: Option<Situation>,
}

impl SourceHealth {
    /// Registers the parts. `ebpf`: whether eBPF programs are used; `neighbour_problem`: why the neighbour table is
    /// followed by netlink instead of by them.
    #[must_use]
    pub fn new(health: Arc<Health>, ebpf: bool, neighbour_problem: Option<&str>) -> Self {
        let programs = health.part(Role::Source, "kernel programs");
        let netlink = health.part(Role::Source, "netlink");
        let neighbours = health.part(Role::Source, "neighbour table");
        if !ebpf {
            programs.off("disabled by --no-ebpf; ARP and NDP frames are not seen");
        }
        match neighbour_problem {
            None if ebpf => neighbours.works("followed by the kernel programs"),
            None => neighbours.works("followed by netlink"),
            Some(problem) => neighbours.degraded(format!("followed by netlink: {problem}")),
        }
        Self {
            health,
            programs: ebpf.then_some(programs),
            netlink,
            last: None,
        }
    }

    /// Records a heartbeat and updates the parts if the situation changed.
    pub fn update(&mut self, now: Timestamp, situation: &Situation) {
        self.health.beat(now);
        if self.last.as_ref() == Some(situation) {
            return;
        }
        self.last = Some(*situation);
        if situation.has_snapshot {
            self.health.set_devices(situation.devices);
        }
        if let Some(programs) = &self.programs
            && situation.has_snapshot
        {
            let (state, detail) = attachment(situation);
            programs.set(state, detail);
        }
        match situation.resync {
            _ if !situation.has_snapshot => {}
            Some(reason) => self.netlink.degraded(format!("resync pending ({reason})")),
            None if situation.snapshot_in_flight => {
                self.netlink.degraded("resync in progress");
            }
            None => self.netlink.works("following links, addresses and routes"),
        }
    }
}

/// State and detail of the kernel programs after the start.
fn attachment(situation: &Situation) -> (State, String) {
    let Situation {
        devices,
        attached,
        preempted,
        ..
    } = *situation;
    let mut state = State::Works;
    let mut detail = if devices == 0 {
        "ready; there is no pod device yet".to_owned()
    } else if attached >= devices {
        match devices {
            1 => "attached to the one pod device".to_owned(),
            devices => format!("attached to all {devices} pod devices"),
        }
    } else if situation.attaching > 0 {
        format!("attaching: {attached} of {devices} pod devices")
    } else {
        state = State::Degraded;
        format!(
            "attached to {attached} of {devices} pod devices; frames of the others are not seen"
        )
    };
    if preempted > 0 {
        state = State::Degraded;
        let reason = "another program's filter runs first and may hide frames";
        detail = format!("{detail}; on {preempted} of them {reason}");
    }
    (state, detail)
}

#[cfg(test)]
mod tests {
    use detector_event::PartReport;

    use super::*;

    fn situation() -> Situation {
        Situation {
            devices: 5,
            attached: 5,
            attaching: 0,
            preempted: 0,
            has_snapshot: true,
            snapshot_in_flight: false,
            resync: None,
        }
    }

    fn states(health: &Health) -> Vec<State> {
        health
            .report()
            .iter()
            .map(|p: &PartReport| p.state)
            .collect()
    }

    #[test]
    fn missing_programs_and_losses_are_degraded() {
        let health = Arc::new(Health::default());
        let mut sources = SourceHealth::new(Arc::clone(&health), true, None);
        let mut update = |situation| {
            sources.update(Timestamp(1), &situation);
            states(&health)
        };
        let starting = Situation {
            has_snapshot: false,
            ..situation()
        };
        assert_eq!(
            update(starting),
            [State::Starting, State::Starting, State::Works]
        );
        assert_eq!(health.devices(), None);
        assert_eq!(update(situation()), [State::Works; 3]);
        assert_eq!(health.devices(), Some(5));
        let unattached = Situation {
            attached: 4,
            ..situation()
        };
        assert_eq!(
            update(unattached),
            [State::Degraded, State::Works, State::Works]
        );
        let preempted = Situation {
            preempted: 2,
            ..situation()
        };
        assert_eq!(
            update(preempted),
            [State::Degraded, State::Works, State::Works]
        );
        let lost = Situation {
            resync: Some("ring_full"),
            ..situation()
        };
        assert_eq!(update(lost), [State::Works, State::Degraded, State::Works]);
    }

    #[test]
    fn the_programs_part_is_off_without_ebpf() {
        let health = Arc::new(Health::default());
        let mut sources = SourceHealth::new(Arc::clone(&health), false, None);
        sources.update(Timestamp(1), &situation());
        assert_eq!(states(&health), [State::Off, State::Works, State::Works]);
    }
}
