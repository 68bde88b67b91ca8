//! Spreads and `distinct_property`: rules about the distribution of a group's allocations over the values of
//! attributes.
//!
//! Candidates with the same values form a bucket. A placement changes the weight of all nodes in its bucket, but not
//! their order. That makes exact ranking cheap.

use std::collections::HashMap;

use model::{constraint::Spread, node::Node};

use crate::{rules::Distinct, target::Target};

/// Index of a value of one attribute; 0 = the node has none.
type Value = u32;

/// Values of an attribute, with their number of allocations.
#[derive(Debug, Default)]
struct Counted {
    ids: HashMap<String, Value>,
    counts: Vec<u32>,
}

impl Counted {
    fn value(&mut self, text: Option<&str>) -> Value {
        if self.counts.is_empty() {
            self.counts.push(0);
        }
        let Some(text) = text else { return 0 };
        if let Some(v) = self.ids.get(text) {
            return *v;
        }
        let v = Value::try_from(self.counts.len()).unwrap_or(Value::MAX);
        self.ids.insert(text.to_owned(), v);
        self.counts.push(0);
        v
    }
}

enum Kind {
    /// Wanted numbers by value. Values without a target share the rest, if there is one, and count together.
    Targets {
        wanted: HashMap<Value, f64>,
        rest: Option<f64>,
        weight: f64,
    },
    Even,
    /// At most this many.
    Limit {
        limit: u32,
        text: String,
        job_wide: bool,
    },
}

struct Attribute {
    target: Target,
    values: Counted,
    kind: Kind,
}

/// The common entry of values without a target.
const OTHERS: &str = "*";

impl Attribute {
    fn value(&mut self, node: &Node, region: &str) -> Value {
        let text = self.target.resolve(node, region);
        let text = text.as_deref();
        let is_other =
            matches!(self.kind, Kind::Targets { .. }) && text.is_some_and(|text| !self.values.ids.contains_key(text));
        self.values.value(if is_other { Some(OTHERS) } else { text })
    }
}

/// A group's relevant attributes, and their buckets of candidates.
pub(crate) struct Buckets {
    attributes: Vec<Attribute>,
    ids: HashMap<Vec<Value>, u32>,
    values: Vec<Vec<Value>>,
    /// Present weight of a bucket's nodes for the spreads, and whether a limit is reached there.
    boost: Vec<f64>,
    full: Vec<Option<usize>>,
}

impl Buckets {
    pub(crate) fn new(spreads: &[&Spread], distinct: &[Distinct], count: u32) -> Self {
        let total: f64 = spreads.iter().map(|s| f64::from(s.weight)).sum();
        let mut attributes: Vec<Attribute> = spreads
            .iter()
            .map(|s| {
                let mut values = Counted::default();
                let kind = if s.targets.is_empty() {
                    Kind::Even
                } else {
                    let share = |percent: f64| percent / 100.0 * f64::from(count);
                    let wanted =
                        s.targets.iter().map(|t| (values.value(Some(&t.value)), share(f64::from(t.percent)))).collect();
                    let named: f64 = s.targets.iter().map(|t| f64::from(t.percent)).sum();
                    let rest = (named < 100.0).then(|| share(100.0 - named));
                    Kind::Targets { wanted, rest, weight: if total > 0.0 { f64::from(s.weight) / total } else { 0.0 } }
                };
                Attribute { target: Target::parse(&s.attribute), values, kind }
            })
            .collect();
        for d in distinct {
            if let Distinct::Property { target, limit, job_wide, text } = d {
                let kind = Kind::Limit { limit: *limit, text: text.clone(), job_wide: *job_wide };
                attributes.push(Attribute { target: target.clone(), values: Counted::default(), kind });
            }
        }
        let plain = attributes.is_empty();
        let (values, boost, full) =
            if plain { (vec![Vec::new()], vec![0.0], vec![None]) } else { (Vec::new(), Vec::new(), Vec::new()) };
        Self { attributes, ids: HashMap::new(), values, boost, full }
    }

    /// Whether one bucket holds everything.
    pub(crate) fn plain(&self) -> bool {
        self.attributes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Counts an existing allocation on that node. `same_group`: of the group under placement, otherwise of another
    /// group of the job.
    pub(crate) fn count_existing(&mut self, node: &Node, region: &str, same_group: bool) {
        for a in &mut self.attributes {
            if same_group || matches!(a.kind, Kind::Limit { job_wide: true, .. }) {
                let v = a.value(node, region);
                a.values.counts[v as usize] += 1;
            }
        }
    }

    /// Removes an existing allocation of the group.
    pub(crate) fn uncount(&mut self, node: &Node, region: &str) {
        for a in &mut self.attributes {
            let v = a.value(node, region);
            let c = &mut a.values.counts[v as usize];
            *c = c.saturating_sub(1);
        }
        self.refresh();
    }

    pub(crate) fn of(&mut self, node: &Node, region: &str) -> u32 {
        if self.plain() {
            return 0;
        }
        let key: Vec<Value> = self.attributes.iter_mut().map(|a| a.value(node, region)).collect();
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.ids.insert(key.clone(), id);
        self.values.push(key);
        self.boost.push(0.0);
        self.full.push(None);
        id
    }

    /// Counts a new allocation in that bucket.
    pub(crate) fn placed(&mut self, bucket: u32) {
        if self.plain() {
            return;
        }
        for (a, v) in self.attributes.iter_mut().zip(&self.values[bucket as usize]) {
            a.values.counts[*v as usize] += 1;
        }
        self.refresh();
    }

    /// Computes the weight of every bucket.
    pub(crate) fn refresh(&mut self) {
        let even: Vec<(u32, u32)> = self
            .attributes
            .iter()
            .map(|a| {
                let used = || a.values.counts.iter().skip(1).copied().filter(|c| *c > 0);
                (used().min().unwrap_or(0), used().max().unwrap_or(0))
            })
            .collect();
        for (b, values) in self.values.iter().enumerate() {
            let mut boost = 0.0;
            let mut full = None;
            for (i, (a, v)) in self.attributes.iter().zip(values).enumerate() {
                let count = a.values.counts[*v as usize];
                match &a.kind {
                    Kind::Limit { limit, .. } => {
                        if *v == 0 || count >= *limit {
                            full = full.or(Some(i));
                        }
                    }
                    // A node without the attribute is the last choice.
                    _ if *v == 0 => boost -= 1.0,
                    Kind::Even => boost += even_boost(count, even[i]),
                    Kind::Targets { wanted, rest, weight } => match wanted.get(v).copied().or(*rest) {
                        Some(w) if w > 0.0 => boost += (w - f64::from(count + 1)) / w * weight,
                        _ => boost -= 1.0,
                    },
                }
            }
            self.boost[b] = boost;
            self.full[b] = full;
        }
    }

    pub(crate) fn boost(&self, bucket: u32) -> f64 {
        self.boost[bucket as usize]
    }

    pub(crate) fn is_full(&self, bucket: u32) -> bool {
        self.full[bucket as usize].is_some()
    }

    /// Why the bucket is full.
    pub(crate) fn full_reason(&self, bucket: u32) -> Option<String> {
        let i = self.full[bucket as usize]?;
        let Kind::Limit { limit, text, .. } = &self.attributes[i].kind else { return None };
        let v = self.values[bucket as usize][i];
        if v == 0 {
            return Some(format!("missing property {text:?}"));
        }
        let name = self.attributes[i].values.ids.iter().find(|(_, id)| **id == v).map_or("", |(n, _)| n);
        Some(format!("distinct_property: {text}={name} used by {limit} allocs"))
    }
}

/// Between -1 and 1 or more: how far a value with `count` allocations is below the others.
fn even_boost(count: u32, (min, max): (u32, u32)) -> f64 {
    if max == 0 {
        return 0.0;
    }
    let (count, min, max) = (f64::from(count), f64::from(min), f64::from(max));
    if count != min {
        return (min - count) / min;
    }
    if min == max { -1.0 } else { (max - min) / min }
}
