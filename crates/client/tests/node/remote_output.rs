//! The output of remote tasks that have ended: read from their allocation until that goes, wherever the instance was.

use client::Client;
use model::{Allocation, Job, Observed, RemoteOrder, RemoteVerdict, TaskRunState};
use serde_json::json;

use crate::{
    fixture::{Rig, eventually, leave, managed, task},
    http::text,
};

const SCRIPT: &str = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i; done; echo oops >&2; exit 3";

fn ending() -> (Allocation, Job, RemoteOrder) {
    managed("batch", task("t", "remote_exec", json!({"command": "/bin/sh", "args": ["-c", SCRIPT]})))
}

fn whole() -> String {
    (1..=2000).map(|n| format!("line {n}\n")).collect()
}

async fn log(node: &Client, a: &Allocation, query: &str) -> String {
    text(node, &format!("/v1/client/fs/logs/{}?task=t&plain=true&{query}", a.id)).await
}

/// The servers have counted the end.
fn counted(order: &RemoteOrder, report: &model::RemoteReport) -> RemoteOrder {
    let verdict = RemoteVerdict::Failed { reason: "it has failed".into() };
    RemoteOrder { acknowledge: true, verdict, handle: report.handle.clone(), adopt: true, ..order.clone() }
}

async fn all_is_read(node: &Client, a: &Allocation, when: &str) {
    assert_eq!(log(node, a, "type=stdout").await, whole(), "{when}");
    assert_eq!(log(node, a, "type=stderr").await, "oops\n", "{when}");
    assert_eq!(log(node, a, "type=stdout&origin=end&offset=10").await, "line 2000\n", "{when}");
    assert_eq!(
        log(node, a, "type=stdout&offset=18883&follow=true").await,
        "line 2000\n",
        "{when}: a follower's stream ends"
    );
    assert_eq!(text(node, &format!("/v1/client/fs/cat/{}?path=alloc/logs/t.stderr.0", a.id)).await, "oops\n", "{when}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_output_of_an_ended_task_is_read_until_its_allocation_goes() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = ending();
    let slot = order.slot.to_string();
    rig.server.place(&a, &job);
    rig.server.order(&order);
    let ended = rig.server.report(&slot, "the end", |r| matches!(r.observed, Observed::Exited { code: 3, .. })).await;
    rig.server.order(&counted(&order, &ended));
    rig.server.report(&slot, "that it is forgotten", |r| r.forgotten).await;
    rig.server.alloc(a.id, "the dead task", |u| u.task_states["t"].state == TaskRunState::Dead).await;
    all_is_read(&node, &a, "still managed").await;
    rig.server.release(&slot);
    all_is_read(&node, &a, "let go").await;

    node.stop().await;
    let node = rig.node().await;
    eventually("the restored allocation", || node.handle().has_alloc(a.id)).await;
    all_is_read(&node, &a, "after a start of the agent").await;

    rig.server.collect(a.id);
    eventually("the allocation to go", || !node.handle().has_alloc(a.id)).await;
    assert!(!rig.alloc_dir(a.id).exists(), "the output goes with it");
    leave(&rig, node).await;
}

/// The order can be there before the allocation, and an allocation that is collected does not hold the end up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_that_goes_does_not_hold_the_acknowledgement_up() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = ending();
    let slot = order.slot.to_string();
    rig.server.place(&a, &job);
    rig.server.order(&order);
    let ended = rig.server.report(&slot, "the end", |r| matches!(r.observed, Observed::Exited { .. })).await;
    rig.server.stop_alloc(a.id);
    rig.server.collect(a.id);
    rig.server.forget_reports();
    rig.server.order(&counted(&order, &ended));
    rig.server.report(&slot, "that it is forgotten", |r| r.forgotten).await;
    eventually("the allocation to go", || !node.handle().has_alloc(a.id)).await;
    assert!(!rig.alloc_dir(a.id).exists(), "nothing is written for an allocation that goes");
    leave(&rig, node).await;
}
