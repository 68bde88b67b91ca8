//! Cutting a page out of a sorted list: the filter runs first, the token names the first row of the next page.

use serde::Serialize;

use crate::{
    filter::EvalError,
    query::{ListOptions, QueryError},
};

/// What lists are sorted and continued by.
pub trait PageKey: Ord {
    /// The key that a token stands for; None when it is not one.
    fn from_token(token: &str) -> Option<Self>
    where
        Self: Sized;
    /// The token that stands for the key.
    fn to_token(&self) -> String;
}

impl PageKey for String {
    fn from_token(token: &str) -> Option<Self> {
        Some(token.to_owned())
    }
    fn to_token(&self) -> String {
        self.clone()
    }
}

/// Namespace and id: `default.web`.
impl PageKey for (String, String) {
    fn from_token(token: &str) -> Option<Self> {
        // A namespace holds no dot, an id may.
        let (namespace, id) = token.split_once('.')?;
        Some((namespace.to_owned(), id.to_owned()))
    }
    fn to_token(&self) -> String {
        format!("{}.{}", self.0, self.1)
    }
}

/// Index and id: `12.8f2c…`.
impl PageKey for (u64, String) {
    fn from_token(token: &str) -> Option<Self> {
        let (index, id) = token.split_once('.')?;
        Some((index.parse().ok()?, id.to_owned()))
    }
    fn to_token(&self) -> String {
        format!("{}.{}", self.0, self.1)
    }
}

/// A part of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Where the next page begins; None = this was the last.
    pub next_token: Option<String>,
}

/// Why no page could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The request is wrong.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The filter does not fit the rows.
    #[error("failed to read result page: {0}")]
    Filter(#[from] EvalError),
}

/// Sorts rows by their key and cuts a page. Rows are filtered in their serialised form, lazily: rows beyond the page are not looked at.
///
/// # Errors
/// When the token or the filter cannot be used.
pub fn page<T: Serialize, K: PageKey>(
    rows: impl IntoIterator<Item = T>,
    options: &ListOptions,
    key: impl Fn(&T) -> K,
) -> Result<Page<T>, PageError> {
    let mut keyed: Vec<(K, T)> = rows.into_iter().map(|row| (key(&row), row)).collect();
    keyed.sort_by(|a, b| a.0.cmp(&b.0));
    if options.reverse {
        keyed.reverse();
    }
    let start = if options.next_token.is_empty() {
        None
    } else {
        Some(K::from_token(&options.next_token).ok_or_else(|| QueryError::Token(options.next_token.clone()))?)
    };
    let mut page = Page { rows: Vec::new(), next_token: None };
    for (key, row) in keyed {
        // A token whose row is gone continues at the first row that is not before it.
        if start.as_ref().is_some_and(|start| if options.reverse { key > *start } else { key < *start }) {
            continue;
        }
        if let Some(filter) = &options.filter
            && !filter.matches(&row)?
        {
            continue;
        }
        if options.per_page > 0 && page.rows.len() == options.per_page {
            page.next_token = Some(key.to_token());
            break;
        }
        page.rows.push(row);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::query::Query;

    fn cut(rows: &[u64], query: &str) -> Result<Page<u64>, PageError> {
        let options = ListOptions::parse(&Query::parse(query).expect("query"))?;
        let rows = rows.iter().map(|n| json!({"N": n, "Even": n % 2 == 0}));
        let n = |v: &Value| v["N"].as_u64().expect("number");
        let page = page(rows, &options, |v| (n(v), format!("id{}", n(v))))?;
        Ok(Page { rows: page.rows.iter().map(n).collect(), next_token: page.next_token })
    }

    #[test]
    fn pages() {
        for (query, rows, token) in [
            ("", vec![1, 2, 3, 4, 5], None),
            ("per_page=2", vec![1, 2], Some("3.id3")),
            ("per_page=2&next_token=3.id3", vec![3, 4], Some("5.id5")),
            ("per_page=2&next_token=5.id5", vec![5], None),
            ("per_page=5", vec![1, 2, 3, 4, 5], None),
            ("per_page=2&reverse=true", vec![5, 4], Some("3.id3")),
            ("per_page=2&reverse=true&next_token=3.id3", vec![3, 2], Some("1.id1")),
            ("next_token=4.a", vec![4, 5], None),
            ("next_token=4.z", vec![5], None),
            ("next_token=9.z", vec![], None),
            ("per_page=1&filter=Even%20%3D%3D%20true", vec![2], Some("4.id4")),
            ("per_page=-1", vec![1, 2, 3, 4, 5], None),
        ] {
            let page = cut(&[3, 1, 5, 2, 4], query).expect(query);
            assert_eq!((page.rows, page.next_token.as_deref()), (rows, token), "{query}");
        }
        assert_eq!(cut(&[], "filter=Nope==1").expect("no row was looked at").rows, [0u64; 0]);
        assert!(
            cut(&[1], "next_token=nonsense")
                .expect_err("bad token")
                .to_string()
                .starts_with("failed to create result paginator: invalid next_token")
        );
    }

    proptest! {
        #[test]
        fn pages_together_are_the_list(rows in prop::collection::btree_set(0u64..50, 0..20), per_page in 1usize..6, reverse: bool) {
            let rows: Vec<u64> = rows.into_iter().collect();
            let mut seen = Vec::new();
            let mut token = String::new();
            loop {
                let page = cut(&rows, &format!("per_page={per_page}&reverse={reverse}&next_token={token}")).expect("page");
                seen.extend(page.rows);
                match page.next_token { Some(t) => token = t, None => break }
            }
            if reverse { seen.reverse(); }
            prop_assert_eq!(seen, rows);
        }
    }
}
