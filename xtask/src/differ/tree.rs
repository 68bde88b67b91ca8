//! Two trees of what a client sees, compared: where they differ, what the stock has there, what we have.

use std::collections::BTreeSet;

use serde_json::Value;

/// One place where the trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Names from the root on, with slashes.
    pub(super) path: String,
    /// `None` when it has nothing there.
    pub(super) stock: Option<String>,
    pub(super) ours: Option<String>,
}

/// All differences, in order of their paths.
pub(super) fn compare(stock: &Value, ours: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", stock, ours, &mut found);
    found
}

fn walk(path: &str, stock: &Value, ours: &Value, found: &mut Vec<Difference>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    match (stock, ours) {
        (a, b) if a == b => {}
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                match (a.get(name), b.get(name)) {
                    (Some(a), Some(b)) => walk(&below(name), a, b, found),
                    (a, b) => found.push(Difference { path: below(name), stock: a.map(text), ours: b.map(text) }),
                }
            }
        }
        // What came, came in an order: only what one of them lacks is a difference.
        (Value::Array(a), Value::Array(b)) => {
            for (stock, ours) in unmatched(a, b) {
                found.push(Difference { path: path.to_owned(), stock: stock.map(text), ours: ours.map(text) });
            }
        }
        (a, b) => found.push(Difference { path: path.to_owned(), stock: Some(text(a)), ours: Some(text(b)) }),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Elements outside the longest common subsequence; those at the same place as a pair.
fn unmatched<'a>(a: &'a [Value], b: &'a [Value]) -> Vec<(Option<&'a Value>, Option<&'a Value>)> {
    let mut common = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = if a[i] == b[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < a.len()
            && j < b.len()
            && common[i + 1][j] == common[i][j + 1]
            && common[i + 1][j + 1] == common[i][j]
        {
            found.push((Some(&a[i]), Some(&b[j])));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            found.push((Some(&a[i]), None));
            i += 1;
        } else {
            found.push((None, Some(&b[j])));
            j += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(stock: &Value, ours: &Value) -> Vec<String> {
        let side = |side: Option<String>| side.unwrap_or_else(|| "-".into());
        compare(stock, ours).into_iter().map(|d| format!("{}: {} | {}", d.path, side(d.stock), side(d.ours))).collect()
    }

    #[test]
    fn equal_trees_have_no_difference() {
        let tree = json!({"a": [1, {"b": null}], "c": "d"});
        assert!(compare(&tree, &tree.clone()).is_empty());
    }

    #[test]
    fn a_difference_has_its_path_and_both_sides() {
        let (stock, ours) = (json!({"a": {"b": 1, "c": "x"}, "e": true}), json!({"a": {"b": 2, "d": "y"}, "e": true}));
        assert_eq!(told(&stock, &ours), ["a/b: 1 | 2", "a/c: x | -", "a/d: - | y"]);
    }

    #[test]
    fn of_lists_only_what_one_lacks_is_told() {
        assert_eq!(told(&json!(["a", "b", "c"]), &json!(["a", "c", "d"])), [": b | -", ": - | d"]);
        assert_eq!(told(&json!(["a", "b", "c"]), &json!(["a", "x", "c"])), [": b | x"]);
        assert_eq!(told(&json!([]), &json!(["x"])), [": - | x"]);
    }

    #[test]
    fn kinds_that_differ_are_told_whole() {
        assert_eq!(told(&json!({"a": null}), &json!({"a": [1]})), ["a: null | [1]"]);
    }
}
