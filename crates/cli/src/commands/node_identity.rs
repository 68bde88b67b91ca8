//! `drover node intro create` and `drover node identity get|renew`: how nodes are introduced to the servers, and what
//! the servers have signed about them.

use std::process::ExitCode;

use anyhow::Result;
use api::{
    call,
    shapes::{IdentityRenewRequest, IntroductionRequest},
};
use model::GoDuration;

use super::{ApiArgs, Format, resolve};
use crate::output::{self, Table};

/// Verbs of `node intro`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Intro {
    /// Make an introduction token, which admits new nodes
    Create {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Admit only nodes with this name; default: any name
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        node_name: String,
        /// Admit nodes to this pool
        #[arg(long, value_name = "POOL", default_value = "default")]
        node_pool: String,
        /// How long the token is valid; the servers cut it to their maximum; default: as the servers say
        #[arg(long, value_name = "DURATION")]
        ttl: Option<GoDuration>,
    },
}

/// Verbs of `node identity`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Identity {
    /// Show the claims of a node's identity
    Get {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Node by name or id prefix; default: the node of this agent
        #[arg(value_name = "NODE")]
        id: Option<String>,
    },
    /// Give a node a new identity with its next heartbeat
    Renew {
        #[command(flatten)]
        api: ApiArgs,
        /// Node by name or id prefix; default: the node of this agent
        #[arg(value_name = "NODE")]
        id: Option<String>,
    },
}

/// Runs a verb of `node intro`.
pub(crate) async fn introduce(command: Intro) -> Result<ExitCode> {
    let Intro::Create { api, format, node_name, node_pool, ttl } = command;
    let request = IntroductionRequest { ttl: ttl.unwrap_or_default(), node_name, node_pool };
    let token = api.conn()?.ask(call::introduce(&request)).await?;
    // Alone, so that a shell can put it into a file.
    if format.wanted() {
        format.print(&token)?
    } else {
        output::line(&token.jwt)
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a verb of `node identity`.
pub(crate) async fn run(command: Identity) -> Result<ExitCode> {
    match command {
        Identity::Get { api, format, id } => {
            let conn = api.conn()?;
            let call = call::node_identity().with_some("node_id", resolve::node_id(&conn, id.as_deref()).await?);
            if format.wanted() {
                return conn.show(&format, call).await;
            }
            let mut table = Table::new(["Claim Key", "Claim Value"]);
            for (claim, value) in conn.ask(call).await?.claims {
                table.row([claim, super::cell(&value)]);
            }
            table.print();
        }
        Identity::Renew { api, id } => {
            let conn = api.conn()?;
            let node = resolve::node_id(&conn, id.as_deref()).await?;
            let request = IdentityRenewRequest { node_id: node.map(|id| id.to_string()).unwrap_or_default() };
            conn.ask(call::node_identity_renew(&request)).await?;
            output::line("The node gets a new identity with its next heartbeat");
        }
    }
    Ok(ExitCode::SUCCESS)
}
