//! Parameterized jobs over HTTP.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cluster::{Cluster, FakeNode, node};

fn template(payload: &str) -> Value {
    json!({
        "ID": "mail", "Name": "mail", "Type": "batch", "Datacenters": ["dc1"], "Meta": {"tone": "calm"},
        "ParameterizedJob": {"Payload": payload, "MetaRequired": ["to"], "MetaOptional": ["tone"]},
        "TaskGroups": [{
            "Name": "g",
            "Tasks": [{"Name": "t", "Driver": "mock", "DispatchPayload": {"File": "in"},
                "Resources": {"CPU": 100, "MemoryMB": 64}}],
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_not_scheduled_and_its_children_are() {
    let c = Cluster::start().await;
    let _n = FakeNode::join(&c, node("one")).await;
    let plan = c.put("/v1/job/mail/plan", &json!({"Job": template("optional"), "Diff": true})).await.json();
    assert_eq!((&plan["Diff"]["Type"], &plan["CreatedEvals"]), (&json!("Added"), &json!(null)), "{plan}");
    let made = c.put("/v1/jobs", &json!({"Job": template("optional")})).await;
    assert_eq!((made.status, &made.json()["EvalID"]), (StatusCode::OK, &json!("")), "{}", made.text());
    let stub = c.get("/v1/jobs").await.json();
    assert_eq!((&stub[0]["Status"], &stub[0]["ParameterizedJob"]), (&json!("running"), &json!(true)));

    let body = json!({"Payload": "aGVsbG8=", "Meta": {"to": "you"}, "IdPrefixTemplate": "p"});
    let answer = c.put("/v1/job/mail/dispatch?idempotency_token=one", &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let answer = answer.json();
    let child = answer["DispatchedJobID"].as_str().expect("an id").to_owned();
    assert!(
        child.starts_with("mail/dispatch-p-") && answer["EvalID"] != "" && answer["JobCreateIndex"] == answer["Index"],
        "{answer}"
    );
    let path = format!("/v1/job/{}", child.replace('/', "%2F"));
    let running = |list: &Value| list.as_array().is_some_and(|l| l.len() == 1 && l[0]["ClientStatus"] == "running");
    c.until(&format!("{path}/allocations"), "running", running).await;
    let job = c.get(&path).await.json();
    assert_eq!(
        (&job["ParentID"], &job["Dispatched"], &job["Payload"]),
        (&json!("mail"), &json!(true), &json!("aGVsbG8=")),
        "{job}"
    );
    assert_eq!((&job["Meta"], &job["Name"]), (&json!({"to": "you", "tone": "calm"}), &json!(child)));
    let summary = c.get("/v1/job/mail/summary").await.json();
    assert_eq!(summary["Children"], json!({"Pending": 0, "Running": 1, "Dead": 0}));

    // The same token, whatever else is in the request, is the same child; another one is not. The body may be the
    // payload alone.
    let again = c.put("/v1/job/mail/dispatch?idempotency_token=one", &body).await.json();
    assert_eq!((&again["DispatchedJobID"], &again["EvalID"]), (&json!(child), &json!("")));
    let other = c.put("/v1/job/mail/dispatch?idempotency_token=two", &body).await.json();
    assert_ne!(other["DispatchedJobID"], json!(child));
    let body = json!({"Meta": {"to": "you"}, "IdempotencyToken": "three", "Priority": 80, "JobID": "mail"});
    let third = c.put("/v1/job/mail/dispatch", &body).await.json();
    assert_eq!(c.put("/v1/job/mail/dispatch", &body).await.json()["DispatchedJobID"], third["DispatchedJobID"]);
    let third = third["DispatchedJobID"].as_str().expect("an id").replace('/', "%2F");
    assert_eq!(c.get(&format!("/v1/job/{third}")).await.json()["Priority"], 80);
    let raw = c.send(Method::PUT, "/v1/job/mail/dispatch/payload", &[], "raw".to_owned()).await;
    assert!(raw.text().contains("lacks required meta keys: to"), "{}", raw.text());

    for (body, why) in [
        (json!({}), "lacks required meta keys: to"),
        (json!({"Meta": {"to": "a", "x": "b"}}), "does not allow: x"),
        (json!({"Meta": {"to": "a"}, "IdPrefixTemplate": "a b"}), "cannot be part of a job id"),
        (json!({"Meta": {"to": "a"}, "Payload": "YWJj".repeat(5462)}), "at most 16384 are allowed"),
        (json!({"Meta": {"to": "a"}, "Priority": 101}), "dispatch priority 101 is not between 1 and 100"),
        (json!({"Meta": {"to": "a"}, "Priority": -1}), "dispatch priority -1 is not between 1 and 100"),
    ] {
        let raw = c.put("/v1/job/mail/dispatch", &body).await;
        assert!(raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains(why), "{body}: {}", raw.text());
    }
    let raw = c.put("/v1/job/mail/dispatch", &json!({"JobID": "other"})).await;
    assert_eq!((raw.status.as_u16(), raw.text().as_str()), (400, "Job ID does not match"));
    let raw = c.put(&format!("{path}/dispatch"), &json!({})).await;
    assert!(raw.text().contains("is not a parameterized job"), "a child: {}", raw.text());
    let raw = c.put("/v1/job/mail/evaluate", &json!({"JobID": "mail"})).await;
    assert!(raw.text().contains("is a template"), "{}", raw.text());
    let mut stolen = job.clone();
    stolen["ID"] = json!("other");
    let raw = c.put("/v1/jobs", &json!({"Job": stolen})).await;
    assert!(raw.text().contains("cannot be submitted with Dispatched or Payload"), "{}", raw.text());

    // Stopped, it takes no more; what was made from it goes on.
    let stopped = c.send(Method::DELETE, "/v1/job/mail", &[], String::new()).await.json();
    assert_eq!(stopped["EvalID"], "", "{stopped}");
    let raw = c.put("/v1/job/mail/dispatch", &body).await;
    assert!(raw.text().contains("is stopped"), "{}", raw.text());
    assert_eq!(c.get(&format!("{path}/allocations")).await.json()[0]["DesiredStatus"], "run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_for_every_node_is_not_run_by_new_nodes() {
    let c = Cluster::start().await;
    let _one = FakeNode::join(&c, node("one")).await;
    let mut everywhere = template("optional");
    everywhere["Type"] = json!("sysbatch");
    c.register(&everywhere).await;
    let child = c.put("/v1/job/mail/dispatch", &json!({"Meta": {"to": "all"}})).await.json();
    let child = child["DispatchedJobID"].as_str().expect("an id").replace('/', "%2F");
    let _two = FakeNode::join(&c, node("two")).await;
    // The new node is served with the child, so it has been looked at.
    let both = |list: &Value| {
        list.as_array().is_some_and(|l| l.len() == 2 && l.iter().all(|a| a["ClientStatus"] == "running"))
    };
    c.until(&format!("/v1/job/{child}/allocations"), "one on each node", both).await;
    assert_eq!(c.get("/v1/job/mail/evaluations").await.json(), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_dispatched_is_refused_at_registration() {
    let c = Cluster::start().await;
    let refused = async |edit: &dyn Fn(&mut Value), why: &str| {
        let mut job = template("optional");
        edit(&mut job);
        let raw = c.put("/v1/jobs", &json!({"Job": job})).await;
        assert!(raw.status == StatusCode::INTERNAL_SERVER_ERROR && raw.text().contains(why), "{why}: {}", raw.text());
    };
    refused(&|j| j["Type"] = json!("service"), "can only be used with").await;
    refused(&|j| j["ParameterizedJob"]["Payload"] = json!("some"), "is none of").await;
    refused(&|j| j["ParameterizedJob"]["MetaOptional"] = json!(["to"]), "required and optional at once: to").await;
    refused(&|j| j["ParameterizedJob"] = json!(null), "only a parameterized job brings").await;
}
