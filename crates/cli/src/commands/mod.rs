//! One file per verb. What they share is here: looking identifiers up by prefix, errors for people.

pub(crate) mod acl;
mod acl_auth_method;
mod acl_binding_rule;
mod acl_policy;
mod acl_role;
mod acl_shared;
mod acl_token;
pub(crate) mod agent_info;
pub(crate) mod agent_monitor;
pub(crate) mod alloc;
pub(crate) mod alloc_checks;
pub(crate) mod alloc_exec;
mod alloc_follow;
pub(crate) mod alloc_fs;
pub(crate) mod alloc_logs;
mod alloc_show;
mod alloc_table;
pub(crate) mod cause;
pub(crate) mod complete;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod deployment;
mod device_stats;
pub(crate) mod driver;
pub(crate) mod eval;
mod eval_explain;
pub(crate) mod fmt;
pub(crate) mod format;
pub(crate) mod job;
pub(crate) mod job_file;
pub(crate) mod login;
mod login_callback;
pub(crate) mod monitor;
pub(crate) mod namespace;
pub(crate) mod node;
mod node_drain;
mod node_identity;
mod node_meta;
mod node_pool;
mod node_preview;
mod node_show;
pub(crate) mod operator;
mod operator_debug;
mod operator_keyring;
mod operator_recover;
mod operator_servers;
mod operator_store;
pub(crate) mod pages;
pub(crate) mod placement;
mod promotion;
pub(crate) mod remote;
mod resolve;
mod rolling;
pub(crate) mod scaling;
pub(crate) mod server;
pub(crate) mod service;
mod signals;
pub(crate) mod snapshot;
mod spec_file;
mod stats;
pub(crate) mod status;
pub(crate) mod system;
pub(crate) mod tls;
pub(crate) mod ui;
pub(crate) mod var;
mod var_lock;
mod var_lock_guard;
mod var_show;
mod var_spec;
pub(crate) mod version;
pub(crate) mod volume;
mod which_job;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use api::Call;
pub(crate) use format::Format;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use crate::conn::ApiArgs;
use crate::conn::Conn;

/// Which rows of a list.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Page {
    /// Filter by an expression, such as `Status == "ready"`
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Number of rows per page
    #[arg(long, value_name = "NUMBER")]
    per_page: Option<u32>,
    /// Start of the page: the token that the previous page printed
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
}

impl Page {
    /// These rows of the list, and where the next ones begin; empty when these are the last.
    pub(crate) async fn of<T: DeserializeOwned>(&self, conn: &Conn, list: Call<Vec<T>>) -> Result<(Vec<T>, String)> {
        conn.page(self.narrowed(list)).await
    }
    /// Prints these rows as the flags say; where the next ones begin.
    pub(crate) async fn show<T>(&self, conn: &Conn, format: &Format, list: Call<Vec<T>>) -> Result<String> {
        let (rows, next) = self.of::<Value>(conn, list.reading()).await?;
        format.print(&rows)?;
        Ok(next)
    }
    /// Not all rows are asked for.
    pub(crate) fn narrows(&self) -> bool {
        self.filter.is_some() || self.page_token.is_some()
    }
    fn narrowed<T>(&self, list: Call<T>) -> Call<T> {
        let list = list.with_some("filter", self.filter.as_deref()).with_some("per_page", self.per_page);
        list.with_some("next_token", self.page_token.as_deref())
    }
    /// Says how to go on.
    pub(crate) fn rest(next: &str) {
        if !next.is_empty() {
            crate::output::note(&format!("There is more: say -page-token {next} for the next rows."));
        }
    }
}

/// What is shown of an object: text, or what programs read.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Shape {
    #[command(flatten)]
    pub(crate) format: Format,
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

/// Sorts a list of objects as Nomad's clients do.
pub(crate) fn newest_first(list: &mut Value) {
    if let Some(list) = list.as_array_mut() {
        list.sort_by_key(|object| std::cmp::Reverse(object["CreateIndex"].as_u64()));
    }
}

/// The pairs of a map, or that there are none.
pub(crate) fn print_map(map: &BTreeMap<String, String>, nothing: &str) {
    let rows: Vec<(&str, String)> = map.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    if rows.is_empty() { crate::output::line(nothing) } else { crate::output::pairs(&rows) }
}

/// A short identifier as the API's lists take it: UUID prefixes need an even number of digits.
pub(crate) fn id_prefix(text: &str) -> Result<String> {
    let clean = text.trim_end_matches('*').to_ascii_lowercase();
    if clean.len() < 2 || !clean.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        bail!("{text:?} is not an id: give at least its first two hexadecimal digits");
    }
    let digits = clean.chars().filter(|c| *c != '-').count();
    let keep = if digits % 2 == 1 && clean.len() < 36 { clean.len() - 1 } else { clean.len() };
    Ok(clean[..keep].to_owned())
}

/// The only object of a list whose identifier begins with a prefix. Where several do, the error shows them as `table`
/// does.
pub(crate) async fn find_by_prefix<T: DeserializeOwned>(
    conn: &Conn,
    list: Call<Vec<T>>,
    prefix: &str,
    what: &str,
    id: impl Fn(&T) -> String,
    table: impl Fn(Vec<T>) -> crate::output::Table,
) -> Result<T> {
    let asked = id_prefix(prefix)?;
    let all = conn.ask(list.in_namespace("*").with("prefix", asked)).await?;
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
        (_, None) => bail!("no {what} id starts with {prefix:?}"),
        (count, Some(last)) => {
            found.push(last);
            let table = table(found).render().join("\n");
            bail!("{count} {what} ids start with {prefix:?}; give more of the id:\n{table}")
        }
    }
}

/// Asks on a terminal; where there is none, the answer is an instruction.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    use std::io::{BufRead, IsTerminal};
    if !std::io::stdin().is_terminal() {
        bail!("{question} Cannot ask without a terminal; use -yes");
    }
    crate::output::ask(&format!("{question} [y/N]"));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
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
        assert_eq!(one_of("c").expect_err("none").to_string(), "no thing id starts with \"c\"");
        assert_eq!(
            one_of("abc*").expect_err("two").to_string(),
            "2 thing ids start with \"abc*\"; give more of the id:\nID\nabcd\nabce"
        );
    }

    #[test]
    fn pages_are_asked_for_in_the_query() {
        let query = |page: super::Page| page.narrowed(api::call::nodes().with("os", true)).options().params.clone();
        let params =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let page = super::Page { filter: Some("Name == \"a b\"".into()), per_page: Some(5), page_token: None };
        assert_eq!(query(page), params(&[("os", "true"), ("filter", "Name == \"a b\""), ("per_page", "5")]));
        let page = super::Page { page_token: Some("t".into()), ..super::Page::default() };
        assert_eq!(query(page), params(&[("os", "true"), ("next_token", "t")]));
    }
}
