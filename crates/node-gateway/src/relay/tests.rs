//! Nodes, a relay and a leader over loopback. The leader is a service that does what the call asks it to, or no
//! server at all.

use std::{fs, net::IpAddr, path::Path, sync::atomic::Ordering::SeqCst, time::SystemTime};

use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use tls::issue;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tower::Service;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
/// A sender that waits for so long waits for its reader. Too short a time fails nothing: it only sends less.
const STUCK: Duration = Duration::from_millis(300);
/// Bytes that a session takes at least before somebody reads them.
const LEAST: usize = 60_000;
/// What a call asks the leader of these tests to do.
const ASKS: &str = "test-asks";
const PATH: &str = "/drover.node.v1.NodeService/Session";
const NO_LIMITS: Limits = Limits { per_client: 0, handshake: None };

async fn soon<T>(what: &str, of: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, of).await {
        Ok(value) => value,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, met).await;
}

/// A leader: echoes what it reads, or reads nothing until it is told to.
#[derive(Clone, Debug, Default)]
struct Echo {
    calls: Arc<AtomicUsize>,
    flooded: Arc<AtomicUsize>,
    reads: CancellationToken,
    connections: Arc<Mutex<std::collections::BTreeSet<SocketAddr>>>,
}

impl NamedService for Echo {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.calls.fetch_add(1, SeqCst);
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        self.connections.lock().expect("connections").extend(peer.address);
        let (head, body) = request.into_parts();
        let asks = head.headers.get(ASKS).map(|asks| asks.to_str().expect("text").to_owned()).unwrap_or_default();
        let (reads, flooded) = (self.reads.clone(), self.flooded.clone());
        let mut answer = http::Response::new(match asks.as_str() {
            "no body" => return Box::pin(async { Ok(Status::unauthenticated("not you").into_http()) }),
            "flood" => {
                let endless = futures::stream::repeat_with(move || {
                    flooded.fetch_add(1024, SeqCst);
                    Ok::<_, Status>(Frame::data(Bytes::from_static(&[7; 1024])))
                });
                Body::new(StreamBody::new(endless))
            }
            _ => {
                let data = body.into_data_stream().map(|data| data.map(Frame::data));
                let later = futures::stream::once(async move {
                    if asks == "wait" {
                        reads.cancelled().await;
                    }
                    data
                });
                let end = Frame::trailers(
                    [("test-end".parse().expect("a name"), HeaderValue::from_static("yes"))].into_iter().collect(),
                );
                Body::new(StreamBody::new(later.flatten().chain(futures::stream::iter([Ok::<_, Status>(end)]))))
            }
        });
        let believed = node_address(&head.headers, &peer).map(|at| at.to_string()).unwrap_or_default();
        answer.headers_mut().insert("test-node", HeaderValue::try_from(believed).expect("a value"));
        answer.headers_mut().insert("test-path", HeaderValue::try_from(head.uri.path()).expect("a value"));
        for (name, value) in &head.headers {
            if name.as_str().starts_with("drover-node") {
                answer.headers_mut().append(name, value.clone());
            }
        }
        Box::pin(async { Ok(answer) })
    }
}

/// A leader that runs; it ends with this.
struct Leading {
    echo: Echo,
    at: String,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Leading {
    async fn start(tls: Option<tls::Agent>) -> Self {
        let (listener, at) = listener().await;
        let (echo, stop) = (Echo::default(), CancellationToken::new());
        let incoming = incoming::admitted(listener, NO_LIMITS, tls, stop.clone());
        let serving = tokio::spawn(serve_calls(echo.clone(), incoming, stop.clone()));
        Self { echo, at, stop, serving }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.stop.cancel();
        self.serving.abort();
    }
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    (listener, at)
}

/// A relay that runs; it ends with this.
struct Relaying {
    relay: Arc<Relay>,
    at: String,
    stop: CancellationToken,
}

impl Relaying {
    async fn start(leader: Option<&str>, tls: Option<tls::Agent>) -> Self {
        let (listener, at) = listener().await;
        let (relay, stop) = (Arc::new(Relay::new(NO_LIMITS, tls)), CancellationToken::new());
        relay.lead_to(leader);
        tokio::spawn(relay.clone().serve(listener, stop.clone()));
        Self { relay, at, stop }
    }
}

impl Drop for Relaying {
    fn drop(&mut self) {
        self.stop.cancel();
        self.relay.end();
    }
}

/// The connection of a node.
async fn connect(at: &str, dialer: Option<tls::Dialer>) -> SendRequest<Body> {
    async fn begin<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: T) -> SendRequest<Body> {
        let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
        let (send, connection) = handshake.await.expect("a connection");
        tokio::spawn(connection);
        send
    }
    let stream = TcpStream::connect(at).await.expect("a connection");
    match dialer {
        None => begin(stream).await,
        Some(dialer) => begin(dialer.connect(stream, "127.0.0.1").await.expect("a handshake")).await,
    }
}

/// One call of a node.
struct Call {
    to: mpsc::Sender<Result<Frame<Bytes>, Status>>,
    answer: http::Response<Incoming>,
}

async fn call(node: &SendRequest<Body>, headers: &[(&'static str, &str)]) -> Call {
    let (to, body) = mpsc::channel(1);
    let mut request = http::Request::post(format!("http://server{PATH}")).header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::new(StreamBody::new(ReceiverStream::new(body)))).expect("a request");
    let answer = soon("an answer", node.clone().send_request(request)).await.expect("an answer");
    Call { to, answer }
}

impl Call {
    async fn say(&self, bytes: impl Into<Bytes>) {
        soon("the call to take bytes", self.to.send(Ok(Frame::data(bytes.into())))).await.expect("an open call");
    }

    /// Sends until nobody takes more; how many bytes that were.
    async fn stuff(&self, most: usize) -> usize {
        let piece = Bytes::from_static(&[1; 8192]);
        let mut sent = 0;
        while sent < most {
            // What the first window has room for is taken, however late.
            let patience = if sent < LEAST { PATIENCE } else { STUCK };
            let taken = tokio::time::timeout(patience, self.to.send(Ok(Frame::data(piece.clone())))).await;
            let Ok(taken) = taken else { return sent };
            taken.expect("an open call");
            sent += piece.len();
        }
        sent
    }

    fn header(&self, name: &str) -> &str {
        self.answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next bytes.
    async fn hears(&mut self) -> Bytes {
        let frame = soon("bytes", self.answer.body_mut().frame()).await.expect("more").expect("no error");
        frame.into_data().expect("bytes")
    }

    /// The status that ends the call, in trailers or in the head; bytes before it are not looked at.
    async fn ends(mut self) -> (i32, String) {
        let head = self.answer.headers().clone();
        let mut last = head;
        while let Some(frame) = soon("the end", self.answer.body_mut().frame()).await {
            if let Ok(trailers) = frame.expect("no error").into_trailers() {
                last = trailers;
            }
        }
        let status = Status::from_header_map(&last).expect("a status");
        (status.code() as i32, status.message().to_owned())
    }
}

const UNAVAILABLE: i32 = tonic::Code::Unavailable as i32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_credentials_and_ends_pass_unchanged() {
    let leading = Leading::start(None).await;
    let relaying = Relaying::start(Some(&leading.at), None).await;
    let node = connect(&relaying.at, None).await;
    let mut session =
        call(&node, &[("drover-node-identity", "one"), ("drover-node-identity", "two"), ("drover-node-x", "")]).await;
    let identities: Vec<_> = session.answer.headers().get_all("drover-node-identity").iter().collect();
    assert_eq!(identities, ["one", "two"]);
    assert_eq!((session.header("test-path"), session.answer.headers().contains_key("drover-node-x")), (PATH, true));
    assert_eq!(relaying.relay.sessions(), 1);
    // Small and large pieces, in both directions; each is heard before the call ends.
    let mut seed = 1_u32;
    for n in 0..200_usize {
        let piece: Vec<u8> = (0..(n * n) % 50_000 + 1)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                seed.to_be_bytes()[0]
            })
            .collect();
        session.say(piece.clone()).await;
        let mut heard = Vec::new();
        while heard.len() < piece.len() {
            heard.extend(session.hears().await);
        }
        assert!(heard == piece, "piece {n} of {} bytes", piece.len());
    }
    let Call { to, mut answer } = session;
    drop(to);
    let end = soon("trailers", answer.body_mut().frame()).await.expect("trailers").expect("no error");
    assert_eq!(end.into_trailers().expect("trailers")["test-end"], "yes");
    drop(answer);
    eventually("the session out of the count", || relaying.relay.sessions() == 0).await;
    // A refusal of the leader reaches the node as it is.
    let refused = call(&node, &[(ASKS, "no body")]).await.ends().await;
    assert_eq!(refused, (tonic::Code::Unauthenticated as i32, "not you".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stands_still_stops_its_sender_and_nobody_else() {
    let leading = Leading::start(None).await;
    let relaying = Relaying::start(Some(&leading.at), None).await;
    // 40 sessions fill their windows, which are more than what a connection takes by default.
    let mut stuck = Vec::new();
    for _ in 0..40 {
        let node = connect(&relaying.at, None).await;
        stuck.push(call(&node, &[(ASKS, "wait")]).await);
    }
    let most = 8 << 20;
    let sent = futures::future::join_all(stuck.iter().map(|session| session.stuff(most))).await;
    for sent in &sent {
        // The windows of both connections, and what is between them.
        assert!((LEAST..600_000).contains(sent), "a session took {sent} bytes that nobody has read");
    }
    let node = connect(&relaying.at, None).await;
    let mut other = call(&node, &[]).await;
    other.say("heartbeat").await;
    assert_eq!(other.hears().await, "heartbeat", "while others are stuck on the same connection");
    assert_eq!(leading.echo.connections.lock().expect("connections").len(), 1);

    // The other direction.
    let floods = call(&node, &[(ASKS, "flood")]).await;
    let mut before = 0;
    loop {
        tokio::time::sleep(STUCK).await;
        let now = leading.echo.flooded.load(SeqCst);
        if now == before {
            break;
        }
        before = now;
        assert!(now < 16 << 20, "nobody reads, and {now} bytes were sent");
    }
    other.say("again").await;
    assert_eq!(other.hears().await, "again", "while one node does not read");
    drop(floods);

    leading.echo.reads.cancel();
    for (session, sent) in stuck.iter_mut().zip(sent) {
        let mut heard = 0;
        while heard < sent {
            heard += session.hears().await.len();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_end_with_the_reason_when_their_leader_is_gone() {
    let nobody = Relaying::start(None, None).await;
    let node = connect(&nobody.at, None).await;
    let (code, why) = call(&node, &[]).await.ends().await;
    assert!(code == UNAVAILABLE && why.contains("knows no server that does"), "{code} {why}");

    // Bound, so that no other test gets it, and nobody listens.
    let taken = tokio::net::TcpSocket::new_v4().expect("a socket");
    taken.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let at = taken.local_addr().expect("an address").to_string();
    nobody.relay.lead_to(Some(&at));
    let (code, why) = call(&node, &[]).await.ends().await;
    assert!(code == UNAVAILABLE && why.contains(&at) && why.contains("does not reach"), "{code} {why}");

    let (first, second) = (Leading::start(None).await, Leading::start(None).await);
    nobody.relay.lead_to(Some(&first.at));
    let mut session = call(&node, &[]).await;
    // Nobody may lead for a moment: that is the leader's to decide.
    nobody.relay.lead_to(None);
    session.say("still").await;
    assert_eq!(session.hears().await, "still");
    let (code, _) = call(&node, &[]).await.ends().await;
    assert_eq!(code, UNAVAILABLE);
    nobody.relay.lead_to(Some(&first.at));
    session.say("here").await;
    assert_eq!(session.hears().await, "here");
    nobody.relay.lead_to(Some(&second.at));
    let (code, why) = session.ends().await;
    assert!(code == UNAVAILABLE && why.contains("another server leads now"), "{code} {why}");

    let mut session = call(&node, &[]).await;
    session.say("there").await;
    assert_eq!(session.hears().await, "there");
    assert_eq!((first.echo.calls.load(SeqCst), second.echo.calls.load(SeqCst)), (1, 1));
    nobody.relay.end();
    let (code, why) = session.ends().await;
    assert!(code == UNAVAILABLE && why.contains("passes the session on no longer"), "{code} {why}");
    eventually("no session in the count", || nobody.relay.sessions() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_end_with_the_reason_when_the_connection_to_the_leader_does() {
    // A leader that dies: its connections are cut, without a word.
    let (proxy, at) = listener().await;
    let leading = Leading::start(None).await;
    let to = leading.at.clone();
    let cut = CancellationToken::new();
    let until = cut.clone();
    tokio::spawn(async move {
        let (mut from, _) = proxy.accept().await.expect("the relay");
        let mut leader = TcpStream::connect(to).await.expect("the leader");
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut from, &mut leader) => {}
            () = until.cancelled() => {}
        }
    });
    let relaying = Relaying::start(Some(&at), None).await;
    let node = connect(&relaying.at, None).await;
    let mut session = call(&node, &[]).await;
    session.say("alive").await;
    assert_eq!(session.hears().await, "alive");
    cut.cancel();
    let (code, why) = session.ends().await;
    assert!(code == UNAVAILABLE && why.contains("the connection to the server that leads has ended"), "{code} {why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_is_the_nodes_to_notice() {
    // Connections to it stand, and nobody answers.
    let (hangs, at) = listener().await;
    let relaying = Relaying::start(Some(&at), None).await;
    let node = connect(&relaying.at, None).await;
    let request = http::Request::post(format!("http://server{PATH}")).body(Body::empty()).expect("a request");
    let opening = tokio::time::timeout(STUCK, node.clone().send_request(request)).await;
    assert!(opening.is_err(), "the relay has answered for the leader: {opening:?}");
    eventually("the given up call out of the count", || relaying.relay.sessions() == 0).await;
    drop(hangs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_passed_on_once() {
    let leading = Leading::start(None).await;
    let second = Relaying::start(Some(&leading.at), None).await;
    let first = Relaying::start(Some(&second.at), None).await;
    let (code, why) = call(&connect(&first.at, None).await, &[]).await.ends().await;
    assert!(code == UNAVAILABLE && why.contains("do not agree yet on who leads"), "{code} {why}");
    let pretends = call(&connect(&second.at, None).await, &[(RELAYED_HEADER, "192.0.2.1:1")]).await.ends().await;
    assert_eq!(pretends.0, UNAVAILABLE);
    assert_eq!(leading.echo.calls.load(SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_share_few_connections() {
    let leading = Leading::start(None).await;
    let relaying = Relaying::start(Some(&leading.at), None).await;
    let node = connect(&relaying.at, None).await;
    let more = connect(&relaying.at, None).await;
    let mut sessions = Vec::new();
    for n in 0..PLACES + 30 {
        sessions.push(call(if n % 2 == 0 { &node } else { &more }, &[]).await);
    }
    assert_eq!(relaying.relay.sessions(), PLACES + 30);
    for session in &mut sessions {
        session.say("x").await;
        assert_eq!(session.hears().await, "x");
    }
    let connections = || leading.echo.connections.lock().expect("connections").len();
    assert_eq!(connections(), 2);
    drop(sessions);
    eventually("no sessions", || relaying.relay.sessions() == 0).await;
    let mut next = call(&node, &[]).await;
    next.say("y").await;
    assert_eq!((next.hears().await, connections()), (Bytes::from("y"), 2), "the places are free again");
}

/// Certificates of an authority in a directory.
fn agents(dir: &Path) -> [tls::Agent; 2] {
    let write = |name: &str, pair: issue::Pair| {
        fs::write(dir.join(name), pair.certificate).expect("written");
        let key = dir.join(format!("{name}-key"));
        issue::write_new(&key, &pair.key, true).expect("written");
    };
    let now = SystemTime::now();
    write("ca", issue::authority(&issue::Authority { days: 10, ..Default::default() }, now).expect("an authority"));
    [tls::Role::Server, tls::Role::Client].map(|role| {
        let name = role.name("global");
        let leaf = issue::Leaf {
            name: name.clone(),
            days: 10,
            dns_names: vec!["localhost".into()],
            ip_addresses: vec![IpAddr::from([127, 0, 0, 1])],
        };
        write(&name, issue::leaf(&leaf, &dir.join("ca"), &dir.join("ca-key"), now).expect("a certificate"));
        let settings = tls::Settings {
            rpc: true,
            ca_file: dir.join("ca"),
            cert_file: dir.join(&name),
            key_file: dir.join(format!("{name}-key")),
            verify_names: true,
            region: "global".into(),
            roles: vec![role],
            ..tls::Settings::default()
        };
        tls::Agent::load(&settings, now).expect("usable")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_server_may_say_where_a_node_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let [server, client] = agents(dir.path());
    let leading = Leading::start(Some(server.clone())).await;
    let relaying = Relaying::start(Some(&leading.at), Some(server.clone())).await;
    let dialer = || Some(client.dialer(tls::Peer::ServerRpc));
    let pretended = [(RELAYED_HEADER, "192.0.2.1:1")];

    let mut relayed = call(&connect(&relaying.at, dialer()).await, &[]).await;
    relayed.say("over TLS").await;
    assert_eq!(relayed.hears().await, "over TLS");
    let told: SocketAddr = relayed.header("test-node").parse().expect("an address");
    assert!(
        !leading.echo.connections.lock().expect("connections").contains(&told),
        "{told} is the relay, not the node"
    );

    let direct = call(&connect(&leading.at, dialer()).await, &pretended).await;
    assert!(direct.header("test-node").starts_with("127.0.0.1:"), "a node is believed: {}", direct.header("test-node"));
    let of_server = Some(server.dialer(tls::Peer::ServerRpc));
    let believed = call(&connect(&leading.at, of_server).await, &pretended).await;
    assert_eq!(believed.header("test-node"), "192.0.2.1:1");

    // A node without a certificate is the relay's to refuse, as it is the leader's.
    let plain = call(&connect(&relaying.at, None).await, &[]).await.ends().await;
    assert!(plain.0 == tonic::Code::Unauthenticated as i32 && plain.1.contains("over TLS only"), "{plain:?}");
}
