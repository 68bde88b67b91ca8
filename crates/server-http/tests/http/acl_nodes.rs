//! What nodes may read by their own identity while ACLs are on.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    acl::Guarded,
    cluster::{FakeNode, job, node},
};

/// The identity of a node.
fn identity(g: &Guarded, id: &str) -> String {
    let claims = json!({"aud": "nomadproject.io", "sub": format!("node:global:default:{id}:default"),
        "exp": i64::MAX / 2, "nomad_node_id": id, "nomad_node_pool": "default"});
    g.c.server.handle().keyring().sign(&claims).expect("signs")
}

/// The allocation of a job that replaces its first one.
async fn replaced(g: &Guarded, name: &str) -> (String, Value) {
    let path = format!("/v1/job/{name}/allocations");
    let first = g.c.until(&path, "running", |list| list[0]["ClientStatus"] == "running").await;
    let first = first[0]["ID"].as_str().expect("an id").to_owned();
    g.c.done(&format!("/v1/allocation/{first}/stop"), &json!({})).await;
    let next = |list: &Value| {
        let mut all = list.as_array().into_iter().flatten();
        all.find(|a| a["ClientStatus"] == "running" && a["ID"] != *first).cloned()
    };
    let list = g.c.until(&path, "replaced", |list| next(list).is_some()).await;
    let next = next(&list).expect("it was there");
    let whole = g.c.get(&format!("/v1/allocation/{}", next["ID"].as_str().expect("an id"))).await.json();
    assert_eq!(whole["PreviousAllocation"], *first);
    (first, whole)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_that_takes_data_over_reads_where_it_comes_from_and_no_other_does() {
    let g = Guarded::start().await;
    let nodes = g.c.get("/v1/nodes").await.json();
    let one = nodes[0]["ID"].as_str().expect("an id").to_owned();
    let two = FakeNode::join(&g.c, node("two")).await;
    let mut moves = job("moves", 1);
    let mut disk = moves.task_groups[0].ephemeral_disk.take().unwrap_or_default();
    disk.migrate = Some(true);
    moves.task_groups[0].ephemeral_disk = Some(disk);
    g.c.register(&moves).await;
    g.c.register(&job("stays", 1)).await;
    let (former, next) = replaced(&g, "moves").await;
    let (kept, _) = replaced(&g, "stays").await;
    let two = two.id.to_string();
    let (taker, other) = if next["NodeID"] == *one { (&one, &two) } else { (&two, &one) };
    let (taker, other) = (identity(&g, taker), identity(&g, other));
    let next = next["ID"].as_str().expect("an id");
    let of = |id: &str| [format!("/v1/allocation/{id}"), format!("/v1/client/allocation/{id}/snapshot")];
    let refused = async |caller: &str, path: &str| {
        let (status, text) = g.ask(caller, "GET", path, &Value::Null).await;
        assert!(status != StatusCode::FORBIDDEN || text.starts_with("Permission denied"), "{caller} {path}: {text}");
        status == StatusCode::FORBIDDEN
    };
    for path in of(&former) {
        // Its node is none that could be reached.
        assert!(!refused(&taker, &path).await && !refused("write", &path).await, "{path}");
        for caller in [&*other, "none", "task", "elsewhere"] {
            assert!(refused(caller, &path).await, "{caller} {path}");
        }
    }
    // Of all else it reads nothing.
    let others = [&*g.alloc, &kept, next].into_iter().flat_map(of);
    for path in others.chain([format!("/v1/client/fs/ls/{former}"), "/v1/job/moves".to_owned()]) {
        assert!(refused(&taker, &path).await, "{path}");
    }
    // That there is no such allocation is told to nodes, and to those who may read there.
    for path in of("7f3b1f4e-0000-4000-8000-000000000000") {
        for (caller, wanted) in [(&*other, 404), (&taker, 404), ("write", 404), ("none", 403), ("task", 403)] {
            assert_eq!(g.ask(caller, "GET", &path, &Value::Null).await.0.as_u16(), wanted, "{caller} {path}");
        }
    }
    let question = json!({"Method": "GET", "Path": of(&former)[1]});
    let (_, said) = g.ask("task", "PUT", "/v1/acl/explain", &question).await;
    assert!(said.contains("the caller is no node"), "{said}");
    g.c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_reads_services_for_its_templates() {
    let g = Guarded::start().await;
    let nodes = g.c.get("/v1/nodes").await.json();
    let own = identity(&g, nodes[0]["ID"].as_str().expect("an id"));
    for path in ["/v1/services", "/v1/services?namespace=*", "/v1/service/web"] {
        assert_eq!(g.ask(&own, "GET", path, &Value::Null).await.0, StatusCode::OK, "{path}");
        assert_eq!(g.ask("none", "GET", path, &Value::Null).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(g.ask(&own, "GET", "/v1/vars", &Value::Null).await.0, StatusCode::FORBIDDEN);
    assert_eq!(g.ask(&own, "DELETE", "/v1/service/web/x", &Value::Null).await.0, StatusCode::FORBIDDEN);
    g.c.end().await;
}
