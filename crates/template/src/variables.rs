//! What templates ask of a store of variables.

use std::{collections::BTreeMap, fmt};

/// Which variables a template asks for: `PATH@NAMESPACE.REGION`, all but the path optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariableQuery {
    /// A path, or what paths begin with.
    pub path: String,
    /// In this namespace; none = the task's own, `*` = all.
    pub namespace: Option<String>,
    /// In this region; none = the task's own.
    pub region: Option<String>,
}

/// Where a variable is, and when it was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VariableMeta {
    /// Namespace.
    pub namespace: String,
    /// Path.
    pub path: String,
    /// Index of its creation.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// When it was created, Unix ns.
    pub create_time: i64,
    /// When it was last changed, Unix ns.
    pub modify_time: i64,
}

/// A variable with what it holds.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variable {
    /// Where it is, and when it was changed.
    pub meta: VariableMeta,
    /// The items.
    pub items: BTreeMap<String, String>,
}

/// Without its items: they may be secret.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("meta", &self.meta).field("items", &self.items.len()).finish()
    }
}

/// Reads a query for one variable, or with `many` for all whose paths begin so.
pub(crate) fn parse_query(text: &str, many: bool) -> Result<VariableQuery, String> {
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let (head, region) = match text.rsplit_once('.') {
        Some((head, region)) => (head, Some(region)),
        None => (text, None),
    };
    let (path, namespace) = match head.split_once('@') {
        Some((path, namespace)) => (path, Some(namespace)),
        None => (head, None),
    };
    // A slash before a path belongs to it no more than one behind it.
    let path = if many { path.strip_prefix('/').unwrap_or(path) } else { path.trim().trim_matches('/') };
    let in_path = |c: char| c.is_ascii_alphanumeric() || "-_~/".contains(c);
    let fine = path.chars().all(in_path)
        && (many || !path.is_empty())
        && namespace.is_none_or(|n| word(n) || (many && n == "*"))
        && region.is_none_or(word);
    if !fine {
        let what = if many { "the beginning of paths" } else { "the path" };
        return Err(format!(
            "{text:?} does not name variables: {}@NAMESPACE.REGION, all but {what} optional",
            if many { "PREFIX" } else { "PATH" },
        ));
    }
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Ok(VariableQuery { path: path.to_owned(), namespace: owned(namespace), region: owned(region) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_name_paths_and_more() {
        let query = |path: &str, namespace: Option<&str>, region: Option<&str>| VariableQuery {
            path: path.into(),
            namespace: namespace.map(Into::into),
            region: region.map(Into::into),
        };
        for (text, many, wanted) in [
            ("nomad/jobs/web", false, query("nomad/jobs/web", None, None)),
            ("/a/", false, query("a", None, None)),
            ("a@prod", false, query("a", Some("prod"), None)),
            ("a@prod.eu", false, query("a", Some("prod"), Some("eu"))),
            ("a.eu", false, query("a", None, Some("eu"))),
            ("", true, query("", None, None)),
            ("/a/", true, query("a/", None, None)),
            ("a@*", true, query("a", Some("*"), None)),
        ] {
            assert_eq!(parse_query(text, many), Ok(wanted), "{text}");
        }
        for (text, many) in
            [("", false), ("/", false), ("a b", false), ("a@", false), ("a@*", false), ("a.", false), ("a@b@c", true)]
        {
            parse_query(text, many).expect_err(text);
        }
    }
}
