//! The flags of `drover agent`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{config, file, flags::StockFlags};

/// Flags of the agent; they win over the configuration files.
#[derive(Debug, Default, Args)]
pub(crate) struct AgentArgs {
    /// Read a configuration file, or a directory of .hcl and .json files; later ones win
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Vec<PathBuf>,
    /// Run server and node in one process, on loopback, with a temporary data directory
    #[arg(long)]
    pub(crate) dev: bool,
    /// Run as a server
    #[arg(long)]
    pub(crate) server: bool,
    /// Run as a node
    #[arg(long)]
    pub(crate) client: bool,
    /// Directory of the agent's state
    #[arg(long)]
    pub(crate) data_dir: Option<String>,
    /// Directory of external plugins
    #[arg(long, value_name = "PATH")]
    pub(crate) plugin_dir: Option<PathBuf>,
    /// Address that the listeners bind to
    #[arg(long)]
    pub(crate) bind: Option<String>,
    /// Region of the agent
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Datacenter of the node
    #[arg(long)]
    pub(crate) dc: Option<String>,
    /// Name of this agent
    #[arg(long)]
    pub(crate) node: Option<String>,
    /// Class of the node
    #[arg(long)]
    pub(crate) node_class: Option<String>,
    /// Pool of the node
    #[arg(long)]
    pub(crate) node_pool: Option<String>,
    /// Metadata of the node
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) meta: Vec<String>,
    /// Address of a server that the node joins
    #[arg(long, value_delimiter = ',')]
    pub(crate) servers: Vec<String>,
    /// Introduction token of a new node [env: NOMAD_CLIENT_INTRO_TOKEN]; better, put it into intro_token.jwt in the
    /// state directory of the node
    #[arg(long, value_name = "TOKEN")]
    pub(crate) client_intro_token: Option<String>,
    /// Interface whose address the node announces
    #[arg(long)]
    pub(crate) network_interface: Option<String>,
    /// Least severe level to log: trace, debug, info, warn or error
    #[arg(long)]
    pub(crate) log_level: Option<String>,
    /// Log as JSON, one object per line
    #[arg(long)]
    pub(crate) log_json: bool,
    /// What else a stock agent knows.
    #[command(flatten)]
    pub(crate) stock: StockFlags,
}

impl AgentArgs {
    /// The files merged, and the flags that are settings on top.
    pub(super) fn tree(&self) -> Result<serde_json::Value> {
        let mut tree = file::load(&self.config)?;
        config::merge(&mut tree, self.stock.tree());
        Ok(tree)
    }
}
