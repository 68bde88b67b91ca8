//! The books of the node: what runs is claimed, what nobody claims is found and ended, what belongs to somebody else is
//! not touched.

use std::{fs, os::unix::net::UnixListener, path::Path, process::Command};

use api::shapes::{AuditKind as Kind, AuditStatus as Status, NodeAudit};
use client::ClientHandle;
use model::ClientStatus;
use serde_json::json;

use crate::fixture::{Rig, end, eventually, poll, processes, task};

/// Kinds of what is not claimed, with what it is.
fn unbalanced(audit: &NodeAudit) -> Vec<(Kind, Status, &str)> {
    let lines = audit.findings.iter().filter(|f| f.status != Status::Claimed);
    lines.map(|f| (f.kind, f.status, f.what.as_str())).collect()
}

/// The books once nothing is coming or going any more.
async fn settled(node: &ClientHandle) -> NodeAudit {
    poll("the books to be settled", async || {
        let audit = node.audit(false).await;
        if audit.balanced && unbalanced(&audit).is_empty() { Ok(audit) } else { Err(audit) }
    })
    .await
}

fn alive(child: &mut std::process::Child) -> bool {
    child.try_wait().expect("asked").is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_claimed_and_what_has_ended_is_gone() {
    let (rig, node) = Rig::with("raw_exec").await;
    let script = "sleep 600 & (setsid sleep 601 &) ; exec sleep 602";
    let (a, _) =
        rig.run("service", vec![task("t", "raw_exec", json!({"command": "/bin/sh", "args": ["-c", script]}))]).await;
    let sleeps = || processes(rig.dir.path()).iter().filter(|(_, line)| line.starts_with("sleep 60")).count();
    eventually("three sleeps", || sleeps() == 3).await;
    let audit = settled(&node.handle()).await;
    let of = |kind: Kind| audit.findings.iter().filter(|f| f.kind == kind && f.alloc_id == a.id).count();
    assert!(of(Kind::Process) >= 4, "the executor and three sleeps: {:#?}", audit.findings);
    assert_eq!(of(Kind::Directory), 2, "of the allocation, of the executor: {:#?}", audit.findings);
    if executor_client::CgroupHost::detect().parents().next().is_some() {
        assert!(of(Kind::Cgroup) > 0, "{:#?}", audit.findings);
    }
    assert!(
        audit.findings.iter().any(|f| f.kind == Kind::Process && f.reason.contains("raw_exec")),
        "the plugin: {:#?}",
        audit.findings
    );

    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    rig.server.collect(a.id);
    poll("the end of everything of the allocation", async || {
        let audit = node.handle().audit(false).await;
        if audit.findings.iter().any(|f| f.alloc_id == a.id) { Err(audit) } else { Ok(()) }
    })
    .await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_claims_is_ended_and_what_is_not_ours_is_not() {
    let (rig, node) = Rig::with("raw_exec").await;
    let (a, _) =
        rig.run("service", vec![task("t", "raw_exec", json!({"command": "/bin/sleep", "args": ["600"]}))]).await;
    // Plugins of other drivers may still be coming up.
    let before = settled(&node.handle()).await.ended;

    // Another agent on this machine, whose directory has the same form.
    let foreign = tempfile::tempdir().expect("temp dir");
    let stray = |root: &Path| {
        let id = uuid::Uuid::new_v4().to_string();
        let dir = root.join("alloc").join(&id).join("t/local");
        fs::create_dir_all(&dir).expect("directory");
        let variables = [("NOMAD_ALLOC_ID", id.as_str()), ("NOMAD_TASK_NAME", "t")];
        let child =
            Command::new("sleep").arg("600").current_dir(&dir).env_clear().envs(variables).spawn().expect("sleep");
        (root.join("alloc").join(id), child)
    };
    let (ours, mut our_child) = stray(rig.dir.path());
    let (theirs, mut their_child) = stray(foreign.path());
    let socket = rig.dir.path().join("client/run/p/plugin42");
    drop(UnixListener::bind(&socket).expect("socket"));
    let collector = rig.dir.path().join("client/run/c/0123456789abcdef");
    fs::create_dir_all(&collector).expect("directory");

    let audit = node.handle().audit(false).await;
    assert!(!audit.balanced);
    let found = unbalanced(&audit);
    for (kind, what) in [
        (Kind::Process, format!("{} sleep 600", our_child.id())),
        (Kind::Directory, ours.display().to_string()),
        (Kind::Directory, collector.display().to_string()),
        (Kind::Socket, socket.canonicalize().expect("there").display().to_string()),
    ] {
        assert!(found.contains(&(kind, Status::Unclaimed, what.as_str())), "{kind:?} {what} is not among {found:#?}");
    }
    assert_eq!(found.len(), 4, "{found:#?}");
    // The node's own next look may end it from now on.
    assert_eq!(audit.ended, before, "a look changes nothing");

    let swept = node.handle().audit(true).await;
    assert!(swept.balanced && swept.swept.iter().all(|s| s.error.is_empty()), "{swept:#?}");
    assert_eq!(swept.ended, [(Kind::Process, 1), (Kind::Socket, 1), (Kind::Directory, 2)].into());
    our_child.wait().expect("reaped");
    assert!(!ours.exists() && !socket.exists() && !collector.exists());
    assert!(alive(&mut their_child) && theirs.exists(), "another agent's");
    their_child.kill().expect("killed");
    their_child.wait().expect("reaped");
    assert!(node.handle().running(a.id, "t"));
    let ended = node
        .handle()
        .metrics()
        .await
        .into_iter()
        .filter(|g| g.name == "drover.client.ledger.ended")
        .map(|g| g.value)
        .sum::<f64>();
    assert!((ended - 4.0).abs() < 0.1, "{ended}");
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_executor_of_a_task_is_a_stray() {
    let (rig, node) = Rig::with("raw_exec").await;
    let (a, _) =
        rig.run("service", vec![task("t", "raw_exec", json!({"command": "/bin/sleep", "args": ["600"]}))]).await;
    settled(&node.handle()).await;
    // As a driver would leave it that has started a task twice.
    let launcher = executor_client::Launcher::new(rig.dir.path().join("client/bin")).expect("launcher");
    let state = rig.alloc_dir(a.id).join("t/private/executor/0badcafe");
    let spec = executor_client::LaunchSpec {
        id: format!("{}/t/0badcafe", a.id),
        command: "/bin/sleep".into(),
        args: vec!["600".into()],
        cwd: "/".into(),
        cgroup: Some(executor_client::CgroupPolicy { name: format!("task-{}.t.0badcafe", a.id), ..Default::default() }),
        ..Default::default()
    };
    let second = launcher.launch(&state, spec).await.expect("launched").executor;
    let audit = node.handle().audit(false).await;
    let strays: Vec<_> = audit.findings.iter().filter(|f| f.status == Status::Unclaimed).collect();
    assert!(strays.iter().all(|f| f.reason.contains("0badcafe") && f.alloc_id == a.id && f.task == "t"), "{strays:#?}");
    let kinds: Vec<Kind> = strays.iter().map(|f| f.kind).collect();
    assert!(
        kinds.iter().filter(|k| **k == Kind::Process).count() == 2 && kinds.contains(&Kind::Directory),
        "{strays:#?}"
    );
    let swept = node.handle().audit(true).await;
    assert!(swept.balanced, "{:#?}", unbalanced(&swept));
    assert!(second.wait().await.is_ok() && !state.exists());
    assert!(node.handle().running(a.id, "t"), "the recorded one runs on");
    end(&rig, node).await;
}
