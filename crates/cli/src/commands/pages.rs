//! Pages of the web UI: the path of each object's, and how a browser gets there.

use std::{
    io::IsTerminal as _,
    process::{Command, Stdio},
};

use api::{call, query::percent_encode};
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

    /// Opens the page at a path below `/ui/`, if it is asked for, and tells where it is. Whoever has no browser is told
    /// in any case.
    pub(crate) async fn open(&self, conn: &Conn, path: &str) {
        let url = format!("{}/ui/{path}", conn.address());
        let browsable = !url.starts_with("unix:");
        if self.ui && !(browsable && open(&url)) {
            output::note(&format!("found nothing that opens a browser; the page is {url}"));
        } else if browsable && hints(conn).await {
            output::note(&format!("==> View this in the Web UI: {url}"));
        }
    }
}

/// What the environment says of hints: DROVER_CLI_SHOW_HINTS or NOMAD_CLI_SHOW_HINTS.
fn asked() -> Option<bool> {
    let names = ["DROVER_CLI_SHOW_HINTS", "NOMAD_CLI_SHOW_HINTS"];
    let (name, value) =
        names.iter().find_map(|name| Some((name, std::env::var(name).ok().filter(|v| !v.is_empty())?)))?;
    let read = truth(&value);
    if read.is_none() {
        output::note(&format!("{name} must be true or false, it is {value:?}"));
    }
    read
}

/// The words that a stock command line takes for a truth value.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Whether the person is told where the page is, as far as that is known without the agent: as the environment says,
/// and not without a terminal; None = on a terminal the agent decides.
fn known(asked: Option<bool>, terminal: bool) -> Option<bool> {
    asked.or((!terminal).then_some(false))
}

/// Whether the person is told where the page is. An agent that has no page, or objects (`ui { show_cli_hints }`), has
/// nothing to tell.
async fn hints(conn: &Conn) -> bool {
    match known(asked(), std::io::stderr().is_terminal()) {
        Some(known) => known,
        None => conn.ask(call::agent_features()).await.is_ok_and(|agent| agent.ui && agent.cli_hints),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_is_read_as_a_stock_command_line_reads_it() {
        for (text, read) in [("1", Some(true)), ("True", Some(true)), ("f", Some(false)), ("yes", None), ("", None)] {
            assert_eq!(truth(text), read, "{text:?}");
        }
    }

    #[test]
    fn scripts_hear_of_pages_only_when_they_ask() {
        for (asked, terminal, told) in [
            (Some(true), false, Some(true)),
            (Some(false), true, Some(false)),
            (None, false, Some(false)),
            (None, true, None),
        ] {
            assert_eq!(known(asked, terminal), told, "{asked:?} {terminal}");
        }
    }
}
