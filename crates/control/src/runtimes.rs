//! Which nodes reach the providers of which drivers, and the consequences for allocations and records.

use std::sync::Arc;

use lifecycle::remote::{Times, guarantee_within};
use model::{
    Allocation, Node, NodeStatus, RemoteTask, SlotKey,
    node::RemoteProvider,
    remote::{Guarantee, slot_of},
};
use state::State;

/// The provider through which this node runs the driver's tasks; `None` if it runs them itself.
#[must_use]
pub fn provider_of<'a>(node: Option<&'a Arc<Node>>, driver: &str) -> Option<&'a str> {
    node?.drivers.get(driver)?.remote.as_ref().map(|remote| &*remote.provider)
}

/// The slots of an allocation's remote tasks.
pub fn slots_of<'a>(state: &'a State, alloc: &'a Allocation) -> impl Iterator<Item = SlotKey> + 'a {
    let node = state.node(alloc.node_id);
    let tasks = alloc
        .job
        .as_deref()
        .and_then(|job| job.group(&alloc.task_group))
        .map(|group| &*group.tasks)
        .unwrap_or_default();
    tasks.iter().filter_map(move |task| {
        let slot = slot_of(alloc, &task.name);
        (provider_of(node, &task.driver).is_some() || state.remote_task(&slot).is_some()).then_some(slot)
    })
}

/// Whether all tasks of the allocation are remote: then a move concerns only their management.
#[must_use]
pub fn only_remote(state: &State, alloc: &Allocation) -> bool {
    let node = state.node(alloc.node_id);
    alloc.job.as_deref().and_then(|job| job.group(&alloc.task_group)).is_some_and(|group| {
        !group.tasks.is_empty() && group.tasks.iter().all(|task| provider_of(node, &task.driver).is_some())
    })
}

/// Computes the guarantee of a remote task from the report of its manager, or else of any node that reaches the
/// provider.
#[must_use]
pub fn guarantee_of(state: &State, record: &RemoteTask, times: &Times) -> Guarantee {
    let same = |declared: &&RemoteProvider| record.provider.is_empty() || declared.provider == record.provider;
    let manager = record.manager.as_ref().and_then(|m| state.node(m.node_id));
    let own = manager.and_then(|node| node.drivers.get(&*record.driver)?.remote.as_ref()).filter(same);
    guarantee_within(
        own.or_else(|| state.fleet().runtimes(&record.driver).map(|runtime| runtime.provider).find(same)),
        Some(times),
    )
}

/// The providers of a driver that some ready node with a healthy driver reaches.
pub(crate) fn usable<'a>(state: &'a State, driver: &'a str) -> impl Iterator<Item = &'a RemoteProvider> {
    state.fleet().runtimes(driver).filter(|runtime| runtime.usable).map(|runtime| runtime.provider)
}

/// Whether a ready node runs tasks of the driver itself.
pub(crate) fn runs_on_a_node(state: &State, driver: &str) -> bool {
    let mut ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
    ready.any(|node| node.drivers.get(driver).is_some_and(|d| d.healthy && d.remote.is_none()))
}

/// Whether the node that is to create it can list its provider's instances.
pub(crate) fn can_list(state: &State, record: &RemoteTask) -> bool {
    let node = record.manager.and_then(|m| state.node(m.node_id));
    node.and_then(|n| n.drivers.get(&*record.driver)).and_then(|d| d.remote.as_ref()).is_some_and(|p| p.list)
}

/// The record's provider, if a node with a lease reaches it.
pub(crate) fn reached_from<'a>(node: &'a Node, record: &RemoteTask) -> Option<&'a RemoteProvider> {
    let driver =
        node.drivers.get(&*record.driver).filter(|driver| driver.healthy && node.status == NodeStatus::Ready)?;
    driver.remote.as_ref().filter(|remote| record.provider.is_empty() || remote.provider == record.provider)
}
