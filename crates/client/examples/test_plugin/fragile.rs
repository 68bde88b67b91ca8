//! A driver that falls over when it has more than a few starts in hand: its process ends, and the next one at once as
//! well, or it breaks all its connections and lives on, in turn. Every fall leaves a byte in the file `falls` of its
//! temporary directory.
//!
//! As in a plugin that is written in Go, a start goes on when the connection breaks that it came by. Files there tell
//! it more: with `hold`, starts are under way until it has fallen over twice; with `cut`, the next start breaks all
//! connections and is under way until another one of its task is; with `break`, all connections break once. Each wait
//! for a task leaves a file `wait.<pid>.<task>.<number>`, and two starts of one task at once the file `two`.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    os::fd::OwnedFd,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use driver_sdk::{
    Capabilities, Error, Inspection, PluginInfo, Started, StopTask, TaskConfig, TaskExit, TaskHandle, TaskStatus,
    async_trait, schema,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::sync::watch;

/// Starts that it can stand at once.
const STANDS: usize = 12;
/// With `hold`, starts are under way until it has fallen over so often.
const FALLS: u64 = 2;
/// Between two looks at the files.
const LOOK: Duration = Duration::from_millis(10);

/// The driver.
#[derive(Default)]
pub(crate) struct Driver {
    starts: Arc<Starts>,
    waits: AtomicUsize,
    stopped: watch::Sender<Vec<String>>,
}

/// What is under way.
#[derive(Default)]
struct Starts {
    in_hand: AtomicUsize,
    allocs: Mutex<BTreeSet<String>>,
    met: watch::Sender<bool>,
}

impl Starts {
    async fn one(&self, alloc: String) {
        if !self.allocs.lock().expect("no panic").insert(alloc.clone()) {
            fs::write(file("two"), "").expect("writable");
            self.met.send_replace(true);
        }
        if self.in_hand.fetch_add(1, Ordering::SeqCst) == STANDS {
            fall();
        }
        if fs::remove_file(file("cut")).is_ok() {
            break_connections();
            let mut met = self.met.subscribe();
            met.wait_for(|met| *met).await.expect("the sender is here");
        }
        while file("hold").exists() && falls() < FALLS {
            tokio::time::sleep(LOOK).await;
        }
        self.allocs.lock().expect("no panic").remove(&alloc);
        self.in_hand.fetch_sub(1, Ordering::SeqCst);
    }
}

fn file(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(name)
}

/// The process after one that has ended of a fall ends as well.
pub(crate) fn comes_up() -> Result<(), ExitCode> {
    fs::remove_file(file("ends-again")).map_or(Ok(()), |()| Err(ExitCode::from(3)))
}

/// Of a task's id, `<alloc>/<task>/<start>`.
fn alloc_of(id: &str) -> String {
    id.split('/').next().unwrap_or_default().to_owned()
}

fn falls() -> u64 {
    fs::metadata(file("falls")).map_or(0, |meta| meta.len())
}

/// Breaks the connections whenever the file says so.
pub(crate) async fn serve() -> ExitCode {
    let breaks = async {
        loop {
            tokio::time::sleep(LOOK).await;
            if fs::remove_file(file("break")).is_ok() {
                break_connections();
            }
        }
    };
    tokio::select! {
        code = driver_sdk::serve(Driver::default()) => code,
        () = breaks => ExitCode::FAILURE,
    }
}

fn fall() {
    let mut falls = fs::File::options().create(true).append(true).open(file("falls")).expect("writable");
    falls.write_all(b".").expect("writable");
    if falls.metadata().expect("open").len() % 2 == 1 {
        fs::write(file("ends-again"), "").expect("writable");
        std::process::exit(9);
    }
    break_connections();
}

fn break_connections() {
    let me = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
    for entry in fs::read_dir("/proc/self/fd").expect("proc").flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let copy = number.and_then(|number| pidfd_getfd(&me, number, PidfdGetfdFlags::empty()).ok());
        // Those of the host have the name of the socket that it listens at.
        let named = |fd: &OwnedFd| {
            let name =
                rustix::net::getsockname(fd).ok().and_then(|name| rustix::net::SocketAddrUnix::try_from(name).ok());
            name.is_some_and(|name| name.path().is_some()) && rustix::net::getpeername(fd).is_ok()
        };
        if let Some(copy) = copy.filter(named) {
            let _ = rustix::net::shutdown(&copy, rustix::net::Shutdown::Both);
        }
    }
}

#[async_trait]
impl driver_sdk::Driver for Driver {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("fragile", "1.0.0")
    }

    fn config_schema(&self) -> Option<schema::Spec> {
        Some(schema::object::<&str>([]))
    }

    async fn set_config(&self, _: driver_sdk::config::Config, _: Option<driver_sdk::AgentConfig>) -> Result<(), Error> {
        Ok(())
    }

    fn task_config_schema(&self) -> schema::Spec {
        schema::object::<&str>([])
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { disable_log_collection: true, ..Capabilities::default() }
    }

    async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> {
        let (starts, alloc) = (self.starts.clone(), alloc_of(&task.id));
        tokio::spawn(async move { starts.one(alloc).await }).await.expect("no panic");
        Ok(Started { driver_state: Vec::new(), version: 1, network: None })
    }

    async fn recover_task(&self, _: TaskHandle) -> Result<(), Error> {
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> {
        let alloc = alloc_of(id);
        let number = self.waits.fetch_add(1, Ordering::SeqCst);
        fs::write(file(&format!("wait.{}.{alloc}.{number}", std::process::id())), "").expect("writable");
        let mut stopped = self.stopped.subscribe();
        stopped.wait_for(|stopped| stopped.iter().any(|one| one == id)).await.expect("the sender is here");
        Ok(TaskExit::code(0))
    }

    async fn stop_task(&self, id: &str, _: StopTask) -> Result<(), Error> {
        self.stopped.send_modify(|stopped| stopped.push(id.to_owned()));
        Ok(())
    }

    async fn destroy_task(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }

    async fn inspect_task(&self, _: &str) -> Result<Inspection, Error> {
        Ok(Inspection { status: TaskStatus::Running, ..Inspection::default() })
    }
}
