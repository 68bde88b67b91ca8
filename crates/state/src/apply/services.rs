//! Registrations of services. They follow from changes of allocations, nodes and remote tasks, in the same batch.
//!
//! A local task's (or group's) registration stands while its node reports it. It goes with a report that omits it, with
//! the end of its allocation, and with its node. A remote task's registration belongs to the instance. It stands while
//! the instance runs, whoever manages it, and moves to the next manager's allocation together with the slot, without a
//! gap.

use std::{collections::BTreeSet, sync::Arc};

use model::{
    DesiredRemote, Map, NodeStatus,
    alloc::Allocation,
    ids::{AllocId, NodeId, SlotKey},
    remote::{Manager, RemoteTask, slot_of},
    service::{RemoteServices, ServiceEntry, ServiceRegistration, registration_id},
};

use super::Applier;
use crate::applied::{Cause, Object};

/// Whether the instance may serve, as far as known. An unobservable instance counts as serving, and its manager's
/// report may come before the observation.
fn serves(record: &RemoteTask) -> bool {
    record.desired == DesiredRemote::Run && !record.observed.ended()
}

impl Applier<'_> {
    /// Applies a node's report on its allocation's services.
    pub(super) fn report_services(
        &mut self,
        id: AllocId,
        local: Option<Vec<ServiceEntry>>,
        remote: Map<Arc<str>, RemoteServices>,
    ) {
        let Some(alloc) = self.state.allocs.get(&id).map(|e| e.alloc.clone()) else { return };
        let up = self.state.nodes.get(&alloc.node_id).is_some_and(|n| n.status != NodeStatus::Down);
        if !up {
            return;
        }
        if let Some(entries) = local.filter(|_| !alloc.client_terminal()) {
            let before: Vec<_> = self.state.services_by_alloc(id).filter(|r| r.slot.is_none()).cloned().collect();
            self.replace_services(&alloc, None, before, entries);
        }
        for (task, RemoteServices { epoch, entries }) in remote {
            let slot = slot_of(&alloc, &task);
            // Rule 4: only the manager under the present epoch may report on an instance.
            let speaks = |m: Manager| (m.node_id, m.alloc_id) == (alloc.node_id, id);
            let manages = |r: &&Arc<RemoteTask>| r.epoch == epoch && r.manager.is_some_and(speaks) && serves(r);
            if self.state.remote.get(&slot).filter(manages).is_some() {
                let before: Vec<_> = self.state.services_by_slot(&slot).cloned().collect();
                self.replace_services(&alloc, Some(&slot), before, entries);
            }
        }
    }

    fn replace_services(
        &mut self,
        alloc: &Allocation,
        slot: Option<&SlotKey>,
        before: Vec<Arc<ServiceRegistration>>,
        entries: Vec<ServiceEntry>,
    ) {
        let datacenter = self.state.nodes.get(&alloc.node_id).map(|n| n.datacenter.clone()).unwrap_or_default();
        let mut kept = BTreeSet::new();
        for entry in entries {
            let ServiceEntry { suffix, name, tags, meta, address, port, given_port } = entry;
            let id = registration_id(alloc.id, &suffix);
            let old = before.iter().find(|r| r.id == id);
            // The instance listens on the port of its creation.
            let port = old.filter(|_| given_port && slot.is_some()).map_or(port, |old| old.port);
            let new = ServiceRegistration {
                id: id.clone(),
                service_name: name.into(),
                namespace: alloc.namespace.clone(),
                node_id: alloc.node_id,
                datacenter: datacenter.clone(),
                job_id: alloc.job_id.clone(),
                alloc_id: alloc.id,
                tags,
                address,
                port,
                meta,
                slot: slot.cloned(),
                create_index: old.map_or(self.index, |o| o.create_index),
                modify_index: old.map_or(self.index, |o| o.modify_index),
            };
            kept.insert(id);
            if old.is_none_or(|old| **old != new) {
                self.put_service(new);
            }
        }
        for old in before.iter().filter(|r| !kept.contains(&r.id)) {
            self.remove_service(old);
        }
    }

    fn put_service(&mut self, new: ServiceRegistration) {
        if let Some(old) = self.state.services.get(&new.id).cloned() {
            self.state.unlink_service(&old);
            // Its name may have changed.
            self.touch_service(&old);
        }
        let new = Arc::new(ServiceRegistration { modify_index: self.index, ..new });
        self.state.link_service(&new);
        self.touch_service(&new);
        self.set.put(Cause::ServiceRegistration, Object::Service(new));
    }

    fn remove_service(&mut self, old: &Arc<ServiceRegistration>) {
        self.state.unlink_service(old);
        self.touch_service(old);
        self.set.delete(Cause::ServiceDeregistration, Object::Service(old.clone()));
    }

    fn touch_service(&mut self, r: &ServiceRegistration) {
        let key = (r.namespace.clone(), r.service_name.clone());
        if self.state.services_by_name(&r.namespace, &r.service_name).next().is_some() {
            self.state.service_index.insert(key, self.index);
        } else {
            self.state.service_index.remove(&key);
        }
    }

    pub(super) fn delete_service(&mut self, id: &str) {
        if let Some(old) = self.state.service(id).cloned() {
            self.remove_service(&old);
        }
    }

    pub(super) fn delete_local_services_of_alloc(&mut self, id: AllocId) {
        let local: Vec<_> = self.state.services_by_alloc(id).filter(|r| r.slot.is_none()).cloned().collect();
        local.iter().for_each(|r| self.remove_service(r));
    }

    pub(super) fn delete_local_services_of_node(&mut self, id: NodeId) {
        let local: Vec<_> = self.state.services_by_node(id).filter(|r| r.slot.is_none()).cloned().collect();
        local.iter().for_each(|r| self.remove_service(r));
    }

    pub(super) fn delete_services_of_slot(&mut self, slot: &SlotKey) {
        let all: Vec<_> = self.state.services_by_slot(slot).cloned().collect();
        all.iter().for_each(|r| self.remove_service(r));
    }

    /// After a change of a slot's record, moves its registrations with the instance, or to the allocation that manages
    /// it now.
    pub(super) fn services_follow_slot(&mut self, record: &RemoteTask) {
        if !serves(record) {
            return self.delete_services_of_slot(&record.slot);
        }
        let Some(manager) = record.manager.filter(|m| !m.alloc_id.is_nil()) else { return };
        let others: Vec<_> =
            self.state.services_by_slot(&record.slot).filter(|r| r.alloc_id != manager.alloc_id).cloned().collect();
        if others.is_empty() {
            return;
        }
        let datacenter = self.state.nodes.get(&manager.node_id).map(|n| n.datacenter.clone()).unwrap_or_default();
        for old in others {
            let moved = ServiceRegistration {
                id: old.id_under(manager.alloc_id),
                node_id: manager.node_id,
                datacenter: datacenter.clone(),
                alloc_id: manager.alloc_id,
                create_index: self.index,
                ..ServiceRegistration::clone(&old)
            };
            // The new one first, so that watchers never see the name without any.
            self.put_service(moved);
            self.remove_service(&old);
        }
    }
}
