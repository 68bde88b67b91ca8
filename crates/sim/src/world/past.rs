//! The store of two servers is put back to an older copy: what is lost by that is judged no more, and people ask for it
//! again. All else keeps its rules.

use std::{collections::BTreeSet, time::Duration};

use model::{NodeId, NodeStatus};
use server::{ServerHandle, sweep::Which};
use state::State;

use super::{World, lock};
use crate::{history::History, plan::NODES, servers, truth::SERVERS};

/// A leader that reaches a store which has lost what it shows answers people so long at most.
const SEEN: Duration = Duration::from_secs(10);
/// After a restore everything is as people want it within this time of quiet.
const BACK: Duration = Duration::from_secs(180);
/// By how much the revisions of a store can go on that was put back.
const BUMP: u64 = 1_000_000_000;

/// What is known of a restore.
#[derive(Default)]
pub(super) struct Past {
    /// What was lost by it is not all made good.
    trouble: Option<u64>,
    restored: bool,
    /// Nodes that are down as the copy has it.
    down: BTreeSet<NodeId>,
    /// Somebody answers from what is lost, since then.
    shown: Option<Duration>,
    /// The servers recover.
    recovers: bool,
    /// Since when nothing keeps the servers from making it good.
    free: Duration,
}

impl Past {
    /// Whether servers take a node for down only because their state is from the past.
    pub(super) fn says_down(&self, node: NodeId) -> bool {
        self.down.contains(&node)
    }

    /// Judges how long somebody answers from what is lost. `well` = what is shown is not, or nobody can find out.
    pub(super) fn judge_leader(&mut self, now: Duration, well: bool, history: &History) {
        if well {
            self.shown = None;
        } else if now.saturating_sub(*self.shown.get_or_insert(now)) > SEEN {
            history.violated("a leader answers people from what the store has lost");
        }
    }
}

impl World {
    pub(super) fn copy(&mut self) {
        let Some(two) = &self.two else { return };
        let index = two.truth.copy();
        self.wanted.copied();
        self.history.note(format!("the copy has index {index}"));
    }

    pub(super) fn restore(&mut self, time: u64, down: bool, bump: bool) {
        let Some(two) = &self.two else { return };
        let before = two.truth.losses();
        let Some(contents) = two.truth.restore(if bump { BUMP } else { 0 }) else { return };
        let lost = two.truth.losses() > before;
        for server in (0..SERVERS).filter(|_| down) {
            let late = self.draw(10);
            self.kill_process(server, time + late);
        }
        self.store_trouble(time, "store restored", |faults| faults.out = true, |faults| faults.out = false);
        if !lost {
            return;
        }
        self.wanted.restored();
        self.launches.lost(contents.index);
        self.doors.lost();
        let nodes = State::load(contents.rows);
        let nodes = nodes.iter().flat_map(|state| state.nodes()).filter(|node| node.status == NodeStatus::Down);
        self.past.down = nodes.map(|node| node.id).collect();
        self.past.restored = true;
        let trouble = self.past.trouble.take().unwrap_or_else(|| self.trouble("a state from the past"));
        self.past.trouble = Some(trouble);
    }

    /// Makes good what was lost, as people would, and judges how long that takes.
    pub(super) fn judge_past(&mut self, server: &ServerHandle, state: &State) {
        if !self.past.restored {
            let recovery = state.cluster().recovery.as_ref().filter(|_| self.two.is_some());
            if let Some(recovery) = recovery {
                let why = &recovery.cause;
                self.history.violated(format!("the servers recover, and no older copy took the store's place: {why}"));
            }
            return;
        }
        self.past.down.retain(|id| state.node(*id).is_some_and(|node| node.status == NodeStatus::Down));
        let (now, recovery) = (self.now(), state.cluster().recovery.as_ref());
        if std::mem::replace(&mut self.past.recovers, recovery.is_some()) != recovery.is_some() {
            let cause = recovery.map(|recovery| &*recovery.cause);
            self.history.note(cause.map_or("the recovery is over".into(), |why| format!("the servers recover: {why}")));
        }
        if now.as_secs().is_multiple_of(5) && state.cluster().recovery.is_none() {
            self.decide_on_orphans(server);
        }
        let Some(trouble) = self.past.trouble else { return };
        let (others, last, away) = {
            let troubles = lock(&self.troubles);
            (troubles.open.len() > 1, troubles.last, troubles.away.values().any(|away| *away > 0))
        };
        if others || away {
            self.past.free = now;
        }
        let free = now.saturating_sub(self.past.free.max(last));
        if free > BACK {
            let status = server.recovery_status().map(|status| status.waits_for());
            self.history.violated(format!("{} s after a restore not all is back: {status:?}", free.as_secs()));
        }
        let leads = self.doors.leader().map(|leader| servers::addresses()[leader].clone());
        let all = (0..NODES).all(|node| self.nodes[node].connected() && Some(self.nodes[node].server()) == leads);
        if state.cluster().recovery.is_some() || !all {
            return;
        }
        // Nobody is left who could bring back what was asked for before.
        for (job, ask) in self.wanted.unsure() {
            let asked = match ask.count {
                0 => self.stop(&job, false),
                _ => self.register(&job, crate::wanted::Ask { revision: ask.revision + 1, ..ask }),
            };
            if asked {
                self.wanted.settles(&job);
            }
        }
        let orphans = server.remote_sweeps().iter().any(|sweep| sweep.unbound.iter().any(|found| found.alive()));
        if !orphans && !self.wanted.is_unsure() {
            self.past.trouble = None;
            self.history.note("what was lost is made good");
            self.over(trouble);
        }
    }

    /// Adopts orphaned instances that are wanted, and stops the others.
    fn decide_on_orphans(&self, server: &ServerHandle) {
        let sweeps = server.remote_sweeps();
        let found = sweeps.iter().flat_map(|sweep| &sweep.unbound).filter(|found| found.alive());
        for orphan in found {
            let live = self.provider.live().into_iter().find(|live| live.key == orphan.key);
            let wanted = live.is_some_and(|live| self.wanted.surely(&live.slot, live.revision));
            self.history.note(format!("the orphan {} of {} is wanted: {wanted}", orphan.key, orphan.slot));
            let which = Which::own(&orphan.key);
            self.request(move |server| async move {
                if wanted && server.adopt_remote(&which).await.is_ok() {
                    return Ok(());
                }
                server.stop_unbound_remote(&which).await.map(drop)
            });
        }
        if self.past.trouble.is_some() && self.now().as_secs().is_multiple_of(15) {
            self.request(|server| async move {
                server.sweep_remote().await;
                Ok(())
            });
        }
    }
}
