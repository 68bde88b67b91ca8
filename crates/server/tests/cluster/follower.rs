//! A server that does not lead: it has the state that another one changes, tells who waits, and is taken over from.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use model::ClientStatus;
use server::{
    ErrorClass, Follower, Known, Server, ServerConfig, ServerHandle, Surroundings,
    events::{EventFilter, EventSubscription},
    keyring::Wrapping,
    shared::SharedKey,
    snapshot,
};
use state::{Row, Table};
use store::{MemoryStore, Store, Watch};
use testkit::PATIENCE;

use crate::{
    fake::{FakeNode, Fate, LEASE, Provider, any_change, job, key, live, node, soon, stop, submit, until},
    test_store::TestStore,
};

fn config() -> ServerConfig {
    ServerConfig { workers: 1, lease_margin: PATIENCE, ..ServerConfig::default().with_lease(LEASE) }
}

async fn start(store: &Arc<TestStore>, known: Option<Known>) -> Server {
    let around = Surroundings { store: Some(store.clone()), known, ..Surroundings::default() };
    Server::start_in(config(), around).await.expect("the server starts")
}

/// Everything that is there by now.
fn catch_up(follower: &Follower, batches: &mut Watch) {
    for batch in batches.ready().expect("batches") {
        follower.follow(&batch).expect("a batch that can be read");
    }
}

/// What a person sees of both.
fn view(server: &ServerHandle) -> Vec<String> {
    let state = server.snapshot();
    let json = |value: serde_json::Result<String>| value.expect("plain data");
    let mut all = vec![format!("{} {}", state.latest_index(), state.cluster().generation)];
    all.extend(state.jobs().map(|job| json(serde_json::to_string(job))));
    all.extend(state.evals().map(|eval| json(serde_json::to_string(eval))));
    all.extend(state.nodes().map(|node| format!("{node:?} {:?}", state.usage(node.id))));
    all.extend(
        state.allocs().map(|alloc| {
            format!("{} {} {:?} {:?}", alloc.id, alloc.modify_index, alloc.client_status, alloc.task_states)
        }),
    );
    all
}

/// What has come by now; an object that one batch changes twice counts once.
async fn events(of: &mut EventSubscription, up_to: u64) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    loop {
        let batch = soon(of.next()).await.expect("events");
        seen.extend(batch.events.iter().map(|e| format!("{} {} {} {}", e.index, e.topic.as_str(), e.kind, e.key)));
        if batch.index >= up_to {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_has_the_state_and_tells_who_waits() {
    let store = Arc::new(TestStore::of_several());
    assert!(Follower::load(config(), &*store).expect("reads").is_none(), "nobody has ever led");
    let server = start(&store, None).await;
    let s = server.handle();
    let _node = FakeNode::join_for_good(s, node(1), &Provider::default()).await;
    submit(s, job("early", 1)).await;
    until(s, "the first allocation", |state| !live(state, "early", ClientStatus::Running).is_empty()).await;

    let follower = Follower::load(config(), &*store).expect("reads").expect("a state");
    let f = follower.handle();
    let mut batches = store.watch(follower.index()).expect("batches");
    catch_up(&follower, &mut batches);
    let begun = follower.index() + 1;
    let (mut of_server, mut of_follower) =
        (s.subscribe(EventFilter::default(), begun), f.subscribe(EventFilter::default(), begun));
    let waits = f.wait_for(follower.index(), Duration::from_secs(3600), any_change, |state| state.latest_index());
    let (waiting, ()) = tokio::join!(async { soon(waits).await }, async {
        submit(s, job("late", 2)).await;
        stop(s, "early").await;
        until(s, "the other allocations", |state| live(state, "late", ClientStatus::Running).len() == 2).await;
        catch_up(&follower, &mut batches);
    });
    assert!(waiting.latest_index() >= begun && f.snapshot().job(&key("late")).is_some());

    // The last word of both, on the same batch.
    let last = submit(s, job("last", 0)).await.job_modify_index;
    soon(async {
        while view(f) != view(s) {
            // The store tells of a batch before the server publishes it: the follower may be ahead.
            if let Ok(batch) = tokio::time::timeout(Duration::from_millis(20), batches.next()).await {
                follower.follow(&batch.expect("a batch")).expect("a batch that can be read");
            }
        }
    })
    .await;
    let (told, heard) = (events(&mut of_server, last).await, events(&mut of_follower, last).await);
    assert!(heard.iter().any(|event| event.contains("Job JobDeregistered early")), "{heard:?}");
    assert_eq!(heard, told);

    let refused = f.set_scheduler_config(server::requests::SetSchedulerConfig {
        config: (**f.snapshot().scheduler_config()).clone(),
        cas: None,
    });
    let refused = refused.await.map(drop).expect_err("nothing is decided here");
    assert_eq!(refused.class(), ErrorClass::Unavailable, "{refused}");
    // Whoever waits at one that is no more asks elsewhere.
    let waits = f.clone();
    let index = follower.index();
    let waits = waits.wait_for(index, Duration::from_secs(3600), any_change, |state| state.latest_index());
    let (left, ()) = tokio::join!(async { soon(waits).await }, async { drop(follower) });
    assert_eq!(left.latest_index(), index);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_over_reads_only_what_it_has_not_followed() {
    let store = Arc::new(TestStore::of_several());
    let first = start(&store, None).await;
    let a = FakeNode::join(first.handle(), node(1), Fate::Runs, &Provider::default()).await;
    submit(first.handle(), job("followed", 1)).await;
    let follower = Follower::load(config(), &*store).expect("reads").expect("a state");
    submit(first.handle(), job("missed", 1)).await;
    drop(a);
    let loads = store.loads.load(Relaxed);
    let second = start(&store, Some(follower.known())).await;
    assert_eq!(store.loads.load(Relaxed), loads, "not everything");
    let state = second.handle().snapshot();
    assert!(state.job(&key("followed")).is_some() && state.job(&key("missed")).is_some());
    assert!(state.latest_index() > first.handle().snapshot().latest_index());
    submit(second.handle(), job("next", 1)).await;

    // What the store no longer has in memory is read with everything.
    for n in 0..300 {
        let count = 1 + n % 2;
        submit(second.handle(), job("often", count)).await;
    }
    let third = start(&store, Some(follower.known())).await;
    assert_eq!(store.loads.load(Relaxed), loads + 1);
    assert!(third.handle().snapshot().job(&key("often")).is_some());
    for server in [first, second, third] {
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_follower_is_that_of_the_leader_and_a_server_starts_on_it() {
    let shared = SharedKey::read("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=").expect("a key");
    let config = || ServerConfig { shared: Some(shared.clone()), ..config() };
    let store = Arc::new(TestStore::of_several());
    let on = |store: Arc<dyn Store>| Surroundings { store: Some(store), ..Surroundings::default() };
    let server = Server::start_in(config(), on(store.clone())).await.expect("the server starts");
    let s = server.handle();
    let _node = FakeNode::join_for_good(s, node(1), &Provider::default()).await;
    submit(s, job("early", 2)).await;
    until(s, "its allocations", |state| live(state, "early", ClientStatus::Running).len() == 2).await;
    let follower = Follower::load(config(), &*store).expect("reads").expect("a state");
    let mut batches = store.watch(follower.index()).expect("batches");
    submit(s, job("late", 1)).await;
    until(s, "its allocation", |state| live(state, "late", ClientStatus::Running).len() == 1).await;
    let sign = |n: u32| s.keyring().sign(&serde_json::json!({ "n": n })).expect("signs");
    let first = sign(1);
    s.rotate_key().await.expect("rotates");
    let tokens = [first, sign(2)];
    // Nobody changes anything any more: both save the same.
    let saved = {
        let of_leader = loop {
            let saved = s.save_snapshot("test").await.expect("a snapshot");
            catch_up(&follower, &mut batches);
            if saved.index == follower.index() {
                break saved;
            }
        };
        let loads = store.loads.load(Relaxed);
        let own = follower.handle().save_snapshot("test").await.expect("a snapshot");
        assert_eq!((own.index, store.loads.load(Relaxed)), (of_leader.index, loads), "from memory");
        let [leads, follows] = [&of_leader, &own].map(|saved| snapshot::decode(&saved.bytes).expect("a snapshot"));
        assert_eq!((leads.meta.cluster, leads.meta.format), (follows.meta.cluster, follows.meta.format));
        let text = |row: &Row| row.value.as_ref().map(|value| value.escape_ascii().to_string());
        for row in leads.contents.rows.iter().filter(|row| row.key != b"causes") {
            let same = follows.contents.rows.iter().find(|same| (same.table, &same.key) == (row.table, &row.key));
            let same = same.expect("a row of the same object");
            // The last digit of a score may be another one once it was read.
            assert!(row.table == Table::Allocs || text(same) == text(row), "{same:?} {row:?}");
        }
        assert!(follows.contents.rows.iter().all(|row| row.table != Table::SigningKeys), "they are files");
        assert_eq!((follows.files.len(), &follows.files), (2, &leads.files));
        own
    };
    drop(follower);
    server.shutdown().await;

    let again = Arc::new(MemoryStore::default());
    snapshot::restore_into(&saved.bytes, &*again, &shared, &Wrapping::default()).expect("restores");
    let restored = Server::start_in(config(), on(again)).await.expect("a server starts on it");
    let state = restored.handle().snapshot();
    for name in ["early", "late"] {
        assert!(state.job(&key(name)).is_some(), "{name}");
    }
    assert_eq!((state.allocs().count(), state.nodes().count()), (3, 1));
    for (token, n) in tokens.iter().zip(1..) {
        assert_eq!(restored.handle().keyring().verify(token), Some(serde_json::json!({ "n": n })));
    }
    restored.shutdown().await;
}
