//! Keeps observations coming: a few streams per driver, each over a set of handles.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use model::{IncarnationId, SlotKey, remote::RemoteHandle};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Command, RemoteManager, calls};
use crate::context::NodeContext;

/// Handles per stream: a change of the set reopens its stream only.
const GROUP: usize = 256;
/// Changes come in bursts (an order of 500 slots): one reopening takes them all.
const SETTLE: Duration = Duration::from_millis(5);

type Members = BTreeMap<IncarnationId, (SlotKey, RemoteHandle)>;

struct Group {
    members: watch::Sender<Arc<Members>>,
    _ends: DropGuard,
}

/// All watches of this node.
#[derive(Default)]
pub(crate) struct Watches {
    by_driver: HashMap<String, Vec<Group>>,
    placed: HashMap<IncarnationId, (String, usize)>,
}

impl Watches {
    /// Watches an instance; idempotent.
    pub(crate) fn add(
        &mut self,
        ctx: &Arc<NodeContext>,
        manager: &RemoteManager,
        driver: &str,
        incarnation: IncarnationId,
        slot: &SlotKey,
        handle: &RemoteHandle,
    ) {
        let groups = self.by_driver.entry(driver.to_owned()).or_default();
        if let Some((_, at)) = self.placed.get(&incarnation) {
            if let Some(group) = groups.get(*at) {
                let known = group.members.borrow().get(&incarnation).is_some_and(|(s, h)| s == slot && h == handle);
                if !known {
                    group.members.send_modify(|m| drop(Arc::make_mut(m).insert(incarnation, (slot.clone(), handle.clone()))));
                }
            }
            return;
        }
        let at = groups.iter().position(|g| g.members.borrow().len() < GROUP).unwrap_or_else(|| {
            let (members, seen) = watch::channel(Arc::new(Members::new()));
            let ends = CancellationToken::new();
            tokio::spawn(follow(ctx.clone(), manager.clone(), driver.to_owned(), seen, ends.clone()));
            groups.push(Group { members, _ends: ends.drop_guard() });
            groups.len() - 1
        });
        groups[at].members.send_modify(|m| drop(Arc::make_mut(m).insert(incarnation, (slot.clone(), handle.clone()))));
        self.placed.insert(incarnation, (driver.to_owned(), at));
    }

    /// Watches it no more.
    pub(crate) fn remove(&mut self, incarnation: IncarnationId) {
        if let Some((driver, at)) = self.placed.remove(&incarnation)
            && let Some(group) = self.by_driver.get(&driver).and_then(|g| g.get(at))
        {
            group.members.send_modify(|m| drop(Arc::make_mut(m).remove(&incarnation)));
        }
    }
}

async fn follow(
    ctx: Arc<NodeContext>,
    manager: RemoteManager,
    driver: String,
    mut members: watch::Receiver<Arc<Members>>,
    ends: CancellationToken,
) {
    let work = async {
        let mut pause = Duration::from_millis(100);
        loop {
            tokio::time::sleep(SETTLE).await;
            let set = members.borrow_and_update().clone();
            if set.is_empty() {
                if members.changed().await.is_err() {
                    return;
                }
                continue;
            }
            tokio::select! {
                healthy = once(&ctx, &manager, &driver, &set) => {
                    pause = if healthy { Duration::from_millis(100) } else { (pause * 2).min(Duration::from_secs(5)) };
                    tokio::time::sleep(pause).await;
                }
                changed = members.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = ends.cancelled() => {}
        () = ctx.stop.cancelled() => {}
    }
}

/// One stream until it ends; true when it has told anything.
async fn once(ctx: &NodeContext, manager: &RemoteManager, driver: &str, set: &Members) -> bool {
    let Ok(found) = ctx.drivers.get(driver, Duration::from_secs(60)).await else {
        return false;
    };
    found.wait_ready(0).await;
    let Some(remote) = found.remote() else {
        return false;
    };
    let mut stream = match remote.watch(set.values().map(|(_, h)| calls::wire_handle(h)).collect()) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(driver, %error, "cannot watch instances, will try again");
            return false;
        }
    };
    let mut told = false;
    while let Some(item) = stream.next().await {
        match item {
            Ok(observation) => {
                told = true;
                let Ok(incarnation) = observation.key.parse::<IncarnationId>() else {
                    continue;
                };
                let Some((slot, _)) = set.get(&incarnation) else {
                    continue;
                };
                let event = lifecycle::remote::node::Event::Seen { incarnation, sighting: Box::new(calls::sighting(&observation)) };
                manager.send(Command::Event { slot: slot.clone(), event: Box::new(event) });
            }
            Err(error) => {
                tracing::debug!(driver, %error, "the watch of instances has ended, will be opened again");
                break;
            }
        }
    }
    told
}
