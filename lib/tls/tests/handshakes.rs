//! Handshakes over loopback between agents and clients whose certificates are made here.

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use tls::{
    Agent, Certificate, CipherSuite, ClientFiles, Dialer, Peer, Protocol, Role, ServiceFiles, ServiceSettings,
    Settings, Version,
    issue::{self, Authority, Leaf},
    why,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// An authority in a directory.
struct Ca {
    dir: TempDir,
}

impl Ca {
    fn new() -> Self {
        let ca = Self { dir: tempfile::tempdir().expect("a directory") };
        let made = issue::authority(&Authority { days: 10, ..Authority::default() }, SystemTime::now()).expect("made");
        issue::write_new(&ca.file("ca"), &made.certificate, false).expect("written");
        issue::write_new(&ca.key("ca"), &made.key, true).expect("written");
        ca
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.pem"))
    }

    fn key(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}-key.pem"))
    }

    /// A certificate that names `name`, made at `now`; 10 days.
    fn leaf_at(&self, file: &str, name: &str, now: SystemTime) {
        let leaf = Leaf {
            name: name.into(),
            days: 10,
            dns_names: vec!["localhost".into()],
            ip_addresses: vec![IpAddr::from([127, 0, 0, 1])],
        };
        let made = issue::leaf(&leaf, &self.file("ca"), &self.key("ca"), now).expect("made");
        for (path, text, secret) in [(self.file(file), made.certificate, false), (self.key(file), made.key, true)] {
            let _ = fs::remove_file(&path);
            issue::write_new(&path, &text, secret).expect("written");
        }
    }

    fn leaf(&self, name: &str) {
        self.leaf_at(name, name, SystemTime::now());
    }

    fn settings(&self, file: &str, role: Role) -> Settings {
        Settings {
            http: true,
            rpc: true,
            ca_file: self.file("ca"),
            cert_file: self.file(file),
            key_file: self.key(file),
            verify_names: true,
            region: "global".into(),
            roles: vec![role],
            ..Settings::default()
        }
    }

    /// An agent whose certificate names `name`, of no role of its own.
    fn agent(&self, name: &str) -> Agent {
        self.leaf(name);
        let settings = Settings { roles: Vec::new(), ..self.settings(name, Role::Client) };
        Agent::load(&settings, SystemTime::now()).expect("an agent")
    }
}

/// What both ends say of a connection to the RPC: `Ok` is what the server thinks of the node.
async fn rpc(server: &Agent, node: &Agent) -> (Result<Result<(), String>, String>, Result<(), String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let serve = async {
        let (stream, peer) = listener.accept().await.expect("a connection");
        let (mut stream, admitted) = server.accept_rpc(stream, peer).await.map_err(|e| why(&e))?;
        stream.write_all(b"x").await.map_err(|e| why(&e))?;
        stream.flush().await.map_err(|e| why(&e))?;
        Ok(admitted.map(drop).map_err(|refused| refused.0))
    };
    let dial = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut stream = node.dialer(Peer::ServerRpc).connect(stream, "127.0.0.1").await.map_err(|e| why(&e))?;
        stream.read_exact(&mut [0]).await.map(drop).map_err(|e| why(&e))
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(serve, dial) }).await.expect("an end")
}

/// What a client of the HTTP listener sees.
async fn http(server: &Agent, files: &ClientFiles, host: &str) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let serve = async {
        let (stream, peer) = listener.accept().await.expect("a connection");
        if let Ok(mut stream) = server.accept_http(stream, peer).await {
            let _ = stream.write_all(b"x").await;
            let _ = stream.flush().await;
        }
    };
    let dial = async {
        let dialer = Dialer::of_client(files).map_err(|e| e.to_string())?;
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut stream = dialer.connect(stream, host).await.map_err(|e| why(&e))?;
        stream.read_exact(&mut [0]).await.map(drop).map_err(|e| why(&e))
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(serve, dial).1 }).await.expect("an end")
}

fn files(ca: &Path) -> ClientFiles {
    ClientFiles { ca_cert: ca.to_owned(), ..ClientFiles::default() }
}

#[tokio::test]
async fn nodes_and_servers_check_each_other_by_role() {
    let ca = Ca::new();
    let (server, node) = (ca.agent("server.global.nomad"), ca.agent("client.global.nomad"));
    assert_eq!(rpc(&server, &node).await, (Ok(Ok(())), Ok(())));
    // A server's certificate is good for a node, too.
    assert_eq!(rpc(&server, &server).await, (Ok(Ok(())), Ok(())));
    // A node that plays the server.
    let (_, refused) = rpc(&node, &server).await;
    let refused = refused.expect_err("no server");
    assert!(refused.contains("server.global.nomad") && refused.contains("client.global.nomad"), "{refused}");
    // People and nodes of other regions.
    for other in ["cli.global.nomad", "client.eu.nomad"] {
        let (said, _) = rpc(&server, &ca.agent(other)).await;
        let why = said.expect("a handshake").expect_err("no node of this region");
        assert!(why.contains(other) && why.contains("client.global.nomad"), "{why}");
    }
    // Without names every certificate of the authority will do.
    let any = Settings { verify_names: false, ..ca.settings("client.global.nomad", Role::Server) };
    let any = Agent::load(&any, SystemTime::now()).expect("an agent");
    assert_eq!(rpc(&any, &any).await, (Ok(Ok(())), Ok(())));
}

#[tokio::test]
async fn another_authority_is_refused_at_both_ends() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (server, stranger) = (ca.agent("server.global.nomad"), other.agent("client.global.nomad"));
    let (at_server, at_node) = rpc(&server, &stranger).await;
    assert!(at_node.expect_err("not its authority").contains("not signed by the authority"));
    assert!(at_server.is_err());
    // A node that trusts the servers, and whose own certificate is somebody else's.
    let mixed = Settings { verify_names: true, ..other.settings("client.global.nomad", Role::Client) };
    fs::copy(ca.file("ca"), other.file("theirs")).expect("copied");
    let mixed = Settings { ca_file: other.file("theirs"), ..mixed };
    let error = Agent::load(&mixed, SystemTime::now()).expect_err("not signed").to_string();
    assert!(error.contains("is not signed by tls.ca_file"), "{error}");
    let bundle = [other.file("ca"), ca.file("ca")].map(|file| fs::read_to_string(file).expect("read")).concat();
    fs::write(other.file("both"), bundle).expect("written");
    let both = Settings { ca_file: other.file("both"), ..mixed };
    let both = Agent::load(&both, SystemTime::now()).expect("an agent");
    let (at_server, at_node) = rpc(&server, &both).await;
    assert!(at_server.expect_err("not its authority").contains("not signed by the authority"));
    assert!(at_node.expect_err("refused").contains("refuses the certificate of this side"));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_told() {
    let ca = Ca::new();
    let server = ca.agent("server.global.nomad");
    let long_ago = SystemTime::now() - Duration::from_secs(20 * 24 * 3600);
    ca.leaf_at("old", "client.global.nomad", long_ago);
    let settings = ca.settings("old", Role::Client);
    let now = SystemTime::now();
    let node = Agent::load(&settings, now).expect("an agent starts with it");
    assert!(node.warnings(now).iter().any(|line| line.contains("has expired")), "{:?}", node.warnings(now));
    let (at_server, at_node) = rpc(&server, &node).await;
    assert!(at_server.expect_err("expired").contains("expired"));
    assert!(at_node.expect_err("expired").contains("it has expired"));
    let error = server.reload(&settings, now).expect_err("a reload keeps what is in use").to_string();
    assert!(error.contains("has expired; the certificates in use are kept"), "{error}");
    // What expires within 30 days is told before.
    let soon: Vec<String> = server.warnings(now);
    assert!(soon.len() == 2 && soon[0].contains("expires in 9 days"), "{soon:?}");
    assert!(server.warnings(now - Duration::from_secs(25 * 24 * 3600)).is_empty());
}

#[tokio::test]
async fn http_clients_are_asked_for_a_certificate_only_where_the_operator_says() {
    let (ca, other) = (Ca::new(), Ca::new());
    for name in ["server.global.nomad", "cli.global.nomad"] {
        ca.leaf(name);
    }
    other.leaf("cli.global.nomad");
    let settings = ca.settings("server.global.nomad", Role::Server);
    let server = Agent::load(&settings, SystemTime::now()).expect("an agent");
    let trusted = files(&ca.file("ca"));
    assert_eq!(http(&server, &trusted, "127.0.0.1").await, Ok(()));
    assert_eq!(http(&server, &trusted, "localhost").await, Ok(()));
    let named = http(&server, &trusted, "example.org").await.expect_err("another host");
    assert!(named.contains("example.org"), "{named}");
    let as_role = ClientFiles { server_name: "server.global.nomad".into(), ..trusted.clone() };
    assert_eq!(http(&server, &as_role, "example.org").await, Ok(()));
    let wrong = http(&server, &files(&other.file("ca")), "127.0.0.1").await.expect_err("another authority");
    assert!(wrong.contains("not signed by the authority"), "{wrong}");
    let anybody = ClientFiles { skip_verify: true, ..ClientFiles::default() };
    assert_eq!(http(&server, &anybody, "example.org").await, Ok(()));
    // The files of a directory.
    let dir = tempfile::tempdir().expect("a directory");
    fs::copy(ca.file("ca"), dir.path().join("a.pem")).expect("copied");
    let by_dir = ClientFiles { ca_path: dir.path().to_owned(), ..ClientFiles::default() };
    assert_eq!(http(&server, &by_dir, "127.0.0.1").await, Ok(()));

    let mutual = Settings { verify_https_client: true, ..settings };
    server.reload(&mutual, SystemTime::now()).expect("reloaded");
    let without = http(&server, &trusted, "127.0.0.1").await.expect_err("no certificate");
    assert!(without.contains("requires a certificate"), "{without}");
    let of = |ca: &Ca| ClientFiles {
        client_cert: ca.file("cli.global.nomad"),
        client_key: ca.key("cli.global.nomad"),
        ..trusted.clone()
    };
    assert_eq!(http(&server, &of(&ca), "127.0.0.1").await, Ok(()));
    let foreign = http(&server, &of(&other), "127.0.0.1").await.expect_err("another authority");
    assert!(foreign.contains("refuses the certificate of this side"), "{foreign}");
}

const NAMES: ServiceSettings = ServiceSettings { ca: "ca_file", cert: "cert_file", key: "key_file" };

#[tokio::test]
async fn a_service_is_taken_by_its_name_and_shown_a_certificate() {
    let (ca, other) = (Ca::new(), Ca::new());
    let server = ca.agent("server.global.nomad");
    ca.leaf("cli.global.nomad");
    let known = ServiceFiles {
        ca_file: ca.file("ca"),
        cert_file: ca.file("cli.global.nomad"),
        key_file: ca.key("cli.global.nomad"),
    };
    let ask = async |files: &ServiceFiles, host: &str| {
        let dialer = Dialer::of_service(files, NAMES, Protocol::Http2).map_err(|e| e.to_string())?;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let dialling = async {
            let stream = TcpStream::connect(address).await.expect("connected");
            let mut stream = dialer.connect(stream, host).await.map_err(|e| why(&e))?;
            assert_eq!(stream.protocol(), Some(&b"h2"[..]));
            // The refusal of a certificate comes after the handshake.
            stream.read_u8().await.map_err(|e| why(&e))
        };
        let accepting = async {
            let (stream, peer) = listener.accept().await.expect("accepted");
            if let Ok((mut stream, _)) = server.accept_rpc(stream, peer).await {
                stream.write_u8(7).await.expect("written");
                stream.flush().await.expect("written");
                let _ = stream.read_u8().await;
            }
        };
        let (dialled, ()) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(dialling, accepting) }).await.expect("in time");
        dialled
    };
    assert_eq!(ask(&known, "127.0.0.1").await, Ok(7));
    assert!(ask(&known, "etcd.example").await.is_err(), "another name");
    let stranger = ServiceFiles { ca_file: other.file("ca"), ..known.clone() };
    assert!(ask(&stranger, "127.0.0.1").await.is_err_and(|why| why.contains("authority")));
    let silent = ServiceFiles { cert_file: PathBuf::new(), key_file: PathBuf::new(), ..known.clone() };
    assert!(ask(&silent, "127.0.0.1").await.is_err(), "it requires a certificate");
    let half = ServiceFiles { key_file: PathBuf::new(), ..known };
    assert!(ask(&half, "127.0.0.1").await.is_err_and(|why| why.contains("key_file is missing")));
}

#[tokio::test]
async fn a_reload_swaps_certificates_for_new_connections_and_keeps_the_old_ones() {
    let (ca, other) = (Ca::new(), Ca::new());
    let server = ca.agent("server.global.nomad");
    let settings = Settings { roles: Vec::new(), ..ca.settings("server.global.nomad", Role::Server) };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let connect = async |ca: &Ca| {
        let dialer = Dialer::of_client(&files(&ca.file("ca"))).expect("a client");
        let stream = TcpStream::connect(address).await.expect("connected");
        let (there, here) = tokio::join!(
            async {
                let (stream, peer) = listener.accept().await.expect("a connection");
                server.accept_http(stream, peer).await
            },
            dialer.connect(stream, "127.0.0.1")
        );
        there.ok().zip(here.ok())
    };
    let (mut there, mut here) = connect(&ca).await.expect("a connection");
    // A file that cannot be used changes nothing.
    fs::write(ca.file("broken"), "no certificate").expect("written");
    let broken = Settings { cert_file: ca.file("broken"), ..settings.clone() };
    let error = server.reload(&broken, SystemTime::now()).expect_err("broken").to_string();
    assert!(error.contains("tls.cert_file") && error.contains("holds no certificate"), "{error}");
    assert!(connect(&ca).await.is_some() && connect(&other).await.is_none());
    // Everything is replaced.
    other.leaf("server.global.nomad");
    let replaced = Settings { roles: Vec::new(), ..other.settings("server.global.nomad", Role::Server) };
    server.reload(&replaced, SystemTime::now()).expect("reloaded");
    assert!(connect(&ca).await.is_none() && connect(&other).await.is_some());
    there.write_all(b"still").await.expect("written");
    there.flush().await.expect("flushed");
    let mut read = [0; 5];
    here.read_exact(&mut read).await.expect("read");
    assert_eq!(&read, b"still");
}

/// Two authorities on the way from one to the other: each has certificates of both roles, and both stand in a bundle.
struct Change {
    old: Ca,
    new: Ca,
}

impl Change {
    fn begin() -> Self {
        let (old, new) = (Ca::new(), Ca::new());
        for ca in [&old, &new] {
            ca.leaf("server.global.nomad");
            ca.leaf("client.global.nomad");
        }
        let bundle = [&old, &new].map(|ca| fs::read_to_string(ca.file("ca")).expect("read")).concat();
        for ca in [&old, &new] {
            fs::write(ca.file("both"), &bundle).expect("written");
        }
        Self { old, new }
    }

    /// Trusts the authorities of `trusted` (`ca` = its own alone, `both`), with a certificate of `of`.
    fn settings(of: &Ca, role: Role, trusted: &str) -> Settings {
        Settings { ca_file: of.file(trusted), ..of.settings(&role.name("global"), role) }
    }

    fn agent(of: &Ca, role: Role, trusted: &str) -> Agent {
        Agent::load(&Self::settings(of, role, trusted), SystemTime::now()).expect("an agent")
    }
}

#[tokio::test]
async fn a_certificate_of_the_old_authority_counts_until_the_new_one_stands_alone() {
    let Change { old, new } = Change::begin();
    let server = Change::agent(&old, Role::Server, "ca");
    let left_behind = Change::agent(&old, Role::Client, "both");
    let changed = Change::agent(&new, Role::Client, "both");
    let fine = (Ok(Ok(())), Ok(()));
    assert_eq!(rpc(&server, &left_behind).await, fine);
    let (at_server, at_node) = rpc(&server, &changed).await;
    assert!(at_server.expect_err("too early").contains("not signed by the authority that this side trusts"));
    assert!(at_node.expect_err("too early").contains("refuses the certificate of this side (UnknownCA)"));

    for of in [&old, &new] {
        server.reload(&Change::settings(of, Role::Server, "both"), SystemTime::now()).expect("reloaded");
        for node in [&left_behind, &changed] {
            assert_eq!(rpc(&server, node).await, fine, "both are trusted");
        }
    }

    server.reload(&Change::settings(&new, Role::Server, "ca"), SystemTime::now()).expect("reloaded");
    assert_eq!(rpc(&server, &changed).await, fine);
    // It was let in before: nothing that it remembers of those handshakes counts.
    let (at_server, at_node) = rpc(&server, &left_behind).await;
    let (at_server, at_node) = (at_server.expect_err("revoked"), at_node.expect_err("revoked"));
    assert!(at_server.contains("not signed by the authority that this side trusts (tls.ca_file"), "{at_server}");
    assert!(at_node.contains("refuses the certificate of this side (UnknownCA)"), "{at_node}");
    assert!(at_node.contains("an authority that the peer trusts (its tls.ca_file)"), "{at_node}");
}

type Ends = (tls::Stream<TcpStream>, tls::Stream<TcpStream>);

/// A connection between two agents, the end of the server first.
async fn standing(server: &Agent, node: &Agent) -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let serve = async {
        let (stream, peer) = listener.accept().await.expect("a connection");
        server.accept_rpc(stream, peer).await.expect("a handshake").0
    };
    let dial = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        node.dialer(Peer::ServerRpc).connect(stream, "127.0.0.1").await.expect("a handshake")
    };
    let mut ends = tokio::time::timeout(PATIENCE, async { tokio::join!(serve, dial) }).await.expect("an end");
    carries(&mut ends).await;
    ends
}

/// A byte in each direction.
async fn carries((there, here): &mut Ends) {
    let both = async {
        byte(there, here).await;
        byte(here, there).await;
    };
    tokio::time::timeout(PATIENCE, both).await.expect("in time");
}

async fn byte(from: &mut tls::Stream<TcpStream>, to: &mut tls::Stream<TcpStream>) {
    from.write_u8(7).await.expect("written");
    from.flush().await.expect("written");
    assert_eq!(to.read_u8().await.expect("read"), 7);
}

/// Reloads the agent while a task reads from this end of a connection, as one always does, and answers what that hears.
async fn hears(mut end: tls::Stream<TcpStream>, agent: &Agent, settings: &Settings) -> String {
    let reading = tokio::spawn(async move {
        let read = end.read_u8().await.expect_err("closed").to_string();
        let written = end.write_u8(7).await.expect_err("closed").to_string();
        assert_eq!(read, written);
        read
    });
    // The reload wakes a reader that waits already.
    tokio::task::yield_now().await;
    agent.reload(settings, SystemTime::now()).expect("reloaded");
    tokio::time::timeout(PATIENCE, reading).await.expect("the reload wakes the reader").expect("no panic")
}

#[tokio::test]
async fn a_connection_ends_when_a_reload_takes_the_authority_of_its_peer_away_and_no_other_does() {
    let Change { old, new } = Change::begin();
    let server = Change::agent(&old, Role::Server, "both");
    let mut changed = standing(&server, &Change::agent(&new, Role::Client, "both")).await;
    let mut left_behind = standing(&server, &Change::agent(&old, Role::Client, "both")).await;
    // The server gets another certificate: that ends nothing.
    server.reload(&Change::settings(&new, Role::Server, "both"), SystemTime::now()).expect("reloaded");
    carries(&mut changed).await;
    carries(&mut left_behind).await;

    let said = hears(left_behind.0, &server, &Change::settings(&new, Role::Server, "ca")).await;
    assert!(said.contains("the authority of the peer's certificate is no longer in tls.ca_file"), "{said}");
    let other_end = left_behind.1.read_u8().await.expect_err("closed").to_string();
    assert_eq!(other_end, "the peer closed the connection");
    carries(&mut changed).await;

    // The node looks at the server in the same way.
    let server = Change::agent(&old, Role::Server, "both");
    let node = Change::agent(&new, Role::Client, "both");
    let (_there, here) = standing(&server, &node).await;
    let said = hears(here, &node, &Change::settings(&new, Role::Client, "ca")).await;
    assert!(said.contains("the authority of the peer's certificate is no longer in tls.ca_file"), "{said}");
}

#[tokio::test]
async fn versions_and_suites_are_those_of_the_settings() {
    let ca = Ca::new();
    let (server, node) = (ca.agent("server.global.nomad"), ca.agent("client.global.nomad"));
    let with = |name: &str, min_version, suites: &str| Settings {
        min_version,
        cipher_suites: CipherSuite::parse(suites).expect("suites"),
        roles: Vec::new(),
        ..ca.settings(name, Role::Server)
    };
    server.reload(&with("server.global.nomad", Version::Tls13, ""), SystemTime::now()).expect("reloaded");
    assert_eq!(rpc(&server, &node).await, (Ok(Ok(())), Ok(())));
    // A peer that offers TLS 1.2 alone.
    let old = tls12_only(&server).await;
    assert!(old.contains("no version or suite of TLS in common"), "{old}");
    let wrong = with("server.global.nomad", Version::Tls12, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
    let error = server.reload(&wrong, SystemTime::now()).expect_err("an EC key").to_string();
    assert!(error.contains("tls_cipher_suites") && error.contains("ECDSA"), "{error}");
}

/// Offers TLS 1.2 in a bare handshake message, and answers with what the server's end says of it.
async fn tls12_only(server: &Agent) -> String {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("TLS 1.2")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let dial = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        connector.connect("localhost".try_into().expect("a name"), stream).await.map(drop)
    };
    let serve = async {
        let (stream, peer) = listener.accept().await.expect("a connection");
        server.accept_http(stream, peer).await
    };
    let (served, dialled) = tokio::join!(serve, dial);
    assert!(dialled.is_err());
    why(&served.expect_err("no version in common"))
}

#[tokio::test]
async fn a_plain_peer_is_named() {
    let ca = Ca::new();
    ca.leaf("server.global.nomad");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let plain = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = stream.read(&mut [0; 1024]).await;
    };
    let dialer = Dialer::of_client(&files(&ca.file("ca"))).expect("a client");
    let stream = TcpStream::connect(address).await.expect("connected");
    let ((), dialled) = tokio::join!(plain, dialer.connect(stream, "127.0.0.1"));
    let said = why(&dialled.expect_err("it speaks no TLS"));
    assert!(said.contains("does not speak TLS"), "{said}");
}

#[test]
fn mistakes_name_the_file_and_what_to_do() {
    let (ca, other) = (Ca::new(), Ca::new());
    for name in ["server.global.nomad", "client.global.nomad"] {
        ca.leaf(name);
        other.leaf(name);
    }
    let of = |change: &dyn Fn(&mut Settings)| {
        let mut settings = ca.settings("server.global.nomad", Role::Server);
        change(&mut settings);
        Agent::load(&settings, SystemTime::now()).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(of(&|_| {}), Ok(()));
    let gone = ca.file("gone");
    for (change, said) in [
        (&(|s: &mut Settings| s.cert_file = PathBuf::new()) as &dyn Fn(&mut Settings), "tls.cert_file is missing"),
        (&|s: &mut Settings| s.ca_file = PathBuf::new(), "tls.ca_file is missing"),
        (&|s: &mut Settings| s.key_file = gone.clone(), "gone.pem: cannot be read: No such file"),
        (&|s: &mut Settings| s.key_file = ca.file("ca"), "holds no private key"),
        (&|s: &mut Settings| s.key_file = ca.key("client.global.nomad"), "is not the key of tls.cert_file"),
        (&|s: &mut Settings| s.ca_file = other.file("ca"), "is not signed by tls.ca_file"),
        (&|s: &mut Settings| s.region = "eu".into(), "this agent needs server.eu.nomad"),
        (
            &|s: &mut Settings| {
                s.cert_file = ca.file("client.global.nomad");
                s.key_file = ca.key("client.global.nomad");
            },
            "names client.global.nomad, localhost, and this agent needs server.global.nomad",
        ),
    ] {
        let error = of(change).expect_err(said);
        assert!(error.contains(said), "{error}");
    }
    // A key that others may read is told.
    fs::set_permissions(ca.key("server.global.nomad"), fs::Permissions::from_mode(0o644)).expect("changed");
    let settings = ca.settings("server.global.nomad", Role::Server);
    let agent = Agent::load(&settings, SystemTime::now()).expect("an agent");
    let warnings = agent.warnings(SystemTime::now());
    assert!(warnings.iter().any(|line| line.contains("can be read by other users")), "{warnings:?}");
}

#[test]
fn certificates_say_what_was_asked_for() {
    let ca = Ca::new();
    ca.leaf("server.eu.nomad");
    let authority = Certificate::of_file(&ca.file("ca")).expect("read");
    let leaf = Certificate::of_file(&ca.file("server.eu.nomad")).expect("read");
    assert!(authority.authority && !leaf.authority);
    assert_eq!(authority.common_name, format!("Drover Agent CA {}", authority.serial));
    assert_eq!((&leaf.issuer, leaf.common_name.as_str()), (&authority.common_name, "server.eu.nomad"));
    assert_eq!(leaf.dns_names, ["server.eu.nomad", "localhost"]);
    assert_eq!(leaf.ip_addresses, [IpAddr::from([127, 0, 0, 1])]);
    let left = leaf.not_after.duration_since(SystemTime::now()).expect("valid");
    assert!(left <= Duration::from_secs(10 * 24 * 3600) && left > Duration::from_secs(9 * 24 * 3600));
    let mode = |path: PathBuf| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(ca.key("ca")), mode(ca.key("server.eu.nomad")), mode(ca.file("ca"))), (0o600, 0o600, 0o644));
    let again = issue::write_new(&ca.key("ca"), "x", true).expect_err("never overwritten");
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    let text = fs::read_to_string(ca.key("ca")).expect("read");
    assert!(text.starts_with("-----BEGIN EC PRIVATE KEY-----"), "the form that Nomad's commands read");
    // An authority for some domains signs no others.
    let limited = Authority { days: 1, permitted_domains: vec!["nomad".into()], ..Authority::default() };
    let made = issue::authority(&limited, SystemTime::now()).expect("made");
    fs::write(ca.file("limited"), &made.certificate).expect("written");
    assert_eq!(Certificate::of_file(&ca.file("limited")).expect("read").permitted_domains, ["nomad"]);
    let wrong = Leaf { name: "a b".into(), days: 1, ..Leaf::default() };
    let error = issue::leaf(&wrong, &ca.file("ca"), &ca.key("ca"), SystemTime::now()).err().expect("no name");
    assert!(error.to_string().contains("\"a b\" cannot stand in a certificate"), "{error}");
}
