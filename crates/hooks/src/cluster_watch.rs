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
use model::{Namespace, ServiceRegistration, StoreIndex};
use template::{SecretData, SecretQuery, ServiceName, ServicePlace, Variable, VariableMeta};
use tokio::{runtime::Handle, sync::watch, task::AbortHandle};

use crate::{
    discovery::{Discovery, DiscoveryError},
    read_token::{ReadToken, Shown},
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
        let mut reading = Reading::default();
        loop {
            let read = match &key {
                ClusterKey::Variable { reader, .. } | ClusterKey::Variables { reader, .. } => {
                    self.variable(reader, &key, &mut reading, index).await
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

/// What reads of variables go by, from one to the next.
#[derive(Debug, Default)]
struct Reading {
    token: ReadToken,
    /// How many tokens the servers have refused in a row at once, each just signed.
    refusals: u32,
}

/// So many refusals say that the task has no right. One may be of a token that died on its way.
const SURE: u32 = 2;

/// The server refuses the token, or what is read with it.
fn refused(error: &DiscoveryError) -> bool {
    matches!(error, DiscoveryError::Client(error) if error.status().is_some_and(|status| status.as_u16() == 403))
}

impl ClusterWatches {
    /// Reads one variable, or a list of them, as a task may. The index is 0 where it may not.
    ///
    /// Servers refuse alike a token that has died – it has ended, its key was deleted – and one whose task has no
    /// right. So a refusal counts only where the token was just signed and the read does not wait. Until it is sure
    /// what was read stays.
    async fn variable(
        &self,
        reader: &Reader,
        key: &ClusterKey,
        reading: &mut Reading,
        index: StoreIndex,
    ) -> Result<(ClusterData, StoreIndex), String> {
        let failed = |why: &dyn fmt::Display| format!("variables cannot be read: {why}");
        let mut from = index;
        loop {
            let shown = reading.token.next(&self.0.tokens, reader.alloc, &reader.task).await;
            let shown = shown.map_err(|error| failed(&error))?;
            match self.ask(key, &shown, from).await {
                Ok(read) => {
                    reading.refusals = 0;
                    return Ok(read);
                }
                Err(error) if !refused(&error) => return Err(failed(&error)),
                Err(_) => reading.token.forget(),
            }
            if shown.new && from == 0 {
                reading.refusals = reading.refusals.saturating_add(1);
            }
            if reading.refusals >= SURE {
                break;
            }
            from = 0;
        }
        Ok(match key {
            ClusterKey::Variables { .. } => (ClusterData::Variables(Vec::new()), 0),
            _ => (ClusterData::Denied, 0),
        })
    }

    /// Asks the servers once.
    async fn ask(
        &self,
        key: &ClusterKey,
        token: &Shown,
        index: StoreIndex,
    ) -> Result<(ClusterData, StoreIndex), DiscoveryError> {
        match key {
            ClusterKey::Variable { namespace, path, .. } => {
                let read = self.0.discovery.variable(token, namespace, path, index).await;
                read.map(|(found, index)| (ClusterData::Variable(found.map(variable)), index))
            }
            ClusterKey::Variables { namespace, prefix, .. } => {
                let read = self.0.discovery.variables(token, namespace, prefix, index).await;
                read.map(|(rows, index)| (ClusterData::Variables(rows.iter().map(meta).collect()), index))
            }
            _ => Err(DiscoveryError::NoServer),
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

    /// Servers with one variable, which sign tokens and refuse those that have died.
    #[derive(Clone)]
    struct Servers(Arc<watch::Sender<Held>>);

    #[derive(Clone, Default)]
    struct Held {
        index: u64,
        value: &'static str,
        /// No token has a right.
        denies: bool,
        /// Nobody signs tokens.
        silent: bool,
        /// How many of the first tokens are dead.
        dead: usize,
        signed: usize,
        refused: usize,
        /// How long tokens live, in nanoseconds; 0 = for ever.
        life_ns: i64,
        /// When each was signed.
        born: Vec<tokio::time::Instant>,
    }

    impl Held {
        fn takes(&self, token: &str) -> bool {
            let number =
                token.strip_prefix("token-").and_then(|n| n.parse::<usize>().ok()).expect("one that was signed");
            let ended =
                self.life_ns > 0 && self.born[number].elapsed().as_nanos() >= self.life_ns.unsigned_abs().into();
            number >= self.dead && !self.denies && !ended
        }
    }

    impl Servers {
        fn change(&self, change: impl FnOnce(&mut Held)) {
            self.0.send_modify(|held| {
                held.index += 1;
                change(held);
            });
        }

        /// What answers, and the watches that ask.
        async fn start(held: Held) -> (Self, ClusterWatches) {
            let servers = Self(Arc::new(watch::Sender::new(held)));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("address").to_string();
            let answering = servers.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answering.clone().answer(stream));
                }
            });
            let (tokens, mut asked) = Tokens::new();
            let signing = servers.clone();
            tokio::spawn(async move {
                while let Some(crate::tokens::AskTokens { answer, .. }) = asked.recv().await {
                    let later = || crate::tokens::TokenError::Later("nobody signs".to_owned());
                    let signed = if signing.0.borrow().silent { Err(later()) } else { Ok(vec![signing.sign()]) };
                    let _ = answer.send(signed);
                }
            });
            let discovery = Discovery::new(String::new(), Arc::new(move || Some(address.clone())));
            (servers, ClusterWatches::new(discovery, tokens, Vaults::new(None, BOUND)))
        }

        fn sign(&self) -> api::node_rpc::SignedIdentity {
            let (mut token, mut expires_ns) = (String::new(), 0);
            self.0.send_modify(|held| {
                (token, expires_ns) = (format!("token-{}", held.signed), held.life_ns);
                held.signed += 1;
                held.born.push(tokio::time::Instant::now());
            });
            api::node_rpc::SignedIdentity { identity: "default".to_owned(), token, issued_ns: 0, expires_ns }
        }

        async fn answer(self, mut stream: tokio::net::TcpStream) {
            let (mut asked, mut state) = (vec![0; 4096], self.0.subscribe());
            while let Ok(n @ 1..) = stream.read(&mut asked).await {
                let request = String::from_utf8_lossy(&asked[..n]).into_owned();
                let after =
                    |what: &str| request.split_once(what).and_then(|(_, rest)| rest.split(['&', ' ', '\r']).next());
                let of: u64 = after("index=").and_then(|n| n.parse().ok()).unwrap_or(0);
                let wait: model::GoDuration = after("wait=").map(|w| w.parse().expect("a time")).unwrap_or_default();
                let token = after("x-nomad-token: ").expect("a token").to_owned();
                let news = state.wait_for(|held| held.index > of || held.dead > 0 && !held.takes(&token));
                drop(tokio::time::timeout(wait.to_std(), news).await);
                let held = state.borrow().clone();
                let row = format!(
                    r#"{{"Namespace":"default","Path":"a","ModifyIndex":{},"Items":{{"k":"{}"}}}}"#,
                    held.index, held.value
                );
                let (status, body) = match (held.takes(&token), request.starts_with("GET /v1/vars")) {
                    (false, _) => ("403 Forbidden", "Permission denied".to_owned()),
                    (true, true) => ("200 OK", format!("[{row}]")),
                    (true, false) => ("200 OK", row),
                };
                if status.starts_with("403") {
                    self.0.send_modify(|held| held.refused += 1);
                }
                let (index, length) = (held.index, body.len());
                let head = format!("HTTP/1.1 {status}\r\nx-nomad-index: {index}\r\ncontent-length: {length}\r\n\r\n");
                if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    fn of_task(watches: &ClusterWatches) -> (Following, Following) {
        let reader = || Reader { alloc: model::AllocId::default(), task: "t".to_owned() };
        let namespace = || Namespace::from("default");
        let one = ClusterKey::Variable { reader: reader(), namespace: namespace(), path: "a".to_owned() };
        let list = ClusterKey::Variables { reader: reader(), namespace: namespace(), prefix: String::new() };
        (watches.follow(one), watches.follow(list))
    }

    fn value(following: &Following) -> Option<String> {
        match following.known().data.as_deref() {
            Some(ClusterData::Variable(Some(found))) => found.items.get("k").cloned(),
            _ => None,
        }
    }

    fn listed(following: &Following) -> Option<usize> {
        match following.known().data.as_deref() {
            Some(ClusterData::Variables(rows)) => Some(rows.len()),
            _ => None,
        }
    }

    #[tokio::test]
    async fn a_token_that_died_is_replaced_and_what_was_read_stays() {
        let (servers, watches) = Servers::start(Held { index: 1, value: "1", ..Held::default() }).await;
        let (one, list) = of_task(&watches);
        let have = |wanted: &str, rows| value(&one).as_deref() == Some(wanted) && listed(&list) == Some(rows);
        until(&watches, "the first answers", || have("1", 1)).await;

        // Their key was deleted, and for a while nobody signs with another one.
        servers.change(|held| (held.dead, held.silent, held.value) = (held.signed, true, "2"));
        let in_trouble =
            |following: &Following| following.known().trouble.is_some_and(|why| why.contains("nobody signs"));
        until(&watches, "the trouble", || in_trouble(&one) && in_trouble(&list)).await;
        assert!(have("1", 1), "what was read stays");
        servers.change(|held| held.silent = false);
        until(&watches, "what new tokens read", || have("2", 1) && !in_trouble(&list)).await;

        // A right that is gone is something else.
        servers.change(|held| (held.denies, held.dead) = (true, held.signed));
        let denied = || one.known().data.as_deref() == Some(&ClusterData::Denied) && listed(&list) == Some(0);
        until(&watches, "the refusals", denied).await;
        servers.change(|held| held.denies = false);
        until(&watches, "the right again", || have("2", 1)).await;
    }

    #[tokio::test]
    async fn a_token_that_died_before_the_first_read_denies_nothing() {
        let (servers, watches) = Servers::start(Held { index: 1, value: "1", dead: 1, ..Held::default() }).await;
        let (one, _) = of_task(&watches);
        until(&watches, "any answer", || one.known().data.is_some()).await;
        assert_eq!(value(&one).as_deref(), Some("1"));
        assert_eq!(servers.0.borrow().refused, 1);
    }

    #[tokio::test]
    async fn tokens_are_renewed_before_they_end() {
        let life_ns = 10_000_000_000;
        let (servers, watches) = Servers::start(Held { index: 1, value: "1", life_ns, ..Held::default() }).await;
        let (one, list) = of_task(&watches);
        let mut state = servers.0.subscribe();
        let renewed = state.wait_for(|held| held.signed >= 4);
        tokio::time::timeout(BOUND, renewed).await.expect("in time").expect("it lives");
        assert_eq!((servers.0.borrow().refused, value(&one).as_deref(), listed(&list)), (0, Some("1"), Some(1)));
    }
}
