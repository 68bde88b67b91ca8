use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    os::unix::fs::{PermissionsExt, symlink},
    sync::{Arc, Mutex},
};

use super::*;
use crate::spec::Limits;

/// A server on loopback: answers by path, and remembers the requests.
struct Server {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answers: BTreeMap<&'static str, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("addr");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        // Ends with the test's process: it only waits.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while reader.read_line(&mut head).is_ok_and(|n| n > 2) {}
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                log.lock().expect("lock").push(head);
                let answer = answers.get(path.as_str()).cloned().unwrap_or_else(|| status("404 Not Found"));
                let mut stream = reader.into_inner();
                let _ = stream.write_all(&answer);
                let _ = stream.flush();
            }
        });
        Self { addr, seen }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    fn heads(&self) -> Vec<String> {
        self.seen.lock().expect("lock").clone()
    }
}

fn ok(body: &[u8]) -> Vec<u8> {
    let mut all =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len()).into_bytes();
    all.extend_from_slice(body);
    all
}

fn status(line: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

fn redirect(to: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

fn tar_gz(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, text.as_bytes()).expect("memory");
    }
    builder.into_inner().expect("memory").finish().expect("memory")
}

/// A directory to fetch into.
struct Place {
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("temp dir");
        fs::create_dir_all(temp.path().join("root/task/stage")).expect("dir");
        Self { temp }
    }

    fn spec(&self, source: &str, options: &[(&str, &str)]) -> Spec {
        let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Spec {
            source: Source::parse(source, &options).expect("a source"),
            mode: Mode::Any,
            headers: BTreeMap::new(),
            insecure: false,
            root: self.temp.path().join("root"),
            destination: vec!["task".into(), "local".into()],
            staging: vec!["task".into(), "stage".into()],
            owner: None,
            limits: Limits { http_max_bytes: 100_000, ..Limits::default() },
            isolate: false,
            extra_paths: Vec::new(),
        }
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.temp.path().join("root/task/local").join(path))
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn untouched(&self) -> bool {
        !self.temp.path().join("root/task/local").exists()
    }
}

const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

#[test]
fn files_and_archives_arrive() {
    let archive = tar_gz(&[("top.txt", "top"), ("in/side.txt", "side"), ("in/deep/er.txt", "deeper")]);
    let server =
        Server::start([("/hello.txt", ok(b"hello")), ("/a.tar.gz", ok(&archive)), ("/named?x=1", ok(b"hello"))].into());

    let place = Place::new();
    let spec = place.spec(&server.url("/hello.txt"), &[("checksum", &format!("sha256:{HELLO_SHA256}"))]);
    assert_eq!(fetch(&spec).expect("fetched"), Placed { files: 1, bytes: 5 });
    assert_eq!(place.text("hello.txt"), "hello");

    let place = Place::new();
    assert_eq!(fetch(&place.spec(&server.url("/a.tar.gz"), &[])).expect("fetched").files, 3);
    assert_eq!((place.text("top.txt"), place.text("in/deep/er.txt")), ("top".into(), "deeper".into()));

    let place = Place::new();
    fetch(&place.spec(&server.url("/a.tar.gz//in"), &[])).expect("fetched");
    assert_eq!((place.text("side.txt"), place.text("deep/er.txt")), ("side".into(), "deeper".into()));

    let place = Place::new();
    fetch(&place.spec(&server.url("/a.tar.gz"), &[("archive", "false")])).expect("fetched");
    assert!(place.temp.path().join("root/task/local/a.tar.gz").is_file());

    let place = Place::new();
    let spec = Spec {
        mode: Mode::File,
        destination: vec!["task".into(), "local".into(), "as".into()],
        ..place.spec(&server.url("/named?x=1"), &[])
    };
    fetch(&spec).expect("fetched");
    assert_eq!(place.text("as"), "hello");

    let place = Place::new();
    let destination = vec!["task".into(), "local".into(), "one.txt".into()];
    let spec = Spec {
        mode: Mode::File,
        destination: destination.clone(),
        ..place.spec(&server.url("/a.tar.gz//in/side.txt"), &[])
    };
    fetch(&spec).expect("fetched");
    assert_eq!(place.text("one.txt"), "side");
    let place = Place::new();
    let spec = Spec { mode: Mode::File, destination, ..place.spec(&server.url("/a.tar.gz"), &[]) };
    assert!(fetch(&spec).expect_err("three files").to_string().contains("exactly one"));
}

#[test]
fn a_second_artifact_is_put_over_the_first() {
    let server = Server::start(
        [("/1.tgz", ok(&tar_gz(&[("d/a", "1"), ("d/b", "1")]))), ("/2.tgz", ok(&tar_gz(&[("d/b", "2")])))].into(),
    );
    let place = Place::new();
    fetch(&place.spec(&server.url("/1.tgz"), &[])).expect("fetched");
    fs::remove_dir_all(place.temp.path().join("root/task/stage")).expect("removed");
    fs::create_dir(place.temp.path().join("root/task/stage")).expect("made");
    fetch(&place.spec(&server.url("/2.tgz"), &[])).expect("fetched");
    assert_eq!((place.text("d/a"), place.text("d/b")), ("1".into(), "2".into()));
}

#[test]
fn what_goes_wrong_says_why_and_whether_to_try_again() {
    let mut cut = ok(&[b'x'; 5000]);
    cut.truncate(3000);
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec();
    let server = Server::start(
        [
            ("/hello.txt", ok(b"hello")),
            ("/busy", status("503 Service Unavailable")),
            ("/slow-down", status("429 Too Many Requests")),
            ("/forbidden", status("403 Forbidden")),
            ("/cut", cut),
            ("/chunked", chunked),
            ("/large", ok(&vec![b'x'; 200_000])),
            ("/a.zip", ok(b"no zip")),
            ("/round", redirect("/round")),
            ("/file", redirect("file:///etc/passwd")),
            ("/SUMS", ok(format!("{HELLO_SHA256}  other.txt\n").as_bytes())),
        ]
        .into(),
    );
    let sums = format!("file:{}", server.url("/SUMS"));
    for (path, options, part, again) in [
        ("/missing", &[][..], "404", false),
        ("/forbidden", &[], "403", false),
        ("/busy", &[], "503", true),
        ("/slow-down", &[], "429", true),
        ("/cut", &[], "broke off", true),
        ("/chunked", &[], "broke off", true),
        ("/large", &[], "http_max_size", false),
        ("/a.zip", &[], "damaged", false),
        ("/round", &[], "redirects", false),
        ("/file", &[], "no http", false),
        ("/hello.txt", &[("checksum", "md5:00000000000000000000000000000000")], "checksum mismatch", false),
        ("/hello.txt", &[("checksum", sums.as_str())], "no checksum for \"hello.txt\"", false),
    ] {
        let place = Place::new();
        let error = fetch(&place.spec(&server.url(path), options)).expect_err(path);
        assert!(error.to_string().contains(part), "{path}: {error}");
        assert_eq!(error.recoverable(), again, "{path}: {error}");
        assert!(place.untouched(), "{path}");
    }
    let place = Place::new();
    let error = fetch(&Spec { mode: Mode::Dir, ..place.spec(&server.url("/hello.txt"), &[]) }).expect_err("a file");
    assert!(error.to_string().contains("mode \"dir\""), "{error}");
    // A port that no other test can get.
    let error = fetch(&place.spec("http://127.0.0.1:1/x", &[])).expect_err("nobody listens");
    assert!(error.recoverable(), "{error}");
}

#[test]
fn a_list_of_checksums_is_fetched_and_used() {
    let list =
        format!("0000000000000000000000000000000000000000000000000000000000000000  a\n{HELLO_SHA256} *hello.txt\n");
    let server = Server::start([("/hello.txt", ok(b"hello")), ("/SUMS", ok(list.as_bytes()))].into());
    let place = Place::new();
    fetch(&place.spec(&server.url("/hello.txt"), &[("checksum", &format!("file:{}", server.url("/SUMS")))]))
        .expect("fetched");
    assert_eq!(place.text("hello.txt"), "hello");
}

#[test]
fn headers_and_passwords_go_to_their_own_host_only() {
    let other = Server::start([("/b", ok(b"b"))].into());
    let server = Server::start([("/a", redirect("/a2")), ("/a2", redirect(&other.url("/b")))].into());
    let place = Place::new();
    let headers = BTreeMap::from([("x-token".to_owned(), "secret".to_owned())]);
    fetch(&Spec {
        headers,
        ..place.spec(&server.url("/a").replace("http://", "http://user:pass%21@"), &[("filename", "b")])
    })
    .expect("fetched");
    assert_eq!(place.text("b"), "b");
    let own = server.heads();
    assert!(own.iter().all(|h| h.contains("x-token: secret")) && own[0].contains("Basic dXNlcjpwYXNzIQ=="), "{own:?}");
    assert!(other.heads().iter().all(|h| !h.contains("secret") && !h.contains("Basic")), "{:?}", other.heads());
}

#[test]
fn destinations_that_are_links_are_refused() {
    let server = Server::start([("/hello.txt", ok(b"hello"))].into());
    let place = Place::new();
    let outside = place.temp.path().join("outside");
    fs::create_dir(&outside).expect("dir");
    symlink(&outside, place.temp.path().join("root/task/local")).expect("link");
    let error = fetch(&place.spec(&server.url("/hello.txt"), &[])).expect_err("refused");
    assert!(error.to_string().contains("a file or a link"), "{error}");
    assert_eq!(fs::read_dir(&outside).expect("list").count(), 0);
}

/// All files below, with their texts.
fn texts_below(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).expect("list") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            texts_below(&path, found);
        } else {
            found.push((path.clone(), fs::read_to_string(&path).expect("read")));
        }
    }
}

#[test]
fn nothing_gets_into_the_nodes_own_directory() {
    let record = "private/executor/x/executor.json";
    let forged = tar_gz(&[(record, "forged")]);
    let below = tar_gz(&[("top/private/executor/x/executor.json", "forged")]);
    let other = tar_gz(&[("private/new", "forged"), ("bin/run", "run")]);
    let server = Server::start(
        [
            ("/forged.tgz", ok(&forged)),
            ("/below.tgz", ok(&below)),
            ("/other.tgz", ok(&other)),
            ("/private", ok(b"forged")),
            ("/fine.tgz", ok(&tar_gz(&[("bin/private/run", "run"), ("Private", "p")]))),
        ]
        .into(),
    );
    let offered = tempfile::tempdir().expect("temp dir");
    fs::create_dir_all(offered.path().join("dir/private/executor/x")).expect("dir");
    fs::write(offered.path().join("dir").join(record), "forged").expect("file");
    let directory = offered.path().join("dir").display().to_string();
    let names = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let place = || {
        let place = Place::new();
        let root = place.temp.path().join("root");
        fs::create_dir_all(root.join("task/private/stage")).expect("dir");
        fs::create_dir_all(root.join("task/private/executor/x")).expect("dir");
        fs::write(root.join("task").join(record), "the node's").expect("record");
        place
    };
    let spec = |place: &Place, source: &str, mode, destination: &str| Spec {
        mode,
        destination: names(destination),
        staging: names("task/private/stage"),
        extra_paths: vec![ExtraPath::parse(&format!("d:r:{}", offered.path().display())).expect("a path")],
        ..place.spec(source, &[])
    };
    for (source, mode, destination) in [
        (server.url("/forged.tgz"), Mode::Any, "task"),
        (server.url("/forged.tgz"), Mode::Dir, "task"),
        (server.url("/below.tgz//top"), Mode::Any, "task"),
        (server.url("/other.tgz"), Mode::Any, "task"),
        (server.url("/private"), Mode::Any, "task"),
        (server.url("/private"), Mode::File, "task/private"),
        (server.url("/private"), Mode::File, "task/private/executor/x/executor.json"),
        (server.url("/below.tgz//top/private"), Mode::Any, "task/private"),
        (directory, Mode::Any, "task"),
    ] {
        let place = place();
        let error = fetch(&spec(&place, &source, mode, destination)).expect_err(&source);
        assert!(error.to_string().contains("the node's own") && !error.recoverable(), "{source}: {error}");
        let task = place.temp.path().join("root/task");
        fs::remove_dir_all(task.join("private/stage")).expect("removed");
        let mut left = Vec::new();
        texts_below(&task, &mut left);
        assert_eq!(left, [(task.join(record), "the node's".to_owned())], "{source}");
    }
    // The name means nothing elsewhere, and the top of the task's directory takes the rest.
    let place = place();
    fetch(&spec(&place, &server.url("/fine.tgz"), Mode::Any, "task")).expect("fetched");
    assert!(place.temp.path().join("root/task/bin/private/run").is_file());
}

#[test]
fn files_of_the_host_only_where_the_operator_offers_them() {
    let place = Place::new();
    let offered = place.temp.path().join("offered");
    fs::create_dir_all(offered.join("dir/sub")).expect("dir");
    fs::write(offered.join("a.sh"), "a").expect("file");
    fs::set_permissions(offered.join("a.sh"), fs::Permissions::from_mode(0o755)).expect("mode");
    fs::write(offered.join("dir/sub/b"), "b").expect("file");
    fs::write(place.temp.path().join("secret"), "s").expect("file");
    symlink("../secret", offered.join("link")).expect("link");
    symlink("/etc", offered.join("dir/etc")).expect("link");
    let extra = vec![ExtraPath::parse(&format!("d:r:{}", offered.display())).expect("a path")];
    let spec =
        |path: &str| Spec { extra_paths: extra.clone(), ..place.spec(&offered.join(path).display().to_string(), &[]) };
    let reset = || {
        fs::remove_dir_all(place.temp.path().join("root/task/stage")).expect("removed");
        fs::create_dir(place.temp.path().join("root/task/stage")).expect("made");
    };
    fetch(&spec("a.sh")).expect("fetched");
    assert_eq!(place.text("a.sh"), "a");
    for (path, part) in [("../secret", "does not offer"), ("link", "neither"), ("dir", "is absolute")] {
        reset();
        let error = fetch(&spec(path)).expect_err(path).to_string();
        assert!(error.contains(part), "{path}: {error}");
    }
    fs::remove_file(offered.join("dir/etc")).expect("removed");
    reset();
    fetch(&spec("dir")).expect("fetched");
    assert_eq!(place.text("sub/b"), "b");
    reset();
    let error = fetch(&Spec { extra_paths: Vec::new(), ..spec("a.sh") }).expect_err("not offered").to_string();
    assert!(error.contains("filesystem_isolation_extra_paths"), "{error}");
}

#[test]
fn signed_requests_reach_an_s3_endpoint() {
    let server = Server::start([("/bucket/dir/hello.txt?versionId=v1", ok(b"hello"))].into());
    let place = Place::new();
    let source = format!("s3::{}", server.url("/bucket/dir/hello.txt"));
    let options =
        [("aws_access_key_id", "ID"), ("aws_access_key_secret", "SECRET"), ("region", "eu-west-1"), ("version", "v1")];
    fetch(&place.spec(&source, &options)).expect("fetched");
    assert_eq!(place.text("hello.txt"), "hello");
    let head = server.heads().remove(0).to_lowercase();
    assert!(head.contains("/eu-west-1/s3/aws4_request") && !head.contains("secret,"), "{head}");
}

#[test]
fn the_body_is_not_read_beyond_the_limit() {
    // Without a length, a server may send for ever.
    let mut endless = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec();
    endless.extend(std::iter::repeat_n(b'x', 150_000));
    let server = Server::start([("/endless", endless)].into());
    let place = Place::new();
    let error = fetch(&place.spec(&server.url("/endless"), &[])).expect_err("too large").to_string();
    assert!(error.contains("100000 bytes"), "{error}");
    let mut rest = Vec::new();
    fs::File::open(place.temp.path().join("root/task/stage/download"))
        .expect("begun")
        .read_to_end(&mut rest)
        .expect("read");
    assert!(rest.len() <= 100_000);
}
