//! What a world is made of, how bad it is, and what it has met.

use model::node::RemoteProvider;
use serde::Serialize;

use super::Fault;

/// What the fake provider can do, and how bad the world is.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) nodes: usize,
    pub(crate) slots: u32,
    pub(crate) keyed: bool,
    pub(crate) find: bool,
    pub(crate) seal: bool,
    /// Calls under an epoch older than one that was accepted are refused.
    pub(crate) fenced: bool,
    /// A search does not show at once what was created.
    pub(crate) stale: bool,
    /// It forgets what has ended, by itself.
    pub(crate) forgetful: bool,
    /// The driver knows the plain protocol only: an instance is found again by its handle.
    pub(crate) plain: bool,
    /// A manager may be frozen in a call beyond its lease. Otherwise its lease bounds the call.
    pub(crate) frozen: bool,
    /// A call whose caller has given up (crash, timeout) may still take effect at any later time.
    pub(crate) late_calls: bool,
    pub(crate) batch: bool,
    pub(crate) restart_attempts: i32,
    /// How many allocations the scheduler may place in each slot: what keeps the state space finite.
    pub(crate) placements: u32,
    /// How wrong clocks are, in nanoseconds: see [`super::World::clock_of`].
    pub(crate) skew: i64,
    pub(crate) budget: Budget,
    /// Something is done wrong.
    pub(crate) fault: Option<Fault>,
    /// After so many steps without faults a world is not expected to become quiet.
    pub(crate) steps: usize,
}

/// How often each thing may go wrong or be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Budget {
    pub(crate) crashes: u32,
    pub(crate) partitions: u32,
    pub(crate) lost_replies: u32,
    pub(crate) exits: u32,
    pub(crate) drains: u32,
    pub(crate) stops: u32,
    pub(crate) updates: u32,
    pub(crate) restarts: u32,
    pub(crate) outages: u32,
    pub(crate) unhealthy: u32,
    pub(crate) collects: u32,
    pub(crate) gones: u32,
    pub(crate) waits: u32,
    pub(crate) server_restarts: u32,
    pub(crate) restores: u32,
    pub(crate) empties: u32,
    pub(crate) swaps: u32,
    pub(crate) node_resets: u32,
    pub(crate) node_olds: u32,
    pub(crate) twins: u32,
    /// Messages that come twice: an order, a report, a call.
    pub(crate) doubles: u32,
    /// Reports that the servers read when their session has ended.
    pub(crate) stragglers: u32,
    /// Ended instances that the provider forgets by itself.
    pub(crate) forgets: u32,
    /// Steps of the servers' wall clock.
    pub(crate) clock_steps: u32,
    /// How often the store becomes slow, and another server takes over.
    pub(crate) slow: u32,
    pub(crate) take_overs: u32,
    /// Nodes that connect to a former leader.
    pub(crate) formers: u32,
}

impl Budget {
    /// States of servers or nodes may be from the past.
    pub(crate) fn past(&self) -> bool {
        let states = self.restores + self.empties + self.swaps + self.server_restarts;
        states + self.node_resets + self.node_olds + self.twins + self.slow + self.take_overs > 0
    }
}

/// What a world has met, so that one that meets nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// Calls of replaced managers that took effect.
    pub(crate) stale_taken: u64,
    /// Instances that live although the servers take their incarnation for ended, and the longest time from that
    /// belief to their appearance.
    pub(crate) strays: u64,
    pub(crate) latest: i64,
    /// Steps with two live instances in a slot.
    pub(crate) doubled: u64,
    /// Incarnations that were not begun because of what a sweep has found, or has not looked for.
    pub(crate) held: u64,
    /// Steps with a slot whose create may have been sent, and which waits for the instance or for a person.
    pub(crate) unknown: u64,
    /// Ends by themselves whose code the servers never get to know.
    pub(crate) codes_lost: u64,
    /// Instances whose end was believed that a sweep has found.
    pub(crate) strays_found: u64,
    /// Slots that wait for a person in the end.
    pub(crate) waits_for_a_person: u64,
    pub(crate) restores: u64,
    pub(crate) recoveries: u64,
    pub(crate) ended: u64,
    pub(crate) taken_over: u64,
    pub(crate) refused_in_recovery: u64,
    /// Creates that were under way when the state was lost that knew of them, and came afterwards.
    pub(crate) lost: u64,
    /// Second agents of a node that were refused, and those that have got the session when the first one had none.
    pub(crate) rivals: u64,
    pub(crate) displaced: u64,
    /// Servers that took over, those of them that found less than was decided, and messages of former leaders that
    /// nodes have acted on.
    pub(crate) take_overs: u64,
    pub(crate) voided: u64,
    pub(crate) told_by_former: u64,
}

impl Met {
    /// What a search counts.
    pub(crate) fn add(&mut self, step: &Self) {
        self.stale_taken += step.stale_taken;
        self.strays += step.strays;
        self.strays_found += step.strays_found;
        self.doubled += step.doubled;
        self.unknown += step.unknown;
        self.codes_lost += step.codes_lost;
        self.take_overs += step.take_overs;
        self.voided += step.voided;
        self.told_by_former += step.told_by_former;
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 2,
            slots: 1,
            keyed: true,
            find: true,
            seal: true,
            fenced: true,
            stale: false,
            forgetful: false,
            plain: false,
            frozen: true,
            late_calls: true,
            batch: false,
            restart_attempts: 3,
            placements: u32::MAX,
            skew: 0,
            budget: Budget::default(),
            fault: None,
            steps: 20_000,
        }
    }
}

impl Config {
    pub(crate) fn caps(&self) -> RemoteProvider {
        RemoteProvider {
            plain_protocol: self.plain,
            provider: "fake".to_owned(),
            keyed_create: self.keyed,
            find: self.find,
            list: self.find,
            conditional_writes: self.fenced,
            retained_exit_results: !self.forgetful,
            seal: self.seal,
            ..RemoteProvider::default()
        }
    }
}
