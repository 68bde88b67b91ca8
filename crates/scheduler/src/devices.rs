//! Devices: which of a node's are taken, whether it has what a group asks for, and which a task gets.
//!
//! A request is met by one group of alike devices. The request with the fewest groups to choose from chooses first: a
//! task that takes any GPU does not take the one model that its neighbour needs.

use std::{
    borrow::Cow,
    cmp::{Ordering, Reverse},
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use model::{
    AllocatedDevices, DeviceAttribute, NodeDevices, RequestedDevice, alloc::Allocation, job::TaskGroup, node::Node,
};

use crate::rules::Rule;

/// Devices in use: the group's id and the device's.
pub(crate) type Taken = HashSet<(String, String)>;

/// What is said of a node whose devices are all taken, in the words that clients know.
pub(crate) const NONE_LEFT: &str = "devices: no devices match request";

/// The devices of an allocation's local tasks.
pub(crate) fn of(alloc: &Allocation) -> impl Iterator<Item = (String, String)> {
    let given = alloc.resources.tasks.values().filter(|t| !t.remote).flat_map(|t| &t.devices);
    given.flat_map(|d| d.device_ids.iter().map(|id| (d.id(), id.clone())))
}

/// A side of a rule about devices.
#[derive(Debug)]
enum Target {
    Literal(DeviceAttribute),
    Vendor,
    Type,
    Model,
    Ids,
    Attr(String),
    /// A reference to a property that devices lack.
    Nothing,
}

impl Target {
    fn parse(text: &str) -> Self {
        let Some(inner) = text.strip_prefix("${").and_then(|t| t.strip_suffix('}')) else {
            return Self::Literal(literal(text));
        };
        match inner.strip_prefix("device.") {
            Some("vendor") => Self::Vendor,
            Some("type") => Self::Type,
            Some("model") => Self::Model,
            Some("ids") => Self::Ids,
            Some(name) => name.strip_prefix("attr.").map_or(Self::Nothing, |name| Self::Attr(name.to_owned())),
            None => Self::Nothing,
        }
    }

    fn resolve<'a>(&'a self, of: &'a NodeDevices) -> Option<Cow<'a, DeviceAttribute>> {
        let text = |s: &str| Some(Cow::Owned(DeviceAttribute { string: Some(s.to_owned()), ..Default::default() }));
        match self {
            Self::Literal(value) => Some(Cow::Borrowed(value)),
            Self::Vendor => text(&of.vendor),
            Self::Type => text(&of.kind),
            Self::Model => text(&of.name),
            Self::Ids => text(&of.instances.iter().map(|i| i.id.as_str()).collect::<Vec<_>>().join(",")),
            Self::Attr(name) => of.attributes.get(name).map(Cow::Borrowed),
            Self::Nothing => None,
        }
    }
}

/// The value of a text in a rule: a number with or without a unit, yes or no, else the text itself.
fn literal(text: &str) -> DeviceAttribute {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(trimmed.len());
    // The `E` of a unit such as EiB belongs to it, not to the number.
    let end = trimmed[..end].trim_end_matches(|c: char| !c.is_ascii_digit()).len();
    let (number, unit) = (&trimmed[..end], trimmed[end..].trim());
    if unit.is_empty() || scale(unit).is_some() {
        let unit = unit.to_owned();
        if let Ok(int) = number.parse() {
            return DeviceAttribute { int: Some(int), unit, ..DeviceAttribute::default() };
        }
        if let Ok(float) = number.parse() {
            return DeviceAttribute { float: Some(float), unit, ..DeviceAttribute::default() };
        }
    }
    match trimmed.parse() {
        Ok(yes) => DeviceAttribute { bool: Some(yes), ..DeviceAttribute::default() },
        Err(_) => DeviceAttribute { string: Some(text.to_owned()), ..DeviceAttribute::default() },
    }
}

/// What a unit measures, and how much of its base it is.
fn scale(unit: &str) -> Option<(&'static str, f64)> {
    let (unit, what) = match unit.strip_suffix("/s") {
        Some(rate) => (rate, "bytes a second"),
        None => (unit, "bytes"),
    };
    let power = |base: f64, n: i32| Some((what, base.powi(n)));
    match unit {
        "B" => power(1024.0, 0),
        "KiB" => power(1024.0, 1),
        "MiB" => power(1024.0, 2),
        "GiB" => power(1024.0, 3),
        "TiB" => power(1024.0, 4),
        "PiB" => power(1024.0, 5),
        "EiB" => power(1024.0, 6),
        "kB" | "KB" => power(1000.0, 1),
        "MB" => power(1000.0, 2),
        "GB" => power(1000.0, 3),
        "TB" => power(1000.0, 4),
        "PB" => power(1000.0, 5),
        "EB" => power(1000.0, 6),
        _ if what != "bytes" => None,
        "MHz" => Some(("hertz", 1e6)),
        "GHz" => Some(("hertz", 1e9)),
        "mW" => Some(("watts", 1e-3)),
        "W" => Some(("watts", 1.0)),
        "kW" => Some(("watts", 1e3)),
        "MW" => Some(("watts", 1e6)),
        "GW" => Some(("watts", 1e9)),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss, reason = "properties of devices are far below the bound of exact numbers")]
fn number(of: &DeviceAttribute) -> Option<f64> {
    of.float.or_else(|| of.int.map(|n| n as f64))
}

/// How two values compare; `None` = they do not: of different kinds, or in units of different things.
fn compare(a: &DeviceAttribute, b: &DeviceAttribute) -> Option<Ordering> {
    match (number(a), number(b)) {
        (Some(x), Some(y)) => match (scale(&a.unit), scale(&b.unit)) {
            (Some((what, of_a)), Some((other, of_b))) => {
                (what == other).then(|| (x * of_a).partial_cmp(&(y * of_b))).flatten()
            }
            // Without a unit, or both in one that is not known here.
            _ => (a.unit == b.unit).then(|| x.partial_cmp(&y)).flatten(),
        },
        (None, None) => match (&a.bool, &b.bool, &a.string, &b.string) {
            (Some(x), Some(y), ..) => Some(x.cmp(y)),
            (None, None, Some(x), Some(y)) => Some(x.cmp(y)),
            _ => None,
        },
        _ => None,
    }
}

/// A rule about the devices of a group.
#[derive(Debug)]
struct DeviceRule {
    left: Target,
    right: Target,
    /// The orders that it holds for; `None` = it is no comparison.
    orders: Option<&'static [Ordering]>,
    rule: Rule,
}

impl DeviceRule {
    fn new(left: &str, operator: &str, right: &str) -> Self {
        let orders: Option<&'static [Ordering]> = match operator {
            "" | "=" | "==" | "is" => Some(&[Ordering::Equal]),
            "<" => Some(&[Ordering::Less]),
            "<=" => Some(&[Ordering::Less, Ordering::Equal]),
            ">" => Some(&[Ordering::Greater]),
            ">=" => Some(&[Ordering::Greater, Ordering::Equal]),
            _ => None,
        };
        Self {
            left: Target::parse(left),
            right: Target::parse(right),
            orders,
            // Its sides are resolved here.
            rule: Rule::new("", operator, right),
        }
    }

    fn holds(&self, devices: &NodeDevices) -> bool {
        let (left, right) = (self.left.resolve(devices), self.right.resolve(devices));
        match (&left, &right, self.orders) {
            (Some(l), Some(r), Some(orders)) => return compare(l, r).is_some_and(|order| orders.contains(&order)),
            // A text such as "8" is a property's text, too.
            (Some(l), Some(r), None) if matches!(self.rule.operator(), "!=" | "not") => {
                return compare(l, r) != Some(Ordering::Equal);
            }
            _ => {}
        }
        let text = |value: Option<Cow<'_, DeviceAttribute>>| value.map(|value| Cow::Owned(value.to_string()));
        self.rule.judge(text(left), text(right))
    }
}

/// A request of a task.
#[derive(Debug)]
struct DeviceAsk {
    task: Arc<str>,
    driver: String,
    vendor: Option<String>,
    kind: String,
    name: Option<String>,
    count: usize,
    rules: Vec<DeviceRule>,
    affinities: Vec<(DeviceRule, f64)>,
}

impl DeviceAsk {
    fn new(task: &model::Task, asked: &RequestedDevice) -> Self {
        let mut parts = asked.name.splitn(3, '/').map(str::to_owned);
        let (first, second, name) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        let (vendor, kind) = match second {
            Some(kind) => (Some(first), kind),
            None => (None, first),
        };
        Self {
            task: task.name.clone(),
            driver: task.driver.clone(),
            vendor,
            kind,
            name,
            count: asked.count.unwrap_or(1).try_into().unwrap_or(usize::MAX),
            rules: asked.constraints.iter().map(|c| DeviceRule::new(&c.left, &c.operator, &c.right)).collect(),
            affinities: asked
                .affinities
                .iter()
                .map(|a| (DeviceRule::new(&a.left, &a.operator, &a.right), f64::from(a.weight)))
                .collect(),
        }
    }

    fn matches(&self, devices: &NodeDevices) -> bool {
        self.kind == devices.kind
            && self.vendor.as_ref().is_none_or(|vendor| *vendor == devices.vendor)
            && self.name.as_ref().is_none_or(|name| *name == devices.name)
            && self.rules.iter().all(|rule| rule.holds(devices))
    }

    /// Weights of the affinities that are met.
    fn liking(&self, devices: &NodeDevices) -> f64 {
        self.affinities.iter().filter(|(rule, _)| rule.holds(devices)).map(|(_, weight)| weight).sum()
    }
}

/// The requests of a group's tasks.
#[derive(Debug, Default)]
pub(crate) struct DeviceAsks {
    asks: Vec<DeviceAsk>,
    /// Sum of the weights of all affinities.
    weights: f64,
}

/// Devices of one node for a group.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    pub(crate) given: Vec<(Arc<str>, AllocatedDevices)>,
    /// How well they meet the affinities, -1..=1; 0 where there are none.
    pub(crate) score: f64,
}

impl DeviceAsks {
    pub(crate) fn new(group: &TaskGroup) -> Self {
        let asks: Vec<_> =
            group.tasks.iter().flat_map(|t| t.resources.devices.iter().map(|d| DeviceAsk::new(t, d))).collect();
        let weights = asks.iter().flat_map(|a| &a.affinities).map(|(_, weight)| weight.abs()).sum();
        Self { asks, weights }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asks.is_empty()
    }

    /// Whether some devices are preferred to others.
    pub(crate) fn has_affinities(&self) -> bool {
        self.weights > 0.0
    }

    /// The requests of local tasks with the groups that could meet each, those with the fewest groups first. What runs
    /// elsewhere gets none.
    fn ordered(&self, node: &Node) -> Vec<(&DeviceAsk, Vec<usize>)> {
        let remote = |ask: &DeviceAsk| node.drivers.get(&ask.driver).is_some_and(|driver| driver.remote.is_some());
        let of_node = &node.resources.devices;
        let groups = |ask: &DeviceAsk| {
            let matching = of_node.iter().enumerate().filter(|(_, group)| ask.matches(group));
            matching.map(|(at, _)| at).collect()
        };
        let local = self.asks.iter().filter(|ask| !remote(ask));
        let mut asks: Vec<(&DeviceAsk, Vec<usize>)> = local.map(|ask| (ask, groups(ask))).collect();
        asks.sort_by_key(|(_, groups)| groups.len());
        asks
    }

    /// Free devices of the node for every local task; `None` = it does not have them.
    pub(crate) fn assign(&self, node: &Node, taken: &Taken) -> Option<Assigned> {
        let mut assigned = Assigned::default();
        if self.asks.is_empty() {
            return Some(assigned);
        }
        let mut left = Left::new(node, taken);
        for (ask, groups) in self.ordered(node) {
            let (at, liking) = left.best(ask, &groups)?;
            let NodeDevices { vendor, kind, name, .. } = left.of.get(at)?.clone();
            let device_ids = left.give(at, ask.count).into_iter().map(str::to_owned).collect();
            assigned.given.push((ask.task.clone(), AllocatedDevices { vendor, kind, name, device_ids }));
            assigned.score += liking;
        }
        if self.weights > 0.0 {
            assigned.score /= self.weights;
        }
        Some(assigned)
    }

    /// Which holders leave so that every local task gets its devices: places in `holders`, none where nobody has to.
    /// `None` = not even all of them hold enough.
    ///
    /// As in Nomad, each request takes from one group, the lowest priorities first, and of several groups the one where
    /// the sum of the distinct priorities that leave is lowest. Whoever is not needed stays.
    pub(crate) fn displaced(&self, node: &Node, taken: &Taken, holders: &[Holder]) -> Option<Vec<usize>> {
        let (mut left, mut gone) = (Left::new(node, taken), Vec::new());
        for (ask, groups) in self.ordered(node) {
            let at = match left.best(ask, &groups) {
                Some((at, _)) => at,
                None => {
                    let could =
                        groups.iter().filter_map(|at| Some((*at, left.leaving(*at, ask.count, holders, &gone)?)));
                    let sum = |(_, leaving): &(usize, Vec<usize>)| {
                        leaving.iter().map(|i| holders[*i].priority).collect::<BTreeSet<_>>().iter().sum::<i32>()
                    };
                    let (at, leaving) = could.min_by_key(sum)?;
                    leaving.iter().for_each(|i| left.release(&holders[*i]));
                    gone.extend(leaving);
                    at
                }
            };
            left.give(at, ask.count);
        }
        // Somebody who left for a later request may have freed enough for an earlier one.
        let mut order = gone.clone();
        order.sort_by_key(|i| (Reverse(holders[*i].priority), *i));
        for i in order {
            let others = || gone.iter().filter(|other| **other != i);
            let freed: HashSet<&(String, String)> = others().flat_map(|other| &holders[*other].devices).collect();
            let still = taken.iter().filter(|device| !freed.contains(device)).cloned().collect();
            if self.assign(node, &still).is_some() {
                gone.retain(|other| *other != i);
            }
        }
        Some(gone)
    }
}

/// An allocation that could leave its devices to others.
pub(crate) struct Holder {
    /// Of its job.
    pub(crate) priority: i32,
    /// The group's id and the device's, of each.
    pub(crate) devices: Vec<(String, String)>,
}

/// The healthy devices of a node that are free, by group.
struct Left<'n> {
    of: &'n [NodeDevices],
    ids: Vec<String>,
    free: Vec<Vec<&'n str>>,
}

impl<'n> Left<'n> {
    fn new(node: &'n Node, taken: &Taken) -> Self {
        let of = node.resources.devices.as_slice();
        let free_of = |group: &'n NodeDevices| {
            let id = group.id();
            let free = healthy(group).filter(|device| !taken.contains(&(id.clone(), (*device).to_owned())));
            free.collect()
        };
        Self { of, ids: of.iter().map(NodeDevices::id).collect(), free: of.iter().map(free_of).collect() }
    }

    /// The group that has enough and is liked best. Of equals the first, so that equal nodes give equal answers.
    fn best(&self, ask: &DeviceAsk, groups: &[usize]) -> Option<(usize, f64)> {
        let enough = groups.iter().filter(|at| ask.count > 0 && self.free[**at].len() >= ask.count);
        enough.map(|at| (*at, ask.liking(&self.of[*at]))).reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    fn give(&mut self, at: usize, count: usize) -> Vec<&'n str> {
        self.free[at].drain(..count).collect()
    }

    /// The healthy devices that somebody holds in a group.
    fn held(&self, at: usize, holder: &Holder) -> impl Iterator<Item = &'n str> {
        healthy(&self.of[at])
            .filter(move |device| holder.devices.iter().any(|(group, id)| *group == self.ids[at] && id == device))
    }

    fn release(&mut self, holder: &Holder) {
        for at in 0..self.of.len() {
            let freed: Vec<_> = self.held(at, holder).collect();
            self.free[at].extend(freed);
        }
    }

    /// Who leaves so that a group has enough.
    fn leaving(&self, at: usize, count: usize, holders: &[Holder], gone: &[usize]) -> Option<Vec<usize>> {
        if count == 0 {
            return None;
        }
        let each = holders.iter().enumerate().filter(|(i, _)| !gone.contains(i));
        let mut candidates: Vec<(i32, usize, usize)> =
            each.map(|(i, h)| (h.priority, self.held(at, h).count(), i)).filter(|(_, n, _)| *n > 0).collect();
        candidates.sort_by_key(|(priority, n, i)| (*priority, Reverse(*n), *i));
        let mut have = self.free[at].len();
        let mut leaving = Vec::new();
        for candidate in candidates {
            if have >= count {
                break;
            }
            have += candidate.1;
            leaving.push(candidate);
        }
        if have < count {
            return None;
        }
        // Whoever is not needed stays, those of the highest priority before others.
        leaving.sort_by_key(|(priority, n, i)| (Reverse(*priority), *n, *i));
        leaving.retain(|(_, n, _)| {
            let needed = have - n < count;
            have -= if needed { 0 } else { *n };
            needed
        });
        Some(leaving.into_iter().map(|(.., i)| i).collect())
    }
}

fn healthy(group: &NodeDevices) -> impl Iterator<Item = &str> {
    group.instances.iter().filter(|i| i.healthy).map(|i| i.id.as_str())
}

#[cfg(test)]
mod tests {
    use model::{
        Map, NodeDevice,
        constraint::{Affinity, Constraint},
    };
    use proptest::prelude::*;

    use super::*;

    fn group(vendor: &str, name: &str, ids: &[&str], memory: &str) -> NodeDevices {
        let instance = |id: &&str| NodeDevice { id: (*id).to_owned(), healthy: true, ..NodeDevice::default() };
        let mut attributes = Map::new();
        attributes.insert("memory".to_owned(), literal(memory));
        NodeDevices {
            vendor: vendor.to_owned(),
            kind: "gpu".to_owned(),
            name: name.to_owned(),
            instances: ids.iter().map(instance).collect(),
            attributes,
        }
    }

    fn node() -> Node {
        let mut node = Node::default();
        node.resources.devices =
            vec![group("nvidia", "T4", &["a", "b"], "16 GiB"), group("amd", "MI/50", &["c"], "32 GiB")];
        node
    }

    fn ask(name: &str, count: u64) -> RequestedDevice {
        RequestedDevice { name: name.to_owned(), count: Some(count), ..RequestedDevice::default() }
    }

    fn asks(devices: Vec<RequestedDevice>) -> DeviceAsks {
        let mut task = model::Task { name: "t".into(), ..model::Task::default() };
        task.resources.devices = devices;
        DeviceAsks::new(&TaskGroup { tasks: vec![task], ..TaskGroup::default() })
    }

    fn given(asks: &DeviceAsks, taken: &[(&str, &str)]) -> Option<Vec<String>> {
        let taken = taken.iter().map(|(group, id)| ((*group).to_owned(), (*id).to_owned())).collect();
        let assigned = asks.assign(&node(), &taken)?;
        Some(assigned.given.into_iter().flat_map(|(_, d)| d.device_ids).collect())
    }

    #[test]
    fn a_device_is_named_by_its_type_its_vendor_or_in_full() {
        for (name, count, expected) in [
            ("gpu", 1, Some(vec!["a"])),
            ("gpu", 2, Some(vec!["a", "b"])),
            // One group has to have them all.
            ("gpu", 3, None),
            ("amd/gpu", 1, Some(vec!["c"])),
            ("amd/gpu/MI/50", 1, Some(vec!["c"])),
            ("amd/gpu/MI", 1, None),
            ("nvidia", 1, None),
            ("fpga", 1, None),
            ("gpu", 0, None),
        ] {
            let expected = expected.map(|ids| ids.into_iter().map(str::to_owned).collect());
            assert_eq!(given(&asks(vec![ask(name, count)]), &[]), expected, "{count} of {name}");
        }
    }

    fn holder(priority: i32, devices: &[(&str, &str)]) -> Holder {
        Holder { priority, devices: devices.iter().map(|(g, id)| ((*g).to_owned(), (*id).to_owned())).collect() }
    }

    fn displaced(asks: &DeviceAsks, node: &Node, holders: &[Holder]) -> Option<Vec<usize>> {
        let taken = holders.iter().flat_map(|h| h.devices.iter().cloned()).collect();
        asks.displaced(node, &taken, holders)
    }

    const T4: &str = "nvidia/gpu/T4";
    const MI: &str = "amd/gpu/MI/50";

    #[test]
    fn the_lowest_priorities_leave_their_devices() {
        let held = [holder(30, &[(T4, "a")]), holder(20, &[(T4, "b")]), holder(25, &[(MI, "c")])];
        let of = |name, count| displaced(&asks(vec![ask(name, count)]), &node(), &held);
        assert_eq!(of("nvidia/gpu", 1), Some(vec![1]));
        assert_eq!(of("amd/gpu", 1), Some(vec![2]));
        assert_eq!(of("gpu", 1), Some(vec![1]), "of several groups the one with the lower sum");
        assert_eq!(of("gpu", 2), Some(vec![0, 1]));
        assert_eq!(of("gpu", 3), None, "one group has to have them all");
        assert_eq!(displaced(&asks(vec![ask("gpu", 1)]), &node(), &held[..1]), Some(vec![]), "b is free");
        let two = asks(vec![ask("gpu", 1), ask("nvidia/gpu", 2)]);
        assert_eq!(displaced(&two, &node(), &held), Some(vec![0, 1, 2]));
        // Who leaves for the T4s leaves the other one as well.
        let held = [holder(10, &[(MI, "c")]), holder(20, &[(T4, "a"), (T4, "b"), (MI, "d")])];
        let mut node = node();
        node.resources.devices[1] = group("amd", "MI/50", &["c", "d"], "32 GiB");
        let two = asks(vec![ask("amd/gpu", 1), ask("nvidia/gpu", 2)]);
        assert_eq!(displaced(&two, &node, &held), Some(vec![1]));
    }

    #[test]
    fn whoever_need_not_leave_keeps_its_devices() {
        let mut node = node();
        node.resources.devices[0] = group("nvidia", "T4", &["a", "b", "d", "e"], "16 GiB");
        let held = [holder(10, &[(T4, "a")]), holder(20, &[(T4, "b"), (T4, "d"), (T4, "e")])];
        let of = |count| displaced(&asks(vec![ask("nvidia/gpu", count)]), &node, &held);
        assert_eq!((of(1), of(4)), (Some(vec![0]), Some(vec![1, 0])));
        // The lowest is not enough, and is not needed beside the one that is.
        assert_eq!((of(2), of(3)), (Some(vec![1]), Some(vec![1])));
        // What is broken is of no use.
        node.resources.devices[0].instances[0].healthy = false;
        let of = |count| displaced(&asks(vec![ask("nvidia/gpu", count)]), &node, &held);
        assert_eq!((of(1), of(4)), (Some(vec![1]), None));
    }

    proptest! {
        /// Whoever leaves makes room for all requests, of one group each.
        #[test]
        fn what_is_left_is_enough(
            of in prop::collection::vec((1..50_i32, 0..3_usize), 0..8),
            ask_of in (0..5_u64, 1..3_u64),
        ) {
            let ids: Vec<String> = (0..of.iter().map(|(_, n)| n).sum::<usize>()).map(|n| n.to_string()).collect();
            let all: Vec<&str> = ids.iter().map(String::as_str).collect();
            let mut node = node();
            node.resources.devices[0] = group("nvidia", "T4", &all, "16 GiB");
            let mut next = all.iter();
            let holders: Vec<_> = of
                .iter()
                .map(|(p, n)| holder(*p, &next.by_ref().take(*n).map(|id| (T4, *id)).collect::<Vec<_>>()))
                .collect();
            let asks = asks(vec![ask("nvidia/gpu", ask_of.0), ask("gpu", ask_of.1)]);
            let taken = |without: &[usize]| -> Taken {
                let stay = holders.iter().enumerate().filter(|(i, _)| !without.contains(i));
                stay.flat_map(|(_, h)| h.devices.iter().cloned()).collect()
            };
            match asks.displaced(&node, &taken(&[]), &holders) {
                None => {
                    let every: Vec<usize> = (0..holders.len()).collect();
                    prop_assert!(asks.assign(&node, &taken(&every)).is_none());
                }
                Some(gone) => {
                    prop_assert!(asks.assign(&node, &taken(&gone)).is_some());
                    for i in &gone {
                        let others: Vec<usize> = gone.iter().copied().filter(|other| other != i).collect();
                        prop_assert!(asks.assign(&node, &taken(&others)).is_none(), "{i} leaves in vain");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_taken_or_unhealthy_is_not_given() {
        let one = asks(vec![ask("nvidia/gpu", 1)]);
        assert_eq!(given(&one, &[("nvidia/gpu/T4", "a")]), Some(vec!["b".to_owned()]));
        assert_eq!(given(&one, &[("nvidia/gpu/T4", "a"), ("nvidia/gpu/T4", "b")]), None);
        let mut sick = node();
        sick.resources.devices[0].instances[0].healthy = false;
        let assigned = one.assign(&sick, &Taken::new()).expect("one is left");
        assert_eq!(assigned.given[0].1.device_ids, ["b"]);
    }

    #[test]
    fn the_request_with_the_least_choice_chooses_first() {
        let both = asks(vec![ask("gpu", 2), ask("nvidia/gpu", 2)]);
        assert_eq!(given(&both, &[]), None, "the other model has one only");
        let both = asks(vec![ask("gpu", 1), ask("nvidia/gpu", 2)]);
        assert_eq!(given(&both, &[]), Some(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]));
    }

    #[test]
    fn rules_compare_in_units() {
        let rule = |left: &str, operator: &str, right: &str| {
            let rule = DeviceRule::new(left, operator, right);
            node().resources.devices.iter().filter(|d| rule.holds(d)).map(|d| d.name.clone()).collect::<Vec<_>>()
        };
        let memory = "${device.attr.memory}";
        for (left, operator, right, expected) in [
            (memory, ">=", "16GiB", vec!["T4", "MI/50"]),
            (memory, ">", "16384 MiB", vec!["MI/50"]),
            (memory, "<", "20 GB", vec!["T4"]),
            (memory, "=", "17179869184 B", vec!["T4"]),
            (memory, "!=", "16 GiB", vec!["MI/50"]),
            // Other things, and numbers without a unit, do not compare.
            (memory, ">", "1 W", vec![]),
            (memory, ">", "1", vec![]),
            (memory, ">", "much", vec![]),
            (memory, "is_set", "", vec!["T4", "MI/50"]),
            ("${device.attr.cores}", "is_set", "", vec![]),
            ("${device.attr.cores}", "!=", "8", vec!["T4", "MI/50"]),
            ("${device.vendor}", "=", "amd", vec!["MI/50"]),
            ("${device.type}", "=", "gpu", vec!["T4", "MI/50"]),
            ("${device.model}", "regexp", "^T", vec!["T4"]),
            ("${device.ids}", "set_contains", "b,a", vec!["T4"]),
            ("${device.ids}", "set_contains_any", "c,x", vec!["MI/50"]),
            ("${attr.cpu.arch}", "=", "x", vec![]),
        ] {
            assert_eq!(rule(left, operator, right), expected, "{left} {operator} {right}");
        }
    }

    #[test]
    fn numbers_of_literals_end_where_their_unit_begins() {
        for (text, int, float, unit) in [
            ("8", Some(8), None, ""),
            ("-8", Some(-8), None, ""),
            ("1.5 GHz", None, Some(1.5), "GHz"),
            ("3EiB", Some(3), None, "EiB"),
            ("3E", None, None, ""),
            ("2 GiB/s", Some(2), None, "GiB/s"),
        ] {
            let value = literal(text);
            assert_eq!((value.int, value.float, value.unit.as_str()), (int, float, unit), "{text}");
        }
        assert_eq!(literal("true").bool, Some(true));
        assert_eq!(literal("3E").string.as_deref(), Some("3E"));
        assert_eq!(literal("7 dwarfs").string.as_deref(), Some("7 dwarfs"));
    }

    #[test]
    fn affinities_choose_among_groups_and_score_the_node() {
        let affinity = |right: &str, weight| Affinity {
            left: "${device.vendor}".into(),
            operator: "=".into(),
            right: right.into(),
            weight,
        };
        let liked = RequestedDevice { affinities: vec![affinity("amd", 75), affinity("nvidia", -25)], ..ask("gpu", 1) };
        let liked = asks(vec![liked]);
        assert_eq!(given(&liked, &[]), Some(vec!["c".to_owned()]));
        assert!((liked.assign(&node(), &Taken::new()).expect("devices").score - 0.75).abs() < 1e-9);
        let taken = Taken::from([("amd/gpu/MI/50".to_owned(), "c".to_owned())]);
        let second = liked.assign(&node(), &taken).expect("devices");
        assert_eq!((second.given[0].1.device_ids.as_slice(), second.score), (&["a".to_owned()][..], -0.25));
        let ruled = RequestedDevice {
            constraints: vec![Constraint {
                left: "${device.attr.memory}".into(),
                operator: ">".into(),
                right: "20 GiB".into(),
            }],
            ..ask("gpu", 1)
        };
        assert_eq!(given(&asks(vec![ruled]), &[]), Some(vec!["c".to_owned()]));
    }
}
