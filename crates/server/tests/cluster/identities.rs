//! Tokens of workload identities: given to the node that has the task and to nobody else, and verified by a library
//! that verifiers use.

use std::collections::BTreeMap;

use api::node_rpc::{IdentitiesSigned, SignIdentities};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use model::{AllocId, ClientStatus, GoDuration, task::Identity};
use serde_json::{Value, json};
use state::NamespaceRecord;

use crate::fake::{FakeNode, Fate, Provider, job, key, live, node, start_patient, stop, submit, until, update};

pub(crate) async fn ask(node: &FakeNode, alloc: AllocId, task: &str, identities: &[&str]) -> IdentitiesSigned {
    let seq = {
        let mut view = node.view();
        let seq = view.signed.len() as u64 + 1;
        let identities = identities.iter().map(|i| (*i).to_owned()).collect();
        view.asks.push(SignIdentities { seq, alloc_id: alloc.to_string(), task: task.to_owned(), identities });
        seq
    };
    node.until("an answer about tokens", |view| view.signed.iter().any(|s| s.seq == seq)).await;
    node.view().signed.last().expect("an answer").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_for_the_node_that_has_the_task() {
    let server = start_patient().await.0;
    let handle = server.handle();
    let provider = Provider::default();
    let nodes = [
        FakeNode::join(handle, node(1), Fate::Runs, &provider).await,
        FakeNode::join(handle, node(2), Fate::Runs, &provider).await,
    ];
    let claims = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let space = NamespaceRecord {
        name: "default".into(),
        required_extra_claims: claims("node", "${node.id}"),
        optional_extra_claims: claims("job", "${job.id}"),
        ..NamespaceRecord::default()
    };
    handle.put_namespace(space).await.expect("claims");
    let mut web = job("web", 1);
    web.task_groups[0].tasks[0].identities = vec![Identity {
        extra_claims: vec!["job".into()],
        name: "aws".into(),
        audience: vec!["sts".into()],
        file: true,
        ttl: GoDuration::from_secs(600),
        ..Identity::default()
    }];
    submit(handle, web).await;
    let state =
        until(handle, "a running allocation", |s| live(s, "web", model::ClientStatus::Running).len() == 1).await;
    let alloc = live(&state, "web", model::ClientStatus::Running)[0].clone();
    let (own, other) = if nodes[0].id() == alloc.node_id { (&nodes[0], &nodes[1]) } else { (&nodes[1], &nodes[0]) };

    let signed = ask(own, alloc.id, "t", &["default", "aws"]).await;
    assert_eq!((signed.error.as_str(), signed.signed.len()), ("", 2));
    let (keys, _) = handle.keyring().keys();
    let verify = |token: &str, audience: &str| {
        let kid = decode_header(token).expect("a header").kid.expect("a key");
        let key = keys.iter().find(|k| k.id.to_string() == kid).expect("a published key");
        let key = DecodingKey::from_rsa_der(&key.public);
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_audience(&[audience]);
        validation.validate_nbf = true;
        validation.required_spec_claims.clear();
        decode::<BTreeMap<String, Value>>(token, &key, &validation).map(|t| t.claims)
    };
    let [default, aws] = signed.signed.as_slice() else { panic!("{signed:?}") };
    let claims = verify(&aws.token, "sts").expect("it verifies");
    assert_eq!(
        (
            &claims["sub"],
            &claims["nomad_job_id"],
            &claims["nomad_allocation_id"],
            &claims["nomad_task"],
            &claims["nomad_namespace"]
        ),
        (
            &json!("global:default:web:g:t:aws"),
            &json!("web"),
            &json!(alloc.id.to_string()),
            &json!("t"),
            &json!("default")
        )
    );
    assert_eq!(claims["extra_claims"], json!({"node": alloc.node_id.to_string(), "job": "web"}));
    let (iat, exp) = (claims["iat"].as_i64().expect("iat"), claims["exp"].as_i64().expect("exp"));
    assert!((600..=601).contains(&(exp - iat)) && aws.expires_ns == exp * 1_000_000_000, "{claims:?}");
    assert!(verify(&aws.token, "another").is_err(), "it is for somebody else");
    let mut forged = aws.token.clone();
    let middle = forged.find('.').expect("three parts") + 4;
    let with = if forged.as_bytes()[middle] == b'A' { "B" } else { "A" };
    forged.replace_range(middle..=middle, with);
    assert!(verify(&forged, "sts").is_err());
    let claims = verify(&default.token, "nomadproject.io").expect("it verifies");
    assert!(!claims.contains_key("exp") && default.expires_ns == 0);
    assert_eq!(claims["extra_claims"], json!({"node": alloc.node_id.to_string()}), "it names no optional one");

    for (node, task, identity, part) in [
        (other, "t", "aws", "does not belong to this node"),
        (own, "u", "aws", "has no task \"u\""),
        (own, "t", "gcp", "has no identity \"gcp\""),
    ] {
        let refused = ask(node, alloc.id, task, &[identity]).await;
        assert!(refused.signed.is_empty() && !refused.retry && refused.error.contains(part), "{part}: {refused:?}");
    }
    drop(nodes);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_gets_no_token_and_what_stops_does() {
    let server = start_patient().await.0;
    let handle = server.handle();
    let node = FakeNode::join(handle, node(1), Fate::Lingers, &Provider::default()).await;
    for id in ["ends", "stops"] {
        let mut job = job(id, 1);
        job.task_groups[0].tasks[0].identities = vec![Identity { name: "aws".into(), ..Identity::default() }];
        submit(handle, job).await;
    }
    let state = until(handle, "two allocations", |s| s.allocs().count() == 2).await;
    let of = |id: &str| state.allocs_by_job(&key(id)).next().expect("placed").id;
    let (ends, stops) = (of("ends"), of("stops"));
    assert_eq!(ask(&node, ends, "t", &["aws"]).await.error, "");
    stop(handle, "stops").await;
    until(handle, "it is to stop", |s| s.alloc(stops).is_some_and(|alloc| alloc.server_terminal())).await;
    assert_eq!(ask(&node, stops, "t", &["aws"]).await.error, "", "it may need one to end");
    node.view().says = vec![update(state.alloc(ends).expect("known"), ClientStatus::Complete, true)];
    until(handle, "it has ended", |s| s.alloc(ends).is_some_and(|alloc| alloc.client_terminal())).await;
    let refused = ask(&node, ends, "t", &["aws"]).await;
    assert!(refused.signed.is_empty() && refused.error.contains("has ended"), "{refused:?}");
    server.shutdown().await;
}
