//! Facts about a machine, as fingerprints collect them.

use std::sync::Arc;

use model::{Map, node::Attributes, resources::NodeResources};

/// The facts found so far.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Attributes by name.
    pub attributes: Attributes,
    /// Resources.
    pub resources: NodeResources,
    /// Processors, for drivers that convert shares.
    pub cpu: Cpu,
    /// Links to other systems, by name.
    pub links: Map<String, String>,
}

impl Facts {
    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl ToString) {
        self.attributes.insert(name.into(), value.to_string().into());
    }
}

/// Processors of this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cpu {
    /// Every online core.
    pub cores: Vec<Core>,
    /// Cores that tasks may reserve; none if the node cannot keep other processes off them.
    pub reservable: Vec<u16>,
    /// Cores that no task may use, because the operator reserves them.
    pub kept: Vec<u16>,
    /// Sum of all cores, or the operator's figure, in MHz.
    pub total_mhz: u64,
    /// The part of `total_mhz` that no task can have, in MHz.
    pub reserved_mhz: u64,
}

/// One core of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Core {
    /// The kernel's number of the core.
    pub id: u16,
    /// NUMA node.
    pub numa: u16,
    /// Socket.
    pub socket: u16,
    /// Guaranteed MHz; 0 = unknown.
    pub base_mhz: u64,
    /// Highest MHz; 0 = unknown.
    pub max_mhz: u64,
    /// MHz that the kernel shows at the moment; 0 = unknown.
    pub seen_mhz: u64,
}

impl Core {
    /// The speed that counts for scheduling, in MHz.
    #[must_use]
    pub fn mhz(&self) -> u64 {
        [self.base_mhz, self.max_mhz, self.seen_mhz].into_iter().find(|v| *v > 0).unwrap_or(1000)
    }
}

impl Cpu {
    /// MHz of one core on average: what 100 % of a core is worth.
    #[must_use]
    pub fn core_mhz(&self) -> f64 {
        if self.cores.is_empty() { 1000.0 } else { self.total_mhz as f64 / self.cores.len() as f64 }
    }
}

/// Parses core ranges: `0-3,8` → 0 1 2 3 8. Skips parts that are not ranges.
pub fn parse_ranges(text: &str) -> Vec<u16> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            Some(low.trim().parse::<u16>().ok()?..=high.trim().parse::<u16>().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_kernel() {
        for (text, expected) in
            [("0-3,8\n", vec![0, 1, 2, 3, 8]), ("0", vec![0]), ("", vec![]), ("x,2", vec![2]), ("3-1", vec![])]
        {
            assert_eq!(parse_ranges(text), expected, "{text:?}");
        }
    }
}
