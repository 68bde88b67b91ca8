//! Devices: which of a node's are taken, whether it has what a group asks for, and which a task gets.
//!
//! A request is met by one group of alike devices. The request with the fewest groups to choose from chooses first: a
//! task that takes any GPU does not take the one model that its neighbour needs.

use std::{borrow::Cow, cmp::Ordering, collections::HashSet, sync::Arc};

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

    /// Free devices of the node for every local task; `None` = it does not have them. What runs elsewhere gets none.
    pub(crate) fn assign(&self, node: &Node, taken: &Taken) -> Option<Assigned> {
        if self.asks.is_empty() {
            return Some(Assigned::default());
        }
        let remote = |ask: &DeviceAsk| node.drivers.get(&ask.driver).is_some_and(|driver| driver.remote.is_some());
        let mut left: Vec<Vec<&str>> = node
            .resources
            .devices
            .iter()
            .map(|group| {
                let id = group.id();
                let free = group.instances.iter().filter(|i| i.healthy);
                free.filter(|i| !taken.contains(&(id.clone(), i.id.clone()))).map(|i| i.id.as_str()).collect()
            })
            .collect();
        let mut asks: Vec<(&DeviceAsk, Vec<usize>)> = Vec::new();
        for ask in self.asks.iter().filter(|ask| !remote(ask)) {
            let groups = node.resources.devices.iter().enumerate().filter(|(_, group)| ask.matches(group));
            asks.push((ask, groups.map(|(at, _)| at).collect()));
        }
        asks.sort_by_key(|(_, groups)| groups.len());
        let mut assigned = Assigned::default();
        for (ask, groups) in asks {
            let of = |at: &usize| node.resources.devices.get(*at);
            let enough =
                groups.iter().filter(|at| ask.count > 0 && left.get(**at).is_some_and(|l| l.len() >= ask.count));
            // Of equals the first, so that equal nodes give equal answers.
            let best = enough
                .filter_map(|at| Some((*at, ask.liking(of(at)?))))
                .reduce(|best, next| if next.1 > best.1 { next } else { best });
            let (at, liking) = best?;
            let (group, free) = (of(&at)?, left.get_mut(at)?);
            let device_ids = free.drain(..ask.count).map(str::to_owned).collect();
            let NodeDevices { vendor, kind, name, .. } = group.clone();
            assigned.given.push((ask.task.clone(), AllocatedDevices { vendor, kind, name, device_ids }));
            assigned.score += liking;
        }
        if self.weights > 0.0 {
            assigned.score /= self.weights;
        }
        Some(assigned)
    }
}

#[cfg(test)]
mod tests {
    use model::{
        Map, NodeDevice,
        constraint::{Affinity, Constraint},
    };

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
