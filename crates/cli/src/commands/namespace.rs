//! `drover namespace list|status|inspect`.

use std::process::ExitCode;

use anyhow::Result;
use api::call;

use super::{ApiArgs, Format, Page};
use crate::output;

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the namespaces
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        format: Format,
    },
    /// Show a namespace
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// The namespace
        name: String,
    },
    /// Print a namespace as JSON
    Inspect {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// The namespace
        name: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, page, format } => {
            let columns = [("Name", "Name"), ("Description", "Description")];
            super::node_pool::rows(&api.conn()?, &page, call::namespaces(), &format, &columns, "No namespaces", false)
                .await
        }
        Command::Inspect { api, format, name } => api.conn()?.show(&format, call::namespace(name)).await,
        Command::Status { api, format, name } if format.wanted() => {
            api.conn()?.show(&format, call::namespace(name)).await
        }
        Command::Status { api, name, .. } => {
            let ns = api.conn()?.ask(call::namespace(name)).await?;
            let list = |all: &[String], none: &str| if all.is_empty() { none.to_owned() } else { all.join(",") };
            let can = ns.capabilities.unwrap_or_default();
            output::pairs(&[
                ("Name", ns.name.to_string()),
                ("Description", ns.description),
                ("Quota", ns.quota),
                ("Enabled Drivers", list(&can.enabled_task_drivers, "*")),
                ("Disabled Drivers", list(&can.disabled_task_drivers, "")),
                ("Enabled Network Modes", list(&can.enabled_network_modes, "*")),
                ("Disabled Network Modes", list(&can.disabled_network_modes, "")),
            ]);
            if !ns.meta.is_empty() {
                output::heading("Metadata");
                super::print_map(&ns.meta, "No metadata");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
