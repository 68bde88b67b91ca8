//! Root keys: what becomes of the others when one is made, when the next one is made, and which ones nobody needs.

use lifecycle::identities::exposed;
use model::{Task, TimestampNs, signing::KeyState, task::Identity};
use state::State;
use uuid::Uuid;

/// Verifiers get at least this long to fetch the next key before it signs. The servers let them keep the list for a
/// minute.
const LEAD: TimestampNs = 5 * 60 * 1_000_000_000;
/// A key may sign a little longer than planned: while no server leads, no other takes over.
const SLACK: TimestampNs = 5 * 60 * 1_000_000_000;

/// A key, as these decisions need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Id.
    pub id: Uuid,
    /// What it is used for.
    pub state: KeyState,
    /// When it was made, Unix ns.
    pub create_time: TimestampNs,
    /// When a prepublished key becomes active, Unix ns; 0 = it was active from the beginning.
    pub publish_time: TimestampNs,
    /// Whether it encrypts variables.
    pub encrypts: bool,
}

impl Standing {
    /// From when on it signs, as planned.
    fn since(&self) -> TimestampNs {
        self.create_time.max(self.publish_time)
    }

    /// Another key was made before its turn came, so that it has never signed.
    fn overtaken(&self, keys: &[Self]) -> bool {
        keys.iter().any(|key| key.create_time > self.create_time && key.create_time < self.publish_time)
    }

    /// Until when it signed, as planned; None = it still does, or nobody knows.
    fn until(&self, keys: &[Self]) -> Option<TimestampNs> {
        let later = keys.iter().filter(|key| key.since() > self.since() && !key.overtaken(keys));
        later.filter(|key| key.state != KeyState::Prepublished).map(Self::since).min()
    }
}

/// How long keys are used and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A key signs for so long, in ns. For the second half of that the next one is published already.
    pub rotation: TimestampNs,
    /// A key that nobody needs is kept for so long after its rotation, in ns.
    pub gc: TimestampNs,
    /// The longest life of a node's token, in ns.
    pub node_identity: TimestampNs,
}

/// The states that other keys get with a new one. `full`: their variables are encrypted again. `ahead`: the new one is
/// published before its use.
#[must_use]
pub fn beside_a_new_one(keys: &[Standing], full: bool, ahead: bool) -> Vec<(Uuid, KeyState)> {
    let next = |key: &Standing| match key.state {
        // One key at a time waits for its turn.
        KeyState::Prepublished => Some(KeyState::Inactive),
        KeyState::Active if !ahead => Some(if full && key.encrypts { KeyState::Rekeying } else { KeyState::Inactive }),
        KeyState::Inactive if full && key.encrypts => Some(KeyState::Rekeying),
        _ => None,
    };
    keys.iter().filter_map(|key| Some((key.id, next(key)?))).collect()
}

/// What is to be done with the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// A prepublished key takes over: the states that keys get.
    Activate(Vec<(Uuid, KeyState)>),
    /// The active key encrypts no variables: make one that does.
    Replace,
    /// The active key gets old: make the next one, which becomes active at this time, Unix ns.
    Prepublish(TimestampNs),
    /// Encrypt the variables of these keys again.
    Reseal(Vec<Uuid>),
}

/// What is due first. None = nothing now.
#[must_use]
pub fn chore(keys: &[Standing], may_encrypt: bool, times: &Times, now: TimestampNs) -> Option<Chore> {
    let due = |key: &&Standing| key.state == KeyState::Prepublished && key.publish_time <= now;
    if let Some(next) = keys.iter().find(due) {
        let before = keys.iter().filter(|key| key.state == KeyState::Active).map(|key| (key.id, KeyState::Inactive));
        return Some(Chore::Activate(std::iter::once((next.id, KeyState::Active)).chain(before).collect()));
    }
    let active = keys.iter().find(|key| key.state == KeyState::Active);
    if may_encrypt && active.is_none_or(|key| !key.encrypts) {
        return Some(Chore::Replace);
    }
    let old: Vec<Uuid> = keys.iter().filter(|key| key.state == KeyState::Rekeying).map(|key| key.id).collect();
    if !old.is_empty() {
        return Some(Chore::Reseal(old));
    }
    // Servers of a former release know no keys that are published ahead.
    let old = active.filter(|key| may_encrypt && now.saturating_sub(key.since()) >= times.rotation / 2)?;
    let waits = keys.iter().any(|key| key.state == KeyState::Prepublished);
    let planned = old.since().saturating_add(times.rotation);
    (!waits).then(|| Chore::Prepublish(planned.max(now.saturating_add(LEAD.min(times.rotation / 2)))))
}

/// The keys that nobody needs: they no longer sign, are old enough, encrypt no variable, and no token that they may
/// have signed lives. The servers record no tokens. So a key is needed while an allocation lives that was made before
/// the key's end and shows its tasks a token that may not have expired.
#[must_use]
pub fn unneeded(state: &State, keys: &[Standing], times: &Times, now: TimestampNs) -> Vec<Uuid> {
    let old = |key: &&Standing| {
        let until = key.until(keys).filter(|_| key.state == KeyState::Inactive);
        let age = now.saturating_sub(key.since());
        let kept = times.gc.max(times.node_identity).saturating_add(SLACK);
        age >= times.rotation.saturating_add(times.gc) && until.is_some_and(|until| now.saturating_sub(until) >= kept)
    };
    let old = keys.iter().filter(old);
    let needed = |key: &Standing| encrypts_any(state, key.id) || lives(state, key.until(keys).unwrap_or(now), now);
    old.filter(|key| !needed(key)).map(|key| key.id).collect()
}

/// Whether a variable is encrypted with the key.
#[must_use]
pub fn encrypts_any(state: &State, key: Uuid) -> bool {
    state.variables().any(|variable| variable.key_id == key)
}

/// Whether a token that was signed before `until` may still be in use by a task.
fn lives(state: &State, until: TimestampNs, now: TimestampNs) -> bool {
    let until = until.saturating_add(SLACK);
    let unexpired = |identity: &Identity| {
        let ttl = identity.ttl.nanos();
        ttl <= 0 || until.saturating_add(ttl) > now
    };
    let carries = |task: &Task| exposed(task).any(unexpired);
    let allocs = state.allocs().filter(|alloc| !alloc.client_terminal() && alloc.create_time < until);
    let group = allocs.filter_map(|alloc| alloc.job.as_ref()?.group(&alloc.task_group));
    if group.flat_map(|group| &group.tasks).any(carries) {
        return true;
    }
    // An instance keeps its tokens while allocations for it come and go.
    let open = state.remote_tasks().filter(|slot| !slot.settled() && slot.started_at < until);
    open.filter_map(|slot| state.alloc(slot.alloc_id)).any(|alloc| {
        alloc
            .job
            .as_ref()
            .and_then(|job| job.group(&alloc.task_group))
            .is_some_and(|group| group.tasks.iter().any(carries))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u128, state: KeyState) -> Standing {
        Standing { id: Uuid::from_u128(id), state, create_time: 0, publish_time: 100, encrypts: id < 10 }
    }

    const HOUR: TimestampNs = 3600 * 1_000_000_000;
    const TIMES: Times = Times { rotation: 720 * HOUR, gc: HOUR, node_identity: 24 * HOUR };

    fn chore(keys: &[Standing], may_encrypt: bool, now: TimestampNs) -> Option<Chore> {
        super::chore(keys, may_encrypt, &TIMES, now)
    }

    fn made(id: u128, state: KeyState, create_time: TimestampNs, publish_time: TimestampNs) -> Standing {
        Standing { create_time, publish_time, ..key(id, state) }
    }

    #[test]
    fn the_next_key_is_published_for_half_of_a_keys_time() {
        use KeyState::{Active, Prepublished};
        let one = made(1, Active, HOUR, 0);
        assert_eq!(chore(&[one], true, 361 * HOUR - 1), None);
        assert_eq!(chore(&[one], true, 361 * HOUR), Some(Chore::Prepublish(721 * HOUR)));
        assert_eq!(chore(&[one], false, 361 * HOUR), None, "not all servers know it");
        let next = made(2, Prepublished, 361 * HOUR, 721 * HOUR);
        assert_eq!(chore(&[one, next], true, 721 * HOUR - 1), None, "it waits");
        let states = vec![(next.id, Active), (one.id, KeyState::Inactive)];
        assert_eq!(chore(&[one, next], true, 721 * HOUR), Some(Chore::Activate(states)));
        // Its time begins with its turn, not with its making.
        let next = Standing { state: Active, ..next };
        assert_eq!(chore(&[next], true, 721 * HOUR + 360 * HOUR - 1), None);
        assert_eq!(chore(&[next], true, 721 * HOUR + 360 * HOUR), Some(Chore::Prepublish(1441 * HOUR)));
        // The servers were away: verifiers get their time all the same.
        assert_eq!(chore(&[one], true, 9_000 * HOUR), Some(Chore::Prepublish(9_000 * HOUR + LEAD)));
    }

    #[test]
    fn keys_go_when_they_are_old_and_nobody_needs_them() {
        use KeyState::{Active, Inactive, Prepublished, Rekeying};
        let state = State::new();
        let gone = |keys: &[Standing], now| -> Vec<u128> {
            unneeded(&state, keys, &TIMES, now).iter().map(Uuid::as_u128).collect()
        };
        let (one, two) = (made(1, Inactive, 0, 0), made(2, Active, 360 * HOUR, 720 * HOUR));
        // Nodes had tokens of the first for a day after its end.
        let end = 744 * HOUR + SLACK;
        assert_eq!((gone(&[two, one], end - 1), gone(&[two, one], end)), (vec![], vec![1]));
        // A rotation by order ends it before its time: it is as old as it may get before it goes.
        let ordered = made(2, Active, 10 * HOUR, 0);
        assert_eq!((gone(&[ordered, one], 721 * HOUR - 1), gone(&[ordered, one], 721 * HOUR)), (vec![], vec![1]));
        for state in [Active, Rekeying, Prepublished] {
            assert!(gone(&[two, Standing { state, ..one }], 9_000 * HOUR).is_empty(), "{state:?}");
        }
        assert!(gone(&[one], 9_000 * HOUR).is_empty(), "nothing tells when it ended");
        // One that was overtaken before its turn says nothing of the end of another.
        let (overtaken, by) = (made(3, Inactive, 360 * HOUR, 720 * HOUR), made(4, Inactive, 400 * HOUR, 0));
        let last = made(5, Active, 400 * HOUR, 1_120 * HOUR);
        assert!(overtaken.overtaken(&[one, overtaken, by, last]));
        assert_eq!(by.until(&[one, overtaken, by, last]), Some(1_120 * HOUR));
        assert_eq!(one.until(&[one, overtaken, by, last]), Some(400 * HOUR));
    }

    #[test]
    fn a_key_stays_while_its_variables_or_tokens_live() {
        let keys = [made(2, KeyState::Active, 720 * HOUR, 0), made(1, KeyState::Inactive, 0, 0)];
        let with = |identity: Option<Identity>, change: fn(&mut model::Allocation)| {
            let task = Task { name: "t".into(), identities: identity.into_iter().collect(), ..Task::default() };
            let group = model::TaskGroup { name: "g".into(), tasks: vec![task], ..model::TaskGroup::default() };
            let job = model::Job { id: "a".into(), task_groups: vec![group].into(), ..model::Job::default() };
            let mut alloc = model::Allocation {
                id: Uuid::from_u128(7).into(),
                job: Some(std::sync::Arc::new(job)),
                job_id: "a".into(),
                task_group: "g".into(),
                ..model::Allocation::default()
            };
            let mut state = State::new();
            change(&mut alloc);
            let create_time = alloc.create_time;
            state.apply(10, create_time, state::Change::UpsertAllocs(vec![alloc]).into()).expect("it applies");
            move |now| !unneeded(&state, &keys, &TIMES, now).is_empty()
        };
        let identity = |ttl| Identity {
            name: "x".into(),
            file: true,
            ttl: model::GoDuration::from_secs(ttl),
            ..Identity::default()
        };
        let early = |alloc: &mut model::Allocation| alloc.create_time = HOUR;
        assert!(with(None, early)(1_000 * HOUR), "the task sees no token");
        assert!(!with(Some(identity(0)), early)(9_000 * HOUR), "its token does not end");
        let lasting = with(Some(identity(200 * 3600)), early);
        assert_eq!((lasting(920 * HOUR), lasting(920 * HOUR + SLACK)), (false, true));
        assert!(with(Some(identity(0)), |alloc| alloc.create_time = 721 * HOUR)(1_000 * HOUR), "it came later");
        let ended = |alloc: &mut model::Allocation| alloc.client_status = model::ClientStatus::Complete;
        assert!(with(Some(identity(0)), ended)(1_000 * HOUR));

        let variable = model::variables::Variable {
            namespace: "default".into(),
            path: "a".into(),
            key_id: Uuid::from_u128(1),
            data: String::new(),
            create_index: 0,
            create_time: 0,
            modify_index: 0,
            modify_time: 0,
            lock: None,
        };
        let mut state = State::new();
        let put = state::Change::PutVariable(Box::new(variable));
        state.apply(10, 1, put.into()).expect("it applies");
        assert!(unneeded(&state, &keys, &TIMES, 9_000 * HOUR).is_empty());
    }

    #[test]
    fn others_step_back_for_a_new_key() {
        let keys = [
            key(1, KeyState::Active),
            key(2, KeyState::Inactive),
            key(3, KeyState::Rekeying),
            key(4, KeyState::Prepublished),
            key(11, KeyState::Inactive),
        ];
        let ids = |changes: Vec<(Uuid, KeyState)>| -> Vec<(u128, KeyState)> {
            changes.into_iter().map(|(id, state)| (id.as_u128(), state)).collect()
        };
        use KeyState::{Inactive, Rekeying};
        assert_eq!(ids(beside_a_new_one(&keys, false, false)), [(1, Inactive), (4, Inactive)]);
        assert_eq!(ids(beside_a_new_one(&keys, true, false)), [(1, Rekeying), (2, Rekeying), (4, Inactive)]);
        assert_eq!(ids(beside_a_new_one(&keys, false, true)), [(4, Inactive)], "the active one goes on");
    }

    #[test]
    fn chores_in_their_order() {
        let (one, two) = (key(1, KeyState::Active), key(2, KeyState::Prepublished));
        assert_eq!(chore(&[one, two], true, 99), None, "its time has not come");
        let states = vec![(two.id, KeyState::Active), (one.id, KeyState::Inactive)];
        assert_eq!(chore(&[one, two], true, 100), Some(Chore::Activate(states)));
        let old = key(11, KeyState::Active);
        assert_eq!(chore(&[old], true, 0), Some(Chore::Replace));
        assert_eq!(chore(&[old], false, 0), None, "not all servers read it");
        let rekeying = key(3, KeyState::Rekeying);
        assert_eq!(chore(&[one, rekeying], true, 0), Some(Chore::Reseal(vec![rekeying.id])));
    }
}
