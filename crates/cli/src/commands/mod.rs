//! One file per verb. What they share is here: flags of the connection, looking identifiers up by prefix, errors for people.

pub(crate) mod agent_info;
pub(crate) mod alloc;
pub(crate) mod alloc_checks;
pub(crate) mod alloc_exec;
mod alloc_follow;
pub(crate) mod alloc_fs;
pub(crate) mod alloc_logs;
pub(crate) mod cause;
pub(crate) mod complete;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod deployment;
pub(crate) mod driver;
pub(crate) mod eval;
pub(crate) mod fmt;
pub(crate) mod job;
pub(crate) mod job_file;
pub(crate) mod monitor;
pub(crate) mod namespace;
pub(crate) mod node;
mod node_drain;
mod node_meta;
mod node_pool;
pub(crate) mod operator;
pub(crate) mod placement;
pub(crate) mod remote;
mod resolve;
pub(crate) mod server;
pub(crate) mod service;
mod signals;
mod stats;
pub(crate) mod status;
pub(crate) mod system;
pub(crate) mod version;

use anyhow::{Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{conn::Conn, help::CONNECTION};

/// How to reach the API. Flags win over `DROVER_*`, which win over `NOMAD_*`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ApiArgs {
    /// Address of the agent [env: DROVER_ADDR, NOMAD_ADDR] [default: http://127.0.0.1:4646]
    #[arg(long, global = true, help_heading = CONNECTION, value_name = "URL")]
    pub(crate) address: Option<String>,
    /// Region to ask [env: DROVER_REGION, NOMAD_REGION]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) region: Option<String>,
    /// Namespace to ask, `*` for all where a list is asked for [env: DROVER_NAMESPACE, NOMAD_NAMESPACE]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) namespace: Option<String>,
    /// Secret of a token [env: DROVER_TOKEN, NOMAD_TOKEN]
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) token: Option<String>,
    /// No colours
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub(crate) no_color: bool,
}

impl ApiArgs {
    /// Opens the connection (nothing is sent yet).
    ///
    /// # Errors
    /// When the address cannot be understood.
    pub(crate) fn conn(&self) -> Result<Conn> {
        if self.no_color {
            crate::output::plain();
        }
        Conn::open(self)
    }
}

/// Which rows of a list.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Page {
    /// Only what an expression picks, such as `Status == "ready"`
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Rows at once
    #[arg(long, value_name = "NUMBER")]
    per_page: Option<u32>,
    /// Where to go on, as the last page has said
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
}

impl Page {
    /// These rows of the list, and where the next ones begin; empty when these are the last.
    pub(crate) async fn of<T: DeserializeOwned>(&self, conn: &Conn, path: &str) -> Result<(Vec<T>, String)> {
        conn.page(&self.path(path)).await
    }
    fn path(&self, path: &str) -> String {
        let number = self.per_page.map(|n| n.to_string());
        let mut path = path.to_owned();
        for (key, value) in [("filter", &self.filter), ("per_page", &number), ("next_token", &self.page_token)] {
            if let Some(value) = value {
                path.push(if path.contains('?') { '&' } else { '?' });
                path.push_str(&format!("{key}={}", crate::conn::encode(value)));
            }
        }
        path
    }
    /// Says how to go on.
    pub(crate) fn rest(next: &str) {
        if !next.is_empty() {
            crate::output::note(&format!("There is more: say -page-token {next} for the next rows."));
        }
    }
}

/// What is shown of an object: `-json`, or text.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Shape {
    /// Print the object as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print identifiers in full and more details
    #[arg(long)]
    pub(crate) verbose: bool,
}

impl Shape {
    /// An identifier as it is shown.
    pub(crate) fn id(&self, id: impl std::fmt::Display) -> String {
        let text = id.to_string();
        if self.verbose { text } else { text.chars().take(8).collect() }
    }
}

/// A value of an object as a cell or after an equal sign.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The pairs of a map, or that there are none.
pub(crate) fn print_map(map: &Value, nothing: &str) {
    let rows: Vec<(&str, String)> = map.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), cell(v))).collect();
    if rows.is_empty() { crate::output::line(nothing) } else { crate::output::pairs(&rows) }
}

/// A short identifier as the API's lists take it: UUID prefixes need an even number of digits.
pub(crate) fn id_prefix(text: &str) -> Result<String> {
    let clean = text.trim_end_matches('*').to_ascii_lowercase();
    if clean.len() < 2 || !clean.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        bail!("{text:?} is not an identifier: give at least two hexadecimal digits of it");
    }
    let digits = clean.chars().filter(|c| *c != '-').count();
    let keep = if digits % 2 == 1 && clean.len() < 36 { clean.len() - 1 } else { clean.len() };
    Ok(clean[..keep].to_owned())
}

/// The only object of a list whose identifier begins with a prefix. Where several do, the error shows them as `table` does.
pub(crate) async fn find_by_prefix<T: DeserializeOwned>(
    conn: &Conn,
    list: &str,
    prefix: &str,
    what: &str,
    id: impl Fn(&T) -> String,
    table: impl Fn(Vec<T>) -> crate::output::Table,
) -> Result<T> {
    let asked = id_prefix(prefix)?;
    let all: Vec<T> = conn.get(&format!("{list}?prefix={asked}&namespace=*")).await?;
    one_of(all, prefix, what, id, table)
}

/// The one whose identifier begins so.
fn one_of<T>(
    all: Vec<T>,
    prefix: &str,
    what: &str,
    id: impl Fn(&T) -> String,
    table: impl Fn(Vec<T>) -> crate::output::Table,
) -> Result<T> {
    let wanted = prefix.trim_end_matches('*').to_ascii_lowercase();
    let mut found: Vec<T> = all.into_iter().filter(|o| id(o).starts_with(&wanted)).collect();
    match (found.len(), found.pop()) {
        (1, Some(one)) => Ok(one),
        (_, None) => bail!("no {what} begins with {prefix:?}"),
        (count, Some(last)) => {
            found.push(last);
            let table = table(found).render().join("\n");
            bail!("{count} {what}s begin with {prefix:?}, give more of the identifier:\n{table}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::id_prefix;

    #[test]
    fn prefixes_have_an_even_number_of_digits() {
        assert_eq!(id_prefix("abcde").expect("hex"), "abcd");
        assert_eq!(id_prefix("ABCD").expect("hex"), "abcd");
        assert!(id_prefix("x").is_err());
        assert!(id_prefix("web").is_err());
    }

    #[test]
    fn identifiers_that_are_not_clear_are_shown_as_a_table() {
        let table = |all: Vec<&str>| {
            let mut table = crate::output::Table::new(["ID"]);
            all.into_iter().for_each(|id| table.row([id.to_owned()]));
            table
        };
        let one_of = |prefix| super::one_of(vec!["abcd", "abce", "b000"], prefix, "thing", |o| (*o).to_owned(), table);
        assert_eq!(one_of("b").expect("one"), "b000");
        assert_eq!(one_of("ABCD").expect("one"), "abcd");
        assert_eq!(one_of("c").expect_err("none").to_string(), "no thing begins with \"c\"");
        assert_eq!(
            one_of("abc*").expect_err("two").to_string(),
            "2 things begin with \"abc*\", give more of the identifier:\nID\nabcd\nabce"
        );
    }

    #[test]
    fn pages_are_asked_for_in_the_query() {
        let page = super::Page { filter: Some("Name == \"a b\"".into()), per_page: Some(5), page_token: None };
        assert_eq!(page.path("/v1/nodes"), "/v1/nodes?filter=Name%20%3D%3D%20%22a%20b%22&per_page=5");
        let page = super::Page { page_token: Some("t".into()), ..super::Page::default() };
        assert_eq!(page.path("/v1/nodes?os=true"), "/v1/nodes?os=true&next_token=t");
    }
}
