//! `drover namespace list|status|inspect`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::{ApiArgs, Page};
use crate::{conn::encode, output};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the namespaces
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a namespace
    Status {
        #[command(flatten)]
        api: ApiArgs,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        /// The namespace
        name: String,
    },
    /// Print a namespace as JSON
    Inspect {
        #[command(flatten)]
        api: ApiArgs,
        /// The namespace
        name: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, page, json } => {
            let columns = [("Name", "Name"), ("Description", "Description")];
            super::node_pool::rows(&api.conn()?, &page, "/v1/namespaces", json, &columns, "No namespaces", false).await
        }
        Command::Inspect { api, name } | Command::Status { api, json: true, name } => {
            api.conn()?.print(&format!("/v1/namespace/{}", encode(&name))).await
        }
        Command::Status { api, json: false, name } => {
            let ns: Value = api.conn()?.get(&format!("/v1/namespace/{}", encode(&name))).await?;
            let list = |value: &Value, none: &str| {
                let all: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                if all.is_empty() { none.to_owned() } else { all.join(",") }
            };
            let can = &ns["Capabilities"];
            output::pairs(&[
                ("Name", super::cell(&ns["Name"])),
                ("Description", super::cell(&ns["Description"])),
                ("Quota", super::cell(&ns["Quota"])),
                ("Enabled Drivers", list(&can["EnabledTaskDrivers"], "*")),
                ("Disabled Drivers", list(&can["DisabledTaskDrivers"], "")),
                ("Enabled Network Modes", list(&can["EnabledNetworkModes"], "*")),
                ("Disabled Network Modes", list(&can["DisabledNetworkModes"], "")),
            ]);
            if ns["Meta"].as_object().is_some_and(|m| !m.is_empty()) {
                output::heading("Metadata");
                super::print_map(&ns["Meta"], "No metadata");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
