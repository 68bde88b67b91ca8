//! `drover`: the one binary. It parses, composes and prints; what it composes lives in the other crates.
//!
//! Begin reading at [`Command`]; each verb is one file in `commands/`, the agent is in `agent/`, the demo in `demo/`,
//! `check` in `check/`.

mod absent;
mod agent;
mod argv;
mod check;
mod commands;
mod conn;
mod demo;
mod examples;
mod failure;
mod help;
#[cfg(test)]
mod job_reference;
mod output;
#[cfg(test)]
mod page;
#[cfg(test)]
mod reference;
mod when;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "drover",
    version,
    about = "Runs workloads on a fleet of machines; remote tasks outlive the node that manages them",
    disable_help_subcommand = true,
    // Flags are written with one dash, as in Nomad; two dashes work as well.
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work with access control: tokens, policies, roles, methods to log in
    #[command(subcommand)]
    Acl(commands::acl::Command),
    /// Run an agent: server, node, or both
    Agent(agent::AgentArgs),
    /// Show the state of this agent
    AgentInfo(commands::agent_info::Args),
    /// Work with allocations
    #[command(subcommand)]
    Alloc(commands::alloc::Command),
    /// Fetch one artifact: what a node starts for each, with its task on stdin
    #[command(hide = true)]
    ArtifactFetch,
    /// Check what your driver and provider make of failures
    #[command(subcommand)]
    Check(check::Command),
    /// Stand between a node and a plugin, and let calls go wrong: what `check remote` starts
    #[command(hide = true)]
    CheckLine(check::line::Args),
    /// Complete a command line: what the scripts of `completion` call
    #[command(hide = true)]
    Complete(commands::complete::Args),
    /// Print a completion script for a shell
    Completion(commands::completion::Args),
    /// Work with agent configuration files
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Run a one-minute demo of remote tasks
    Demo(demo::DemoArgs),
    /// End a cluster that `demo -keep` has left
    #[command(hide = true)]
    DemoStop(demo::StopArgs),
    /// Work with deployments
    #[command(subcommand)]
    Deployment(commands::deployment::Command),
    /// Check and describe driver plugins; serve a built-in one (the agent does)
    Driver(commands::driver::Args),
    /// Work with evaluations
    #[command(subcommand)]
    Eval(commands::eval::Command),
    /// Format job files and configuration files
    Fmt(commands::fmt::Args),
    /// Work with jobs
    #[command(subcommand)]
    Job(commands::job::Command),
    /// Exchange a login at an identity provider for a token
    Login(commands::login::Args),
    /// Follow an agent's log
    Monitor(commands::agent_monitor::Args),
    /// Work with namespaces
    #[command(subcommand)]
    Namespace(commands::namespace::Command),
    /// Work with nodes
    #[command(subcommand)]
    Node(commands::node::Command),
    /// Use the HTTP API directly; manage the scheduler, snapshots and recovery
    #[command(subcommand)]
    Operator(commands::operator::Command),
    /// Work with remote tasks
    #[command(subcommand)]
    Remote(commands::remote::Command),
    /// Show what autoscalers are told to do
    #[command(subcommand)]
    Scaling(commands::scaling::Command),
    /// Work with servers
    #[command(subcommand)]
    Server(commands::server::Command),
    /// Work with services
    #[command(subcommand)]
    Service(commands::service::Command),
    /// Show the object with an id or name
    Status(commands::status::Args),
    /// Maintain the cluster
    #[command(subcommand)]
    System(commands::system::Command),
    /// Make and show certificates
    #[command(subcommand)]
    Tls(commands::tls::Command),
    /// Open the web UI
    Ui(commands::ui::Args),
    /// Work with variables
    #[command(subcommand)]
    Var(commands::var::Command),
    /// Show the version
    Version(commands::version::Args),
    /// Work with dynamic host volumes
    #[command(subcommand)]
    Volume(commands::volume::Command),
}

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::of_command("agent");

fn main() -> ExitCode {
    // Before the first thread.
    heap::prepare();
    let tree = self::command();
    let args = argv::rewrite(std::env::args(), &tree);
    let matches = tree.clone().try_get_matches_from(&args);
    let parsed = matches.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let cli = match parsed {
        Ok((cli, matches)) => {
            absent::without_effect(&tree, &matches).iter().for_each(|said| output::note(said));
            cli
        }
        Err(error) => return help::answer(&error, &tree, &args),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            failure::tell(&error);
            ExitCode::FAILURE
        }
    }
}

/// The tree of commands with its help.
pub(crate) fn command() -> clap::Command {
    help::lay_out(Cli::command())
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        // These own their runtime, or need none.
        Command::Agent(args) => agent::run(args),
        Command::ArtifactFetch => Ok(artifact::serve()),
        Command::Driver(args) => commands::driver::run(&args),
        Command::Complete(args) => commands::complete::run(&args, &self::command()),
        Command::Completion(args) => {
            commands::completion::run(&args, &mut self::command());
            Ok(ExitCode::SUCCESS)
        }
        Command::Config(c) => commands::config::run(c),
        Command::Fmt(args) => commands::fmt::run(&args),
        Command::Tls(c) => commands::tls::run(c),
        Command::Version(args) => commands::version::run(&args),
        other => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            match other {
                Command::Acl(c) => commands::acl::run(c).await,
                Command::AgentInfo(args) => commands::agent_info::run(args).await,
                Command::Alloc(c) => commands::alloc::run(c).await,
                Command::Check(c) => check::run(c).await,
                Command::CheckLine(args) => check::line::run(args).await,
                Command::Demo(args) => demo::run(args).await,
                Command::DemoStop(args) => demo::stop(args).await,
                Command::Deployment(c) => commands::deployment::run(c).await,
                Command::Eval(c) => commands::eval::run(c).await,
                Command::Job(c) => commands::job::run(c).await,
                Command::Login(args) => commands::login::run(args).await,
                Command::Monitor(args) => commands::agent_monitor::run(args).await,
                Command::Namespace(c) => commands::namespace::run(c).await,
                Command::Operator(c) => commands::operator::run(c).await,
                Command::Node(c) => commands::node::run(c).await,
                Command::Remote(c) => commands::remote::run(c).await,
                Command::Scaling(c) => commands::scaling::run(c).await,
                Command::Server(c) => commands::server::run(c).await,
                Command::Service(c) => commands::service::run(c).await,
                Command::Status(args) => commands::status::run(args).await,
                Command::System(c) => commands::system::run(c).await,
                Command::Ui(args) => commands::ui::run(args).await,
                Command::Var(c) => commands::var::run(c).await,
                Command::Volume(c) => commands::volume::run(c).await,
                Command::Agent(_)
                | Command::ArtifactFetch
                | Command::Driver(_)
                | Command::Complete(_)
                | Command::Completion(_)
                | Command::Config(_)
                | Command::Fmt(_)
                | Command::Tls(_)
                | Command::Version(_) => Ok(ExitCode::SUCCESS),
            }
        }),
    }
}
