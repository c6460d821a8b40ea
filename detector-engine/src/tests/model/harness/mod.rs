//! Runs a sequence of operations against the kernel model and the engine, and compares the two.

mod check;
mod delivery;
mod macs;
mod operations;
mod recovery;
mod sweeps;

use std::collections::{BTreeSet, HashMap, HashSet};

use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestCaseResult},
};

use super::super::*;
use crate::tests::model::{
    expected::Expected,
    macs::{MacHistories, MacPlace},
    ops::{Op, PeerPlace, addresses},
    world::{BRIDGES, Dump, PODS, UPLINK, World},
};
use check::expected_form;
use sweeps::{ReportedSweeps, SWEEP_FROM};

/// How far the agent is from being in sync with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncStage {
    Synced,
    /// No observation reaches the agent.
    Losing,
    /// Live updates reach the agent again.
    Resumed,
    /// The resync that will repair the state is in flight.
    SnapshotStarted(SnapshotToken),
    /// The same, and its dump has been taken.
    SnapshotDumped(SnapshotToken),
}

/// A snapshot in flight, numbered by its start.
struct Pending {
    token: SnapshotToken,
    scope: SnapshotScope,
    started: u64,
    is_self_check: bool,
    dump: Option<Dump>,
    /// Notifications were lost since it started: the engine does not merge it.
    is_discarded: bool,
}

/// How long updates wait in every second run of the agent.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);

fn settings(id_seed: u64) -> Settings {
    Settings {
        id_seed,
        update_interval: if id_seed % 2 == 1 {
            UPDATE_INTERVAL
        } else {
            Duration::ZERO
        },
        anomalies: AnomalyRules {
            sweep_from: SWEEP_FROM,
            ..AnomalyRules::default()
        },
        ..Settings::default()
    }
}

pub(super) struct Harness {
    engine: Engine,
    world: World,
    stage: SyncStage,
    pending: Vec<Pending>,
    /// The start number of the newest merged node snapshot.
    newest: u64,
    open: HashMap<ConflictId, Arc<Conflict>>,
    closed: HashSet<ConflictId>,
    sweeps: ReportedSweeps,
    macs: MacHistories,
    /// The open anomalies about hardware addresses, with the device that each names and its serial.
    named: HashMap<AnomalyId, (MacPlace, IfIndex, u64)>,
    /// The namespace in which the agent last knew each pod device, by index and generation.
    namespaces: HashMap<(IfIndex, u64), NsId>,
    /// Devices the engine asked to attach while out of sync.
    attach: BTreeSet<IfIndex>,
    resync_requested: bool,
    /// Answers of the kernel that have not reached the engine.
    lookups: Option<RouteAnswers>,
    starts: u64,
    restarted: bool,
    /// Conflicts with a change that the run before did not report.
    restored_waiting: HashSet<ConflictId>,
}

impl Harness {
    pub(super) fn new() -> Self {
        let mut harness = Self {
            engine: Engine::new(settings(0)),
            world: World {
                now: Timestamp(1_000 * MS),
                ..World::default()
            },
            stage: SyncStage::Synced,
            pending: Vec::new(),
            newest: 0,
            open: HashMap::new(),
            closed: HashSet::new(),
            sweeps: ReportedSweeps::default(),
            macs: MacHistories::default(),
            named: HashMap::new(),
            namespaces: HashMap::new(),
            attach: BTreeSet::new(),
            resync_requested: false,
            lookups: None,
            starts: 0,
            restarted: false,
            restored_waiting: HashSet::new(),
        };
        let uplink = harness.world.create(uplink(UPLINK), None, true);
        harness
            .deliver(uplink)
            .expect("an uplink is not a conflict");
        harness
    }

    /// Recovers fully, restarts the agent, and recovers again.
    pub(super) fn finish(mut self) -> TestCaseResult {
        self.recover_fully()?;
        self.run(Op::Restart(1))?;
        self.recover_fully()
    }

    fn recover_fully(&mut self) -> TestCaseResult {
        while self.stage != SyncStage::Synced {
            self.run(Op::Recover)?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, op: Op) -> TestCaseResult {
        self.world.now.0 += MS;
        if self.stage == SyncStage::Synced {
            self.world.drop_expired_frames();
        }
        match op {
            Op::Create {
                ifindex,
                place,
                readable,
                master,
                has,
                shared_mac,
            } => self.create(ifindex, place, readable, master, &has, shared_mac),
            Op::SetMac(ifindex, mac) => self.set_mac(ifindex, mac),
            Op::Delete(ifindex) => self.apply(|w| w.remove_link(ifindex)),
            Op::NumberPeer(ifindex) => self.apply(|w| w.number_peer(ifindex)),
            Op::Enslave(ifindex, master) => self.apply(|w| w.enslave(ifindex, master)),
            Op::SetUp(ifindex, up) => self.apply(|w| w.set_up(ifindex, up)),
            Op::SetCarrier(ifindex, has) => self.apply(|w| w.set_carrier(ifindex, has)),
            Op::FilterVlans(bridge, on) => self.apply(|w| w.filter_vlans(bridge, on)),
            Op::SetPvid(ifindex, pvid) => self.apply(|w| w.set_pvid(ifindex, pvid)),
            // Another name after a loss may be another device's.
            Op::Rename(_) if self.stage != SyncStage::Synced => Ok(()),
            Op::Rename(ifindex) => self.apply(|w| w.rename(ifindex)),
            Op::CreateBridge(ifindex) => {
                if self.world.is_bridge(ifindex) {
                    return Ok(());
                }
                self.apply(|w| Some(w.create(bridge(ifindex), None, true)))
            }
            Op::DeleteBridge(ifindex, ports_first) => {
                if ports_first && self.world.is_bridge(ifindex) {
                    for port in PODS {
                        if self.world.bridge_of(port) == Some(ifindex) {
                            self.apply(|w| w.enslave(port, None))?;
                            self.world.now.0 += MS;
                        }
                    }
                }
                self.apply(|w| w.remove_link(ifindex))
            }
            Op::Assign(ifindex, address) => self.apply(|w| w.assign(ifindex, address)),
            Op::AssignFailed(ifindex, address) => self.apply(|w| w.assign_failed(ifindex, address)),
            Op::Unassign(ifindex, address) => {
                if self.stage == SyncStage::Synced || self.is_removal_unobservable(address) {
                    self.apply(|w| w.unassign(ifindex, address))
                } else {
                    Ok(())
                }
            }
            Op::SetInternal(ifindex, address, is_there) => {
                if self.stage == SyncStage::Synced || self.is_removal_unobservable(address) {
                    self.apply(|w| w.set_internal(ifindex, address, is_there))
                } else {
                    Ok(())
                }
            }
            Op::Host(ifindex, address) => self.apply(|w| w.host(ifindex, address)),
            Op::RemoveHost(ifindex, address) => self.apply(|w| w.remove_host(ifindex, address)),
            Op::Neighbour(ifindex, address, mac, state) => {
                self.neighbour(ifindex, address, mac, state)
            }
            Op::NeighbourGone(ifindex, address) => {
                self.apply(|w| w.neighbour_gone(ifindex, address))
            }
            Op::LearnFdb(bridge, port, mac) => self.apply(|w| w.learn(bridge, port, mac)),
            Op::AgeFdb(bridge, mac) => {
                // The agent knows the port of an aged MAC only if it missed nothing.
                if self.stage == SyncStage::Synced {
                    self.apply(|w| w.age(bridge, mac))
                } else {
                    Ok(())
                }
            }
            Op::Route(address, ifindex) => self.apply(|w| w.route(address, ifindex)),
            Op::RouteGone(address) => self.apply(|w| w.route_gone(address)),
            Op::RouteReplaced(address) => self.apply(|w| w.route_replaced(address)),
            Op::Rule(address, ifindex) => self.apply(|w| w.rule(address, ifindex)),
            Op::RuleGone(address) => self.apply(|w| w.rule_gone(address)),
            Op::StartLookups => {
                if self.lookups.is_none() {
                    self.lookups = Some(self.answer_lookups());
                }
                Ok(())
            }
            Op::FinishLookups => self.finish_lookups(),
            Op::Frame {
                ifindex,
                address,
                vlan,
                tentative,
                late,
            } => {
                let claim = FrameClaim {
                    ifindex,
                    kind: if address.is_ipv4() {
                        FrameKind::Arp
                    } else {
                        FrameKind::Ndp
                    },
                    tentative,
                    address,
                    mac: mac(u8::try_from(ifindex).unwrap()),
                    ether_source: mac(u8::try_from(ifindex).unwrap()),
                    vlan,
                };
                self.frame(claim, late)
            }
            Op::StartSnapshot(scope) => self.start_snapshot(scope).map(drop),
            Op::StartSelfCheck(ifindex) => self.start_self_check(ifindex),
            Op::DumpSnapshot(which) => {
                if let Some(pending) = self.pending.get_mut(which) {
                    pending.dump = Some(self.world.dump(pending.scope));
                }
                Ok(())
            }
            Op::FinishSnapshot(which) => {
                if self.pending.get(which).is_some_and(|p| p.dump.is_some()) {
                    self.finish_snapshot(which)?;
                }
                Ok(())
            }
            Op::FailSnapshot(which) => {
                if which < self.pending.len() {
                    let failed = self.pending.remove(which);
                    self.deliver(Observation::SnapshotFailed(failed.token))?;
                }
                Ok(())
            }
            Op::Wait(secs) => self.wait(Duration::from_secs(secs)),
            Op::Lose => {
                if self.stage == SyncStage::Synced {
                    self.fail_self_checks()?;
                    self.stage = SyncStage::Losing;
                    self.restarted = false;
                    self.attach.clear();
                    self.resync_requested = false;
                }
                Ok(())
            }
            Op::Restart(secs) => {
                if self.stage == SyncStage::Synced {
                    self.restart(Duration::from_secs(secs))?;
                }
                Ok(())
            }
            Op::Recover => self.recover(),
        }
    }
}
