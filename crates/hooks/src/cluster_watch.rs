//! Services and variables that templates of this node read. One blocking read serves all tasks that ask for the same
//! service. Of variables each task has its own: it reads them with the rights of its identity.
//!
//! A read continues while it has followers. Afterwards the node keeps its last answer for a while. A task that restarts
//! while no server answers gets that, instead of waiting for the servers.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::shapes::VariableView;
use model::{Namespace, ServiceRegistration, StoreIndex, canonical::DEFAULT_IDENTITY};
use template::{SecretData, SecretQuery, ServiceName, ServicePlace, Variable, VariableMeta};
use tokio::{runtime::Handle, sync::watch, task::AbortHandle};

use crate::{
    discovery::{Discovery, DiscoveryError},
    tokens::Tokens,
    vault::{Read, Reader, SecretReader, Vaults, Wanted},
};

/// Pauses after a read that failed: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Number of answers kept without a follower.
const KEPT: usize = 256;

/// What a read asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ClusterKey {
    /// The registrations of a service, or `NUMBER|KEY` of them.
    Places { namespace: Namespace, name: String, choose: Option<String> },
    /// The services of a namespace.
    Names { namespace: Namespace },
    /// A variable.
    Variable { reader: Reader, namespace: Namespace, path: String },
    /// The variables whose paths begin so.
    Variables { reader: Reader, namespace: Namespace, prefix: String },
    /// A secret of Vault.
    Secret { reader: Reader, query: SecretQuery },
    /// The names of the secrets below a path.
    SecretNames { reader: Reader, path: String },
}

impl ClusterKey {
    /// The task whose token of Vault reads it. Such a key is read until its task is over, with or without followers:
    /// reading it again may make another secret.
    fn of_vault(&self) -> Option<&Reader> {
        match self {
            Self::Secret { reader, .. } | Self::SecretNames { reader, .. } => Some(reader),
            _ => None,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterData {
    Places(Vec<ServicePlace>),
    Names(Vec<ServiceName>),
    /// None = there is no such variable.
    Variable(Option<Variable>),
    Variables(Vec<VariableMeta>),
    /// None = there is no such secret.
    Secret(Option<Arc<SecretData>>),
    SecretNames(Vec<String>),
    /// The task may not read it.
    Denied,
}

/// The known state of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The newest answer; `None` = none yet.
    pub(crate) data: Option<Arc<ClusterData>>,
    /// Why there is no newer one.
    pub trouble: Option<String>,
}

#[derive(Debug)]
struct Entry {
    known: Known,
    followers: usize,
    reader: Option<AbortHandle>,
    /// The last answer from an earlier time with followers; used when no server answers.
    former: Option<Arc<ClusterData>>,
    /// When the last follower left; orders the keys without followers.
    left: u64,
}

#[derive(Debug)]
struct Inner {
    discovery: Discovery,
    /// Where tokens come from that variables are read with.
    tokens: Tokens,
    /// Secrets, and tokens that they are read with.
    vaults: Vaults,
    entries: Mutex<HashMap<ClusterKey, Entry>>,
    version: watch::Sender<u64>,
}

/// All watches of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClusterWatches(Arc<Inner>);

/// One follower of a key; dropping it ends the following.
#[derive(Debug)]
pub(crate) struct Following {
    watches: ClusterWatches,
    key: ClusterKey,
}

impl ClusterWatches {
    /// Reads nothing until the first `follow`.
    pub fn new(discovery: Discovery, tokens: Tokens, vaults: Vaults) -> Self {
        Self(Arc::new(Inner { discovery, tokens, vaults, entries: Mutex::default(), version: watch::Sender::new(0) }))
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<ClusterKey, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever the data of a followed key changes.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Follows a key. Must be called within a runtime.
    pub(crate) fn follow(&self, key: ClusterKey) -> Following {
        let mut entries = self.entries();
        let entry = entries.entry(key.clone()).or_insert_with(|| Entry {
            known: Known::default(),
            followers: 0,
            reader: None,
            former: None,
            left: 0,
        });
        entry.followers += 1;
        if entry.reader.is_none() {
            let reader = Handle::current().spawn(self.clone().read(key.clone()));
            entry.reader = Some(reader.abort_handle());
        }
        drop(entries);
        Following { watches: self.clone(), key }
    }

    fn publish(&self, key: &ClusterKey, read: Result<ClusterData, String>) {
        let changed = {
            let mut entries = self.entries();
            // The answer came while the last follower left.
            let wanted = |e: &&mut Entry| e.followers > 0 || key.of_vault().is_some();
            let Some(entry) = entries.get_mut(key).filter(wanted) else { return };
            let before = entry.known.clone();
            match read {
                Ok(data) => {
                    entry.known.trouble = None;
                    if entry.known.data.as_deref() != Some(&data) {
                        entry.known.data = Some(Arc::new(data));
                    }
                }
                Err(why) => {
                    entry.known.trouble = Some(why);
                    if entry.known.data.is_none() {
                        entry.known.data.clone_from(&entry.former);
                    }
                }
            }
            entry.known != before
        };
        if changed {
            self.0.version.send_modify(|v| *v += 1);
        }
    }

    /// Reads a secret until its task is over.
    async fn read_secrets(self, key: ClusterKey) {
        let (reader, wanted) = match &key {
            ClusterKey::Secret { reader, query } => (reader, Wanted::Secret(query.clone())),
            ClusterKey::SecretNames { reader, path } => (reader, Wanted::Names(path.clone())),
            _ => return,
        };
        let spread = u64::from_le_bytes(reader.alloc.0.as_u64_pair().1.to_le_bytes());
        let mut secret = SecretReader::new(&self.0.vaults, reader, wanted, spread);
        loop {
            let read = secret.next().await.map(|read| match read {
                Read::Secret(found) => ClusterData::Secret(found.map(Arc::new)),
                Read::Names(names) => ClusterData::SecretNames(names),
            });
            if let Err(error) = &read {
                tracing::debug!(?key, error, "a secret was not read, will try again");
            }
            self.publish(&key, read);
        }
    }

    /// A task is over: its secrets are read no more, and none is kept.
    pub(crate) fn forget(&self, reader: &Reader) {
        let theirs = |key: &ClusterKey| key.of_vault() == Some(reader);
        self.entries().retain(|key, entry| {
            if theirs(key)
                && let Some(reader) = entry.reader.take()
            {
                reader.abort();
            }
            !theirs(key)
        });
    }

    /// Reads as long as the key has followers.
    async fn read(self, key: ClusterKey) {
        if key.of_vault().is_some() {
            return self.read_secrets(key).await;
        }
        let mut index = 0;
        let mut pause = PAUSES.0;
        let mut token = None;
        loop {
            let read = match &key {
                ClusterKey::Variable { reader, .. } | ClusterKey::Variables { reader, .. } => {
                    self.variable(reader, &key, &mut token, index).await
                }
                ClusterKey::Secret { .. } | ClusterKey::SecretNames { .. } => return,
                ClusterKey::Places { namespace, name, choose } => {
                    let read = self.0.discovery.chosen(namespace, name, choose.as_deref(), index).await;
                    let places = |(rows, index): (Vec<_>, _)| {
                        (ClusterData::Places(rows.into_iter().map(place).collect()), index)
                    };
                    read.map(places).map_err(|error| format!("services cannot be read: {error}"))
                }
                ClusterKey::Names { namespace } => {
                    let read = self.0.discovery.services(namespace, index).await;
                    let names = |rows: Vec<api::shapes::NamespaceServices>| {
                        let all = rows.into_iter().filter(|r| r.namespace == *namespace).flat_map(|r| r.services);
                        let mut names: Vec<_> =
                            all.map(|s| ServiceName { name: s.service_name, tags: s.tags }).collect();
                        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                        names
                    };
                    read.map(|(rows, index)| (ClusterData::Names(names(rows)), index))
                        .map_err(|error| format!("services cannot be read: {error}"))
                }
            };
            match read {
                // Its rights may change, and with them nothing that could be waited for.
                Ok((data, 0)) => {
                    self.publish(&key, Ok(data));
                    tokio::time::sleep(pause).await;
                    (index, pause) = (0, (pause * 2).min(PAUSES.1));
                }
                Ok((data, newer)) => {
                    pause = PAUSES.0;
                    // A lower index belongs to another server state: read from its beginning. Index 0 would not wait.
                    index = if newer < index { 0 } else { newer.max(1) };
                    self.publish(&key, Ok(data));
                }
                Err(error) => {
                    tracing::debug!(?key, error, "the servers were not read, will try again");
                    self.publish(&key, Err(error));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }
}

impl ClusterWatches {
    /// Reads one variable, or a list of them, as a task may. The index is 0 where it may not. `token`: of the task's
    /// identity, from the read before.
    async fn variable(
        &self,
        reader: &Reader,
        key: &ClusterKey,
        token: &mut Option<String>,
        index: StoreIndex,
    ) -> Result<(ClusterData, StoreIndex), String> {
        let failed = |why: &dyn fmt::Display| format!("variables cannot be read: {why}");
        let shown = match token.take() {
            Some(token) => token,
            None => {
                let identity = vec![DEFAULT_IDENTITY.to_owned()];
                let signed = self.0.tokens.sign(reader.alloc, &reader.task, identity).await;
                let signed = signed.map_err(|error| failed(&error))?;
                signed.into_iter().next().ok_or_else(|| failed(&"the servers have signed no token"))?.token
            }
        };
        let read = match key {
            ClusterKey::Variable { namespace, path, .. } => {
                let read = self.0.discovery.variable(&shown, namespace, path, index).await;
                read.map(|(found, index)| (ClusterData::Variable(found.map(variable)), index))
            }
            ClusterKey::Variables { namespace, prefix, .. } => {
                let read = self.0.discovery.variables(&shown, namespace, prefix, index).await;
                read.map(|(rows, index)| (ClusterData::Variables(rows.iter().map(meta).collect()), index))
            }
            _ => Err(DiscoveryError::NoServer),
        };
        match read {
            Ok(read) => {
                *token = Some(shown);
                Ok(read)
            }
            // With the next read a new token is asked for: the key of this one may be gone.
            Err(DiscoveryError::Client(error)) if error.status().is_some_and(|s| s.as_u16() == 403) => match key {
                ClusterKey::Variables { .. } => Ok((ClusterData::Variables(Vec::new()), 0)),
                _ => Ok((ClusterData::Denied, 0)),
            },
            Err(error) => Err(failed(&error)),
        }
    }
}

impl Following {
    pub(crate) fn known(&self) -> Known {
        self.watches.entries().get(&self.key).map(|e| e.known.clone()).unwrap_or_default()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut entries = self.watches.entries();
        let left = entries.values().map(|e| e.left).max().unwrap_or(0) + 1;
        let Some(entry) = entries.get_mut(&self.key) else { return };
        // The task may be over, and its secrets forgotten, and asked for again.
        entry.followers = entry.followers.saturating_sub(1);
        if entry.followers > 0 || self.key.of_vault().is_some() {
            return;
        }
        if let Some(reader) = entry.reader.take() {
            reader.abort();
        }
        let known = std::mem::take(&mut entry.known);
        entry.former = known.data.or_else(|| entry.former.take());
        entry.left = left;
        if entry.former.is_none() {
            entries.remove(&self.key);
        }
        let idle = entries.iter().filter(|(k, e)| e.followers == 0 && k.of_vault().is_none());
        if idle.clone().count() > KEPT
            && let Some(oldest) = idle.min_by_key(|(_, e)| e.left).map(|(k, _)| k.clone())
        {
            entries.remove(&oldest);
        }
    }
}

fn meta(v: &VariableView) -> VariableMeta {
    VariableMeta {
        namespace: v.namespace.to_string(),
        path: v.path.clone(),
        create_index: v.create_index,
        modify_index: v.modify_index,
        create_time: v.create_time,
        modify_time: v.modify_time,
    }
}

fn variable(v: VariableView) -> Variable {
    Variable { meta: meta(&v), items: v.items.unwrap_or_default() }
}

fn place(r: ServiceRegistration) -> ServicePlace {
    ServicePlace {
        id: r.id.to_string(),
        name: r.service_name.to_string(),
        node: r.node_id.to_string(),
        address: r.address,
        port: r.port.into(),
        datacenter: r.datacenter,
        tags: r.tags,
        job: r.job_id.to_string(),
        alloc: r.alloc_id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    async fn until(watches: &ClusterWatches, what: &str, fits: impl Fn() -> bool) {
        let mut version = watches.version();
        let wait = async {
            while !fits() {
                version.changed().await.expect("the watches live");
            }
        };
        tokio::time::timeout(BOUND, wait).await.unwrap_or_else(|_| panic!("waited in vain for {what}"));
    }

    fn ports(following: &Following) -> Option<Vec<i64>> {
        match following.known().data.as_deref() {
            Some(ClusterData::Places(places)) => Some(places.iter().map(|p| p.port).collect()),
            _ => None,
        }
    }

    #[tokio::test]
    async fn followers_share_a_read_and_what_was_known_outlives_the_servers() {
        let address = Arc::new(Mutex::new(None));
        let session = address.clone();
        let discovery = Discovery::new(String::new(), Arc::new(move || session.lock().expect("lock").clone()));
        let watches = ClusterWatches::new(discovery, Tokens::new().0, Vaults::new(None, BOUND));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        *address.lock().expect("lock") = Some(listener.local_addr().expect("address").to_string());
        let state = watch::Sender::new(1_u64);
        let first_reads = Arc::new(AtomicUsize::new(0));
        // The service has the port 1000 + index; a read of the present index waits.
        let (newest, firsts) = (state.subscribe(), first_reads.clone());
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let (mut newest, firsts) = (newest.clone(), firsts.clone());
                tokio::spawn(async move {
                    let mut asked = vec![0; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut asked).await {
                        let request = String::from_utf8_lossy(&asked[..n]).into_owned();
                        let of = request
                            .split_once("index=")
                            .and_then(|(_, r)| r.split(['&', ' ']).next()?.parse().ok())
                            .unwrap_or(0);
                        firsts.fetch_add(usize::from(of == 0), Ordering::SeqCst);
                        let Ok(now) = newest.wait_for(|now| *now > of).await.map(|n| *n) else { return };
                        let body = format!(r#"[{{"ID": "r", "ServiceName": "web", "Port": {}}}]"#, 1000 + now);
                        let head = format!(
                            "HTTP/1.1 200 OK\r\nx-nomad-index: {now}\r\ncontent-length: {}\r\n\r\n",
                            body.len()
                        );
                        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let key = ClusterKey::Places { namespace: "default".into(), name: "web".into(), choose: None };
        let one = watches.follow(key.clone());
        let two = watches.follow(key.clone());
        until(&watches, "the first answer", || ports(&one) == Some(vec![1001])).await;
        assert_eq!(ports(&two), Some(vec![1001]));
        assert_eq!(first_reads.load(Ordering::SeqCst), 1, "one read for both");
        state.send_replace(7);
        until(&watches, "the change", || ports(&two) == Some(vec![1007])).await;
        drop(one);
        state.send_replace(8);
        until(&watches, "a change with one follower left", || ports(&two) == Some(vec![1008])).await;

        // The servers go away: known data stays, also for a later follower.
        *address.lock().expect("lock") = None;
        server.abort();
        drop(two);
        assert!(watches.entries().values().all(|e| e.reader.is_none()), "nobody follows, nobody reads");
        let three = watches.follow(key);
        assert_eq!(three.known(), Known::default(), "the servers are asked first");
        until(&watches, "what was known", || ports(&three) == Some(vec![1008])).await;
        assert!(three.known().trouble.is_some_and(|why| why.contains("no server is heard")));

        // Never known: there is no former answer.
        let other = watches.follow(ClusterKey::Names { namespace: "default".into() });
        until(&watches, "the reason", || other.known().trouble.is_some()).await;
        assert_eq!(other.known().data, None);
        drop(other);
        assert_eq!(watches.entries().len(), 1, "what was never known leaves nothing");
    }
}
