//! `drover node config` and `drover node meta read|apply`: what a node is told while it runs.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::call;
use serde_json::{Map, Value, json};

use super::{ApiArgs, Format, resolve};
use crate::output;

/// Arguments of `node config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(flatten)]
    api: ApiArgs,
    /// Show the servers that the node knows
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
        #[command(flatten)]
        format: Format,
        /// Node by name or id prefix; default: the node of this agent
        #[arg(long, value_name = "NODE")]
        node_id: Option<String>,
    },
    /// Change the metadata of a node without a restart
    Apply {
        #[command(flatten)]
        api: ApiArgs,
        /// Node by name or id prefix; default: the node of this agent
        #[arg(long, value_name = "NODE")]
        node_id: Option<String>,
        /// Keys to remove
        #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
        unset: Vec<String>,
        /// Keys with values to set
        #[arg(value_name = "KEY=VALUE")]
        pairs: Vec<String>,
    },
}

/// Shows the servers.
pub(crate) async fn config(args: Config) -> Result<ExitCode> {
    let servers = args.api.conn()?.ask(call::agent_servers()).await?;
    for server in servers {
        output::line(&server);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a verb of `node meta`.
pub(crate) async fn run(command: Meta) -> Result<ExitCode> {
    match command {
        Meta::Read { api, format, node_id } => {
            let conn = api.conn()?;
            let call = call::node_meta().with_some("node_id", resolve::node_id(&conn, node_id.as_deref()).await?);
            if format.wanted() {
                return conn.show(&format, call).await;
            }
            let meta = conn.ask(call).await?;
            for (i, (title, key)) in
                [("All Meta", "Meta"), ("Dynamic Meta", "Dynamic"), ("Static Meta", "Static")].into_iter().enumerate()
            {
                if i > 0 {
                    output::line("");
                }
                output::line(&output::bold(title));
                let pairs = meta.get(key).cloned().flatten().unwrap_or_default();
                let rows: Vec<(&str, String)> = pairs
                    .iter()
                    .map(|(k, v)| (k.as_str(), v.clone().unwrap_or_else(|| "<unset>".to_owned())))
                    .collect();
                if rows.is_empty() { output::line("No metadata") } else { output::pairs(&rows) }
            }
            Ok(ExitCode::SUCCESS)
        }
        Meta::Apply { api, node_id, unset, pairs } => {
            let changes = changes(&unset, &pairs)?;
            let conn = api.conn()?;
            let node = resolve::node_id(&conn, node_id.as_deref()).await?;
            conn.tell(call::node_meta_apply(&json!({"Meta": changes})).with_some("node_id", node)).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The body of a change: null takes a key away.
fn changes(unset: &[String], pairs: &[String]) -> Result<Map<String, Value>> {
    let mut changes: Map<String, Value> =
        unset.iter().filter(|k| !k.is_empty()).map(|k| (k.clone(), Value::Null)).collect();
    for pair in pairs {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => changes.insert(key.to_owned(), json!(value)),
            _ => bail!("{pair:?} is not KEY=VALUE; to remove a key, use -unset KEY"),
        };
    }
    if changes.is_empty() {
        bail!("nothing to change; give KEY=VALUE or -unset KEY");
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
