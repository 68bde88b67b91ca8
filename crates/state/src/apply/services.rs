//! Registrations of services: they follow from what happens to allocations, nodes and remote tasks, in the same batch.
//!
//! A registration of a local task (or group) stands while its node vouches for it: it goes with a report that leaves it out, with the end of its
//! allocation, and with its node. One of a remote task belongs to the instance: it stands while the instance runs, whoever manages it, and moves
//! to the next manager's allocation when the slot does. There is no moment in between.

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

/// May the instance serve, for all that is known? What cannot be observed goes on, and its manager's word may come before the observation.
fn serves(record: &RemoteTask) -> bool {
    record.desired == DesiredRemote::Run && !record.observed.ended()
}

impl Applier<'_> {
    /// What the node of an allocation says of its services.
    pub(super) fn report_services(&mut self, id: AllocId, local: Option<Vec<ServiceEntry>>, remote: Map<Arc<str>, RemoteServices>) {
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
            // Rule 4: only who manages it under the present epoch speaks for an instance.
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
            // The instance listens where it was told to when it was created.
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
            // Its name may be another one now.
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

    /// The record of a slot has changed: its registrations go with the instance, or to the allocation that manages it now.
    pub(super) fn services_follow_slot(&mut self, record: &RemoteTask) {
        if !serves(record) {
            return self.delete_services_of_slot(&record.slot);
        }
        let Some(manager) = record.manager.filter(|m| !m.alloc_id.is_nil()) else { return };
        let others: Vec<_> = self.state.services_by_slot(&record.slot).filter(|r| r.alloc_id != manager.alloc_id).cloned().collect();
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
            // The new place comes first, so that who follows the changes never sees the name without one.
            self.put_service(moved);
            self.remove_service(&old);
        }
    }
}
