//! What the machine asks for, carried out: thin, each a future that ends in one event. All of them may be repeated
//! after a crash.

use std::{sync::Arc, time::Duration};

use driver_host::{CallError, Driver, TaskHandle, handle_from_bytes};
use hooks::{
    api_socket::ApiSocket,
    collectors::Collectors,
    containment::Containment,
    drivers::Drivers,
    network::{Networks, hook as network},
    place::TaskPlace,
    task_config,
    vault::VaultTokens,
};
use host::{cpuset::CoreBinder, leftovers, secrets};
use lifecycle::alloc::machine::Exit;
use model::GoDuration;
use node_config::Patience;
use node_record::store::{LocalStore, Write};

/// How often a call whose connection breaks is made again, and for how long one has to hold to count as the first
/// again.
const BROKEN_TIMES: u32 = 12;
const BROKEN_FRESH: Duration = Duration::from_secs(30);
/// Attempts to free a run before its driver owes that.
const FREE_ATTEMPTS: u32 = 4;
/// How often and how long to wait for a driver that does not know a task yet.
const UNKNOWN_TRIES: u32 = 30;
const UNKNOWN_PAUSE: Duration = Duration::from_millis(100);

/// What becomes of runs after their start: they are waited for, stopped and freed.
pub(crate) struct Runs {
    pub(crate) store: LocalStore,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) containment: Arc<Containment>,
    pub(crate) collectors: Arc<Collectors>,
    pub(crate) api: Arc<ApiSocket>,
    pub(crate) vault: Arc<VaultTokens>,
    pub(crate) networks: Arc<Networks>,
    pub(crate) cores: Arc<CoreBinder>,
    pub(crate) patience: Patience,
    pub(crate) max_kill_timeout: Duration,
}

impl Runs {
    /// Waits without an end for a process of the plugin that is newer than `generation`; people are told once.
    async fn ready_for_ever(&self, place: &TaskPlace, driver: &Driver, generation: u64) {
        if let Err(why) = self.drivers.ready(driver, generation).await {
            place.note(format!("{why}; the task runs on unattended until the plugin is back"));
            driver.wait_ready(generation).await;
        }
    }

    /// Makes the driver know a run of a former agent again.
    pub(crate) async fn recover(&self, place: &TaskPlace, handle: &[u8]) -> Result<(), String> {
        let handle = decode(handle)?;
        if let Some(task) = place.task() {
            let driver = self.drivers.for_ever(place.driver_name()).await;
            self.api.listen(place, task_config::keeper_of(task, &driver.capabilities().unwrap_or_default())).await;
            if !driver.capabilities().unwrap_or_default().disable_log_collection && !task_config::logs_disabled(task) {
                // The collector outlives the agent; one that was killed begins again.
                if let Err(error) = self.collectors.collect(place, task).await {
                    tracing::warn!(alloc = %place.alloc.id, task = %place.task, error, "logs are not collected");
                }
            }
        }
        let mut broken = Broken::default();
        loop {
            let driver = self.drivers.for_ever(place.driver_name()).await;
            let generation = driver.generation();
            match driver.recover_task(handle.clone()).await {
                Ok(()) => return Ok(()),
                Err(e) if e.is_plugin_gone() => self.ready_for_ever(place, &driver, generation).await,
                Err(e) if broken.again(&e).await => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Waits for the end of a run over any number of plugin processes.
    pub(crate) async fn wait(&self, place: &TaskPlace, run: &str, handle: &[u8]) -> Exit {
        let lost = |message: String| Exit { code: -1, message, lost: true, ..Exit::default() };
        let handle = match decode(handle) {
            Ok(handle) => handle,
            Err(why) => return lost(why),
        };
        // The process that has been told of the task last.
        let mut told = None;
        let mut broken = Broken::default();
        loop {
            let driver = self.drivers.for_ever(place.driver_name()).await;
            let generation = driver.generation();
            match driver.wait_task(run).await {
                Ok(exit) => {
                    return Exit {
                        code: exit.exit_code,
                        signal: exit.signal,
                        oom_killed: exit.oom_killed,
                        message: exit.error.unwrap_or_default(),
                        lost: false,
                    };
                }
                Err(e) if e.is_plugin_gone() => self.ready_for_ever(place, &driver, generation).await,
                // The task is still there, and its driver is asked again.
                Err(e) if broken.again(&e).await => {}
                // A new process of the plugin may have come up between two calls, as often as it dies.
                Err(e) if e.is_task_not_found() && told != Some(driver.generation()) => {}
                Err(e) => return lost(e.to_string()),
            }
            // Whatever interrupted the wait: the task is only over when a driver that has recovered it says so.
            let driver = self.drivers.for_ever(place.driver_name()).await;
            let generation = driver.generation();
            match driver.recover_task(handle.clone()).await {
                // By this process, or by one that has died meanwhile: then nothing is lost but a call.
                Ok(()) => told = Some(generation),
                Err(e) if e.is_plugin_gone() => self.ready_for_ever(place, &driver, generation).await,
                Err(e) if broken.again(&e).await => {}
                Err(e) => return lost(format!("the task was lost with its driver's process: {e}")),
            }
        }
    }

    /// Stops a run. Cancelled when its end is known.
    pub(crate) async fn stop(&self, place: &TaskPlace, run: &str, signal: &str, timeout: GoDuration) -> Stopped {
        let mut last = String::new();
        let mut signal = signal;
        for pause in [Duration::ZERO].iter().chain(&self.patience.stop) {
            tokio::time::sleep(*pause).await;
            let driver = match self.drivers.in_time(place.driver_name()).await {
                Ok(driver) => driver,
                Err(why) => match self.without_driver(place, &why, run, signal, timeout).await {
                    Some(exit) => return Stopped::Contained(exit),
                    None => self.drivers.for_ever(place.driver_name()).await,
                },
            };
            let generation = driver.generation();
            let mut answer = driver.stop_task(run, signal, timeout.to_std()).await;
            if let Err(e) = &answer {
                if e.is_plugin_gone() && self.drivers.ready(&driver, generation).await.is_ok() {
                    // Not the task's fault: at once again, when the new process has had time to recover it.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    answer = driver.stop_task(run, signal, timeout.to_std()).await;
                } else if refuses_signal(e, signal) {
                    place.note(format!(
                        "The driver refuses kill_signal {signal:?}, which is no signal of this node ({e}); its \
                            default is sent"
                    ));
                    signal = "";
                    answer = driver.stop_task(run, signal, timeout.to_std()).await;
                }
            }
            // A process that has just been started may not have recovered the task yet; whether it is over is for the
            // wait to say, and that ends this call.
            for _ in 0..UNKNOWN_TRIES {
                if !matches!(&answer, Err(e) if e.is_task_not_found()) {
                    break;
                }
                tokio::time::sleep(UNKNOWN_PAUSE).await;
                answer = driver.stop_task(run, signal, timeout.to_std()).await;
            }
            match answer {
                Ok(()) => return Stopped::ByDriver,
                Err(e) if e.is_task_not_found() => return Stopped::ByDriver,
                Err(e) => last = e.to_string(),
            }
            tracing::warn!(run, error = last, "the driver could not stop the task, will try again");
        }
        place.note(format!("The driver could not stop the task: {last}. It is destroyed"));
        let driver = self.drivers.for_ever(place.driver_name()).await;
        if let Err(error) = driver.destroy_task(run, true).await {
            tracing::warn!(run, %error, "the driver could not destroy what it could not stop");
        }
        if let Err(why) = self.containment.contain(place).await {
            place.note(why);
        }
        Stopped::Refused(last)
    }

    /// Ends a run that its driver has not recovered: with the driver as soon as that is there (then nothing is to be
    /// done here), else without it.
    pub(crate) async fn end_unattended(&self, place: &TaskPlace, run: &str) -> Option<Exit> {
        let why = self.drivers.in_time(place.driver_name()).await.err()?;
        let asked = place.task().and_then(|task| task.kill_timeout).unwrap_or(GoDuration::from_secs(5));
        let timeout = asked.min(GoDuration::from(self.max_kill_timeout));
        let signal = place.task().map(|task| task.kill_signal.clone()).unwrap_or_default();
        self.without_driver(place, &why, run, &signal, timeout).await
    }

    /// Stops a run at its executor, where it has one of ours: signal, grace and exit code are as if its driver were
    /// there. What is left of it stays for the driver to free.
    async fn stop_at_executor(&self, place: &TaskPlace, run: &str, signal: &str, timeout: GoDuration) -> Option<Exit> {
        let state_dir = place.task_dirs().root.join("private/executor").join(run.rsplit('/').next()?);
        let executor = executor_client::Executor::attach(&state_dir).await.ok()?;
        let number = executor_client::signal_number(signal).or_else(|| executor_client::signal_number("SIGINT"))?;
        match executor.stop(number, timeout.to_std()).await {
            Ok(result) => Some(Exit {
                code: result.exit_code,
                signal: result.signal,
                oom_killed: result.oom_killed,
                message: result.reason,
                lost: false,
            }),
            Err(error) => {
                tracing::warn!(run, %error, "the executor of a task whose driver is not there could not stop it");
                None
            }
        }
    }

    /// Ends the processes of a task whose driver is not there. `None` when there were none: it may live where this
    /// node cannot look.
    async fn without_driver(
        &self,
        place: &TaskPlace,
        why: &str,
        run: &str,
        signal: &str,
        timeout: GoDuration,
    ) -> Option<Exit> {
        if let Some(exit) = self.stop_at_executor(place, run, signal, timeout).await {
            place.note(format!("{why}. The task was stopped at its executor"));
            return Some(exit);
        }
        match self.containment.contain(place).await {
            Ok(0) => {
                place.note(format!(
                    "{why}. No process of the task was found on this node; it is stopped as soon as its driver is back"
                ));
                None
            }
            Ok(killed) => {
                let message = format!(
                    "{why}; {killed} processes of the task were killed by the node, the exit code is not known"
                );
                Some(Exit { code: 137, signal: 9, message, ..Exit::default() })
            }
            Err(resisting) => {
                place.note(format!("{why}; {resisting}"));
                None
            }
        }
    }

    /// Frees an ended run at its driver and ends whatever it has left. True when the driver still owes that.
    pub(crate) async fn free(
        &self,
        place: &TaskPlace,
        run: &str,
        handle: Option<&[u8]>,
        known: bool,
        mut lost: bool,
    ) -> bool {
        let mut known = known;
        for attempt in 1.. {
            let Err(why) = self.destroy_at_driver(place, run, handle, &mut known).await else {
                break;
            };
            tracing::warn!(run, why, attempt, "the driver could not free the task");
            match self.containment.contain(place).await {
                // What was lost has been found.
                Ok(1..) => lost = false,
                Ok(0) => {}
                Err(resisting) => {
                    lost = true;
                    place.note(resisting);
                }
            }
            if attempt >= FREE_ATTEMPTS && !lost {
                place.note(format!(
                    "The driver could not free what it holds for the task: {why}. The node goes on trying"
                ));
                return true;
            }
            if attempt == FREE_ATTEMPTS {
                let held = "and nobody knows whether the task still runs, so it is not started again before";
                place.note(format!(
                    "The driver could not free what it holds for the task: {why}. The node goes on trying, {held}"
                ));
            }
            tokio::time::sleep(Duration::from_millis(200 << (attempt - 1).min(7))).await;
        }
        while let Err(resisting) = self.containment.contain(place).await {
            // A successor beside what resists would be a duplicate.
            place.note(resisting);
            tokio::time::sleep(self.patience.owed.0).await;
        }
        false
    }

    /// Frees a run that its driver could not free before.
    pub(crate) async fn settle(&self, place: &TaskPlace, run: &str, handle: Option<&[u8]>) {
        let (mut pause, longest) = self.patience.owed;
        let mut known = false;
        while let Err(why) = self.destroy_at_driver(place, run, handle, &mut known).await {
            tracing::debug!(run, why, "the driver still cannot free the task");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        tracing::info!(run, "the driver has freed the task at last");
    }

    /// One attempt. A process of the driver that does not know the run is told of it first: without that it would
    /// have nothing to destroy.
    async fn destroy_at_driver(
        &self,
        place: &TaskPlace,
        run: &str,
        handle: Option<&[u8]>,
        known: &mut bool,
    ) -> Result<(), String> {
        // Whatever comes up meanwhile is a new process.
        *known &= self.drivers.now(place.driver_name()).is_some_and(|driver| driver.is_ready());
        let driver = self.drivers.in_time(place.driver_name()).await?;
        let handle = handle.and_then(|h| decode(h).ok());
        let tell = async || match handle.clone() {
            // Another failure means that there is nothing to find, or that it can only be destroyed.
            Some(handle) => driver
                .recover_task(handle)
                .await
                .or_else(|e| if e.is_plugin_gone() || e.is_disconnected() { Err(e.to_string()) } else { Ok(()) }),
            None => Ok(()),
        };
        if !*known {
            tell().await?;
        }
        let mut destroyed = driver.destroy_task(run, true).await;
        if matches!(destroyed, Ok(false)) && *known {
            // Not the process that has seen the end.
            tell().await?;
            destroyed = driver.destroy_task(run, true).await;
        }
        *known = !destroyed.as_ref().is_err_and(driver_host::CallError::is_plugin_gone);
        destroyed.map(drop).map_err(|e| e.to_string())
    }

    /// The task is dead: collector, fifos, secrets and cgroups go.
    pub(crate) async fn task_over(&self, place: &TaskPlace) {
        self.vault.over(place).await;
        let mut released = self.collectors.end(place).await;
        self.cores.sweep().await;
        let secrets = place.task_dirs().secrets;
        let (apis, over) = (self.api.apis.clone(), place.clone());
        let end = move || {
            apis.end(over.alloc.id, &over.task, &secrets);
            secrets::unmount_at(&secrets)
        };
        if let Ok(Err(error)) = blocking::spawn(end).await {
            tracing::warn!(alloc = %place.alloc.id, task = %place.task, %error, "the secrets of a dead task stay \
                until its directory goes");
        }
        if let Some(cgroup) = self.containment.cgroup(place) {
            match blocking::spawn(move || cgroup.destroy()).await {
                Ok(Ok(_)) => {
                    released.push(Write::Release { kind: "cgroup", key: format!("{}.{}", place.alloc.id, place.task) })
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "task cgroups stay, the next sweep tries again")
                }
                Err(_) => {}
            }
        }
        if !released.is_empty() {
            let _ = self.store.commit(released).await;
        }
    }

    /// Directories of the allocation go.
    pub(crate) async fn destroy(&self, place: &TaskPlace) {
        let dirs = place.dirs.clone();
        leftovers::end_alloc(&self.containment.places, place.alloc.id).await;
        place.network.release();
        network::end(&self.networks, &place.network).await;
        match blocking::spawn(move || dirs.destroy()).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::warn!(alloc = %place.alloc.id, %error, "the allocation's directory was not removed, the next \
                    sweep tries again")
            }
        }
    }
}

fn decode(handle: &[u8]) -> Result<TaskHandle, String> {
    handle_from_bytes(handle).ok_or_else(|| "the stored handle is damaged".to_owned())
}

/// Broken connections to a plugin that lives, each after a pause: a task is not given up for them.
#[derive(Default)]
struct Broken {
    times: u32,
    last: Option<tokio::time::Instant>,
}

impl Broken {
    /// Whether the call is made again, after a pause. A plugin that breaks the same call for good is believed in the
    /// end.
    async fn again(&mut self, error: &CallError) -> bool {
        let now = tokio::time::Instant::now();
        if self.last.replace(now).is_none_or(|last| now.duration_since(last) > BROKEN_FRESH) {
            self.times = 0;
        }
        if !error.is_disconnected() || self.times >= BROKEN_TIMES {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(100 << self.times.min(6))).await;
        self.times += 1;
        true
    }
}

/// What became of a stop.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The end is seen by [`wait`].
    ByDriver,
    /// The driver has destroyed it after it could not stop it; the end is seen by [`wait`].
    Refused(String),
    /// Its driver was not there: this node has ended its processes by itself, and nobody else sees the end.
    Contained(Exit),
}

/// Whether a stop has failed by its signal: the driver has answered, and the signal is none that this node knows. What
/// did not reach the driver, or was not answered, says nothing of the signal.
fn refuses_signal(error: &CallError, signal: &str) -> bool {
    let answered = matches!(error, CallError::Failed { .. } | CallError::Unsupported { .. });
    answered && !signal.is_empty() && !host::fingerprint::is_signal(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_the_driver_refuses_a_signal() {
        let (driver, call) = (|| "d".to_owned(), "StopTask");
        let code = tonic::Code::Unknown;
        let failed =
            CallError::Failed { driver: driver(), call, code, message: "invalid signal".into(), recoverable: None };
        let unsupported = CallError::Unsupported { driver: driver(), call, message: "no such signal".into() };
        for (error, expected) in [
            (failed, true),
            (unsupported, true),
            (CallError::Disconnected { driver: driver(), call, reason: "reset".into() }, false),
            (CallError::Timeout { driver: driver(), call, after: BROKEN_FRESH }, false),
            (CallError::PluginGone { driver: driver(), call, generation: 1 }, false),
            (CallError::NotReady { driver: driver(), reason: "restarts".into() }, false),
            (CallError::TaskNotFound { driver: driver(), task: "t".into() }, false),
        ] {
            assert_eq!(refuses_signal(&error, "SIGNOTHING"), expected, "{error:?}");
            assert!(!refuses_signal(&error, "SIGTERM") && !refuses_signal(&error, ""), "{error:?}");
        }
    }
}
