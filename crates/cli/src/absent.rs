//! Commands that Nomad's command line has and this one does not, each with the reason and what helps.

/// The words of a command, or of all that begin with them, and what is said about it.
const ABSENT: &[(&[&str], &str)] = &[
    (&["alloc", "pause"], ENTERPRISE),
    (&["deployment", "unblock"], ENTERPRISE),
    (&["license"], "Drover needs no licence."),
    (
        &["monitor", "export"],
        "An agent's older log is in its log_file or its journal. `drover monitor` follows the log from now on.",
    ),
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

/// Each command, or the words that all below begin with, and what is said about it.
#[cfg(test)]
pub(crate) fn table() -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    ABSENT.iter().copied()
}

/// What is said when somebody types this command, whose last word is `word`.
pub(crate) fn reason(path: &[&str], word: &str) -> Option<&'static str> {
    let words: Vec<&str> = path.iter().copied().chain([word]).collect();
    ABSENT.iter().find(|(absent, _)| words.starts_with(absent)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::{ABSENT, reason};

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

    /// The commands of Nomad 2.0's community edition, by the words before the last.
    const OF_NOMAD: &[(&str, &str)] = &[
        ("", "agent agent-info check fmt login monitor status ui version"),
        ("acl", "bootstrap"),
        ("acl auth-method", "create delete info list update"),
        ("acl binding-rule", "create delete info list update"),
        ("acl policy", "apply delete info list self"),
        ("acl role", "create delete info list update"),
        ("acl token", "create delete info list self update"),
        ("alloc", "checks exec fs logs restart signal status stop"),
        ("config", "validate"),
        ("deployment", "fail list pause promote resume status unblock"),
        ("eval", "delete list status"),
        (
            "job",
            "action allocs deployments dispatch eval history init inspect plan promote restart revert run scale \
             scaling-events start status stop validate",
        ),
        ("job periodic", "force"),
        ("job tag", "apply unset"),
        ("monitor", "export"),
        ("namespace", "apply delete inspect list status"),
        ("node", "config drain eligibility status"),
        ("node identity", "get renew"),
        ("node intro", "create"),
        ("node meta", "apply read"),
        ("node pool", "apply delete info init jobs list nodes"),
        ("operator", "api client-state debug metrics"),
        ("operator autopilot", "get-config health set-config"),
        ("operator gossip keyring", "generate install list remove use"),
        ("operator raft", "info list-peers logs migrate-backend remove-peer state transfer-leadership"),
        ("operator root keyring", "list remove rotate"),
        ("operator scheduler", "get-config set-config"),
        ("operator snapshot", "inspect redact restore save state"),
        ("plugin", "status"),
        ("scaling policy", "info list"),
        ("server", "force-leave join members"),
        ("service", "delete info list"),
        ("setup", "consul vault"),
        ("system", "gc"),
        ("system reconcile", "summaries"),
        ("tls ca", "create info"),
        ("tls cert", "create info"),
        ("var", "get init list lock purge put"),
        ("volume", "create delete deregister detach init register status"),
        ("volume claim", "delete list"),
        ("volume snapshot", "create delete list"),
    ];

    #[test]
    fn every_command_of_nomad_is_there_or_has_a_reason() {
        let tree = crate::command();
        for (before, last) in OF_NOMAD {
            let before: Vec<&str> = before.split_whitespace().collect();
            for word in last.split_whitespace() {
                let words = before.iter().copied().chain([word]);
                let there = words.clone().try_fold(&tree, |at, word| at.find_subcommand(word)).is_some();
                let known = there || reason(&before, word).is_some();
                assert!(known, "drover {} is neither there nor absent by name", words.collect::<Vec<_>>().join(" "));
            }
        }
    }

    #[test]
    fn the_reason_is_told_for_every_word_below() {
        assert!(reason(&["operator"], "client-state").is_some_and(|why| why.contains("node audit")));
        assert!(reason(&["operator", "raft"], "info").is_some() && reason(&["operator", "raft"], "infos").is_none());
        assert_eq!(reason(&["job"], "var"), None);
    }
}
