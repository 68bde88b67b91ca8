//! A slurmrestd whose Slurm is that of `tests/fake`: a directory and processes. It answers in the form of the version
//! that a path names, and spoils answers when told to.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};

/// What goes wrong with requests whose path holds `on`.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) on: &'static str,
    pub(crate) how: How,
}

#[derive(Clone, Debug)]
pub(crate) enum How {
    /// It is carried out, and the connection ends without an answer.
    Lost,
    /// It is carried out, and the answer breaks off in the middle.
    Truncated,
    /// It is carried out, and the answer is this, with status 200.
    Garbled(&'static str),
    /// It is not carried out, and this is the answer.
    Refused(u16, &'static str),
    /// It is not carried out, and there is never an answer.
    Silent,
}

pub(crate) struct Restd {
    /// The Slurm of `tests/fake`.
    pub(crate) slurm: PathBuf,
    pub(crate) url: String,
    /// The only token that is taken.
    token: Mutex<String>,
    fault: Mutex<Option<Fault>>,
    calls: Mutex<Vec<String>>,
    versions: Vec<u32>,
    accounting: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Request {
    method: String,
    path: String,
    token: String,
    body: Value,
}

impl Restd {
    /// Starts one on loopback that serves these versions, and accounting if `slurm` has a file `accounts.json`.
    pub(crate) async fn start(slurm: &Path, versions: &[u32], token: &str) -> Arc<Restd> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let restd = Arc::new(Restd::new(slurm, url, versions, token));
        let serving = restd.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        restd
    }

    /// The same at a socket.
    pub(crate) fn start_at(socket: &Path, slurm: &Path, versions: &[u32]) -> Arc<Restd> {
        let listener = UnixListener::bind(socket).expect("a socket");
        let restd = Arc::new(Restd::new(slurm, format!("unix:{}", socket.display()), versions, ""));
        let serving = restd.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        restd
    }

    fn new(slurm: &Path, url: String, versions: &[u32], token: &str) -> Restd {
        Restd {
            slurm: slurm.to_owned(),
            url,
            token: Mutex::new(token.to_owned()),
            fault: Mutex::default(),
            calls: Mutex::default(),
            versions: versions.to_vec(),
            accounting: slurm.join("accounts.json").exists(),
        }
    }

    pub(crate) fn spoil(&self, on: &'static str, how: How) {
        *lock(&self.fault) = Some(Fault { on, how });
    }

    pub(crate) fn heal(&self) {
        *lock(&self.fault) = None;
    }

    pub(crate) fn take_only(&self, token: &str) {
        *lock(&self.token) = token.to_owned();
    }

    /// Requests so far whose method and path hold this.
    pub(crate) fn calls(&self, of: &str) -> usize {
        lock(&self.calls).iter().filter(|call| call.contains(of)).count()
    }

    async fn serve<T: AsyncRead + AsyncWrite + Unpin>(self: Arc<Self>, mut stream: T) {
        let Some(request) = read(&mut stream).await else { return };
        lock(&self.calls).push(format!("{} {}", request.method, request.path));
        let fault = lock(&self.fault).clone().filter(|fault| request.path.contains(fault.on)).map(|fault| fault.how);
        let (status, body) = match &fault {
            Some(How::Refused(status, body)) => (*status, (*body).to_owned()),
            Some(How::Silent) => std::future::pending().await,
            _ if request.token != *lock(&self.token) => (401, "Authentication failure".to_owned()),
            _ => {
                let (status, body) = self.answer(&request).await;
                (status, if body.is_null() { "Unable find requested URL.".to_owned() } else { body.to_string() })
            }
        };
        let body = match &fault {
            Some(How::Lost) => return,
            Some(How::Garbled(garbage)) => (*garbage).to_owned(),
            _ => body,
        };
        let head = format!("HTTP/1.1 {status} SAID\r\nConnection: Close\r\nContent-Length: {}\r\n\r\n", body.len());
        let sent = if matches!(fault, Some(How::Truncated)) { &body[..body.len() / 2] } else { &body };
        // Who asked may have gone.
        let _ = stream.write_all(format!("{head}{sent}").as_bytes()).await;
        let _ = stream.shutdown().await;
    }

    /// Status and body; null for a path that there is not.
    async fn answer(&self, request: &Request) -> (u16, Value) {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts == ["openapi", "v3"] {
            let mut paths: Vec<String> = self.versions.iter().map(|v| format!("/slurm/v0.0.{v}/jobs/")).collect();
            if self.accounting {
                paths.extend(self.versions.iter().map(|v| format!("/slurmdb/v0.0.{v}/jobs/")));
            }
            let paths: serde_json::Map<String, Value> =
                paths.into_iter().map(|path| (path, json!({"get": {}}))).collect();
            return (200, json!({"openapi": "3.0.3", "paths": paths}));
        }
        let version = parts.get(1).and_then(|version| version.strip_prefix("v0.0.")?.parse::<u32>().ok());
        let Some(version) = version.filter(|version| self.versions.contains(version)) else {
            return (404, Value::Null);
        };
        let later = version > 38;
        match (request.method.as_str(), parts[0], &parts[2..]) {
            ("GET", "slurm", ["ping"]) => {
                let name = if later { "pinged" } else { "ping" };
                (200, json!({"errors": [], "pings": [{"hostname": "ctl", name: "UP", "mode": "primary"}]}))
            }
            ("GET", "slurm", ["diag"]) => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_secs();
                let meta = json!({if later { "slurm" } else { "Slurm" }: {"release": "22.05.8"}});
                (200, json!({"meta": meta, "errors": [], "statistics": {"req_time": figure(later, Some(now))}}))
            }
            ("GET", "slurm", ["jobs"]) => self.jobs(later).await,
            ("GET", "slurm", ["nodes"]) => {
                let text = std::fs::read_to_string(self.slurm.join("nodes")).unwrap_or_else(|_| "idle".to_owned());
                let (state, silent) = (text.trim().trim_end_matches('*'), text.trim().ends_with('*'));
                let flags: &[&str] = if silent { &["NOT_RESPONDING"] } else { &[] };
                let node = match later {
                    true => json!({"name": "n1", "state": ([&[&*state.to_uppercase()], flags].concat())}),
                    false => json!({"name": "n1", "state": state, "state_flags": flags}),
                };
                (200, json!({"errors": [], "nodes": [node]}))
            }
            ("GET", "slurmdb", ["job", _]) if self.accounting => {
                let text = std::fs::read_to_string(self.slurm.join("accounts.json")).expect("accounts");
                (200, json!({"errors": [], "jobs": serde_json::from_str::<Value>(&text).expect("jobs")}))
            }
            ("POST", "slurm", ["job", "submit"]) => self.submit(later, &request.body).await,
            ("DELETE", "slurm", ["job", id]) => {
                // From v0.0.39 on the index is passed over.
                let id = if later { id.split('_').next().unwrap_or_default() } else { id };
                self.signal(query.strip_prefix("signal=").unwrap_or("KILL"), &[id]).await
            }
            ("DELETE", "slurm", ["jobs"]) if version > 39 => {
                let ids = request.body["jobs"].as_array().cloned().unwrap_or_default();
                let ids: Vec<&str> = ids.iter().filter_map(Value::as_str).collect();
                self.signal(request.body["signal"].as_str().unwrap_or("KILL"), &ids).await
            }
            _ => (404, Value::Null),
        }
    }

    async fn run(&self, command: &str, args: &[String], dir: &Path, typed: &str) -> (bool, String, String) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(command);
        let mut command = tokio::process::Command::new(program);
        command.args(args).current_dir(dir).env("SLURM_CONF", &self.slurm);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        let _ = stdin.write_all(typed.as_bytes()).await;
        drop(stdin);
        let said = child.wait_with_output().await.expect("ended");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (said.status.success(), text(&said.stdout), text(&said.stderr))
    }

    async fn jobs(&self, later: bool) -> (u16, Value) {
        let (good, said, complaint) = self.run("squeue", &[], &self.slurm, "").await;
        if !good {
            let error = json!({"description": complaint, "error_number": -1, "error": "Unspecified error"});
            return (500, json!({"errors": [error], "jobs": []}));
        }
        let row = |line: &str| {
            let cells: Vec<&str> = line.splitn(5, '|').collect();
            let (number, index) = cells[0]
                .split_once('_')
                .map_or((cells[0], None), |(number, index)| (number, Some(index.parse::<u64>().expect("an index"))));
            let number_of: u64 = number.parse().expect("a number");
            let array = index.map_or(0, |_| number_of);
            json!({
                "job_id": index.map_or(number_of, |index| number_of * 1000 + index),
                "array_job_id": figure(later, Some(array)), "array_task_id": figure(later, index),
                "array_task_string": "", "name": cells[1], "nodes": cells[3], "state_reason": cells[4],
                "job_state": if later { json!([cells[2]]) } else { json!(cells[2]) },
                "user_id": rustix::process::geteuid().as_raw(), "user_name": "whoever",
            })
        };
        let mut rows: Vec<Value> = said.lines().map(row).collect();
        // Somebody else's.
        rows.push(json!({"job_id": 9_999_999, "name": "k", "job_state": "RUNNING", "user_id": 4_294_967_200_u64}));
        (200, json!({"errors": [], "jobs": rows}))
    }

    async fn submit(&self, later: bool, body: &Value) -> (u16, Value) {
        let job = &body["job"];
        let script = if later { &job["script"] } else { &body["script"] };
        let dir = match (later, &job["environment"]) {
            (false, Value::Object(env)) => env.get("SLURM_SUBMIT_DIR").and_then(Value::as_str),
            (true, Value::Array(env)) => {
                env.iter().filter_map(Value::as_str).find_map(|line| line.strip_prefix("SLURM_SUBMIT_DIR="))
            }
            _ => None,
        };
        let (Some(script), Some(dir), Some(name)) = (script.as_str(), dir, job["name"].as_str()) else {
            return (400, json!({"errors": [{"error_code": 9001, "error": "Failure during parsing"}]}));
        };
        let mut args = vec![format!("--job-name={name}")];
        for (option, field) in [
            ("output", "standard_output"),
            ("chdir", "current_working_directory"),
            ("array", "array"),
            ("partition", "partition"),
        ] {
            args.extend(job[field].as_str().map(|value| format!("--{option}={value}")));
        }
        let (good, said, complaint) = self.run("sbatch", &args, Path::new(dir), script).await;
        match said.trim().parse::<u64>() {
            Ok(id) if good => (200, json!({"errors": [], "job_id": id, "step_id": "BATCH"})),
            _ => {
                let text = complaint.trim().rsplit("submission failed: ").next().unwrap_or_default();
                (500, json!({"errors": [{"error_code": -1, "error": text}], "job_id": 0}))
            }
        }
    }

    async fn signal(&self, signal: &str, ids: &[&str]) -> (u16, Value) {
        if signal == "NOPE" {
            let error = json!({"description": "invalid signal: 0", "error_number": 9000, "error": "Query empty"});
            return (400, json!({"errors": [error]}));
        }
        // KILL ends a job, also one that waits.
        let mut args: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        if signal != "KILL" {
            args.push(format!("--signal={signal}"));
        }
        self.run("scancel", &args, &self.slurm, "").await;
        (200, json!({"errors": []}))
    }
}

fn figure(later: bool, number: Option<u64>) -> Value {
    match later {
        true => json!({"set": number.is_some(), "infinite": false, "number": number.unwrap_or(0)}),
        false => json!(number),
    }
}

async fn read<T: AsyncRead + Unpin>(stream: &mut T) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let header = |name: &str| {
        let of = |line: &str| {
            line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim().to_owned())
        };
        head.lines().skip(1).find_map(of).unwrap_or_default()
    };
    let length: usize = header("content-length").parse().unwrap_or(0);
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    let mut words = head.lines().next()?.split(' ');
    Some(Request {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        token: header("x-slurm-user-token"),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
