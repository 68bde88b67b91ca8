//! Circles: files of a crate that lead back to each other. How large the largest may be in each crate can only fall.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{
    limits::{self, CIRCLE},
    names::Names,
};
use crate::edges::PURE;

/// Most files of a circle; pure crates have none.
const FILES: usize = 4;

/// What every crate should come to.
fn goal(place: &str) -> usize {
    let pure = place.strip_prefix("crates/").is_some_and(|name| PURE.contains(&name));
    if pure { 0 } else { FILES }
}

/// What can be reached from here.
fn reached<'a>(arrows: &BTreeMap<&'a str, Vec<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(arrows.get(at).into_iter().flatten().filter(|to| found.insert(**to)));
    }
    found
}

/// The circles of a crate, the largest first.
pub(super) fn circles(names: &Names) -> Vec<BTreeSet<&str>> {
    let mut arrows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in names.keys() {
        arrows.entry(from).or_default().push(to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|from| (*from, reached(&arrows, from))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (from, to) in &reach {
        if to.contains(from) && !found.iter().any(|circle| circle.contains(from)) {
            found.push(
                to.iter().copied().filter(|other| reach.get(other).is_some_and(|back| back.contains(from))).collect(),
            );
        }
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// What holds the circle together: arrows whose names would have to go, as few names as were found. An order of the
/// files is improved step by step; the arrows that run against it are the cut.
fn cut<'a>(names: &'a Names, circle: &BTreeSet<&'a str>) -> Vec<(&'a str, &'a str, &'a BTreeSet<String>)> {
    let arrows: Vec<_> = names
        .iter()
        .filter(|((from, to), _)| circle.contains(from.as_str()) && circle.contains(to.as_str()))
        .map(|((from, to), names)| (from.as_str(), to.as_str(), names))
        .collect();
    let mut order: Vec<&str> = circle.iter().copied().collect();
    // What it costs that one file stands above another: the names that the lower one takes from the upper one.
    let cost = |upper: &str, lower: &str| {
        names.get(&(lower.to_owned(), upper.to_owned())).map_or(0, BTreeSet::len).cast_signed()
    };
    loop {
        let mut moved = false;
        for at in 0..order.len() {
            let file = order[at];
            // The change when the file moves past its neighbours, one after the other, and the best of them.
            let (mut best, mut place) = (0, at);
            for (to, change) in
                [(0..at).rev().collect::<Vec<_>>(), (at + 1..order.len()).collect()].into_iter().flat_map(|way| {
                    way.into_iter().scan(0, |sum, to| {
                        let other = order[to];
                        let up = cost(file, other) - cost(other, file);
                        *sum += if to < at { up } else { -up };
                        Some((to, *sum))
                    })
                })
            {
                if change < best {
                    (best, place) = (change, to);
                }
            }
            if place != at {
                order.remove(at);
                order.insert(place, file);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let place: BTreeMap<&str, usize> = order.iter().enumerate().map(|(at, file)| (*file, at)).collect();
    arrows.into_iter().filter(|(from, to, _)| place[from] > place[to]).collect()
}

/// A circle in words: its files, and the arrows that would open it.
pub(super) fn told(place: &str, names: &Names, circle: &BTreeSet<&str>) -> String {
    let short =
        |file: &str| file.strip_prefix(place).and_then(|rest| rest.strip_prefix("/src/")).unwrap_or(file).to_owned();
    let files: Vec<String> = circle.iter().map(|file| short(file)).collect();
    let mut text = format!("{place}: {} files are a circle: {}", circle.len(), files.join(", "));
    for (from, to, names) in cut(names, circle) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // Writing to a string does not fail.
        let _ = write!(text, "\n    open it at {} -> {}: {}", short(from), short(to), names.join(", "));
    }
    text
}

/// The crates that have larger circles than they should, with the files of the largest.
pub(super) fn count(crates: &BTreeMap<String, Names>) -> BTreeMap<String, usize> {
    let largest = crates.iter().map(|(place, names)| (place, circles(names).first().map_or(0, BTreeSet::len)));
    largest
        .filter(|(place, size)| *size > goal(place))
        .map(|(place, size)| (format!("{CIRCLE}{place}"), size))
        .collect()
}

/// Circles that are larger than the file allows, and lines that the tree no longer needs.
pub(super) fn compare(crates: &BTreeMap<String, Names>, file: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    let counts = count(crates);
    for (place, names) in crates {
        let listed = file.get(&format!("{CIRCLE}{place}")).copied();
        let allowed = listed.unwrap_or_else(|| goal(place));
        let large = circles(names).into_iter().filter(|circle| circle.len() > allowed);
        wrong.extend(large.map(|circle| format!("{}\n    at most {allowed} may be", told(place, names, &circle))));
    }
    for (key, listed) in file.iter().filter(|(key, _)| key.starts_with(CIRCLE)) {
        let size = counts.get(key).copied().unwrap_or(0);
        if *listed > size + limits::slack(size) || size == 0 {
            wrong.push(format!(
                "{} says {key} {listed}, and fewer are needed: run `cargo xtask lint --update`",
                limits::FILE
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrows as `from to names…`.
    fn names(place: &str, arrows: &[&str]) -> Names {
        let path = |name: &str| format!("{place}/src/{name}.rs");
        let arrow = |text: &&str| {
            let mut words = text.split(' ');
            let (from, to) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            ((path(from), path(to)), words.map(str::to_owned).collect())
        };
        arrows.iter().map(arrow).collect()
    }

    #[test]
    fn files_that_lead_back_to_each_other_are_a_circle_and_the_fewest_names_open_it() {
        type Case = (&'static str, &'static [&'static str], &'static [usize], &'static [&'static str]);
        let table: &[Case] = &[
            ("a chain", &["a b X", "b c Y", "a c Z"], &[], &[]),
            ("two", &["a b X Y", "b a Z"], &[2], &["b -> a"]),
            ("three, with one that only uses them", &["a b X Y", "b c X Y", "c a Z", "d a X"], &[3], &["c -> a"]),
            (
                "two circles that share no file",
                &["a b X", "b a Y Z", "b c X", "c d X", "d e X", "e c X Y"],
                &[3, 2],
                &["c -> d", "d -> e"],
            ),
            ("two that share one are one", &["a b X", "b a Y Z", "b c X Y", "c b X"], &[3], &["a -> b", "c -> b"]),
        ];
        for (what, arrows, sizes, cuts) in table {
            let names = names("crates/a", arrows);
            let circles = circles(&names);
            assert_eq!(circles.iter().map(BTreeSet::len).collect::<Vec<_>>(), *sizes, "{what}");
            let Some(first) = circles.first() else { continue };
            let text = told("crates/a", &names, first).replace(".rs", "");
            let opened: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("open it at ")).collect();
            // Of cuts that cost the same, either may be shown.
            let fits = |line: &&str| cuts.iter().any(|cut| line.starts_with(*cut));
            assert!(!opened.is_empty() && opened.iter().all(fits), "{what}: {text}");
        }
    }

    #[test]
    fn a_circle_may_not_grow_and_pure_crates_may_have_none_that_the_file_does_not_name() {
        let two = ["a b X", "b a Y"];
        let five = ["a b X", "b c X", "c d X", "d e X", "e a X"];
        let of = |place: &str, arrows: &[&str]| BTreeMap::from([(place.to_owned(), names(place, arrows))]);
        let file = |key: &str, n: usize| BTreeMap::from([(key.to_owned(), n)]);
        let none = BTreeMap::new();
        assert_eq!(compare(&of("crates/api", &two), &none), Vec::<String>::new());
        assert!(
            compare(&of("crates/model", &two), &none)[0]
                .starts_with("crates/model: 2 files are a circle: a.rs, b.rs\n")
        );
        assert_eq!(compare(&of("crates/model", &two), &file("circle crates/model", 2)), Vec::<String>::new());
        assert!(compare(&of("crates/api", &five), &none)[0].ends_with("at most 4 may be"));
        assert_eq!(compare(&of("crates/api", &five), &file("circle crates/api", 5)), Vec::<String>::new());
        assert!(compare(&of("crates/api", &two), &file("circle crates/api", 5))[0].contains("fewer are needed"));
        assert!(compare(&BTreeMap::new(), &file("circle crates/gone", 5))[0].contains("circle crates/gone 5"));
        assert_eq!(count(&of("crates/api", &five)), file("circle crates/api", 5));
        assert_eq!(count(&of("crates/api", &two)), none);
    }
}
