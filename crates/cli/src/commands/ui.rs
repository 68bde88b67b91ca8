//! `drover ui`: opens the web UI, at the page of an object if one is named.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, bail};
use api::{call, query::percent_encode};
use model::Deployment;

use super::{
    ApiArgs,
    status::{Found, found},
};
use crate::{conn::Conn, output};

/// Programs that open an address in the person's browser, the first that exists.
const OPENERS: &[&str] = &["xdg-open", "open", "wslview"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Log the browser in as who runs this command, with a one-time token
    #[arg(long)]
    authenticate: bool,
    /// Print the address and open nothing
    #[arg(long)]
    show_url: bool,
    /// A job, node, allocation, evaluation or deployment, by its name or the beginning of its id; default: the jobs
    id: Option<String>,
}

/// What commands take that show or change an object.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Also {
    /// Open the page in the web UI as well
    #[arg(long)]
    ui: bool,
}

impl Also {
    /// Whether the page is asked for.
    pub(crate) fn wanted(&self) -> bool {
        self.ui
    }

    /// Opens the page at a path below `/ui/`. Whoever has no browser is told where it is.
    pub(crate) fn open(&self, conn: &Conn, path: &str) {
        let url = format!("{}/ui/{path}", conn.address());
        if self.ui && (url.starts_with("unix:") || !open(&url)) {
            output::note(&format!("found nothing that opens a browser; the page is {url}"));
        }
    }
}

/// Opens the page, or prints its address.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let address = conn.address();
    if address.starts_with("unix:") {
        bail!("a browser does not open {address}: name the agent's HTTP address with -address");
    }
    let mut url = format!("{address}/ui/{}", page(&conn, args.id.as_deref()).await?);
    if args.authenticate {
        let secret = conn.ask(call::acl_one_time()).await?.one_time_token.one_time_secret_id;
        let between = if url.contains('?') { '&' } else { '?' };
        url = format!("{url}{between}ott={}", secret.reveal());
    }
    if args.show_url {
        output::line(&format!("URL for web UI: {url}"));
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&format!("Opening URL {url:?}"));
    if !open(&url) {
        bail!("found no program that opens a browser ({}); open the address yourself", OPENERS.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens an address in the person's browser; false = no program that does was found.
pub(crate) fn open(url: &str) -> bool {
    OPENERS.iter().any(|program| opened(program, url))
}

fn opened(program: &str, url: &str) -> bool {
    let quiet = || Stdio::null();
    let done = Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).status();
    done.is_ok_and(|status| status.success())
}

/// The path of an object's page, below `/ui/`.
async fn page(conn: &Conn, id: Option<&str>) -> Result<String> {
    let Some(id) = id else { return Ok("jobs".to_owned()) };
    page_of(conn, &found(conn, id).await?).await
}

/// The path of the page of what was found.
///
/// # Errors
/// When it has none, or is gone meanwhile.
pub(crate) async fn page_of(conn: &Conn, Found { context, id }: &Found) -> Result<String> {
    Ok(match context.as_str() {
        "jobs" => job_page(id, conn.ask(call::job(id)).await?.namespace.as_str()),
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

/// Path of a job's page.
pub(crate) fn job_page(id: &str, namespace: &str) -> String {
    format!("jobs/{}", percent_encode(&format!("{id}@{namespace}")))
}

/// Path of the page of the deployments of a deployment's job.
pub(crate) fn deployments_page(deployment: &Deployment) -> String {
    format!("{}/deployments", job_page(deployment.job_id.as_str(), deployment.namespace.as_str()))
}

/// Path of a node's page.
pub(crate) fn node_page(id: &str) -> String {
    format!("clients/{}", percent_encode(id))
}

/// Path of an allocation's page.
pub(crate) fn alloc_page(id: &str) -> String {
    format!("allocations/{}", percent_encode(id))
}

/// Path of the page with an evaluation.
pub(crate) fn eval_page(id: &str) -> String {
    format!("evaluations?currentEval={}", percent_encode(id))
}

/// Path of a variable's page.
pub(crate) fn variable_page(path: &str, namespace: &str) -> String {
    format!("variables/var/{}", percent_encode(&format!("{path}@{namespace}")))
}
