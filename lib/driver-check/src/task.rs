//! A task of the suite: made as an agent makes it, with its directories and logs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use driver_proto::build;
use driver_proto::driver::*;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tokio::sync::mpsc;
use tonic::Status;

use crate::kit::{EXIT_CODE, Work};
use crate::lab::Lab;
use crate::outcome::{Outcome, failed};
use crate::plugin::Plugin;
use crate::procs::{self, MARK};

/// Variable with the id of a task, in the environment of the task only.
pub(crate) const TASK_MARK: &str = "DROVER_CHECK_TASK";
/// Long enough for every task that ends by itself or at a signal.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Name of all tasks.
pub(crate) const NAME: &str = "t";

/// What is known of a fifo's other side.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    text: Vec<u8>,
    /// Somebody has opened it for writing.
    opened: bool,
}

/// A fifo that is read until the last copy of this goes.
#[derive(Debug, Clone)]
pub(crate) struct Fifo {
    heard: Arc<Mutex<Heard>>,
    _alive: mpsc::Sender<()>,
}

impl Fifo {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the two logs of a task.
#[derive(Debug, Clone)]
pub(crate) enum Log {
    /// Read by us as an agent reads it.
    Fifo(Fifo),
    /// Written by the driver itself: all files of this name in order.
    Files(PathBuf, String),
}

impl Log {
    pub(crate) fn fifo(path: &Path) -> io::Result<Log> {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let file: File =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?.into();
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let (_alive, gone) = mpsc::channel(1);
        tokio::spawn(listen(file, heard.clone(), gone));
        Ok(Log::Fifo(Fifo { heard, _alive }))
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Log::Fifo(fifo) => String::from_utf8_lossy(&fifo.heard().text).into_owned(),
            Log::Files(dir, name) => (0..)
                .map_while(|n| std::fs::read(dir.join(format!("{name}.{n}"))).ok())
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .collect(),
        }
    }

    pub(crate) fn opened(&self) -> bool {
        match self {
            Log::Fifo(fifo) => fifo.heard().opened,
            Log::Files(..) => true,
        }
    }
}

async fn listen(file: File, heard: Arc<Mutex<Heard>>, mut gone: mpsc::Receiver<()>) {
    let mut buffer = [0; 16 << 10];
    loop {
        let read = rustix::io::read(&file, &mut buffer);
        let mut idle = true;
        {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            match read {
                // Nobody has it open, not yet or no longer.
                Ok(0) => {}
                Ok(n) => {
                    heard.opened = true;
                    heard.text.extend_from_slice(&buffer[..n]);
                    idle = false;
                }
                // A writer that has nothing to say.
                Err(rustix::io::Errno::AGAIN) => heard.opened = true,
                Err(_) => return,
            }
        }
        if idle && tokio::time::timeout(Duration::from_millis(5), gone.recv()).await.is_ok() {
            return;
        }
    }
}

/// A task that has not been started.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    pub(crate) config: TaskConfig,
    pub(crate) out: Log,
    pub(crate) err: Log,
}

/// A started task.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) handle: TaskHandle,
    pub(crate) out: Log,
    pub(crate) err: Log,
}

impl Prepared {
    pub(crate) fn id(&self) -> &str {
        &self.config.id
    }
}

impl Lab {
    /// Everything that an agent has ready before it starts a task.
    pub(crate) fn prepare(&self, work: Work<'_>) -> Outcome<Prepared> {
        let kit = self.kit()?;
        let config = kit.config(work)?;
        let Some(schema) = &self.profile().task_schema else {
            return failed("the driver did not tell the schema of its tasks");
        };
        let bytes = self.encode(schema, &config, "the task's configuration")?;
        self.prepare_bytes(bytes)
    }

    pub(crate) fn prepare_bytes(&self, msgpack_driver_config: Vec<u8>) -> Outcome<Prepared> {
        match self.laid_out(msgpack_driver_config) {
            Ok(prepared) => Ok(prepared),
            Err(error) => failed(format!("the task's directories cannot be made: {error}")),
        }
    }

    fn laid_out(&self, msgpack_driver_config: Vec<u8>) -> io::Result<Prepared> {
        let number = self.number();
        // Unique in the machine: drivers name cgroups and containers after it.
        let alloc_id = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
        let alloc_dir = self.dir().join("allocs").join(&alloc_id);
        let logs = alloc_dir.join("alloc/logs");
        for dir in ["alloc/logs", "alloc/tmp", "alloc/data", "t/local", "t/secrets", "t/private", "t/tmp"] {
            std::fs::create_dir_all(alloc_dir.join(dir))?;
        }
        let (stdout_path, stderr_path) =
            (logs.join(format!(".{NAME}.stdout.fifo")), logs.join(format!(".{NAME}.stderr.fifo")));
        let (out, err) = (Log::fifo(&stdout_path)?, Log::fifo(&stderr_path)?);
        let own_logs = self.profile().capabilities.disable_log_collection;
        let drover_log = own_logs.then(|| LogPolicy {
            dir: logs.display().to_string(),
            stdout_name: format!("{NAME}.stdout"),
            stderr_name: format!("{NAME}.stderr"),
            max_files: 10,
            max_file_size_bytes: 10 << 20,
            disabled: false,
        });
        let id = format!("{alloc_id}/{NAME}/{:08x}", number.wrapping_mul(0x9e37_79b9) ^ 0x5eed);
        let env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("NOMAD_ALLOC_ID", alloc_id.clone()),
            ("NOMAD_TASK_NAME", NAME.to_owned()),
            (MARK, self.mark.clone()),
            (TASK_MARK, id.clone()),
        ];
        let mut config = TaskConfig {
            id,
            name: NAME.into(),
            msgpack_driver_config,
            env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            alloc_dir: alloc_dir.display().to_string(),
            stdout_path: stdout_path.display().to_string(),
            stderr_path: stderr_path.display().to_string(),
            task_group_name: "g".into(),
            job_name: "check".into(),
            job_id: "check".into(),
            namespace: "default".into(),
            node_name: "node".into(),
            node_id: "00000000-0000-0000-0000-000000000001".into(),
            alloc_id,
            drover_log,
            ..TaskConfig::default()
        };
        build::fill_resources(&mut config);
        if let Some(resources) = &mut config.resources {
            if let Some(allocated) = &mut resources.allocated_resources {
                allocated.cpu = Some(AllocatedCpuResources { cpu_shares: 100 });
                allocated.memory = Some(AllocatedMemoryResources { memory_mb: 300, memory_max_mb: 300 });
            }
            if let Some(linux) = &mut resources.linux_resources {
                (linux.cpu_shares, linux.memory_limit_bytes, linux.percent_ticks) = (100, 300 << 20, 0.1);
            }
        }
        let files = |name: &str| Log::Files(logs.clone(), format!("{NAME}.{name}"));
        if let Some(prepare) = &self.subject.surroundings {
            self.keep(prepare(&mut config)?);
        }
        // The readers stay: what a driver does with fifos that it should not touch is seen by them.
        Ok(if own_logs {
            Prepared { config, out: files("stdout"), err: files("stderr") }
        } else {
            Prepared { config, out, err }
        })
    }

    /// Starts it; the answer must be usable.
    pub(crate) async fn start(&self, plugin: &Plugin, prepared: Prepared) -> Outcome<Task> {
        let Prepared { config, out, err } = prepared;
        let request = StartTaskRequest { task: Some(config.clone()) };
        // Until the answer tells more: whatever is known by this id must be destroyed.
        let blank = TaskHandle { config: Some(config.clone()), ..TaskHandle::default() };
        self.remember_task(&blank);
        let response = self.call(plugin, "StartTask", plugin.driver().start_task(request)).await?;
        // What the host keeps: its own copy of the configuration.
        let handle = TaskHandle { config: Some(config.clone()), ..response.handle.unwrap_or_default() };
        self.remember_task(&handle);
        Ok(Task { id: config.id, handle, out, err })
    }

    /// Makes and starts a task.
    pub(crate) async fn task(&self, plugin: &Plugin, work: Work<'_>) -> Outcome<Task> {
        let prepared = self.prepare(work)?;
        self.start(plugin, prepared).await
    }

    /// Waits for the end of a task.
    pub(crate) async fn wait(&self, plugin: &Plugin, id: &str) -> Outcome<WaitTaskResponse> {
        self.call(plugin, "WaitTask", plugin.driver().wait_task(WaitTaskRequest { task_id: id.into() })).await
    }

    /// A question about the end that is not waited for.
    pub(crate) fn waiting(
        &self,
        plugin: &Plugin,
        id: &str,
    ) -> tokio::task::JoinHandle<Result<WaitTaskResponse, Status>> {
        let (mut driver, task_id) = (plugin.driver(), id.to_owned());
        tokio::spawn(
            async move { driver.wait_task(WaitTaskRequest { task_id }).await.map(tonic::Response::into_inner) },
        )
    }

    /// Gives such questions the time to arrive. What is asked after them is answered when the plugin has had its turn.
    pub(crate) async fn arrived(&self, plugin: &Plugin, id: &str) -> Outcome {
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.inspect(plugin, id).await.map(drop)
    }

    /// The answer to such a question.
    pub(crate) async fn answered(
        &self,
        what: &str,
        waiting: tokio::task::JoinHandle<Result<WaitTaskResponse, Status>>,
    ) -> Outcome<Result<WaitTaskResponse, Status>> {
        match tokio::time::timeout(self.pace().patience, waiting).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => failed(format!("{what}: {error}")),
            Err(_) => failed(format!("{what} was not answered within {:?}", self.pace().patience)),
        }
    }

    pub(crate) async fn stop(&self, plugin: &Plugin, id: &str, signal: &str, timeout: Duration) -> Outcome {
        let request =
            StopTaskRequest { task_id: id.into(), timeout: Some(build::duration(timeout)), signal: signal.into() };
        self.call_after(plugin, "StopTask", timeout, plugin.driver().stop_task(request)).await.map(drop)
    }

    pub(crate) async fn destroy(&self, plugin: &Plugin, id: &str) -> Outcome {
        let request = DestroyTaskRequest { task_id: id.into(), force: true };
        self.call(plugin, "DestroyTask(force)", plugin.driver().destroy_task(request)).await?;
        self.forget_task(id);
        Ok(())
    }

    pub(crate) async fn recover(&self, plugin: &Plugin, handle: &TaskHandle) -> Outcome {
        // Hosts never set the id beside the handle.
        let request = RecoverTaskRequest { task_id: String::new(), handle: Some(handle.clone()) };
        self.call(plugin, "RecoverTask", plugin.driver().recover_task(request)).await.map(drop)
    }

    pub(crate) async fn inspect(&self, plugin: &Plugin, id: &str) -> Outcome<InspectTaskResponse> {
        self.call(plugin, "InspectTask", plugin.driver().inspect_task(InspectTaskRequest { task_id: id.into() })).await
    }

    /// Until it is so, or the text says what did not come.
    pub(crate) async fn until(&self, what: &str, mut so: impl FnMut() -> bool) -> Outcome {
        let begun = Instant::now();
        while !so() {
            if begun.elapsed() > self.pace().patience {
                return failed(format!("within {:?} {what}", self.pace().patience));
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        Ok(())
    }

    /// The task's standard output, once it holds this.
    pub(crate) async fn printed(&self, task: &Task, wanted: &str) -> Outcome<String> {
        let seen = || task.out.text();
        match self.until("", || seen().contains(wanted)).await {
            Ok(()) => Ok(seen()),
            Err(_) => failed(format!("the task's standard output does not hold {wanted:?} but {:?}", excerpt(&seen()))),
        }
    }
}

/// Processes of a task on this machine.
pub(crate) fn processes(id: &str) -> Vec<procs::Process> {
    procs::belonging((TASK_MARK, id), None)
}

/// The task must have ended by itself in the way that was asked for.
pub(crate) fn ended_by_itself(answer: &WaitTaskResponse) -> Outcome {
    let result = answer.result.unwrap_or_default();
    match (result.exit_code, result.signal, answer.err.as_str()) {
        (EXIT_CODE, 0, "") => Ok(()),
        other => failed(format!(
            "the task ended with exit code {EXIT_CODE}, WaitTask says (code, signal, error) = {other:?}"
        )),
    }
}

pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
