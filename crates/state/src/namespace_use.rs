//! What the allocations of a namespace use, counted as they come and go: a commit costs what it changes.

use std::sync::Arc;

use model::{
    alloc::Allocation,
    ids::Namespace,
    records::{NamespaceLimits, NamespaceUse},
};

use crate::tables::State;

impl State {
    /// What the allocations of a namespace use that are to run. One that is to stop counts no more, though it may run
    /// on for its `kill_timeout`.
    #[must_use]
    pub fn namespace_use(&self, name: &Namespace) -> NamespaceUse {
        self.namespace_use.get(name).copied().unwrap_or_default()
    }

    /// The limits of a namespace.
    #[must_use]
    pub fn namespace_limits(&self, name: &Namespace) -> Option<&NamespaceLimits> {
        self.namespace(name)?.limits.as_ref()
    }

    /// An allocation comes, changes or goes. The namespace of an allocation never changes.
    pub(crate) fn count_in_namespace(&mut self, old: Option<&Allocation>, new: Option<&Allocation>) {
        let (old, new) = (old.filter(|a| !a.terminal()), new.filter(|a| !a.terminal()));
        let Some(name) = new.or(old).map(|a| &a.namespace) else { return };
        if let (Some(old), Some(new)) = (old, new)
            && Arc::ptr_eq(&old.resources, &new.resources)
        {
            return;
        }
        let mut sum = self.namespace_use(name);
        for (alloc, times) in [(old, -1), (new, 1)] {
            sum = alloc.map_or(sum, |alloc| sum.plus(&NamespaceUse::of(&alloc.resources), times));
        }
        // An unused namespace has no entry, so that equal contents are equal values.
        if sum == NamespaceUse::default() {
            self.namespace_use.remove(name);
        } else {
            self.namespace_use.insert(name.clone(), sum);
        }
    }
}
