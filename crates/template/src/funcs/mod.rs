//! The functions that templates call: one table, a file for each kind, and those that are refused with the reason.

mod builtin;
mod call;
mod collections;
mod math;
mod parse;
mod refused;
pub(crate) mod scratch;
mod secrets;
mod services;
mod sprig;
mod text;
mod variables;

pub(crate) use call::{Call, Function, Runs};
pub use refused::{REFUSED, Refused};
pub(crate) use secrets::NAMES as OF_VAULT;

const TABLES: [&[Function]; 9] = [
    builtin::TABLE,
    collections::TABLE,
    math::TABLE,
    parse::TABLE,
    secrets::TABLE,
    services::TABLE,
    sprig::TABLE,
    text::TABLE,
    variables::TABLE,
];

/// What a name stands for.
pub(crate) enum Found {
    Function(&'static Function),
    Refused(&'static str),
    /// No function; the nearest name, if one is near.
    Unknown(Option<&'static str>),
}

/// Looks a name up.
pub(crate) fn find(name: &str) -> Found {
    if let Some(function) = TABLES.iter().copied().flatten().find(|f| f.name == name) {
        return Found::Function(function);
    }
    if let Some(refused) = REFUSED.iter().find(|r| r.functions.contains(&name)) {
        return Found::Refused(refused.reason);
    }
    if name.starts_with("sprig_") {
        return Found::Refused("only a part of the sprig functions is here; docs/reference/templates.md lists it");
    }
    let near = function_names().map(|n| (distance(name, n), n)).min();
    Found::Unknown(near.filter(|(d, n)| *d <= 2 && *d < n.len()).map(|(_, n)| n))
}

/// Names of all functions that may be called.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().copied().flatten().map(|f| f.name)
}

/// Edits between two names, letter case aside; long names are far from everything.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let kept = row[j + 1];
            row[j + 1] = if x == y { before } else { 1 + before.min(row[j]).min(kept) };
            before = kept;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_once() {
        let mut names: Vec<&str> =
            function_names().chain(REFUSED.iter().flat_map(|r| r.functions.iter().copied())).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn near_names_are_offered() {
        for (given, near) in [("tolower", Some("toLower")), ("replacAll", Some("replaceAll")), ("utterlyUnknown", None)]
        {
            assert!(matches!(find(given), Found::Unknown(found) if found == near), "{given}");
        }
    }
}
