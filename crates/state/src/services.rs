//! Reading registrations of services.

use std::sync::Arc;

use model::{
    ids::{AllocId, JobKey, Namespace, NodeId, SlotKey, StoreIndex},
    service::ServiceRegistration,
};

use crate::{Table, tables::State};

impl State {
    /// A registration.
    #[must_use]
    pub fn service(&self, id: &str) -> Option<&Arc<ServiceRegistration>> {
        self.services.get(id)
    }
    /// All registrations, by namespace, name and id.
    pub fn services(&self) -> impl Iterator<Item = &Arc<ServiceRegistration>> {
        self.services_by_name.iter().filter_map(|(_, _, id)| self.services.get(id))
    }
    /// The registrations of a namespace, by name and id.
    pub fn services_in<'a>(&'a self, namespace: &'a Namespace) -> impl Iterator<Item = &'a Arc<ServiceRegistration>> {
        let from = (namespace.clone(), Arc::from(""), Arc::from(""));
        self.services_by_name
            .range(from..)
            .take_while(move |(ns, _, _)| ns == namespace)
            .filter_map(|(_, _, id)| self.services.get(id))
    }
    /// The registrations of a service, by id.
    pub fn services_by_name<'a>(
        &'a self,
        namespace: &'a Namespace,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Arc<ServiceRegistration>> {
        let from = (namespace.clone(), Arc::from(name), Arc::from(""));
        self.services_by_name
            .range(from..)
            .take_while(move |(ns, n, _)| ns == namespace && **n == *name)
            .filter_map(|(_, _, id)| self.services.get(id))
    }
    /// The registrations of an allocation.
    pub fn services_by_alloc(&self, alloc: AllocId) -> impl Iterator<Item = &Arc<ServiceRegistration>> {
        let all = self.services_by_alloc.range((alloc, Arc::from(""))..).take_while(move |(a, _)| *a == alloc);
        all.filter_map(|(_, id)| self.services.get(id))
    }
    /// The registrations that a node reports.
    pub fn services_by_node(&self, node: NodeId) -> impl Iterator<Item = &Arc<ServiceRegistration>> {
        let all = self.services_by_node.range((node, Arc::from(""))..).take_while(move |(n, _)| *n == node);
        all.filter_map(|(_, id)| self.services.get(id))
    }
    /// The registrations of a job.
    pub fn services_by_job<'a>(&'a self, job: &'a JobKey) -> impl Iterator<Item = &'a Arc<ServiceRegistration>> {
        let all = self.services_by_job.range((job.clone(), Arc::from(""))..).take_while(move |(j, _)| j == job);
        all.filter_map(|(_, id)| self.services.get(id))
    }
    /// The registrations that a remote task serves.
    pub fn services_by_slot<'a>(&'a self, slot: &'a SlotKey) -> impl Iterator<Item = &'a Arc<ServiceRegistration>> {
        let all = self.services_by_slot.range((slot.clone(), Arc::from(""))..).take_while(move |(s, _)| s == slot);
        all.filter_map(|(_, id)| self.services.get(id))
    }
    /// Index of the last change of a service's registrations, including removals. Without registrations: the index of
    /// the table.
    #[must_use]
    pub fn service_index(&self, namespace: &Namespace, name: &str) -> StoreIndex {
        let own = self.service_index.get(&(namespace.clone(), Arc::from(name)));
        own.copied().unwrap_or_else(|| self.index(Table::Services))
    }

    pub(crate) fn link_service(&mut self, r: &Arc<ServiceRegistration>) {
        let id = r.id.clone();
        self.services_by_name.insert((r.namespace.clone(), r.service_name.clone(), id.clone()));
        self.services_by_alloc.insert((r.alloc_id, id.clone()));
        self.services_by_node.insert((r.node_id, id.clone()));
        self.services_by_job.insert((r.job_key(), id.clone()));
        if let Some(slot) = &r.slot {
            self.services_by_slot.insert((slot.clone(), id.clone()));
        }
        self.services.insert(id, r.clone());
    }

    pub(crate) fn unlink_service(&mut self, r: &ServiceRegistration) {
        let id = r.id.clone();
        self.services.remove(&id);
        self.services_by_name.remove(&(r.namespace.clone(), r.service_name.clone(), id.clone()));
        self.services_by_alloc.remove(&(r.alloc_id, id.clone()));
        self.services_by_node.remove(&(r.node_id, id.clone()));
        self.services_by_job.remove(&(r.job_key(), id.clone()));
        if let Some(slot) = &r.slot {
            self.services_by_slot.remove(&(slot.clone(), id));
        }
    }
}
