//! Why candidates cannot be chosen, for people.

use std::borrow::Cow;

use model::metrics::AllocMetric;

use super::{GroupPlacer, count_class, filtered, name_node};
use crate::{
    rank::{LACKS, Lack, Reasons, Standing},
    remote,
};

const DISTINCT_HOSTS: &str = "distinct_hosts";

impl Lack {
    /// The name that Nomad has for it; `None` = depends on more.
    pub(super) fn dimension(self) -> Option<&'static str> {
        Some(match self {
            Self::Allocs => "max allocation exceeded",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Sessions => "remote sessions",
            Self::Other => return None,
        })
    }
}

impl GroupPlacer<'_, '_> {
    /// Explains why candidates cannot be chosen. Looks at open ones only when no node could be chosen.
    pub(super) fn explain(&self, m: &mut AllocMetric, needs: &[remote::Need], open: bool) {
        let counted = !open && needs.is_empty() && self.buckets.plain() && self.without_volumes.is_empty();
        let closed = self.ranking.closed().reasons();
        if !counted || closed.iter().any(|of| of.lacking[Lack::Other as usize] > 0) {
            return self.explain_each(m, needs, open);
        }
        let mut each = cfg!(debug_assertions).then(|| m.clone());
        self.explain_counted(m, closed);
        if let Some(each) = &mut each {
            self.explain_each(each, needs, open);
            debug_assert_eq!(each, m, "what was counted is not what a look at each finds");
        }
    }

    /// By what the ranking has counted.
    fn explain_counted(&self, m: &mut AllocMetric, closed: &[Reasons]) {
        const LACKING: [Lack; LACKS] = [Lack::Allocs, Lack::Cpu, Lack::Memory, Lack::Disk, Lack::Sessions, Lack::Other];
        for of in closed.iter().filter(|of| of.distinct > 0 || of.lacking != [0; LACKS]) {
            let class = &self.node(of.slot).class;
            if of.distinct > 0 {
                filtered(m, class, DISTINCT_HOSTS.to_owned(), of.distinct.into());
            }
            let mut lacked = 0;
            for (lack, n) in LACKING.into_iter().zip(of.lacking).filter(|(_, n)| *n > 0) {
                let n = i64::from(n);
                lacked += n;
                *m.dimension_exhausted.or_default(lack.dimension().unwrap_or_default().to_owned()) += n;
            }
            m.nodes_exhausted += lacked;
            count_class(&mut m.class_exhausted, class, lacked);
        }
    }

    fn explain_each(&self, m: &mut AllocMetric, needs: &[remote::Need], open: bool) {
        // Most of a fleet lacks the same: build its name once.
        let mut exhausted: Vec<(Cow<'static, str>, i64)> = Vec::new();
        // By computed class: one of its nodes, and how many are (filtered, exhausted). Its nodes share the node class,
        // which costs a cache miss to read.
        let mut classes = vec![(0_u32, (0_i64, 0_i64)); self.classes.len()];
        for c in &self.ranking.candidates {
            if !open && c.standing == Standing::Open && !self.buckets.is_full(c.bucket) {
                continue;
            }
            let (ask, _) = self.feasible(c.slot);
            let (speaker, class) = &mut classes[self.overlay.fleet.facts(c.slot).class as usize];
            *speaker = c.slot;
            let rule = if c.standing == Standing::Distinct {
                Some(DISTINCT_HOSTS.to_owned())
            } else {
                let full = self.buckets.full_reason(c.bucket);
                full.or_else(|| needs.iter().find_map(|n| n.met_by(self.node(c.slot)).err()))
                    .or_else(|| self.without_volumes.get(&c.slot).cloned())
            };
            if let Some(why) = rule {
                if open {
                    name_node(m, self.node(c.slot), &why, false);
                }
                m.nodes_filtered += 1;
                *m.constraint_filtered.or_default(why) += 1;
                class.0 += 1;
            } else {
                let pool = || self.pools.as_ref().and_then(|p| p.fits(&ask.pool).err()).map(Cow::Owned);
                let excluded = || {
                    matches!(c.standing, Standing::Exhausted(_))
                        .then_some(Cow::Borrowed("network: dynamic port selection failed"))
                };
                if let Some(dimension) = self.lacking(c.slot, ask).or_else(pool).or_else(excluded) {
                    m.nodes_exhausted += 1;
                    if open {
                        name_node(m, self.node(c.slot), &dimension, true);
                    }
                    match exhausted.iter_mut().find(|(known, _)| *known == dimension) {
                        Some((_, n)) => *n += 1,
                        None => exhausted.push((dimension, 1)),
                    }
                    class.1 += 1;
                }
            }
        }
        for (speaker, (broke, lacked)) in classes.into_iter().filter(|(_, n)| *n != (0, 0)) {
            let class = &self.node(speaker).class;
            count_class(&mut m.class_filtered, class, broke);
            count_class(&mut m.class_exhausted, class, lacked);
        }
        m.dimension_exhausted.extend(exhausted.into_iter().map(|(dimension, n)| (dimension.into_owned(), n)));
    }
}
