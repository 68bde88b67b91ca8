//! `drover agent`: composes server, node and HTTP listener into one process, as its configuration says.

mod compose;
mod config;
mod file;
mod flags;
mod forward;
mod leave;
mod log_file;
mod reload;
mod rules;
mod settings;
mod sockaddr;
mod table;
mod task_api;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

use config::Mistake;

/// Flags of the agent; they win over the configuration files.
#[derive(Debug, Default, Args)]
pub(crate) struct AgentArgs {
    /// A configuration file, or a directory of .hcl and .json files; later ones win
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Vec<PathBuf>,
    /// Server and node in one, on loopback, with a temporary directory
    #[arg(long)]
    pub(crate) dev: bool,
    /// Be a server
    #[arg(long)]
    pub(crate) server: bool,
    /// Be a node
    #[arg(long)]
    pub(crate) client: bool,
    /// Where state is kept
    #[arg(long)]
    pub(crate) data_dir: Option<String>,
    /// Directory of external plugins
    #[arg(long, value_name = "PATH")]
    pub(crate) plugin_dir: Option<PathBuf>,
    /// Address that the listeners bind to
    #[arg(long)]
    pub(crate) bind: Option<String>,
    /// Region
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Datacenter
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
    /// Address of a server
    #[arg(long, value_delimiter = ',')]
    pub(crate) servers: Vec<String>,
    /// Interface whose address the node has
    #[arg(long)]
    pub(crate) network_interface: Option<String>,
    /// trace, debug, info, warn or error
    #[arg(long)]
    pub(crate) log_level: Option<String>,
    /// Log as JSON, one object per line
    #[arg(long)]
    pub(crate) log_json: bool,
    /// What else a stock agent knows.
    #[command(flatten)]
    pub(crate) stock: flags::StockFlags,
}

impl AgentArgs {
    /// The files merged, and the flags that are settings on top.
    fn tree(&self) -> Result<serde_json::Value> {
        let mut tree = file::load(&self.config)?;
        config::merge(&mut tree, self.stock.tree());
        Ok(tree)
    }
}

/// Threads for file work. A burst of tasks would otherwise start one for each, and the allocator keeps an arena for every thread that there was.
const BLOCKING_THREADS: usize = 32;

/// Runs an agent until it is told to end.
///
/// # Errors
/// When the configuration is wrong or a part cannot start.
pub(crate) fn run(args: AgentArgs) -> Result<ExitCode> {
    let tree = args.tree()?;
    let file = config::typed(tree.clone()).map_err(refuse)?;
    // The directory of a dev agent goes when this value goes.
    let dev_dir = args.dev.then(|| tempfile::Builder::new().prefix("drover-dev-").tempdir()).transpose()?;
    let settings = settings::settings(file, &args, dev_dir.as_ref().map(tempfile::TempDir::path)).map_err(refuse)?;
    init_log(&settings)?;
    print_notes(&settings.notes);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("drover").max_blocking_threads(BLOCKING_THREADS).build()?;
    let reloader = reload::Reloader::new(args, dev_dir.as_ref().map(tempfile::TempDir::path), tree);
    let result = runtime.block_on(crate::memory::beside(compose::run(settings, reloader)));
    // What still runs on blocking threads has been told to stop and holds nothing that a kill would lose.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}

/// Checks configuration files as `run` does, and starts nothing.
///
/// # Errors
/// All mistakes that were found.
pub(crate) fn check(paths: Vec<PathBuf>) -> Result<()> {
    let file = config::typed(file::load(&paths)?).map_err(refuse)?;
    let settings = settings::settings(file, &AgentArgs { config: paths, ..AgentArgs::default() }, None).map_err(refuse)?;
    print_notes(&settings.notes);
    Ok(())
}

/// Says what was taken and has no effect. Whoever started the agent reads it; a log may be looked at by nobody.
fn print_notes(notes: &rules::Notes) {
    let lines = notes.lines();
    if !lines.is_empty() {
        crate::output::note(&format!("==> Taken from the configuration without effect:\n    {}", lines.join("\n    ")));
    }
}

fn refuse(mistakes: Vec<Mistake>) -> anyhow::Error {
    let list: Vec<String> = mistakes.into_iter().map(|m| format!("  * {}", m.0)).collect();
    anyhow::anyhow!("the agent's configuration cannot be used:\n{}", list.join("\n"))
}

fn init_log(settings: &settings::Settings) -> Result<()> {
    use std::io::{IsTerminal, Write};
    use tracing_subscriber::{
        EnvFilter,
        fmt::writer::{BoxMakeWriter, MakeWriterExt},
    };
    let (level, json, location) = (&settings.log_level, settings.log_json, settings.log_location);
    // The wire libraries speak at debug of every frame: they are heard from warn on, unless RUST_LOG says otherwise.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn")));
    let file = match &settings.log_file {
        Some(rotation) => {
            let opened = log_file::LogFile::open(rotation.clone());
            Some(opened.with_context(|| format!("could not open the log_file {}", rotation.path.display()))?)
        }
        None => None,
    };
    let colour = file.is_none() && std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let writer = match file {
        Some(file) => BoxMakeWriter::new(std::io::stderr.and(file)),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    // A log that cannot be written (a full disk, a closed pipe) would be complained of on standard error, where it is written: a panic.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    let builder = builder.with_file(location).with_line_number(location);
    let ready = if json { builder.json().flatten_event(true).try_init() } else { builder.with_ansi(colour).try_init() };
    if let Err(error) = ready {
        let _ = writeln!(std::io::stderr(), "drover: no log: {error}");
    }
    Ok(())
}

/// A path that was given is there; the error says which flag named it.
fn must_exist(path: &std::path::Path) -> Result<()> {
    if !path.exists() {
        bail!("-config {}: no such file or directory", path.display());
    }
    Ok(())
}
