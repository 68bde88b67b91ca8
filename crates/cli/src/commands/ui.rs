//! `drover ui`: opens the web UI, at the page of an object if one is named.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::call;

use super::{
    ApiArgs,
    pages::{OPENERS, open},
    status::{found, page_of},
};
use crate::{conn::Conn, output};

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

/// The path of an object's page, below `/ui/`.
async fn page(conn: &Conn, id: Option<&str>) -> Result<String> {
    let Some(id) = id else { return Ok("jobs".to_owned()) };
    page_of(conn, &found(conn, id).await?).await
}
