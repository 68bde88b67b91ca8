//! Rules of jobs, read once per evaluation: constraints and the conditions of affinities.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeSet};

use model::{
    Job,
    constraint::{Affinity, Constraint},
    node::Node,
    validate::{Problem, ValidationErrors},
};

use crate::{
    target::Target,
    version::{VersionConstraint, VersionRules},
};

/// The comparison of a rule.
#[derive(Debug)]
enum Test {
    Equal,
    NotEqual,
    Order(fn(Ordering) -> bool),
    /// `None`: an invalid pattern matches nothing.
    Regexp(Option<regex::Regex>),
    Version(VersionRules, Option<VersionConstraint>),
    SetContainsAll,
    SetContainsAny,
    IsSet,
    IsNotSet,
    /// An unknown operator holds nowhere.
    Never,
}

/// A rule about one node, independent of what runs where.
#[derive(Debug)]
pub(crate) struct Rule {
    left: Target,
    right: Target,
    test: Test,
    text: String,
    operator: String,
}

fn set(text: &str) -> BTreeSet<&str> {
    text.split(',').map(str::trim).collect()
}

/// Compares numbers as numbers if both sides are, otherwise as text.
fn order(a: &str, b: &str) -> Ordering {
    if let (Ok(a), Ok(b)) = (a.parse::<i64>(), b.parse::<i64>()) {
        return a.cmp(&b);
    }
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    }
}

impl Rule {
    pub(crate) fn new(left: &str, operator: &str, right: &str) -> Self {
        let (l, r) = (Target::parse(left), Target::parse(right));
        // Patterns are nearly always literal: compile these here, others on use.
        let literal = |t: &Target| if let Target::Literal(s) = t { Some(s.clone()) } else { None };
        let test = match operator {
            "" | "=" | "==" | "is" => Test::Equal,
            "!=" | "not" => Test::NotEqual,
            "<" => Test::Order(Ordering::is_lt),
            "<=" => Test::Order(Ordering::is_le),
            ">" => Test::Order(Ordering::is_gt),
            ">=" => Test::Order(Ordering::is_ge),
            "regexp" => Test::Regexp(literal(&r).and_then(|p| regex::Regex::new(&p).ok())),
            "version" => Test::Version(
                VersionRules::Lenient,
                literal(&r).and_then(|v| VersionConstraint::parse(&v, VersionRules::Lenient)),
            ),
            "semver" => Test::Version(
                VersionRules::Semver,
                literal(&r).and_then(|v| VersionConstraint::parse(&v, VersionRules::Semver)),
            ),
            "set_contains" | "set_contains_all" => Test::SetContainsAll,
            "set_contains_any" => Test::SetContainsAny,
            "is_set" => Test::IsSet,
            "is_not_set" => Test::IsNotSet,
            _ => Test::Never,
        };
        let text = [left, operator, right].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
        Self { left: l, right: r, test, text, operator: operator.to_owned() }
    }

    /// Its operator, as written.
    pub(crate) fn operator(&self) -> &str {
        &self.operator
    }

    /// The rule's text in reasons.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the answer may differ within a class of nodes.
    pub(crate) fn unique(&self) -> bool {
        self.left.unique() || self.right.unique()
    }

    pub(crate) fn holds(&self, node: &Node, region: &str) -> bool {
        self.judge(self.left.resolve(node, region), self.right.resolve(node, region))
    }

    /// Whether it holds for these values of its sides; `None` = nothing has such a property.
    pub(crate) fn judge(&self, left: Option<Cow<'_, str>>, right: Option<Cow<'_, str>>) -> bool {
        match &self.test {
            Test::IsSet => return left.is_some(),
            Test::IsNotSet => return left.is_none(),
            // A missing attribute differs from every value.
            Test::NotEqual => return left != right,
            _ => {}
        }
        let (Some(l), Some(r)) = (left, right) else { return false };
        match &self.test {
            Test::Equal => l == r,
            Test::Order(test) => test(order(&l, &r)),
            Test::Regexp(Some(p)) => p.is_match(&l),
            Test::Regexp(None) => {
                !matches!(self.right, Target::Literal(_)) && regex::Regex::new(&r).is_ok_and(|p| p.is_match(&l))
            }
            Test::Version(_, Some(c)) => c.matches(&l),
            Test::Version(rules, None) => {
                !matches!(self.right, Target::Literal(_))
                    && VersionConstraint::parse(&r, *rules).is_some_and(|c| c.matches(&l))
            }
            Test::SetContainsAll => set(&r).is_subset(&set(&l)),
            Test::SetContainsAny => !set(&r).is_disjoint(&set(&l)),
            Test::NotEqual | Test::IsSet | Test::IsNotSet | Test::Never => false,
        }
    }
}

/// Why the right side of a rule is always invalid; `None` = it is valid, or only the node can tell.
fn operand_mistake(operator: &str, right: &str) -> Option<String> {
    if !matches!(Target::parse(right), Target::Literal(_)) || right.contains("${") {
        return None;
    }
    let version = |rules: VersionRules, hint: &str| {
        let known = VersionConstraint::parse(right, rules).is_some();
        (!known).then(|| format!("{operator} constraint {right:?} is invalid: write conditions such as {hint}"))
    };
    match operator {
        "regexp" => regex::Regex::new(right)
            .err()
            .map(|error| format!("regular expression {right:?} failed to compile: {error}")),
        "version" => version(VersionRules::Lenient, "\">= 1.2, < 2\" or \"~> 1.2\""),
        "semver" => version(VersionRules::Semver, "\">= 1.2.0, < 2\" (there is no ~> in semver)"),
        _ => None,
    }
}

/// The rules of a job that no node can ever meet because of a mistake, as validation names them.
#[must_use]
pub fn rule_mistakes(job: &Job) -> ValidationErrors {
    let of = |constraints: &[Constraint], affinities: &[Affinity]| {
        let constraints = constraints.iter().enumerate().map(|(n, c)| ("Constraint", n, &c.operator, &c.right));
        let affinities = affinities.iter().enumerate().map(|(n, a)| ("Affinity", n, &a.operator, &a.right));
        let rules = constraints.chain(affinities);
        let found = rules.filter_map(|(what, n, operator, right)| {
            let text = operand_mistake(operator, right)?;
            let errors = ValidationErrors(vec![Problem::Text(text)]);
            Some(Problem::In { prefix: format!("{what} {} validation failed", n + 1), errors })
        });
        found.collect::<Vec<_>>()
    };
    let mut errors = of(&job.constraints, &job.affinities);
    for group in &job.task_groups {
        let mut inner = of(&group.constraints, &group.affinities);
        for task in &group.tasks {
            let mut found = of(&task.constraints, &task.affinities);
            found.extend(task.resources.devices.iter().flat_map(|d| of(&d.constraints, &d.affinities)));
            if !found.is_empty() {
                inner.push(Problem::In {
                    prefix: format!("Task {} validation failed", task.name),
                    errors: ValidationErrors(found),
                });
            }
        }
        if !inner.is_empty() {
            errors.push(Problem::In {
                prefix: format!("Task group {} validation failed", group.name),
                errors: ValidationErrors(inner),
            });
        }
    }
    ValidationErrors(errors)
}

/// A rule about the places of the job's other allocations.
#[derive(Debug)]
pub(crate) enum Distinct {
    /// No two on one node.
    Hosts {
        /// All groups of the job count, not only this one.
        job_wide: bool,
    },
    /// At most `limit` for each value of the property.
    Property { target: Target, limit: u32, job_wide: bool, text: String },
}

/// Splits a list of constraints into the two kinds.
pub(crate) fn split<'a>(constraints: impl Iterator<Item = (&'a Constraint, bool)>) -> (Vec<Rule>, Vec<Distinct>) {
    let (mut rules, mut distinct) = (Vec::new(), Vec::new());
    for (c, job_wide) in constraints {
        match c.operator.as_str() {
            // `distinct_hosts = false` switches the rule off.
            "distinct_hosts" if c.right == "false" => {}
            "distinct_hosts" => distinct.push(Distinct::Hosts { job_wide }),
            "distinct_property" => {
                let limit = c.right.trim().parse().unwrap_or(1).max(1);
                distinct.push(Distinct::Property {
                    target: Target::parse(&c.left),
                    limit,
                    job_wide,
                    text: c.left.clone(),
                });
            }
            _ => rules.push(Rule::new(&c.left, &c.operator, &c.right)),
        }
    }
    (rules, distinct)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_that_match_nothing_are_named() {
        for (operator, right, expected) in [
            ("regexp", "(", Some("failed to compile")),
            ("regexp", "^a.*$", None),
            ("regexp", "${meta.pattern}", None),
            ("version", "zz", Some("version constraint \"zz\" is invalid")),
            ("version", "~> 1.2", None),
            ("version", ">= 1.2, < 2", None),
            ("semver", "~> 1.2", Some("there is no ~> in semver")),
            ("semver", ">= 1.2.0-beta1", None),
            ("=", "(", None),
        ] {
            let found = operand_mistake(operator, right);
            assert_eq!(found.is_some(), expected.is_some(), "{operator} {right}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{operator} {right}");
        }
        let rule =
            |right: &str| Constraint { left: "${attr.x}".into(), operator: "regexp".into(), right: right.into() };
        let task = model::Task { name: "t".into(), constraints: vec![rule("a"), rule("[")], ..Default::default() };
        let group = model::TaskGroup { name: "g".into(), tasks: vec![task], ..Default::default() };
        let found =
            rule_mistakes(&Job { constraints: vec![rule("(")], task_groups: vec![group].into(), ..Job::default() })
                .flat();
        assert!(found.len() == 2 && found[0].starts_with("Constraint 1 validation failed: "), "{found:?}");
        assert!(
            found[1].starts_with(
                "Task group g validation failed: Task t validation failed: Constraint 2 validation failed: "
            ),
            "{found:?}"
        );
    }

    #[test]
    fn every_operator() {
        let mut node = Node { datacenter: "dc1".into(), class: "large".into(), name: "n1".into(), ..Node::default() };
        for (k, v) in [
            ("kernel.name", "linux"),
            ("kernel.version", "5.10.1"),
            ("cpu.numcores", "16"),
            ("tags", "a, b,c"),
            ("sem", "1.2.3-rc1"),
        ] {
            node.attributes.insert(k.into(), v.into());
        }
        node.meta.insert("rack".into(), "r1".into());
        for (left, op, right, expect) in [
            ("${attr.kernel.name}", "=", "linux", true),
            ("${attr.kernel.name}", "==", "windows", false),
            ("${attr.kernel.name}", "is", "linux", true),
            ("${attr.kernel.name}", "!=", "windows", true),
            ("${attr.missing}", "!=", "windows", true),
            ("${attr.missing}", "not", "${attr.alsomissing}", false),
            ("${attr.missing}", "=", "x", false),
            ("${attr.cpu.numcores}", ">", "9", true),
            ("${attr.cpu.numcores}", "<=", "15.5", false),
            ("${meta.rack}", "<", "r2", true),
            ("${meta.rack}", ">=", "r2", false),
            ("${attr.kernel.version}", "version", ">= 5.4, < 6", true),
            ("${attr.kernel.version}", "version", "not a version", false),
            ("${attr.sem}", "semver", "> 1.2.2", true),
            ("${attr.sem}", "version", "> 1.2.2", false),
            ("${node.unique.name}", "regexp", "^n[0-9]+$", true),
            ("${node.unique.name}", "regexp", "(", false),
            ("${attr.tags}", "set_contains", "a,c", true),
            ("${attr.tags}", "set_contains_all", "a,d", false),
            ("${attr.tags}", "set_contains_any", "d,b", true),
            ("${meta.rack}", "is_set", "", true),
            ("${meta.room}", "is_set", "", false),
            ("${meta.room}", "is_not_set", "", true),
            ("${node.datacenter}", "=", "dc1", true),
            ("${node.region}", "=", "global", true),
            ("${node.class}", "unheard_of", "large", false),
            ("literal", "=", "literal", true),
        ] {
            assert_eq!(Rule::new(left, op, right).holds(&node, "global"), expect, "{left} {op} {right}");
        }
    }
}
