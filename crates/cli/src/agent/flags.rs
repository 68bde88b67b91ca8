//! Flags of a stock agent that are settings of the configuration under another name. They are laid over the files, so
//! that the table of names decides on them, too.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use serde_json::{Value, json};

use super::table::{self, Fate};

/// How a flag is given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// With a value.
    One,
    /// With a value, any number of times.
    Many,
    /// Alone, or with `=true` or `=false`.
    Switch,
}
use Form::{Many, One, Switch};

/// Flag, what it sets, how it is given, and its help; those without one are not shown: they have no effect or are
/// refused.
#[rustfmt::skip]
const FLAGS: &[(&str, &str, Form, &str)] = &[
    ("state-dir", "client.state_dir", One, "Directory of the node's records"),
    ("alloc-dir", "client.alloc_dir", One, "Directory of the allocations"),
    ("http-port", "ports.http", One, "Port of the HTTP API; 0 takes a free one"),
    ("rpc-port", "ports.rpc", One, "Port of the node RPC; 0 takes a free one"),
    ("log-include-location", "log_include_location", Switch, "Add the source location to each log line"),
    ("alloc-mounts-dir", "client.alloc_mounts_dir", One, ""),
    ("host-volumes-dir", "client.host_volumes_dir", One, ""),
    ("host-volume-plugin-dir", "client.host_volume_plugin_dir", One, ""),
    ("network-speed", "client.network_speed", One, ""),
    ("preferred-address-family", "client.preferred_address_family", One, ""),
    ("bootstrap-expect", "server.bootstrap_expect", One, ""),
    ("encrypt", "server.encrypt", One, "Key of servers that share a store, 32 bytes in base64"),
    ("join", "server.server_join.start_join", Many, ""),
    ("retry-join", "server.server_join.retry_join", Many, ""),
    ("retry-max", "server.server_join.retry_max", One, ""),
    ("retry-interval", "server.server_join.retry_interval", One, ""),
    ("rejoin", "server.rejoin_after_leave", Switch, ""),
    ("raft-protocol", "server.raft_protocol", One, ""),
    ("acl-enabled", "acl.enabled", Switch, ""),
    ("acl-replication-token", "acl.replication_token", One, ""),
    ("consul-address", "consul.address", One, ""),
    ("consul-auth", "consul.auth", One, ""),
    ("consul-auto-advertise", "consul.auto_advertise", Switch, ""),
    ("consul-ca-file", "consul.ca_file", One, ""),
    ("consul-cert-file", "consul.cert_file", One, ""),
    ("consul-checks-use-advertise", "consul.checks_use_advertise", Switch, ""),
    ("consul-client-auto-join", "consul.client_auto_join", Switch, ""),
    ("consul-client-service-name", "consul.client_service_name", One, ""),
    ("consul-client-http-check-name", "consul.client_http_check_name", One, ""),
    ("consul-client-failures-before-critical", "consul.client_failures_before_critical", One, ""),
    ("consul-client-failures-before-warning", "consul.client_failures_before_warning", One, ""),
    ("consul-key-file", "consul.key_file", One, ""),
    ("consul-server-service-name", "consul.server_service_name", One, ""),
    ("consul-server-http-check-name", "consul.server_http_check_name", One, ""),
    ("consul-server-serf-check-name", "consul.server_serf_check_name", One, ""),
    ("consul-server-rpc-check-name", "consul.server_rpc_check_name", One, ""),
    ("consul-server-auto-join", "consul.server_auto_join", Switch, ""),
    ("consul-server-failures-before-critical", "consul.server_failures_before_critical", One, ""),
    ("consul-server-failures-before-warning", "consul.server_failures_before_warning", One, ""),
    ("consul-ssl", "consul.ssl", Switch, ""),
    ("consul-token", "consul.token", One, ""),
    ("consul-verify-ssl", "consul.verify_ssl", Switch, ""),
    ("vault-enabled", "vault.enabled", Switch, ""),
    ("vault-address", "vault.address", One, ""),
    ("vault-token", "vault.token", One, ""),
    ("vault-namespace", "vault.namespace", One, ""),
    ("vault-create-from-role", "vault.create_from_role", One, ""),
    ("vault-allow-unauthenticated", "vault.allow_unauthenticated", Switch, ""),
    ("vault-ca-file", "vault.ca_file", One, ""),
    ("vault-ca-path", "vault.ca_path", One, ""),
    ("vault-cert-file", "vault.cert_file", One, ""),
    ("vault-key-file", "vault.key_file", One, ""),
    ("vault-tls-skip-verify", "vault.tls_skip_verify", Switch, ""),
    ("vault-tls-server-name", "vault.tls_server_name", One, ""),
];

/// Flags of a stock agent that are refused, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("dev-connect", "Consul's service mesh is not part of this release; -dev alone starts an agent on loopback"),
    (
        "dev-consul",
        "Consul is not part of this release; services of a -dev agent are kept in its own registry (provider \
            = \"nomad\")",
    ),
    ("dev-vault", "no Vault is expected on this machine; name one in a vault block of the configuration"),
];

/// What becomes of a flag of a stock agent; `None` = it is none of those, or has its effect.
pub(crate) fn of_flag(name: &str) -> Option<Fate> {
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Some(Fate::Refused(why));
    }
    let (_, path, ..) = FLAGS.iter().find(|(flag, ..)| *flag == name)?;
    table::find(path).map(|row| row.fate).filter(|fate| *fate != Fate::Works)
}

/// What the flags of the table say.
#[derive(Clone, Debug, Default)]
pub(crate) struct StockFlags(Vec<(&'static str, Vec<String>)>);

impl StockFlags {
    /// The configuration that they stand for.
    pub(crate) fn tree(&self) -> Value {
        let mut tree = json!({});
        for (path, values) in &self.0 {
            let many = FLAGS.iter().any(|(_, p, form, _)| p == path && *form == Many);
            let value = if many { json!(values) } else { json!(values.last()) };
            let nested = path.rsplit('.').fold(value, |inner, name| json!({ name: inner }));
            super::config::merge(&mut tree, nested);
        }
        tree
    }
}

impl Args for StockFlags {
    fn augment_args(command: Command) -> Command {
        let shown = FLAGS.iter().map(|(name, _, form, help)| {
            let arg = Arg::new(*name).long(*name).help(*help).hide(help.is_empty());
            match form {
                One => arg.action(ArgAction::Set).value_name("VALUE").allow_hyphen_values(true),
                Many => arg.action(ArgAction::Append).value_name("VALUE"),
                Switch => arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true"),
            }
        });
        let refused = REFUSED.iter().map(|(name, _)| {
            Arg::new(*name).long(*name).hide(true).action(ArgAction::Set).num_args(0..=1).default_missing_value("true")
        });
        command.args(shown).args(refused)
    }
    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for StockFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        if let Some((name, why)) = REFUSED.iter().find(|(name, _)| matches.contains_id(name)) {
            let given = matches.get_one::<String>(name).is_some_and(|value| value != "false");
            if given {
                return Err(Error::raw(
                    clap::error::ErrorKind::ArgumentConflict,
                    format!("-{name} is refused: {why}\n"),
                ));
            }
        }
        let of = |name: &str| matches.get_many::<String>(name).map(|values| values.cloned().collect::<Vec<_>>());
        Ok(Self(FLAGS.iter().filter_map(|(name, path, ..)| Some((*path, of(name)?))).collect()))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use serde_json::json;

    use super::{FLAGS, StockFlags};
    use crate::agent::table;

    fn read(line: &str) -> Result<StockFlags, clap::Error> {
        let command = StockFlags::augment_args(Command::new("agent").no_binary_name(true));
        StockFlags::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    #[test]
    fn flags_are_settings_under_another_name() {
        let tree = read(
            "--http-port 0 --retry-join a --retry-join b --rejoin --acl-enabled=false --consul-address 127.0.0.1:8500",
        )
        .expect("flags");
        assert_eq!(
            tree.tree(),
            json!({"ports": {"http": "0"},
                "server": {"server_join": {"retry_join": ["a", "b"]}, "rejoin_after_leave": "true"},
                "acl": {"enabled": "false"}, "consul": {"address": "127.0.0.1:8500"}})
        );
        for (name, path, ..) in FLAGS {
            assert!(table::find(path).is_some(), "-{name} sets {path}, which the table does not have");
        }
    }

    #[test]
    fn refused_flags_say_why() {
        for line in ["--dev-connect", "--dev-vault"] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains("is refused: "), "{error}");
        }
        read("--dev-connect=false").expect("off is what we do");
    }
}
