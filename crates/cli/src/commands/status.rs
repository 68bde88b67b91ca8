//! `drover status [IDENTIFIER]`: shows whatever the identifier stands for.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{call, shapes::SearchRequest};

use super::{ApiArgs, Shape};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// A job, node, allocation, evaluation or deployment; default: list the jobs
    id: Option<String>,
}

/// Looks the identifier up and shows what it is.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let Some(id) = &args.id else {
        return super::job::list(&conn, &args.shape).await;
    };
    let request = SearchRequest { prefix: id.clone(), context: "all".to_owned(), ..SearchRequest::default() };
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
        [] => match super::resolve::node(&conn, id).await {
            Ok(node) => {
                super::node::run(super::node::Command::for_status(
                    args.api.clone(),
                    args.shape.clone(),
                    node.id.to_string(),
                ))
                .await
            }
            Err(_) => {
                bail!(
                    "no id starts with {id:?}, and no node has that name\n`drover ps` lists the jobs, `drover node \
                        status` the nodes."
                )
            }
        },
        [(context, id)] => match context.as_str() {
            "jobs" => super::job::show(&conn, &args.shape, id, super::job::Parts::default()).await,
            "nodes" => {
                super::node::run(super::node::Command::for_status(args.api.clone(), args.shape.clone(), id.clone()))
                    .await
            }
            "allocs" => super::alloc::show(&conn, &args.shape, id, false).await,
            "evals" => super::eval::show(&conn, &args.shape, id.clone()).await,
            "deployment" => super::deployment::show_one(&conn, id, &args.shape).await,
            other => bail!(
                "{id:?} belongs to {other}, which this command does not show; read /v1/{other} with `drover \
                    operator api`"
            ),
        },
        many => {
            let list: Vec<String> = many.iter().map(|(context, id)| format!("  {context:10}  {id}")).collect();
            bail!("{} ids start with {id:?}; give more of the id:\n{}", many.len(), list.join("\n"))
        }
    }
}
