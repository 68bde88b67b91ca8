//! Version rules as Go's go-version reads them (operator `version`), and by the letter of semver (operator `semver`).

use std::cmp::Ordering;

/// The grammar and order of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionRules {
    /// `1.2`, `v1.2.3.4`, `1.2beta`; a rule without a pre-release matches no pre-release; supports `~>`.
    Lenient,
    /// A pre-release needs its dash and is ordered as in semver; no `~>`.
    Semver,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    /// At least three numbers.
    segments: Vec<u64>,
    /// How many of them were written.
    written: usize,
    pre: String,
}

fn identifiers(text: &str) -> bool {
    text.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'~'))
}

impl Version {
    fn parse(text: &str, rules: VersionRules) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, build) = text.split_once('+').map_or((text, None), |(t, b)| (t, Some(b)));
        if build.is_some_and(|b| !identifiers(b)) {
            return None;
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let pre = match rest.strip_prefix('-') {
            Some(pre) => pre,
            None if rest.is_empty() => "",
            None if rules == VersionRules::Lenient
                && rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '~') =>
            {
                rest
            }
            None => return None,
        };
        if (rest.len() > pre.len() || !pre.is_empty()) && !identifiers(pre) {
            return None;
        }
        let mut segments: Vec<u64> = numbers.split('.').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let written = segments.len();
        segments.resize(written.max(3), 0);
        Some(Self { segments, written, pre: pre.to_owned() })
    }

    fn compare(&self, other: &Self) -> Ordering {
        let n = self.segments.len().max(other.segments.len());
        let at = |v: &Self, i: usize| v.segments.get(i).copied().unwrap_or(0);
        (0..n)
            .map(|i| at(self, i).cmp(&at(other, i)))
            .find(|o| o.is_ne())
            .unwrap_or_else(|| compare_pre(&self.pre, &other.pre))
    }

    fn same_numbers(&self, other: &Self) -> bool {
        self.segments == other.segments
    }
}

/// A release is newer than its pre-releases. Numeric parts compare as numbers and come before words.
fn compare_pre(a: &str, b: &str) -> Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        let o = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(x), Some(y)) => match (x.parse::<u64>(), y.parse::<u64>()) {
                (Ok(x), Ok(y)) => x.cmp(&y),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => x.cmp(y),
            },
        };
        if o.is_ne() {
            return o;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Pessimistic,
}

/// A list of rules for a version, such as `>= 1.2, < 2`.
#[derive(Clone, Debug)]
pub struct VersionConstraint {
    parts: Vec<(Op, Version)>,
    rules: VersionRules,
}

impl VersionConstraint {
    /// Parses a list of rules; `None` when it is invalid.
    #[must_use]
    pub fn parse(text: &str, rules: VersionRules) -> Option<Self> {
        let part = |part: &str| {
            let part = part.trim();
            let (op, rest) = [
                ("~>", Op::Pessimistic),
                (">=", Op::GreaterEqual),
                ("<=", Op::LessEqual),
                ("!=", Op::NotEqual),
                ("=", Op::Equal),
                (">", Op::Greater),
                ("<", Op::Less),
            ]
            .into_iter()
            .find_map(|(s, op)| part.strip_prefix(s).map(|rest| (op, rest)))
            .unwrap_or((Op::Equal, part));
            if op == Op::Pessimistic && rules == VersionRules::Semver {
                return None;
            }
            Some((op, Version::parse(rest, rules)?))
        };
        Some(Self { parts: text.split(',').map(part).collect::<Option<_>>()?, rules })
    }

    /// Whether the version meets every rule; an invalid version meets none.
    #[must_use]
    pub fn matches(&self, version: &str) -> bool {
        Version::parse(version, self.rules).is_some_and(|v| self.parts.iter().all(|(op, c)| self.meets(*op, &v, c)))
    }

    fn meets(&self, op: Op, v: &Version, c: &Version) -> bool {
        let o = v.compare(c);
        // A pre-release compares only with a rule that names a pre-release of the same numbers.
        let comparable = self.rules == VersionRules::Semver
            || match (v.pre.is_empty(), c.pre.is_empty()) {
                (false, false) => v.same_numbers(c),
                (false, true) => false,
                (true, _) => true,
            };
        match op {
            Op::Equal => o.is_eq(),
            Op::NotEqual => o.is_ne(),
            Op::Greater => comparable && o.is_gt(),
            Op::GreaterEqual => comparable && o.is_ge(),
            Op::Less => comparable && o.is_lt(),
            Op::LessEqual => comparable && o.is_le(),
            Op::Pessimistic => {
                // All written numbers but the last are fixed; the last may grow.
                comparable
                    && (c.pre.is_empty() || !v.pre.is_empty())
                    && o.is_ge()
                    && c.segments.len() <= v.segments.len()
                    && v.segments[..c.written - 1] == c.segments[..c.written - 1]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{VersionConstraint, VersionRules};

    #[test]
    fn rules_and_versions() {
        use VersionRules::{Lenient, Semver};
        for (rules, constraint, yes, no) in [
            (Lenient, "1.2.3", &["1.2.3", "v1.2.3", "1.2.3+x"][..], &["1.2.4", "1.2.3-beta"][..]),
            (Lenient, ">= 1.0, < 1.2", &["1.0", "1.1.5", "1"], &["0.9", "1.2.0", "1.3", "1.1.5-rc1"]),
            (Lenient, "~> 1.0", &["1.1", "1.2.3", "1.0"], &["2.0", "0.9"]),
            (Lenient, "~> 1.0.3", &["1.0.3", "1.0.7"], &["1.1", "1.0.2"]),
            (Lenient, "~> 1.0.3.1", &["1.0.3.2"], &["1.0.4", "1.0.3"]),
            (Lenient, "> 1.4-beta", &["1.5", "1.4-rc1"], &["1.3", "1.4-alpha", "1.5-beta"]),
            (Lenient, "!= 2.0", &["2.1", "1.9-x"], &["2.0.0"]),
            (Lenient, ">= 4.10", &["4.14.0", "5.0"], &["4.9.2", "6.1.0-13-generic"]),
            (Lenient, "= 1.2beta", &["1.2-beta"], &["1.2"]),
            (Semver, ">= 1.3.0-beta1", &["1.3.0", "1.3.0-beta2", "1.5.0-beta1"], &["1.3.0-alpha", "1.2.9"]),
            (Semver, "< 1.0", &["1.0.0-rc1", "0.9"], &["1.0.0", "1.2beta"]),
        ] {
            let c = VersionConstraint::parse(constraint, rules).expect(constraint);
            for v in yes {
                assert!(c.matches(v), "{v} should meet {constraint}");
            }
            for v in no {
                assert!(!c.matches(v), "{v} should not meet {constraint}");
            }
        }
        assert!(VersionConstraint::parse("~> 1.0", Semver).is_none());
        for bad in ["", "x", ">= a.b", "1..2", "1.2-", ">> 1"] {
            assert!(VersionConstraint::parse(bad, Lenient).is_none(), "{bad:?}");
        }
    }
}
