//! Commands of the loop: orders, the lease, allocations that show slots, ends of calls. Each becomes events of slots.

use std::{
    cell::LazyCell,
    collections::{HashMap, HashSet},
    time::Duration,
};

use api::node_rpc::FromNodeMessage;
use lifecycle::remote::node::{Event, Slot, Stored};
use model::{RemoteOrder, SlotKey};

use crate::{
    calls,
    entry::{Entry, Writing},
    manager::{Command, Instance, Interest},
    preparing::Preparing,
    run::{RemoteLoop, tell_released},
};

/// Orders follow the welcome at once. Without them after this long, the node opens the session anew.
const ORDERS_PATIENCE: Duration = Duration::from_secs(1);

impl RemoteLoop {
    pub(crate) fn command(&mut self, command: Command, events: &mut Vec<(SlotKey, Event)>) {
        match command {
            Command::Welcome { cluster, holds } => (self.cluster, self.holds) = (cluster, holds),
            Command::Lease(held) => {
                self.lease = held;
                if !held {
                    self.orders_are_fresh = false;
                } else if !self.orders_are_fresh && !self.holds && !self.entries.is_empty() {
                    self.expect_orders();
                }
                let event = if held { Event::LeaseHeld } else { Event::LeaseLost };
                events.extend(self.entries.keys().map(|k| (k.clone(), event.clone())));
            }
            Command::Orders { full, orders, released } => self.orders(full, orders, &released, events),
            Command::Interest(interest) => self.interest(*interest),
            Command::NoInterest { slot, alloc, reply } => {
                if let Some(list) = self.interests.get_mut(&slot) {
                    list.retain(|i| i.alloc.id != alloc);
                    if list.is_empty() {
                        self.interests.remove(&slot);
                    }
                }
                if let Some(entry) = self.entries.get_mut(&slot)
                    && let Some(order) = entry.slot.order().filter(|order| order.alloc_id == alloc)
                {
                    // Nobody will read the output.
                    let event = Event::Kept { incarnation: order.incarnation, alloc_id: alloc };
                    if entry.keeping.take().is_some() || entry.wants_keeping.take().is_some() {
                        events.push((slot.clone(), event));
                    }
                }
                if let Some(entry) = self.entries.get_mut(&slot)
                    && let Some(of) = entry.preparing.as_deref().and_then(Preparing::open).filter(|of| of.1 == alloc)
                {
                    // Without the allocation nothing may be prepared in its directory.
                    entry.preparing = Some(Box::new(Preparing::wanted(of)));
                }
                let writing = self.keeps.remove(&(alloc, slot));
                tokio::spawn(async move {
                    if let Some(Writing { tasks, .. }) = writing {
                        tasks.close();
                        tasks.wait().await;
                    }
                    // The allocation's loop may have ended with the agent.
                    let _ = reply.send(());
                });
            }
            Command::Kept { slot, incarnation, alloc } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry
                        .slot
                        .order()
                        .is_some_and(|order| order.alloc_id == alloc && order.incarnation == incarnation)
                {
                    entry.keeping = None;
                }
                self.keeps.retain(|_, writing| !writing.tasks.is_empty());
                events.push((slot, Event::Kept { incarnation, alloc_id: alloc }));
            }
            Command::KeepOverdue { slot, incarnation, alloc } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.wants_keeping.take_if(|keep| (keep.0, keep.1) == (incarnation, alloc)).is_some()
                {
                    tracing::warn!(%slot, %alloc, "the output of an ended remote task is not kept: its allocation is \
                        not on this node");
                    events.push((slot, Event::Kept { incarnation, alloc_id: alloc }));
                }
            }
            Command::Event { slot, event } => events.push((slot, *event)),
            Command::Done { slot, call, answer } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.call.take_if(|awaited| *awaited == call).is_some()
                {
                    events.push((slot, Event::Done(answer)));
                }
            }
            Command::Prepared { slot, of, outcome } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.preparing.as_mut().is_some_and(|preparing| preparing.done(of, outcome))
                {
                    events.push((slot, Event::Prepared));
                }
            }
            Command::Instance { slot, reply } => {
                let instance = self.entries.get(&slot).and_then(|e| {
                    let order = e.slot.order()?;
                    Some(Instance {
                        driver: self.providers.drivers.now(&order.driver)?,
                        handle: e.slot.handle()?.clone(),
                        incarnation: order.incarnation,
                        epoch: order.epoch,
                        may_mutate: e.slot.may_mutate() && self.with.lease.held(),
                    })
                });
                let _ = reply.send(instance);
            }
            Command::List { ask, answer } => {
                let (providers, cluster) = (self.providers.clone(), self.cluster);
                tokio::spawn(async move {
                    let listed = calls::list_page(&providers, cluster, ask).await;
                    // The asker goes with the session.
                    let _ = answer.send(FromNodeMessage::RemoteListed(listed).into()).await;
                });
            }
            Command::Inventory(reply) => {
                let _ = reply.send(self.entries.iter().map(|(slot, entry)| entry.slot.known(slot)).collect());
            }
            Command::Fresh(reply) => {
                let _ = reply.send(self.orders_are_fresh);
            }
            Command::Count(reply) => {
                let _ = reply.send(self.entries.values().filter(|e| e.slot.order().is_some()).count());
            }
        }
    }

    fn expect_orders(&self) {
        let (reset, manager, stop) = (self.with.reset_session.clone(), self.manager.clone(), self.with.stop.clone());
        let lease = self.with.lease.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(ORDERS_PATIENCE) => {}
            }
            if lease.held() && manager.count().await > 0 && !manager.fresh().await {
                reset.notify_one();
            }
        });
    }

    fn orders(
        &mut self,
        full: bool,
        orders: Vec<RemoteOrder>,
        released: &[String],
        events: &mut Vec<(SlotKey, Event)>,
    ) {
        let named: HashSet<SlotKey> = orders.iter().map(|o| o.slot.clone()).collect();
        let held = self.lease || self.with.lease.held();
        if full {
            // A set that arrives without a lease confirms nothing. The node asks anew once it has one.
            self.orders_are_fresh = held;
            let gone: Vec<SlotKey> = self.entries.keys().filter(|k| !named.contains(*k)).cloned().collect();
            for slot in &gone {
                events.push((slot.clone(), Event::Released));
            }
            for (slot, interests) in &self.interests {
                if !named.contains(slot) {
                    tell_released(interests.iter());
                }
            }
        }
        for slot in self.named(released) {
            if self.entries.contains_key(&slot) {
                events.push((slot, Event::Released));
            } else if let Some(interests) = self.interests.get(&slot) {
                tell_released(interests.iter());
            }
        }
        for mut order in orders {
            order.slot = self.same(order.slot);
            let slot = order.slot.clone();
            let entry = self.entries.entry(slot.clone()).or_insert_with(|| {
                let known = if self.doubt.reigns() {
                    tracing::warn!(%slot, "the record of this slot may be lost: it is looked for an instance before \
                        anything is created");
                    Stored { attempted: Some(order.incarnation), highest_epoch: 0 }
                } else {
                    Stored::default()
                };
                Box::new(Entry { slot: Slot::restore(&known), ..Entry::default() })
            });
            entry.failures = 0;
            if full {
                entry.slot.doubt_store();
            }
            if order.epoch < entry.slot.highest_epoch() {
                let (epoch, highest) = (order.epoch, entry.slot.highest_epoch());
                tracing::warn!(%slot, epoch, highest, "order refused: this node has acted under a higher epoch; the \
                    servers are told");
            }
            if held {
                events.push((slot.clone(), Event::LeaseHeld));
            }
            // If an order does not name an allocation of its slot, the allocation has lost the slot.
            if let Some(interests) = self.interests.get(&slot) {
                tell_released(interests.iter().filter(|i| i.alloc.id != order.alloc_id));
            }
            events.push((slot, Event::Order(Box::new(order))));
        }
        self.doubt.settled |= full;
    }

    /// The known slots of these names. Parses each name; if that finds no slot (a group with a dot), searches all
    /// slots.
    fn named(&self, names: &[String]) -> Vec<SlotKey> {
        let known = || self.entries.keys().chain(self.interests.keys());
        let by_name =
            LazyCell::new(|| known().map(|slot| (slot.to_string(), slot)).collect::<HashMap<String, &SlotKey>>());
        let here = |slot: &SlotKey| self.entries.contains_key(slot) || self.interests.contains_key(slot);
        let read =
            |name: &String| name.parse().ok().filter(here).or_else(|| by_name.get(name).map(|slot| (*slot).clone()));
        names.iter().filter_map(read).collect()
    }

    /// The slot as it is known here: its order, its allocation and its watch share one name.
    fn same(&self, slot: SlotKey) -> SlotKey {
        let entry = self.entries.get_key_value(&slot).map(|(known, _)| known);
        let known = entry.or_else(|| self.interests.get_key_value(&slot).map(|(known, _)| known));
        known.cloned().unwrap_or(slot)
    }

    fn interest(&mut self, mut interest: Interest) {
        interest.slot = self.same(interest.slot);
        let slot = interest.slot.clone();
        // All orders are known and none is for this allocation: a stop of it need not wait. A later order takes that
        // back.
        let ordered =
            self.entries.get(&slot).and_then(|e| e.slot.order()).is_some_and(|o| o.alloc_id == interest.alloc.id);
        if self.orders_are_fresh && !ordered {
            tell_released(std::iter::once(&interest));
        }
        let list = self.interests.entry(slot.clone()).or_default();
        list.retain(|i| i.alloc.id != interest.alloc.id);
        // Usually one; two only while another allocation follows.
        list.reserve_exact(1);
        list.push(interest);
        if let Some(entry) = self.entries.get_mut(&slot) {
            entry.shown = None;
            let keep = entry.wants_keeping.take().map(|keep| *keep);
            if entry.preparing.as_deref().is_some_and(Preparing::is_wanted) {
                self.prepare(&slot);
            }
            if let Some((incarnation, alloc, handle)) = keep {
                self.keep(&slot, incarnation, alloc, handle);
            }
        }
        self.show(&slot);
    }
}
