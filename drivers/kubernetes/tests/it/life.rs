//! From the create to the acknowledgement.

use std::time::{Duration, SystemTime};

use axum::http::Method;
use driver_sdk::{InstanceState, LogStream, LogsQuery, RemoteDriver as _, RemoteError, StopTask};
use serde_json::json;

use crate::fake::{Api, Said, after_silence, ensure, look, stop};

const POD: &str = "drover-k";

#[tokio::test]
async fn two_managers_of_a_key_get_one_pod() {
    let api = Api::start().await;
    let (first, second) = (api.manager().await, api.manager().await);
    let made = first.ensure(ensure("k", 1)).await.expect("made");
    assert!(made.created && made.observed.state == InstanceState::Creating);
    {
        let store = api.store();
        let pod = &store.pods[POD];
        assert_eq!(pod["spec"]["schedulingGates"], json!([]), "it may be placed");
        assert!(!pod.to_string().contains("hidden"), "no secret in the pod");
        assert_eq!(store.secrets[POD]["metadata"]["ownerReferences"][0]["uid"], pod["metadata"]["uid"]);
    }
    let again = second.ensure(ensure("k", 2)).await.expect("got");
    assert!(!again.created && again.handle == made.handle && again.observed.epoch == 2);
    assert_eq!(api.store().made, 1);
    let stale = RemoteError::StaleEpoch { given: 1, accepted: 2 };
    assert_eq!(first.ensure(ensure("k", 1)).await, Err(stale.clone()));
    assert_eq!(first.stop(&made.handle, 1, stop()).await, Err(stale.clone()));
    api.runs(POD);
    api.ends(POD, 0);
    assert_eq!(first.acknowledge(&made.handle, 1).await, Err(stale));
    let (found, seen) = second.find("k", "o").await.expect("found");
    assert_eq!((found, seen.state), (made.handle, InstanceState::Exited));
}

#[tokio::test]
async fn the_server_itself_refuses_what_was_decided_before_a_hand_over() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    // After the manager has looked, and before its call: another one takes over.
    let takes_over = |store: &mut crate::fake::Store| {
        store.change(POD, |pod| pod["metadata"]["annotations"]["drover.dev/epoch"] = json!("2"));
    };
    api.store().meanwhile.push((Method::PATCH, Box::new(takes_over)));
    let late = driver.stop(&made.handle, 1, stop()).await;
    assert_eq!(late, Err(RemoteError::StaleEpoch { given: 1, accepted: 2 }));
    assert!(api.store().pods[POD]["spec"]["activeDeadlineSeconds"].is_null());
    // What changes all the time is no conflict: the kubelet's status.
    let status = |store: &mut crate::fake::Store| store.change(POD, |pod| pod["status"]["hostIP"] = json!("1.2.3.4"));
    api.store().meanwhile.push((Method::PATCH, Box::new(status)));
    let taken = driver.ensure(ensure("k", 3)).await.expect("taken over");
    assert_eq!(taken.observed.epoch, 3);
}

#[tokio::test]
async fn a_stop_keeps_result_and_log_and_an_acknowledged_key_is_sealed() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Running);
    assert!(matches!(driver.acknowledge(&made.handle, 1).await, Err(RemoteError::WrongRequest(_))));
    let handle = made.handle.clone();
    let stopping = tokio::spawn(async move { (driver.stop(&handle, 1, stop()).await, driver) });
    testkit::eventually("the order", || api.store().pods[POD]["spec"]["activeDeadlineSeconds"] == 1).await;
    assert!(api.store().deletions.is_empty(), "a deletion takes the log away");
    api.change(POD, |pod| pod["status"]["reason"] = json!("DeadlineExceeded"));
    api.ends(POD, 7);
    let (ended, driver) = stopping.await.expect("ran");
    let ended = ended.expect("stopped");
    assert_eq!((ended.state, ended.exit.exit_code, ended.exit.error), (InstanceState::Exited, 7, None));
    for _ in 0..2 {
        driver.acknowledge(&made.handle, 1).await.expect("acknowledged");
    }
    let next = api.manager().await;
    assert_eq!(look(&next, &made.handle).await.state, InstanceState::Gone);
    assert!(matches!(next.find("k", "o").await, Err(RemoteError::Gone(_))));
    assert!(matches!(next.ensure(ensure("k", 2)).await, Err(RemoteError::Sealed(_))));
    assert!(next.list("o", "", 0).await.expect("listed").instances.is_empty());
    assert!(api.store().secrets.is_empty(), "what may be secret goes at once");
    // Held for its time, and no longer.
    let now = SystemTime::now();
    next.sweep(now + Duration::from_secs(3600)).await.expect("swept");
    assert_eq!(api.store().pods.len(), 1);
    next.sweep(now + Duration::from_secs(25 * 3600)).await.expect("swept");
    assert!(api.store().pods.is_empty());
    assert_eq!(api.store().made, 1);
}

/// The node is lost in the middle of an acknowledgement. Everybody else sees that the pod is done with.
#[tokio::test]
async fn an_acknowledgement_that_was_cut_off_leaves_no_secret() {
    for (method, path) in [(Method::DELETE, "/secrets"), (Method::PATCH, "/pods/drover-k"), (Method::DELETE, "/pods/")]
    {
        for after in [false, true] {
            let api = Api::start().await;
            let driver = api.manager().await;
            let made = driver.ensure(ensure("k", 1)).await.expect("made");
            api.runs(POD);
            api.ends(POD, 0);
            api.say(method.clone(), path, Said::Text(502, "lost"), after, 1);
            let lost = driver.acknowledge(&made.handle, 1).await;
            assert!(matches!(lost, Err(RemoteError::CouldNotAsk(_))), "{method} {path}: {lost:?}");
            let next = api.manager().await;
            if look(&next, &made.handle).await.state != InstanceState::Gone {
                next.acknowledge(&made.handle, 2).await.expect("acknowledged");
            }
            assert!(api.store().secrets.is_empty(), "{method} {path} {after}");
        }
    }
}

#[tokio::test]
async fn a_stop_with_another_time_than_the_pods_brings_its_own() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    let handle = made.handle.clone();
    let longer = StopTask { timeout: Duration::from_secs(30), ..stop() };
    let stopping = tokio::spawn(async move { driver.stop(&handle, 1, longer).await });
    testkit::eventually("the order", || !api.store().deletions.is_empty()).await;
    let deletion = api.store().deletions[0].clone();
    assert_eq!((&deletion["gracePeriodSeconds"], &deletion["preconditions"]["uid"]), (&json!(30), &json!("uid-1")));
    api.ends(POD, 0);
    assert_eq!(stopping.await.expect("ran").expect("stopped").state, InstanceState::Exited);
}

#[tokio::test]
async fn a_pod_without_a_node_is_deleted_and_one_that_is_placed_meanwhile_is_not() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    let placed = |store: &mut crate::fake::Store| store.change(POD, |pod| pod["spec"]["nodeName"] = json!("n1"));
    api.store().meanwhile.push((Method::DELETE, Box::new(placed)));
    let handle = made.handle.clone();
    let stopping = tokio::spawn(async move { driver.stop(&handle, 1, stop()).await });
    testkit::eventually("the order", || api.store().pods[POD]["spec"]["activeDeadlineSeconds"] == 1).await;
    assert!(api.store().pods[POD]["metadata"]["deletionTimestamp"].is_null());
    api.ends(POD, 143);
    assert_eq!(stopping.await.expect("ran").expect("stopped").exit.signal, 15);

    let driver = api.manager().await;
    let waits = driver.ensure(ensure("w", 1)).await.expect("made");
    let ended = driver.stop(&waits.handle, 1, stop()).await.expect("stopped");
    assert_eq!((ended.state, ended.exit.exit_code), (InstanceState::Exited, -1));
    driver.acknowledge(&waits.handle, 1).await.expect("acknowledged");
}

#[tokio::test]
async fn a_sealed_key_never_has_a_pod_that_can_be_placed() {
    let api = Api::start().await;
    let driver = api.manager().await;
    for _ in 0..2 {
        assert_eq!(driver.seal("k", 2, "o", b"").await, Ok(None));
    }
    assert!(matches!(driver.ensure(ensure("k", 2)).await, Err(RemoteError::Sealed(_))));
    {
        let store = api.store();
        let stone = &store.pods[POD];
        assert!(stone["spec"]["schedulingGates"][0].is_object() && stone["metadata"]["deletionTimestamp"].is_string());
    }
    let made = driver.ensure(ensure("e", 2)).await.expect("made");
    api.runs("drover-e");
    let (handle, seen) = driver.seal("e", 3, "o", b"").await.expect("sealed").expect("there");
    assert_eq!((handle, seen.state, seen.epoch), (made.handle, InstanceState::Running, 3));
}

#[tokio::test]
async fn what_somebody_else_made_is_not_touched() {
    let api = Api::start().await;
    let driver = api.manager().await;
    driver.ensure(ensure("k", 1)).await.expect("made");
    api.change(POD, |pod| pod["metadata"]["annotations"]["drover.dev/owner"] = json!("others"));
    let before = api.store().pods[POD].clone();
    assert!(matches!(driver.ensure(ensure("k", 2)).await, Err(RemoteError::WrongRequest(_))));
    assert!(matches!(driver.find("k", "o").await, Err(RemoteError::WrongRequest(_))));
    assert!(matches!(driver.seal("k", 2, "o", b"").await, Err(RemoteError::WrongRequest(_))));
    assert_eq!(api.store().pods[POD], before);
}

#[tokio::test]
async fn a_listing_comes_in_pages_and_says_when_it_has_to_begin_anew() {
    let api = Api::start().await;
    let driver = api.manager().await;
    for n in 0..5 {
        driver.ensure(ensure(&format!("k{n}"), 4)).await.expect("made");
    }
    driver.seal("gone", 1, "o", b"").await.expect("sealed");
    let (mut keys, mut token) = (Vec::new(), String::new());
    loop {
        let page = driver.list("o", &token, 2).await.expect("a page");
        keys.extend(page.instances.into_iter().map(|i| (i.key, i.epoch)));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(keys, (0..5).map(|n| (format!("k{n}"), 4)).collect::<Vec<_>>());
    assert!(driver.list("p", "", 0).await.expect("a page").instances.is_empty());
    assert_eq!(driver.list("", "", 0).await.expect("a page").instances.len(), 5);
    api.say(Method::GET, "continue=", Said::Status(410, "Expired", "continue expired"), false, 1);
    assert!(matches!(driver.list("o", "drover-k1", 2).await, Err(RemoteError::CouldNotAsk(_))));
}

#[tokio::test]
async fn a_log_is_counted_in_bytes() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    api.ends(POD, 0);
    api.store().log = (0..3).map(|n| format!("2026-01-01T00:00:0{n}.000000001Z line {n}\n")).collect();
    let read = async |offset: u64, from_end: bool| {
        let (sink, mut heard) = tokio::sync::mpsc::channel(64);
        let query = LogsQuery { stream: LogStream::Stdout, offset, follow: false, from_end };
        driver.logs(&made.handle, query, sink).await.expect("read");
        let (mut first, mut text) = (None, String::new());
        while let Some(chunk) = heard.recv().await {
            first.get_or_insert(chunk.offset);
            text += std::str::from_utf8(&chunk.data).expect("text");
        }
        (first, text)
    };
    assert_eq!(read(0, false).await, (Some(0), "line 0\nline 1\nline 2\n".into()));
    assert_eq!(read(9, false).await, (Some(9), "ne 1\nline 2\n".into()));
    assert_eq!(read(5, true).await, (Some(16), "ne 2\n".into()));
    api.store().log = "unable to retrieve container logs for containerd://1".into();
    let (sink, _heard) = tokio::sync::mpsc::channel(64);
    let query = LogsQuery { stream: LogStream::Stdout, offset: 0, follow: false, from_end: false };
    assert!(matches!(driver.logs(&made.handle, query, sink).await, Err(RemoteError::CouldNotAsk(_))));
}

#[tokio::test]
async fn a_log_that_is_silent_is_asked_for_again() {
    let api = Api::start().await;
    let mut options = api.options();
    options["request_timeout"] = json!("600s");
    let driver = api.manager_with(options).await.expect("configured");
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    api.store().log = "2026-01-01T00:00:00.000000001Z line\n".into();
    // As behind a proxy whose other side has gone.
    api.say(Method::GET, "/log", Said::Mute, false, 1);
    let (sink, mut heard) = tokio::sync::mpsc::channel(64);
    let query = LogsQuery { stream: LogStream::Stdout, offset: 0, follow: true, from_end: false };
    let reading = tokio::spawn(async move { driver.logs(&made.handle, query, sink).await });
    testkit::eventually("a log", || api.store().calls.iter().any(|call| call.contains("/log"))).await;
    let chunk = after_silence(async || heard.recv().await).await.expect("a chunk");
    assert_eq!(chunk.data, b"line\n");
    reading.abort();
}

#[tokio::test]
async fn statistics_are_what_the_metrics_api_has_measured() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    // A cluster without the API is no pod without statistics.
    assert!(matches!(driver.stats(&made.handle).await, Err(RemoteError::CouldNotAsk(_))));
    api.store().measured = Some(std::collections::BTreeMap::new());
    assert_eq!(driver.stats(&made.handle).await, Ok(None), "not measured yet");
    let measured = json!({"timestamp": "2026-01-02T03:04:05Z", "window": "15s",
        "containers": [{"name": "task", "usage": {"cpu": "250m", "memory": "10Mi"}}]});
    api.store().measured.get_or_insert_default().insert(POD.into(), measured);
    let used = driver.stats(&made.handle).await.expect("asked").expect("a sample");
    assert_eq!((used.total.cpu.percent, used.total.memory.usage), (Some(25.0), Some(10 << 20)));
}

/// Whoever is told that a key is over knows nothing of creates that were sent since it was sealed.
#[tokio::test]
async fn a_name_is_kept_for_its_time_after_the_last_word_about_it() {
    let hours = |hours: u64| SystemTime::now() + Duration::from_secs(hours * 3600);
    for case in ["sealed", "refused", "acknowledged"] {
        let api = Api::start().await;
        let driver = api.manager().await;
        let mut handle = None;
        if case == "acknowledged" {
            handle = Some(driver.ensure(ensure("k", 1)).await.expect("made").handle);
            api.runs(POD);
            api.ends(POD, 0);
            driver.acknowledge(handle.as_ref().expect("made"), 1).await.expect("acknowledged");
        } else {
            assert_eq!(driver.seal("k", 1, "o", b"").await, Ok(None));
        }
        // As if that were 23 hours ago.
        let soon = jiff::Timestamp::try_from(hours(1)).expect("a time").to_string();
        api.change(POD, |pod| pod["metadata"]["annotations"]["drover.dev/forget"] = json!(soon));
        match handle {
            Some(handle) => driver.acknowledge(&handle, 2).await.expect("acknowledged"),
            None if case == "sealed" => assert_eq!(driver.seal("k", 2, "o", b"").await, Ok(None)),
            None => assert!(matches!(driver.ensure(ensure("k", 2)).await, Err(RemoteError::Sealed(_)))),
        }
        driver.sweep(hours(23)).await.expect("swept");
        assert_eq!(api.store().pods.len(), 1, "{case}");
        // A word between the look of a sweep and its change.
        let later = jiff::Timestamp::try_from(hours(72)).expect("a time").to_string();
        let word = move |store: &mut crate::fake::Store| {
            store.change(POD, |pod| pod["metadata"]["annotations"]["drover.dev/forget"] = json!(later));
        };
        api.store().meanwhile.push((Method::PATCH, Box::new(word)));
        assert_eq!(driver.sweep(hours(25)).await.expect("swept"), 0);
        assert_eq!(api.store().pods.len(), 1, "{case}");
        assert_eq!(driver.sweep(hours(73)).await.expect("swept"), 1);
        assert!(api.store().pods.is_empty(), "{case}");
    }
}
