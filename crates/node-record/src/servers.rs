//! The servers that the node may connect to: those of its configuration, and those that servers have told it of. What
//! was told outlives the agent, so that a node whose configured servers are gone finds the others after a restart too.

use std::{
    cmp::Reverse,
    sync::{Arc, Mutex, PoisonError},
};

use model::NodeId;

use crate::{
    error::StoreError,
    store::{LocalStore, Write},
};

/// Name of the record.
const TOLD: &str = "servers";

/// The most addresses that are kept, and the longest: a cluster has a handful of servers.
const MOST: usize = 64;
const LONGEST: usize = 300;

/// The servers that the node was told of, `host:port` each. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ToldServers {
    store: LocalStore,
    told: Arc<Mutex<Arc<Vec<String>>>>,
}

impl ToldServers {
    /// Reads them.
    #[must_use]
    pub fn load(store: &LocalStore) -> Self {
        let told = store.meta(TOLD).map(|text| readable(text.lines())).unwrap_or_default();
        Self { store: store.clone(), told: Arc::new(Mutex::new(Arc::new(told))) }
    }

    /// They are these from now on; `None` when that is nothing new. They count at once; the future resolves when they
    /// are durable, and the write goes on when the future is dropped.
    ///
    /// # Errors
    /// Of the future: they could not be written down, and the next agent knows the former ones.
    pub fn take(&self, servers: &[String]) -> Option<impl Future<Output = Result<(), StoreError>> + Send + use<>> {
        let servers = readable(servers.iter().map(String::as_str));
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if **told == servers {
            return None;
        }
        let text = servers.join("\n");
        *told = Arc::new(servers);
        // Under the lock: written in the order of the calls.
        Some(self.store.submit(vec![Write::Meta(TOLD, text)]))
    }

    /// The configured ones, which come first, and the told ones.
    #[must_use]
    pub fn with(&self, configured: &[String]) -> Vec<String> {
        all(configured, &self.now())
    }

    /// The same in the order in which this node tries them; see [`in_turn`].
    #[must_use]
    pub fn in_turn(&self, node: NodeId, configured: &[String]) -> Vec<String> {
        in_turn(node, configured, &self.now())
    }

    fn now(&self) -> Arc<Vec<String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The order in which a node tries servers. Several configured ones stand for the whole cluster: with those that the
/// node was told of, they come in an order of its own, so that the sessions of many nodes spread over them evenly. A
/// server that comes takes its share without a change on the nodes; one that is gone moves only its own nodes. A single
/// configured address stays first: it may be a name that stands for several servers, or the only one that this node
/// reaches, and whoever wrote it knows.
#[must_use]
pub fn in_turn(node: NodeId, configured: &[String], told: &[String]) -> Vec<String> {
    let first = if configured.len() < 2 { configured.len() } else { 0 };
    let mut servers = all(configured, told);
    servers[first..].sort_by_cached_key(|server| Reverse(rank(node, server)));
    servers
}

/// Rendezvous hashing: each node ranks each server by a hash of both, whichever others there are.
fn rank(node: NodeId, server: &str) -> u64 {
    // FNV-1a, then the finalizer of SplitMix64: the same in each release, unlike the hasher of the standard library.
    let bytes = node.0.as_bytes().iter().chain(server.as_bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

fn all(configured: &[String], told: &[String]) -> Vec<String> {
    let others = told.iter().filter(|server| !configured.contains(server));
    configured.iter().chain(others).cloned().collect()
}

/// Those that can be addresses, each once.
fn readable<'a>(servers: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for server in servers.filter(|server| is_address(server)).take(MOST) {
        if !found.iter().any(|known| known == server) {
            found.push(server.to_owned());
        }
    }
    found
}

fn is_address(server: &str) -> bool {
    let port = server.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse().ok());
    server.len() <= LONGEST && server.chars().all(|c| c.is_ascii_graphic()) && port.is_some_and(|port: u16| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<const N: usize>(of: [&str; N]) -> Vec<String> {
        of.map(str::to_owned).into()
    }

    #[tokio::test]
    async fn a_node_keeps_the_servers_that_it_was_told_of() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, _) = LocalStore::open(dir.path()).expect("open");
        let servers = ToldServers::load(&store);
        let configured = texts(["a:1"]);
        assert_eq!(servers.with(&configured), configured);
        servers.take(&texts(["b:1", "a:1", "c:1"])).expect("new").await.expect("written");
        assert!(servers.take(&texts(["b:1", "a:1", "c:1"])).is_none(), "nothing new");
        assert_eq!(servers.with(&configured), texts(["a:1", "b:1", "c:1"]), "the configured ones come first");
        assert_eq!(servers.clone().with(&[]), texts(["b:1", "a:1", "c:1"]));
        assert_eq!(ToldServers::load(&store).with(&[]), texts(["b:1", "a:1", "c:1"]), "the next agent");
        servers.take(&[]).expect("new").await.expect("written");
        assert_eq!(ToldServers::load(&store).with(&configured), configured, "told of none");
    }

    #[test]
    fn nodes_spread_evenly_and_a_server_that_is_gone_moves_only_its_own() {
        let servers = texts(["10.0.0.1:4647", "10.0.0.2:4647", "10.0.0.3:4647"]);
        let nodes: Vec<NodeId> = (1..=1000).map(|n| NodeId(uuid::Uuid::from_u128(n))).collect();
        let first = |node: NodeId, servers: &[String]| in_turn(node, servers, &[]).swap_remove(0);
        for server in &servers {
            let own = nodes.iter().filter(|node| first(**node, &servers) == *server).count();
            assert!((300..=366).contains(&own), "{own} of 1000 nodes begin with {server}");
            let others: Vec<String> = servers.iter().filter(|other| *other != server).cloned().collect();
            let (mut moved, mut to) = (0, 0);
            for node in &nodes {
                let (before, after) = (first(*node, &servers), first(*node, &others));
                assert!(before == after || before == *server, "{node} moves though {before} is still there");
                moved += usize::from(before != after);
                to += usize::from(before != after && after == others[0]);
            }
            assert_eq!(moved, own);
            assert!((own * 4 / 10..=own * 6 / 10).contains(&to), "{to} of {own} go to {}", others[0]);
        }
    }

    #[test]
    fn a_node_tries_servers_in_its_own_order_where_it_has_a_choice() {
        let node = |n| NodeId(uuid::Uuid::from_u128(n));
        let told = texts(["a:1", "b:1", "c:1", "d:1"]);
        let begins = |configured: &[String], told: &[String]| -> std::collections::BTreeSet<String> {
            (0..50).map(|n| in_turn(node(n), configured, told).swap_remove(0)).collect()
        };
        let all: std::collections::BTreeSet<String> = told.iter().cloned().collect();
        for (configured, told, firsts) in [
            (texts(["x:1"]), &told[..], [("x:1".to_owned())].into()),
            (texts(["a:1"]), &told[..0], [("a:1".to_owned())].into()),
            (texts(["a:1", "b:1"]), &told[..], all.clone()),
            (Vec::new(), &told[..], all.clone()),
        ] {
            assert_eq!(begins(&configured, told), firsts, "{configured:?} {told:?}");
            let mut tried = in_turn(node(7), &configured, told);
            assert_eq!(tried, in_turn(node(7), &configured, told), "the same each time");
            let mut expected = super::all(&configured, told);
            tried.sort();
            expected.sort();
            assert_eq!(tried, expected, "each once");
        }
        assert_eq!(in_turn(node(1), &[], &[]), texts([]));
    }

    #[test]
    fn what_is_no_address_is_not_taken() {
        for (server, is) in [
            ("10.0.0.1:4647", true),
            ("[fd00::1]:4647", true),
            ("server-1.example:4647", true),
            ("10.0.0.1", false),
            (":4647", false),
            ("a:0", false),
            ("a:65536", false),
            ("a b:1", false),
            ("a\u{7}:1", false),
            ("", false),
        ] {
            assert_eq!(is_address(server), is, "{server:?}");
        }
        assert!(!is_address(&format!("{}:1", "a".repeat(LONGEST))));
        let many: Vec<String> = (1..=200).map(|port| format!("a:{port}")).collect();
        assert_eq!(readable(many.iter().map(String::as_str)).len(), MOST);
        assert_eq!(readable(["a:1", "a:1", "x", "b:1"].into_iter()), texts(["a:1", "b:1"]));
    }
}
