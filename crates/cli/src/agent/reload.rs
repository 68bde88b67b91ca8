//! What a running agent takes over of its changed configuration files: the driver plugins and the certificates.
//! Everything else is named and waits for a restart.

use std::{collections::BTreeSet, path::Path, time::SystemTime};

use anyhow::Result;
use client::{ClientHandle, ConfiguredPlugins};
use serde_json::Value;
use server_http::Audit;
use tokio::sync::{mpsc, oneshot};

use super::{
    args::AgentArgs,
    config::{self, refuse},
    settings,
};

/// Names that are taken over without a restart.
/// Of `tls` not all: see [`takes_over`]. Beside them [`STORE_TLS`].
const RELOADED: &[&str] = &["plugin", "plugin_dir", "tls"];

/// The block with the files for etcd. It is taken over where etcd has TLS before and after.
const STORE_TLS: &str = "server.tls";

/// Somebody waits for what came of a reload.
pub(crate) type Asked = oneshot::Sender<Result<(), String>>;

/// How `PUT /v1/agent/reload` asks for what SIGHUP asks for. The receiver is the agent's loop.
pub(crate) fn over_http() -> (server_http::Reload, mpsc::Receiver<Asked>) {
    let (ask, asked) = mpsc::channel::<Asked>(1);
    let reload = move || -> futures::future::BoxFuture<'static, Result<(), String>> {
        let ask = ask.clone();
        Box::pin(async move {
            let ending = || "the agent is about to end".to_owned();
            let (answer, answered) = oneshot::channel();
            ask.send(answer).await.map_err(|_| ending())?;
            answered.await.map_err(|_| ending())?
        })
    };
    (std::sync::Arc::new(reload), asked)
}

/// Reads the configuration again whenever it is asked.
pub(crate) struct Reloader {
    args: AgentArgs,
    /// The directory of a dev agent.
    dev_dir: Option<std::path::PathBuf>,
    /// As it is in force.
    tree: Value,
    /// The certificates in use.
    tls: Option<tls::Agent>,
    /// Those for etcd.
    store_tls: Option<tls::Service>,
    /// Its files are opened anew.
    audit: Option<Audit>,
}

impl Reloader {
    pub(crate) fn new(args: AgentArgs, dev_dir: Option<&Path>, tree: Value, tls: Option<tls::Agent>) -> Self {
        Self { args, dev_dir: dev_dir.map(Path::to_owned), tree, tls, store_tls: None, audit: None }
    }

    /// The same for an agent with TLS to a shared store.
    pub(crate) fn with_store(self, store_tls: Option<tls::Service>) -> Self {
        Self { store_tls, ..self }
    }

    /// The same for an agent with an audit log.
    pub(crate) fn with_audit(self, audit: Option<Audit>) -> Self {
        Self { audit, ..self }
    }

    /// Reads and checks the files; a mistake anywhere changes nothing.
    fn read(&mut self) -> Result<(Option<ConfiguredPlugins>, Vec<String>)> {
        let tree = self.args.tree()?;
        let settings =
            settings::settings(config::typed(tree.clone()).map_err(refuse)?, &self.args, self.dev_dir.as_deref())
                .map_err(refuse)?;
        let mut others = changed(&self.tree, &tree);
        let store = self.store_tls.as_ref().zip(settings.store_tls.as_ref());
        if let Some((_, new)) = store {
            // Before anything is taken over.
            new.in_time(SystemTime::now())?;
        }
        others.extend(self.certificates(settings.tls.as_ref())?);
        if let Some((in_use, new)) = store {
            in_use.take_over(new);
            tracing::info!(cert_file = %new.files().cert_file.display(), "certificates for etcd reloaded");
            new.warnings(SystemTime::now()).iter().for_each(|why| tracing::warn!("{why}"));
            others.retain(|name| name != STORE_TLS);
            take_store_tls(&mut self.tree, &tree);
        }
        for name in RELOADED {
            match tree.get(name) {
                Some(value) => drop(self.tree.as_object_mut().map(|t| t.insert((*name).to_owned(), value.clone()))),
                None => drop(self.tree.as_object_mut().map(|t| t.remove(*name))),
            }
        }
        Ok((settings.client.as_ref().map(ConfiguredPlugins::of), others))
    }

    /// Takes over changed certificates; connections that stand keep theirs, unless the reload takes
    /// the authority of their peer away. Answers what needs a restart.
    fn certificates(&self, new: Option<&tls::Agent>) -> Result<Vec<String>> {
        let now = self.tls.as_ref().map(tls::Agent::settings).unwrap_or_default();
        let (settings, kept) = takes_over(&now, new.map(tls::Agent::settings).unwrap_or_default());
        if let (Some(tls), Some(_)) = (&self.tls, new) {
            tls.reload(&settings, SystemTime::now())?;
            tracing::info!(cert_file = %settings.cert_file.display(), "certificates reloaded");
            tls.warnings(SystemTime::now()).iter().for_each(|why| tracing::warn!("{why}"));
        }
        Ok(kept)
    }

    /// Takes over what can be taken over, and logs what was done and what was not. The error says why nothing was.
    pub(crate) async fn reload(&mut self, node: Option<&ClientHandle>) -> Result<(), String> {
        // Whatever the configuration says now: a tool has moved the file away, and waits.
        if let Some(audit) = &self.audit {
            audit.reopen().await;
        }
        let (plugins, others) = match self.read() {
            Ok(read) => read,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the configuration cannot be used, nothing is reloaded");
                return Err(format!("the configuration cannot be used, nothing is reloaded: {error}"));
            }
        };
        for name in others {
            tracing::warn!(name, "this setting has changed and is not reloaded; restart the agent, its tasks run on");
        }
        let (Some(node), Some(plugins)) = (node, plugins) else {
            tracing::info!("this agent is no node, it has no drivers to reload");
            return Ok(());
        };
        match node.reload_drivers(Some(plugins)).await {
            Ok(done) => {
                for (plugin, done) in done.plugins {
                    let (outcome, why) = (done.outcome, done.description);
                    tracing::info!(plugin, ?outcome, why, "driver plugin reloaded");
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the drivers cannot be reloaded, nothing has changed");
                Err(format!("the drivers cannot be reloaded, nothing has changed: {error}"))
            }
        }
    }
}

/// What of new settings of TLS is taken over, and what is kept until a restart: listeners stay what they are, and
/// nothing is loosened that has decided at the start whether nodes need the join secret.
fn takes_over(now: &tls::Settings, new: tls::Settings) -> (tls::Settings, Vec<String>) {
    let loosened = [now.verify_names && !new.verify_names, !now.rpc_upgrade_mode && new.rpc_upgrade_mode];
    let names = [
        ("tls.http", now.http != new.http),
        ("tls.rpc", now.rpc != new.rpc),
        ("tls.verify_server_hostname", now.rpc && new.rpc && loosened[0]),
        ("tls.rpc_upgrade_mode", now.rpc && new.rpc && loosened[1]),
    ];
    let kept = names.into_iter().filter(|(_, kept)| *kept).map(|(name, _)| name.to_owned()).collect();
    let taken = tls::Settings {
        http: now.http,
        rpc: now.rpc,
        verify_names: now.verify_names || new.verify_names,
        rpc_upgrade_mode: now.rpc_upgrade_mode && new.rpc_upgrade_mode,
        region: now.region.clone(),
        roles: now.roles.clone(),
        ..new
    };
    (taken, kept)
}

/// The block `server.tls` in force is that of the new configuration.
fn take_store_tls(tree: &mut Value, new: &Value) {
    let Some(server) = tree.get_mut("server").and_then(Value::as_object_mut) else { return };
    match new.pointer("/server/tls") {
        Some(tls) => drop(server.insert("tls".to_owned(), tls.clone())),
        None => drop(server.remove("tls")),
    }
}

/// Names whose values differ and that are not reloaded, blocks by their settings.
fn changed(old: &Value, new: &Value) -> Vec<String> {
    let empty = serde_json::Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let names: BTreeSet<&String> =
        old.keys().chain(new.keys()).filter(|name| !RELOADED.contains(&name.as_str())).collect();
    let mut found = Vec::new();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        if before == after {
            continue;
        }
        let (before, after) = (before.and_then(Value::as_object), after.and_then(Value::as_object));
        if before.is_none() && after.is_none() {
            found.push(name.clone());
            continue;
        }
        let (before, after) = (before.unwrap_or(&empty), after.unwrap_or(&empty));
        let inner: BTreeSet<&String> =
            before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)).collect();
        found.extend(inner.into_iter().map(|key| format!("{name}.{key}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{changed, takes_over};

    #[test]
    fn a_reload_never_loosens_what_nodes_must_show() {
        let strict = tls::Settings { rpc: true, verify_names: true, ..tls::Settings::default() };
        let lax = tls::Settings { rpc: true, rpc_upgrade_mode: true, http: true, ..tls::Settings::default() };
        let (taken, kept) = takes_over(&strict, lax.clone());
        assert_eq!(kept, ["tls.http", "tls.verify_server_hostname", "tls.rpc_upgrade_mode"]);
        assert_eq!(taken, strict);
        let (taken, kept) = takes_over(&lax, strict.clone());
        assert_eq!((kept, taken.verify_names, taken.rpc_upgrade_mode), (vec!["tls.http".to_owned()], true, false));
        let other = tls::Settings { cert_file: "new.pem".into(), ..strict.clone() };
        let moved = tls::Settings { region: "eu".into(), ..other.clone() };
        assert_eq!(takes_over(&strict, moved), (other, Vec::new()), "the region is that of the start");
    }

    #[test]
    fn what_is_not_reloaded_is_named() {
        let old = json!({"region": "eu", "client": {"enabled": true, "node_class": "a"}, "plugin": {"x": {}},
            "plugin_dir": "/p"});
        assert_eq!(changed(&old, &old), Vec::<String>::new());
        let new = json!({"region": "us", "client": {"enabled": true, "meta": {"k": "v"}}, "plugin": {"y": {}},
            "log_level": "debug"});
        assert_eq!(changed(&old, &new), ["client.meta", "client.node_class", "log_level", "region"]);
    }
}
