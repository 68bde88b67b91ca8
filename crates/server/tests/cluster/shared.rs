//! Servers of one store: what one has signed the next one verifies, nodes have one secret for all of them, and a
//! snapshot takes the keys to a server that keeps them elsewhere.

use std::{fs, path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use server::{
    ErrorClass, Server, ServerConfig, ServerHandle, StartError, Surroundings,
    join::{JOIN_SECRET_FILE, Join, JoinSecret},
    keyring::{self, KeyState, KeyringError, Wrapping},
    shared::SharedKey,
    snapshot::{self, SnapshotError},
};
use state::Table;
use store::{Lost, MemoryStore, Store, StoreError};

use crate::fake::soon;

fn key(byte: u8) -> SharedKey {
    SharedKey::read(&STANDARD.encode([byte; 32])).expect("a key")
}

fn config(dir: &Path, shared: Option<SharedKey>) -> ServerConfig {
    ServerConfig { data_dir: Some(dir.to_owned()), shared, join: Join::Kept, workers: 1, ..ServerConfig::default() }
}

async fn start(store: &Arc<MemoryStore>, dir: &Path, shared: Option<SharedKey>) -> Result<Server, StartError> {
    let around = Surroundings { store: Some(store.clone()), ..Surroundings::default() };
    Server::start_in(config(dir, shared), around).await
}

fn states(server: &ServerHandle) -> Vec<KeyState> {
    server.keyring().keys().0.into_iter().map(|key| key.state).collect()
}

/// The private keys as a file would hold them: base64.
fn secrets(server: &ServerHandle) -> Vec<String> {
    let files = server.keyring().export().expect("exports");
    let read = |text: &[u8]| serde_json::from_slice::<Value>(text).expect("JSON")["PrivateKey"].clone();
    files.iter().map(|(_, text)| read(text).as_str().expect("text").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_server_has_signed_the_next_one_verifies() {
    let (store, dirs) = (Arc::new(MemoryStore::default()), [(); 3].map(|()| tempfile::tempdir().expect("dir")));
    let first = start(&store, dirs[0].path(), Some(key(1))).await.expect("starts");
    let s = first.handle();
    let old = s.keyring().sign(&json!({"n": 1})).expect("signs");
    let made = s.keyring().keys();
    assert_eq!((states(s), made.1), (vec![KeyState::Active], s.snapshot().index(Table::SigningKeys)));
    let waits = s.wait_for_keys(made.1, Duration::from_secs(3600));
    let (rotated, ()) = tokio::join!(s.rotate_key(), async { soon(waits).await });
    let rotated = rotated.expect("rotates");
    assert_eq!(states(s), [KeyState::Active, KeyState::Inactive]);
    let keys = s.keyring().keys();
    assert_eq!((&keys.0[0], keys.1), (&rotated, rotated.create_index));
    assert_eq!((keys.0[1].create_index, keys.0[1].modify_index), (made.0[0].create_index, rotated.create_index));
    let new = s.keyring().sign(&json!({"n": 2})).expect("signs");
    let join = s.join_secret().expect("nodes show it").clone();

    // Nothing of a private key is in a file or in the store.
    assert!(!dirs[0].path().join(keyring::DIR).exists());
    let rows = store.load().expect("loads").rows;
    assert_eq!(rows.iter().filter(|row| row.table == Table::SigningKeys).count(), 2);
    for secret in secrets(s) {
        let der = STANDARD.decode(&secret).expect("base64");
        for row in &rows {
            let value = row.value.as_ref().expect("a value");
            let holds = |part: &[u8]| value.windows(part.len()).any(|window| window == part);
            assert!(!holds(secret.as_bytes()) && !holds(&der), "a row of {}", row.table);
        }
    }
    drop(first);

    let second = start(&store, dirs[1].path(), Some(key(1))).await.expect("starts");
    let s = second.handle();
    assert_eq!(s.keyring().keys(), keys, "nothing is made or marked at a start");
    let read = |token: &str| s.keyring().verify(token);
    assert_eq!((read(&old), read(&new)), (Some(json!({"n": 1})), Some(json!({"n": 2}))));
    let newest = s.keyring().sign(&json!({"n": 3})).expect("signs");
    assert_eq!(newest.split('.').next(), new.split('.').next(), "the active key signs");
    for dir in &dirs[..2] {
        assert_eq!(JoinSecret::kept_in(dir.path()).expect("read"), join, "it is where people look for it");
    }
    assert_eq!(s.join_secret(), Some(&join));

    // Who cannot read the keys does not start, and changes nothing.
    let active = s.delete_key(rotated.id).await.expect_err("the active key stays");
    assert!(active.class() == ErrorClass::Conflict && active.to_string().contains("rotate first"), "{active}");
    let before = s.keyring().keys();
    drop(second);
    let error = start(&store, dirs[2].path(), Some(key(2))).await.expect_err("another key");
    let named = |id: &uuid::Uuid| keys.0.iter().any(|key| key.id == *id);
    assert!(matches!(&error, StartError::Keyring(KeyringError::Wrapped { id, .. }) if named(id)), "{error}");
    let says = "does not open with this server's key, from server.encrypt or its keyring block";
    assert!(error.to_string().contains(says), "{error}");
    let error = start(&store, dirs[2].path(), None).await.expect_err("no key");
    assert!(matches!(&error, StartError::Keyring(KeyringError::Unshared { id }) if named(id)), "{error}");
    assert!(!dirs[2].path().join(JOIN_SECRET_FILE).exists());

    let third = start(&store, dirs[2].path(), Some(key(1))).await.expect("starts");
    let s = third.handle();
    assert_eq!(s.keyring().keys(), before);
    let deleted = s.delete_key(made.0[0].id).await.expect("deletes");
    assert_eq!(s.keyring().keys(), (vec![rotated], deleted));
    assert_eq!((s.keyring().verify(&old), s.keyring().verify(&new).is_some()), (None, true));
    assert_eq!(s.delete_key(made.0[0].id).await.expect("it is gone"), deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_store_that_has_lost_something_is_no_new_cluster() {
    let dir = tempfile::tempdir().expect("dir");
    let before = start(&Arc::default(), dir.path(), Some(key(1))).await.expect("starts");
    let cluster = before.handle().cluster_id();
    drop(before);
    let store = Arc::new(MemoryStore::default());
    let begin = |cluster_id| {
        let lost = Some(Lost { found: 0, acknowledged: 300 });
        let around = Surroundings { store: Some(store.clone()), lost, ..Surroundings::default() };
        Server::start_in(ServerConfig { cluster_id, ..config(dir.path(), Some(key(1))) }, around)
    };
    match begin(None).await.map(drop) {
        Err(StartError::Store(error @ StoreError::NoCluster { acknowledged: 300, .. })) => {
            assert!(error.to_string().contains("server.cluster_id"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.load().expect("loads").index, 0, "nothing was begun");
    // Who says which cluster it is begins empty, and a person ends the recovery.
    let server = begin(Some(cluster)).await.expect("starts");
    let status = server.handle().recovery_status().expect("it recovers");
    assert!(status.by_hand && status.cause.contains("the indexes 1 to 300"), "{}", status.cause);
    drop(server);
    // Another one that has found the same loss follows it.
    let server = begin(None).await.expect("starts");
    assert_eq!(server.handle().cluster_id(), cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gets_a_shared_store_brings_its_keys() {
    let dir = tempfile::tempdir().expect("dir");
    let alone = Server::start(config(dir.path(), None)).await.expect("starts");
    let token = alone.handle().keyring().sign(&json!({"n": 1})).expect("signs");
    alone.handle().rotate_key().await.expect("rotates");
    let (before, kept) = (alone.handle().keyring().keys().0, secrets(alone.handle()));
    let own = alone.handle().join_secret().expect("nodes show it").clone();
    alone.shutdown().await;

    let store = Arc::new(MemoryStore::default());
    let shared = start(&store, dir.path(), Some(key(1))).await.expect("starts");
    let s = shared.handle();
    let ids = |keys: &[keyring::KeyMeta]| keys.iter().map(|key| (key.id, key.state)).collect::<Vec<_>>();
    assert_eq!(ids(&s.keyring().keys().0), ids(&before));
    assert_eq!((secrets(s), s.keyring().verify(&token)), (kept, Some(json!({"n": 1}))));
    // Nodes need the secret of all servers from now on; one that was configured stays.
    assert_ne!(s.join_secret(), Some(&own));
    assert_eq!(fs::read_to_string(dir.path().join(JOIN_SECRET_FILE)).expect("read").trim().len(), 64);
    let before = s.keyring().keys();
    drop(shared);
    // Keys that lie with a server that joins the others are not theirs.
    let other = tempfile::tempdir().expect("dir");
    Server::start(config(other.path(), None)).await.expect("starts").shutdown().await;
    let secret = JoinSecret::new("configured").expect("a secret");
    let with = ServerConfig { join: Join::Secret(secret.clone()), ..config(other.path(), Some(key(1))) };
    let around = Surroundings { store: Some(store.clone()), ..Surroundings::default() };
    let joins = Server::start_in(with, around).await.expect("starts");
    assert_eq!(joins.handle().keyring().keys(), before);
    assert_eq!(joins.handle().join_secret(), Some(&secret));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_takes_the_keys_to_servers_of_either_kind() {
    let (store, dirs) = (Arc::new(MemoryStore::default()), [(); 3].map(|()| tempfile::tempdir().expect("dir")));
    let shared = start(&store, dirs[0].path(), Some(key(1))).await.expect("starts");
    let s = shared.handle();
    let token = s.keyring().sign(&json!({"n": 1})).expect("signs");
    s.rotate_key().await.expect("rotates");
    let (keys, kept) = (s.keyring().keys().0, secrets(s));
    let ids = |s: &ServerHandle| s.keyring().keys().0.iter().map(|key| (key.id, key.state)).collect::<Vec<_>>();
    let expected = ids(s);
    let saved = s.save_snapshot("test").await.expect("saves");
    let read = snapshot::decode(&saved.bytes).expect("whole");
    assert_eq!((read.files.len(), read.contents.rows.iter().any(|row| row.table == Table::SigningKeys)), (2, false));
    assert!(!snapshot::state_of(&read).expect("a state").to_string().contains(&keys[0].id.to_string()));
    drop(shared);

    // To a server with a store of its own, and from there to servers with another key.
    snapshot::restore(&saved.bytes, dirs[1].path()).expect("restores");
    let alone = Server::start(config(dirs[1].path(), None)).await.expect("starts");
    let s = alone.handle();
    assert_eq!(
        (ids(s), secrets(s), s.keyring().verify(&token)),
        (expected.clone(), kept.clone(), Some(json!({"n": 1})))
    );
    let saved = s.save_snapshot("test").await.expect("saves");
    alone.shutdown().await;
    let store = Arc::new(MemoryStore::default());
    let meta = snapshot::restore_into(&saved.bytes, &*store, &key(9), &Wrapping::default()).expect("restores");
    let again = snapshot::restore_into(&saved.bytes, &*store, &key(9), &Wrapping::default());
    assert!(matches!(again, Err(SnapshotError::Inhabited(index)) if index == meta.index), "{again:?}");
    let other = start(&store, dirs[2].path(), Some(key(9))).await.expect("starts");
    let s = other.handle();
    assert!(s.recovery_status().is_some(), "it is a state from the past");
    assert_eq!((ids(s), secrets(s), s.keyring().verify(&token)), (expected, kept, Some(json!({"n": 1}))));
    // Keys are changed in a recovery, too: they may be known to somebody who should not know them.
    let newest = s.rotate_key().await.expect("rotates");
    assert_eq!(s.keyring().keys().0[0], newest);
    assert_eq!(states(s), [KeyState::Active, KeyState::Inactive, KeyState::Inactive]);
}
