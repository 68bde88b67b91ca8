//! "Did you mean": the nearest of the names that would have been right.

use crate::diag::Diagnostic;

/// Adds a hint naming the candidate nearest to `given`, when one is near.
pub fn did_you_mean<'a>(
    diagnostic: Diagnostic,
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Diagnostic {
    match nearest(given, candidates) {
        Some(name) => diagnostic.hint(format!("did you mean {name:?}?")),
        None => diagnostic,
    }
}

/// The candidate nearest to `given` within a third of its length.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > 64 {
        return None;
    }
    let allowed = (given.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|c| c.len() <= 64)
        .map(|candidate| (distance(given, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, candidate)| (*distance, candidate.len()))
        .map(|(_, candidate)| candidate)
}

/// Edits from one to the other, a swap of neighbours counting once.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}
