//! One watch for all.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use driver_sdk::{InstanceState, Observation, RemoteDriver as _, RemoteHandle};
use kubernetes::Driver;
use serde_json::json;
use tokio::sync::mpsc;

use crate::fake::{Api, Said, ensure};

/// A watch of one pod.
struct Watch {
    heard: mpsc::Receiver<Observation>,
    watching: tokio::task::JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Watch {
    fn of(driver: &Arc<Driver>, handles: Vec<RemoteHandle>) -> Self {
        let (sink, heard) = mpsc::channel(64);
        let driver = driver.clone();
        let watching = tokio::spawn(async move { driver.watch(handles, sink).await.expect("watched") });
        Self { heard, watching }
    }

    async fn until(&mut self, state: InstanceState) -> Observation {
        let waiting = async {
            loop {
                let seen = self.heard.recv().await.expect("the watch goes on");
                if seen.state == state {
                    return seen;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(40), waiting).await.expect("in time")
    }
}

fn calls(api: &Api, part: &str) -> usize {
    api.store().calls.iter().filter(|call| call.contains(part)).count()
}

#[tokio::test]
async fn fifty_are_seen_with_one_watch() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let mut handles = Vec::new();
    for n in 0..50 {
        handles.push(driver.ensure(ensure(&format!("k{n}"), 1)).await.expect("made").handle);
    }
    let mut watches: Vec<Watch> = handles.iter().map(|handle| Watch::of(&driver, vec![handle.clone()])).collect();
    for watch in &mut watches {
        watch.until(InstanceState::Creating).await;
    }
    for (n, watch) in watches.iter_mut().enumerate() {
        api.runs(&format!("drover-k{n}"));
        assert_eq!(watch.until(InstanceState::Running).await.address, "10.0.0.9");
    }
    for (n, watch) in watches.iter_mut().enumerate() {
        api.ends(&format!("drover-k{n}"), 3);
        assert_eq!(watch.until(InstanceState::Exited).await.exit.exit_code, 3);
    }
    assert_eq!(calls(&api, "watch=true"), 1);
    let single = api.store().calls.iter().filter(|c| c.starts_with("GET") && c.contains("/pods/drover-")).count();
    assert!(single <= 50, "{single} looks at single pods");
}

#[tokio::test]
async fn a_watch_that_is_cut_or_too_old_begins_anew() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs("drover-k");
    let mut watch = Watch::of(&driver, vec![made.handle.clone()]);
    watch.until(InstanceState::Running).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    // Cut, and what happened meanwhile cannot be had.
    {
        let mut store = api.store();
        store.change("drover-k", |pod| pod["status"]["phase"] = json!("Running"));
        store.compact();
    }
    api.cut();
    testkit::eventually("another watch", || calls(&api, "watch=true") >= 2).await;
    api.ends("drover-k", 5);
    assert_eq!(watch.until(InstanceState::Exited).await.exit.exit_code, 5);
}

#[tokio::test]
async fn deleted_is_no_end_and_silence_is_unknown_until_it_is_over() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let (gone, stays) = (
        driver.ensure(ensure("gone", 1)).await.expect("made").handle,
        driver.ensure(ensure("stays", 1)).await.expect("made").handle,
    );
    api.runs("drover-gone");
    api.runs("drover-stays");
    let mut watch = Watch::of(&driver, vec![gone]);
    let mut other = Watch::of(&driver, vec![stays]);
    watch.until(InstanceState::Running).await;
    other.until(InstanceState::Running).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    {
        let mut store = api.store();
        let pod = store.pods["drover-gone"].clone();
        store.put("DELETED", pod);
    }
    api.change("drover-stays", |pod| pod["status"]["hostIP"] = json!("1.1.1.1"));
    assert!(watch.until(InstanceState::Unknown).await.reason.contains("removed"));
    api.go().await;
    other.until(InstanceState::Unknown).await;
    api.store().faults.clear();
    api.come().await;
    other.until(InstanceState::Running).await;
}

#[tokio::test]
async fn what_a_pod_said_does_not_outlive_it() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs("drover-k");
    let mut watch = Watch::of(&driver, vec![made.handle]);
    watch.until(InstanceState::Running).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    // By force, and let go: first its deletion is ordered, then it is away while its container may run.
    api.change("drover-k", |pod| pod["metadata"]["deletionTimestamp"] = json!("2999-01-01T00:00:00Z"));
    {
        let mut store = api.store();
        let pod = store.pods["drover-k"].clone();
        store.put("DELETED", pod);
    }
    api.change_nothing();
    watch.until(InstanceState::Unknown).await;
    // The pulse looks every second at what time alone changes.
    let again = tokio::time::timeout(Duration::from_secs(4), watch.until(InstanceState::Running)).await;
    assert!(again.is_err(), "a pod that is away is seen running: {again:?}");
}

#[tokio::test]
async fn an_answer_that_comes_late_does_not_replace_what_the_watch_has_told() {
    let api = Api::start().await;
    // Its answers need longer than its limit otherwise allows.
    let mut options = api.options();
    options["request_timeout"] = json!("10s");
    let driver = Arc::new(api.manager_with(options).await.expect("configured"));
    let first = driver.ensure(ensure("first", 1)).await.expect("made");
    let mut other = Watch::of(&driver, vec![first.handle]);
    other.until(InstanceState::Creating).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    // Whoever is asked for first is looked at in the store; meanwhile its pod begins to run.
    api.say(Method::GET, "/pods/drover-k", Said::Late, true, 1);
    let before = calls(&api, "/pods/drover-k");
    let mut watch = Watch::of(&driver, vec![made.handle]);
    testkit::eventually("a look", || calls(&api, "/pods/drover-k") > before).await;
    api.runs("drover-k");
    watch.until(InstanceState::Running).await;
    let older = tokio::time::timeout(Duration::from_secs(4), watch.until(InstanceState::Creating)).await;
    assert!(older.is_err(), "the pod runs, and is said to be made: {older:?}");
}

/// Puts pods into the store that run already; their handles.
async fn many(api: &Api, driver: &Driver, count: usize) -> Vec<RemoteHandle> {
    let first = driver.ensure(ensure("k0", 1)).await.expect("made");
    api.runs("drover-k0");
    {
        let mut store = api.store();
        let pod = store.pods["drover-k0"].clone();
        for n in 1..count {
            let (mut pod, key) = (pod.clone(), format!("k{n}"));
            pod["metadata"]["name"] = json!(format!("drover-{key}"));
            pod["metadata"]["uid"] = json!(format!("many-{n}"));
            for kind in ["labels", "annotations"] {
                pod["metadata"][kind]["drover.dev/key"] = json!(key);
            }
            store.put("ADDED", pod);
        }
    }
    let (mut handles, mut token) = (Vec::new(), String::new());
    loop {
        let page = driver.list("o", &token, 0).await.expect("listed");
        handles.extend(page.instances.into_iter().map(|instance| instance.handle));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(handles.len(), count);
    assert!(handles.contains(&first.handle));
    handles
}

/// Pages of listings, and looks at single pods.
fn looks(api: &Api) -> (usize, usize) {
    let store = api.store();
    let single = store.calls.iter().filter(|c| c.starts_with("GET") && c.contains("/pods/drover-")).count();
    (store.calls.iter().filter(|c| c.contains("limit=500")).count(), single)
}

#[tokio::test]
async fn thousands_are_listed_once_at_the_start() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let handles = many(&api, &driver, 1200).await;
    let (pages, single) = looks(&api);
    let mut watches: Vec<Watch> = handles.chunks(256).map(|some| Watch::of(&driver, some.to_vec())).collect();
    for (watch, some) in watches.iter_mut().zip(handles.chunks(256)) {
        for _ in some {
            watch.until(InstanceState::Running).await;
        }
    }
    // A page that holds all, and the one after it, are three.
    assert_eq!(looks(&api), (pages + 3, single));
}

#[tokio::test]
async fn a_set_that_grows_is_not_looked_at_anew() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let handles = many(&api, &driver, 600).await;
    let mut watch = Watch::of(&driver, handles[..256].to_vec());
    for _ in 0..256 {
        watch.until(InstanceState::Running).await;
    }
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    let (pages, single) = looks(&api);
    // The host ends the stream, then opens one over the new set.
    drop(watch);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut watch = Watch::of(&driver, handles[..257].to_vec());
    for _ in 0..257 {
        watch.until(InstanceState::Running).await;
    }
    assert_eq!(looks(&api), (pages, single + 1));
    // Of those that stay nothing is missed; the listing begins with this one.
    api.ends("drover-k0", 3);
    assert_eq!(watch.until(InstanceState::Exited).await.exit.exit_code, 3);
}

#[tokio::test]
async fn few_of_many_are_looked_at_without_a_listing() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let handles = many(&api, &driver, 600).await;
    let mut first = Watch::of(&driver, handles[..1].to_vec());
    first.until(InstanceState::Running).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    let (pages, single) = looks(&api);
    let mut more = Watch::of(&driver, handles[1..21].to_vec());
    for _ in 0..20 {
        more.until(InstanceState::Running).await;
    }
    assert_eq!(looks(&api), (pages, single + 20));
}

#[tokio::test]
async fn those_who_ask_for_many_at_the_same_time_share_listings() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let handles = many(&api, &driver, 1200).await;
    let (pages, single) = looks(&api);
    let asked = handles.chunks(100).map(|some| driver.observe(some));
    for (seen, some) in futures::future::join_all(asked).await.into_iter().zip(handles.chunks(100)) {
        let seen = seen.expect("observed");
        assert_eq!(seen.len(), some.len());
        assert!(seen.iter().all(|one| one.state == InstanceState::Running));
        // Each at its place.
        let one = driver.observe(&some[7..8]).await.expect("observed").remove(0);
        assert_eq!(one.key, seen[7].key);
    }
    // Three pages for all, and the twelve that were looked at here.
    assert_eq!(looks(&api), (pages + 3, single + 12));
}

#[tokio::test]
async fn a_pod_of_which_nothing_can_be_said_holds_up_no_other() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let gone = driver.ensure(ensure("gone", 1)).await.expect("made").handle;
    {
        let mut store = api.store();
        let pod = store.pods["drover-gone"].clone();
        store.put("DELETED", pod);
    }
    let mut watch = Watch::of(&driver, vec![gone]);
    watch.until(InstanceState::Unknown).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    // A while after its last look.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let other = driver.ensure(ensure("other", 1)).await.expect("made").handle;
    let mut watch = Watch::of(&driver, vec![other]);
    let seen = tokio::time::timeout(Duration::from_secs(2), watch.until(InstanceState::Creating)).await;
    assert!(seen.is_ok(), "it waits for the next look at another");
}

#[tokio::test]
async fn what_is_away_says_nothing_of_others_and_a_server_that_is_away_is_not_asked_for_each() {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    let handles = many(&api, &driver, 600).await;
    let mut first = Watch::of(&driver, handles[..1].to_vec());
    first.until(InstanceState::Running).await;
    testkit::eventually("a watch", || calls(&api, "watch=true") == 1).await;
    let names: Vec<String> = api.store().pods.keys().cloned().collect();
    for name in &names[1..31] {
        let mut store = api.store();
        let pod = store.pods[name].clone();
        store.put("DELETED", pod);
    }
    let seen = driver.observe(&handles[1..61]).await.expect("observed");
    for (n, one) in seen.iter().enumerate() {
        let expected = if n < 30 { InstanceState::Unknown } else { InstanceState::Running };
        assert_eq!(one.state, expected, "{n}: {one:?}");
    }
    api.say(Method::GET, "/pods/drover-", Said::Text(502, "away"), false, usize::MAX);
    let before = calls(&api, "/pods/drover-");
    let seen = driver.observe(&handles[31..91]).await.expect("observed");
    for one in &seen {
        assert!(one.state == InstanceState::Unknown && one.reason.contains("away"), "{one:?}");
    }
    // Those under way at the same time, and no more after them.
    let asked = calls(&api, "/pods/drover-") - before;
    assert!((8..=24).contains(&asked), "{asked} calls");
}
