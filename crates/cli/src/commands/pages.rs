//! Pages of the web UI: the path of each object's, and how a browser gets there.

use std::process::{Command, Stdio};

use api::query::percent_encode;
use model::Deployment;

use crate::{conn::Conn, output};

/// Programs that open an address in the person's browser, the first that exists.
pub(crate) const OPENERS: &[&str] = &["xdg-open", "open", "wslview"];

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

/// Opens an address in the person's browser; false = no program that does was found.
pub(crate) fn open(url: &str) -> bool {
    OPENERS.iter().any(|program| opened(program, url))
}

fn opened(program: &str, url: &str) -> bool {
    let quiet = || Stdio::null();
    let done = Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).status();
    done.is_ok_and(|status| status.success())
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
