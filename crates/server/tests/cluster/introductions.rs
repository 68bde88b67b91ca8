//! Introductions and identities of nodes over the real protocol: who is taken, what is renewed, and what a stolen
//! credential is good for.

use std::time::{Duration, SystemTime};

use api::node_rpc::{
    FromNode, FromNodeMessage, Heartbeat, IDENTITY_HEADER, INTRODUCTION_HEADER, ToNode, ToNodeMessage,
    node_service_client::NodeServiceClient,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use model::Node;
use serde_json::Value;
use server::{
    Enforcement, IntroductionConfig, ServerConfig, ServerHandle,
    join::{Join, JoinSecret},
};
use tokio::sync::mpsc;

use crate::fake::{Started, eventually, hello, node, start_with};

/// A server that wants a join secret, and what is set here of new nodes.
async fn server(introduction: IntroductionConfig) -> Started {
    let join = Join::Secret(JoinSecret::new(SECRET).expect("a secret"));
    Started(start_with(ServerConfig { join, introduction, ..ServerConfig::default() }).await)
}

async fn server_that(enforcement: Enforcement) -> Started {
    server(IntroductionConfig { enforcement, ..IntroductionConfig::default() }).await
}

const SECRET: &str = "of-the-cluster";

/// What a caller shows.
#[derive(Clone, Copy, Default)]
struct Shows<'a> {
    join: bool,
    introduction: &'a str,
    identity: &'a str,
}

/// A session that stands.
struct Open {
    identity: String,
    to: mpsc::Sender<FromNode>,
    from: tonic::Streaming<ToNode>,
    seq: u64,
}

impl Open {
    /// The new identity that the answer to a heartbeat has; empty = none.
    async fn beat(&mut self, renew_identity: bool) -> String {
        self.seq += 1;
        let beat = Heartbeat { seq: self.seq, renew_identity };
        self.to.send(FromNodeMessage::Heartbeat(beat).into()).await.expect("a session");
        loop {
            match self.from.message().await.expect("a session").expect("a message").message {
                Some(ToNodeMessage::HeartbeatAck(ack)) if ack.seq == self.seq => return ack.identity,
                Some(ToNodeMessage::Goodbye(goodbye)) => panic!("{goodbye:?}"),
                _ => {}
            }
        }
    }
}

/// A node calls; the error is why it is refused.
async fn call(server: &ServerHandle, node: &Node, shows: Shows<'_>) -> Result<Open, String> {
    let mut client = NodeServiceClient::connect(format!("http://{}", server.rpc_addr())).await.expect("a server");
    let (to, rx) = mpsc::channel::<FromNode>(4);
    to.send(FromNodeMessage::Hello(hello(node)).into()).await.expect("room");
    let mut request = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(rx));
    let join = if shows.join { format!("Bearer {SECRET}") } else { String::new() };
    for (name, shown) in
        [("authorization", &*join), (INTRODUCTION_HEADER, shows.introduction), (IDENTITY_HEADER, shows.identity)]
    {
        if !shown.is_empty() {
            request.metadata_mut().insert(name, shown.parse().expect("a credential"));
        }
    }
    let mut from = client.session(request).await.map_err(|status| status.message().to_owned())?.into_inner();
    match from.message().await.expect("an answer").expect("an answer").message {
        Some(ToNodeMessage::Welcome(welcome)) => Ok(Open { identity: welcome.identity, to, from, seq: 0 }),
        Some(ToNodeMessage::Goodbye(goodbye)) => {
            assert!(!goodbye.retry, "{goodbye:?}");
            Err(goodbye.reason)
        }
        other => panic!("{other:?}"),
    }
}

/// Why a node is refused.
async fn refused(server: &ServerHandle, node: &Node, shows: Shows<'_>) -> String {
    match call(server, node, shows).await {
        Ok(_) => panic!("node {} was taken", node.id),
        Err(why) => why,
    }
}

fn claims(token: &str) -> Value {
    let claims = token.split('.').nth(1).expect("a JWT");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).expect("base64")).expect("JSON")
}

/// Waits until a token has expired.
async fn expired(token: &str) {
    let end = claims(token)["exp"].as_u64().expect("exp");
    eventually("the token to expire", || SystemTime::now() >= SystemTime::UNIX_EPOCH + Duration::from_secs(end)).await;
}

/// The identity of a node after a heartbeat that asks for no other: the same, as long as a third of its time is left.
async fn kept(open: &mut Open, identity: String) -> String {
    let renewed = open.beat(false).await;
    if renewed.is_empty() {
        return identity;
    }
    // After the answer: a busy machine may be late with all of it.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs();
    let claims = claims(&identity);
    let [end, begin] = ["exp", "iat"].map(|name| claims[name].as_u64().expect("a time"));
    assert!(end.saturating_sub(now) * 3 < end - begin, "{identity} is fresh, and was renewed at {now}");
    renewed
}

/// Waits until no session stands.
async fn alone(server: &ServerHandle) {
    eventually("the sessions to end", || server.stats().sessions == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_servers_take_new_nodes_with_a_token_that_fits() {
    let s = &server_that(Enforcement::Strict).await;
    let stranger = node(1);
    let join = Shows { join: true, ..Shows::default() };
    let why = refused(s, &stranger, Shows::default()).await;
    assert!(why.contains("join secret") && why.contains("introduction token"), "{why}");
    let why = refused(s, &stranger, join).await;
    assert!(why.contains("\"strict\"") && why.contains("drover node intro create"), "{why}");

    let token = |name: &str, pool: &str| s.introduce(name, pool, None).expect("a token");
    let short = s.introduce("", "", Some(Duration::from_nanos(1))).expect("a token");
    expired(&short).await;
    let good = token(&stranger.name, "");
    let middle = good.find('.').expect("three parts") + 4;
    let mut forged = good.clone();
    forged.replace_range(middle..=middle, if good.as_bytes()[middle] == b'A' { "B" } else { "A" });
    let elsewhere = server_that(Enforcement::Strict).await;
    let foreign = elsewhere.introduce("", "", None).expect("a token");
    for (introduction, part) in [
        (token("another", "default"), "the name \"another\""),
        (token("", "gpu"), "the node pool \"gpu\""),
        (short, "it has expired"),
        (forged, "no server of this cluster has signed it"),
        (foreign, "no server of this cluster has signed it"),
    ] {
        for shows in [join, Shows::default()] {
            let why = refused(s, &stranger, Shows { introduction: &introduction, ..shows }).await;
            assert!(why.contains(part), "{part}: {why}");
        }
    }
    assert_eq!(s.snapshot().node_count(), 0, "none of them is registered");
    assert_eq!(s.stats().introduction_violations, 6 + 2, "with the secret all, without it those with a valid token");

    // The token alone admits any number of nodes that fit, and each is known by its own identity afterwards.
    let any = token("", "default");
    let mut identities = Vec::new();
    for number in [1, 2] {
        let open = call(s, &node(number), Shows { introduction: &any, ..Shows::default() }).await.expect("taken");
        identities.push(open.identity);
    }
    assert_eq!(claims(&identities[0])["nomad_node_id"], Value::from(node(1).id.to_string()));
    let again = Shows { identity: &identities[0], ..Shows::default() };
    let open = call(s, &node(1), again).await.expect("it is known");
    assert_eq!(open.identity, "", "its identity is fresh");
    assert!(refused(s, &node(1), Shows::default()).await.contains("join secret"), "not by its secret alone");
    call(s, &node(1), join).await.expect("a node of an older release shows the join secret");
    let wrong = s.introduce("", "all", None).expect_err("nobody is in that pool").to_string();
    assert!(wrong.contains("\"all\""), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_servers_ask_less() {
    let s = &server_that(Enforcement::Warn).await;
    let gpu = s.introduce("", "gpu", None).expect("a token");
    let join = Shows { join: true, ..Shows::default() };
    let with_wrong = Shows { introduction: &gpu, ..join };
    assert!(refused(s, &node(1), with_wrong).await.contains("gpu"));
    assert_eq!(s.stats().introduction_violations, 1);
    call(s, &node(1), join).await.expect("taken");
    assert_eq!(s.stats().introduction_violations, 2, "with a warning");
    call(s, &node(1), with_wrong).await.expect("it is known");
    assert_eq!(s.stats().introduction_violations, 2);

    let s = &server_that(Enforcement::None).await;
    let gpu = s.introduce("", "gpu", None).expect("a token");
    call(s, &node(1), Shows { introduction: &gpu, ..join }).await.expect("taken");
    let why = refused(s, &node(2), Shows { introduction: &gpu, ..Shows::default() }).await;
    assert!(why.contains("gpu"), "without the secret it is the token that admits: {why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stolen_from_a_node_is_useless_for_another() {
    let s = &server_that(Enforcement::Strict).await;
    let (victim, thief) = (node(1), node(2));
    let introduction = &*s.introduce(&victim.name, "", None).expect("a token");
    let open = call(s, &victim, Shows { introduction, ..Shows::default() }).await.expect("taken");
    let identity = &*open.identity.clone();
    drop(open);
    let stolen = [
        Shows { identity, ..Shows::default() },
        Shows { identity, join: true, ..Shows::default() },
        Shows { identity, join: true, introduction },
    ];
    let with_secret = Node { secret_id: victim.secret_id.clone(), ..thief.clone() };
    for shows in stolen {
        for thief in [&thief, &with_secret] {
            let why = refused(s, thief, shows).await;
            assert!(why.contains(&format!("the identity of node {}", victim.id)), "{why}");
        }
    }
    let why = refused(s, &with_secret, Shows { join: true, ..Shows::default() }).await;
    assert!(why.contains("\"strict\""), "its secret introduces nobody: {why}");
    // Nor does it make the thief the victim, without the victim's secret.
    let guessed = Node { secret_id: thief.secret_id.clone(), ..victim.clone() };
    for shows in stolen {
        let why = refused(s, &guessed, shows).await;
        assert!(why.contains("another secret"), "{why}");
    }
    let state = s.snapshot();
    assert_eq!(state.node_count(), 1);
    assert_eq!(state.node(victim.id).expect("the victim").secret_id, victim.secret_id);
    call(s, &victim, stolen[0]).await.expect("the victim itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identities_are_renewed_by_heartbeats_and_outlive_the_record_of_their_node() {
    let config = IntroductionConfig { enforcement: Enforcement::Strict, ..IntroductionConfig::default() };
    let s = &server(IntroductionConfig { identity_ttl: Duration::from_secs(3), ..config }).await;
    let introduction = &*s.introduce("", "", None).expect("a token");
    let mut open = call(s, &node(1), Shows { introduction, ..Shows::default() }).await.expect("taken");
    let first = open.identity.clone();
    let first = kept(&mut open, first).await;
    let asked = open.beat(true).await;
    assert!(!asked.is_empty() && claims(&asked)["jti"] != claims(&first)["jti"], "somebody wants another");
    let asked = kept(&mut open, asked).await;
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(claims(&asked)["exp"].as_u64().expect("exp"));
    let by_itself = loop {
        // Before the question: the answer may be late.
        let now = SystemTime::now();
        let renewed = open.beat(false).await;
        if !renewed.is_empty() {
            break renewed;
        }
        assert!(now < end, "it has expired without a new one");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Another key signs: who verifies may soon know that one alone.
    let key = s.rotate_key().await.expect("another key");
    let newest = open.beat(false).await;
    assert!(!newest.is_empty());
    let (keys, _) = s.keyring().keys();
    for old in keys.iter().filter(|other| other.id != key.id) {
        s.delete_key(old.id).await.expect("deleted");
    }
    drop(open);
    alone(s).await;
    let why = refused(s, &node(1), Shows { identity: &by_itself, ..Shows::default() }).await;
    assert!(why.contains("join secret"), "its key is gone: {why}");

    // An expired one still says who a known node is, and gets it a new one.
    expired(&newest).await;
    let with_expired = Shows { identity: &newest, ..Shows::default() };
    let open = call(s, &node(1), with_expired).await.expect("it is known");
    let fresh = open.identity.clone();
    assert!(!fresh.is_empty());
    drop(open);
    alone(s).await;
    // A valid one brings back a node whose record was collected; an expired one does not.
    s.purge_node(node(1).id).await.expect("purged");
    let why = refused(s, &node(1), with_expired).await;
    assert!(why.contains("neither the join secret"), "{why}");
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(claims(&fresh)["exp"].as_u64().expect("exp"));
    let back = call(s, &node(1), Shows { identity: &fresh, ..Shows::default() }).await;
    // On a very slow machine it may have expired meanwhile.
    assert!(back.is_ok() || SystemTime::now() >= end, "{:?}", back.err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_pool_says_how_long_identities_of_its_nodes_are_valid() {
    let s = &server_that(Enforcement::Strict).await;
    let node_identity_ttl = model::go_duration::GoDuration(3_600_000_000_000);
    let pool = state::NodePool { name: "gpu".into(), node_identity_ttl, ..state::NodePool::default() };
    s.put_node_pool(pool).await.expect("a pool");
    for (n, pool, seconds) in [(1, "default", 24 * 3600), (2, "gpu", 3600)] {
        let introduction = &*s.introduce("", pool, None).expect("a token");
        let node = Node { pool: pool.to_owned(), ..node(n) };
        let open = call(s, &node, Shows { introduction, ..Shows::default() }).await.expect("taken");
        let claims = claims(&open.identity);
        let life = claims["exp"].as_u64().expect("exp") - claims["iat"].as_u64().expect("iat");
        // The end is the last whole second in which it is valid, as in every token here.
        assert_eq!(life, seconds + 1, "{pool}");
    }
}
