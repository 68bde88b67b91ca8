//! A process with TLS to a service reads the files again: what it shows, what it refuses, and until when it is valid.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use tls::{
    Agent, Error, Protocol, Service, ServiceFiles, ServiceSettings, Settings, Stream,
    issue::{self, Authority, Leaf},
    why,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const PATIENCE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 3600);
const NAMES: ServiceSettings = ServiceSettings { ca: "s.ca_file", cert: "s.cert_file", key: "s.key_file" };

/// An authority with one certificate: `ca.pem`, `own.pem` and their keys.
struct Made(TempDir);

impl Made {
    /// The certificate is valid for ten days from `from`.
    fn at(from: SystemTime) -> Self {
        let made = Self(tempfile::tempdir().expect("a directory"));
        let ca = issue::authority(&Authority { days: 90, ..Authority::default() }, from).expect("made");
        issue::write_new(&made.path("ca.pem"), &ca.certificate, false).expect("written");
        issue::write_new(&made.path("ca-key.pem"), &ca.key, true).expect("written");
        let leaf = Leaf { name: "s".into(), days: 10, ip_addresses: vec![[127, 0, 0, 1].into()], dns_names: vec![] };
        let own = issue::leaf(&leaf, &made.path("ca.pem"), &made.path("ca-key.pem"), from).expect("made");
        issue::write_new(&made.path("own.pem"), &own.certificate, false).expect("written");
        issue::write_new(&made.path("own-key.pem"), &own.key, true).expect("written");
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn files(&self) -> ServiceFiles {
        let [ca_file, cert_file, key_file] = ["ca.pem", "own.pem", "own-key.pem"].map(|name| self.path(name));
        ServiceFiles { ca_file, cert_file, key_file }
    }

    /// A service that trusts this authority and shows the certificate.
    fn peer(&self) -> Agent {
        let ServiceFiles { ca_file, cert_file, key_file } = self.files();
        let settings = Settings { rpc: true, ca_file, cert_file, key_file, ..Settings::default() };
        Agent::load(&settings, SystemTime::now()).expect("a service")
    }
}

fn load(files: &ServiceFiles) -> Result<Service, Error> {
    Service::load(files, NAMES, Protocol::Http2)
}

/// A connection that both ends have agreed to: the end of the process, then the service's.
async fn connect(peer: &Agent, service: &Service) -> Result<(Stream<TcpStream>, Stream<TcpStream>), String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let accept = async {
        let (stream, from) = listener.accept().await.expect("accepted");
        let (mut stream, _) = peer.accept_rpc(stream, from).await.ok()?;
        stream.write_u8(7).await.ok()?;
        stream.flush().await.ok()?;
        Some(stream)
    };
    let dial = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut stream = service.dialer().connect(stream, "127.0.0.1").await.map_err(|e| why(&e))?;
        // A refusal of the certificate comes after the handshake.
        stream.read_u8().await.map_err(|e| why(&e))?;
        Ok::<_, String>(stream)
    };
    let (there, here) = tokio::time::timeout(PATIENCE, async { tokio::join!(accept, dial) }).await.expect("in time");
    Ok((here?, there.expect("a connection")))
}

#[tokio::test]
async fn new_connections_show_what_was_taken_over_and_those_that_stand_go_on() {
    let (old, new) = (Made::at(SystemTime::now()), Made::at(SystemTime::now()));
    let service = load(&old.files()).expect("a service");
    let (mut here, mut there) = connect(&old.peer(), &service).await.expect("a connection");
    assert!(connect(&new.peer(), &service).await.is_err(), "another authority");
    service.take_over(&load(&new.files()).expect("the new files"));
    assert_eq!(service.files(), new.files());
    connect(&new.peer(), &service).await.map(drop).expect("the new certificate is shown, the new authority taken");
    assert!(connect(&old.peer(), &service).await.is_err(), "the old authority is gone");
    there.write_u8(8).await.expect("written");
    there.flush().await.expect("flushed");
    assert_eq!(here.read_u8().await.expect("it stands"), 8);
}

#[test]
fn a_broken_file_is_named() {
    let (made, other) = (Made::at(SystemTime::now()), Made::at(SystemTime::now()));
    let broken = made.path("broken.pem");
    fs::write(&broken, "nothing").expect("written");
    let with = |change: &dyn Fn(&mut ServiceFiles)| {
        let mut files = made.files();
        change(&mut files);
        load(&files).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(with(&|_| {}), Ok(()));
    for (change, setting, path, why) in [
        (
            &(|f: &mut ServiceFiles| f.ca_file.clone_from(&broken)) as &dyn Fn(&mut ServiceFiles),
            "s.ca_file",
            broken.as_path(),
            "holds no certificate",
        ),
        (&|f| f.cert_file.clone_from(&broken), "s.cert_file", &broken, "holds no certificate"),
        (&|f| f.key_file.clone_from(&broken), "s.key_file", &broken, "holds no private key"),
        (&|f| f.key_file = other.path("own-key.pem"), "s.key_file", &other.path("own-key.pem"), "cannot be used with"),
        (&|f| f.key_file = made.path("gone.pem"), "s.key_file", &made.path("gone.pem"), "cannot be read"),
        (&|f| f.key_file = PathBuf::new(), "s.key_file", Path::new(""), "is missing"),
    ] {
        let error = with(change).expect_err(why);
        let path = path.display().to_string();
        assert!(error.starts_with(setting) && error.contains(&path) && error.contains(why), "{error}");
    }
}

#[test]
fn what_expires_is_told_and_what_has_expired_is_not_taken_over() {
    let now = SystemTime::now();
    let made = Made::at(now);
    let service = load(&made.files()).expect("a service");
    let told: Vec<_> = service.expiries().into_iter().map(|e| (e.setting, e.path)).collect();
    assert_eq!(told, [("s.cert_file", made.path("own.pem")), ("s.ca_file", made.path("ca.pem"))]);
    let warnings = service.warnings(now + DAY);
    assert!(warnings.len() == 1 && warnings[0].contains("s.cert_file"), "the authority has more time: {warnings:?}");
    assert!(warnings[0].contains("own.pem expires in 8 days"), "{warnings:?}");
    assert!(service.warnings(now + 11 * DAY)[0].contains("has expired"));
    assert!(service.in_time(now).is_ok());
    for (at, why) in [(now + 11 * DAY, "has expired"), (now - DAY, "is not valid yet")] {
        let error = service.in_time(at).expect_err(why).to_string();
        assert!(error.contains("own.pem") && error.contains(why) && error.contains("in use are kept"), "{error}");
    }
    // Without files there is nothing that could expire; the authorities are those of this system.
    let nothing = ServiceFiles { ca_file: made.path("ca.pem"), ..ServiceFiles::default() };
    let anonymous = load(&nothing).expect("a service");
    assert_eq!(anonymous.expiries().len(), 1);
    assert!(anonymous.in_time(now + 11 * DAY).is_ok());
}
