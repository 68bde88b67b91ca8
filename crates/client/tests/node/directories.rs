//! A node's directory that is from a backup, or empty: what runs is found again or ended, nothing runs twice, and
//! instances elsewhere are not touched.

use std::{
    fs,
    path::{Path, PathBuf},
};

use model::{Allocation, ClientStatus, Job, Observed, RemoteOrder};
use serde_json::json;

use crate::fixture::{Rig, alloc, end, eventually, managed, processes, task, unmount_below};

/// What the directory is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// From before what has happened last.
    Older,
    /// Gone.
    Emptied,
}

fn near(seconds: &str) -> (Allocation, Job) {
    of_its_own(
        alloc("service", vec![task("t", "raw_exec", json!({"command": "/bin/sleep", "args": [seconds]}))]),
        seconds,
    )
}

/// In one message two versions of a job are told apart by their index.
fn of_its_own((alloc, job): (Allocation, Job), seconds: &str) -> (Allocation, Job) {
    (alloc, Job { job_modify_index: seconds.parse().expect("a number"), ..job })
}

fn far(seconds: &str) -> (Allocation, Job, RemoteOrder) {
    let (alloc, job, order) =
        managed("service", task("far", "remote_exec", json!({"command": "/bin/sleep", "args": [seconds]})));
    let (alloc, job) = of_its_own((alloc, job), seconds);
    (alloc, job, order)
}

/// The processes that run for so long.
fn of(rig: &Rig, seconds: &str) -> Vec<i32> {
    let line = format!("/bin/sleep {seconds}");
    processes(rig.dir.path()).into_iter().filter(|(_, l)| *l == line).map(|(pid, _)| pid).collect()
}

/// The database and what else the agent keeps, without its sockets.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (path, kind) = (to.join(entry.file_name()), entry.file_type().expect("a type"));
        if kind.is_dir() && entry.file_name() != "run" {
            copy(&entry.path(), &path);
        } else if kind.is_file() {
            fs::copy(entry.path(), path).expect("copied");
        }
    }
}

fn set(rig: &Rig, backup: &Path, found: Found) {
    let own = |name: &str| -> PathBuf { rig.dir.path().join(name) };
    fs::remove_dir_all(own("client")).expect("removed");
    match found {
        Found::Older => copy(backup, &own("client")),
        Found::Emptied => {
            unmount_below(&own("alloc"));
            fs::remove_dir_all(own("alloc")).expect("removed");
        }
    }
}

async fn nothing_runs_twice(found: Found) {
    let rig = Rig::new().await;
    let node = rig.node().await;
    for driver in ["raw_exec", "remote_exec"] {
        rig.driver_ready(driver).await;
    }
    let ((kept, job_kept), (stopped, job_stopped)) = (near("31081"), near("31082"));
    let (shown, job_shown, first) = far("31084");
    for (alloc, job) in [(&kept, &job_kept), (&stopped, &job_stopped), (&shown, &job_shown)] {
        rig.server.place(alloc, job);
    }
    rig.server.order(&first);
    for id in [kept.id, stopped.id, shown.id] {
        rig.server.status(id, ClientStatus::Running).await;
    }
    let slot = first.slot.to_string();
    let handle = rig.server.report(&slot, "it runs", |r| r.observed == Observed::Running).await.handle;
    node.stop().await;
    let backup = tempfile::tempdir().expect("temp dir");
    copy(&rig.dir.path().join("client"), backup.path());

    // What the backup does not know: one that was stopped, one that is new, an instance that was away and came back,
    // another one that is new.
    let node = rig.node().await;
    let (new, job_new) = near("31083");
    let (shown_new, job_shown_new, second) = far("31085");
    let second = RemoteOrder {
        slot: model::SlotKey::from(model::SlotParts { index: 1, ..model::SlotParts::clone(&second.slot) }),
        ..second
    };
    let shown_new = Allocation { name: "job.g[1]".into(), ..shown_new };
    rig.server.place(&new, &job_new);
    rig.server.place(&shown_new, &job_shown_new);
    rig.server.order(&second);
    let first = RemoteOrder { epoch: 5, adopt: true, handle: handle.clone(), ..first };
    rig.server.order(&first);
    rig.server.status(new.id, ClientStatus::Running).await;
    rig.server
        .report(&slot, "it is managed under the new epoch", |r| r.epoch == 5 && r.observed == Observed::Running)
        .await;
    let handle_new = rig
        .server
        .report(&second.slot.to_string(), "the new one runs", |r| r.observed == Observed::Running)
        .await
        .handle;
    rig.server.stop_alloc(stopped.id);
    rig.server.status(stopped.id, ClientStatus::Complete).await;
    let near_and_far = || ["31081", "31083", "31084", "31085"].map(|seconds| of(&rig, seconds));
    eventually("the process of each", || near_and_far().iter().all(|pids| !pids.is_empty())).await;
    let before = near_and_far();
    assert!(before.iter().all(|pids| pids.len() == 1) && of(&rig, "31082").is_empty(), "{before:?}");
    let id = rig.server.now().node.expect("a node").id;
    node.stop().await;
    set(&rig, backup.path(), found);

    // As servers do: the end of an emptied node's allocations is known before its successor hears of anything.
    if found == Found::Emptied {
        for id in [kept.id, stopped.id, new.id, shown.id, shown_new.id] {
            rig.server.forget_alloc(id);
        }
    }
    let again = RemoteOrder { epoch: 6, adopt: true, handle: handle_new, ..second };
    let order = RemoteOrder { epoch: 6, adopt: true, handle, ..first.clone() };
    rig.server.set_order(&again);
    rig.server.set_order(&order);
    rig.server.forget_reports();
    let node = rig.node().await;
    for order in [&order, &again] {
        let slot = order.slot.to_string();
        rig.server.report(&slot, "the instance is managed", |r| r.epoch == 6 && r.observed == Observed::Running).await;
    }
    if found == Found::Older {
        assert_eq!(rig.server.now().node.expect("a node").id, id);
        eventually("what is new to run once", || of(&rig, "31083").len() == 1 && of(&rig, "31083") != before[1]).await;
        eventually("what was stopped to go", || of(&rig, "31082").is_empty()).await;
        assert_eq!(of(&rig, "31081"), before[0], "what the backup knows goes on");
        // An order from before the backup's time, and one that is only older than what the provider has accepted.
        rig.server.order(&RemoteOrder { epoch: 4, ..order.clone() });
        rig.server.report(&slot, "the refusal", |r| r.epoch == 4 && r.stale_epoch == 6).await;
        rig.server.order(&RemoteOrder { epoch: 7, ..order });
        rig.server.report(&slot, "the instance is managed", |r| r.epoch == 7 && r.observed == Observed::Running).await;
    } else {
        assert_ne!(rig.server.now().node.expect("a node").id, id, "nothing of the node is left");
        for seconds in ["31081", "31082", "31083"] {
            assert!(of(&rig, seconds).is_empty(), "ended before the node has heard anything: {seconds}");
        }
    }
    assert_eq!(
        [of(&rig, "31084"), of(&rig, "31085")],
        [before[2].clone(), before[3].clone()],
        "instances: 0 killed, 0 doubled"
    );
    for order in [again, first] {
        rig.server.order(&RemoteOrder { epoch: 9, desired: model::DesiredRemote::Stop, ..order.clone() });
        rig.server.report(&order.slot.to_string(), "it is stopped", |r| r.observed.ended()).await;
    }
    for id in [shown.id, shown_new.id] {
        rig.server.collect(id);
        eventually("it to go", || !node.handle().has_alloc(id)).await;
    }
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_from_a_backup_runs_nothing_twice() {
    nothing_runs_twice(Found::Older).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_directory_leaves_nothing_behind_and_finds_instances_again() {
    nothing_runs_twice(Found::Emptied).await;
}
