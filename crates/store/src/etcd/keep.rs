//! What goes on by itself while the store is open: beats of a leader, leases, the registration of this server.

use std::{
    sync::mpsc::SyncSender,
    time::{Duration, Instant},
};

use etcd::{Client, Reason, ops};
use tokio::sync::mpsc;

use super::{
    peers::{Standing, standing},
    read::ranges,
    shared::{Shared, lock},
};
use crate::contract::StoreError;

/// A leader that commits nothing shows after this long that it lives.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// So long a beat waits for one member of etcd: the next one is tried well before the others take this leader for dead.
const BEAT_DEADLINE: Duration = Duration::from_millis(300);
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How often a leader has etcd forget what was replaced.
const COMPACT_EVERY: Duration = Duration::from_secs(300);
const COMPACT_AFTER_SNAPSHOT: Duration = Duration::from_secs(15);

/// Who asks how etcd's members and the servers are.
pub(super) type Asked = SyncSender<Result<Standing, StoreError>>;

/// Beats while this server leads.
pub(super) async fn beats(shared: &Shared) {
    let mut number = 0_u64;
    let client = shared.client.with_deadline(BEAT_DEADLINE);
    while pause(shared, TICK).await {
        let due = shared.leading().filter(|leading| leading.seen.elapsed() >= BEAT);
        if let Some(leading) = due {
            number += 1;
            beat(shared, &client, leading.fence, number).await;
        }
    }
}

/// One beat: it also finds out whether the fence is still ours.
async fn beat(shared: &Shared, client: &Client, fence: i64, number: u64) {
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
        Err(error) => tracing::debug!(error = %error, "a beat was not answered"),
    }
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
