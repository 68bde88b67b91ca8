//! `drover status [IDENTIFIER]`: shows whatever the identifier stands for.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{call, shapes::SearchRequest};

use super::{
    ApiArgs, Shape,
    alloc_show::Parts,
    pages::{Also, alloc_page, deployments_page, eval_page, job_page, node_page},
    which_job::home,
};
use crate::conn::Conn;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    also: Also,
    /// A job, node, allocation, evaluation, deployment or host volume; default: list the jobs
    id: Option<String>,
}

/// What an identifier stands for.
pub(crate) struct Found {
    /// The kind, as the search names it.
    pub(crate) context: String,
    /// The whole id.
    pub(crate) id: String,
}

/// The only object whose id or name begins so.
pub(crate) async fn found(conn: &Conn, id: &str) -> Result<Found> {
    let request = SearchRequest { prefix: id.to_owned(), context: "all".to_owned(), ..SearchRequest::default() };
    let mut found: Vec<(String, String)> = Vec::new();
    for (context, ids) in conn.ask(call::search(&request)).await?.matches {
        found.extend(ids.into_iter().flatten().map(|id| (context.clone(), id)));
    }
    // An exact match is meant, even when others begin the same.
    if found.iter().any(|(_, i)| i == id) {
        found.retain(|(_, i)| i == id);
    }
    match found.as_slice() {
        // Nodes are searched for by id; people know them by name.
        [] => match super::resolve::node(conn, id).await {
            Ok(node) => Ok(Found { context: "nodes".to_owned(), id: node.id.to_string() }),
            Err(_) => {
                bail!(
                    "no id starts with {id:?}, and no node has that name\n`drover ps` lists the jobs, `drover node \
                        status` the nodes."
                )
            }
        },
        [(context, id)] => Ok(Found { context: context.clone(), id: id.clone() }),
        many => {
            let list: Vec<String> = many.iter().map(|(context, id)| format!("  {context:10}  {id}")).collect();
            bail!("{} ids start with {id:?}; give more of the id:\n{}", many.len(), list.join("\n"))
        }
    }
}

/// Looks the identifier up and shows what it is.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let Some(id) = &args.id else {
        args.also.open(&conn, "jobs").await;
        return super::job::list(&conn, &args.shape).await;
    };
    let found = found(&conn, id).await?;
    if args.also.wanted() {
        args.also.open(&conn, &page_of(&conn, &found).await?).await;
    }
    let Found { context, id } = found;
    match context.as_str() {
        "jobs" => super::job::show(&home(&conn, &id).await?, &args.shape, &id, super::job::Parts::default()).await,
        "nodes" => super::node::run(super::node::Command::for_status(args.api.clone(), args.shape.clone(), id)).await,
        "allocs" => super::alloc_show::show(&conn, &args.shape, &id, Parts::default()).await,
        "evals" => super::eval::show(&conn, &args.shape, id).await,
        "deployment" => super::deployment::show_one(&conn, &id, &args.shape).await,
        "host_volumes" => super::volume::show(&conn, &id, &args.shape, false).await,
        other => bail!(
            "{id:?} belongs to {other}, which this command does not show; read /v1/{other} with `drover operator api`"
        ),
    }
}

/// The path of the page of what was found.
///
/// # Errors
/// When it has none, or is gone meanwhile.
pub(crate) async fn page_of(conn: &Conn, Found { context, id }: &Found) -> Result<String> {
    Ok(match context.as_str() {
        "jobs" => job_page(id, home(conn, id).await?.ask(call::job(id)).await?.namespace.as_str()),
        "nodes" => node_page(id),
        "allocs" => alloc_page(id),
        "evals" => eval_page(id),
        "deployment" => {
            let deployment = conn.ask(call::deployment(id)).await?;
            deployments_page(&deployment)
        }
        other => bail!("the web UI has no page for {id:?}, which belongs to {other}"),
    })
}
