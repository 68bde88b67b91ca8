//! Exclusive cores of tasks: which of a node's cores are taken, and which come next.

use std::collections::BTreeSet;

use model::{alloc::Allocation, node::Node};

/// The cores of an allocation.
pub(crate) fn of(alloc: &Allocation) -> impl Iterator<Item = u16> {
    alloc.resources.tasks.values().filter(|t| !t.remote).flat_map(|t| t.cpu.reserved_cores.iter().copied())
}

/// The free cores of a node, in the node's order. A node that lists none cannot reserve any.
pub(crate) fn free(node: &Node, taken: &BTreeSet<u16>) -> Vec<u16> {
    node.resources.cpu.reservable_cpu_cores.iter().copied().filter(|c| !taken.contains(c)).collect()
}

/// MHz of one core.
pub(crate) fn mhz_per_core(node: &Node) -> i64 {
    let cpu = &node.resources.cpu;
    cpu.cpu_shares / i64::from(cpu.total_cpu_cores.max(1))
}
