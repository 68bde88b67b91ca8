//! `drover ui`: opens the web UI, at the page of an object if one is named.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, bail};
use api::{call, query::percent_encode};

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
    let Found { context, id } = found(conn, id).await?;
    let plain = percent_encode(&id);
    Ok(match context.as_str() {
        "jobs" => job_page(&id, conn.ask(call::job(&id)).await?.namespace.as_str(), ""),
        "nodes" => format!("clients/{plain}"),
        "allocs" => format!("allocations/{plain}"),
        "evals" => format!("evaluations?currentEval={plain}"),
        "deployment" => {
            let deployment = conn.ask(call::deployment(&id)).await?;
            job_page(deployment.job_id.as_str(), deployment.namespace.as_str(), "/deployments")
        }
        other => bail!("the web UI has no page for {id:?}, which belongs to {other}"),
    })
}

fn job_page(id: &str, namespace: &str, tab: &str) -> String {
    format!("jobs/{}{tab}", percent_encode(&format!("{id}@{namespace}")))
}
