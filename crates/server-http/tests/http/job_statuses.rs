//! `/v1/jobs/statuses`: how jobs are at one look.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cluster::{Cluster, FakeNode, Raw, job, node};

const PATH: &str = "/v1/jobs/statuses";

fn ids(rows: &Value) -> Vec<String> {
    rows.as_array().expect("a list").iter().map(|row| row["ID"].as_str().expect("an id").to_owned()).collect()
}

async fn ask(c: &Cluster, query: &str, body: &Value) -> Raw {
    c.send(Method::POST, &format!("{PATH}?{query}"), &[], body.to_string()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_shows_a_job_at_one_look() {
    let c = Cluster::start().await;
    let n = FakeNode::join(&c, node("one")).await;
    let mut web = job("web", 2);
    web.meta.insert("pack.name".into(), "web".into());
    c.register(&web).await;
    let mut parent = job("parent", 1);
    parent.kind = "batch".into();
    parent.parameterized_job = Some(model::job::Parameterized::default());
    c.register(&parent).await;
    let child = c.done("/v1/job/parent/dispatch", &json!({})).await["DispatchedJobID"].clone();

    let healthy = |row: &Value| {
        row["LatestDeployment"]["Status"] == "successful"
            && row["Allocs"]
                .as_array()
                .is_some_and(|a| a.len() == 2 && a.iter().all(|a| a["ClientStatus"] == "running"))
    };
    let find = |rows: &Value, id: &str| rows.as_array().expect("rows").iter().find(|row| row["ID"] == id).cloned();
    let rows = c.until(PATH, "healthy", |rows| find(rows, "web").is_some_and(|row| healthy(&row))).await;
    assert_eq!(find(&rows, child.as_str().expect("a child")), None, "children are left out: {rows}");
    let row = find(&rows, "web").expect("web");
    let alloc = &row["Allocs"][0];
    assert_eq!(
        (&alloc["NodeID"], &alloc["Group"], &alloc["JobVersion"], &alloc["HasPausedTask"]),
        (&json!(n.id), &json!("web"), &json!(0), &json!(false)),
        "{row}"
    );
    assert_eq!(alloc["DeploymentStatus"], json!({"Canary": false, "Healthy": true}), "{row}");
    assert_eq!(
        (&row["GroupCountSum"], &row["IsPack"], &row["ChildStatuses"], &row["Stop"], &row["Status"], &row["Type"]),
        (&json!(2), &json!(true), &Value::Null, &json!(false), &json!("running"), &json!("service")),
        "{row}"
    );
    let deployment = &row["LatestDeployment"];
    assert_eq!(
        (&deployment["IsActive"], &deployment["RequiresPromotion"], &deployment["AllAutoPromote"]),
        (&json!(false), &json!(false), &json!(false)),
        "{row}"
    );
    let parent = find(&rows, "parent").expect("parent");
    assert_eq!(
        (parent["ChildStatuses"].as_array().map(Vec::len), &parent["Allocs"], &parent["LatestDeployment"]),
        (Some(1), &Value::Null, &Value::Null),
        "{parent}"
    );
    let all = c.get(&format!("{PATH}?include_children=true")).await.json();
    let shown = find(&all, child.as_str().expect("a child")).expect("the child");
    assert_eq!((&shown["ParentID"], &shown["ChildStatuses"]), (&json!("parent"), &Value::Null), "{shown}");
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_that_changed_last_comes_first_and_pages_lose_none() {
    let c = Cluster::start().await;
    for n in 0..7 {
        c.register(&job(&format!("job-{n}"), 0)).await;
    }
    c.register(&json!({"ID": "job-2", "Name": "job-2", "Type": "service", "Priority": 60, "Datacenters": ["dc1"],
        "TaskGroups": [{"Name": "web", "Count": 0, "Tasks": [{"Name": "t", "Driver": "mock"}]}]}))
        .await;
    let whole = ids(&c.get(PATH).await.json());
    assert_eq!((whole.len(), whole[0].as_str()), (7, "job-2"), "{whole:?}");
    let mut backwards = ids(&c.get(&format!("{PATH}?reverse=true")).await.json());
    backwards.reverse();
    assert_eq!(backwards, whole);
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let raw = c.get(&format!("{PATH}?per_page=3&next_token={token}")).await;
        seen.extend(ids(&raw.json()));
        token = raw.header("x-nomad-nexttoken").to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, whole);
    assert_eq!(ids(&c.get(&format!("{PATH}?filter=Priority+%3D%3D+60")).await.json()), ["job-2"]);
    let wrong = c.get(&format!("{PATH}?filter=Nothing+%3D%3D+1")).await;
    assert_ne!(wrong.status, StatusCode::OK, "{}", wrong.text());
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_names_jobs_of_any_namespace() {
    let c = Cluster::start().await;
    c.done("/v1/namespace", &json!({"Name": "dev"})).await;
    for (namespace, id) in [("default", "a"), ("default", "b"), ("dev", "c")] {
        let mut job = job(id, 0);
        job.namespace = namespace.into();
        c.register(&job).await;
    }
    let named = json!({"Jobs": [{"ID": "a", "Namespace": "default"}, {"ID": "c", "Namespace": "dev"},
        {"ID": "gone", "Namespace": "dev"}]});
    assert_eq!(ids(&ask(&c, "", &named).await.json()), ["c", "a"]);
    assert_eq!(ids(&ask(&c, "", &json!({"Jobs": [{"ID": "b"}]})).await.json()), ["b"], "default");
    for body in [json!({}), json!({"Jobs": []}), json!({"IncludeChildren": true})] {
        let raw = ask(&c, "", &body).await;
        assert_eq!(raw.status, StatusCode::BAD_REQUEST, "{body}: {}", raw.text());
        assert!(raw.text().contains("no jobs in request body"), "{}", raw.text());
    }
    let all = c.send(Method::POST, PATH, &[], "").await.json();
    assert_eq!(ids(&all), ["b", "a"], "without a body, those of the namespace");
    assert_eq!(ids(&c.get(&format!("{PATH}?namespace=*")).await.json()), ["c", "b", "a"]);
    c.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_waits_for_its_own_rows() {
    let c = Cluster::start().await;
    let _node = FakeNode::join(&c, node("one")).await;
    for id in ["here", "gone", "there"] {
        c.register(&job(id, 1)).await;
        c.until(&format!("/v1/job/{id}/allocations"), "healthy", |allocs| {
            allocs[0]["DeploymentStatus"]["Healthy"] == true
        })
        .await;
        c.until(&format!("/v1/job/{id}/deployment"), "over", |d| d["Status"] == "successful").await;
    }
    let body = json!({"Jobs": [{"ID": "here"}, {"ID": "gone"}]});
    let index = ask(&c, "", &body).await.header("x-nomad-index").to_owned();
    let alloc_of = async |id: &str| {
        let allocs = c.get(&format!("/v1/job/{id}/allocations")).await.json();
        allocs[0]["ID"].as_str().expect("an allocation").to_owned()
    };
    let (here, there) = (alloc_of("here").await, alloc_of("there").await);
    let waits = ask(&c, &format!("index={index}&wait=300ms"), &body).await;
    assert_eq!(waits.header("x-nomad-index"), index, "nothing has changed");

    // An allocation of another job is nothing to this query, one of its own is.
    let path = format!("index={index}&wait=60s");
    let asked = async {
        let answer = ask(&c, &path, &body).await;
        (answer, Instant::now())
    };
    let ((answer, answered), stopped) = tokio::join!(asked, async {
        c.done(&format!("/v1/allocation/{there}/stop"), &json!({})).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = Instant::now();
        c.done(&format!("/v1/allocation/{here}/stop"), &json!({})).await;
        now
    });
    assert!(answered > stopped, "the other job's allocation has woken it");
    assert!(answered < stopped + Duration::from_secs(30), "its own has not");
    assert!(answer.json().to_string().contains(&here), "{}", answer.text());

    // A job of the page goes: no row has a newer index, and the page is another one.
    let mut index = answer.header("x-nomad-index").to_owned();
    let delete = c.send(Method::DELETE, "/v1/job/gone?purge=true", &[], "").await;
    assert_eq!(delete.status, StatusCode::OK, "{}", delete.text());
    for _ in 0..50 {
        let answer = ask(&c, &format!("index={index}&wait=10s"), &body).await;
        if ids(&answer.json()) == ["here"] {
            c.end().await;
            return;
        }
        answer.header("x-nomad-index").clone_into(&mut index);
    }
    panic!("the job that is gone is still shown");
}
