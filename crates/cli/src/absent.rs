//! Commands that Nomad's command line has and this one does not, each with the reason and what helps.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

use crate::agent::{self, table::Fate};

/// The words of a command, or of all that begin with them, and what is said about it.
const ABSENT: &[(&[&str], &str)] = &[
    (&["alloc", "pause"], ENTERPRISE),
    (&["deployment", "unblock"], ENTERPRISE),
    (&["license"], "Drover needs no licence."),
    (&["monitor", "export"], OLDER_LOG),
    (&["operator", "autopilot", "get-config"], NO_AUTOPILOT),
    (&["operator", "autopilot", "set-config"], NO_AUTOPILOT),
    (&["operator", "client-state"], "A running node tells what it has: `drover node audit`."),
    (&["operator", "gossip", "keyring", "install"], NO_GOSSIP),
    (&["operator", "gossip", "keyring", "list"], NO_GOSSIP),
    (&["operator", "gossip", "keyring", "remove"], NO_GOSSIP),
    (&["operator", "gossip", "keyring", "use"], NO_GOSSIP),
    (&["operator", "raft", "info"], NO_RAFT),
    (&["operator", "raft", "logs"], NO_RAFT),
    (&["operator", "raft", "migrate-backend"], NO_RAFT),
    (
        &["operator", "raft", "remove-peer"],
        "No server has to be removed: one that has stopped is off the list within 10 s. `drover operator raft \
            list-peers` shows it.",
    ),
    (&["operator", "raft", "state"], NO_RAFT),
    (
        &["operator", "snapshot", "redact"],
        "`drover operator snapshot state` prints the state in a snapshot without keys and secrets.",
    ),
    (&["operator", "utilization"], ENTERPRISE),
    (
        &["plugin"],
        "There are no CSI plugins yet. `drover node status NODE` shows drivers, `drover driver check` examines one.",
    ),
    (&["quota"], ENTERPRISE),
    (&["recommendation"], ENTERPRISE),
    (&["sentinel"], ENTERPRISE),
    (
        &["server", "force-leave"],
        "No server has to be removed: one that has stopped is off the list within 10 s. `drover server members` shows \
            it.",
    ),
    (&["server", "join"], "Servers do not join each other: those with the same etcd and prefix are one cluster."),
    (&["setup"], "There is no integration with Consul or Vault that could be set up."),
    (&["volume", "deregister"], "There are no CSI volumes. `drover volume delete` forgets a registered host volume."),
    (&["volume", "detach"], "There are no CSI volumes, and a host volume is attached to nothing."),
    (&["volume", "snapshot"], "There are no CSI volumes; snapshots of host volumes are their plugin's to make."),
];

const ENTERPRISE: &str = "Only Nomad Enterprise has what it is for.";
const NO_GOSSIP: &str =
    "Servers and nodes do not gossip: servers that share a store have one key, server.encrypt in their configuration.";
const NO_AUTOPILOT: &str = "There is nothing to configure: etcd decides which server leads. `drover operator autopilot \
    health` shows how the servers are.";
const NO_RAFT: &str = "There is no Raft between servers: etcd decides which one leads. `drover operator autopilot \
    health` shows its members.";

/// Flags of commands that are there, what becomes of them, and what is said about it. Those without effect stand in
/// the tree of commands as well.
const FLAGS: &[(&[&str], &[&str], Fate)] = &[
    (&["alloc", "fs"], &["verbose"], Fate::Idle("Files have no identifiers.")),
    (&["alloc", "logs"], &["verbose"], Fate::Idle("Output has no identifiers.")),
    (&["deployment", "status"], &["wait"], Fate::Idle("-monitor hears of changes; it does not ask again and again.")),
    (&["job", "init"], &["connect"], Fate::Refused("There is no Consul Connect.")),
    (
        &["job", "init"],
        &["list-templates", "template"],
        Fate::Refused("Drover keeps no templates of job files in variables."),
    ),
    (&["job", "plan"], &["policy-override"], NO_POLICIES),
    (&["job", "run"], &["policy-override"], NO_POLICIES),
    (&["job", "stop"], &["global"], Fate::Refused("A cluster is one region. Leave it out.")),
    (&["operator", "debug"], &["pprof-duration", "pprof-interval"], Fate::Idle("There are no profiles of this kind.")),
    (&["volume"], &["policy-override"], NO_POLICIES),
    (&["volume"], &["detach"], Fate::Idle("The command ends when the node has answered.")),
    (&["volume", "create"], &["verbose"], Fate::Idle("Identifiers are always in full.")),
    (&["volume", "register"], &["verbose"], Fate::Idle("Identifiers are always in full.")),
    (&["check"], &["min-peers", "min-servers"], Fate::Refused(NO_CHECK)),
    (&["check"], OF_CONNECTIONS, Fate::Refused(NO_CHECK)),
    (&["job"], &["consul-namespace", "consul-token"], Fate::Refused("There is no Consul integration.")),
    (&["job"], &["vault-namespace"], Fate::Refused("Write `namespace` in the vault block of the tasks.")),
    (&["job"], &["vault-token"], Fate::Refused("Tasks log in to Vault with their workload identity. Leave it out.")),
    (
        &["node", "config"],
        &["update-servers"],
        Fate::Refused(
            "The agent's configuration names the servers: change client.servers, and restart the agent. Tasks keep \
                running.",
        ),
    ),
    (&["operator", "debug"], &["log-file-export", "log-lookback"], Fate::Refused(OLDER_LOG)),
    (
        &["operator", "debug"],
        &[
            "consul-ca-cert",
            "consul-ca-path",
            "consul-client-cert",
            "consul-client-key",
            "consul-http-addr",
            "consul-token",
            "consul-token-file",
            "vault-address",
            "vault-ca-cert",
            "vault-ca-path",
            "vault-client-cert",
            "vault-client-key",
            "vault-token",
        ],
        Fate::Refused("Consul and Vault are not asked. Leave it out."),
    ),
    (
        &["operator", "scheduler", "set-config"],
        &["node-limit-for-feasibility-checks"],
        Fate::Refused("The scheduler scores every node that fits."),
    ),
    (
        &["operator", "snapshot", "save"],
        &["redact"],
        Fate::Refused("`drover operator snapshot state` prints the state in a snapshot without keys and secrets."),
    ),
    (
        &["operator", "snapshot", "restore"],
        OF_CONNECTIONS,
        Fate::Refused(
            "No agent is asked: the servers are stopped, and -data-dir or -config says where their state is.",
        ),
    ),
    (
        &["volume", "delete"],
        &["secret"],
        Fate::Refused("There are no CSI volumes, and the plugins of host volumes take no secrets."),
    ),
];
const NO_POLICIES: Fate = Fate::Idle("There are no Sentinel policies.");
const NO_CHECK: &str = "Nomad has deprecated its check of an agent. `drover operator autopilot health` shows how the \
    servers are, `drover agent-info` how this agent is.";
const OLDER_LOG: &str =
    "An agent's older log is in its log_file or its journal. `drover monitor` follows the log from now on.";

/// The flags of the connection, which each command has that asks an agent.
pub(crate) const OF_CONNECTIONS: &[&str] = &[
    "address",
    "ca-cert",
    "ca-path",
    "client-cert",
    "client-key",
    "force-color",
    "no-color",
    "region",
    "tls-server-name",
    "tls-skip-verify",
    "token",
];

/// The commands of Nomad, each with its flags.
#[cfg(test)]
pub(crate) fn of_nomad() -> impl Iterator<Item = (Vec<&'static str>, Vec<&'static str>)> {
    let lines = include_str!("stock_commands.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(':')).map(|(words, flags)| {
        let flags = flags.split_whitespace().flat_map(|flag| match flag {
            "connection" => OF_CONNECTIONS.to_vec(),
            _ => vec![flag],
        });
        (words.split_whitespace().collect(), flags.collect())
    })
}

/// What becomes of a flag of Nomad's, without its dashes, unless it has its effect or is unknown.
pub(crate) fn of_flag(path: &[&str], flag: &str) -> Option<Fate> {
    let of = |(command, flags, _): &&(&[&str], &[&str], Fate)| path.starts_with(command) && flags.contains(&flag);
    let fate = FLAGS.iter().find(of).map(|(.., fate)| *fate);
    fate.or_else(|| if path == ["agent"] { agent::of_flag(flag) } else { None })
}

/// What is said of the flags that somebody has given and that have no effect.
pub(crate) fn without_effect(tree: &Command, matches: &ArgMatches) -> Vec<String> {
    let (mut command, mut matches, mut path) = (tree, matches, Vec::new());
    while let Some((name, below)) = matches.subcommand()
        && let Some(next) = command.find_subcommand(name)
    {
        path.push(next.get_name());
        (command, matches) = (next, below);
    }
    let given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let flags = command.get_arguments().filter(given).filter_map(Arg::get_long);
    // Those of an agent are settings: its log tells of them.
    flags
        .filter(|_| path != ["agent"])
        .filter_map(|flag| match of_flag(&path, flag) {
            Some(Fate::Idle(why)) => Some(format!("-{flag} has no effect. {why}")),
            _ => None,
        })
        .collect()
}

/// What is said when somebody types this command, whose last word is `word`.
pub(crate) fn reason(path: &[&str], word: &str) -> Option<&'static str> {
    let words: Vec<&str> = path.iter().copied().chain([word]).collect();
    ABSENT.iter().find(|(absent, _)| words.starts_with(absent)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::{ABSENT, Fate, of_flag, of_nomad, reason, without_effect};

    #[test]
    fn what_is_said_to_be_absent_is_absent_and_what_it_names_is_there() {
        let tree = crate::command();
        let find = |words: &[&str]| words.iter().try_fold(&tree, |at, word| at.find_subcommand(word)).is_some();
        for (words, why) in ABSENT {
            assert!(!find(words), "drover {} is there", words.join(" "));
            for command in why.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.strip_prefix("drover ")) {
                let line = ["drover"].into_iter().chain(command.split(' ')).map(str::to_owned);
                let typed = crate::argv::rewrite(line, &tree);
                let (leaf, _) = crate::argv::leaf(&tree, &typed);
                assert!(!leaf.is_subcommand_required_set() && leaf.get_name() != "drover", "{command}");
            }
        }
    }

    #[test]
    fn every_command_of_nomad_is_there_or_has_a_reason() {
        let tree = crate::command();
        let neither = |words: &[&'static str]| {
            let (last, before) = words.split_last()?;
            let there = words.iter().try_fold(&tree, |at, word| at.find_subcommand(word)).is_some();
            (!there && reason(before, last).is_none()).then(|| words.join(" "))
        };
        let wrong: Vec<String> = of_nomad().filter_map(|(words, _)| neither(&words)).collect();
        assert!(wrong.is_empty(), "neither there nor absent by name: {wrong:#?}");
    }

    #[test]
    fn every_flag_of_nomad_is_there_or_has_a_reason() {
        let tree = crate::command();
        let mut wrong = Vec::new();
        for (words, flags) in of_nomad() {
            let Some(command) = words.iter().try_fold(&tree, |at, word| at.find_subcommand(word)) else { continue };
            for flag in flags {
                let fate = of_flag(&words, flag);
                let parses = crate::argv::named(command, flag).is_some();
                // An agent reads the flags that it refuses, and says why.
                let fits = match fate {
                    Some(Fate::Refused(_)) => !parses || words == ["agent"],
                    _ => parses,
                };
                if !fits {
                    wrong.push(format!("{} -{flag}: in the tree {parses}, in the table {fate:?}", words.join(" ")));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_flag_without_effect_says_so() {
        let told = |line: &[&str]| {
            let tree = crate::command();
            let typed = crate::argv::rewrite(line.iter().map(|word| (*word).to_owned()), &tree);
            without_effect(&tree, &tree.clone().try_get_matches_from(typed).expect("it parses"))
        };
        let override_ = "-policy-override has no effect. There are no Sentinel policies.";
        assert_eq!(told(&["drover", "job", "run", "-policy-override", "x.hcl"]), [override_]);
        assert_eq!(told(&["drover", "run", "-policy-override", "-detach", "x.hcl"]), [override_]);
        assert_eq!(told(&["drover", "job", "run", "-detach", "x.hcl"]), [""; 0]);
        assert_eq!(told(&["drover", "agent", "-raft-protocol", "3"]), [""; 0]);
    }

    #[test]
    fn the_reason_is_told_for_every_word_below() {
        assert!(reason(&["operator"], "client-state").is_some_and(|why| why.contains("node audit")));
        assert!(reason(&["operator", "raft"], "info").is_some() && reason(&["operator", "raft"], "infos").is_none());
        assert_eq!(reason(&["job"], "var"), None);
    }
}
