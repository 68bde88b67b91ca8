//! A difference that is known, and what it is like.

use super::super::tree::Difference;

/// A known difference. The patterns are of whole texts; `*` is any text,
/// `||` separates alternatives.
pub(in crate::differ) struct Known {
    /// Names of scenarios.
    scenario: &'static str,
    /// The step, then the place in the tree: `2 stop/allocs/*/DesiredDescription`.
    path: &'static str,
    /// What the stock has there; `-` when it has nothing.
    stock: &'static str,
    /// What we have there.
    ours: &'static str,
    /// Why.
    pub(in crate::differ) why: &'static str,
    /// Each full run shows it; what depends on who is first does not.
    pub(in crate::differ) always: bool,
}

pub(super) const fn known(
    scenario: &'static str,
    path: &'static str,
    stock: &'static str,
    ours: &'static str,
    why: &'static str,
) -> Known {
    Known { scenario, path, stock, ours, why, always: true }
}

pub(super) const fn sometimes(
    scenario: &'static str,
    path: &'static str,
    stock: &'static str,
    ours: &'static str,
    why: &'static str,
) -> Known {
    Known { scenario, path, stock, ours, why, always: false }
}

/// A known difference after which the two systems have something else before them: what differs later, there, follows
/// from it.
pub(super) struct Fork {
    pub(super) at: Known,
    /// Paths of what follows.
    pub(super) then: &'static str,
}

impl Known {
    pub(super) fn explains(&self, scenario: &str, difference: &Difference) -> bool {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "-".into());
        matches(self.scenario, scenario)
            && matches(self.path, &difference.path)
            && matches(self.stock, &side(&difference.stock))
            && matches(self.ours, &side(&difference.ours))
    }
    /// Whether it is about this scenario.
    pub(in crate::differ) fn is_of(&self, scenario: &str) -> bool {
        matches(self.scenario, scenario)
    }
    /// How the run names it.
    pub(in crate::differ) fn label(&self) -> String {
        format!("{} {} [{} | {}]", self.scenario, self.path, self.stock, self.ours)
    }
}

/// Whether a text is of the form of a pattern in which `*` is any text and `||` separates alternatives.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    pattern.split("||").any(|pattern| matches_one(pattern.trim(), text))
}

fn matches_one(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches_one(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "anything", true),
            ("a/*/c", "a/b/c", true),
            ("a/*/c", "a/b/x/c", true),
            ("a/*/c", "a/b/cd", false),
            ("a || b", "b", true),
            ("a || b", "c", false),
            ("-", "-", true),
            ("*end", "the end", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
