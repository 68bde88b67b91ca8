//! `drover namespace apply|delete|list|status|inspect`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use api::{
    call, go_json,
    shapes::{NamespaceLimits, NamespaceRecord, NamespaceUse},
};
use serde_json::{Value, json};

use super::{
    ApiArgs, Format, Page,
    spec_file::{self, Fields, Kind},
};
use crate::output;

/// What a file of a namespace may say.
const FIELDS: Fields = &[
    ("name", "Name", Kind::Text),
    ("description", "Description", Kind::Text),
    ("quota", "Quota", Kind::Text),
    ("meta", "Meta", Kind::Map),
    (
        "capabilities",
        "Capabilities",
        Kind::Block(&[
            ("enabled_task_drivers", "EnabledTaskDrivers", Kind::List),
            ("disabled_task_drivers", "DisabledTaskDrivers", Kind::List),
            ("enabled_network_modes", "EnabledNetworkModes", Kind::List),
            ("disabled_network_modes", "DisabledNetworkModes", Kind::List),
        ]),
    ),
    (
        "node_pool_config",
        "NodePoolConfiguration",
        Kind::Block(&[
            ("default", "Default", Kind::Text),
            ("allowed", "Allowed", Kind::List),
            ("denied", "Denied", Kind::List),
        ]),
    ),
    (
        "limits",
        "Limits",
        Kind::Block(&[
            ("allocations", "Allocations", Kind::Number),
            ("cpu", "CPU", Kind::Number),
            ("memory", "MemoryMB", Kind::Number),
            ("remote_tasks", "RemoteTasks", Kind::Number),
        ]),
    ),
    ("vault", "VaultConfiguration", Kind::Map),
    ("consul", "ConsulConfiguration", Kind::Map),
    ("required_extra_claims", "RequiredExtraClaims", Kind::Map),
    ("optional_extra_claims", "OptionalExtraClaims", Kind::Map),
];

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create or change a namespace
    ///
    /// A file replaces the whole namespace. A name changes what the flags say, and creates the namespace if needed.
    Apply {
        #[command(flatten)]
        api: ApiArgs,
        /// Free text, at most 256 bytes
        #[arg(long)]
        description: Option<String>,
        /// Name of a quota; quotas are a Nomad Enterprise feature, so the servers know none
        #[arg(long)]
        quota: Option<String>,
        /// The file holds the API's JSON instead of HCL
        #[arg(long)]
        json: bool,
        /// Name of the namespace, or a file that describes it; `-` reads standard input
        #[arg(value_name = "NAME|FILE")]
        what: String,
    },
    /// Delete a namespace that nothing uses
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// The namespace
        name: String,
    },
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
        Command::Apply { api, description, quota, json, what } => {
            let conn = api.conn()?;
            let file = what == "-" || std::path::Path::new(&what).is_file();
            if json && !file {
                bail!("-json reads a file, and there is no file {what:?}");
            }
            let mut namespace = match file {
                true => spec_file::read(&what, json, FIELDS)?,
                false => {
                    let known = conn.ask(call::namespaces().with("prefix", &what).reading::<Vec<Value>>()).await?;
                    let known = known.into_iter().find(|namespace| namespace["Name"] == *what);
                    known.unwrap_or_else(|| json!({ "Name": what }))
                }
            };
            if let Some(description) = description {
                namespace["Description"] = description.into();
            }
            if let Some(quota) = quota {
                namespace["Quota"] = quota.into();
            }
            let name = namespace["Name"].as_str().context("the file names no namespace: add name")?.to_owned();
            conn.tell(call::namespaces_put(&NamespaceRecord::default()).carrying(&namespace)).await?;
            output::line(&format!("Successfully applied namespace {name:?}!"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Delete { api, name } => {
            api.conn()?.tell(call::namespace_delete(&name)).await?;
            output::line(&format!("Successfully deleted namespace {name:?}!"));
            Ok(ExitCode::SUCCESS)
        }
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
            let value = api.conn()?.ask(call::namespace(name).reading::<Value>()).await?;
            let used: NamespaceUse = serde_json::from_value(value["Usage"].clone()).unwrap_or_default();
            let ns: NamespaceRecord = go_json::from_value(value).context("the server's answer is no namespace")?;
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
            if let Some(limits) = &ns.limits {
                output::heading("Limits");
                output::pairs(&limit_rows(limits, &used));
            }
            for (heading, entries) in [
                ("Metadata", &ns.meta),
                ("Required Extra Claims", &ns.required_extra_claims),
                ("Optional Extra Claims", &ns.optional_extra_claims),
            ] {
                if !entries.is_empty() {
                    output::heading(heading);
                    super::print_map(entries, "");
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What is used of each limit.
fn limit_rows(limits: &NamespaceLimits, used: &NamespaceUse) -> [(&'static str, String); 4] {
    let row = |limit: Option<i64>, used: i64, unit: &str| match limit {
        Some(limit) => format!("{used} of {limit}{unit}"),
        None => format!("{used}{unit}, no limit"),
    };
    [
        ("Allocations", row(limits.allocations, used.allocations, "")),
        ("CPU", row(limits.cpu, used.cpu, " MHz")),
        ("Memory", row(limits.memory_mb, used.memory_mb, " MiB")),
        ("Remote Tasks", row(limits.remote_tasks, used.remote_tasks, "")),
    ]
}
