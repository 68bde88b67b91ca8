//! Preemption: which allocations of lower priority leave a node so that one of higher priority fits.
//!
//! The rules are Nomad's: only allocations of jobs whose priority is at least [`GAP`] lower go, the lowest priorities
//! first, and among equals the one whose room comes nearest to what is still needed. One difference: at the end
//! whatever turns out not to be needed stays, so that nothing is displaced in vain.

use model::{alloc::Allocation, resources::Usage};

/// How much lower the priority of a job must be for its allocations to be displaced.
pub(crate) const GAP: i32 = 10;
/// What an allocation beyond its group's `migrate.max_parallel` counts as further away.
const BEYOND_PARALLEL: f64 = 50.0;

/// An allocation that may be displaced.
pub(crate) struct Candidate<'a> {
    pub(crate) alloc: &'a Allocation,
    /// Of its job.
    pub(crate) priority: i32,
    /// Room that it takes.
    pub(crate) takes: Usage,
    /// `migrate.max_parallel` of its group; 0 = none is said.
    pub(crate) max_parallel: i32,
    /// Allocations of its group that this plan displaces elsewhere.
    pub(crate) displaced: i32,
}

fn plus(a: Usage, b: Usage, sign: i64) -> Usage {
    Usage {
        cpu: a.cpu + sign * b.cpu,
        memory_mb: a.memory_mb + sign * b.memory_mb,
        disk_mb: a.disk_mb + sign * b.disk_mb,
    }
}

/// What is not asked for fits even where others exceed the capacity.
fn fits(ask: Usage, free: Usage) -> bool {
    let fits = |ask: i64, free: i64| ask == 0 || ask <= free;
    fits(ask.cpu, free.cpu) && fits(ask.memory_mb, free.memory_mb) && fits(ask.disk_mb, free.disk_mb)
}

/// How far an allocation is from being just what is needed.
fn distance(need: Usage, takes: Usage) -> f64 {
    let part = |need: i64, takes: i64| if need > 0 { (need - takes) as f64 / need as f64 } else { 0.0 };
    let parts = [part(need.memory_mb, takes.memory_mb), part(need.cpu, takes.cpu), part(need.disk_mb, takes.disk_mb)];
    parts.iter().map(|p| p * p).sum::<f64>().sqrt()
}

/// Which candidates go so that `ask` fits into `free` and what they leave: places in `all`. `must` go in any case,
/// because they hold a port. None = not even all of them are enough, or nobody has to go.
pub(crate) fn choose(all: &[Candidate<'_>], must: &[usize], ask: Usage, free: Usage) -> Option<Vec<usize>> {
    let left_by = |picked: &[usize]| picked.iter().fold(free, |free, i| plus(free, all[*i].takes, 1));
    let mut picked = must.to_vec();
    if fits(ask, left_by(&picked)) {
        return (!picked.is_empty()).then_some(picked);
    }
    let every: Vec<usize> = (0..all.len()).collect();
    if !fits(ask, left_by(&every)) {
        return None;
    }
    let mut rest: Vec<usize> = every.into_iter().filter(|i| !must.contains(i)).collect();
    let mut need = must.iter().fold(ask, |need, i| plus(need, all[*i].takes, -1));
    let mut displaced_here = vec![0_i32; all.len()];
    while !fits(ask, left_by(&picked)) {
        let lowest = rest.iter().map(|i| all[*i].priority).min()?;
        let cost = |i: usize| {
            let c = &all[i];
            let beyond = c.displaced + displaced_here[i] + 1 - c.max_parallel;
            let penalty = if c.max_parallel > 0 && beyond > 0 { BEYOND_PARALLEL * f64::from(beyond) } else { 0.0 };
            distance(need, c.takes) + penalty
        };
        let group = rest.iter().enumerate().filter(|(_, i)| all[**i].priority == lowest);
        let (at, _) = group
            .map(|(at, i)| (at, (cost(*i), all[*i].alloc.id)))
            .min_by(|(_, (a, x)), (_, (b, y))| a.total_cmp(b).then(x.cmp(y)))?;
        let taken = rest.remove(at);
        picked.push(taken);
        need = plus(need, all[taken].takes, -1);
        let of_its_group = |c: &Candidate<'_>| {
            c.alloc.job_id == all[taken].alloc.job_id && c.alloc.task_group == all[taken].alloc.task_group
        };
        for (i, c) in all.iter().enumerate().filter(|(_, c)| of_its_group(c)) {
            displaced_here[i] += i32::from(c.alloc.namespace == all[taken].alloc.namespace);
        }
    }
    // Keep the largest first, until it is enough.
    let mut chosen = picked.split_off(must.len());
    chosen.sort_by(|a, b| distance(ask, all[*b].takes).total_cmp(&distance(ask, all[*a].takes)));
    for i in chosen {
        if fits(ask, left_by(&picked)) {
            break;
        }
        picked.push(i);
    }
    // Whoever is not needed stays, those of the highest priority before others.
    let mut order = picked[must.len()..].to_vec();
    order.sort_by_key(|i| (-all[*i].priority, *i));
    for i in order {
        let without: Vec<usize> = picked.iter().copied().filter(|p| *p != i).collect();
        if fits(ask, left_by(&without)) {
            picked = without;
        }
    }
    Some(picked)
}

/// The part of a node's score for displacing allocations of these priorities: the lower they are, the nearer to 1.
pub(crate) fn score(priorities: impl Iterator<Item = i32> + Clone) -> f64 {
    let max = f64::from(priorities.clone().max().unwrap_or(0).max(1));
    let net = max + f64::from(priorities.sum::<i32>()) / max;
    1.0 / (1.0 + (0.0048 * (net - 2048.0)).exp())
}

#[cfg(test)]
mod tests {
    use model::ids::{AllocId, JobId};
    use proptest::prelude::*;

    use super::*;

    fn usage(cpu: i64, memory_mb: i64) -> Usage {
        Usage { cpu, memory_mb, disk_mb: 0 }
    }

    fn allocs(n: usize) -> Vec<Allocation> {
        let alloc = |i: usize| Allocation {
            id: AllocId(uuid::Uuid::from_u128(i as u128 + 1)),
            job_id: JobId(format!("job{i}").as_str().into()),
            ..Allocation::default()
        };
        (0..n).map(alloc).collect()
    }

    fn candidates<'a>(allocs: &'a [Allocation], of: &[(i32, i64, i64)]) -> Vec<Candidate<'a>> {
        let one = |(alloc, (priority, cpu, memory)): (&'a Allocation, &(i32, i64, i64))| Candidate {
            alloc,
            priority: *priority,
            takes: usage(*cpu, *memory),
            max_parallel: 0,
            displaced: 0,
        };
        allocs.iter().zip(of).map(one).collect()
    }

    #[test]
    fn the_lowest_go_first_and_of_equals_the_nearest() {
        let a = allocs(4);
        let all = candidates(&a, &[(30, 500, 500), (20, 100, 100), (20, 480, 490), (10, 50, 50)]);
        // The lowest is taken, is not enough, and is not needed beside the one that is.
        assert_eq!(choose(&all, &[], usage(500, 500), usage(20, 20)), Some(vec![2]));
        assert_eq!(choose(&all, &[], usage(40, 40), usage(0, 0)), Some(vec![3]));
        assert_eq!(choose(&all, &[], usage(2000, 0), usage(0, 0)), None, "not even all are enough");
        assert_eq!(choose(&all, &[], usage(10, 10), usage(10, 10)), None, "nobody has to go");
        assert_eq!(choose(&all, &[0], usage(10, 10), usage(10, 10)), Some(vec![0]), "it holds the port");
        // What is not asked for does not matter, however little of it there is.
        assert_eq!(choose(&all, &[], usage(0, 50), usage(-900, 0)), Some(vec![3]));
    }

    #[test]
    fn a_group_that_has_lost_its_share_is_spared() {
        let a = allocs(2);
        let mut all = candidates(&a, &[(20, 100, 100), (20, 300, 300)]);
        assert_eq!(choose(&all, &[], usage(100, 100), usage(0, 0)), Some(vec![0]));
        (all[0].max_parallel, all[0].displaced) = (1, 1);
        assert_eq!(choose(&all, &[], usage(100, 100), usage(0, 0)), Some(vec![1]));
    }

    #[test]
    fn lower_priorities_make_a_better_score() {
        let of = |p: &[i32]| score(p.iter().copied());
        assert!(of(&[1]) > of(&[50]) && of(&[50]) > of(&[50, 50]) && of(&[50, 50]) > of(&[90, 90, 90]));
        assert!((of(&[10, 20]) - 1.0 / (1.0 + (0.0048_f64 * (20.0 + 1.5 - 2048.0)).exp())).abs() < 1e-12);
    }

    proptest! {
        /// Whatever goes makes room, and without any one of them there would be none.
        #[test]
        fn what_goes_is_enough_and_each_of_it_is_needed(
            of in prop::collection::vec((1..50_i32, 0..400_i64, 0..400_i64), 0..12),
            ask in (0..900_i64, 0..900_i64),
            free in (-50..300_i64, -50..300_i64),
        ) {
            let a = allocs(of.len());
            let all = candidates(&a, &of);
            let (ask, free) = (usage(ask.0, ask.1), usage(free.0, free.1));
            let left = |picked: &[usize]| picked.iter().fold(free, |free, i| plus(free, all[*i].takes, 1));
            let every: Vec<usize> = (0..all.len()).collect();
            match choose(&all, &[], ask, free) {
                None => prop_assert!(fits(ask, free) || !fits(ask, left(&every))),
                Some(picked) => {
                    prop_assert!(!fits(ask, free) && fits(ask, left(&picked)));
                    for i in &picked {
                        let without: Vec<usize> = picked.iter().copied().filter(|p| p != i).collect();
                        prop_assert!(!fits(ask, left(&without)), "{i} goes in vain");
                    }
                }
            }
        }
    }
}
