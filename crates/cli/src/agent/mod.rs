//! `drover agent`: composes server, node and HTTP listener into one process, as its configuration says.

mod args;
mod audit;
mod cluster;
mod compose;
mod config;
mod exposure;
mod file;
mod flags;
mod follow_log;
mod follow_state;
mod forward;
mod keyring;
mod leave;
mod log_file;
mod nodes;
mod plugins;
mod reload;
mod rules;
mod settings;
mod sockaddr;
mod switch;
pub(crate) mod table;
mod task_api;
mod to_server;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};

pub(crate) use args::AgentArgs;
use config::refuse;
pub(crate) use flags::of_flag;
use server::{join::Join, keyring::Wrapping, shared::SharedKey};
use store::EtcdOptions;

/// Threads for file work. A burst of tasks would otherwise start one for each, and the allocator keeps an arena for
/// every thread that there was.
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
    if let Some(dir) = &dev_dir {
        // Tasks of other users pass through it.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    }
    let mut settings =
        settings::settings(file, &args, dev_dir.as_ref().map(tempfile::TempDir::path)).map_err(refuse)?;
    let followers = init_log(&settings)?;
    print_notes(&settings.notes);
    // Keys and tokens of the cluster are in its memory.
    if let Err(error) = undumpable::this_process() {
        tracing::warn!(%error, "a crash of this agent may leave a core dump with secrets");
    }
    if let Some(server) = &mut settings.server {
        keyring::unlock(server, &settings.keyring, settings.shared_store.is_some())?;
    }
    // Each task costs an agent a descriptor or two.
    open_files::raise();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("drover")
        .max_blocking_threads(BLOCKING_THREADS)
        .build()?;
    // Leases, orders and reports of nodes do not wait for requests of people.
    let nodes = match &mut settings.server {
        Some(server) => {
            let own = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("drover-nodes").build()?;
            server.runtime = Some(own.handle().clone());
            Some(own)
        }
        None => None,
    };
    let reloader =
        reload::Reloader::new(args, dev_dir.as_ref().map(tempfile::TempDir::path), tree, settings.tls.clone())
            .with_store(settings.store_tls.clone());
    let result = runtime.block_on(heap::beside(compose::run(settings, reloader, followers)));
    // What still runs on blocking threads has been told to stop and holds nothing that a kill would lose.
    for runtime in [Some(runtime), nodes].into_iter().flatten() {
        runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    }
    result
}

/// Checks configuration files as `run` does, and starts nothing.
///
/// # Errors
/// All mistakes that were found.
pub(crate) fn check(paths: Vec<PathBuf>) -> Result<()> {
    let file = config::typed(file::load(&paths)?).map_err(refuse)?;
    let settings =
        settings::settings(file, &AgentArgs { config: paths, ..AgentArgs::default() }, None).map_err(refuse)?;
    print_notes(&settings.notes);
    Ok(())
}

/// The stores of a server that shares one, for commands that work on them while it does not run.
pub(crate) struct Stores {
    /// The shared one.
    pub(crate) etcd: EtcdOptions,
    /// What its servers share.
    pub(crate) key: SharedKey,
    /// What root keys are encrypted under in files.
    pub(crate) wrapping: Wrapping,
    /// Where the server keeps what is its own: its state, if it were alone.
    pub(crate) dir: PathBuf,
    /// Nobody has configured what nodes must show.
    pub(crate) join_kept: bool,
}

/// Reads configuration files as `run` does.
///
/// # Errors
/// All mistakes that were found, or that no store is shared.
pub(crate) fn stores(config: Vec<PathBuf>, data_dir: Option<PathBuf>) -> Result<Stores> {
    let tree = file::load(&config)?;
    let data_dir = data_dir.map(|dir| std::path::absolute(&dir).unwrap_or(dir).display().to_string());
    let args = AgentArgs { config, data_dir, ..AgentArgs::default() };
    let mut settings = settings::settings(config::typed(tree).map_err(refuse)?, &args, None).map_err(refuse)?;
    if let Some(server) = &mut settings.server {
        keyring::unlock(server, &settings.keyring, settings.shared_store.is_some())?;
    }
    let (Some(server), Some(etcd)) = (settings.server, settings.shared_store) else {
        bail!("the configuration (-config) is not that of a server with an etcd: it has no server.store = \"etcd\"");
    };
    let (Some(key), Some(dir)) = (server.shared, server.data_dir) else {
        bail!("the configuration has no data_dir, or neither server.encrypt nor a keyring block");
    };
    let wrapping = server.wrapping;
    Ok(Stores { etcd, key, wrapping, dir, join_kept: matches!(server.join, Join::Kept) })
}

/// Says what was taken and has no effect. Whoever started the agent reads it; a log may be looked at by nobody.
fn print_notes(notes: &rules::Notes) {
    let lines = notes.lines();
    if !lines.is_empty() {
        crate::output::note(&format!("==> Taken from the configuration without effect:\n    {}", lines.join("\n    ")));
    }
}

fn init_log(settings: &settings::Settings) -> Result<follow_log::LogFollowers> {
    use std::io::{IsTerminal, Write};
    use tracing_subscriber::{
        EnvFilter, Layer, Registry,
        fmt::writer::{BoxMakeWriter, MakeWriterExt},
        layer::SubscriberExt,
        util::SubscriberInitExt,
    };
    let (level, json, location) = (&settings.log_level, settings.log_json, settings.log_location);
    // The wire libraries speak at debug of every frame: they are heard from warn on, unless RUST_LOG says otherwise.
    let wire: String = follow_log::WIRE.iter().map(|name| format!(",{name}=warn")).collect();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{level}{wire}")));
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
    // A log that cannot be written (a full disk, a closed pipe) would be complained of on standard error, where it is
    // written: a panic.
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).log_internal_errors(false);
    let lines = lines.with_file(location).with_line_number(location);
    let lines = if json { lines.json().flatten_event(true).boxed() } else { lines.with_ansi(colour).boxed() };
    // Those who follow the log hear what they want to, whatever is written here.
    let (followers, wanted, tap) = follow_log::followers();
    let ready = Registry::default().with(tap.with_filter(wanted)).with(lines.with_filter(filter)).try_init();
    if let Err(error) = ready {
        let _ = writeln!(std::io::stderr(), "drover: no log: {error}");
    }
    // A panic goes where the log goes, too: standard error may be read by nobody.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), "{panic}");
    }));
    Ok(followers)
}
