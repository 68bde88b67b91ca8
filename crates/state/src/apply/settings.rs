//! Namespaces, node pools, settings, root keys and variables.

use std::sync::Arc;

use model::{
    ids::Namespace,
    records::{NamespaceRecord, NodePool},
    scheduler_config::SchedulerConfig,
    signing::SigningKey,
    variables::{Variable, VariableKey},
};
use uuid::Uuid;

use super::Applier;
use crate::{
    ALL_NODE_POOL, DEFAULT_NAMESPACE, DEFAULT_NODE_POOL,
    applied::{Cause, Object},
};

impl Applier<'_> {
    pub(super) fn put_namespace(&mut self, record: &NamespaceRecord) {
        let before = self.state.namespaces.get(&record.name).map_or(self.index, |b| b.create_index);
        let record = Arc::new(NamespaceRecord { create_index: before, modify_index: self.index, ..record.clone() });
        self.state.namespaces.insert(record.name.clone(), record.clone());
        self.set.put(Cause::NamespaceUpserted, Object::Namespace(record));
    }

    pub(super) fn delete_namespace(&mut self, name: &Namespace) {
        if *name == *DEFAULT_NAMESPACE {
            return;
        }
        if let Some(record) = self.state.namespaces.remove(name) {
            self.set.delete(Cause::NamespaceDeleted, Object::Namespace(record));
        }
    }

    pub(super) fn put_pool(&mut self, pool: &NodePool) {
        let before = self.state.pools.get(&pool.name).map_or(self.index, |b| b.create_index);
        let pool = Arc::new(NodePool { create_index: before, modify_index: self.index, ..pool.clone() });
        self.state.pools.insert(pool.name.clone(), pool.clone());
        self.set.put(Cause::NodePoolUpserted, Object::NodePool(pool));
    }

    pub(super) fn delete_pool(&mut self, name: &Arc<str>) {
        if [ALL_NODE_POOL, DEFAULT_NODE_POOL].contains(&&**name) {
            return;
        }
        if let Some(pool) = self.state.pools.remove(name) {
            self.set.delete(Cause::NodePoolDeleted, Object::NodePool(pool));
        }
    }

    pub(super) fn set_scheduler_config(&mut self, config: &SchedulerConfig) {
        let create_index = self.state.scheduler_config.create_index;
        let config = Arc::new(SchedulerConfig { create_index, modify_index: self.index, ..config.clone() });
        self.state.scheduler_config = config.clone();
        self.set.put(Cause::SettingsUpdated, Object::SchedulerConfig(config));
    }

    pub(super) fn put_signing_key(&mut self, key: SigningKey) {
        let create_index = match self.state.signing_keys.get(&key.id) {
            Some(before) => before.create_index,
            None if key.create_index == 0 => self.index,
            // Never above that of a later key: indexes order the keys.
            None => key.create_index.min(self.index),
        };
        let key = Arc::new(SigningKey { create_index, modify_index: self.index, ..key });
        self.state.signing_keys.insert(key.id, key.clone());
        self.set.put(Cause::SettingsUpdated, Object::SigningKey(key));
    }

    pub(super) fn delete_signing_key(&mut self, id: Uuid) {
        if let Some(key) = self.state.signing_keys.remove(&id) {
            self.set.delete(Cause::SettingsUpdated, Object::SigningKey(key));
        }
    }

    pub(super) fn put_variable(&mut self, variable: Variable) {
        let key = variable.key();
        let (create_index, create_time) = match self.state.variables.get(&key) {
            Some(before) => (before.create_index, before.create_time),
            None => (self.index, self.now),
        };
        let (modify_index, modify_time) = (self.index, self.now);
        let variable = Arc::new(Variable { create_index, create_time, modify_index, modify_time, ..variable });
        self.state.variables.insert(key, variable.clone());
        self.set.put(Cause::SettingsUpdated, Object::Variable(variable));
    }

    pub(super) fn delete_variable(&mut self, key: &VariableKey) {
        if let Some(variable) = self.state.variables.remove(key) {
            self.set.delete(Cause::SettingsUpdated, Object::Variable(variable));
        }
    }

    pub(super) fn reseal_variable(&mut self, key: &VariableKey, key_id: Uuid, data: String) {
        if let Some(before) = self.state.variables.get(key) {
            let variable = Arc::new(Variable { key_id, data, ..Variable::clone(before) });
            self.state.variables.insert(key.clone(), variable.clone());
            self.set.put(Cause::SettingsUpdated, Object::Variable(variable));
        }
    }
}
