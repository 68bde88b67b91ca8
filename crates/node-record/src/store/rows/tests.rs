//! Damaged rows.

use std::{path::Path, sync::Arc};

use model::IncarnationId;
use uuid::Uuid;

use crate::{
    StoreError,
    store::{LocalStore, StoredJob, Write},
};

use super::*;

const INCARNATION: IncarnationId = IncarnationId(Uuid::from_u128(7));

fn job(text: &str) -> Arc<StoredJob> {
    Arc::new(StoredJob::new(text.as_bytes().to_vec()))
}

fn alloc(id: &str, of: &str) -> Write {
    Write::Alloc { id: id.into(), job: job(of), record: format!("the record of {id}").into_bytes() }
}

fn task(alloc: &str, task: &str) -> Write {
    Write::Task { alloc: alloc.into(), task: task.into(), record: format!("the task {task} of {alloc}").into_bytes() }
}

/// A database with rows of every kind.
async fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    let (store, _) = LocalStore::open(dir.path()).expect("open");
    let identity = IDENTITY.map(|name| Write::Meta(name, format!("the {name}"))).to_vec();
    store.commit(identity).await.expect("commit");
    store
        .commit(vec![alloc("a", "{1}"), task("a", "x"), task("a", "y"), alloc("b", "{2}"), task("b", "x")])
        .await
        .expect("commit");
    store
        .commit(vec![Write::Meta("generation", "g".into()), Write::Mark("mark_index", "17".into())])
        .await
        .expect("commit");
    store.commit(vec![Write::Claim { kind: "cgroup", key: "k".into() }]).await.expect("commit");
    store
        .commit(vec![Write::Slot { key: "far".into(), attempted: Some(INCARNATION), epoch: 3 }])
        .await
        .expect("commit");
    drop(store);
    dir
}

fn change(dir: &Path, sql: &str) {
    let connection = Connection::open(dir.join("node.sqlite")).expect("open");
    assert!(connection.execute(sql, []).expect(sql) > 0, "{sql}: nothing has changed");
}

#[tokio::test]
async fn a_damaged_row_costs_what_it_concerns_and_is_named() {
    // The damage, the message, and the remaining allocations.
    for (sql, said, left) in [
        ("UPDATE allocs SET record = 'The record of a' WHERE id = 'a'", "allocation a is not", &["b"][..]),
        ("UPDATE allocs SET record = 5 WHERE id = 'a'", "allocation a is not", &["b"]),
        ("UPDATE allocs SET id = 'c' WHERE id = 'a'", "there are tasks of allocation a, but no record", &["b"]),
        (
            "UPDATE allocs SET job = (SELECT job FROM allocs WHERE id = 'b') WHERE id = 'a'",
            "allocation a is not",
            &["b"],
        ),
        (
            "UPDATE tasks SET record = 'the task x of A' WHERE alloc = 'a' AND task = 'x'",
            "task \"x\" of allocation a",
            &["b"],
        ),
        ("UPDATE tasks SET task = 'z' WHERE alloc = 'a' AND task = 'x'", "task \"z\" of allocation a", &["b"]),
        ("UPDATE jobs SET json = '{3}' WHERE json = CAST('{1}' AS BLOB)", "the job of allocation a", &["b"]),
        ("DELETE FROM jobs WHERE json = CAST('{1}' AS BLOB)", "the job of allocation a", &["b"]),
        ("UPDATE ledger SET key = 'K'", "the claim on cgroup \"K\"", &["a", "b"]),
        ("UPDATE slots SET epoch = 2", "remote slot far", &["a", "b"]),
        ("UPDATE slots SET attempted = NULL", "remote slot far", &["a", "b"]),
        ("UPDATE meta SET value = '16' WHERE name = 'mark_index'", "\"mark_index\"", &["a", "b"]),
        ("UPDATE meta SET name = 'mark_indey' WHERE name = 'mark_index'", "\"mark_indey\"", &["a", "b"]),
        ("UPDATE meta SET value = 'G' WHERE name = 'generation'", "\"generation\"", &["a", "b"]),
        (
            "UPDATE allocs SET id = CAST(x'ff00' AS TEXT) WHERE id = 'a'",
            "there are tasks of allocation a, but no record",
            &["b"],
        ),
    ] {
        let dir = filled().await;
        change(dir.path(), sql);
        let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
        let facts = read_meta(&connection).expect("read");
        let (read, _) = read_all(&connection).expect("read");
        drop(connection);
        let damaged: Vec<String> = facts.damaged.iter().chain(&read.damaged).cloned().collect();
        assert!(damaged.iter().any(|what| what.contains(said)), "{sql}: {damaged:?}");
        let (store, restored) = LocalStore::open(dir.path()).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut found: Vec<&str> = restored.allocs.iter().map(|a| a.id.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, left, "{sql}");
        // By this entry the sweep finds its processes.
        assert_eq!(store.claimed(FORGOTTEN).contains(&"a".to_owned()), !left.contains(&"a"), "{sql}");
        let doubt = sql.contains("slots");
        assert_eq!((restored.slots.is_empty(), restored.doubtful.len()), (doubt, usize::from(doubt)), "{sql}");
        let mark = sql.contains("meta");
        assert_eq!(
            (restored.mark_lost, store.meta("mark_index").zip(store.meta("generation")).is_none()),
            (mark, mark),
            "{sql}"
        );
    }
}

#[tokio::test]
async fn without_its_identity_there_is_no_node() {
    for sql in [
        "UPDATE meta SET value = 'another' WHERE name = 'node_id'",
        "UPDATE meta SET value = 'another' WHERE name = 'secret_id'",
        "UPDATE meta SET value = 'another' WHERE name = 'cluster_id'",
        "UPDATE meta SET name = 'node_ie' WHERE name = 'node_id'",
    ] {
        let dir = filled().await;
        change(dir.path(), sql);
        for _ in 0..2 {
            match LocalStore::open(dir.path()).map(drop) {
                Err(error @ StoreError::Damaged { .. }) => {
                    assert!(
                        error.to_string().contains("cannot be read") && error.to_string().contains("another node"),
                        "{sql}: {error}"
                    );
                }
                other => panic!("{sql}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn the_rows_of_the_first_format_get_their_checksums() {
    let dir = filled().await;
    let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
    // The tables of the first format.
    for table in ["meta", "allocs", "tasks", "slots", "ledger"] {
        connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN sum")).expect("dropped");
    }
    connection.execute("UPDATE meta SET value = '1' WHERE name = 'format'", []).expect("update");
    drop(connection);
    for _ in 0..2 {
        let (store, restored) = LocalStore::open(dir.path()).expect("open");
        assert_eq!((restored.allocs.len(), restored.damaged.len()), (2, 0), "{:?}", restored.damaged);
        assert_eq!(restored.slots, [("far".to_owned(), Some(INCARNATION), 3)]);
        assert_eq!(
            (store.meta("node_id").as_deref(), store.claimed("cgroup")),
            (Some("the node_id"), vec!["k".to_owned()])
        );
    }
    change(dir.path(), "UPDATE tasks SET record = 'x' WHERE alloc = 'b'");
    assert_eq!(LocalStore::open(dir.path()).expect("open").1.allocs.len(), 1, "from then on damage is found");
}

#[tokio::test]
async fn the_schema_says_what_the_rows_are_and_not_the_row_of_the_format() {
    // Rows with checksums, but a format row that says otherwise: the store finds the damage, and does not blame a newer
    // release.
    for sql in [
        "UPDATE meta SET value = '1' WHERE name = 'format'",
        "UPDATE meta SET value = '3' WHERE name = 'format'",
        "UPDATE meta SET value = x'ff' WHERE name = 'format'",
        "DELETE FROM meta WHERE name = 'format'",
    ] {
        let dir = filled().await;
        change(dir.path(), sql);
        change(dir.path(), "UPDATE tasks SET record = 'x' WHERE alloc = 'b'");
        let restored = LocalStore::open(dir.path()).unwrap_or_else(|e| panic!("{sql}: {e}")).1;
        assert_eq!((restored.allocs.len(), restored.damaged.len()), (1, 1), "{sql}: {:?}", restored.damaged);
        let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
        assert_eq!(format(&connection).expect("read"), FORMAT, "{sql}");
    }
    // Rows without checksums.
    for sql in ["UPDATE meta SET value = '2' WHERE name = 'format'", "DELETE FROM meta WHERE name = 'format'"] {
        let dir = filled().await;
        let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
        for table in ["meta", "tasks", "slots"] {
            connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN sum")).expect("dropped");
        }
        drop(connection);
        change(dir.path(), sql);
        let restored = LocalStore::open(dir.path()).unwrap_or_else(|e| panic!("{sql}: {e}")).1;
        assert_eq!((restored.allocs.len(), restored.damaged.len()), (2, 0), "{sql}: {:?}", restored.damaged);
    }
}
