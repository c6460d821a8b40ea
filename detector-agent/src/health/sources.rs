//! Health of the observation sources.

use std::sync::Arc;

use super::{Health, Part, Role};
use crate::engine::Timestamp;

/// What the event loop knows about its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Pod devices on the node.
    pub devices: usize,
    /// Pod devices with programs attached.
    pub attached: usize,
    /// Attachments in progress.
    pub attaching: usize,
    /// The first reading is merged.
    pub first_read: bool,
    /// A reading of everything is under way.
    pub reading: bool,
    /// Why one is wanted.
    pub resync: Option<&'static str>,
}

/// Keeps the health of the sources up to date, from the event loop.
#[derive(Debug)]
pub struct SourceHealth {
    health: Arc<Health>,
    /// `None` with `--no-ebpf`.
    programs: Option<Part>,
    netlink: Part,
    told: Option<Situation>,
}

impl SourceHealth {
    /// The parts of the sources. `ebpf`: whether kernel programs are used; `neighbour_problem`: why they do not follow
    /// the neighbour table, where netlink does instead.
    #[must_use]
    pub fn new(health: Arc<Health>, ebpf: bool, neighbour_problem: Option<&str>) -> Self {
        let programs = health.part(Role::Source, "kernel programs");
        let netlink = health.part(Role::Source, "netlink");
        let neighbours = health.part(Role::Source, "neighbour table");
        if !ebpf {
            programs.off("switched off by --no-ebpf: ARP and NDP frames are not seen");
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
            told: None,
        }
    }

    /// Says how they are, and that detection lives.
    pub fn tell(&mut self, now: Timestamp, situation: &Situation) {
        self.health.beat(now);
        if self.told.as_ref() == Some(situation) {
            return;
        }
        self.told = Some(*situation);
        let Situation {
            devices, attached, ..
        } = *situation;
        if let Some(programs) = &self.programs {
            if !situation.first_read {
                // Still starting.
            } else if devices == 0 {
                programs.works("ready; there is no pod device yet");
            } else if attached >= devices {
                programs.works(match devices {
                    1 => "attached to the one pod device".to_owned(),
                    devices => format!("attached to all {devices} pod devices"),
                });
            } else if situation.attaching > 0 {
                programs.works(format!("attaching: {attached} of {devices} pod devices"));
            } else {
                programs.degraded(format!(
                    "attached to {attached} of {devices} pod devices; frames of the others are not seen"
                ));
            }
        }
        match situation.resync {
            _ if !situation.first_read => {}
            Some(reason) => self.netlink.degraded(format!(
                "something was missed ({reason}); the whole state is read anew"
            )),
            None if situation.reading => {
                self.netlink.degraded("reading the whole state anew");
            }
            None => self
                .netlink
                .works("links, addresses and routes are followed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{PartReport, State},
        *,
    };

    fn situation() -> Situation {
        Situation {
            devices: 5,
            attached: 5,
            attaching: 0,
            first_read: true,
            reading: false,
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
    fn devices_without_programs_and_losses_show_as_degraded() {
        let health = Arc::new(Health::default());
        let mut sources = SourceHealth::new(Arc::clone(&health), true, None);
        let mut tell = |situation| {
            sources.tell(Timestamp(1), &situation);
            states(&health)
        };
        let starting = Situation {
            first_read: false,
            ..situation()
        };
        assert_eq!(
            tell(starting),
            [State::Starting, State::Starting, State::Works]
        );
        assert_eq!(tell(situation()), [State::Works; 3]);
        let unattached = Situation {
            attached: 4,
            ..situation()
        };
        assert_eq!(
            tell(unattached),
            [State::Degraded, State::Works, State::Works]
        );
        let lost = Situation {
            resync: Some("ring_full"),
            ..situation()
        };
        assert_eq!(tell(lost), [State::Works, State::Degraded, State::Works]);
    }

    #[test]
    fn without_kernel_programs_that_part_is_off() {
        let health = Arc::new(Health::default());
        let mut sources = SourceHealth::new(Arc::clone(&health), false, None);
        sources.tell(Timestamp(1), &situation());
        assert_eq!(states(&health), [State::Off, State::Works, State::Works]);
    }
}
