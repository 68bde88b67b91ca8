//! `drover node config` and `drover node meta read|apply`: what a node is told while it runs.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::{ApiArgs, node::find};
use crate::{conn::Conn, output};

/// Arguments of `node config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(flatten)]
    api: ApiArgs,
    /// The servers that the node of this agent knows
    #[arg(long, required = true)]
    servers: bool,
}

/// Verbs of `node meta`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Meta {
    /// Show the metadata of a node
    Read {
        #[command(flatten)]
        api: ApiArgs,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        /// The node, by name or the beginning of its id; the one that this agent is without it
        #[arg(long, value_name = "NODE")]
        node_id: Option<String>,
    },
    /// Change metadata of a node, without a restart
    Apply {
        #[command(flatten)]
        api: ApiArgs,
        /// The node, by name or the beginning of its id; the one that this agent is without it
        #[arg(long, value_name = "NODE")]
        node_id: Option<String>,
        /// Keys to take away
        #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
        unset: Vec<String>,
        /// Keys with their values
        #[arg(value_name = "KEY=VALUE")]
        pairs: Vec<String>,
    },
}

/// Shows the servers.
pub(crate) async fn config(args: Config) -> Result<ExitCode> {
    let servers: Vec<String> = args.api.conn()?.get("/v1/agent/servers").await?;
    for server in servers {
        output::line(&server);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a verb of `node meta`.
pub(crate) async fn run(command: Meta) -> Result<ExitCode> {
    match command {
        Meta::Read { api, json, node_id } => {
            let conn = api.conn()?;
            let path = path(&conn, node_id.as_deref()).await?;
            if json {
                return conn.print(&path).await;
            }
            let meta: BTreeMap<String, Option<BTreeMap<String, Option<String>>>> = conn.get(&path).await?;
            for (i, (title, key)) in [("All Meta", "Meta"), ("Dynamic Meta", "Dynamic"), ("Static Meta", "Static")].into_iter().enumerate()
            {
                if i > 0 {
                    output::line("");
                }
                output::line(&output::bold(title));
                let pairs = meta.get(key).cloned().flatten().unwrap_or_default();
                let rows: Vec<(&str, String)> =
                    pairs.iter().map(|(k, v)| (k.as_str(), v.clone().unwrap_or_else(|| "<unset>".to_owned()))).collect();
                if rows.is_empty() { output::line("No metadata") } else { output::pairs(&rows) }
            }
            Ok(ExitCode::SUCCESS)
        }
        Meta::Apply { api, node_id, unset, pairs } => {
            let changes = changes(&unset, &pairs)?;
            let conn = api.conn()?;
            let path = path(&conn, node_id.as_deref()).await?;
            let _: Value = conn.put(&path, &json!({"Meta": changes})).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn path(conn: &Conn, node: Option<&str>) -> Result<String> {
    Ok(match node {
        Some(node) => format!("/v1/client/metadata?node_id={}", find(conn, Some(node), false).await?.id),
        None => "/v1/client/metadata".to_owned(),
    })
}

/// The body of a change: null takes a key away.
fn changes(unset: &[String], pairs: &[String]) -> Result<Map<String, Value>> {
    let mut changes: Map<String, Value> = unset.iter().filter(|k| !k.is_empty()).map(|k| (k.clone(), Value::Null)).collect();
    for pair in pairs {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => changes.insert(key.to_owned(), json!(value)),
            _ => bail!("{pair:?}: give KEY=VALUE, or -unset KEY to take one away"),
        };
    }
    if changes.is_empty() {
        bail!("say what to change: KEY=VALUE, or -unset KEY");
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn changes_set_and_take_away() {
        let got = changes(&["old".into()], &["rack=r2".into(), "empty=".into()]).expect("changes");
        assert_eq!(serde_json::to_string(&got).expect("JSON"), r#"{"empty":"","old":null,"rack":"r2"}"#);
        assert!(changes(&[], &[]).is_err() && changes(&[], &["x".into()]).is_err());
    }
}
