//! `drover service list|info|delete`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::call::{self, Call};
use model::ServiceRegistration;

use super::{ApiArgs, Format, Page, Shape};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Delete one registration of a service; its node registers it again if the service still runs
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// The service
        service: String,
        /// Id of the registration, as `service info -verbose` shows it
        id: String,
    },
    /// Show the addresses of a service
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        page: Page,
        /// Choose a number of instances, the same ones for the same key: NUMBER|KEY
        #[arg(long)]
        choose: Option<String>,
        /// The service
        service: String,
    },
    /// List services
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::List { api, format } => list(&api.conn()?, &format).await,
        Command::Info { api, shape, page, choose, service } => {
            info(&api.conn()?, &shape, &service, call::service(&service).with_some("choose", choose), &page).await
        }
        Command::Delete { api, service, id } => {
            let conn = api.conn()?;
            let home = home(&conn, &service, &id).await?;
            home.ask(call::service_delete(service, &id)).await?;
            output::line(&format!("Successfully deleted service registration {id:?}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The connection to the namespace of a registration, where all namespaces are asked.
async fn home(conn: &Conn, service: &str, id: &str) -> Result<Conn> {
    if conn.namespace() != "*" {
        return Ok(conn.clone());
    }
    let all = conn.ask(call::service(service)).await?;
    match all.iter().find(|place| *place.id == *id) {
        Some(place) => Ok(conn.in_namespace(place.namespace.as_str())),
        None => bail!(
            "service {service:?} has no registration {id:?} in any namespace; `drover service info -verbose` lists \
                those that it has"
        ),
    }
}

async fn list(conn: &Conn, format: &Format) -> Result<ExitCode> {
    if format.wanted() {
        return conn.show(format, call::services()).await;
    }
    let namespaces = conn.ask(call::services()).await?;
    let several = namespaces.len() > 1;
    let mut table =
        if several { Table::new(["Service Name", "Namespace", "Tags"]) } else { Table::new(["Service Name", "Tags"]) };
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

async fn info(
    conn: &Conn,
    shape: &Shape,
    name: &str,
    places: Call<Vec<ServiceRegistration>>,
    page: &Page,
) -> Result<ExitCode> {
    if shape.format.wanted() {
        Page::rest(&page.show(conn, &shape.format, places).await?);
        return Ok(ExitCode::SUCCESS);
    }
    let (places, next) = page.of(conn, places).await?;
    if places.is_empty() {
        bail!("no instance of service {name:?} is registered{}", if page.narrows() { " that matches" } else { "" });
    }
    show(&places, shape);
    Page::rest(&next);
    Ok(ExitCode::SUCCESS)
}

/// Prints the places of a service.
fn show(places: &[ServiceRegistration], shape: &Shape) {
    if !shape.verbose {
        let mut table = Table::new(["Job ID", "Address", "Tags", "Node ID", "Alloc ID"]);
        for r in places {
            table.row([
                r.job_id.to_string(),
                address(r),
                format!("[{}]", r.tags.join(",")),
                shape.id(r.node_id),
                shape.id(r.alloc_id),
            ]);
        }
        table.print();
        return;
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
}
