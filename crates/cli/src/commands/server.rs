//! `drover server members`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use api::{call, go_json::from_value, shapes::Members};
use serde_json::Value;

use super::{ApiArgs, Format, pages::Also};
use crate::output::{self, Table};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the servers
    Members {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Include the protocol version and all tags
        #[arg(long, alias = "verbose")]
        detailed: bool,
        #[command(flatten)]
        also: Also,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Members { api, format, detailed, also } = command;
    let conn = api.conn()?;
    also.open(&conn, "servers").await;
    let members: Value = conn.ask(call::agent_members().reading()).await?;
    if format.wanted() {
        format.print(&members)?;
        return Ok(ExitCode::SUCCESS);
    }
    let leader = conn.ask(call::leader()).await?;
    let members = from_value::<Members>(members).context("the servers")?.members;
    let mut header = vec!["Name", "Address", "Port", "Status", "Leader"];
    header.extend(detailed.then_some("Protocol"));
    header.extend(["Raft Version", "Build", "Datacenter", "Region"]);
    header.extend(detailed.then_some("Tags"));
    let mut table = Table::new(header);
    for m in &members {
        let tag = |name: &str| m.tags.get(name).cloned().unwrap_or_else(|| "null".to_owned());
        // The tag holds the RPC port; the member's own port is for gossip, which there is none of.
        let is_leader = leader == format!("{}:{}", m.addr, tag("port"));
        let mut row = vec![m.name.clone(), m.addr.clone(), m.port.to_string(), m.status.clone(), is_leader.to_string()];
        row.extend(detailed.then(|| m.protocol_cur.to_string()));
        row.extend(["raft_vsn", "build", "dc", "region"].map(tag));
        row.extend(detailed.then(|| {
            let all: Vec<String> = m.tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
            all.join(",")
        }));
        table.row(row);
    }
    table.print();
    for m in &members {
        if let Some(what) = m.tags.get("exposed") {
            output::note(&format!("{} listens {what}", m.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}
