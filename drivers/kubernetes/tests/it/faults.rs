//! Lost, doubled, garbled and refused answers: one pod for each key, and never a word about what is not known.

use axum::http::Method;
use driver_sdk::{Bundle, BundleFile, Finding, InstanceState, Lookup, RemoteDriver as _, RemoteError, Verdict};
use serde_json::json;

use crate::fake::{Api, Limits, Said, ensure, look, stop};

const POD: &str = "drover-k";

/// Answers that say nothing.
fn unclear() -> Vec<(&'static str, Said)> {
    vec![
        ("throttled", Said::Status(429, "TooManyRequests", "slow down")),
        ("an error", Said::Status(500, "InternalError", "etcdserver: request timed out")),
        ("a webhook that is away", Said::Status(500, "InternalError", "failed calling webhook")),
        ("too old", Said::Status(410, "Expired", "too old")),
        ("an old copy", Said::Status(504, "Timeout", "Too large resource version")),
        ("bad credentials", Said::Status(401, "Unauthorized", "Unauthorized")),
        ("no permission", Said::Status(403, "Forbidden", "User \"u\" cannot get resource \"pods\"")),
        ("a proxy without the server", Said::Text(502, "<html>Bad Gateway</html>")),
        ("a proxy that knows nothing", Said::Text(404, "404 page not found")),
        ("another resource", Said::Status(404, "NotFound", "the server could not find the requested resource")),
        ("garbage", Said::Text(200, "\u{1}\u{2} no JSON")),
        ("an empty object", Said::Text(200, "{}")),
        ("half an answer", Said::Truncated),
        ("silence", Said::Silence),
    ]
}

/// A manager that gives silence up soon.
async fn manager_for(api: &Api, said: &Said) -> kubernetes::Driver {
    let options = if matches!(said, Said::Silence) { api.impatient() } else { api.options() };
    api.manager_with(options).await.expect("configured")
}

#[tokio::test]
async fn no_unclear_answer_says_that_a_task_has_ended() {
    let api = Api::start().await;
    let patient = api.manager().await;
    let made = patient.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    let driver = api.manager_with(api.impatient()).await.expect("configured");
    for (what, said) in unclear() {
        api.store().faults.clear();
        api.say(Method::GET, "/pods", said, true, usize::MAX);
        let seen = look(&driver, &made.handle).await;
        assert_eq!(seen.state, InstanceState::Unknown, "{what}: {seen:?}");
        assert!(!seen.reason.is_empty(), "{what}");
        let found = driver.find("k", "o").await;
        assert!(matches!(found, Err(RemoteError::CouldNotAsk(_))), "{what}: {found:?}");
        let listed = driver.list("o", "", 0).await;
        // A page without items is what a garbled answer must not become.
        assert!(matches!(listed, Err(RemoteError::CouldNotAsk(_))), "{what}: {listed:?}");
        let stopped = driver.stop(&made.handle, 1, stop()).await;
        assert!(matches!(stopped, Err(RemoteError::CouldNotAsk(_))), "{what}: {stopped:?}");
        let acknowledged = driver.acknowledge(&made.handle, 1).await;
        assert!(matches!(acknowledged, Err(RemoteError::CouldNotAsk(_))), "{what}: {acknowledged:?}");
    }
    api.store().faults.clear();
    assert_eq!(look(&patient, &made.handle).await.state, InstanceState::Running);
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_makes_one_pod() {
    let all = unclear().into_iter().chain([("twice", Said::Doubled)]);
    for (what, said) in all {
        let api = Api::start().await;
        let driver = manager_for(&api, &said).await;
        api.say(Method::POST, "/pods", said, true, 1);
        let ensured = driver.ensure(ensure("k", 1)).await.expect(what);
        assert_eq!(api.store().made, 1, "{what}");
        assert_eq!(ensured.observed.state, InstanceState::Creating, "{what}");
        assert_eq!(api.store().pods[POD]["spec"]["schedulingGates"], json!([]), "{what}");
        let next = api.manager().await;
        assert_eq!(next.ensure(ensure("k", 2)).await.expect(what).handle, ensured.handle, "{what}");
    }
}

#[tokio::test]
async fn a_create_that_was_not_taken_makes_nothing_and_is_tried_again() {
    for (what, said) in unclear() {
        let api = Api::start().await;
        let driver = manager_for(&api, &said).await;
        // Twice: after refused credentials the request is repeated with those that were read again.
        api.say(Method::POST, "/pods", said, false, 2);
        let refused = driver.ensure(ensure("k", 1)).await;
        assert!(matches!(refused, Err(RemoteError::CouldNotAsk(_))), "{what}: {refused:?}");
        assert!(api.store().pods.is_empty(), "{what}");
        api.store().faults.clear();
        assert!(driver.ensure(ensure("k", 1)).await.expect(what).created, "{what}");
    }
    let api = Api::start().await;
    let driver = api.manager().await;
    let full = Said::Status(403, "Forbidden", "pods \"drover-k\" is forbidden: exceeded quota: q");
    api.say(Method::POST, "/pods", full, false, 1);
    assert!(matches!(driver.ensure(ensure("k", 1)).await, Err(RemoteError::CouldNotAsk(_))));
    let wrong = Said::Status(422, "Invalid", "spec.containers[0].image: Required value");
    api.say(Method::POST, "/pods", wrong, false, 1);
    assert!(matches!(driver.ensure(ensure("k", 1)).await, Err(RemoteError::WrongRequest(_))));
}

#[tokio::test]
async fn a_manager_that_dies_in_a_create_leaves_a_pod_that_waits_for_the_next() {
    for path in ["/secrets", "/pods/drover-k"] {
        let api = Api::start().await;
        let (first, second) = (api.manager().await, api.manager().await);
        let method = if path == "/secrets" { Method::POST } else { Method::PATCH };
        api.say(method, path, Said::Status(500, "InternalError", "dead"), false, 1);
        assert!(matches!(first.ensure(ensure("k", 1)).await, Err(RemoteError::CouldNotAsk(_))));
        assert_eq!(api.store().pods[POD]["spec"]["schedulingGates"].as_array().map(Vec::len), Some(1));
        // Whoever looks sees that it is being made; the create of the next manager goes on.
        let (_, seen) = second.find("k", "o").await.expect("found");
        assert_eq!(seen.state, InstanceState::Creating);
        second.ensure(ensure("k", 2)).await.expect("made");
        let store = api.store();
        assert_eq!(store.pods[POD]["spec"]["schedulingGates"], json!([]), "{path}");
        assert_eq!((store.made, store.secrets.len()), (1, 1));
    }
}

/// A manager stands in a write of the secret while the next one takes the create over: what it writes then neither
/// replaces what the running task mounts nor stays behind.
#[tokio::test]
async fn a_replaced_manager_writes_no_secret_over_that_of_the_next() {
    for (write, ended) in [(Method::POST, false), (Method::POST, true), (Method::PUT, false), (Method::PUT, true)] {
        let case = format!("{write}, the task has ended: {ended}");
        let api = Api::start().await;
        let (first, second) = (api.manager().await, api.manager().await);
        if write == Method::PUT {
            // Its earlier try has made the secret.
            api.say(Method::PATCH, "/pods/drover-k", Said::Status(500, "InternalError", "dead"), false, 1);
            assert!(matches!(first.ensure(ensure("k", 1)).await, Err(RemoteError::CouldNotAsk(_))), "{case}");
        }
        api.store().holds = true;
        api.say(write.clone(), "/secrets", Said::Held, true, 1);
        let late = tokio::spawn(async move { first.ensure(ensure("k", 1)).await });
        let sent = format!("{write} /api/v1/namespaces/tasks/secrets");
        let sent = || api.store().calls.iter().filter(|call| call.starts_with(&sent)).count();
        testkit::eventually("the write", || sent() > 0).await;

        let mut request = ensure("k", 2);
        request.task.env.insert("TOKEN".into(), "of the second".into());
        let made = second.ensure(request).await.expect("made");
        let secret = api.store().secrets[POD].clone();
        api.runs(POD);
        if ended {
            api.ends(POD, 0);
            second.acknowledge(&made.handle, 2).await.expect("acknowledged");
        }
        api.store().holds = false;
        let late = late.await.expect("ran");
        assert!(matches!(late, Err(RemoteError::StaleEpoch { given: 1, accepted: 2 })), "{case}: {late:?}");
        let left = api.store().secrets.get(POD).cloned();
        assert_eq!(left, (!ended).then_some(secret), "{case}");
    }
}

/// A webhook takes the gate away: the pod would wait for its secret for ever.
#[tokio::test]
async fn a_pod_that_came_without_its_gate_fails_by_name() {
    for lost in [false, true] {
        let api = Api::start().await;
        let driver = api.manager().await;
        api.store().strips = vec!["/spec/schedulingGates"];
        if lost {
            // The answer, and then what the driver looks for.
            api.say(Method::POST, "/pods", Said::Text(502, "lost"), true, 1);
            api.say(Method::GET, "/pods/drover-k", Said::Text(502, "away"), false, 1);
            assert!(matches!(driver.ensure(ensure("k", 1)).await, Err(RemoteError::CouldNotAsk(_))));
        }
        let refused = driver.ensure(ensure("k", 1)).await.map(drop);
        let named = |why: &str| why.contains("drover.dev/start") && why.contains("webhook");
        assert!(matches!(&refused, Err(RemoteError::WrongRequest(why)) if named(why)), "{lost}: {refused:?}");
        assert!(api.store().secrets.is_empty() && !api.store().deletions.is_empty(), "{lost}: nothing begins");
        assert!(driver.list("o", "", 0).await.expect("listed").instances.is_empty(), "{lost}");
        assert!(matches!(driver.find("k", "o").await, Err(RemoteError::Gone(_))), "{lost}");
    }
    // What was let go on by an earlier create is another case.
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    assert_eq!(driver.ensure(ensure("k", 2)).await.expect("got").handle, made.handle);
}

#[tokio::test]
async fn a_pod_that_vanished_is_unknown_unless_its_end_was_seen() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    let running = api.store().pods[POD].clone();
    // By a person, with the finalizer; or by a restore of the store.
    api.store().pods.clear();
    let seen = look(&driver, &made.handle).await;
    assert_eq!(seen.state, InstanceState::Unknown);
    assert!(seen.reason.contains("remote forget"), "{}", seen.reason);
    assert!(matches!(driver.acknowledge(&made.handle, 1).await, Err(RemoteError::CouldNotAsk(_))));
    // The same name with another UID is another instance.
    let mut other = running.clone();
    other["metadata"]["uid"] = json!("uid-other");
    api.store().put("ADDED", other);
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Unknown);
    api.store().put("MODIFIED", running);
    api.ends(POD, 0);
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Exited);
    api.store().pods.clear();
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Gone);
}

#[tokio::test]
async fn another_cluster_under_the_address_says_nothing_of_absence() {
    let api = Api::start().await;
    let driver = api.manager().await;
    assert_eq!(driver.describe().provider, "kubernetes/cluster-1/tasks");
    api.store().cluster = "cluster-2".into();
    let absent = driver.find("k", "o").await;
    assert!(matches!(&absent, Err(RemoteError::CouldNotAsk(why)) if why.contains("cluster-2")), "{absent:?}");
    let there = api.manager().await;
    let made = there.ensure(ensure("k", 1)).await.expect("made");
    let elsewhere = look(&driver, &made.handle).await;
    assert_eq!(elsewhere.state, InstanceState::Unknown);
}

/// A create's answer is lost, and then the address leads to another cluster: it has nothing of the key, and that says
/// nothing.
#[tokio::test]
async fn another_cluster_under_the_address_gets_no_second_pod_and_no_seal() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let mut request = ensure("k", 1);
    request.first = true;
    let intent = driver.intent(&request).await.expect("decided").expect("to be kept");
    request.intent = intent.clone();
    assert_eq!(driver.intent(&request).await, Ok(None), "it is kept already");
    api.say(Method::POST, "/pods", Said::Text(502, "lost"), true, 1);
    api.say(Method::GET, "/pods/drover-k", Said::Text(502, "away"), false, 1);
    assert!(matches!(driver.ensure(request.clone()).await, Err(RemoteError::CouldNotAsk(_))));
    request.first = false;

    let first = std::mem::take(&mut api.store().pods);
    api.store().cluster = "cluster-2".into();
    let lookup = Lookup { key: "k".into(), owner: "o".into(), intent: intent.clone(), ..Lookup::default() };
    // As it is, and after a reload: then the other cluster is the one that is meant.
    for (case, manager) in [("as it is", driver), ("reloaded", api.manager().await)] {
        let elsewhere = |answer: Result<(), RemoteError>| match answer {
            Err(RemoteError::CouldNotAsk(why)) => assert!(why.contains("cluster-1"), "{case}: {why}"),
            other => panic!("{case}: {other:?}"),
        };
        elsewhere(manager.look_up(lookup.clone()).await.map(drop));
        elsewhere(manager.ensure(request.clone()).await.map(drop));
        elsewhere(manager.seal("k", 1, "o", &intent).await.map(drop));
        assert!(api.store().pods.is_empty(), "{case}");
    }
    // The same namespace once more.
    api.store().cluster = "cluster-1".into();
    api.store().pods = first;
    let back = api.manager().await;
    assert_eq!(back.look_up(lookup).await.expect("found").1.state, InstanceState::Creating);
    assert!(!back.ensure(request).await.expect("got").created);
    assert_eq!(api.store().made, 1);
}

#[tokio::test]
async fn a_node_does_not_begin_without_the_identity_of_the_cluster() {
    let api = Api::start().await;
    let denied = Said::Status(403, "Forbidden", "User \"u\" cannot get resource \"namespaces\"");
    api.say(Method::GET, "/namespaces/kube-system", denied, false, usize::MAX);
    let error = api.manager_with(api.options()).await.map(drop).expect_err("no identity").to_string();
    assert!(error.contains("cluster"), "{error}");
    let mut named = api.options();
    named["cluster"] = json!("cluster-1");
    let driver = api.manager_with(named.clone()).await.expect("configured");
    assert_eq!(driver.describe().provider, "kubernetes/cluster-1/tasks");
    assert!(matches!(driver.find("k", "o").await, Err(RemoteError::Gone(_))));
    api.store().faults.clear();
    named["cluster"] = json!("cluster-9");
    assert!(api.manager_with(named).await.is_err(), "another cluster than the operator means");
}

#[tokio::test]
async fn files_are_renewed_against_what_was_read_and_never_new() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let file =
        |path: &str, data: &[u8]| Bundle::new(vec![BundleFile { path: path.into(), mode: 0o600, data: data.to_vec() }]);
    let mut request = ensure("k", 1);
    request.bundle = file("secrets/token", b"old");
    let made = driver.ensure(request).await.expect("made");
    api.runs(POD);
    api.say(Method::PUT, "/secrets", Said::Status(409, "Conflict", "modified"), false, 1);
    driver.refresh(&made.handle, 1, file("secrets/token", b"new")).await.expect("renewed");
    let data = api.store().secrets[POD]["data"]["file.secrets_2ftoken"].clone();
    assert_eq!(data, json!("bmV3"));
    let stale = driver.refresh(&made.handle, 0, file("secrets/token", b"x")).await;
    assert!(matches!(stale, Err(RemoteError::StaleEpoch { .. })), "{stale:?}");
    let new = driver.refresh(&made.handle, 1, file("secrets/other", b"x")).await;
    assert!(matches!(new, Err(RemoteError::WrongRequest(_))), "{new:?}");
}

#[tokio::test]
async fn the_doctor_tells_what_tasks_will_lack() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let verdicts = |found: Vec<Finding>| -> Vec<(String, Verdict)> {
        found.into_iter().filter(|f| f.verdict != Verdict::Pass).map(|f| (f.what, f.verdict)).collect()
    };
    let warns = ("statistics".to_owned(), Verdict::Warning);
    let warned = std::slice::from_ref(&warns);
    assert_eq!(verdicts(driver.examine().await), warned, "tasks run without a metrics API");
    api.store().measured = Some(std::collections::BTreeMap::new());
    assert_eq!(verdicts(driver.examine().await), []);
    assert!(api.store().pods.is_empty(), "nothing was made");
    for (part, name) in [("/spec/schedulingGates", "drover.dev/start"), ("/metadata/finalizers", "drover.dev/held")] {
        api.store().strips = vec![part];
        let found = driver.examine().await.into_iter().find(|f| f.what == "pod").expect("looked at");
        assert!(found.verdict == Verdict::Fail && found.found.contains(name), "{part}: {found:?}");
    }
    api.store().strips.clear();
    api.store().denied = vec!["get pods.metrics.k8s.io"];
    assert_eq!(verdicts(driver.examine().await), warned);
    api.store().denied = vec!["patch pods", "update secrets"];
    let refused = Said::Status(403, "Forbidden", "exceeded quota: pods=0");
    api.say(Method::POST, "dryRun", refused, false, usize::MAX);
    let denied = Said::Status(403, "Forbidden", "User \"u\" cannot get resource \"namespaces\"");
    api.say(Method::GET, "/namespaces/kube-system", denied, false, usize::MAX);
    let found = verdicts(driver.examine().await);
    let fails = ["identity", "rights: pods", "rights: secrets", "pod"].map(|what| (what.to_owned(), Verdict::Fail));
    assert_eq!(found, fails);
}

#[tokio::test]
async fn hosts_that_give_fingerprints_up_share_one_question() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let asked = || api.store().calls.iter().filter(|call| call.contains("namespaces/kube-system")).count();
    let before = asked();
    api.say(Method::GET, "namespaces/kube-system", Said::Silence, false, usize::MAX);
    for _ in 0..20 {
        // On a machine that stands still one may be answered with what is known, and asks nothing more by that.
        drop(tokio::time::timeout(std::time::Duration::from_millis(5), driver.fingerprint()).await);
    }
    let seen = driver.fingerprint().await;
    assert_eq!(seen.health, driver_sdk::Health::Unhealthy, "{}", seen.description);
    assert_eq!(asked() - before, 1);
}

#[tokio::test]
async fn a_request_that_is_throttled_waits_as_long_as_the_server_says() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let calls = |method: &str| api.store().calls.iter().filter(|call| call.starts_with(method)).count();
    let begun = std::time::Instant::now();
    api.say(Method::POST, "/pods", Said::Throttled(1), false, 1);
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    assert!(made.created && begun.elapsed() >= std::time::Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(api.store().made, 1);
    api.runs(POD);
    let before = calls("GET");
    api.say(Method::GET, "/pods/drover-k", Said::Throttled(1), false, 1);
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Running);
    assert_eq!(calls("GET") - before, 2);
    // What would take longer than a request may is answered at once, and nothing is asked again.
    let (before, begun) = (calls("GET"), std::time::Instant::now());
    api.say(Method::GET, "/pods/drover-k", Said::Throttled(60), false, usize::MAX);
    let seen = look(&driver, &made.handle).await;
    assert!(seen.state == InstanceState::Unknown && seen.reason.contains("in 60 s"), "{seen:?}");
    assert_eq!(calls("GET") - before, 1);
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));
}

#[tokio::test]
async fn a_request_on_a_connection_that_was_idle_has_its_whole_time() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    // The pool keeps connections for 90 s.
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(89)).await;
    tokio::time::resume();
    api.say(Method::GET, "/pods/drover-k", Said::Late, true, 1);
    let seen = look(&driver, &made.handle).await;
    assert_eq!(seen.state, InstanceState::Running, "{seen:?}");
}

#[tokio::test]
async fn a_token_file_that_was_rotated_is_read_again() {
    let api = Api::start().await;
    api.rotate("first");
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Running);
    api.rotate("second");
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Running);
}

#[tokio::test]
async fn a_kubeconfig_is_read_again_when_its_credentials_are_refused() {
    let api = Api::start().await;
    api.accept("first");
    let driver = api.manager().await;
    let asked = || api.store().calls.iter().filter(|call| call.contains("namespaces/kube-system")).count();
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    let before = asked();
    api.accept("second");
    let both = tokio::join!(look(&driver, &made.handle), look(&driver, &made.handle));
    assert_eq!((both.0.state, both.1.state), (InstanceState::Running, InstanceState::Running));
    assert_eq!(asked() - before, 1, "both share one reading");
    assert!(driver.ensure(ensure("other", 1)).await.expect("made").created);
    // Those that stay refused are not read for each request.
    api.store().token = "another";
    let before = asked();
    for _ in 0..5 {
        let refused = look(&driver, &made.handle).await;
        assert!(refused.state == InstanceState::Unknown && refused.reason.contains("credentials"), "{refused:?}");
    }
    assert_eq!(asked(), before);
    // A while later they are.
    api.accept("third");
    crate::fake::pass(std::time::Duration::from_secs(10)).await;
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Running);
}

#[tokio::test]
async fn a_kubeconfig_that_leads_elsewhere_is_not_taken() {
    let api = Api::start().await;
    api.accept("first");
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    api.store().cluster = "cluster-2".into();
    api.accept("second");
    let refused = look(&driver, &made.handle).await;
    assert!(refused.state == InstanceState::Unknown, "{refused:?}");
    assert!(refused.reason.contains("cluster-2") && refused.reason.contains("drivers reload"), "{refused:?}");
}

#[tokio::test]
async fn an_account_that_may_not_ask_for_the_cluster_takes_no_other_address() {
    let (api, other) = (Api::start().await, Api::start().await);
    api.accept("first");
    let denied = Said::Status(403, "Forbidden", "User \"u\" cannot get resource \"namespaces\"");
    for server in [&api, &other] {
        server.say(Method::GET, "/namespaces/kube-system", denied.clone(), false, usize::MAX);
    }
    let mut named = api.options();
    named["cluster"] = json!("cluster-1");
    let driver = api.manager_with(named).await.expect("configured");
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    api.accept("second");
    assert_eq!(look(&driver, &made.handle).await.state, InstanceState::Running);
    crate::fake::pass(std::time::Duration::from_secs(10)).await;
    api.store().token = "third";
    api.leads_to(&other);
    let refused = driver.find("other", "o").await;
    assert!(matches!(&refused, Err(RemoteError::CouldNotAsk(why)) if why.contains("drivers reload")), "{refused:?}");
}

/// A task's request with an account that the operator has not listed.
fn with_account(key: &str, epoch: u64) -> driver_sdk::Ensure {
    let mut request = ensure(key, epoch);
    let options = json!({"image": "i", "service_account": "drover"});
    request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
    request
}

/// A manager stands in a create while the next one is told that the task cannot be: by the API server, or by its own
/// list. What comes late runs nothing.
#[tokio::test]
async fn a_create_that_is_refused_after_one_that_may_be_under_way_ends_its_key() {
    for by_the_server in [true, false] {
        let api = Api::start().await;
        let (first, second) = (api.manager().await, api.manager().await);
        api.store().holds = true;
        api.say(Method::POST, "/pods", Said::Held, true, 1);
        let late =
            tokio::spawn(async move { first.ensure(driver_sdk::Ensure { first: true, ..ensure("k", 1) }).await });
        let sent =
            || api.store().calls.iter().filter(|call| call.starts_with("POST") && call.ends_with("/pods")).count();
        testkit::eventually("the create", || sent() > 0).await;

        let request = if by_the_server { ensure("k", 2) } else { with_account("k", 2) };
        let refuse = |times| {
            let wrong = Said::Status(422, "Invalid", "spec: Invalid value");
            api.say(Method::POST, "/pods", wrong, false, times);
        };
        // While the key cannot be given up, nobody is told that it is over.
        refuse(if by_the_server { 3 } else { 2 });
        let waits = second.ensure(request.clone()).await.map(drop);
        assert!(matches!(&waits, Err(RemoteError::CouldNotAsk(why)) if why.contains("managed-by=drover")), "{waits:?}");
        refuse(usize::from(by_the_server));
        let refused = second.ensure(request).await.map(drop);
        let named = if by_the_server { "Invalid value" } else { "service_accounts" };
        assert!(matches!(&refused, Err(RemoteError::WrongRequest(why)) if why.contains(named)), "{refused:?}");

        api.store().holds = false;
        let late = late.await.expect("ran").map(drop);
        assert!(matches!(late, Err(RemoteError::Sealed(_))), "{late:?}");
        assert_eq!(api.store().made, 1, "only what holds the name");
        assert!(second.list("o", "", 0).await.expect("listed").instances.is_empty());
        assert!(api.store().secrets.is_empty());
    }
}

/// Of the first create nothing else is under way.
#[tokio::test]
async fn a_first_create_that_is_refused_leaves_nothing() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let first = |request| driver_sdk::Ensure { first: true, ..request };
    api.say(Method::POST, "/pods", Said::Status(422, "Invalid", "spec: Invalid value"), false, 1);
    for request in [ensure("k", 1), with_account("l", 1)] {
        let refused = driver.ensure(first(request)).await;
        assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{refused:?}");
    }
    assert!(api.store().pods.is_empty());
}

#[tokio::test]
async fn a_create_that_is_refused_gets_the_pod_of_an_earlier_one() {
    let api = Api::start().await;
    let driver = api.manager().await;
    let made = driver.ensure(ensure("k", 1)).await.expect("made");
    api.runs(POD);
    // A policy that is newer than the pod, and a list.
    api.store().limits = Limits::Policy;
    for request in [ensure("k", 2), with_account("k", 3)] {
        let got = driver.ensure(request).await.expect("got");
        assert!(!got.created && got.handle == made.handle && got.observed.state == InstanceState::Running);
    }
    api.store().limits = Limits::Nothing;
    // One that waits for its secret is given up: here is nothing to go on with.
    api.say(Method::PATCH, "/pods/drover-w", Said::Status(500, "InternalError", "dead"), false, 1);
    assert!(matches!(driver.ensure(ensure("w", 1)).await, Err(RemoteError::CouldNotAsk(_))));
    let refused = driver.ensure(with_account("w", 2)).await;
    assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{refused:?}");
    assert!(matches!(driver.ensure(ensure("w", 3)).await, Err(RemoteError::Sealed(_))));
    let store = api.store();
    assert_eq!(store.pods["drover-w"]["spec"]["schedulingGates"].as_array().map(Vec::len), Some(1), "it never started");
    assert!(store.pods["drover-w"]["metadata"]["deletionTimestamp"].is_string());
    assert!(!store.secrets.contains_key("drover-w"));
}

#[tokio::test]
async fn a_key_is_sealed_in_a_namespace_with_a_quota_or_a_limit_range() {
    for limits in [Limits::Quota, Limits::Range] {
        let api = Api::start().await;
        let driver = api.manager().await;
        api.store().limits = limits;
        assert_eq!(driver.seal("k", 2, "o", b"").await, Ok(None));
        api.store().limits = Limits::Nothing;
        assert!(matches!(driver.ensure(ensure("k", 2)).await, Err(RemoteError::Sealed(_))));
    }
    let api = Api::start().await;
    let driver = api.manager().await;
    api.store().limits = Limits::Policy;
    let refused = driver.seal("k", 2, "o", b"").await;
    let named = |why: &str| why.contains("managed-by=drover") && why.contains("PodSecurity");
    assert!(matches!(&refused, Err(RemoteError::CouldNotAsk(why)) if named(why)), "{refused:?}");
}
