//! `drover demo`: the point of the project in one minute, on this machine, with nothing else installed.
//!
//! It starts a server and nodes as processes of this same binary, runs a local job and a remote one from `examples/`,
//! and then does to the nodes what operators and machines do to them: drain, SIGKILL, removal, late replacement, a
//! killed driver plugin. A timeline shows what happens; at the end a table says what held. Exit code 0 only if
//! everything held. Whatever happens, nothing is left running (unless `-keep`).

pub(crate) mod cluster;
mod counter;
mod rounds;
mod runtime;
pub(crate) mod story;
pub(crate) mod sweep;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;

use self::runtime::Runtime;
use crate::output;

/// Options of the demo.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Leave the cluster running at the end and print what to try.
    #[arg(long)]
    keep: bool,
    /// Open the remote task in a browser, and go on killing its managers until Ctrl-C.
    #[arg(long, conflicts_with = "keep")]
    ui: bool,
    /// Run the remote task on a runtime of yours: `slurm` or `kubernetes`.
    #[arg(long, value_name = "DRIVER", value_parser = runtime::DRIVERS, conflicts_with = "keep")]
    with: Option<String>,
    /// Configuration of the plugin for `-with`: that of an agent, or the body of its `config`.
    #[arg(long, requires = "with", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Image of the remote task, for `-with kubernetes`; it has a `/bin/sh`. Without it: `busybox:1`
    #[arg(long, requires = "with")]
    image: Option<String>,
    /// Time that a node may act without contact to the server; the hand-over after a SIGKILL takes about as long.
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    lease: model::GoDuration,
    /// Print the agents' logs to standard error if a step fails.
    #[arg(long)]
    verbose: bool,
}

/// What the demo's runtime stands for.
const ELSEWHERE: &str = "\
The remote task ran in a directory of this machine that belongs to no node (remote_exec, transport \"local\"). On \
real runtimes:
  remote_exec    transport \"ssh\"; hosts with an ssh server, and a key to log in; nothing else is installed there \
  (examples/agents/client-ssh.hcl)
  docker_remote  a Docker engine elsewhere, by TCP with TLS, ssh or a socket (docs/reference/drivers/docker.md)
  ecs            an Amazon ECS cluster, on Fargate or EC2; a plugin of its own, cargo build -p ecs \
  (docs/reference/drivers/ecs.md)
  batch          jobs of an AWS Batch queue; a plugin of its own, cargo build -p batch \
  (docs/reference/drivers/batch.md)
  kubernetes     pods of a cluster, and slurm, jobs of one; plugins of their own: drover demo -with slurm -config FILE
What each driver guarantees is in docs/concepts/remote-tasks.md.";

/// The whole demo may take this long; a story that hangs is a failure, not a wait.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the demo.
///
/// # Errors
/// When the cluster could not be set up at all.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode> {
    let runtime = match &args.with {
        Some(driver) => Runtime::named(driver, args.config.as_deref(), args.image.as_deref()).await?,
        None => Runtime::Here,
    };
    let mut cluster = cluster::Cluster::new(args.lease, runtime)?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(LIMIT, story::tell(&mut cluster, args.ui)) => match outcome {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow::anyhow!("the demo did not finish within {} seconds", LIMIT.as_secs())),
        },
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
    };
    if let Err(error) = &outcome {
        eprintln!("\ndrover demo: {error:#}");
    }
    let mut held = outcome.as_ref().is_ok_and(story::Report::all_held);
    if !held {
        cluster.print_logs(if args.verbose { usize::MAX } else { 12 });
    }
    if outcome.is_ok() && args.ui {
        tokio::select! {
            ended = rounds::go_on(&mut cluster) => if let Err(error) = ended {
                eprintln!("drover demo: {error:#}");
                cluster.print_logs(12);
                held = false;
            },
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
    if let Some(driver) = &args.with
        && let Err(error) = story::let_go(&mut cluster).await
    {
        eprintln!("drover demo: something of the remote task may be left at {driver}: {error:#}");
        held = false;
    }
    let keep = args.keep && outcome.is_ok();
    // Before more is printed: where nobody reads any more, that ends this process.
    let left = if keep { BTreeMap::new() } else { cluster.tear_down().await };
    if keep {
        cluster.keep();
    }
    if let Ok(report) = &outcome {
        report.print();
        if args.with.is_none() {
            output::line("");
            output::line(ELSEWHERE);
        }
    }
    if keep {
        output::line("");
        output::line("The cluster is still running. Try:");
        output::line(&format!("  export DROVER_ADDR={}", cluster.address()));
        for hint in [
            "drover node status",
            "drover remote status counter",
            "drover alloc logs -f -job counter",
            "drover job status hello",
            "drover node drain -enable -yes NODE_ID",
        ] {
            output::line(&format!("  {hint}"));
        }
        output::line(&format!(
            "Everything lives in {}; to end it: drover demo-stop {}",
            cluster.dir().display(),
            cluster.dir().display()
        ));
    }
    if !left.is_empty() {
        eprintln!("drover demo: could not end these processes: {left:?}");
    }
    Ok(if held && left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Options of `demo-stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The directory that `drover demo -keep` named.
    dir: std::path::PathBuf,
}

/// Ends a cluster that `-keep` has left.
///
/// # Errors
/// When the directory is not a demo's.
pub(crate) async fn stop(args: StopArgs) -> Result<ExitCode> {
    anyhow::ensure!(args.dir.join(cluster::MARKER).is_file(), "{} is not the directory of a demo", args.dir.display());
    let left = sweep::end_everything_of(&args.dir);
    anyhow::ensure!(left.is_empty(), "could not end these processes: {left:?}");
    std::fs::remove_dir_all(&args.dir)?;
    Ok(ExitCode::SUCCESS)
}
