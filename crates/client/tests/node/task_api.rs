//! The Task API: a socket of every task, answered by the agent.

use std::{os::unix::fs::FileTypeExt, path::PathBuf, sync::Arc};

use api::shapes::AuditKind;
use model::{AllocId, ClientStatus};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::fixture::{Rig, end, eventually, restarts, task};

pub(crate) fn hello() -> client::TaskApiServer {
    Arc::new(|listener, stop| {
        Box::pin(async move {
            while let Some(Ok((mut stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                // Whoever only looks whether somebody listens has gone by now.
                let _ = stream.write_all(b"hello").await;
            }
        })
    })
}

pub(crate) fn socket(rig: &Rig, id: AllocId) -> PathBuf {
    rig.alloc_dir(id).join("t/secrets/api.sock")
}

pub(crate) async fn answer(rig: &Rig, id: AllocId) -> String {
    let mut text = String::new();
    let mut stream = UnixStream::connect(socket(rig, id)).await.expect("connects");
    stream.read_to_string(&mut text).await.expect("reads");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_stands_from_the_first_start_to_the_end_whatever_restarts() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    node.handle().answer_task_api(hello());
    rig.driver_ready("raw_exec").await;
    let script = "test -S $NOMAD_SECRETS_DIR/api.sock || exit 9; \
                  if [ -e $NOMAD_ALLOC_DIR/data/once ]; then exec sleep 600; fi; touch \
                  $NOMAD_ALLOC_DIR/data/once; exit 1";
    let mut t = task("t", "raw_exec", json!({"command": "/bin/sh", "args": ["-c", script]}));
    t.restart = Some(restarts(1));
    let (a, _) = rig.place("service", vec![t]);
    rig.server
        .alloc(a.id, "its second run", |u| u.task_states["t"].restarts == 1 && u.client_status == ClientStatus::Running)
        .await;
    assert_eq!(answer(&rig, a.id).await, "hello");
    let audit = node.handle().audit(false).await;
    let listed = |kind| audit.findings.iter().any(|f| f.kind == kind && f.what.ends_with("t/secrets/api.sock"));
    assert!(audit.balanced && listed(AuditKind::Socket), "{audit:#?}");
    // A new agent answers at the same place.
    node.stop().await;
    let node = rig.node().await;
    node.handle().answer_task_api(hello());
    eventually("an answer of the new agent", || std::os::unix::net::UnixStream::connect(socket(&rig, a.id)).is_ok())
        .await;
    assert_eq!(answer(&rig, a.id).await, "hello");
    assert!(std::fs::symlink_metadata(socket(&rig, a.id)).expect("there").file_type().is_socket());
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    eventually("the socket gone", || !socket(&rig, a.id).exists()).await;
    end(&rig, node).await;
}
