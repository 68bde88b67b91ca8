//! `drover monitor`: an agent's log, as it is written.

use std::process::ExitCode;

use anyhow::{Context, Result};
use api::call;

use super::{ApiArgs, resolve};
use crate::output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Least severe level to show, independent of the agent's own log level: trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Add the source location to each line
    #[arg(long)]
    log_include_location: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Follow the agent of this node, by name or id prefix
    #[arg(long, value_name = "NODE", conflicts_with = "server_id")]
    node_id: Option<String>,
    /// Follow the agent of this server, by name, or `leader`
    #[arg(long, value_name = "SERVER")]
    server_id: Option<String>,
}

/// Shows the log until somebody interrupts it or the agent ends.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let node = match &args.node_id {
        Some(text) => resolve::node(&conn, text).await?.id.to_string(),
        None => String::new(),
    };
    let monitor = call::agent_monitor()
        .with("log_level", &args.log_level)
        .with("log_json", args.json)
        .with("log_include_location", args.log_include_location)
        .with("node_id", node)
        .with("server_id", args.server_id.unwrap_or_default());
    let mut frames = conn.frames(monitor).await?;
    let mut rest = Vec::new();
    loop {
        let frame = tokio::select! {
            frame = frames.next() => frame?,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.context("could not wait for an interrupt")?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let Some(frame) = frame else {
            output::note("The agent has ended the stream.");
            return Ok(ExitCode::SUCCESS);
        };
        for text in lines(&mut rest, &frame.data) {
            output::line(&text);
        }
    }
}

/// The lines that are complete; what is left begins the next one.
fn lines(rest: &mut Vec<u8>, data: &[u8]) -> Vec<String> {
    rest.extend_from_slice(data);
    let Some(end) = rest.iter().rposition(|b| *b == b'\n') else { return Vec::new() };
    let left = rest.split_off(end + 1);
    let whole = std::mem::replace(rest, left);
    String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_are_shown_when_they_are_complete() {
        let mut rest = Vec::new();
        assert!(super::lines(&mut rest, b"one").is_empty());
        assert_eq!(super::lines(&mut rest, b" line\ntwo\nth"), ["one line", "two"]);
        assert_eq!(super::lines(&mut rest, b"ree\n"), ["three"]);
        assert!(rest.is_empty());
    }
}
