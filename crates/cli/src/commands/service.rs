//! `drover service list|info|delete`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::shapes::NamespaceServices;
use model::ServiceRegistration;
use serde_json::Value;

use super::{ApiArgs, Shape};
use crate::{
    conn::{Conn, encode},
    output::{self, Table},
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Forget one place of a service; a node that still stands by it registers it again
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// The service
        service: String,
        /// Id of the place, as `service info -verbose` shows it
        id: String,
    },
    /// Show where a service is reached
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Only the places that an expression picks, such as `"blue" in Tags`
        #[arg(long)]
        filter: Option<String>,
        /// So many places, the same ones for the same key: NUMBER|KEY
        #[arg(long)]
        choose: Option<String>,
        /// The service
        service: String,
    },
    /// List services
    List {
        #[command(flatten)]
        api: ApiArgs,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, json } => list(&api.conn()?, json).await,
        Command::Info { api, shape, filter, choose, service } => {
            let mut path = format!("/v1/service/{}?", encode(&service));
            for (key, value) in [("filter", filter), ("choose", choose)] {
                if let Some(value) = value {
                    path.push_str(&format!("{key}={}&", encode(&value)));
                }
            }
            info(&api.conn()?, &shape, &service, path.trim_end_matches(['&', '?'])).await
        }
        Command::Delete { api, service, id } => {
            let _: Value = api.conn()?.delete(&format!("/v1/service/{}/{}", encode(&service), encode(&id))).await?;
            output::line(&format!("Successfully deleted service registration {id:?}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn list(conn: &Conn, json: bool) -> Result<ExitCode> {
    if json {
        return conn.print("/v1/services").await;
    }
    let namespaces: Vec<NamespaceServices> = conn.get("/v1/services").await?;
    let several = namespaces.len() > 1;
    let mut table = if several { Table::new(["Service Name", "Namespace", "Tags"]) } else { Table::new(["Service Name", "Tags"]) };
    for ns in &namespaces {
        for service in &ns.services {
            let tags = format!("[{}]", service.tags.join(","));
            if several {
                table.row([service.service_name.clone(), ns.namespace.to_string(), tags]);
            } else {
                table.row([service.service_name.clone(), tags]);
            }
        }
    }
    if table.is_empty() {
        output::line("No service registrations found");
    } else {
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}

/// The address with its port, when it has one.
fn address(r: &ServiceRegistration) -> String {
    match (r.port, r.address.contains(':')) {
        (0, _) => r.address.clone(),
        (port, true) => format!("[{}]:{port}", r.address),
        (port, false) => format!("{}:{port}", r.address),
    }
}

async fn info(conn: &Conn, shape: &Shape, name: &str, path: &str) -> Result<ExitCode> {
    if shape.json {
        return conn.print(path).await;
    }
    let places: Vec<ServiceRegistration> = conn.get(path).await?;
    if places.is_empty() {
        bail!("no place of service {name:?} is registered");
    }
    if !shape.verbose {
        let mut table = Table::new(["Job ID", "Address", "Tags", "Node ID", "Alloc ID"]);
        for r in &places {
            table.row([r.job_id.to_string(), address(r), format!("[{}]", r.tags.join(",")), shape.id(r.node_id), shape.id(r.alloc_id)]);
        }
        table.print();
        return Ok(ExitCode::SUCCESS);
    }
    for (i, r) in places.iter().enumerate() {
        if i > 0 {
            output::line("");
        }
        let meta: Vec<String> = r.meta.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut rows = vec![
            ("ID", r.id.to_string()),
            ("Service Name", r.service_name.to_string()),
            ("Namespace", r.namespace.to_string()),
            ("Job ID", r.job_id.to_string()),
            ("Alloc ID", r.alloc_id.to_string()),
            ("Node ID", r.node_id.to_string()),
            ("Datacenter", r.datacenter.clone()),
            ("Address", address(r)),
            ("Tags", format!("[{}]", r.tags.join(","))),
            ("Meta", meta.join(",")),
        ];
        if let Some(slot) = &r.slot {
            rows.push(("Remote Task", slot.to_string()));
        }
        output::pairs(&rows);
    }
    Ok(ExitCode::SUCCESS)
}
