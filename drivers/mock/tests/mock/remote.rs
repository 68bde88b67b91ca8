//! The remote driver: several nodes, one provider, and what goes wrong between them.

use std::path::Path;
use std::time::{Duration, Instant};

use driver_host::encode_config;
use driver_sdk::proto::base::SetConfigRequest;
use driver_sdk::proto::remote::*;
use driver_sdk::proto::{build, errors};
use driver_sdk::testing::Plugin;
use mock::fake::{FakeProvider, Outcome};
use serde_json::{Value, json};
use testkit::{eventually, poll, soon};
use tonic::{Code, Status};

use crate::{launch, task};

async fn node(dir: &Path, config: Value) -> Plugin {
    let mut plugin = launch(env!("CARGO_BIN_EXE_drover-driver-mock-remote"), dir).await;
    let schema = plugin.describe().await.expect("described").config.expect("a schema");
    let mut config = config;
    config["dir"] = dir.join("provider").display().to_string().into();
    let msgpack_config = encode_config(schema.wire(), &config, &Default::default()).expect("fits");
    plugin.base.set_config(SetConfigRequest { msgpack_config, ..SetConfigRequest::default() }).await.expect("accepted");
    plugin
}

async fn ensure(plugin: &mut Plugin, key: &str, epoch: u64, config: Value) -> Result<EnsureResponse, Status> {
    let task = task(plugin, "a/task/1", config).await;
    let request =
        EnsureRequest { key: key.into(), epoch, owner: "us".into(), task: Some(task), ..EnsureRequest::default() };
    soon(plugin.remote.ensure(request)).await.map(|answer| answer.into_inner())
}

async fn observe(plugin: &mut Plugin, handle: &Handle) -> Result<Observation, Status> {
    let answer = soon(plugin.remote.observe(ObserveRequest { handles: vec![handle.clone()] })).await?;
    Ok(answer.into_inner().observations.into_iter().next().expect("one for each"))
}

fn stop(handle: &Handle, epoch: u64, timeout: Duration) -> StopRequest {
    StopRequest {
        handle: Some(handle.clone()),
        epoch,
        timeout: Some(build::duration(timeout)),
        ..StopRequest::default()
    }
}

fn bundle(path: &str, text: &str) -> Bundle {
    let digest = build::bundle_digest([(path, 0o600, text.as_bytes())]);
    Bundle { digest, files: vec![BundleFile { path: path.into(), mode: 0o600, data: text.into() }] }
}

fn faults(dir: &Path, faults: &Value) {
    // As whole as any reader may expect.
    let new = dir.join("provider/faults.new");
    std::fs::write(&new, faults.to_string()).expect("writes");
    std::fs::rename(&new, dir.join("provider/faults.json")).expect("replaces");
}

#[tokio::test]
async fn two_nodes_see_one_provider() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (mut one, mut other) = (node(dir.path(), json!({})).await, node(dir.path(), json!({})).await);
    let mut ids = Vec::new();
    for plugin in [&mut one, &mut other] {
        let described = plugin.remote.describe(DescribeRequest {}).await.expect("described").into_inner();
        assert!(described.keyed_create && described.seal && described.logs && described.list);
        ids.push(described.provider);
    }
    assert!(ids[0].starts_with("mock-") && ids[0] == ids[1], "{ids:?}");

    let config = json!({ "run_for": "1h", "kill_after": "10ms", "exit_code": 6, "stdout_string": "abc" });
    let made = ensure(&mut one, "k1", 1, config.clone()).await.expect("created");
    let handle = made.handle.expect("a handle");
    assert!(made.created);
    let again = ensure(&mut other, "k1", 2, config.clone()).await.expect("found");
    assert_eq!((again.created, again.handle.as_ref()), (false, Some(&handle)));
    let stale = soon(one.remote.stop(stop(&handle, 1, Duration::ZERO))).await.expect_err("stale");
    assert_eq!((stale.code(), errors::accepted_epoch(&stale)), (Code::Aborted, Some(2)));
    let refresh =
        |epoch| RefreshRequest { handle: Some(handle.clone()), epoch, bundle: Some(bundle("secrets/token", "new")) };
    let stale = soon(one.remote.refresh(refresh(1))).await.expect_err("stale");
    assert_eq!((stale.code(), errors::accepted_epoch(&stale)), (Code::Aborted, Some(2)));
    let provider = FakeProvider::open(&dir.path().join("provider")).expect("opens");
    assert_eq!(provider.file("k1", "secrets/token").expect("reads"), None, "a stale call changes nothing");
    for _ in 0..2 {
        other.remote.refresh(refresh(2)).await.expect("idempotent");
    }
    assert_eq!(provider.file("k1", "secrets/token").expect("reads").as_deref(), Some(b"new".as_slice()));
    let found = one
        .remote
        .find(FindRequest { key: "k1".into(), owner: "us".into(), ..FindRequest::default() })
        .await
        .expect("found")
        .into_inner();
    assert_eq!(found.observed.expect("observed").state(), InstanceState::Running);
    let list = |owner: &str, token: &str| ListRequest { owner: owner.into(), page_token: token.into(), page_size: 1 };
    ensure(&mut one, "k2", 1, config).await.expect("created");
    let first = one.remote.list(list("us", "")).await.expect("lists").into_inner();
    let second = one.remote.list(list("us", &first.next_page_token)).await.expect("lists").into_inner();
    assert_eq!([&first.instances[0].key, &second.instances[0].key], ["k1", "k2"]);
    assert!(second.next_page_token.is_empty());
    assert!(one.remote.list(list("them", "")).await.expect("lists").into_inner().instances.is_empty());
    let of_all =
        one.remote.list(ListRequest { page_size: 10, ..list("", "") }).await.expect("lists").into_inner().instances;
    assert!(of_all.len() == 2 && of_all.iter().all(|i| i.owner == "us"), "{of_all:?}");

    let request = LogsRequest { handle: Some(handle.clone()), offset: 1, ..LogsRequest::default() };
    let mut chunks = one.remote.logs(request).await.expect("opens").into_inner();
    let chunk = soon(chunks.message()).await.expect("open").expect("one");
    assert_eq!((chunk.offset, chunk.data.as_slice()), (1, b"bc".as_slice()));

    let ended = soon(other.remote.stop(stop(&handle, 2, Duration::from_secs(9))))
        .await
        .expect("stops")
        .into_inner()
        .observed
        .expect("observed");
    assert_eq!((ended.state(), ended.exit_code), (InstanceState::Exited, 6), "it had the time that it wanted");
    let acknowledge = AcknowledgeRequest { handle: Some(handle.clone()), epoch: 2 };
    for _ in 0..2 {
        other.remote.acknowledge(acknowledge.clone()).await.expect("idempotent");
    }
    assert_eq!(observe(&mut one, &handle).await.expect("answered").state(), InstanceState::Gone);
    let sealed = ensure(&mut one, "k1", 3, json!({})).await.expect_err("acknowledged keys are sealed");
    assert_eq!(sealed.code(), Code::FailedPrecondition);
    let seal = |key: &str| SealRequest { key: key.into(), epoch: 5, ..SealRequest::default() };
    assert!(one.remote.seal(seal("k3")).await.expect("seals").into_inner().handle.is_none());
    assert_eq!(ensure(&mut other, "k3", 9, json!({})).await.expect_err("sealed").code(), Code::FailedPrecondition);
    assert!(one.remote.seal(seal("k2")).await.expect("seals").into_inner().handle.is_some());
    assert!(!ensure(&mut other, "k2", 6, json!({})).await.expect("what exists is got").created);
}

#[tokio::test]
async fn what_goes_wrong_is_asked_for_and_changes_at_any_time() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut plugin = node(dir.path(), json!({ "faults": { "lose": ["ensure"] } })).await;
    let lost = ensure(&mut plugin, "k", 1, json!({ "run_for": "1h" })).await.expect_err("the answer is lost");
    assert_eq!(lost.code(), Code::Unavailable);
    let found = plugin
        .remote
        .find(FindRequest { key: "k".into(), owner: "us".into(), ..FindRequest::default() })
        .await
        .expect("it was made")
        .into_inner();
    let handle = found.handle.expect("a handle");

    faults(dir.path(), &json!({ "fail": ["observe"], "latency": "200ms" }));
    let began = Instant::now();
    assert_eq!(observe(&mut plugin, &handle).await.expect_err("cut off").code(), Code::Unavailable);
    assert!(began.elapsed() >= Duration::from_millis(200));
    faults(dir.path(), &json!({ "fail": ["dance"] }));
    assert!(observe(&mut plugin, &handle).await.expect_err("no such call").message().contains("\"dance\" is no call"));
    faults(dir.path(), &json!({}));
    assert_eq!(observe(&mut plugin, &handle).await.expect("back").state(), InstanceState::Running);

    let wrong = ensure(&mut plugin, "x", 1, json!({ "start_error": "no such image" })).await.expect_err("refused");
    assert_eq!(wrong.code(), Code::Unavailable, "its answer is lost as well");
    let killed = soon(plugin.remote.stop(stop(&handle, 1, Duration::ZERO)))
        .await
        .expect("stops")
        .into_inner()
        .observed
        .expect("observed");
    assert_eq!(killed.state(), InstanceState::Exited);
}

#[tokio::test]
async fn every_call_is_on_record_with_caller_epoch_and_outcome() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut one = node(dir.path(), json!({ "caller": "one", "record": true })).await;
    let mut other = node(dir.path(), json!({ "caller": "other", "record": true })).await;
    let provider = FakeProvider::open(&dir.path().join("provider")).expect("opens");
    let handle = ensure(&mut one, "k", 1, json!({ "run_for": "1h" })).await.expect("created").handle.expect("a handle");
    ensure(&mut other, "k", 2, json!({ "run_for": "1h" })).await.expect("got");
    soon(one.remote.stop(stop(&handle, 1, Duration::ZERO))).await.expect_err("stale");
    soon(other.remote.stop(stop(&handle, 2, Duration::ZERO))).await.expect("stops");
    let calls = provider.calls().expect("reads");
    let seen: Vec<_> = calls
        .iter()
        .filter(|c| c.mutates())
        .map(|c| (c.caller.as_str(), c.call.as_str(), c.epoch, c.outcome))
        .collect();
    assert_eq!(
        seen[..4],
        [
            ("one", "ensure", 1, Outcome::Done),
            ("other", "ensure", 2, Outcome::Done),
            ("one", "stop", 1, Outcome::Stale),
            ("other", "stop", 2, Outcome::Done)
        ]
    );
    assert!(calls.iter().all(|c| c.instances == ["k"]));
    other.remote.acknowledge(AcknowledgeRequest { handle: Some(handle), epoch: 2 }).await.expect("forgets");
    assert!(provider.live().expect("reads").is_empty());
    let past = provider.instances().expect("reads");
    assert_eq!((past.len(), past[0].known, past[0].key.as_str()), (1, false, "k"), "what lived stays on record");
}

#[tokio::test]
async fn a_provider_without_keys_makes_two_of_one_key_and_that_is_seen() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let lacks = ["keyed_create", "find", "conditional_writes", "seal", "retained_exit_results"];
    let mut plugin = node(dir.path(), json!({ "without": lacks })).await;
    let provider = FakeProvider::open(&dir.path().join("provider")).expect("opens");
    let described = plugin.remote.describe(DescribeRequest {}).await.expect("described").into_inner();
    assert!(
        described.list
            && !described.keyed_create
            && !described.find
            && !described.conditional_writes
            && !described.seal
    );
    let handle =
        ensure(&mut plugin, "k", 5, json!({ "run_for": "1h" })).await.expect("created").handle.expect("a handle");
    assert!(ensure(&mut plugin, "k", 5, json!({ "run_for": "1h" })).await.expect("created").created, "another one");
    assert_eq!(provider.live().expect("reads").iter().map(|i| i.id.as_str()).collect::<Vec<_>>(), ["k", "k~1"]);
    assert_eq!(provider.most_live().expect("reads").values().copied().collect::<Vec<_>>(), [2]);
    let find = plugin
        .remote
        .find(FindRequest { key: "k".into(), owner: "us".into(), ..FindRequest::default() })
        .await
        .expect_err("it cannot");
    assert_eq!(find.code(), Code::InvalidArgument);
    // It refuses no epoch, and forgets an end at once.
    let stopped = soon(plugin.remote.stop(stop(&handle, 1, Duration::ZERO)))
        .await
        .expect("stops")
        .into_inner()
        .observed
        .expect("observed");
    assert_eq!(stopped.state(), InstanceState::Gone);
}

#[tokio::test]
async fn calls_are_cut_off_late_or_turned_away_by_caller() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut one = node(dir.path(), json!({ "caller": "one", "record": true })).await;
    let mut other = node(dir.path(), json!({ "caller": "other", "record": true })).await;
    let provider = FakeProvider::open(&dir.path().join("provider")).expect("opens");
    provider.fault(Some("one"), &json!({ "cut": true })).expect("writes");
    assert_eq!(
        ensure(&mut one, "k", 1, json!({ "run_for": "1h" })).await.expect_err("cut off").code(),
        Code::Unavailable
    );
    assert!(ensure(&mut other, "k", 1, json!({ "run_for": "1h" })).await.expect("not cut off").created);
    provider.fault(Some("one"), &json!({ "late": ["ensure"], "late_by": "200ms" })).expect("writes");
    // A busy machine may look too late: then with another key.
    let lives = |key: &str| provider.live().expect("reads").iter().any(|instance| instance.key == key);
    let mut n = 0;
    let late = poll("a look before the effect", async || {
        n += 1;
        let key = format!("late-{n}");
        let given_up = ensure(&mut one, &key, 1, json!({ "run_for": "1h" })).await.expect_err("given up");
        assert_eq!(given_up.code(), Code::Unavailable);
        Some(key).filter(|key| !lives(key))
    })
    .await;
    eventually("its effect, later", || lives(&late)).await;

    let mut slow =
        node(dir.path(), json!({ "caller": "slow", "record": true, "faults": { "requests_per_second": 2 } })).await;
    let handle = ensure(&mut other, "k", 1, json!({ "run_for": "1h" })).await.expect("got").handle.expect("a handle");
    // Three in a second are too many.
    let status = poll("a call that is turned away", async || observe(&mut slow, &handle).await.err()).await;
    assert!(status.message().contains("throttled"), "{status}");
    assert!(provider.calls().expect("reads").iter().any(|c| c.caller == "slow" && c.outcome == Outcome::Throttled));
}
