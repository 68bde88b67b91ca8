//! The outbox: the newest state of each allocation and slot, kept until a server confirms that it is stored.
//!
//! It sends only the newest value of a key. When the session ends, it repeats values without a confirmation, unless a
//! newer one has replaced them.
//!
//! It holds back for a moment that an allocation is pending, as one that has not begun or whose tasks start again. Most
//! run at once, and then one message, and one commit of the servers, does for both.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use api::node_rpc::{self, PIECE_BYTES, Pieces};
use model::{AllocClientUpdate, AllocId, ClientStatus, RemoteReport, SlotKey};
use tokio::{sync::Notify, time::Instant};

/// So long rests what tells that an allocation is pending. Nobody waits for it.
const REST: Duration = Duration::from_millis(50);

/// Messages that wait for a session.
#[derive(Debug, Default)]
pub struct Outbox {
    inner: Mutex<Inner>,
    wake: Notify,
    /// Something has begun to rest.
    rests: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    next_seq: u64,
    allocs: HashMap<AllocId, Arc<AllocClientUpdate>>,
    /// Until when those of them rest that may.
    rest: Option<Instant>,
    reports: HashMap<SlotKey, RemoteReport>,
    events: Vec<Vec<u8>>,
    unconfirmed: BTreeMap<u64, Sent>,
}

#[derive(Debug)]
enum Sent {
    Allocs(Vec<Arc<AllocClientUpdate>>),
    Reports(Vec<RemoteReport>),
}

/// Events for people are a courtesy: above this number the oldest go.
const EVENTS_MAX: usize = 64;

/// The values with their texts, in pieces of one message each.
fn in_pieces<T>(values: Vec<T>, text: impl Fn(&T) -> Vec<u8>) -> Vec<(Vec<T>, Vec<Vec<u8>>)> {
    let mut pieces = Pieces::<(Vec<T>, Vec<Vec<u8>>)>::of(PIECE_BYTES);
    for value in values {
        let text = text(&value);
        let (values, texts) = pieces.with_room(text.len());
        values.push(value);
        texts.push(text);
    }
    let mut pieces = pieces.finish(|_, _| {});
    pieces.retain(|(values, _)| !values.is_empty());
    pieces
}

impl Outbox {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sets the newest state of an allocation.
    pub fn alloc(&self, update: impl Into<Arc<AllocClientUpdate>>) {
        self.alloc_shown(update.into(), || ());
    }

    /// Sets the newest state of an allocation, which `show` publishes on this node. Both happen at once. So the servers
    /// do not hear of a task that this node does not show yet. A reader who has seen the task's end here finds an empty
    /// outbox only after the servers have stored it.
    pub fn alloc_shown(&self, update: Arc<AllocClientUpdate>, show: impl FnOnce()) {
        let rests = rests(&update);
        let mut inner = self.lock();
        inner.allocs.insert(update.id, update);
        if rests {
            inner.rest.get_or_insert_with(|| Instant::now() + REST);
        }
        show();
        drop(inner);
        if rests { self.rests.notify_one() } else { self.wake.notify_one() }
    }

    /// Sets the newest report on a slot.
    pub fn report(&self, report: RemoteReport) {
        self.lock().reports.insert(report.slot.clone(), report);
        self.wake.notify_one();
    }

    /// Adds an event of the node.
    pub fn event(&self, event: &model::node::NodeEvent) {
        let mut inner = self.lock();
        if inner.events.len() >= EVENTS_MAX {
            inner.events.remove(0);
        }
        inner.events.push(node_rpc::to_json(event));
        drop(inner);
        self.wake.notify_one();
    }

    /// Drops the report on a slot that belongs to another node now.
    pub fn forget_slot(&self, slot: &SlotKey) {
        self.lock().reports.remove(slot);
    }

    /// Whether the servers have stored everything.
    pub fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.allocs.is_empty() && inner.reports.is_empty() && inner.unconfirmed.is_empty()
    }

    /// Whether the servers have yet to store something of this allocation.
    pub fn holds(&self, id: AllocId) -> bool {
        let inner = self.lock();
        let of_it = |sent: &Sent| matches!(sent, Sent::Allocs(updates) if updates.iter().any(|update| update.id == id));
        inner.allocs.contains_key(&id) || inner.unconfirmed.values().any(of_it)
    }

    /// Waits until there may be something to send. Cancel safe: a wake-up that is not consumed stays, and until when
    /// something rests is looked up each time.
    pub async fn ready(&self) {
        loop {
            let rest = self.lock().rest;
            tokio::select! {
                () = self.wake.notified() => return,
                () = tokio::time::sleep_until(rest.unwrap_or_else(Instant::now)), if rest.is_some() => return,
                () = self.rests.notified() => {}
            }
        }
    }

    /// Takes everything that waits and does not rest, as messages.
    pub fn take(&self) -> Vec<node_rpc::FromNode> {
        let mut inner = self.lock();
        let mut messages = Vec::new();
        if inner.rest.is_some_and(|until| until <= Instant::now()) {
            inner.rest = None;
        }
        let all = inner.rest.is_none();
        let due = inner.allocs.extract_if(|_, update| all || !rests(update));
        let updates: Vec<Arc<AllocClientUpdate>> = due.map(|(_, update)| update).collect();
        if inner.allocs.is_empty() {
            inner.rest = None;
        }
        for (updates, updates_json) in in_pieces(updates, |update| node_rpc::to_json(&**update)) {
            let seq = inner.number();
            inner.unconfirmed.insert(seq, Sent::Allocs(updates));
            messages.push(node_rpc::FromNodeMessage::AllocUpdates(node_rpc::AllocUpdates { seq, updates_json }).into());
        }
        let reports: Vec<RemoteReport> = inner.reports.drain().map(|(_, report)| report).collect();
        for (reports, reports_json) in in_pieces(reports, node_rpc::to_json) {
            let seq = inner.number();
            inner.unconfirmed.insert(seq, Sent::Reports(reports));
            messages
                .push(node_rpc::FromNodeMessage::RemoteReports(node_rpc::RemoteReports { seq, reports_json }).into());
        }
        messages.extend(
            inner
                .events
                .drain(..)
                .map(|event_json| node_rpc::FromNodeMessage::Event(node_rpc::NodeEvent { event_json }).into()),
        );
        messages
    }

    /// The server has stored the messages sent under `seq`.
    pub fn stored(&self, seq: u64) {
        self.lock().unconfirmed.remove(&seq);
    }

    /// The session is over: unconfirmed messages wait again.
    pub fn session_ended(&self) {
        let mut inner = self.lock();
        // Newest first, so that an older value never replaces a newer one.
        for (_, sent) in std::mem::take(&mut inner.unconfirmed).into_iter().rev() {
            match sent {
                Sent::Allocs(updates) => {
                    for update in updates {
                        inner.allocs.entry(update.id).or_insert(update);
                    }
                }
                Sent::Reports(reports) => {
                    for report in reports {
                        inner.reports.entry(report.slot.clone()).or_insert(report);
                    }
                }
            }
        }
        drop(inner);
        self.wake.notify_one();
    }
}

/// Whether it may wait: it tells that the allocation is pending.
fn rests(update: &AllocClientUpdate) -> bool {
    update.client_status == ClientStatus::Pending
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(id: AllocId, text: &str) -> AllocClientUpdate {
        let client_status = ClientStatus::Running;
        AllocClientUpdate { id, client_status, client_description: text.into(), ..AllocClientUpdate::default() }
    }

    fn sent(outbox: &Outbox) -> Vec<(u64, Vec<String>)> {
        outbox
            .take()
            .into_iter()
            .filter_map(|m| match m.message {
                Some(node_rpc::FromNodeMessage::AllocUpdates(u)) => {
                    let mut texts: Vec<String> = u
                        .updates_json
                        .iter()
                        .map(|j| {
                            node_rpc::from_json::<AllocClientUpdate>("update", j)
                                .expect("json")
                                .client_description
                                .to_string()
                        })
                        .collect();
                    texts.sort();
                    Some((u.seq, texts))
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn what_is_much_goes_in_several_messages() {
        let outbox = Outbox::default();
        for _ in 0..12 {
            outbox.alloc(update(AllocId(uuid::Uuid::new_v4()), &"x".repeat(PIECE_BYTES / 4)));
        }
        let pieces = sent(&outbox);
        let seqs: Vec<u64> = pieces.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, [1, 2, 3, 4], "three fit into one");
        assert_eq!(pieces.iter().map(|(_, texts)| texts.len()).sum::<usize>(), 12);
        outbox.stored(2);
        outbox.session_ended();
        assert_eq!(sent(&outbox).iter().map(|(_, texts)| texts.len()).sum::<usize>(), 9);
        // One that is larger than a piece goes by itself.
        let outbox = Outbox::default();
        outbox.alloc(update(AllocId(uuid::Uuid::new_v4()), &"x".repeat(2 * PIECE_BYTES)));
        assert_eq!(sent(&outbox).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_begun_rests_for_a_moment() {
        let id = || AllocId(uuid::Uuid::new_v4());
        let pending = |id| AllocClientUpdate { client_status: ClientStatus::Pending, ..update(id, "pending") };
        let outbox = Outbox::default();
        let ready_within = |ms| tokio::time::timeout(Duration::from_millis(ms), outbox.ready());
        let (a, b, c) = (id(), id(), id());
        // One that begins meanwhile is told of once, and at once.
        outbox.alloc(pending(a));
        assert!(ready_within(40).await.is_err() && !outbox.is_empty());
        outbox.alloc(update(a, "begun"));
        ready_within(0).await.expect("told at once");
        assert_eq!(sent(&outbox), [(1, vec!["begun".to_owned()])]);
        assert!(ready_within(1000).await.is_err(), "nothing rests any more");
        // One that does not is told of in time, also while others go, and whoever waited first has gone.
        outbox.alloc(pending(b));
        assert!(ready_within(20).await.is_err());
        outbox.alloc(update(c, "other"));
        ready_within(0).await.expect("the other one");
        assert_eq!(sent(&outbox), [(2, vec!["other".to_owned()])]);
        ready_within(31).await.expect("it has rested");
        assert_eq!(sent(&outbox), [(3, vec!["pending".to_owned()])]);
        assert!(ready_within(1000).await.is_err());
    }

    #[test]
    fn only_the_newest_is_sent_and_the_unconfirmed_is_sent_again() {
        let (a, b) = (AllocId(uuid::Uuid::new_v4()), AllocId(uuid::Uuid::new_v4()));
        let outbox = Outbox::default();
        outbox.alloc(update(a, "a1"));
        outbox.alloc(update(a, "a2"));
        outbox.alloc(update(b, "b1"));
        let first = sent(&outbox);
        assert_eq!(first, [(1, vec!["a2".to_owned(), "b1".to_owned()])]);
        outbox.alloc(update(a, "a3"));
        assert_eq!(sent(&outbox), [(2, vec!["a3".to_owned()])]);
        outbox.session_ended();
        assert_eq!(sent(&outbox), [(3, vec!["a3".to_owned(), "b1".to_owned()])]);
        assert!(!outbox.is_empty());
        outbox.stored(3);
        assert!(outbox.is_empty());
        outbox.session_ended();
        assert!(sent(&outbox).is_empty());
    }
}
