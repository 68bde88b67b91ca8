//! Namespaces and node pools over HTTP: what is written is read, and what is refused says why.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cluster::{Cluster, job};

async fn refused(c: &Cluster, path: &str, body: &Value, status: u16, text: &str) {
    let raw = c.put(path, body).await;
    assert_eq!((raw.status.as_u16(), raw.text().contains(text)), (status, true), "{path} {body}: {}", raw.text());
}

async fn deleted(c: &Cluster, path: &str) -> (u16, String) {
    let raw = c.send(Method::DELETE, path, &[], "").await;
    (raw.status.as_u16(), raw.text())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_are_written_read_and_deleted() {
    let c = Cluster::start().await;
    // As stock clients send it.
    let full = json!({
        "Name": "dev", "Description": "d", "Quota": "", "Meta": {"a": "b"}, "NodePoolConfiguration": null,
        "Capabilities": {"EnabledTaskDrivers": null, "DisabledTaskDrivers": ["raw_exec"]}, "CreateIndex": 900
    });
    let written = c.put("/v1/namespace", &full).await;
    assert_eq!((written.status, written.text().as_str()), (StatusCode::OK, ""));
    let index = c.get("/v1/namespace/dev").await.json()["ModifyIndex"].as_u64().expect("an index");
    assert!(index < 900, "the servers number changes");
    assert_eq!(written.headers["x-nomad-index"], index.to_string());
    // The whole object is replaced.
    assert_eq!(c.put("/v1/namespace/dev", &json!({"Name": "dev"})).await.status, StatusCode::OK);
    let now = c.get("/v1/namespace/dev").await.json();
    assert_eq!((&now["Description"], &now["Capabilities"], &now["Meta"]), (&json!(""), &Value::Null, &Value::Null));
    assert_eq!(c.put("/v1/namespace", &full).await.status, StatusCode::OK);

    refused(&c, "/v1/namespace/other", &full, 400, "Namespace name does not match request path").await;
    refused(&c, "/v1/namespace", &json!({"Name": "bad_name"}), 500, "Invalid namespace \"bad_name\": 1 error").await;
    let quota = json!({"Name": "q", "Quota": "x"});
    refused(&c, "/v1/namespace", &quota, 500, "namespace \"q\" using non-existent quota \"x\"").await;
    let claims = json!({"Name": "q", "RequiredExtraClaims": {"a": "${node.name}"}});
    refused(&c, "/v1/namespace", &claims, 500, "required_extra_claims: ${node.name} of \"a\" is not known").await;
    let nowhere = c.get("/v1/namespace/q").await;
    assert_eq!((nowhere.status.as_u16(), nowhere.text().as_str()), (404, "Namespace not found"));

    // The namespace of the query beats that of the body, and its capabilities hold for register and plan.
    let mut web = json!(job("web", 1));
    web["Namespace"] = "default".into();
    web["TaskGroups"][0]["Tasks"][0]["Driver"] = "raw_exec".into();
    let no = "used task driver \"raw_exec\" is not allowed in namespace \"dev\"";
    refused(&c, "/v1/jobs?namespace=dev", &json!({ "Job": web }), 500, no).await;
    refused(&c, "/v1/job/web/plan?namespace=dev", &json!({ "Job": web }), 500, no).await;
    let wild = "job \"web\" is in nonexistent namespace \"*\"";
    refused(&c, "/v1/jobs?namespace=*", &json!({ "Job": web }), 500, wild).await;
    web = json!(job("web", 1));
    assert_eq!(c.put("/v1/jobs?namespace=dev", &json!({ "Job": web })).await.status, StatusCode::OK);
    assert_eq!(c.get("/v1/job/web").await.status, StatusCode::NOT_FOUND);
    assert_eq!(c.get("/v1/jobs?namespace=*").await.json()[0]["Namespace"], "dev");
    assert_eq!(c.get("/v1/jobs?namespace=nope").await.json(), json!([]));

    // Claims for the identities of its jobs.
    let claims = json!({"Name": "dev", "RequiredExtraClaims": {"a": "${job.id}"}, "OptionalExtraClaims": {"b": "B"}});
    assert_eq!(c.put("/v1/namespace", &claims).await.status, StatusCode::OK);
    let read = c.get("/v1/namespace/dev").await.json();
    assert_eq!(
        (&read["RequiredExtraClaims"], &read["OptionalExtraClaims"]),
        (&claims["RequiredExtraClaims"], &json!({"b": "B"}))
    );
    web["TaskGroups"][0]["Tasks"][0]["Identity"] = json!({"Name": "default", "ExtraClaims": ["b", "c"]});
    let none = "namespace \"dev\" has no optional claim \"c\"; it has b";
    refused(&c, "/v1/jobs?namespace=dev", &json!({ "Job": web }), 500, none).await;
    web["TaskGroups"][0]["Tasks"][0]["Identity"]["ExtraClaims"] = json!(["b"]);
    assert_eq!(c.put("/v1/jobs?namespace=dev", &json!({ "Job": web })).await.status, StatusCode::OK);

    let (status, text) = deleted(&c, "/v1/namespace/dev").await;
    assert_eq!((status, text.contains("namespace \"dev\" has non-terminal jobs in regions: [global]")), (500, true));
    let purged = c.send(Method::DELETE, "/v1/job/web?purge=true&namespace=dev", &[], "").await;
    assert_eq!(purged.status, StatusCode::OK);
    c.done("/v1/var/z?namespace=dev", &json!({"Items": {"k": "v"}})).await;
    let (status, text) = deleted(&c, "/v1/namespace/dev").await;
    let used = "namespace \"dev\" has variables associated with it in regions: [global]";
    assert_eq!((status, text.contains(used)), (500, true), "{text}");
    c.send(Method::DELETE, "/v1/var/z?namespace=dev", &[], "").await;
    assert_eq!(deleted(&c, "/v1/namespace/dev").await, (200, String::new()));
    assert_eq!(deleted(&c, "/v1/namespace/dev").await, (500, "namespace not found".to_owned()));
    assert_eq!(deleted(&c, "/v1/namespace/default").await, (500, "can not delete default namespace".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_pools_are_written_read_and_deleted() {
    let c = Cluster::start().await;
    let pool = json!({"Name": "gpu", "Description": "d", "NodeIdentityTTL": "720h", "SchedulerConfiguration": null});
    let written = c.put("/v1/node/pools", &pool).await;
    assert_eq!((written.status, written.text().as_str()), (StatusCode::OK, ""));
    let read = c.get("/v1/node/pool/gpu").await.json();
    assert_eq!((&read["Description"], &read["NodeIdentityTTL"]), (&json!("d"), &json!(720 * 3_600_000_000_000_u64)));
    // As the Go client writes a pool without one.
    let spread =
        json!({"Name": "gpu", "NodeIdentityTTL": "", "SchedulerConfiguration": {"SchedulerAlgorithm": "spread"}});
    assert_eq!(c.put("/v1/node/pool/gpu", &spread).await.status, StatusCode::OK);
    let read = c.get("/v1/node/pool/gpu").await.json();
    let algorithm = &read["SchedulerConfiguration"]["SchedulerAlgorithm"];
    assert_eq!((&read["Description"], algorithm), (&json!(""), &json!("spread")));
    assert_eq!(read["NodeIdentityTTL"], Value::Null);
    let wrong = json!({"Name": "gpu", "NodeIdentityTTL": "soon"});
    refused(&c, "/v1/node/pool/gpu", &wrong, 400, "NodeIdentityTTL: invalid duration \"soon\"").await;

    refused(&c, "/v1/node/pool/other", &pool, 400, "Node pool name does not match request path").await;
    refused(&c, "/v1/node/pools", &json!({"Name": "all"}), 400, "built-in node pool \"all\"").await;
    refused(&c, "/v1/node/pools", &json!({"Name": "a/b"}), 400, "invalid name \"a/b\"").await;
    let mut web = json!(job("web", 1));
    web["NodePool"] = "gpu".into();
    c.register(&web).await;
    let (status, text) = deleted(&c, "/v1/node/pool/gpu").await;
    assert_eq!((status, text.contains("node pool \"gpu\" has non-terminal jobs in regions: [global]")), (500, true));
    c.send(Method::DELETE, "/v1/job/web?purge=true", &[], "").await;
    assert_eq!(deleted(&c, "/v1/node/pool/gpu").await, (200, String::new()));
    assert_eq!(deleted(&c, "/v1/node/pool/gpu").await, (500, "node pool \"gpu\" not found".to_owned()));
    assert_eq!(deleted(&c, "/v1/node/pool/default").await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_limits_its_jobs_and_says_what_they_use() {
    let c = Cluster::start().await;
    let wrong = json!({"Name": "dev", "Limits": {"CPU": -1}});
    refused(&c, "/v1/namespace", &wrong, 500, "limits: cpu must be at least 0, it is -1").await;
    let limits = json!({"Allocations": 1, "CPU": null, "MemoryMB": null, "RemoteTasks": null});
    assert_eq!(c.put("/v1/namespace", &json!({"Name": "dev", "Limits": limits})).await.status, StatusCode::OK);
    let read = c.get("/v1/namespace/dev").await.json();
    let none = json!({"Allocations": 0, "CPU": 0, "MemoryMB": 0, "RemoteTasks": 0});
    assert_eq!((&read["Limits"], &read["Usage"]), (&limits, &none));
    // A namespace without limits has the shape of a stock one.
    let stock = c.get("/v1/namespace/default").await.json();
    assert!(stock.get("Limits").is_none() && stock.get("Usage").is_none(), "{stock}");
    let web = json!(job("web", 2));
    let no = "can never run whole: it asks for 2 of allocations, and namespace \"dev\" is limited to 1";
    refused(&c, "/v1/jobs?namespace=dev", &json!({ "Job": web }), 500, no).await;
    refused(&c, "/v1/job/web/plan?namespace=dev", &json!({ "Job": web }), 500, no).await;
}
