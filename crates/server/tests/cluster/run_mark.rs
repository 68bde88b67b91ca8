//! The mark of a running server: where it proves that the state is the newest, new tasks of a provider that lists late
//! begin at once after a start of the server; everywhere else they wait as if the state came from a backup.

use std::{fs, path::Path};

use server::{Server, ServerConfig, ServerHandle};

use crate::{
    fake::*,
    recovery::{copy, running, slot},
};

/// Longer than any test: what waits for it waits for ever.
const LATE: u64 = 3600;

fn node_of_a_late_provider() -> model::Node {
    let mut node = remote_node(1);
    node.drivers.get_mut("far").and_then(|driver| driver.remote.as_mut()).unwrap().stale_seconds = LATE;
    node
}

/// A directory in memory; None = this machine has none.
fn in_memory() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir_in("/dev/shm").ok();
    if dir.is_none() {
        skip::cannot("there is no /dev/shm for a directory in memory");
    }
    dir
}

async fn start_beside(data: &Path, run: &Path) -> Server {
    let (data_dir, run_dir) = (Some(data.to_owned()), Some(run.to_owned()));
    start_with(ServerConfig { data_dir, run_dir, ..ServerConfig::default() }).await
}

/// A cluster with one task at a provider that lists late, until its server ends.
async fn with_one_task(data: &Path, run: &Path, p: &Provider) {
    let server = start_beside(data, run).await;
    let node = FakeNode::join_for_good(server.handle(), node_of_a_late_provider(), p).await;
    submit(server.handle(), remote_job("far", 1)).await;
    running(server.handle(), "far", 1).await;
    drop(node);
    server.shutdown().await;
}

/// A new job of the provider begins once the provider was swept.
async fn begins(s: &ServerHandle, p: &Provider, job: &str) {
    let node = places(s, p, job).await;
    until(s, "the task begins: nothing can have been lost", |state| state.remote_task(&slot(job)).is_some()).await;
    running(s, job, 1).await;
    drop(node);
}

/// A new job of the provider waits, although the provider was swept.
async fn waits(s: &ServerHandle, p: &Provider, job: &str, why: &str) {
    let node = places(s, p, job).await;
    let begun = s.wait_until(LEASE, |state| state.remote_task(&slot(job)).is_some()).await;
    assert!(begun.is_err(), "{job} begins, although {why}");
    drop(node);
}

/// A node that reaches the provider, which was swept, and has a place for a new job.
async fn places(s: &ServerHandle, p: &Provider, job: &str) -> FakeNode {
    let node = FakeNode::join_for_good(s, node_of_a_late_provider(), p).await;
    let swept = s.sweep_remote().await;
    assert!(swept.len() == 1 && swept[0].error.is_empty(), "{swept:?}");
    submit(s, remote_job(job, 1)).await;
    until(s, "a place for the task", |state| state.allocs_by_job(&key(job)).next().is_some()).await;
    node
}

fn only_mark(run: &Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(run).unwrap();
    let mark = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none(), "one server has one mark");
    mark
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_start_on_the_newest_state_new_tasks_of_a_late_provider_begin_at_once() {
    let Some(run) = in_memory() else { return };
    let (dir, p) = (tempfile::tempdir().unwrap(), Provider::default());
    with_one_task(dir.path(), run.path(), &p).await;
    for job in ["second", "third"] {
        let server = start_beside(dir.path(), run.path()).await;
        begins(server.handle(), &p, job).await;
        server.shutdown().await;
    }
    let mode = |path: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
    assert_eq!(mode(&only_mark(run.path())) & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_restored_backup_new_tasks_of_a_late_provider_wait_also_after_another_start() {
    let Some(run) = in_memory() else { return };
    let (dir, p) = (tempfile::tempdir().unwrap(), Provider::default());
    with_one_task(dir.path(), run.path(), &p).await;
    let backup = copy(dir.path());
    let server = start_beside(dir.path(), run.path()).await;
    begins(server.handle(), &p, "second").await;
    server.shutdown().await;
    // In its place: the mark is found.
    fs::remove_dir_all(dir.path()).unwrap();
    let restored = copy(backup.path());
    fs::rename(restored.path(), dir.path()).unwrap();
    for job in ["third", "fourth"] {
        let server = start_beside(dir.path(), run.path()).await;
        waits(server.handle(), &p, job, "the servers may have forgotten what runs").await;
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_proves_nothing_lets_new_tasks_of_a_late_provider_wait() {
    let Some(run) = in_memory() else { return };
    let (dir, p) = (tempfile::tempdir().unwrap(), Provider::default());
    with_one_task(dir.path(), run.path(), &p).await;
    let elsewhere = copy(dir.path());
    let server = start_beside(elsewhere.path(), run.path()).await;
    waits(server.handle(), &p, "copied", "the mark is of another directory").await;
    server.shutdown().await;

    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let marks = on_disk.path().join("marks");
    for run in [marks.as_path(), on_disk.path()] {
        let server = start_beside(dir.path(), run).await;
        waits(server.handle(), &p, "on-disk", "what lies on a disk may come from a backup").await;
        stop(server.handle(), "on-disk").await;
        server.shutdown().await;
    }
    assert_eq!(fs::read_dir(on_disk.path()).unwrap().count(), 0, "and nothing is left there");

    // Those servers have written the state, and its mark is of the one before.
    let server = start_beside(dir.path(), run.path()).await;
    waits(server.handle(), &p, "others", "servers without a mark have gone on in between").await;
    stop(server.handle(), "others").await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_mark_proves_nothing_and_is_written_anew() {
    let Some(run) = in_memory() else { return };
    let (dir, p) = (tempfile::tempdir().unwrap(), Provider::default());
    with_one_task(dir.path(), run.path(), &p).await;
    let mark = only_mark(run.path());
    let whole = fs::read(&mark).unwrap();
    fs::write(&mark, &whole[..100]).unwrap();
    let server = start_beside(dir.path(), run.path()).await;
    waits(server.handle(), &p, "second", "the mark is damaged").await;
    server.shutdown().await;
    let anew = fs::read(&mark).unwrap();
    assert!(anew.len() == whole.len() && anew != whole, "{}", String::from_utf8_lossy(&anew));
}
