//! Lists in pages while others write.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cluster::{Cluster, job};

fn ids(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|row| row["ID"].as_str().expect("an id").to_owned()).collect()
}

/// All ids of a list, page after page; `between` is done after each page but the last.
async fn paged(c: &Cluster, path: &str, mut between: impl AsyncFnMut(usize)) -> Vec<String> {
    let (mut seen, mut token) = (Vec::new(), String::new());
    for page in 0.. {
        let raw = c.get(&format!("{path}&per_page=3&next_token={token}")).await;
        let rows = ids(&raw.json());
        assert!(rows.len() <= 3, "{path}: a page of {}", rows.len());
        seen.extend(rows);
        token = raw.header("x-nomad-nexttoken").to_owned();
        if token.is_empty() {
            break;
        }
        between(page).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_complete_and_repeat_nothing_while_others_write() {
    let c = Cluster::start().await;
    let name = |n: usize| format!("job-{n:02}");
    for (round, query) in
        ["", "namespace=*&", "reverse=true&", "prefix=job-&", "prefix=job-&reverse=true&"].into_iter().enumerate()
    {
        for n in 0..12 {
            c.register(&job(&name(n), 0)).await;
        }
        let path = format!("/v1/jobs?{query}");
        // Before and behind the page that was read, something goes and something comes; also the row that the token
        // names.
        let gone = [0, 3, 8, 11].map(name);
        let seen = paged(&c, &path, async |page| {
            if let Some(id) = gone.get(page) {
                let raw = c.send(http::Method::DELETE, &format!("/v1/job/{id}?purge=true"), &[], "").await;
                assert_eq!(raw.status, http::StatusCode::OK, "{}", raw.text());
            }
            c.register(&job(&format!("job-{:02}-{round}-new", page * 5), 0)).await;
        })
        .await;
        let once: BTreeSet<_> = seen.iter().collect();
        assert_eq!(once.len(), seen.len(), "{path}: something came twice: {seen:?}");
        let mut sorted = seen.clone();
        sorted.sort();
        if query.contains("reverse") {
            sorted.reverse();
        }
        assert_eq!(seen, sorted, "{path}: in order");
        let stood = (0..12).map(name).filter(|id| !gone.contains(id));
        assert_eq!(
            stood.filter(|id| !seen.contains(id)).collect::<Vec<_>>(),
            Vec::<String>::new(),
            "{path}: what stood was not listed"
        );
        // Page by page is what one page holds.
        assert_eq!(paged(&c, &path, async |_| {}).await, ids(&c.get(&path).await.json()), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_while_pages_are_read_comes_last() {
    let c = Cluster::start().await;
    for n in 0..10 {
        c.register(&job(&format!("job-{n}"), 0)).await;
    }
    let before = ids(&c.get("/v1/evaluations").await.json());
    assert!(before.len() >= 10, "{before:?}");
    let seen = paged(&c, "/v1/evaluations?", async |page| {
        c.register(&job(&format!("later-{page}"), 0)).await;
        assert!(page < 20, "the list does not end");
        // New ones come behind what is read, until there are enough.
    })
    .await;
    assert_eq!(seen[..before.len()], before, "in the order in which they came");
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len(), "something came twice");
    let all = ids(&c.get("/v1/evaluations").await.json());
    let mut last_first = ids(&c.get("/v1/evaluations?reverse=true").await.json());
    last_first.reverse();
    assert_eq!(last_first, all);
    let id = &all[all.len() / 2];
    for query in [format!("prefix={}", &id[..8]), format!("prefix={}&reverse=true&per_page=1", &id[..8])] {
        assert_eq!(ids(&c.get(&format!("/v1/evaluations?{query}")).await.json()), std::slice::from_ref(id), "{query}");
    }
    c.until("/v1/evaluations?status=complete&job=job-3", "the one of the job", |list| ids(list).len() == 1).await;
    assert_eq!(ids(&c.get("/v1/evaluations?status=pending&job=job-3").await.json()), Vec::<String>::new());
}
