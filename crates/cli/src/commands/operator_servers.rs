//! `drover operator autopilot|raft`: which servers there are and how they are, under the names that Nomad has for that.

use std::process::ExitCode;

use anyhow::{Context, Result};
use api::{
    call,
    client::ClientError,
    go_json,
    shapes::{LeadershipTransfer, OperatorHealth},
};
use http::{HeaderMap, Method, StatusCode};

use super::{ApiArgs, Format};
use crate::output::{self, Table};

/// Verbs of `operator autopilot`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Autopilot {
    /// Show how the servers and the members of their store are; exit code 1 if one of them is not well
    Health {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
}

/// Verbs of `operator raft`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Raft {
    /// List the servers; etcd decides which of them leads
    ListPeers {
        #[command(flatten)]
        api: ApiArgs,
        /// Accepted for compatibility; the leader answers
        #[arg(long)]
        stale: bool,
    },
    /// Have the leader make room for another server; etcd decides which one leads next
    TransferLeadership {
        #[command(flatten)]
        api: ApiArgs,
        /// Id of the server that leads next; only if it is the only other one
        #[arg(long, value_name = "ID", conflicts_with = "peer_address")]
        peer_id: Option<String>,
        /// RPC address of that server
        #[arg(long, value_name = "ADDRESS")]
        peer_address: Option<String>,
    },
}

/// Runs a verb of `operator autopilot`.
pub(crate) async fn autopilot(command: Autopilot) -> Result<ExitCode> {
    let Autopilot::Health { api, format } = command;
    let path = call::operator_health().path().to_owned();
    let answer = api.conn()?.exchange(&Method::GET, &path, &HeaderMap::new(), Vec::new()).await?;
    let status = answer.status();
    let body = answer.into_body().whole().await?;
    if status != StatusCode::OK && status != StatusCode::TOO_MANY_REQUESTS {
        let message = String::from_utf8_lossy(&body).trim_end().to_owned();
        return Err(ClientError::Status { status, message }.into());
    }
    let health: OperatorHealth = go_json::from_slice(&body).context("the answer is not the servers' health")?;
    if format.wanted() {
        format.print(&health)?;
    } else {
        show(&health);
    }
    Ok(if health.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(health: &OperatorHealth) {
    output::line(&format!("Healthy: {}", health.healthy));
    output::line(&format!("FailureTolerance: {}", health.failure_tolerance));
    output::line(&format!("Leader: {}", health.leader));
    output::line("Voters:");
    for voter in &health.voters {
        output::line(&format!("\t{voter}"));
    }
    output::line("Servers:");
    let mut servers = Table::new([
        "ID",
        "Name",
        "Address",
        "SerfStatus",
        "Version",
        "Leader",
        "Voter",
        "Healthy",
        "LastContact",
        "LastTerm",
        "LastIndex",
        "StableSince",
    ]);
    for of in &health.servers {
        servers.row([
            of.id.clone(),
            of.name.clone(),
            of.address.clone(),
            of.serf_status.clone(),
            of.version.clone(),
            of.leader.to_string(),
            of.voter.to_string(),
            of.healthy.to_string(),
            of.last_contact.clone(),
            of.last_term.to_string(),
            of.last_index.to_string(),
            of.stable_since.clone(),
        ]);
    }
    servers.print();
    let store = &health.store;
    let error = if store.error.is_empty() { String::new() } else { format!(": {}", store.error) };
    let healthy = if store.healthy { "healthy" } else { "not healthy" };
    let format = if store.format == 0 { String::new() } else { format!(", state format {}", store.format) };
    output::line(&format!("Store: {}, {healthy}{format}{error}", store.kind));
    if store.members.is_empty() {
        return;
    }
    let mut members = Table::new(["ID", "Name", "Address", "Version", "Leader", "Voter", "Healthy", "Size", "In Use"]);
    for of in &store.members {
        members.row([
            of.id.clone(),
            of.name.clone(),
            of.address.clone(),
            of.version.clone(),
            of.leader.to_string(),
            of.voter.to_string(),
            of.healthy.to_string(),
            output::size(of.size),
            output::size(of.in_use),
        ]);
    }
    members.print();
    for of in store.members.iter().filter(|of| !of.error.is_empty()) {
        output::note(&format!("{} {}: {}", of.name, of.address, of.error));
    }
}

/// Runs a verb of `operator raft`.
pub(crate) async fn raft(command: Raft) -> Result<ExitCode> {
    match command {
        Raft::ListPeers { api, stale: _ } => {
            let peers = api.conn()?.ask(call::raft_configuration()).await?;
            let mut table = Table::new(["Node", "ID", "Address", "State", "Voter", "RaftProtocol"]);
            for of in peers.servers {
                let state = if of.leader { "leader" } else { "follower" };
                table.row([of.node, of.id, of.address, state.to_owned(), of.voter.to_string(), of.raft_protocol]);
            }
            table.print();
        }
        Raft::TransferLeadership { api, peer_id, peer_address } => {
            let ask = call::transfer_leadership().with_some("id", peer_id).with_some("address", peer_address);
            let LeadershipTransfer { from, to, noop, .. } = api.conn()?.ask(ask).await?;
            output::line(&match (noop, &*to.address) {
                (true, _) => format!("The server at {} leads already", to.address),
                (false, "") => format!("The server at {} makes room; the first of the others leads next", from.address),
                (false, next) => format!("The server at {} makes room; the one at {next} leads next", from.address),
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}
