//! The cluster that this node belongs to, and the servers' state that it has acted on: its *mark*.
//!
//! The node writes both before it acts: a message of the servers waits until the mark that covers it is written. Two
//! kinds of servers would end running work in good faith. The node refuses a server of another cluster. It *holds* with
//! a server whose state is older than its mark: an empty directory, or one restored from a backup. It then keeps its
//! tasks, starts and stops nothing on their word, and reports its inventory. It also holds when its mark is damaged,
//! until servers have set it anew.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::node_rpc::{Hello, InventoryStored, Welcome};
pub use lifecycle::membership::Meaning;
use lifecycle::membership::{Member, Servers};
use model::{GenerationId, StoreIndex};
use tokio::sync::watch;
use uuid::Uuid;

use crate::store::{LocalStore, Write};

/// How long a session waits for the disk. Only orders that end or begin work wait longer, see [`Membership::written`].
pub const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// Keys of the node's facts in its store.
const CLUSTER: &str = "cluster_id";
const GENERATION: &str = "generation";
const INDEX: &str = "mark_index";

/// The servers as a welcome describes them.
fn servers(welcome: &Welcome) -> Servers<'_> {
    Servers {
        cluster: welcome.cluster_id.parse().ok(),
        generation: (!welcome.generation.is_empty()).then(|| welcome.generation.parse().unwrap_or_default()),
        history_index: welcome.history_index,
        recovering: &welcome.recovering,
    }
}

/// Membership and mark of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Membership {
    store: LocalStore,
    instance: Uuid,
    member: Arc<Mutex<(Member, Ticket)>>,
    /// The newest completed write; all earlier ones have completed as well.
    ended: Arc<watch::Sender<Ticket>>,
}

/// Number of a write of the membership; writes complete in this order.
pub type Ticket = u64;

impl Membership {
    /// Reads the stored membership; `lost`: the mark was unreadable.
    pub fn load(store: &LocalStore, lost: bool) -> Self {
        let member = Member {
            cluster: store.meta(CLUSTER).and_then(|text| text.parse().ok()).unwrap_or_default(),
            generation: store.meta(GENERATION).and_then(|text| text.parse().ok()).unwrap_or_default(),
            index: store.meta(INDEX).and_then(|text| text.parse().ok()).unwrap_or_default(),
            lost,
        };
        Self {
            store: store.clone(),
            instance: Uuid::new_v4(),
            member: Arc::new(Mutex::new((member, 0))),
            ended: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Member, Ticket)> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the membership to a Hello.
    pub fn introduce(&self, hello: &mut Hello) {
        let Member { cluster, generation, index, lost } = self.lock().0;
        hello.cluster_id = if cluster.is_nil() { String::new() } else { cluster.to_string() };
        hello.generation = if generation.is_nil() { String::new() } else { generation.to_string() };
        hello.mark_index = index;
        hello.mark_lost = lost;
        hello.instance = self.instance.to_string();
    }

    /// Decides what the welcome means. If the node is to follow it, cluster and generation are stored before this
    /// returns, unless the disk is slow.
    pub async fn welcomed(&self, welcome: &Welcome) -> Meaning {
        let (ticket, meaning) = {
            let mut state = self.lock();
            let before = state.0;
            let meaning = state.0.welcomed(&servers(welcome));
            let now = state.0;
            if before != now {
                self.write(&mut state, Self::facts(now));
            }
            (state.1, meaning)
        };
        self.written_soon(ticket).await;
        meaning
    }

    /// Advances the mark to `index`. The caller may act once the write with this ticket has completed.
    pub fn acts_on(&self, index: StoreIndex) -> Ticket {
        let mut state = self.lock();
        if state.0.acts_on(index) {
            self.write(&mut state, vec![Write::Mark(INDEX, index.to_string())]);
        }
        // Nothing new: wait for the earlier write.
        state.1
    }

    /// The servers have taken over this node's inventory: it is part of that generation. True when the mark was lost;
    /// this call sets it.
    pub async fn told(&self, stored: &InventoryStored) -> bool {
        let Ok(generation) = stored.generation.parse::<GenerationId>() else { return false };
        let (lost, ticket) = {
            let mut state = self.lock();
            let lost = state.0.lost;
            state.0.told(generation, stored.index);
            let now = state.0;
            self.write(&mut state, Self::facts(now));
            (lost, state.1)
        };
        self.written_soon(ticket).await;
        lost
    }

    /// Returns when the write has completed: it is on the disk, or the disk has refused it. Cancel safe.
    pub async fn written(&self, ticket: Ticket) {
        // The sender lives as long as `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended >= ticket).await;
    }

    async fn written_soon(&self, ticket: Ticket) {
        if tokio::time::timeout(WRITTEN_WITHIN, self.written(ticket)).await.is_err() {
            tracing::warn!("what this node knows of its servers is still being written; the disk is slow");
        }
    }

    fn facts(member: Member) -> Vec<Write> {
        let Member { cluster, generation, index, lost: _ } = member;
        vec![
            Write::Meta(CLUSTER, cluster.to_string()),
            Write::Meta(GENERATION, generation.to_string()),
            Write::Meta(INDEX, index.to_string()),
        ]
    }

    /// Begins a write under the next ticket. A disk that refuses it, such as a full one, holds nothing up: tasks must
    /// stop even then. While the agent runs, the values in memory count.
    fn write(&self, state: &mut (Member, Ticket), writes: Vec<Write>) {
        state.1 += 1;
        // Under the lock of the state: in the order of the tickets.
        let (ticket, ended, written) = (state.1, self.ended.clone(), self.store.submit(writes));
        tokio::spawn(async move {
            if let Err(error) = written.await {
                tracing::warn!(%error, "what this node knows of its servers was not written; an agent that starts now \
                    knows less");
            }
            ended.send_modify(|newest| *newest = ticket.max(*newest));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn welcome(cluster: &str, generation: u128, history_index: u64) -> Welcome {
        let generation = if generation == 0 { String::new() } else { Uuid::from_u128(generation).to_string() };
        Welcome { cluster_id: cluster.into(), generation, history_index, ..Welcome::default() }
    }

    const A: &str = "c0000000-0000-4000-8000-00000000000a";
    const B: &str = "c0000000-0000-4000-8000-00000000000b";

    #[tokio::test]
    async fn a_disk_that_hangs_is_waited_for_and_one_that_refuses_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = LocalStore::open(dir.path()).unwrap();
        let membership = Membership::load(&store, false);
        assert_eq!(membership.welcomed(&welcome(A, 1, 0)).await, Meaning::Follows);
        store.stall(true);
        let (first, second) = (membership.acts_on(7), membership.acts_on(9));
        let again = membership.acts_on(9);
        assert!(first < second && second == again, "what brings nothing new waits for what came before");
        let waited = tokio::time::timeout(Duration::from_millis(50), membership.written(first)).await;
        assert!(waited.is_err(), "nothing is done by it yet");
        store.stall(false);
        membership.written(again).await;
        drop(store);
        let mut hello = Hello::default();
        membership.introduce(&mut hello);
        assert_eq!((hello.mark_index, membership.store.meta(INDEX).as_deref()), (9, Some("9")));
        // Refused: the table is gone.
        let dir = tempfile::tempdir().unwrap();
        drop(LocalStore::open(dir.path()).unwrap());
        rusqlite::Connection::open(dir.path().join("node.sqlite"))
            .unwrap()
            .execute_batch(
                "CREATE TRIGGER no BEFORE INSERT ON meta WHEN new.name = 'mark_index' BEGIN SELECT \
                RAISE(ABORT, 'no room'); END",
            )
            .unwrap();
        let (store, _) = LocalStore::open(dir.path()).unwrap();
        let membership = Membership::load(&store, false);
        membership.welcomed(&welcome(A, 1, 0)).await;
        membership.written(membership.acts_on(7)).await;
        assert_eq!(store.meta(INDEX).as_deref(), None, "it was not written, and what the servers say goes on");
    }

    #[tokio::test]
    async fn what_it_has_acted_on_outlives_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = LocalStore::open(dir.path()).unwrap();
        let membership = Membership::load(&store, false);
        assert_eq!(membership.welcomed(&welcome(A, 1, 0)).await, Meaning::Follows);
        membership.written(membership.acts_on(7)).await;
        membership.written(membership.acts_on(5)).await;
        let first = membership.instance;
        drop((membership, store));
        let (store, _) = LocalStore::open(dir.path()).unwrap();
        let membership = Membership::load(&store, false);
        let mut hello = Hello::default();
        membership.introduce(&mut hello);
        assert_eq!((&*hello.cluster_id, hello.mark_index), (A, 7));
        assert_ne!(membership.instance, first, "each start is another instance");
        assert!(matches!(membership.welcomed(&welcome(B, 1, 7)).await, Meaning::Elsewhere(_)));
        assert!(matches!(membership.welcomed(&welcome(A, 2, 6)).await, Meaning::Holds(_)));
        membership.introduce(&mut hello);
        assert_eq!(
            (&*hello.cluster_id, hello.generation.as_str()),
            (A, &*Uuid::from_u128(1).to_string()),
            "nothing was acted on meanwhile"
        );
        membership.told(&InventoryStored { generation: Uuid::from_u128(3).to_string(), index: 6 }).await;
        assert_eq!(membership.welcomed(&welcome(A, 3, 9)).await, Meaning::Follows);
    }

    #[tokio::test]
    async fn one_whose_mark_is_damaged_holds_until_servers_have_set_it_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = LocalStore::open(dir.path()).unwrap();
        for meta in ["node_id", "secret_id"] {
            store.commit(vec![Write::Meta(meta, "x".into())]).await.unwrap();
        }
        let membership = Membership::load(&store, false);
        membership.welcomed(&welcome(A, 1, 0)).await;
        membership.written(membership.acts_on(7)).await;
        drop((membership, store));
        let connection = rusqlite::Connection::open(dir.path().join("node.sqlite")).unwrap();
        connection.execute("UPDATE meta SET value = '3' WHERE name = 'mark_index'", []).unwrap();
        drop(connection);
        // At every start.
        for _ in 0..2 {
            let (store, restored) = LocalStore::open(dir.path()).unwrap();
            assert!(restored.mark_lost);
            let membership = Membership::load(&store, restored.mark_lost);
            let mut hello = Hello::default();
            membership.introduce(&mut hello);
            assert!(hello.mark_lost);
            // Even with the newest servers: their state cannot be compared.
            for servers in [welcome(A, 1, 2), welcome(A, 1, 100)] {
                let Meaning::Holds(why) = membership.welcomed(&servers).await else { panic!("it follows") };
                assert!(why.contains("is damaged"), "{why}");
            }
        }
        let (store, restored) = LocalStore::open(dir.path()).unwrap();
        let membership = Membership::load(&store, restored.mark_lost);
        assert!(membership.told(&InventoryStored { generation: Uuid::from_u128(1).to_string(), index: 9 }).await);
        assert_eq!(membership.welcomed(&welcome(A, 1, 9)).await, Meaning::Follows);
        drop((membership, store));
        assert!(!LocalStore::open(dir.path()).unwrap().1.mark_lost);
    }
}
