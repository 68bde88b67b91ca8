//! Cutting a page out of a list: the filter runs first, the token names the first row of the next page.
//!
//! A list that is read in its order from where the page begins costs what the page holds ([`start`], [`cut`]); any
//! other is sorted first ([`page`]).

use serde::Serialize;

use crate::{
    filter::EvalError,
    query::{ListOptions, QueryError},
};

/// The key that sorts a list and marks where a page continues.
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

/// Sorts rows by their key and cuts a page. Rows are filtered in their serialised form, lazily: rows beyond the page
/// are not looked at.
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
    cut(keyed.into_iter().map(|(_, row)| row), options, key)
}

/// Where the page begins that is asked for; None = at the beginning of the list.
///
/// # Errors
/// When the token is not one of such a list.
pub fn start<K: PageKey>(options: &ListOptions) -> Result<Option<K>, PageError> {
    if options.next_token.is_empty() {
        return Ok(None);
    }
    let key = K::from_token(&options.next_token).ok_or_else(|| QueryError::Token(options.next_token.clone()))?;
    Ok(Some(key))
}

/// Cuts a page out of rows that come in the order of the list, the last first when that is asked for. What comes
/// before the page is passed over: rows that begin at [`start`] cost nothing here. No row beyond the first one of the
/// next page is asked for.
///
/// # Errors
/// When the token or the filter cannot be used.
pub fn cut<T: Serialize, K: PageKey>(
    rows: impl IntoIterator<Item = T>,
    options: &ListOptions,
    key: impl Fn(&T) -> K,
) -> Result<Page<T>, PageError> {
    // Until it was met: a token whose row is gone continues at the first row that is not before it.
    let mut start: Option<K> = start(options)?;
    let mut page = Page { rows: Vec::new(), next_token: None };
    for row in rows {
        if let Some(from) = &start {
            let at = key(&row);
            if if options.reverse { at > *from } else { at < *from } {
                continue;
            }
            start = None;
        }
        if let Some(filter) = &options.filter
            && !filter.matches(&row)?
        {
            continue;
        }
        if options.per_page > 0 && page.rows.len() == options.per_page {
            page.next_token = Some(key(&row).to_token());
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

    fn sorted(rows: &[u64], query: &str) -> Result<Page<u64>, PageError> {
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
            let page = sorted(&[3, 1, 5, 2, 4], query).expect(query);
            assert_eq!((page.rows, page.next_token.as_deref()), (rows, token), "{query}");
        }
        assert_eq!(sorted(&[], "filter=Nope==1").expect("no row was looked at").rows, [0u64; 0]);
        assert!(
            sorted(&[1], "next_token=nonsense")
                .expect_err("bad token")
                .to_string()
                .starts_with("failed to create result paginator: invalid next_token")
        );
    }

    #[test]
    fn a_page_asks_for_its_own_rows_and_one_more() {
        for (query, asked) in [("per_page=10", 11), ("per_page=10&filter=Even%20%3D%3D%20true", 21), ("", 1_000)] {
            let options = ListOptions::parse(&Query::parse(query).expect("query")).expect("options");
            let mut count = 0;
            let rows = (0..1_000_u64).map(|n| json!({"N": n, "Even": n % 2 == 0})).inspect(|_| count += 1);
            cut(rows, &options, |v: &Value| v["N"].as_u64().expect("number").to_string()).expect("page");
            assert_eq!(count, asked, "{query}");
        }
    }

    proptest! {
        #[test]
        fn pages_together_are_the_list(rows in prop::collection::btree_set(0u64..50, 0..20), per_page in 1usize..6,
            reverse: bool) {
            let rows: Vec<u64> = rows.into_iter().collect();
            let mut seen = Vec::new();
            let mut token = String::new();
            loop {
                let page = sorted(&rows,
                    &format!("per_page={per_page}&reverse={reverse}&next_token={token}")).expect("page");
                seen.extend(page.rows);
                match page.next_token { Some(t) => token = t, None => break }
            }
            if reverse { seen.reverse(); }
            prop_assert_eq!(seen, rows);
        }
    }
}
