//! One watch for all.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use driver_sdk::{InstanceState, Observation, RemoteDriver as _, RemoteHandle};
use kubernetes::Driver;
use serde_json::json;
use tokio::sync::mpsc;

use crate::fake::{Api, Said, after_silence, ensure};

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

    /// Opens one; each of these is seen running.
    async fn running(driver: &Arc<Driver>, handles: &[RemoteHandle]) -> Self {
        let mut watch = Self::of(driver, handles.to_vec());
        watch.all_run(handles).await;
        watch
    }

    async fn all_run(&mut self, handles: &[RemoteHandle]) {
        for _ in handles {
            self.until(InstanceState::Running).await;
        }
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

async fn cluster() -> (Api, Arc<Driver>) {
    let api = Api::start().await;
    let driver = Arc::new(api.manager().await);
    (api, driver)
}

async fn made(driver: &Driver, key: &str) -> RemoteHandle {
    driver.ensure(ensure(key, 1)).await.expect("made").handle
}

/// Makes one whose pod runs.
async fn running(api: &Api, driver: &Driver, key: &str) -> RemoteHandle {
    let handle = made(driver, key).await;
    api.runs(&format!("drover-{key}"));
    handle
}

/// A pod is away; watches are not told yet.
fn vanishes(api: &Api, name: &str) {
    let mut store = api.store();
    let pod = store.pods[name].clone();
    store.put("DELETED", pod);
}

async fn one_watch(api: &Api) {
    testkit::eventually("a watch", || calls(api, "watch=true") == 1).await;
}

/// Looks at single pods.
fn single(api: &Api) -> usize {
    api.store().calls.iter().filter(|c| c.starts_with("GET") && c.contains("/pods/drover-")).count()
}

#[tokio::test]
async fn a_handle_of_another_cluster_ends_nobody_elses_watch() {
    let (api, driver) = cluster().await;
    let own = running(&api, &driver, "own").await;
    api.store().cluster = "cluster-2".into();
    let stranger = made(&api.manager().await, "stranger").await;
    api.store().cluster = "cluster-1".into();
    let mut watch = Watch::of(&driver, vec![stranger.clone(), own]);
    let unknown = watch.until(InstanceState::Unknown).await;
    assert!(unknown.key == "stranger" && unknown.reason.contains("cluster-2"), "{unknown:?}");
    assert_eq!(watch.until(InstanceState::Running).await.key, "own");
    api.ends("drover-own", 0);
    assert_eq!(watch.until(InstanceState::Exited).await.key, "own");
    // Also where there is nothing else to watch.
    let mut alone = Watch::of(&driver, vec![stranger]);
    alone.until(InstanceState::Unknown).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), alone.heard.recv()).await.is_err(), "it goes on");
}

#[tokio::test]
async fn fifty_are_seen_with_one_watch() {
    let (api, driver) = cluster().await;
    let mut handles = Vec::new();
    for n in 0..50 {
        handles.push(made(&driver, &format!("k{n}")).await);
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
    let single = single(&api);
    assert!(single <= 50, "{single} looks at single pods");
}

#[tokio::test]
async fn a_watch_that_is_cut_or_too_old_begins_anew() {
    let (api, driver) = cluster().await;
    let mut watch = Watch::running(&driver, &[running(&api, &driver, "k").await]).await;
    one_watch(&api).await;
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
    let (api, driver) = cluster().await;
    let (gone, stays) = (running(&api, &driver, "gone").await, running(&api, &driver, "stays").await);
    let mut watch = Watch::of(&driver, vec![gone]);
    let mut other = Watch::of(&driver, vec![stays]);
    watch.until(InstanceState::Running).await;
    other.until(InstanceState::Running).await;
    one_watch(&api).await;
    vanishes(&api, "drover-gone");
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
    let (api, driver) = cluster().await;
    let mut watch = Watch::running(&driver, &[running(&api, &driver, "k").await]).await;
    one_watch(&api).await;
    // By force, and let go: first its deletion is ordered, then it is away while its container may run.
    api.change("drover-k", |pod| pod["metadata"]["deletionTimestamp"] = json!("2999-01-01T00:00:00Z"));
    vanishes(&api, "drover-k");
    api.change_nothing();
    watch.until(InstanceState::Unknown).await;
    // The pulse looks every second at what time alone changes.
    let again = tokio::time::timeout(Duration::from_secs(4), watch.until(InstanceState::Running)).await;
    assert!(again.is_err(), "a pod that is away is seen running: {again:?}");
}

#[tokio::test]
async fn an_answer_that_comes_late_does_not_replace_what_the_watch_has_told() {
    let (api, driver) = cluster().await;
    let mut other = Watch::of(&driver, vec![made(&driver, "first").await]);
    other.until(InstanceState::Creating).await;
    one_watch(&api).await;
    // Whoever is asked for first is looked at in the store, unless the watch was quicker; meanwhile its pod begins to
    // run.
    let mut looked_at = None;
    for n in 0..50 {
        let (key, path) = (format!("k{n:02}"), format!("/pods/drover-k{n:02}").leak());
        let handle = made(&driver, &key).await;
        api.say(Method::GET, path, Said::Late, true, 1);
        let before = calls(&api, path);
        let watch = Watch::of(&driver, vec![handle]);
        let look = async {
            while calls(&api, path) == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(1), look).await.is_ok() {
            looked_at = Some((format!("drover-{key}"), watch));
            break;
        }
    }
    let (pod, mut watch) = looked_at.expect("a look");
    api.runs(&pod);
    watch.until(InstanceState::Running).await;
    let older = tokio::time::timeout(Duration::from_secs(4), watch.until(InstanceState::Creating)).await;
    assert!(older.is_err(), "the pod runs, and is said to be made: {older:?}");
}

/// Puts pods into the store that run already; their handles.
async fn many(api: &Api, driver: &Driver, count: usize) -> Vec<RemoteHandle> {
    let first = running(api, driver, "k0").await;
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
    assert!(handles.contains(&first));
    handles
}

/// Pages of listings, and looks at single pods.
fn looks(api: &Api) -> (usize, usize) {
    (calls(api, "limit=500"), single(api))
}

#[tokio::test]
async fn thousands_are_listed_once_at_the_start() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 1200).await;
    let (pages, single) = looks(&api);
    let mut watches: Vec<Watch> = handles.chunks(256).map(|some| Watch::of(&driver, some.to_vec())).collect();
    for (watch, some) in watches.iter_mut().zip(handles.chunks(256)) {
        watch.all_run(some).await;
    }
    // A page that holds all, and the one after it, are three.
    assert_eq!(looks(&api), (pages + 3, single));
}

#[tokio::test]
async fn a_set_that_grows_is_not_looked_at_anew() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 600).await;
    let watch = Watch::running(&driver, &handles[..256]).await;
    one_watch(&api).await;
    let (pages, single) = looks(&api);
    // The host ends the stream, then opens one over the new set.
    drop(watch);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut watch = Watch::running(&driver, &handles[..257]).await;
    assert_eq!(looks(&api), (pages, single + 1));
    // Of those that stay nothing is missed; the listing begins with this one.
    api.ends("drover-k0", 3);
    assert_eq!(watch.until(InstanceState::Exited).await.exit.exit_code, 3);
}

#[tokio::test]
async fn few_of_many_are_looked_at_without_a_listing() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 600).await;
    let _first = Watch::running(&driver, &handles[..1]).await;
    one_watch(&api).await;
    let (pages, single) = looks(&api);
    let _more = Watch::running(&driver, &handles[1..21]).await;
    assert_eq!(looks(&api), (pages, single + 20));
}

#[tokio::test]
async fn those_who_ask_for_many_at_the_same_time_share_listings() {
    let (api, driver) = cluster().await;
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
    let (api, driver) = cluster().await;
    let gone = made(&driver, "gone").await;
    vanishes(&api, "drover-gone");
    let mut watch = Watch::of(&driver, vec![gone]);
    watch.until(InstanceState::Unknown).await;
    one_watch(&api).await;
    // On a slow machine the next look at it may come meanwhile, but not each time.
    for n in 0.. {
        // A while after its last look.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = calls(&api, "/pods/drover-gone");
        let other = made(&driver, &format!("other{n}")).await;
        Watch::of(&driver, vec![other]).until(InstanceState::Creating).await;
        if calls(&api, "/pods/drover-gone") == before {
            break;
        }
        assert!(n < 3, "it waits for the next look at another");
    }
}

#[tokio::test]
async fn what_is_away_says_nothing_of_others_and_a_server_that_is_away_is_not_asked_for_each() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 600).await;
    let _first = Watch::running(&driver, &handles[..1]).await;
    one_watch(&api).await;
    let names: Vec<String> = api.store().pods.keys().cloned().collect();
    for name in &names[1..31] {
        vanishes(&api, name);
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

#[tokio::test]
async fn whoever_is_served_by_a_shared_listing_does_not_wait_for_the_next_one() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 40).await;
    let ask = || {
        let (driver, handles) = (driver.clone(), handles.clone());
        tokio::spawn(async move { driver.observe(&handles).await.expect("observed").len() })
    };
    let before = calls(&api, "limit=500");
    let listings = async |count: usize| {
        testkit::eventually("a listing", || calls(&api, "limit=500") - before == count).await;
    };
    api.say(Method::GET, "limit=500", Said::Late, true, usize::MAX);
    let first = ask();
    listings(1).await;
    // While it is under way these ask, and share the next one; the last asks while that is under way.
    let waiting: Vec<_> = (0..10).map(|_| ask()).collect();
    listings(2).await;
    // The one that the last waits for is answered only when these were served.
    api.store().faults.clear();
    api.store().holds = true;
    api.say(Method::GET, "limit=500", Said::Held, true, usize::MAX);
    let last = ask();
    assert_eq!(first.await.expect("ran"), 40);
    // A request is given up later than that.
    let served = tokio::time::timeout(Duration::from_secs(20), futures::future::join_all(waiting)).await;
    for one in served.expect("those who were served have waited for the listing of another") {
        assert_eq!(one.expect("ran"), 40);
    }
    api.store().holds = false;
    assert_eq!(last.await.expect("ran"), 40);
    assert_eq!(calls(&api, "limit=500") - before, 3);
}

#[tokio::test]
async fn whoever_waits_for_a_look_that_is_given_up_looks_itself() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 40).await;
    let before = calls(&api, "limit=500");
    api.say(Method::GET, "limit=500", Said::Silence, false, 1);
    let [first, other] = [0, 1].map(|_| {
        let (driver, handles) = (driver.clone(), handles.clone());
        tokio::spawn(async move { driver.observe(&handles).await.expect("observed") })
    });
    testkit::eventually("a listing", || calls(&api, "limit=500") > before).await;
    first.abort();
    for one in other.await.expect("ran") {
        assert_eq!(one.state, InstanceState::Running, "{one:?}");
    }
    assert_eq!(calls(&api, "limit=500") - before, 2);
}

#[tokio::test]
async fn one_of_which_nothing_can_be_said_is_asked_for_again_although_others_follow() {
    let (api, driver) = cluster().await;
    let first = made(&driver, "first").await;
    vanishes(&api, "drover-first");
    let mut watch = Watch::of(&driver, vec![first]);
    watch.until(InstanceState::Unknown).await;
    let before = calls(&api, "/pods/drover-first");
    // More often than what is unknown is asked for again.
    let mut others = Vec::new();
    for n in 0..9 {
        let key = format!("other{n}");
        let other = made(&driver, &key).await;
        vanishes(&api, &format!("drover-{key}"));
        let mut watch = Watch::of(&driver, vec![other]);
        watch.until(InstanceState::Unknown).await;
        others.push(watch);
        tokio::time::sleep(Duration::from_millis(800)).await;
    }
    assert!(calls(&api, "/pods/drover-first") > before, "it waits for as long as others become unknown");
}

#[tokio::test]
async fn a_listing_that_expires_between_its_pages_begins_anew() {
    let (api, driver) = cluster().await;
    let handles = many(&api, &driver, 600).await;
    let expired = || api.say(Method::GET, "continue=", Said::Status(410, "Expired", "continue expired"), false, 1);
    expired();
    let seen = driver.observe(&handles).await.expect("observed");
    for one in &seen {
        assert_eq!(one.state, InstanceState::Running, "{one:?}");
    }
    // The watch: whose pod the first page has shown, and is away by the time of the second try, is not taken as seen.
    expired();
    let names: Vec<String> = api.store().pods.keys().cloned().collect();
    let first = names[0].clone();
    let key = first.trim_start_matches("drover-").to_owned();
    let (handle, _) = driver.find(&key, "o").await.expect("found");
    let mut watch = Watch::of(&driver, vec![handle]);
    testkit::eventually("the fault", || api.store().faults.iter().all(|fault| fault.times == 0)).await;
    vanishes(&api, &first);
    assert!(watch.until(InstanceState::Unknown).await.reason.contains("removed"));
}

#[tokio::test]
async fn a_throttled_watch_is_opened_again_without_a_listing() {
    let (api, driver) = cluster().await;
    let handle = running(&api, &driver, "k").await;
    api.say(Method::GET, "watch=true", Said::Throttled(1), false, 1);
    let before = calls(&api, "limit=500");
    let mut watch = Watch::running(&driver, &[handle]).await;
    testkit::eventually("another watch", || calls(&api, "watch=true") == 2).await;
    api.ends("drover-k", 3);
    watch.until(InstanceState::Exited).await;
    assert_eq!(calls(&api, "limit=500") - before, 1);
}

#[tokio::test]
async fn a_watch_that_tells_of_nothing_begins_anew() {
    let api = Api::start().await;
    // However long a request may take: bookmarks of a watch come every minute.
    let mut options = api.options();
    options["request_timeout"] = json!("600s");
    let driver = Arc::new(api.manager_with(options).await.expect("configured"));
    let handle = running(&api, &driver, "k").await;
    api.say(Method::GET, "watch=true", Said::Mute, false, 1);
    let mut watch = Watch::running(&driver, &[handle]).await;
    one_watch(&api).await;
    api.ends("drover-k", 3);
    let told = tokio::time::timeout(Duration::from_secs(2), watch.until(InstanceState::Exited)).await;
    assert!(told.is_err(), "the watch is mute: {told:?}");
    // Longer than the minute between two bookmarks of a watch that lives.
    after_silence(async || watch.until(InstanceState::Exited).await).await;
    testkit::eventually("another watch", || calls(&api, "watch=true") >= 2).await;
}

/// How `kube-controller-manager` ends a pod whose node has vanished.
fn collected(api: &Api, name: &str) {
    api.change(name, |pod| {
        pod["status"]["phase"] = json!("Failed");
        pod["status"]["conditions"] =
            json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "no node"}]);
    });
}

#[tokio::test]
async fn a_pod_whose_node_has_vanished_is_unknown_until_its_kubelet_says_more() {
    let (api, driver) = cluster().await;
    let handle = running(&api, &driver, "k").await;
    let mut watch = Watch::running(&driver, std::slice::from_ref(&handle)).await;
    one_watch(&api).await;
    // Its deletion is ordered, and soon after nobody has carried it out: no event tells of that.
    let overdue_in_a_second = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(59)).to_string();
    api.change("drover-k", |pod| pod["metadata"]["deletionTimestamp"] = json!(overdue_in_a_second));
    let seen = watch.until(InstanceState::Unknown).await;
    assert!(seen.reason.contains("n1") && seen.reason.contains("may run on"), "{seen:?}");
    collected(&api, "drover-k");
    // The finalizer keeps the pod; what the API calls an end is none.
    let ended = tokio::time::timeout(Duration::from_secs(3), watch.until(InstanceState::Exited)).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(crate::fake::look(&driver, &handle).await.state, InstanceState::Unknown);
    let refused = driver.acknowledge(&handle, 1).await;
    assert!(matches!(refused, Err(driver_sdk::RemoteError::CouldNotAsk(_))), "{refused:?}");
    // The node was only silent, and is back.
    api.ends("drover-k", 143);
    let ended = watch.until(InstanceState::Exited).await;
    assert!(ended.exit.error.is_some() && ended.reason.contains("DeletionByPodGC"), "{ended:?}");
    driver.acknowledge(&handle, 1).await.expect("acknowledged");
}

#[tokio::test]
async fn an_eviction_and_a_preemption_are_ends_that_are_no_success() {
    let (api, driver) = cluster().await;
    let (evicted, preempted) = (running(&api, &driver, "e").await, running(&api, &driver, "p").await);
    let mut evictions = Watch::running(&driver, &[evicted]).await;
    let mut preemptions = Watch::running(&driver, &[preempted]).await;
    one_watch(&api).await;
    let by = |reason: &'static str| json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
    api.change("drover-e", |pod| pod["status"]["reason"] = json!("Evicted"));
    api.ends("drover-e", 0);
    // The scheduler's word alone is no end: the kubelet ends the container after it.
    api.change("drover-p", |pod| pod["status"]["conditions"] = by("PreemptionByScheduler"));
    let early = tokio::time::timeout(Duration::from_secs(1), preemptions.until(InstanceState::Exited)).await;
    assert!(early.is_err(), "{early:?}");
    api.ends("drover-p", 143);
    for (watch, why) in [(&mut evictions, "Evicted"), (&mut preemptions, "PreemptionByScheduler")] {
        let ended = watch.until(InstanceState::Exited).await;
        assert!(!ended.exit.successful() && ended.reason.contains(why), "{ended:?}");
    }
}
