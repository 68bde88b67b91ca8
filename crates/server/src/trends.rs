//! What the cluster looked like over the last hour, for charts without another program. Kept in memory by the server
//! that leads; one that begins to lead begins the hour anew.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use api::shapes::Trend;
use model::{ClientStatus, Job, NodeStatus, StoreIndex, TimestampNs};
use state::State;

use crate::{clock, loops, published::Published, runner::Runner};

/// From one point to the next, when looking at the state is cheap.
const INTERVAL: Duration = Duration::from_secs(10);
/// The part of the time that looking at the state may take is 1 of this.
const SHARE: u32 = 100;
/// Points that are kept: an hour of them.
const KEPT: usize = 360;

/// What the next point is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Former {
    /// Index of the state that was looked at; 0 = none was.
    index: StoreIndex,
    handovers: u64,
}

/// The points of the last hour, oldest first, and what all points since the start have counted.
#[derive(Debug, Default)]
pub(crate) struct Trends(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    points: VecDeque<Trend>,
    placed: u64,
    hand_overs: u64,
}

impl Trends {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Trend> {
        self.kept().points.iter().cloned().collect()
    }

    /// Allocations placed, and hand-overs.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let kept = self.kept();
        (kept.placed, kept.hand_overs)
    }

    fn add(&self, point: Trend) {
        let mut kept = self.kept();
        if kept.points.len() >= KEPT {
            kept.points.pop_front();
        }
        kept.placed += point.placed;
        kept.hand_overs += point.hand_overs;
        kept.points.push_back(point);
    }
}

/// The cluster in this state, at this time in Unix nanoseconds.
pub(crate) fn look(state: &State, now: TimestampNs, former: Former) -> (Trend, Former) {
    let mut point = Trend { time: now, ..Trend::default() };
    let mut ready = HashSet::new();
    for node in state.nodes().filter(|node| node.status == NodeStatus::Ready) {
        ready.insert(node.id);
        point.nodes_ready += 1;
        point.cpu_total += node.resources.cpu.cpu_shares - node.reserved.cpu.cpu_shares;
        point.memory_total_mb += node.resources.memory.memory_mb - node.reserved.memory.memory_mb;
    }
    for alloc in state.allocs() {
        // Before the first point everything is old.
        point.placed += u64::from(former.index > 0 && alloc.create_index > former.index);
        if !alloc.occupies() {
            continue;
        }
        if ready.contains(&alloc.node_id) {
            let used = alloc.resources.usage();
            point.cpu_used += used.cpu;
            point.memory_used_mb += used.memory_mb;
        }
        point.allocs_running += u64::from(alloc.client_status == ClientStatus::Running);
    }
    let queued = |job: &Arc<Job>| {
        let summary = state.job_summary(&job.key())?;
        Some(summary.summary.values().map(|group| u64::try_from(group.queued).unwrap_or(0)).sum::<u64>())
    };
    point.queued = state.jobs().filter_map(queued).sum();
    let mut handovers = 0;
    for record in state.remote_tasks() {
        point.unmanaged += u64::from(record.manager.is_none());
        handovers += record.handovers;
    }
    // Records that are forgotten take their hand-overs along.
    point.hand_overs = if former.index > 0 { handovers.saturating_sub(former.handovers) } else { 0 };
    (point, Former { index: state.latest_index(), handovers })
}

/// Adds a point every ten seconds, and less often where a look takes long.
pub(crate) async fn trends_loop(trends: Arc<Trends>, published: Published, runner: Arc<Runner>) {
    let turns = runner.turns(&loops::TRENDS);
    let mut former = Former::default();
    loop {
        turns.works("a look at the whole state");
        let state = published.load_full();
        let begun = Instant::now();
        let now = clock::time_of_day();
        if let Ok((point, next)) = blocking::spawn(move || look(&state, now, former)).await {
            trends.add(point);
            former = next;
        }
        turns.waits("the next point");
        tokio::select! {
            () = tokio::time::sleep(INTERVAL.max(begun.elapsed() * SHARE)) => {}
            () = runner.stopping().cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{AllocatedResources, AllocatedTask, Allocation, Node, RemoteTask, SlotParts};
    use state::{Batch, Change};
    use uuid::Uuid;

    use super::*;

    fn apply(state: &mut State, changes: Vec<Change>) {
        state.apply(state.latest_index() + 1, 1, Batch::new(changes)).expect("applies");
    }

    fn alloc(id: u128, client_status: ClientStatus) -> Allocation {
        let mut resources = AllocatedResources::default();
        let mut task = AllocatedTask::default();
        (task.cpu.cpu_shares, task.memory.memory_mb) = (100, 64);
        resources.tasks.insert("t".into(), task);
        Allocation {
            id: Uuid::from_u128(id).into(),
            node_id: Uuid::from_u128(1).into(),
            client_status,
            resources: resources.into(),
            ..Allocation::default()
        }
    }

    fn remote(epoch_changes: u64) -> Change {
        let parts =
            SlotParts { namespace: "n".into(), job_id: "j".into(), group: "g".into(), index: 0, task: "t".into() };
        Change::PutRemoteTask(Box::new(RemoteTask {
            slot: parts.into(),
            handovers: epoch_changes,
            ..RemoteTask::default()
        }))
    }

    #[test]
    fn a_point_is_the_state_and_what_came_since_the_point_before() {
        let mut state = State::new();
        let mut node = Node { id: Uuid::from_u128(1).into(), status: NodeStatus::Ready, ..Node::default() };
        (node.resources.cpu.cpu_shares, node.resources.memory.memory_mb) = (4000, 2048);
        (node.reserved.cpu.cpu_shares, node.reserved.memory.memory_mb) = (500, 48);
        let away = Node { id: Uuid::from_u128(2).into(), status: NodeStatus::Down, ..node.clone() };
        let cut_off = Allocation { node_id: away.id, ..alloc(9, ClientStatus::Unknown) };
        let allocs = vec![alloc(1, ClientStatus::Running), alloc(2, ClientStatus::Complete), cut_off];
        apply(
            &mut state,
            vec![
                Change::RegisterNode(node.into()),
                Change::RegisterNode(away.into()),
                Change::UpsertAllocs(allocs),
                remote(3),
            ],
        );
        let (first, former) = look(&state, 7, Former::default());
        let wanted = Trend {
            time: 7,
            nodes_ready: 1,
            allocs_running: 1,
            cpu_used: 100,
            cpu_total: 3500,
            memory_used_mb: 64,
            memory_total_mb: 2000,
            unmanaged: 1,
            ..Trend::default()
        };
        assert_eq!(first, wanted, "what was there before is not new");
        apply(&mut state, vec![Change::UpsertAllocs(vec![alloc(3, ClientStatus::Pending)]), remote(5)]);
        let (second, former) = look(&state, 8, former);
        assert_eq!((second.placed, second.hand_overs, second.cpu_used, second.allocs_running), (1, 2, 200, 1));
        let (third, _) = look(&state, 9, former);
        assert_eq!((third.placed, third.hand_overs), (0, 0));
    }

    #[test]
    fn an_hour_is_kept() {
        let trends = Trends::default();
        for time in 0..400 {
            trends.add(Trend { time, ..Trend::default() });
        }
        let kept = trends.all();
        assert_eq!((kept.len(), kept[0].time, kept[359].time), (360, 40, 399));
    }
}
