//! Where one check happens: its directory, the processes it starts, and the sweep afterwards.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use driver_proto::base;
use driver_proto::driver::{
    CapabilitiesRequest, DestroyTaskRequest, RecoverTaskRequest, TaskConfigSchemaRequest, TaskHandle,
};
use driver_proto::handshake::{self, API_VERSION, Address};
use driver_proto::plugin::Empty;
use driver_proto::remote::{AcknowledgeRequest, DescribeRequest, Handle, StopRequest};
use driver_proto::{build, hclspec};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::{Response, Status};

use crate::check::Check;
use crate::kit::{TaskKit, replaced};
use crate::outcome::{Outcome, Stop, Verdict, failed, not_applicable};
use crate::plugin::{Launch, Plugin, Process};
use crate::procs::{self, MARK};
use crate::report::Finding;
use crate::subject::{Pace, Profile, Subject};

/// Beyond the patience for single steps.
const CHECK_STEPS: u32 = 6;

/// The scene of one check.
pub(crate) struct Lab {
    pub(crate) subject: Arc<Subject>,
    dir: TempDir,
    /// In the environment of everything that the check starts.
    pub(crate) mark: String,
    plugins: Mutex<Vec<Arc<Plugin>>>,
    /// Started and not known to be destroyed.
    tasks: Mutex<BTreeMap<String, TaskHandle>>,
    /// Ensured and not known to be acknowledged.
    instances: Mutex<BTreeMap<String, (Handle, u64)>>,
    /// Surroundings of tasks; they go when everything has ended.
    kept: Mutex<Vec<Box<dyn Send + Sync>>>,
    counter: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the plugin who it is. The second value says why it could not be asked.
pub(crate) async fn profile(subject: &Subject) -> (Profile, Option<String>) {
    let mut profile = Profile::default();
    let asked = async {
        let lab = Lab::new(Arc::new(subject.clone()))?;
        let outcome = ask(&lab, &mut profile).await;
        lab.finish().await;
        outcome
    };
    let trouble = match asked.await {
        Ok(()) => None,
        Err(Stop::Failed(why) | Stop::NotApplicable(why)) => Some(why),
    };
    (profile, trouble)
}

async fn ask(lab: &Lab, profile: &mut Profile) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    let info = lab.call(&plugin, "PluginInfo", plugin.base().plugin_info(base::PluginInfoRequest {})).await?;
    profile.name = info.name;
    let schema = lab.call(&plugin, "ConfigSchema", plugin.base().config_schema(base::ConfigSchemaRequest {})).await?;
    profile.config_schema = schema.spec;
    let schema =
        lab.call(&plugin, "TaskConfigSchema", plugin.driver().task_config_schema(TaskConfigSchemaRequest {})).await?;
    profile.task_schema = schema.spec;
    // What is known by now decides how the plugin is configured.
    let informed = Lab::new(Arc::new(Subject::clone(&lab.subject).with_profile(profile.clone())))?;
    informed.configure(&plugin).await?;
    let answer = lab.call(&plugin, "Capabilities", plugin.driver().capabilities(CapabilitiesRequest {})).await?;
    profile.capabilities = answer.capabilities.unwrap_or_default();
    profile.remote = lab.answer(&plugin, "Describe", plugin.remote().describe(DescribeRequest {})).await?.ok();
    Ok(())
}

/// Runs one check and cleans up after it.
pub(crate) async fn carry_out(check: &'static Check, subject: Arc<Subject>) -> Finding {
    let begun = Instant::now();
    let limit = subject.pace.patience * CHECK_STEPS;
    let verdict = match Lab::new(subject) {
        Err(stop) => verdict(Err(stop), Vec::new()),
        Ok(lab) => {
            let lab = Arc::new(lab);
            let outcome = timeout(limit, (check.run)(lab.clone())).await;
            let outcome = outcome.unwrap_or_else(|_| failed(format!("the check did not end within {limit:?}")));
            let left = lab.finish().await;
            verdict(outcome, left)
        }
    };
    Finding { check, verdict, took: begun.elapsed() }
}

fn verdict(outcome: Outcome, left: Vec<String>) -> Verdict {
    match outcome {
        Ok(()) if left.is_empty() => Verdict::Passed,
        Ok(()) => Verdict::Failed(format!("left behind after the check: {}", left.join("; "))),
        Err(Stop::Failed(seen)) => Verdict::Failed(seen),
        Err(Stop::NotApplicable(why)) => Verdict::NotApplicable(why),
    }
}

impl Lab {
    pub(crate) fn new(subject: Arc<Subject>) -> Outcome<Lab> {
        // Short, because paths of sockets are limited to 107 bytes.
        match tempfile::Builder::new().prefix("dck").rand_bytes(8).tempdir() {
            Ok(dir) => {
                let mark = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
                Ok(Lab {
                    subject,
                    dir,
                    mark,
                    plugins: Mutex::default(),
                    tasks: Mutex::default(),
                    instances: Mutex::default(),
                    kept: Mutex::default(),
                    counter: AtomicU32::new(0),
                })
            }
            Err(error) => failed(format!("no directory for the check can be made: {error}")),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn pace(&self) -> Pace {
        self.subject.pace
    }

    pub(crate) fn profile(&self) -> &Profile {
        self.subject.profile()
    }

    /// Fresh within the check.
    pub(crate) fn number(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// How tasks are made, or why none can be.
    pub(crate) fn kit(&self) -> Outcome<TaskKit> {
        let profile = self.profile();
        match self.known_kit() {
            Some(kit) => Ok(kit),
            None => not_applicable(format!(
                "the suite does not know how to make tasks for driver {:?}; describe them in a file for -task, or \
                    name a preset",
                profile.name
            )),
        }
    }

    fn known_kit(&self) -> Option<TaskKit> {
        let profile = self.profile();
        self.subject.kit.clone().or_else(|| TaskKit::preset_for(&profile.name, profile.task_schema.as_ref()))
    }

    /// A directory for a process's temporary files; it outlives all tasks of the check.
    fn temp(&self) -> Outcome<PathBuf> {
        let path = self.dir().join(format!("t{}", self.number()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(path),
            Err(error) => failed(format!("{} cannot be made: {error}", path.display())),
        }
    }

    /// A process that has not been talked to.
    pub(crate) fn spawn(&self, launch: &Launch) -> Outcome<Process> {
        Process::spawn(&self.subject, launch, &self.mark, &self.temp()?)
    }

    /// A connected plugin that has no configuration yet.
    pub(crate) async fn launch(&self, launch: Launch) -> Outcome<Arc<Plugin>> {
        let process = self.spawn(&launch)?;
        let line = process.first_line(self.pace().patience).await?;
        let address = match handshake::parse(&line) {
            Ok(address) => address,
            Err(error) => return failed(format!("{error}; {}", process.last_words())),
        };
        let plugin = Arc::new(Plugin::connect(process, address, self.pace().patience).await?);
        lock(&self.plugins).push(plugin.clone());
        Ok(plugin)
    }

    /// A plugin as an agent uses it: launched and configured.
    pub(crate) async fn plugin(&self) -> Outcome<Arc<Plugin>> {
        let plugin = self.launch(Launch::default()).await?;
        self.configure(&plugin).await?;
        Ok(plugin)
    }

    pub(crate) async fn configure(&self, plugin: &Plugin) -> Outcome {
        let request = self.configuration(true)?;
        self.call(plugin, "SetConfig", plugin.base().set_config(request)).await.map(drop)
    }

    /// What SetConfig carries; the agent's part is missing on validation launches.
    pub(crate) fn configuration(&self, with_agent: bool) -> Outcome<base::SetConfigRequest> {
        let given = self.subject.config.clone().or_else(|| self.known_kit()?.plugin);
        let msgpack_config = match &self.profile().config_schema {
            None => Vec::new(),
            Some(schema) => self.encode(schema, &given.unwrap_or_else(|| json!({})), "the plugin's configuration")?,
        };
        let topology = base::ClientTopology {
            node_ids: vec![0],
            distances: Some(base::ClientTopologySlit { dimension: 1, values: vec![10] }),
            cores: vec![base::ClientTopologyCore { guess_speed: 1000, ..base::ClientTopologyCore::default() }],
            ..base::ClientTopology::default()
        };
        let driver = base::NomadDriverConfig {
            client_min_port: handshake::MIN_PORT_DEFAULT.into(),
            client_max_port: handshake::MAX_PORT_DEFAULT.into(),
            topology: Some(topology),
        };
        let nomad_config = with_agent.then_some(base::NomadConfig { driver: Some(driver) });
        Ok(base::SetConfigRequest { msgpack_config, nomad_config, plugin_api_version: API_VERSION.into() })
    }

    pub(crate) fn encode(&self, schema: &hclspec::Spec, config: &Value, what: &str) -> Outcome<Vec<u8>> {
        let config = replaced(config, "@DIR@", &self.dir().display().to_string());
        match (self.subject.encode)(schema, &config) {
            Ok(bytes) => Ok(bytes),
            Err(error) => failed(format!("{what} ({config}) does not fit the driver's own schema: {error}")),
        }
    }

    /// A call that must succeed in time.
    pub(crate) async fn call<T>(
        &self,
        plugin: &Plugin,
        what: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Outcome<T> {
        self.call_after(plugin, what, Duration::ZERO, call).await
    }

    /// A call that may take as long as it was told, and must then succeed in time.
    pub(crate) async fn call_after<T>(
        &self,
        plugin: &Plugin,
        what: &str,
        told: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Outcome<T> {
        match self.answer_after(plugin, what, told, call).await? {
            Ok(answer) => Ok(answer),
            Err(status) => failed(self.refusal(plugin, what, &status).await),
        }
    }

    /// A call that must be answered in time, one way or the other.
    pub(crate) async fn answer<T>(
        &self,
        plugin: &Plugin,
        what: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Outcome<Result<T, Status>> {
        self.answer_after(plugin, what, Duration::ZERO, call).await
    }

    async fn answer_after<T>(
        &self,
        plugin: &Plugin,
        what: &str,
        told: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Outcome<Result<T, Status>> {
        let limit = told + self.pace().patience;
        match timeout(limit, call).await {
            Ok(answer) => Ok(answer.map(Response::into_inner)),
            Err(_) => failed(format!("{what} was not answered within {limit:?}; {}", plugin.process.last_words())),
        }
    }

    async fn refusal(&self, plugin: &Plugin, what: &str, status: &Status) -> String {
        // A broken connection is explained by the process's end, which may show a moment later.
        let asked = timeout(self.pace().patience, plugin.base().plugin_info(base::PluginInfoRequest {})).await;
        let limit =
            if matches!(asked, Ok(Err(_))) { self.pace().limit(Duration::from_secs(2)) } else { Duration::ZERO };
        let plugin_died = if plugin.process.ended(limit).await.is_some() {
            plugin.process.drained(limit).await;
            format!("; the plugin has ended ({}), {}", plugin.process.epitaph(), plugin.process.last_words())
        } else {
            String::new()
        };
        format!("{what} was answered with {:?}: {}{plugin_died}", status.code(), status.message())
    }

    /// The plugin must live and answer.
    pub(crate) async fn still_works(&self, plugin: &Plugin, after: &str) -> Outcome {
        let info = plugin.base().plugin_info(base::PluginInfoRequest {}).await;
        match info {
            Ok(_) => Ok(()),
            Err(status) => failed(self.refusal(plugin, &format!("after {after}, PluginInfo"), &status).await),
        }
    }

    pub(crate) fn keep(&self, surroundings: Box<dyn Send + Sync>) {
        lock(&self.kept).push(surroundings);
    }

    pub(crate) fn remember_task(&self, handle: &TaskHandle) {
        let id = handle.config.as_ref().map(|config| config.id.clone()).unwrap_or_default();
        lock(&self.tasks).insert(id, handle.clone());
    }

    pub(crate) fn forget_task(&self, id: &str) {
        lock(&self.tasks).remove(id);
    }

    pub(crate) fn remember_instance(&self, key: &str, handle: &Handle, epoch: u64) {
        lock(&self.instances).insert(key.to_owned(), (handle.clone(), epoch));
    }

    pub(crate) fn forget_instance(&self, key: &str) {
        lock(&self.instances).remove(key);
    }

    /// Ends everything in the orderly way, then says what is left, and removes that as well.
    pub(crate) async fn finish(&self) -> Vec<String> {
        let limit = self.pace().limit(Duration::from_secs(3)).min(self.pace().patience);
        // Whatever happens here has been said by the check, or shows as something left behind.
        let _ = timeout(limit * 2, self.wind_up()).await;
        let plugins = std::mem::take(&mut *lock(&self.plugins));
        let mut abrupt = Vec::new();
        for plugin in &plugins {
            if plugin.process.alive() {
                let _ = timeout(limit, plugin.controller().shutdown(Empty {})).await;
            }
            let ended = plugin.process.ended(limit).await;
            if ended.is_none_or(|status| !status.success()) {
                plugin.process.kill().await;
                // Who is killed removes nothing.
                if let Address::Unix(path) = &plugin.address {
                    abrupt.push(PathBuf::from(path));
                }
            }
        }
        drop(plugins);
        let mut left = Vec::new();
        let patience = Instant::now() + self.pace().limit(Duration::from_secs(3));
        let mut running = self.belonging();
        while !running.is_empty() && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
            running = self.belonging();
        }
        if !running.is_empty() {
            left.push(format!("processes {}", procs::names(&running)));
            procs::kill(&running);
        }
        let mut files = Vec::new();
        sockets_and_fifos(self.dir(), &mut files);
        files.retain(|path| !abrupt.contains(path) && !path.starts_with(self.dir().join("allocs")));
        if !files.is_empty() {
            let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
            left.push(format!("sockets or fifos {}", names.join(", ")));
        }
        left
    }

    async fn wind_up(&self) {
        let (tasks, instances) = (std::mem::take(&mut *lock(&self.tasks)), std::mem::take(&mut *lock(&self.instances)));
        if tasks.is_empty() && instances.is_empty() {
            return;
        }
        let living = lock(&self.plugins).iter().rev().find(|plugin| plugin.process.alive()).cloned();
        let Ok(plugin) = (match living {
            Some(plugin) => Ok(plugin),
            None => self.plugin().await,
        }) else {
            return;
        };
        for (id, handle) in tasks {
            // Whoever knows the task already says so; the others learn of it.
            let _ =
                plugin.driver().recover_task(RecoverTaskRequest { task_id: String::new(), handle: Some(handle) }).await;
            let _ = plugin.driver().destroy_task(DestroyTaskRequest { task_id: id, force: true }).await;
        }
        for (handle, epoch) in instances.into_values() {
            let timeout = Some(build::duration(Duration::ZERO));
            let stop = StopRequest { handle: Some(handle.clone()), epoch, signal: "SIGKILL".into(), timeout };
            let _ = plugin.remote().stop(stop).await;
            let _ = plugin.remote().acknowledge(AcknowledgeRequest { handle: Some(handle), epoch }).await;
        }
    }

    /// Processes of the check.
    pub(crate) fn belonging(&self) -> Vec<procs::Process> {
        procs::belonging((MARK, &self.mark), Some(self.dir()))
    }
}

impl Drop for Lab {
    /// A check that was given up half-way leaves nothing either.
    fn drop(&mut self) {
        procs::kill(&self.belonging());
    }
}

fn sockets_and_fifos(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => sockets_and_fifos(&entry.path(), found),
            Ok(kind) if kind.is_socket() || kind.is_fifo() => found.push(entry.path()),
            _ => {}
        }
    }
}
