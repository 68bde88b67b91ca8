//! `drover complete -- WORD…`: what the last word of a command line may become, one candidate a line; `:files` asks
//! the shell for files. The scripts of `drover completion` call it. It is silent about whatever goes wrong: nobody
//! has asked for an error between two words.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use api::{call, shapes::SearchRequest};
use clap::{Arg, ArgAction, Command};

use super::{ApiArgs, driver::BUILT_IN};
use crate::{argv, conn::Conn, output};

/// How long people wait for candidates at most.
const PATIENCE: Duration = Duration::from_millis(900);

/// What tells the scripts to offer names of files.
const FILES: &str = ":files";

/// How many variables are offered at most.
const MOST: usize = 100;

/// Shortest beginning that a fuzzy search takes.
const FUZZY: usize = 2;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The words after `drover`, up to the one that is completed
    #[arg(last = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Objects of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Accessors of tokens.
    Accessors,
    Allocs,
    AuthMethods,
    BindingRules,
    Deployments,
    Evals,
    Jobs,
    Namespaces,
    NodePools,
    Nodes,
    Policies,
    RoleNames,
    /// Ids of roles.
    Roles,
    RootKeys,
    Services,
    /// Slots of remote tasks.
    Slots,
    /// Instances that no record knows.
    Unbound,
    Variables,
    /// Claims on host volumes.
    VolumeClaims,
    Volumes,
}

/// What an operand or the value of a flag may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Takes {
    sources: &'static [Source],
    names: &'static [&'static str],
    files: bool,
}

/// What is offered for a word.
#[derive(Debug, Default)]
struct Offer {
    /// The word so far, without `lead`.
    prefix: String,
    /// What each candidate begins with: `-flag=`, where that is part of the word.
    lead: String,
    /// Candidates that need no agent.
    words: Vec<String>,
    sources: &'static [Source],
    files: bool,
    /// The connection as the flags on the line say.
    api: ApiArgs,
    /// Nothing more on the line is a flag.
    verbatim: bool,
}

/// Prints the candidates.
pub(crate) fn run(args: &Args, tree: &Command) -> Result<ExitCode> {
    let mut offer = offer(tree, &args.words);
    if !offer.sources.is_empty()
        && let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build()
    {
        let found = runtime.block_on(async { tokio::time::timeout(PATIENCE, found(&offer)).await });
        // A name that is being resolved holds nobody up.
        runtime.shutdown_background();
        // What looks like a flag would be taken for one, unless flags have ended.
        let verbatim = offer.verbatim;
        offer.words.extend(found.unwrap_or_default().into_iter().filter(|name| verbatim || !name.starts_with('-')));
    }
    for line in lines(offer) {
        output::line(&line);
    }
    Ok(ExitCode::SUCCESS)
}

/// The candidates that fit, each once.
fn lines(offer: Offer) -> Vec<String> {
    let Offer { prefix, lead, mut words, files, .. } = offer;
    words.retain(|w| w.starts_with(&prefix) && !w.chars().any(char::is_control));
    words.sort();
    words.dedup();
    words.into_iter().map(|w| format!("{lead}{w}")).chain(files.then(|| FILES.to_owned())).collect()
}

/// What an operand of a command may be, by the command's path and the operand's name. `None`: the table does not know
/// it.
fn operand(path: &[&str], id: &str) -> Option<Takes> {
    use Source::{
        Accessors, Allocs, AuthMethods, BindingRules, Deployments, Evals, Jobs, Namespaces, NodePools, Nodes, Policies,
        Roles, RootKeys, Services, Slots, Unbound, Variables, VolumeClaims, Volumes,
    };
    let of = |sources| Takes { sources, ..Takes::default() };
    let files = Takes { files: true, ..Takes::default() };
    // Text, numbers, names of what is inside of an object.
    let free = Takes::default();
    Some(match (path, id) {
        (["acl", "auth-method", ..], "name") => of(&[AuthMethods]),
        (["acl", "binding-rule", ..], "id") => of(&[BindingRules]),
        (["acl", "bootstrap" | "policy" | "token", ..], "file") => files,
        (["acl", "explain"], "method" | "path") => free,
        (["acl", "policy", ..], "name") => of(&[Policies]),
        (["acl", "role", ..], "id") => of(&[Roles]),
        (["acl", "token", ..], "accessor") => of(&[Accessors]),
        (["alloc", ..], "id") => of(&[Allocs, Jobs]),
        (["alloc", ..], "task" | "path" | "command") => free,
        (["config", "validate"], "paths") | (["fmt"], "paths") => files,
        (["deployment", ..], "id") => of(&[Deployments]),
        (["check" | "check-line", ..], "args" | "dir" | "program") => free,
        (["driver"], "name") => Takes { names: BUILT_IN, ..Takes::default() },
        (["driver", ..], "driver") => Takes { names: BUILT_IN, files: true, ..Takes::default() },
        (["driver", ..], "args") => free,
        (["eval", "explain"], "id") => of(&[Evals, Jobs]),
        (["eval", ..], "id" | "ids") => of(&[Evals]),
        (["job", "init" | "plan" | "run" | "validate"], "path") | (["job", "dispatch"], "payload") => files,
        (["job", ..], "id" | "ids" | "job") => of(&[Jobs]),
        (["job", ..], "version" | "group_and_count" | "name") | (["scaling", ..], "id") => free,
        (["namespace", "apply"], "what") | (["node", "pool", "apply" | "init"], "file") => files,
        (["namespace", ..], "name") => of(&[Namespaces]),
        (["node", "pool", ..], "pool") => of(&[NodePools]),
        (["node", "meta", ..], "pairs") => free,
        (["node", ..], "id") => of(&[Nodes]),
        (["operator", "api"], "path" | "body") => free,
        (["operator", "snapshot", ..], "file") => files,
        (["operator", "root", ..], "key") => of(&[RootKeys]),
        (["remote", "adopt" | "stop"], "instance") => of(&[Unbound]),
        (["remote", "gone" | "restart"], "slot") => of(&[Slots]),
        (["remote", "forget"], "what") => of(&[Slots, Unbound]),
        (["remote", "status"], "what") => of(&[Slots]),
        (["service", ..], "service") => of(&[Services]),
        (["service", "delete"], "id") => free,
        (["status"], "id") => of(&[Jobs, Allocs, Nodes, Evals, Deployments, Volumes]),
        (["ui"], "id") => of(&[Jobs, Allocs, Nodes, Evals, Deployments]),
        (["tls", ..], "file") | (["var", "init"], "file") => files,
        (["var", "put"], "operands") => of(&[Variables]),
        (["var", "lock"], "command") => free,
        (["var", ..], "path" | "prefix") => of(&[Variables]),
        (["volume", "create" | "register" | "init"], "file") => files,
        (["volume", ..], "volume") => of(&[Volumes]),
        (["volume", "claim", ..], "claim") => of(&[VolumeClaims]),
        _ => return None,
    })
}

/// What the value of a flag may be.
fn value(path: &[&str], id: &str) -> Takes {
    let of = |sources| Takes { sources, ..Takes::default() };
    match (path, id) {
        (_, "namespace") => of(&[Source::Namespaces]),
        (_, "ca_cert" | "ca_path" | "client_cert" | "client_key") | (["tls", ..], "ca" | "key") => {
            Takes { files: true, ..Takes::default() }
        }
        (["acl", "binding-rule", ..], "auth_method") | (["login"], "method") => of(&[Source::AuthMethods]),
        (["acl", "role" | "token", ..], "policies") => of(&[Source::Policies]),
        (["acl", "token", ..], "role_ids") => of(&[Source::Roles]),
        (["acl", "token", ..], "role_names") => of(&[Source::RoleNames]),
        (["acl", "policy", ..] | ["eval", ..] | ["job", "action"] | ["scaling", ..], "job") => of(&[Source::Jobs]),
        (["job", "action"], "alloc") => of(&[Source::Allocs]),
        (["node" | "volume", ..], "node_pool") => of(&[Source::NodePools]),
        (["volume", ..], "node") => of(&[Source::Nodes]),
        (["volume", ..], "job") => of(&[Source::Jobs]),
        (["node", ..] | ["monitor"], "node_id") => of(&[Source::Nodes]),
        (["check", ..], "driver") => Takes { names: BUILT_IN, files: true, ..Takes::default() },
        (["check", ..], "only") => Takes { names: &crate::check::FAILURES, ..Takes::default() },
        (["check" | "driver", ..], "preset") => Takes { names: &driver_check::TaskKit::PRESETS, ..Takes::default() },
        (["agent" | "demo"] | ["check" | "driver", ..], "config")
        | (["job", ..], "var_files" | "template")
        | (["check" | "driver", ..], "task") => Takes { files: true, ..Takes::default() },
        _ => Takes::default(),
    }
}

/// What the last word may become.
fn offer(tree: &Command, words: &[String]) -> Offer {
    let (mut words, parted) = joined(words);
    let word = words.pop().unwrap_or_default();
    let args = argv::rewrite(std::iter::once("drover".to_owned()).chain(words), tree);
    let (leaf, verbs) = argv::leaf(tree, &args);
    let path: Vec<&str> = args[1..verbs].iter().map(String::as_str).collect();
    let line = read(leaf, &args[verbs..]);
    let verbatim = line.verbatim || line.open.is_some();
    let mut offer = Offer { prefix: word.clone(), api: line.api, verbatim, ..Offer::default() };
    // What a task is to run is no word of ours.
    if leaf.get_positionals().nth(line.operands).is_some_and(Arg::is_trailing_var_arg_set)
        || line.operands > 0 && leaf.get_arguments().any(Arg::is_trailing_var_arg_set)
    {
        return offer;
    }
    if let Some(flag) = line.open {
        take(&mut offer, flag, value(&path, flag.get_id().as_str()));
    } else if word.starts_with('-') && !line.verbatim {
        match word.split_once('=') {
            Some((name, rest)) => {
                offer.prefix = rest.to_owned();
                // Where the shell has parted the word, only what is behind the equal sign is replaced.
                offer.lead = if parted { String::new() } else { format!("{name}=") };
                if let Some(flag) = argv::named(leaf, name.trim_start_matches('-')) {
                    take(&mut offer, flag, value(&path, flag.get_id().as_str()));
                }
            }
            None => offer.words = flags(leaf, if word.starts_with("--") { "--" } else { "-" }),
        }
    } else {
        if line.operands == 0 && !line.verbatim {
            offer.words.extend(leaf.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name().to_owned()));
            if path.is_empty() {
                offer
                    .words
                    .extend(argv::ALIASES.iter().map(|(alias, _)| (*alias).to_owned()).filter(|a| !a.contains('-')));
            }
        }
        let many = |a: &&Arg| matches!(a.get_action(), ArgAction::Append);
        let positionals: Vec<&Arg> = leaf.get_positionals().filter(|a| line.verbatim || !a.is_last_set()).collect();
        if let Some(arg) = positionals.get(line.operands).or_else(|| positionals.last().filter(|a| many(a))) {
            take(&mut offer, arg, operand(&path, arg.get_id().as_str()).unwrap_or_default());
        }
    }
    offer
}

/// Offers what an argument may be.
fn take(offer: &mut Offer, arg: &Arg, takes: Takes) {
    offer.words.extend(arg.get_possible_values().iter().filter(|v| !v.is_hide_set()).map(|v| v.get_name().to_owned()));
    offer.words.extend(takes.names.iter().map(|n| (*n).to_owned()));
    offer.sources = takes.sources;
    offer.files = takes.files;
}

/// The flags of a command that people see.
fn flags(leaf: &Command, dashes: &str) -> Vec<String> {
    let long = leaf.get_arguments().filter(|a| !a.is_hide_set()).filter_map(Arg::get_long);
    long.chain(["help"]).map(|name| format!("{dashes}{name}")).collect()
}

/// What stands on a command line before the word in question.
#[derive(Default)]
struct Line<'a> {
    operands: usize,
    /// A flag whose value is the next word.
    open: Option<&'a Arg>,
    /// After `--` nothing is a flag.
    verbatim: bool,
    api: ApiArgs,
}

fn read<'a>(leaf: &'a Command, args: &[String]) -> Line<'a> {
    let mut line = Line::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if line.verbatim || arg == "-" || !arg.starts_with('-') {
            line.operands += 1;
            continue;
        }
        if arg == "--" {
            line.verbatim = true;
            continue;
        }
        let text = arg.trim_start_matches('-');
        let (name, mut text) =
            text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
        let Some(flag) = argv::named(leaf, name) else { continue };
        if text.is_none() && argv::takes_next(flag) {
            text = args.next().cloned();
            line.open = text.is_none().then_some(flag);
        }
        match flag.get_id().as_str() {
            "address" => line.api.address = text,
            "region" => line.api.region = text,
            "namespace" => line.api.namespace = text,
            "token" => line.api.token = text,
            "ca_cert" => line.api.ca_cert = text,
            "ca_path" => line.api.ca_path = text,
            "client_cert" => line.api.client_cert = text,
            "client_key" => line.api.client_key = text,
            "tls_server_name" => line.api.tls_server_name = text,
            "tls_skip_verify" => line.api.tls_skip_verify = true,
            _ => {}
        }
    }
    line
}

/// The words as the command would get them: without the shell's quotes, and with `-flag=value` in one piece, which
/// bash has parted. Also whether the last word was parted.
fn joined(words: &[String]) -> (Vec<String>, bool) {
    let mut whole: Vec<String> = Vec::new();
    let mut parted = false;
    let mut open = false;
    for word in words {
        let flag = whole.last_mut().filter(|w| w.starts_with('-') && (open || word == "=" && !w.contains('=')));
        parted = flag.is_some();
        match flag {
            Some(flag) => flag.push_str(&unquoted(word)),
            None => whole.push(unquoted(word)),
        }
        open = parted && word == "=";
    }
    (whole, parted)
}

/// A word without quotes and backslashes; the last one may be open.
fn unquoted(word: &str) -> String {
    let mut text = String::new();
    let mut quote = None;
    let mut chars = word.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if quote != Some('\'') => text.extend(chars.next()),
            '\'' | '"' if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            _ => text.push(c),
        }
    }
    text
}

/// What the agent has; nothing of what it does not answer.
async fn found(offer: &Offer) -> Vec<String> {
    let Ok(conn) = offer.api.conn() else { return Vec::new() };
    let each = offer.sources.iter().map(|source| of(&conn, *source, &offer.prefix));
    futures::future::join_all(each).await.into_iter().flat_map(Result::unwrap_or_default).collect()
}

async fn of(conn: &Conn, source: Source, prefix: &str) -> Result<Vec<String>> {
    Ok(match source {
        Source::Accessors => listed(conn, call::acl_tokens(), "AccessorID").await?,
        Source::AuthMethods => listed(conn, call::acl_auth_methods(), "Name").await?,
        Source::BindingRules => listed(conn, call::acl_binding_rules(), "ID").await?,
        Source::Policies => listed(conn, call::acl_policies(), "Name").await?,
        Source::RoleNames => listed(conn, call::acl_roles(), "Name").await?,
        Source::Roles => listed(conn, call::acl_roles(), "ID").await?,
        Source::Allocs => search(conn, "allocs", prefix, Some("*")).await?,
        Source::Deployments => search(conn, "deployment", prefix, Some("*")).await?,
        Source::Evals => search(conn, "evals", prefix, Some("*")).await?,
        Source::Jobs => search(conn, "jobs", prefix, None).await?,
        Source::Namespaces => search(conn, "namespaces", prefix, None).await?,
        Source::NodePools => search(conn, "node_pools", prefix, None).await?,
        Source::Nodes => {
            let mut nodes = search(conn, "nodes", prefix, None).await?;
            // Nodes go by their names, too.
            if prefix.chars().count() >= FUZZY {
                let request =
                    SearchRequest { text: prefix.to_owned(), context: "nodes".to_owned(), ..SearchRequest::default() };
                let mut matches = conn.ask(call::search_fuzzy(&request)).await?.matches;
                nodes.extend(matches.remove("nodes").into_iter().flatten().map(|found| found.id));
            }
            nodes
        }
        Source::RootKeys => conn.ask(call::keys()).await?.into_iter().map(|key| key.key_id).collect(),
        Source::Services => conn
            .ask(call::services())
            .await?
            .into_iter()
            .flat_map(|n| n.services)
            .map(|service| service.service_name)
            .collect(),
        Source::Slots => {
            let tasks = conn.ask(call::remote_tasks().in_namespace("*")).await?;
            tasks.iter().map(|t| t.slot.to_string()).collect()
        }
        Source::VolumeClaims => {
            conn.ask(call::volume_claims().in_namespace("*")).await?.iter().map(|claim| claim.id.to_string()).collect()
        }
        Source::Volumes => search(conn, "host_volumes", prefix, Some("*")).await?,
        Source::Unbound => {
            let sweeps = conn.ask(call::remote_unbound().with("sweep", false)).await?;
            sweeps.into_iter().flat_map(|s| s.unbound).map(|i| i.key).collect()
        }
        Source::Variables => {
            let rows = conn.ask(call::variables().with("prefix", prefix).with("per_page", MOST)).await?;
            rows.into_iter().map(|variable| variable.path).collect()
        }
    })
}

/// A field of each row of a list.
async fn listed<T>(conn: &Conn, list: call::Call<Vec<T>>, field: &str) -> Result<Vec<String>> {
    let rows: Vec<serde_json::Value> = conn.ask(list.reading()).await?;
    Ok(rows.iter().filter_map(|row| row[field].as_str().map(str::to_owned)).collect())
}

async fn search(conn: &Conn, context: &str, prefix: &str, namespace: Option<&str>) -> Result<Vec<String>> {
    let request = SearchRequest { prefix: prefix.to_owned(), context: context.to_owned(), ..SearchRequest::default() };
    let call = call::search(&request);
    let answer = conn.ask(match namespace {
        Some(namespace) => call.in_namespace(namespace),
        None => call,
    });
    Ok(answer.await?.matches.into_values().flatten().flatten().collect())
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::{Source, lines, offer, operand, unquoted};

    fn offered(line: &str) -> super::Offer {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        offer(&crate::command(), &words)
    }

    /// Every command that people see, with its path.
    fn each(command: &Command, path: &[&str], look: &mut dyn FnMut(&Command, &[&str])) {
        look(command, path);
        for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            let path: Vec<&str> = path.iter().copied().chain([sub.get_name()]).collect();
            each(sub, &path, look);
        }
    }

    #[test]
    fn the_table_knows_every_operand() {
        let mut seen = 0;
        let mut unknown = Vec::new();
        each(&crate::command(), &[], &mut |command, path| {
            for arg in command.get_positionals() {
                seen += 1;
                if arg.get_possible_values().is_empty() && operand(path, arg.get_id().as_str()).is_none() {
                    unknown.push(format!("{} {}", path.join(" "), arg.get_id()));
                }
            }
        });
        assert!(seen > 40, "{seen}");
        assert!(unknown.is_empty(), "say what these operands may be: {unknown:#?}");
    }

    #[test]
    fn operands_and_flags_take_what_they_name() {
        use Source::{
            Accessors, Allocs, Deployments, Evals, Jobs, Namespaces, Nodes, Policies, RoleNames, Slots, Unbound,
            Variables, Volumes,
        };
        for (line, sources, files) in [
            ("job status we", &[Jobs][..], false),
            ("job stop a b c", &[Jobs], false),
            ("stop ", &[Jobs], false),
            ("logs -f -n 5 ", &[Allocs, Jobs], false),
            ("alloc exec -task web ab", &[Allocs, Jobs], false),
            ("exec abc l", &[], false),
            ("exec abc -l", &[], false),
            ("alloc status ab", &[Allocs, Jobs], false),
            ("alloc fs abc /e", &[], false),
            ("node drain -enable -deadline 5m ", &[Nodes], false),
            ("node meta read -node-id ", &[Nodes], false),
            ("monitor -node-id ", &[Nodes], false),
            ("deployment promote ", &[Deployments], false),
            ("eval status -json ", &[Evals], false),
            ("eval list -job ", &[Jobs], false),
            ("eval list -job = w", &[Jobs], false),
            ("eval list -job=w", &[Jobs], false),
            ("status a", &[Jobs, Allocs, Nodes, Evals, Deployments, Volumes], false),
            ("job status -namespace ", &[Namespaces], false),
            ("remote restart ", &[Slots], false),
            ("remote adopt ", &[Unbound], false),
            ("run ", &[], true),
            ("run -detach ex", &[], true),
            ("job plan -var a=b ", &[], true),
            ("job run -var-file ", &[], true),
            ("validate ", &[], true),
            ("config validate a b", &[], true),
            ("tls cert info ", &[], true),
            ("job status -ca-cert ", &[], true),
            ("fmt ", &[], true),
            ("job dispatch web ", &[], true),
            ("job status web ", &[], false),
            ("var get team/", &[Variables], false),
            ("acl token info ", &[Accessors], false),
            ("acl token create -policy ", &[Policies], false),
            ("acl token create -role-name ", &[RoleNames], false),
            ("acl policy apply dev ", &[], true),
            ("login -method ", &[Source::AuthMethods], false),
            ("version ", &[], false),
            ("no such ", &[], false),
        ] {
            let got = offered(line);
            assert_eq!((got.sources, got.files), (sources, files), "{line:?}");
        }
    }

    #[test]
    fn words_of_the_command_line_need_no_agent() {
        for (line, wanted) in [
            ("", &["job", "logs", "run", "status"][..]),
            ("jo", &["job"]),
            ("lo", &["login", "logs"]),
            ("job st", &["start", "status", "stop"]),
            ("help job pl", &["plan"]),
            ("job run -det", &["-detach"]),
            ("run --det", &["--detach"]),
            ("completion ba", &["bash"]),
            ("job stop -he", &["-help"]),
            ("driver check raw", &["raw_exec", ":files"]),
            ("run -var-file=a", &[":files"]),
            ("job restart -on-error=a", &["-on-error=ask"]),
            ("job restart -on-error = a", &["ask"]),
            ("job restart -on-error a", &["ask"]),
        ] {
            let got = lines(offered(line));
            for word in wanted {
                assert!(got.iter().any(|g| g == word), "{line:?}: {word} in {got:?}");
            }
            assert!(wanted.len() != 1 || got == wanted, "{line:?}: {got:?}");
            assert!(!got.iter().any(|g| g == "complete" || g == "artifact-fetch"), "{line:?}: hidden ones stay hidden");
        }
    }

    #[test]
    fn the_connection_is_that_of_the_line() {
        let api = offered("job status -address http://h:1 -namespace=blue -token t w").api;
        assert_eq!(api.address.as_deref(), Some("http://h:1"));
        assert_eq!(api.namespace.as_deref(), Some("blue"));
        assert_eq!(api.token.as_deref(), Some("t"));
    }

    #[test]
    fn words_lose_their_quotes() {
        for (word, wanted) in [
            ("default/a.g\\[0\\]/t", "default/a.g[0]/t"),
            ("'a b", "a b"),
            ("\"a'b\"c", "a'bc"),
            ("'a\\b'", "a\\b"),
            ("", ""),
        ] {
            assert_eq!(unquoted(word), wanted);
        }
    }
}
