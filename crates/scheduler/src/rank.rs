//! The exact best feasible node for each placement, without a look at all nodes each time.
//!
//! Every node that meets the rules is a candidate. Its own score (bin-packing, anti-affinity, affinities) changes only
//! when a placement on it comes or goes. Candidates in one bucket (equal values of spread attributes) with equally many
//! score parts keep their order, whatever the spreads weigh. So each such class has a heap, and the best placement is
//! the best of the heaps' tops. Scores are renewed lazily: a changed candidate gets a new version and a new entry, and
//! older entries go when they surface. Where nothing but the score counts, the first look at all lists the best few. As
//! long as fewer candidates have changed than were listed, the best of all is a listed or a changed one.
//!
//! The final score is the mean of the applicable parts, as in Nomad.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::ids::mix;

/// Score of filling up a node, 0..=1: the classic "best fit version 3", (20 − 10^free cpu − 10^free memory) / 18.
#[must_use]
pub fn binpack(free_cpu: f64, free_memory: f64) -> f64 {
    packed(ten_to(free_cpu), ten_to(free_memory))
}

/// Score of balancing nodes, 0..=1.
#[must_use]
pub fn evenly(free_cpu: f64, free_memory: f64) -> f64 {
    balanced(ten_to(free_cpu), ten_to(free_memory))
}

/// [`binpack`] of ten to the power of both shares.
pub(crate) fn packed(cpu: f64, memory: f64) -> f64 {
    (20.0 - cpu - memory).clamp(0.0, 18.0) / 18.0
}

/// [`evenly`] of ten to the power of both shares.
pub(crate) fn balanced(cpu: f64, memory: f64) -> f64 {
    (cpu + memory - 2.0).clamp(0.0, 18.0) / 18.0
}

fn ten_to(x: f64) -> f64 {
    (x * std::f64::consts::LN_10).exp()
}

/// Ten to the power of the free share of an amount. A pass over a fleet asks for the same few again and again, and an
/// exponential costs more than to remember it.
#[derive(Default)]
pub(crate) struct Powers(Vec<(i64, i64, f64)>);

impl Powers {
    /// Of as many as it has places for.
    pub(crate) fn that_remember() -> Self {
        Self(vec![(0, 0, 1.0); 1 << POWERS])
    }

    /// With so much in use of `all`; without anything at all nothing is free.
    pub(crate) fn of_free(&mut self, used: i64, all: i64) -> f64 {
        let power = || ten_to(if all > 0 { 1.0 - used as f64 / all as f64 } else { 0.0 });
        let mixed = (used.cast_unsigned().rotate_left(32) ^ all.cast_unsigned()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match self.0.get_mut((mixed >> (64 - POWERS)) as usize) {
            None => power(),
            Some(known) => {
                if (known.0, known.1) != (used, all) {
                    *known = (used, all, power());
                }
                known.2
            }
        }
    }
}

/// Bits of the number of powers that are remembered.
const POWERS: u32 = 9;

/// The mean of the parts, with `boost` as a further part unless it is zero.
pub(crate) fn mean(sum: f64, parts: u8, boost: f64) -> f64 {
    if boost == 0.0 { sum / f64::from(parts) } else { (sum + boost) / f64::from(parts + 1) }
}

/// Why a candidate cannot be chosen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    /// No room.
    Exhausted(Lack),
    /// The job already has an allocation there.
    Distinct,
}

/// What a candidate has too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Allocs,
    Cpu,
    Memory,
    Disk,
    Sessions,
    /// Ports, cores or devices, or room of a provider: found out when it is to be told.
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) slot: u32,
    pub(crate) bucket: u32,
    /// Computed class of the node.
    class: u32,
    /// Sum of its own parts, and their number.
    pub(crate) sum: f64,
    pub(crate) parts: u8,
    pub(crate) standing: Standing,
    /// Bits of the node's id.
    bits: u64,
    version: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    sum: f64,
    tie: u64,
    candidate: u32,
    version: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.sum.total_cmp(&other.sum).then(self.tie.cmp(&other.tie)).then(self.candidate.cmp(&other.candidate))
    }
}

/// Most own parts of a candidate: bin-packing, anti-affinity, affinity, affinity to devices. The first always counts.
const PARTS: usize = 4;

/// The heap of the candidates of a bucket with so many own parts, 1..=[`PARTS`].
fn heap_of(bucket: u32, parts: u8) -> usize {
    bucket as usize * PARTS + usize::from(parts) - 1
}

/// All candidates of a group.
#[derive(Default)]
pub(crate) struct Ranking {
    pub(crate) candidates: Vec<Candidate>,
    heaps: Vec<BinaryHeap<Entry>>,
    /// How many candidates may still change before the heaps no longer have the best of all; `None` = they have all.
    left: Option<usize>,
    by_slot: Vec<u32>,
    salt: u64,
    /// Slots of the candidates that have changed since the salt was set.
    touched: Vec<u32>,
    closed: Closed,
}

/// Candidates that are not open, by their class. Most of a full fleet lacks the same, and each placement tells how many
/// nodes lack what.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed(Vec<Reasons>);

/// Candidates of a class that are not open, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    /// One of them.
    pub(crate) slot: u32,
    pub(crate) distinct: u32,
    /// By [`Lack`].
    pub(crate) lacking: [u32; LACKS],
}

/// Number of what may be lacking.
pub(crate) const LACKS: usize = Lack::Other as usize + 1;

impl Closed {
    fn of(&mut self, c: &Candidate) -> Option<&mut u32> {
        let class = c.class as usize;
        match c.standing {
            Standing::Open => return None,
            _ if class >= self.0.len() => self.0.resize(class + 1, Reasons::default()),
            _ => {}
        }
        let reasons = &mut self.0[class];
        reasons.slot = c.slot;
        Some(match c.standing {
            Standing::Exhausted(lack) => &mut reasons.lacking[lack as usize],
            _ => &mut reasons.distinct,
        })
    }

    fn add(&mut self, c: &Candidate) {
        self.of(c).into_iter().for_each(|n| *n += 1);
    }

    fn remove(&mut self, c: &Candidate) {
        self.of(c).into_iter().for_each(|n| *n -= 1);
    }

    /// By class.
    pub(crate) fn reasons(&self) -> &[Reasons] {
        &self.0
    }
}

impl Ranking {
    pub(crate) fn new(slots: usize) -> Self {
        Self { candidates: Vec::with_capacity(slots), by_slot: vec![u32::MAX; slots], ..Self::default() }
    }

    /// A candidate of this class of nodes with the sum and number of its own parts. All come before heaps.
    pub(crate) fn add(
        &mut self,
        (slot, bucket, class): (u32, u32, u32),
        bits: u64,
        (sum, parts, standing): (f64, u8, Standing),
    ) {
        self.by_slot[slot as usize] = u32::try_from(self.candidates.len()).unwrap_or(u32::MAX);
        let candidate = Candidate { slot, bucket, class, sum, parts, standing, bits, version: 0 };
        self.closed.add(&candidate);
        self.candidates.push(candidate);
    }

    /// Begins anew, without heaps; between equal scores the salt decides from now on.
    pub(crate) fn salted(mut self, salt: u64) -> Self {
        (self.heaps, self.left, self.salt) = (Vec::new(), None, salt);
        self.touched.clear();
        self
    }

    /// Slots of the candidates that have changed since the salt was set, some more than once.
    pub(crate) fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// The candidates that are not open.
    pub(crate) fn closed(&self) -> &Closed {
        &self.closed
    }

    /// Decides between equal scores: the higher one goes first.
    pub(crate) fn tie(&self, i: usize) -> u64 {
        mix(self.candidates[i].bits ^ self.salt)
    }

    pub(crate) fn find(&self, slot: u32) -> Option<usize> {
        self.by_slot.get(slot as usize).filter(|i| **i != u32::MAX).map(|i| *i as usize)
    }

    /// Whether there are heaps for [`Self::best`].
    pub(crate) fn built(&self) -> bool {
        !self.heaps.is_empty()
    }

    /// Puts every open candidate on its heap, in linear time.
    pub(crate) fn build(&mut self, buckets: usize) {
        let mut entries: Vec<Vec<Entry>> = Vec::new();
        entries.resize_with(buckets * PARTS, Vec::new);
        for (i, c) in self.candidates.iter().enumerate().filter(|(_, c)| c.standing == Standing::Open) {
            entries[heap_of(c.bucket, c.parts)].push(self.entry(i));
        }
        self.heaps = entries.into_iter().map(BinaryHeap::from).collect();
        self.left = None;
    }

    /// Puts the best `n` on their heaps and returns them, best first. Only for candidates in one bucket without weight.
    pub(crate) fn list(&mut self, n: usize) -> Vec<(usize, f64)> {
        let top = self.top(n, |_| Some(0.0), |_| false);
        let mut entries: Vec<Vec<Entry>> = vec![Vec::new(); PARTS];
        for (i, _) in &top {
            let c = &self.candidates[*i];
            entries[heap_of(c.bucket, c.parts)].push(self.entry(*i));
        }
        self.heaps = entries.into_iter().map(BinaryHeap::from).collect();
        self.left = (top.len() == n).then_some(n);
        top
    }

    /// Sets a candidate's new score or standing.
    pub(crate) fn renew(&mut self, i: usize, sum: f64, parts: u8, standing: Standing) {
        let c = &mut self.candidates[i];
        self.closed.remove(c);
        (c.sum, c.parts, c.standing) = (sum, parts, standing);
        self.closed.add(c);
        c.version = c.version.wrapping_add(1);
        let heap = heap_of(c.bucket, parts);
        self.touched.push(c.slot);
        self.left = self.left.map(|left| left.saturating_sub(1));
        if standing == Standing::Open && heap < self.heaps.len() {
            let entry = self.entry(i);
            self.heaps[heap].push(entry);
        }
    }

    fn entry(&self, i: usize) -> Entry {
        let c = &self.candidates[i];
        Entry { sum: c.sum, tie: self.tie(i), candidate: u32::try_from(i).unwrap_or(u32::MAX), version: c.version }
    }

    /// The best candidate, once the heaps are built; `boost` is the weight of each bucket (`None` = closed).
    pub(crate) fn best(&mut self, boost: impl Fn(u32) -> Option<f64>) -> Option<usize> {
        if self.left == Some(0) {
            self.build(self.heaps.len() / PARTS);
        }
        let mut best: Option<(f64, u64, usize)> = None;
        for (h, heap) in self.heaps.iter_mut().enumerate() {
            let Some(boost) = u32::try_from(h / PARTS).ok().and_then(&boost) else { continue };
            while let Some(top) = heap.peek() {
                let c = &self.candidates[top.candidate as usize];
                if c.version != top.version || c.standing != Standing::Open {
                    heap.pop();
                    continue;
                }
                let score = mean(c.sum, c.parts, boost);
                if better((score, top.tie), best) {
                    best = Some((score, top.tie, top.candidate as usize));
                }
                break;
            }
        }
        best.map(|(.., i)| i)
    }

    /// The best candidate by a look at all, for requests with their own weights. `allowed` filters; `penalised` nodes
    /// have one more part, of -1.
    pub(crate) fn best_linear(
        &self,
        boost: impl Fn(u32) -> Option<f64>,
        allowed: impl Fn(&Candidate) -> bool,
        penalised: impl Fn(u32) -> bool,
    ) -> Option<usize> {
        let mut best: Option<(f64, u64, usize)> = None;
        for (i, c) in self.candidates.iter().enumerate().filter(|(_, c)| c.standing == Standing::Open) {
            let Some(boost) = boost(c.bucket) else { continue };
            let (sum, parts) = if penalised(c.slot) { (c.sum - 1.0, c.parts + 1) } else { (c.sum, c.parts) };
            let score = mean(sum, parts, boost);
            let tie = self.tie(i);
            if better((score, tie), best) && allowed(c) {
                best = Some((score, tie, i));
            }
        }
        best.map(|(.., i)| i)
    }

    /// The best few, best first; `penalised` nodes have one more part, of -1.
    pub(crate) fn top(
        &self,
        n: usize,
        boost: impl Fn(u32) -> Option<f64>,
        penalised: impl Fn(u32) -> bool,
    ) -> Vec<(usize, f64)> {
        let mut top: Vec<(usize, f64)> = Vec::with_capacity(n + 1);
        for (i, c) in self.candidates.iter().enumerate().filter(|(_, c)| c.standing == Standing::Open) {
            let Some(boost) = boost(c.bucket) else { continue };
            let (sum, parts) = if penalised(c.slot) { (c.sum - 1.0, c.parts + 1) } else { (c.sum, c.parts) };
            let score = mean(sum, parts, boost);
            let tie = || self.tie(i);
            let above = |(j, s): &(usize, f64)| s.total_cmp(&score).then_with(|| self.tie(*j).cmp(&tie())).is_gt();
            if top.len() == n && top.last().is_some_and(above) {
                continue;
            }
            let at = top.partition_point(above);
            top.insert(at, (i, score));
            top.truncate(n);
        }
        top
    }
}

fn better((score, tie): (f64, u64), best: Option<(f64, u64, usize)>) -> bool {
    best.is_none_or(|(s, t, _)| score.total_cmp(&s).then(tie.cmp(&t)).is_gt())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Closed, Lack, Powers, Ranking, Standing, balanced, binpack, evenly, packed};

    const STANDINGS: [Standing; 4] =
        [Standing::Open, Standing::Exhausted(Lack::Allocs), Standing::Exhausted(Lack::Other), Standing::Distinct];

    /// Counted anew, without the named slots.
    fn counted(r: &Ranking) -> Vec<(u32, Vec<u32>)> {
        let mut closed = Closed::default();
        r.candidates.iter().for_each(|c| closed.add(c));
        numbers(&closed)
    }

    fn numbers(closed: &Closed) -> Vec<(u32, Vec<u32>)> {
        closed.reasons().iter().map(|of| (of.distinct, of.lacking.to_vec())).collect()
    }

    proptest! {
        /// What is remembered is what would be computed, to the last bit.
        #[test]
        fn remembered_powers_are_those_that_are_computed(
            asked in prop::collection::vec((0..9_i64, 0..4_i64, 0..9_i64), 1..200),
        ) {
            let (mut known, mut anew) = (Powers::that_remember(), Powers::default());
            for (cpu, all, memory) in asked {
                let free = |used: i64| if all > 0 { 1.0 - used as f64 / all as f64 } else { 0.0 };
                let of = |powers: &mut Powers| (powers.of_free(cpu, all), powers.of_free(memory, all));
                let (c, m) = of(&mut known);
                prop_assert_eq!((c.to_bits(), m.to_bits()), { let (c, m) = of(&mut anew); (c.to_bits(), m.to_bits()) });
                prop_assert_eq!(packed(c, m).to_bits(), binpack(free(cpu), free(memory)).to_bits());
                prop_assert_eq!(balanced(c, m).to_bits(), evenly(free(cpu), free(memory)).to_bits());
            }
        }

        /// After any changes, the heaps name the same candidate as a look at all.
        #[test]
        fn heaps_agree_with_a_look_at_all(
            start in prop::collection::vec((0..3_u32, 0..8_u8, 1..=4_u8, any::<u64>()), 1..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8, 1..=4_u8, 0..4_u8,
                prop::collection::vec(prop::option::of(-2..3_i8), 3)), 0..60),
        ) {
            let mut r = Ranking::new(start.len());
            for (i, (bucket, sum, parts, bits)) in start.iter().enumerate() {
                r.add((i as u32, *bucket, 0), *bits, (f64::from(*sum) / 4.0 - 1.0, *parts, Standing::Open));
            }
            let mut r = r.salted(42);
            r.build(3);
            for (which, sum, parts, standing, boosts) in changes {
                let boost = |b: u32| boosts[b as usize].map(f64::from);
                let all = r.best_linear(boost, |_| true, |_| false);
                prop_assert_eq!(r.top(1, boost, |_| false).first().map(|(i, _)| *i), all);
                prop_assert_eq!(r.best(boost), all);
                // The chosen candidate changes most often.
                let i = all.unwrap_or_else(|| which.index(start.len()));
                r.renew(i, f64::from(sum) / 4.0 - 1.0, parts, STANDINGS[usize::from(standing)]);
                let j = which.index(start.len());
                r.renew(j, f64::from(sum) / 4.0 - 1.0, parts, Standing::Open);
            }
        }

        /// Whatever changes, what was listed and what has changed has the best of all, and those that cannot be chosen
        /// are counted.
        #[test]
        fn a_list_is_enough(
            start in prop::collection::vec((0..8_u8, 1..=4_u8, any::<u64>(), 0..4_usize), 1..40),
            listed in 1..12_usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8, 1..=4_u8, 0..4_usize), 0..40),
        ) {
            let mut r = Ranking::new(start.len());
            for (i, (sum, parts, bits, standing)) in start.iter().enumerate() {
                let class = i as u32 % 3;
                r.add((i as u32, 0, class), *bits, (f64::from(*sum) / 4.0 - 1.0, *parts, STANDINGS[*standing]));
            }
            let mut r = r.salted(42);
            let top = r.list(listed);
            prop_assert_eq!(&top, &r.top(listed, |_| Some(0.0), |_| false));
            for (which, sum, parts, standing) in changes {
                let all = r.best_linear(|_| Some(0.0), |_| true, |_| false);
                prop_assert_eq!(r.best(|_| Some(0.0)), all);
                let (known, anew) = (numbers(r.closed()), counted(&r));
                prop_assert_eq!(&known[..anew.len()], &anew[..]);
                prop_assert!(known[anew.len()..].iter().all(|of| of.0 + of.1.iter().sum::<u32>() == 0));
                let i = all.filter(|_| sum > 1).unwrap_or_else(|| which.index(start.len()));
                r.renew(i, f64::from(sum) / 4.0 - 1.0, parts, STANDINGS[standing]);
            }
        }
    }
}
