//! Secrets of a task (`secret` blocks): read from their providers before each start.
//!
//! ```text
//! start ── variables, Vault: wait until each is there ── executables: ask each once ── remember ── templates, driver
//! ```
//!
//! The values stand for `${secret.NAME.KEY}` in the environment and the driver's configuration. They stay those of the
//! start: a template follows changes, a secret does not. The node remembers them for the templates of a task that
//! outlives the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use driver_proto::handshake::SOCKET_DIR_KEY;
use hcl_lang::{Vars, interpolate};
use host::{
    clock::now_ns,
    env::PathView,
    node_env::{NodeEnv, TaskSpec},
};
use lifecycle::alloc::{events, machine::StartFailure};
use model::{
    secret_rules::{Engine, NOMAD, VAULT, engine, steers},
    task::TaskSecret,
};
use serde_json::Value;
use template::{SecretQuery, VariableQuery};
use tokio::process::Command;

use crate::{
    cluster_watch::{ClusterData, ClusterKey, ClusterWatches},
    files::{Look, Root},
    hook::{Given, Hook, Prepared, Starting, Unbundled},
    process_group,
    templates::{TaskReads, denied},
};

/// The values of a task's secrets, by `secret.NAME.KEY`.
pub type Values = BTreeMap<String, String>;

/// How long an executable may take, as with Nomad.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long something may be missing before an event tells people, and before a remote task is asked for again.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Relative to the task's directory. For the agent only.
const RECORD: &str = "private/secrets.json";

/// Reads them.
pub struct Secrets {
    /// Resolves names in paths.
    pub env: NodeEnv,
    /// Variables of the cluster, secrets of Vault.
    pub watches: ClusterWatches,
    /// Directory of the executables.
    pub dir: PathBuf,
    /// Identifies the processes of this node, should its agent die.
    pub socket_dir: PathBuf,
}

impl Hook for Secrets {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a> {
        Box::pin(async {
            let Starting { place, spec, .. } = *starting;
            if spec.task.secrets.is_empty() {
                return Ok(());
            }
            let dirs = place.task_dirs();
            let vars = self.env.vars(spec, &dirs, PathView::Host);
            let tell = |missing: &str| place.tell(events::template(now_ns(), &format!("Missing: {missing}")));
            let read = starting.unless_interrupted(self.read(spec, &vars, Some(&tell), Some(&dirs.root)));
            let recoverable = |why| StartFailure::Setup { why, recoverable: true };
            given.secrets = read.await?.map_err(|unbundled| match unbundled {
                Unbundled::Refused(why) => StartFailure::Setup { why, recoverable: false },
                Unbundled::Later(why) => recoverable(why),
            })?;
            let values = given.secrets.clone();
            let saved = blocking::spawn(move || save(&dirs.root, &values)).await;
            saved.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(|e| recoverable(format!("keep secrets: {e}")))
        })
    }
}

/// What one look at the servers and at Vault gives.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    Found(Values),
    Missing(BTreeSet<String>),
}

impl Secrets {
    /// The secrets of a task that runs elsewhere. Waits only briefly for what is missing. Cancel safe: a drop leaves no
    /// process.
    ///
    /// # Errors
    /// Which secret there is not, and whether it could come later.
    pub async fn elsewhere(&self, of: TaskSpec<'_>, vars: &Vars) -> Result<Values, Unbundled> {
        if of.task.secrets.is_empty() {
            return Ok(Values::new());
        }
        self.read(of, vars, None, None).await
    }

    /// Reads all. Waits for what is missing, and tells of it; without `tell` only briefly.
    async fn read(
        &self,
        of: TaskSpec<'_>,
        vars: &Vars,
        tell: Option<&(dyn Fn(&str) + Sync)>,
        task_dir: Option<&Path>,
    ) -> Result<Values, Unbundled> {
        let region = self.env.region().to_owned();
        let (alloc, namespace) = (of.alloc.id, of.alloc.namespace.clone());
        let reads = TaskReads::new(self.watches.clone(), alloc, &of.task.name, namespace, region);
        let (begin, mut told) = (tokio::time::Instant::now(), String::new());
        let mut version = reads.version();
        let mut values = loop {
            version.mark_unchanged();
            let missing = match look(&of.task.secrets, vars, &reads).map_err(Unbundled::Refused)? {
                Looked::Found(values) => break values,
                Looked::Missing(missing) => missing.into_iter().collect::<Vec<_>>().join(", "),
            };
            if begin.elapsed() >= TELL_AFTER && missing != told {
                match tell {
                    Some(tell) => tell(&missing),
                    None => return Err(Unbundled::Later(format!("waits for {missing}"))),
                }
                told = missing;
            }
            // Also to tell what is missing.
            drop(tokio::time::timeout(TELL_AFTER, version.changed()).await);
        };
        for secret in of.task.secrets.iter().filter(|secret| !matches!(secret.provider.as_str(), NOMAD | VAULT)) {
            let fetched = self.ask(of, secret, vars, task_dir).await;
            // The provider may be up again at the next attempt.
            let fetched = fetched.map_err(|why| Unbundled::Later(format!("secret {:?}: {why}", secret.name)))?;
            values.extend(named(secret, fetched));
        }
        Ok(values)
    }

    /// Asks an executable. What it says is not repeated in errors, except its own `error`: it may be secret.
    async fn ask(
        &self,
        of: TaskSpec<'_>,
        secret: &TaskSecret,
        vars: &Vars,
        task_dir: Option<&Path>,
    ) -> Result<BTreeMap<String, String>, String> {
        let program = self.dir.join(&secret.provider);
        // The servers refuse such a job. One of before may be there.
        if let Some(name) = secret.env.keys().find(|name| steers(name)) {
            return Err(format!("env may not set {name}: the executable runs with the rights of the agent"));
        }
        let mut command = Command::new(&program);
        command.args(["fetch", &interpolate(&secret.path, vars)]).env_clear();
        command.envs(secret.env.iter().map(|(name, value)| (name, interpolate(value, vars))));
        command.env("CPI_OPERATION", "fetch");
        // These variables and the directory identify the process as the task's and this node's, should this agent die.
        command.env("NOMAD_ALLOC_ID", of.alloc.id.to_string()).env("NOMAD_TASK_NAME", OsStr::new(&*of.task.name));
        command.env(SOCKET_DIR_KEY, &self.socket_dir).current_dir(task_dir.unwrap_or(Path::new("/")));
        command.stdin(Stdio::null());
        let (said, status) = process_group::answer(command, PATIENCE).await?;
        answer(&said).map_err(|why| match status {
            Some(status) if !status.success() => format!("{} ({status}): {why}", program.display()),
            _ => format!("{}: {why}", program.display()),
        })
    }
}

/// Looks at what the servers and Vault have.
fn look(secrets: &[TaskSecret], vars: &Vars, reads: &TaskReads) -> Result<Looked, String> {
    let (mut found, mut missing) = (Values::new(), BTreeSet::new());
    for secret in secrets {
        let path = interpolate(&secret.path, vars);
        let key = match secret.provider.as_str() {
            NOMAD => {
                let namespace = secret.config.get("namespace").and_then(Value::as_str);
                let namespace = namespace.filter(|name| !name.is_empty()).map(|name| interpolate(name, vars));
                reads.variable(&VariableQuery { path: path.clone(), namespace, region: None })?
            }
            VAULT => reads.secret(&SecretQuery { path: path.clone(), data: BTreeMap::new() }),
            _ => continue,
        };
        let known = reads.known(&key);
        match values_of(secret, known.data.as_deref()) {
            Some(Ok(values)) => found.extend(named(secret, values)),
            Some(Err(why)) => {
                return Err(format!("secret {:?}: {}", secret.name, why.unwrap_or_else(|| denied(&path))));
            }
            None => {
                let why = known.trouble.map_or_else(String::new, |why| format!(" ({why})"));
                let what = if matches!(key, ClusterKey::Secret { .. }) { "Vault's" } else { "variable" };
                missing.insert(format!("secret {:?}: {what} {path}{why}", secret.name));
            }
        }
    }
    Ok(if missing.is_empty() { Looked::Found(found) } else { Looked::Missing(missing) })
}

/// The values in an answer; `None` = they are not there yet. An error without words: the task may not read it.
fn values_of(
    secret: &TaskSecret,
    data: Option<&ClusterData>,
) -> Option<Result<BTreeMap<String, String>, Option<String>>> {
    match data? {
        ClusterData::Variable(Some(variable)) => Some(Ok(variable.items.clone())),
        ClusterData::Secret(Some(read)) => {
            let inner = match engine(secret) {
                Some(Engine::Versioned) => read.data.get("data").and_then(Value::as_object),
                _ => Some(&read.data),
            };
            let none = || Some("Vault's answer has no versions; leave engine = \"kv_v2\" out".to_owned());
            Some(inner.map(texts).ok_or_else(none))
        }
        ClusterData::Denied => Some(Err(None)),
        _ => None,
    }
}

/// Texts as they are, everything else as JSON.
fn texts(values: &serde_json::Map<String, Value>) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    values.iter().map(|(key, value)| (key.clone(), text(value))).collect()
}

fn named(secret: &TaskSecret, values: BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    values.into_iter().map(|(key, value)| (format!("secret.{}.{key}", secret.name), value))
}

/// Reads the answer of an executable.
fn answer(said: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let said: Value = serde_json::from_slice(said).map_err(|_| "its answer is no JSON".to_owned())?;
    match (&said["error"], &said["result"]) {
        (Value::String(why), _) if !why.is_empty() => Err(why.clone()),
        (_, Value::Object(values)) => Ok(texts(values)),
        _ => Err("its answer has neither result nor error".to_owned()),
    }
}

/// The values of the task's last start; empty when there are none. Blocking.
pub(crate) fn load(task_dir: &Path) -> Values {
    let read = Root::open(task_dir).and_then(|root| root.read(Path::new(RECORD)));
    read.ok().and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn save(task_dir: &Path, values: &Values) -> io::Result<()> {
    let look = Look { mode: 0o600, uid: None, gid: None };
    Root::open(task_dir)?.write(Path::new(RECORD), &serde_json::to_vec(values).unwrap_or_default(), look).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use template::{SecretData, Variable};

    use super::*;

    fn secret(block: Value) -> TaskSecret {
        serde_json::from_value(block).expect("a secret")
    }

    fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn answers_become_values() {
        let plain = secret(json!({"Name": "s", "Provider": "vault"}));
        let versioned = secret(json!({"Name": "s", "Provider": "vault", "Config": {"engine": "kv_v2"}}));
        let data = |data: Value| {
            let data = data.as_object().cloned().unwrap_or_default();
            ClusterData::Secret(Some(Arc::new(SecretData { data, ..SecretData::default() })))
        };
        let of = |secret: &TaskSecret, data: &ClusterData| values_of(secret, Some(data));
        assert_eq!(of(&plain, &data(json!({"a": "x", "n": 7}))), Some(Ok(pairs([("a", "x"), ("n", "7")]))));
        let wrapped = data(json!({"data": {"a": "x"}, "metadata": {"version": 2}}));
        assert_eq!(of(&versioned, &wrapped), Some(Ok(pairs([("a", "x")]))));
        assert!(matches!(of(&versioned, &data(json!({"a": "x"}))), Some(Err(Some(why))) if why.contains("kv_v2")));
        let variable = Variable { items: pairs([("a", "x")]), ..Variable::default() };
        assert_eq!(of(&plain, &ClusterData::Variable(Some(variable))), Some(Ok(pairs([("a", "x")]))));
        assert_eq!(of(&plain, &ClusterData::Denied), Some(Err(None)));
        for none in [ClusterData::Variable(None), ClusterData::Secret(None)] {
            assert_eq!(of(&plain, &none), None);
        }
        assert_eq!(values_of(&plain, None), None);
        let named: Values = named(&plain, pairs([("a", "x")])).collect();
        assert_eq!(named, pairs([("secret.s.a", "x")]));
    }

    #[test]
    fn executables_answer_in_json_and_errors_do_not_repeat_it() {
        assert_eq!(answer(br#"{"result": {"a": "x", "b": true}}"#), Ok(pairs([("a", "x"), ("b", "true")])));
        assert_eq!(answer(br#"{"error": "locked"}"#), Err("locked".to_owned()));
        for said in [&b"canary"[..], br#"{"resolt": {"a": "canary"}}"#, b"", br#"{"result": "canary"}"#] {
            let why = answer(said).expect_err("no answer");
            assert!(!why.contains("canary"), "{why}");
        }
    }
}
