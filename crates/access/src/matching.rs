//! Names and globs: an exact name wins over every glob, and among globs the closest one wins alone.

use std::collections::BTreeMap;

/// Does the name fit the pattern? `*` stands for any text, also for none and across slashes.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The earliest place leaves the most for those that follow.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// How far a name is from a glob that fits it.
fn distance(pattern: &str, name: &str) -> i64 {
    let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
    let stars = i64::try_from(pattern.matches('*').count()).unwrap_or(i64::MAX);
    length(name) - length(pattern) + stars
}

/// Entries by exact name and by glob.
#[derive(Clone, Debug)]
pub(crate) struct ByName<E> {
    exact: BTreeMap<String, E>,
    globs: BTreeMap<String, E>,
}

impl<E> Default for ByName<E> {
    fn default() -> Self {
        Self { exact: BTreeMap::new(), globs: BTreeMap::new() }
    }
}

impl<E: Default> ByName<E> {
    pub(crate) fn entry(&mut self, name: &str) -> &mut E {
        let entries = if name.contains('*') { &mut self.globs } else { &mut self.exact };
        entries.entry(name.to_owned()).or_default()
    }
}

impl<E> ByName<E> {
    pub(crate) fn exact(&self, name: &str) -> Option<(&str, &E)> {
        self.exact.get_key_value(name).map(|(name, entry)| (name.as_str(), entry))
    }

    /// The closest glob; of equally close ones the one that denies, then the first by name.
    pub(crate) fn glob(&self, name: &str, denies: impl Fn(&E) -> bool) -> Option<(&str, &E)> {
        let fitting = self.globs.iter().filter(|(pattern, _)| fits(pattern, name));
        let closest = fitting.min_by_key(|(pattern, entry)| (distance(pattern, name), !denies(entry)));
        closest.map(|(pattern, entry)| (pattern.as_str(), entry))
    }

    pub(crate) fn find(&self, name: &str, denies: impl Fn(&E) -> bool) -> Option<(&str, &E)> {
        self.exact(name).or_else(|| self.glob(name, denies))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &E)> {
        self.exact.iter().chain(&self.globs).map(|(name, entry)| (name.as_str(), entry))
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn globs() {
        for (pattern, name, wanted) in [
            ("*", "", true),
            ("*", "anything/at all", true),
            ("prod-*", "prod-", true),
            ("prod-*", "prod", false),
            ("*-api", "prod-api", true),
            ("*-api", "prod-api-2", false),
            ("a*b*c", "abbbc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a**a", "aXa", true),
            ("a", "ab", false),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
