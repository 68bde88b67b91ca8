//! A service of AWS as a test plays it: what it has is the test's, and it shows and loses what the test says. The tests
//! of drivers include this by its path.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use driver_sdk::config::Config;
use driver_sdk::{AgentConfig, Ensure, Instance, Lookup, RemoteDriver, RemoteError, TaskConfig};
use serde_json::{Value, json};

pub(crate) const KEY: &str = "0b7e5c3a-key";
pub(crate) const OWNER: &str = "cluster-1";

/// What a service has and does.
pub(crate) trait Service: Send + 'static {
    /// The answer to a call, by operation or else by path; None = the connection breaks.
    fn answer(&mut self, call: &str, body: &Value) -> Option<(u16, Value)>;
}

fn serve(mut stream: TcpStream, state: &Mutex<impl Service>) -> Option<()> {
    let mut asked = Vec::new();
    let more = |stream: &mut TcpStream, asked: &mut Vec<u8>| {
        let mut part = [0; 4096];
        let n = stream.read(&mut part).ok().filter(|n| *n > 0)?;
        asked.extend_from_slice(&part[..n]);
        Some(())
    };
    let end = loop {
        more(&mut stream, &mut asked)?;
        if let Some(end) = asked.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&asked[..end]).into_owned();
    let field = |name: &str| head.lines().find(|l| l.to_lowercase().starts_with(name));
    let length = field("content-length:").map_or(0, |l| l[15..].trim().parse().expect("a length"));
    while asked.len() < end + 4 + length {
        more(&mut stream, &mut asked)?;
    }
    let body = if length == 0 { &b"null"[..] } else { &asked[end + 4..] };
    let (call, format) = match field("x-amz-target:").and_then(|l| l.rsplit('.').next()) {
        Some(operation) => (operation.trim(), "x-amz-json-1.1"),
        None => (head.split(' ').nth(1)?, "json"),
    };
    let (status, answer) =
        state.lock().expect("unpoisoned").answer(call, &serde_json::from_slice(body).expect("JSON"))?;
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} S\r\ncontent-type: application/{format}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).ok()
}

/// A service on a free port; what listens ends with the process.
pub(crate) struct Cloud<S> {
    state: Arc<Mutex<S>>,
    endpoint: String,
    credentials: PathBuf,
    _dir: tempfile::TempDir,
}

impl<S: Service> Cloud<S> {
    pub(crate) fn of(state: S) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(Mutex::new(state));
        let served = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || serve(stream, &served));
            }
        });
        let dir = tempfile::tempdir().expect("a directory");
        let credentials = dir.path().join("credentials");
        std::fs::write(&credentials, "[default]\naws_access_key_id = k\naws_secret_access_key = s\n").expect("written");
        Self { state, endpoint, credentials, _dir: dir }
    }

    pub(crate) fn set<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        change(&mut self.state.lock().expect("unpoisoned"))
    }

    /// Configures a process of the plugin, which knows nothing of others; `place`: where it starts, and its name.
    pub(crate) async fn configured<D: RemoteDriver>(&self, driver: D, place: (&str, &str), window: &str) -> D {
        let config = json!({
            "enabled": true, place.0: place.1, "region": "us-east-1", "endpoint": self.endpoint,
            "requests_per_second": 1000.0, "consistency_window": window, "shared_credentials_file": self.credentials,
        });
        let config = Config::new(rmp_serde::to_vec_named(&config).expect("bytes"));
        driver.set_config(config, Some(AgentConfig::default())).await.expect("configured");
        driver
    }
}

/// A start by the allocation `a`, as its node prepares it.
pub(crate) fn start_of(key: &str, epoch: u64, first: bool, intent: &[u8], options: &Value) -> Ensure {
    Ensure {
        key: key.into(),
        epoch,
        owner: OWNER.into(),
        slot: "default/j.g[0]/t".into(),
        task: TaskConfig {
            env: [("NOMAD_ALLOC_ID".to_owned(), "a".to_owned())].into(),
            msgpack_driver_config: rmp_serde::to_vec_named(options).expect("bytes"),
            ..TaskConfig::default()
        },
        first,
        intent: intent.to_vec(),
        ..Ensure::default()
    }
}

pub(crate) fn lookup(epoch: u64, intent: &[u8], create_follows: bool) -> Lookup {
    Lookup { key: KEY.into(), owner: OWNER.into(), intent: intent.to_vec(), epoch, create_follows }
}

/// All pages of a listing.
pub(crate) async fn list(plugin: &impl RemoteDriver, size: usize) -> Vec<Instance> {
    let (mut all, mut from) = (Vec::new(), String::new());
    loop {
        let page = plugin.list(OWNER, &from, size).await.expect("listed");
        all.extend(page.instances);
        from = page.next_page_token;
        if from.is_empty() {
            return all;
        }
    }
}

/// Looks up what may have been started in another account, until listings of this one count: that says nothing.
pub(crate) async fn looked_up_elsewhere(driver: &impl RemoteDriver, lookup: &Lookup, other: &str) {
    testkit::poll("the window's end", async || match driver.look_up(lookup.clone()).await {
        Err(RemoteError::CouldNotAsk(why)) => why.contains(other).then_some(()),
        answer => panic!("{answer:?}"),
    })
    .await;
}
