//! `drover operator debug`: what helps somebody else to find a fault, in one archive.
//!
//! Nothing in it is secret: lists instead of jobs, events without their objects, no variables, no tokens, configuration
//! as agents show it.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use api::{call, call::Call, call::Raw};
use flate2::{Compression, write::GzEncoder};
use model::{GoDuration, Node};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{ApiArgs, resolve};
use crate::{conn::Conn, output, when};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// How long logs and events are followed
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    duration: GoDuration,
    /// How often lists and metrics are read meanwhile
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    interval: GoDuration,
    /// Directory for the files; without it they become one archive in the working directory
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Least severe level of the logs: trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "debug")]
    log_level: String,
    /// Log lines name the part of the program that wrote them; -log-include-location=false leaves it out
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    log_include_location: bool,
    /// Nodes to look at, by name or id prefix, separated by commas, or `all`
    #[arg(long, value_name = "NODES", default_value = "all")]
    node_id: String,
    /// Only nodes of this class
    #[arg(long, value_name = "CLASS")]
    node_class: Option<String>,
    /// Most nodes to look at; 0 = no limit
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    max_nodes: usize,
    /// Servers to look at, by name, separated by commas, `leader` or `all`
    #[arg(long, value_name = "SERVERS", default_value = "all")]
    server_id: String,
    /// Follow these events, without their objects, separated by commas: `TOPIC` or `TOPIC:KEY`
    #[arg(long, value_name = "TOPICS")]
    event_topic: Option<String>,
    /// Begin with events from this index on
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    event_index: u64,
    /// Ask the server that answers, also if it does not lead
    #[arg(long)]
    stale: bool,
    /// Name each file
    #[arg(long)]
    verbose: bool,
    /// Without effect, see `absent`
    #[arg(long, value_name = "DURATION", hide = true)]
    pprof_duration: Option<GoDuration>,
    /// Without effect, see `absent`
    #[arg(long, value_name = "DURATION", hide = true)]
    pprof_interval: Option<GoDuration>,
}

/// The files of a capture.
struct Files {
    dir: PathBuf,
    verbose: bool,
    written: Vec<String>,
    failed: Vec<(String, String)>,
}

impl Files {
    fn new(dir: PathBuf, verbose: bool) -> Result<Self> {
        let made = |above: Option<&Path>| {
            if let Some(above) = above.filter(|above| !above.as_os_str().is_empty()) {
                DirBuilder::new().recursive(true).mode(0o700).create(above)?;
            }
            // One that is there already may be somebody else's, who would read all that is written into it.
            DirBuilder::new().mode(0o700).create(&dir)
        };
        made(dir.parent()).with_context(|| format!("could not create {}", dir.display()))?;
        Ok(Self { dir, verbose, written: Vec::new(), failed: Vec::new() })
    }

    /// Takes note of a file, or of why there is none.
    fn note(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => {
                if self.verbose {
                    output::line(name);
                }
                self.written.push(name.to_owned());
            }
            Err(error) => {
                output::note(&format!("{name}: {error:#}"));
                self.failed.push((name.to_owned(), format!("{error:#}")));
            }
        }
    }

    async fn capture(&mut self, conn: &Conn, name: &str, call: Call<Value>) {
        let outcome = async {
            let value = conn.ask(call).await?;
            let mut text = serde_json::to_vec_pretty(&value)?;
            text.push(b'\n');
            create(&self.dir, name)?.write_all(&text).context("could not write it")
        };
        let outcome = outcome.await;
        self.note(name, outcome);
    }
}

/// A file that only its owner reads, with the directories above it.
fn create(dir: &Path, name: &str) -> Result<File> {
    let path = dir.join(name);
    if let Some(above) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.with_context(|| format!("could not write {}", path.display()))
}

/// What is read once, of the cluster as a whole.
fn of_cluster() -> Vec<(&'static str, Call<Value>)> {
    vec![
        ("agent-self", call::agent_self().reading()),
        ("agent-features", call::agent_features().reading()),
        ("members", call::agent_members().reading()),
        ("leader", call::leader().reading()),
        ("regions", call::regions().reading()),
        ("autopilot-health", call::operator_health().reading()),
        ("scheduler-configuration", call::scheduler_config().reading()),
        ("namespaces", call::namespaces().reading()),
        ("node-pools", call::node_pools().reading()),
        ("root-keys", call::keys().reading()),
    ]
}

/// What is read each time.
fn each_time() -> Vec<(&'static str, Call<Value>)> {
    let all = |call: Call<Value>| call.in_namespace("*");
    vec![
        ("agent-health", call::agent_health().reading()),
        ("allocations", all(call::allocs().reading())),
        ("deployments", all(call::deployments().reading())),
        ("evaluations", all(call::evals().reading())),
        ("host-volumes", all(call::volumes().with("type", "host").reading())),
        ("jobs", all(call::jobs().reading())),
        ("metrics", call::metrics().reading()),
        ("nodes", call::nodes().with("resources", true).reading()),
        ("remote-tasks", all(call::remote_tasks().reading())),
        ("remote-unbound", call::remote_unbound().reading()),
        ("scaling-policies", all(call::scaling_policies().reading())),
        ("services", all(call::services().reading())),
        ("trends", call::trends().reading()),
        ("volume-claims", all(call::volume_claims().reading())),
    ]
}

/// Captures until the time is over or somebody interrupts it. What has been captured is kept in both cases.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let (duration, interval) = (args.duration.to_std(), args.interval.to_std());
    ensure!(!duration.is_zero(), "-duration must be above 0");
    ensure!(!interval.is_zero() && interval <= duration, "-interval must be above 0 and at most -duration");
    let conn = args.api.conn()?;
    let begun = when::now_ns();
    let name = format!("drover-debug-{}", when::stamp(begun).replace(':', ""));
    let parent = args.output.clone().unwrap_or_default();
    if args.pprof_duration.is_some() || args.pprof_interval.is_some() {
        output::note("-pprof-duration and -pprof-interval have no effect: there are no profiles of this kind.");
    }
    let stale = |call: Call<Value>| call.with_some("stale", args.stale.then_some(true));

    // Whoever may not even ask for these gets the error, and no archive.
    let nodes = chosen_nodes(&conn, &args).await?;
    let servers = chosen_servers(&conn, &args.server_id).await?;
    let mut files = Files::new(parent.join(&name), args.verbose)?;
    let over = CancellationToken::new();
    let mut followed = JoinSet::new();
    for (file, call) in streams(&args, &nodes, &servers) {
        followed.spawn(follow(conn.clone(), files.dir.clone(), file, call, over.clone()));
    }
    for (what, call) in of_cluster() {
        files.capture(&conn, &format!("cluster/{what}.json"), stale(call)).await;
    }
    for node in &nodes {
        // Not its allocations: those of one node come with their jobs. The lists below name the node of each.
        let place = format!("client/{}", node.id);
        files.capture(&conn, &format!("{place}/node.json"), stale(call::node(node.id).reading())).await;
        let of_node = |call: Call<Value>| call.with("node_id", node.id);
        files.capture(&conn, &format!("{place}/stats.json"), of_node(call::node_stats().reading())).await;
        files.capture(&conn, &format!("{place}/audit.json"), of_node(call::node_audit().reading())).await;
    }

    let end = Instant::now() + duration;
    let mut interrupted = false;
    for round in 0_u32.. {
        let next = Instant::now() + interval;
        for (what, call) in each_time() {
            files.capture(&conn, &format!("interval/{round:04}/{what}.json"), stale(call)).await;
        }
        let until = next.min(end);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            stopped = tokio::signal::ctrl_c() => {
                stopped.context("could not wait for an interrupt")?;
                interrupted = true;
            }
        }
        if interrupted || until >= end {
            break;
        }
    }
    over.cancel();
    while let Some(joined) = followed.join_next().await {
        let (file, outcome) = joined.context("following a log broke off")?;
        files.note(&file, outcome);
    }
    finish(files, &args, &conn, &name, begun, interrupted)
}

fn finish(files: Files, args: &Args, conn: &Conn, name: &str, begun: i64, interrupted: bool) -> Result<ExitCode> {
    let failed: Vec<Value> = files.failed.iter().map(|(file, why)| json!({"File": file, "Error": why})).collect();
    let index = json!({
        "Release": env!("CARGO_PKG_VERSION"),
        "Address": conn.address(),
        "Begun": when::stamp(begun),
        "Ended": when::stamp(when::now_ns()),
        "Interrupted": interrupted,
        "Files": files.written,
        "Failed": failed,
    });
    create(&files.dir, "index.json")?.write_all(format!("{index:#}\n").as_bytes())?;
    let place = match args.output {
        Some(_) => files.dir.clone(),
        None => {
            let archive = PathBuf::from(format!("{name}.tar.gz"));
            pack(&files.dir, name, &archive)?;
            std::fs::remove_dir_all(&files.dir).with_context(|| format!("could not remove {}", files.dir.display()))?;
            archive
        }
    };
    output::line(&format!("{} files in {}", files.written.len() + 1, place.display()));
    let complete = files.failed.is_empty();
    if !complete {
        output::note(&format!("{} could not be captured; index.json says why.", files.failed.len()));
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// The nodes to look at, in the order in which they are named.
async fn chosen_nodes(conn: &Conn, args: &Args) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    if args.node_id == "all" {
        nodes = conn.ask(call::nodes()).await?;
    } else {
        for text in args.node_id.split(',').filter(|text| !text.is_empty()) {
            nodes.push(resolve::node(conn, text).await?);
        }
    }
    if let Some(class) = &args.node_class {
        nodes.retain(|node| node.class == *class);
    }
    if args.max_nodes > 0 && nodes.len() > args.max_nodes {
        output::note(&format!("{} of {} nodes are looked at: -max-nodes.", args.max_nodes, nodes.len()));
        nodes.truncate(args.max_nodes);
    }
    Ok(nodes)
}

/// Names of the servers to look at.
async fn chosen_servers(conn: &Conn, asked: &str) -> Result<Vec<String>> {
    if asked != "all" {
        return Ok(asked.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect());
    }
    Ok(conn.ask(call::agent_members()).await?.members.into_iter().map(|member| member.name).collect())
}

/// What is followed meanwhile, with the file for each.
fn streams(args: &Args, nodes: &[Node], servers: &[String]) -> Vec<(String, Call<Raw>)> {
    let log = |part: &str, id: &str| {
        let monitor = call::agent_monitor().with("log_level", &args.log_level);
        monitor.with("log_include_location", args.log_include_location).with(part, id)
    };
    let of_nodes = nodes.iter().map(|node| {
        let id = node.id.to_string();
        (format!("client/{id}/monitor.log"), log("node_id", &id))
    });
    let of_servers = servers.iter().map(|name| (format!("server/{name}/monitor.log"), log("server_id", name)));
    let events = args.event_topic.iter().map(|topics| {
        let of = |call: Call<Raw>, topic: &str| call.with("topic", topic);
        // Objects of events may hold what a job file keeps secret.
        let call = call::events().with("index", args.event_index).with("payload", "none").in_namespace("*");
        ("eventstream.json".to_owned(), topics.split(',').filter(|topic| !topic.is_empty()).fold(call, of))
    });
    of_nodes.chain(of_servers).chain(events).collect()
}

/// Writes what a stream says into a file until the capture is over.
async fn follow(
    conn: Conn,
    dir: PathBuf,
    name: String,
    call: Call<Raw>,
    over: CancellationToken,
) -> (String, Result<()>) {
    let events = name == "eventstream.json";
    let writing = async {
        let mut file = create(&dir, &name)?;
        let mut stream = conn.stream(call).await?;
        if events {
            while let Some(bytes) = stream.next().await? {
                file.write_all(&bytes)?;
            }
            return Ok(());
        }
        let mut frames = stream.frames();
        while let Some(frame) = frames.next().await? {
            file.write_all(&frame.data)?;
        }
        Ok(())
    };
    let outcome = over.run_until_cancelled(writing).await.unwrap_or(Ok(()));
    (name, outcome)
}

/// The directory as an archive that only its owner reads.
fn pack(dir: &Path, name: &str, archive: &Path) -> Result<()> {
    let failed = || format!("could not write {}", archive.display());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(archive).with_context(failed)?;
    let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    tar.append_dir_all(name, dir).with_context(failed)?;
    let file = tar.into_inner().and_then(GzEncoder::finish).with_context(failed)?;
    file.sync_all().with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::Files;

    #[test]
    fn a_capture_has_a_directory_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let name = dir.path().join("above/capture");
        assert!(Files::new(name.clone(), false).is_ok());
        let why = Files::new(name, false).map(drop).expect_err("it is there, whoever has made it");
        assert!(format!("{why:#}").contains("exists"), "{why:#}");
    }
}
