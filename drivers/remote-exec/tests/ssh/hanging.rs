//! Hosts whose channel answers and whose disk does not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use driver_sdk::{Ensure, InstanceState, RemoteDriver as _};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde_json::json;
use testkit::poll;
use tokio::sync::mpsc;

use super::{SLEEP, World, end, made, observe, why};

/// Longer than any limit of the driver, shorter than the patience of its callers.
const CALLER: Duration = Duration::from_secs(50);

async fn answered<T>(what: &str, call: impl Future<Output = T>) -> T {
    tokio::time::timeout(CALLER, call).await.unwrap_or_else(|_| panic!("{what}: no answer within {CALLER:?}"))
}

/// Makes a file one that nobody can read to its end, until it is dropped.
struct Hangs {
    file: PathBuf,
    away: PathBuf,
}

impl Hangs {
    fn new(file: &Path) -> Hangs {
        let away = file.with_extension("away");
        let fifo = file.with_extension("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        std::fs::rename(file, &away).unwrap();
        std::fs::rename(fifo, file).unwrap();
        Hangs { file: file.to_owned(), away }
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        // Whoever reads it, or begins to, sees its end.
        let writes = OFlags::NONBLOCK.bits().cast_signed();
        let held = OpenOptions::new().write(true).custom_flags(writes).open(&self.file);
        let _ = std::fs::rename(&self.away, &self.file);
        drop(held);
    }
}

#[tokio::test]
async fn a_host_whose_disk_hangs_keeps_nothing_from_the_others() {
    let world = World::new();
    let manager = world.manager(json!({ "a": {}, "b": {} })).await;
    // Both have been reached.
    let on = |host: &str| json!({ "command": "sh", "args": ["-c", SLEEP], "host": host });
    let there = made(&manager, world.ensure_with("there", 1, on("a"))).await;
    let here = made(&manager, world.ensure_with("here", 1, on("b"))).await;
    let hangs = Hangs::new(&world.root("a").join("provider-id"));

    let first = Ensure { first: true, ..world.ensure("first", 1, SLEEP) };
    let later = world.ensure("later", 1, SLEEP);
    let key = world.key("never");
    let (first, later, listed, found, sealed) = tokio::join!(
        answered("the first create", manager.ensure(first)),
        answered("a later create", manager.ensure(later)),
        answered("the list", manager.list("cluster-1", "", 10)),
        answered("the look", manager.find(&key, "cluster-1")),
        answered("the seal", manager.seal(&key, 1, "cluster-1", b"")),
    );
    let first = first.unwrap();
    assert_eq!(first.observed.attributes["host"], "b");
    // Whatever else may be on it is not denied.
    let hung = [why(later.unwrap_err()), listed.as_ref().unwrap().incomplete.clone(), why(found.unwrap_err())];
    for said in hung.into_iter().chain([why(sealed.unwrap_err())]) {
        assert!(said.contains("host a is connected but has not answered"), "{said}");
    }
    let listed: Vec<_> = listed.unwrap().instances.into_iter().map(|i| i.handle).collect();
    assert!(listed.contains(&here.handle) && !listed.contains(&there.handle), "{listed:?}");

    drop(hangs);
    let whole = async || {
        let page = manager.list("cluster-1", "", 10).await.unwrap();
        if page.incomplete.is_empty() && page.instances.len() == 3 { Ok(()) } else { Err(page) }
    };
    poll("a whole list", whole).await;
    for made in [first, here, there] {
        end(&manager, &made.handle, 1).await;
    }
}

#[tokio::test]
async fn a_watch_of_a_host_whose_disk_hangs_says_so() {
    let world = World::new();
    let manager = std::sync::Arc::new(world.manager(json!({ "a": {} })).await);
    let ensured = made(&manager, world.ensure("t", 1, SLEEP)).await;
    let (sink, mut seen) = mpsc::channel(16);
    let (watching, handle) = (manager.clone(), ensured.handle.clone());
    let watch = tokio::spawn(async move { watching.watch(vec![handle], sink).await });
    let mut until = async |state: InstanceState| {
        let told = async {
            loop {
                let next = seen.recv().await.expect("it is watched");
                if next.state == state {
                    return next;
                }
            }
        };
        answered(&format!("{state:?}"), told).await
    };
    until(InstanceState::Running).await;
    let hangs = Hangs::new(&world.root("a").join("instances").join(world.key("t")).join("instance.json"));
    let (said, looked) =
        tokio::join!(until(InstanceState::Unknown), answered("a look", observe(&manager, &ensured.handle)));
    for seen in [said, looked] {
        assert!(seen.reason.contains("host a is connected but has not answered"), "{seen:?}");
    }
    drop(hangs);
    until(InstanceState::Running).await;
    watch.abort();
    end(&manager, &ensured.handle, 1).await;
}

#[tokio::test]
async fn a_create_that_counts_a_hosts_room_for_ever_holds_no_other_up_for_ever() {
    let world = World::new();
    let manager = world.manager(json!({ "a": { "capacity": { "sessions": 5 } } })).await;
    let other = made(&manager, world.ensure("other", 1, SLEEP)).await;
    let counting = File::open(world.root("a").join("instances")).unwrap();
    flock(&counting, FlockOperation::LockExclusive).unwrap();
    let request = world.ensure("t", 1, SLEEP);
    let said = why(answered("the create", manager.ensure(request.clone())).await.unwrap_err());
    assert!(said.contains("counting the host's room"), "{said}");
    assert!(world.intents("t").is_empty());
    drop(counting);
    let ensured = made(&manager, request).await;
    for made in [other, ensured] {
        end(&manager, &made.handle, 1).await;
    }
}
