//! `drover status [IDENTIFIER]`: shows whatever the identifier stands for.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{ApiArgs, Shape};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// A job, node, allocation, evaluation or deployment; without one, the jobs are listed
    id: Option<String>,
}

/// Looks the identifier up and shows what it is.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let Some(id) = &args.id else {
        return super::job::list(&conn, &args.shape).await;
    };
    let answer: Value = conn.put("/v1/search", &json!({"Prefix": id, "Context": "all"})).await?;
    let mut found: Vec<(String, String)> = Vec::new();
    for (context, ids) in answer["Matches"].as_object().into_iter().flatten() {
        found.extend(ids.as_array().into_iter().flatten().filter_map(|i| Some((context.clone(), i.as_str()?.to_owned()))));
    }
    // An exact match is meant, even when others begin the same.
    if found.iter().any(|(_, i)| i == id) {
        found.retain(|(_, i)| i == id);
    }
    match found.as_slice() {
        // Nodes are searched for by id; people know them by name.
        [] => match super::resolve::node(&conn, id).await {
            Ok(node) => super::node::run(super::node::Command::for_status(args.api.clone(), args.shape.clone(), node.id.to_string())).await,
            Err(_) => {
                bail!("nothing begins with {id:?}, and no node has that name\n`drover ps` lists the jobs, `drover node status` the nodes.")
            }
        },
        [(context, id)] => match context.as_str() {
            "jobs" => super::job::show(&conn, &args.shape, id, super::job::Parts::default()).await,
            "nodes" => super::node::run(super::node::Command::for_status(args.api.clone(), args.shape.clone(), id.clone())).await,
            "allocs" => super::alloc::show(&conn, &args.shape, id, false).await,
            "evals" => super::eval::show(&conn, &args.shape, id.clone()).await,
            "deployment" => {
                let path = format!("/v1/deployment/{id}");
                if args.shape.json {
                    return conn.print(&path).await;
                }
                super::deployment::show(&conn.get::<model::Deployment>(&path).await?, &args.shape);
                Ok(ExitCode::SUCCESS)
            }
            other => bail!("{id:?} is one of {other}, which this command does not show; ask the API: /v1/{other}"),
        },
        many => {
            let list: Vec<String> = many.iter().map(|(context, id)| format!("  {context:10}  {id}")).collect();
            bail!("{} things begin with {id:?}, give more of the identifier:\n{}", many.len(), list.join("\n"))
        }
    }
}
