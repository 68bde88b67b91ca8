//! What goes on by itself while the store is open: beats of a leader, leases, the registration of this server.

use std::{
    sync::{Arc, mpsc::SyncSender},
    time::{Duration, Instant},
};

use etcd::{Client, Reason, ops};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    peers::{Standing, standing},
    read::ranges,
    shared::{Shared, lock},
};
use crate::contract::StoreError;

/// A leader that commits nothing shows after this long that it lives.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// A beat that was not answered within this time is followed by another one, at the next member of etcd: well before
/// the others take this leader for dead.
const BEAT_AGAIN: Duration = Duration::from_millis(300);
/// So long the answer to a beat counts. It confirms the fence as of when the beat was *sent*, so a late one grants no
/// more than an early one.
const BEAT_DEADLINE: Duration = Duration::from_secs(5);
/// After how many beats without an answer all connections are left: the next beat is sent 1.1 s after the last sign.
const BEATS_IN_DOUBT: usize = 2;
/// After how many more they are left again: about as long as other calls wait for an answer.
const BEATS_IN_VAIN: usize = 5;
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How often a leader has etcd forget what was replaced.
const COMPACT_EVERY: Duration = Duration::from_secs(300);
const COMPACT_AFTER_SNAPSHOT: Duration = Duration::from_secs(15);

/// Who asks how etcd's members and the servers are.
pub(super) type Asked = SyncSender<Result<Standing, StoreError>>;
/// Who wants to know whether etcd takes writes.
pub(super) type Probed = SyncSender<Result<(), StoreError>>;

/// The wait for an answer to a beat.
#[derive(Debug, Default)]
struct Wait {
    /// When the newest beat was sent; None = none is waited for.
    sent: Option<Instant>,
    /// The beats that were not answered in time since a member has answered.
    in_vain: usize,
}

impl Wait {
    /// Whether the connections to so many members may be to blame: early enough that a beat on a new one is seen before
    /// the others take this leader for dead, and then now and again. A member that answers late does answer.
    fn none_answers(&self, members: usize) -> bool {
        self.in_vain == BEATS_IN_DOUBT || (self.in_vain > 0 && self.in_vain.is_multiple_of(members.max(BEATS_IN_VAIN)))
    }
}

/// Beats while this server leads. A beat does not wait for the answer to the one before: where etcd is slow, the others
/// see signs of this leader as often as where it is fast.
pub(super) async fn beats(shared: &Arc<Shared>) {
    let client = shared.client.with_deadline(BEAT_DEADLINE);
    let (mut number, mut wait, mut under_way) = (0_u64, Wait::default(), JoinSet::new());
    while pause(shared, TICK).await {
        while let Some(answered) = under_way.try_join_next() {
            if answered.unwrap_or(false) {
                wait = Wait::default();
            }
        }
        let Some(leading) = shared.leading().filter(|leading| leading.seen.elapsed() >= BEAT) else {
            wait = Wait::default();
            continue;
        };
        if let Some(sent) = wait.sent {
            if sent.elapsed() < BEAT_AGAIN {
                continue;
            }
            wait.in_vain += 1;
            // They may all have died at once. A connection that is left has to be made again.
            if wait.none_answers(client.endpoints()) { client.leave_all_endpoints() } else { client.turn_endpoint() }
        }
        wait.sent = Some(Instant::now());
        number += 1;
        let (shared, client) = (shared.clone(), client.clone());
        under_way.spawn(async move { beat(&shared, &client, leading.fence, number).await });
    }
}

/// One beat: it also finds out whether the fence is still ours. False = nothing has answered.
async fn beat(shared: &Shared, client: &Client, fence: i64, number: u64) -> bool {
    let keys = &shared.keys;
    let (ours, read) = (ops::created_at(keys.at("fence"), fence), ops::get(ops::key(keys.at("fence"))));
    let put = ops::put(keys.at("beat"), format!("{fence} {number}"), 0);
    let mut sent = clock::boot_now();
    let mut answer = client.txn(ops::when(vec![ours.clone()], vec![put], vec![read.clone()])).await;
    let mut seen = true;
    if let Err(error) = &answer
        && error.refused() == Some(Reason::NoSpace)
    {
        // Nothing can be put; whether the fence is ours can be read.
        (sent, seen) = (clock::boot_now(), false);
        answer = client.txn(ops::when(vec![ours], Vec::new(), vec![read])).await;
    }
    match answer {
        Ok(answer) if answer.succeeded => shared.check_held(fence, sent, seen),
        Ok(answer) => {
            let newest = answer.header.as_ref().map_or(0, |header| header.revision);
            let [fences] = ranges(answer);
            shared.lose(fence, fences.first().map_or(newest, |kv| kv.create_revision));
        }
        Err(error) => {
            tracing::debug!(error = %error, "a beat was not answered");
            return error.refused().is_some();
        }
    }
    true
}

/// Keeps the lease of the fence.
pub(super) async fn fence_lease(shared: &Shared) {
    let every = shared.lease / 4;
    let mut kept = Instant::now();
    while pause(shared, TICK).await {
        let Some(leading) = shared.leading() else { continue };
        if kept.elapsed() < every {
            continue;
        }
        match shared.client.keep(leading.lease).await {
            Ok(Some(_)) => kept = Instant::now(),
            // etcd has deleted the fence with it.
            Ok(None) => shared.lose(leading.fence, shared.revision()),
            Err(error) => tracing::debug!(error = %error, "the lease of the fence was not renewed"),
        }
    }
}

/// Registers this server, and keeps its lease.
pub(super) async fn registration(shared: &Shared) {
    if shared.offline.is_some() {
        // It is no server.
        return;
    }
    let every = shared.lease / 4;
    let mut changed = shared.member_changed.subscribe();
    let (mut lease, mut kept, mut written) = (None, Instant::now(), false);
    while pause(shared, TICK).await {
        if changed.has_changed().unwrap_or(false) {
            changed.mark_unchanged();
            written = false;
        }
        let result = match lease {
            None => shared.client.grant(shared.lease).await.map(|granted| (lease, written) = (Some(granted), false)),
            Some(id) if !written => {
                let member = lock(&shared.member).clone();
                let value = serde_json::to_vec(&member).unwrap_or_default();
                let put = shared.client.put(shared.keys.member(&member.id), value, id).await;
                if put.as_ref().is_err_and(|error| error.refused() == Some(Reason::NoLease)) {
                    lease = None;
                }
                put.map(|_| (written, kept) = (true, Instant::now()))
            }
            Some(id) if kept.elapsed() >= every => shared.client.keep(id).await.map(|left| match left {
                Some(_) => kept = Instant::now(),
                None => lease = None,
            }),
            Some(_) => Ok(()),
        };
        if let Err(error) = result {
            tracing::debug!(error = %error, "this server could not be registered in etcd; it is tried again");
            if !pause(shared, Duration::from_millis(500)).await {
                break;
            }
        }
    }
    if let Some(lease) = lease {
        // Otherwise it ends by itself.
        let _ = shared.client.revoke(lease).await;
    }
}

/// Has etcd forget what was replaced a while ago, and snapshots be made.
pub(super) async fn upkeep(shared: &Shared) {
    let (mut before, mut due) = (shared.revision(), Instant::now() + COMPACT_EVERY);
    while pause(shared, TICK).await {
        if shared.leading().is_none() {
            continue;
        }
        if shared.snapshot_is_due() {
            match shared.write_snapshot().await {
                // What it replaced takes room until it is compacted; those who read it need a moment.
                Ok(()) => (before, due) = (shared.revision(), Instant::now() + COMPACT_AFTER_SNAPSHOT),
                Err(StoreError::Fenced { .. }) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "no snapshot could be written to etcd; it is tried again later");
                    let _ = pause(shared, Duration::from_secs(5)).await;
                }
            }
        }
        if Instant::now() >= due {
            // Followers have seen what was there so long ago.
            shared.compact(before).await;
            (before, due) = (shared.revision(), Instant::now() + COMPACT_EVERY);
            shared.sync_mark();
        }
    }
}

/// Tries whether etcd takes writes, beside the writer: the making of room may take minutes.
pub(super) async fn probes(shared: &Shared, asked: &mut mpsc::UnboundedReceiver<Probed>) {
    let mut closing = shared.closing.subscribe();
    let answering = async {
        while let Some(reply) = asked.recv().await {
            let _ = reply.send(shared.probe().await);
        }
    };
    // Who is not answered is told that the store is closed.
    tokio::select! {
        _ = closing.wait_for(|closing| *closing) => {}
        () = answering => {}
    }
    asked.close();
    while asked.try_recv().is_ok() {}
}

/// Asks etcd's members how they are, for those who want to know.
pub(super) async fn answers(shared: &Shared, asked: &mut mpsc::UnboundedReceiver<Asked>) {
    let mut closing = shared.closing.subscribe();
    loop {
        let reply = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return,
            asked = asked.recv() => asked,
        };
        let Some(reply) = reply else { return };
        let _ = reply.send(standing(shared).await);
    }
}

/// Waits; false = the store closes.
pub(super) async fn pause(shared: &Shared, time: Duration) -> bool {
    let mut closing = shared.closing.subscribe();
    tokio::select! {
        _ = closing.wait_for(|closing| *closing) => false,
        () = tokio::time::sleep(time) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_left_when_no_member_has_answered() {
        for (in_vain, members, left) in [
            (0, 1, false),
            (1, 1, false),
            (2, 1, true),
            (3, 1, false),
            (BEATS_IN_VAIN, 1, true),
            (BEATS_IN_VAIN + 1, 1, false),
            (2, 3, true),
            (3, 3, false),
            (4, 3, false),
            (BEATS_IN_VAIN, 3, true),
            (BEATS_IN_VAIN, BEATS_IN_VAIN + 2, false),
            (BEATS_IN_VAIN + 2, BEATS_IN_VAIN + 2, true),
        ] {
            let wait = Wait { sent: None, in_vain };
            assert_eq!(wait.none_answers(members), left, "{in_vain} beats in vain, {members} members");
        }
    }
}
