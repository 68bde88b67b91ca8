//! Keeps one plugin running.
//!
//! ```text
//!            ┌──────────── failed, may go better: back-off ───────────┐
//!            ▼                                                        │
//! start ▶ Starting ── reattached or launched, configured ──▶ Ready ── died
//!            │                                                 │
//!            └─ cannot go better ─▶ Quarantined ◀── displaced ─┤
//!                                       │                      │
//!                                 reload▼         ending ──────┴▶ Ended (process stopped, or left for the next agent)
//! ```
//!
//! A quarantined plugin shows its reason in the fingerprint and waits for a reload; others never notice.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver_proto::build;
use driver_proto::driver::fingerprint_response::HealthState;
use driver_proto::driver::{DriverTaskEvent, FingerprintRequest, FingerprintResponse, TaskEventsRequest};
use driver_proto::handshake::Address;
use driver_proto::structs::{Attribute, attribute};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, jitter};
use crate::devices;
use crate::driver::{Facts, Phase, Shared};
use crate::error::{LaunchError, bounded};
use crate::host::{Ending, EndingSignal, Granted, Registry, nobody_listens, sweep_dead_sockets};
use crate::launches::Launches;
use crate::options::{AgentConfig, PluginSpec, Timing};
use crate::process::{KillOnDrop, OutputPipes, Place, Process, find, launch};
use crate::reattach::{self, Record};
use crate::reload::{Order, Reloaded};
use crate::scope::Mark;
use crate::serves::{self, Serves};
use crate::session::{self, DEVICES, Running, Session};
use crate::stderr::Tail;
use crate::streams::{self, Ended};
use crate::types::{DriverEvent, DriverFingerprint};

/// Unanswered questions in a row after which a plugin counts as hung.
const STRIKES_MAX: u32 = 3;
/// Bounds of a driver's attributes on its node.
const ATTRIBUTES_MAX: usize = 1024;
const ATTRIBUTE_MAX: usize = 1024;

/// Shared state of a host's supervisors.
#[derive(Debug)]
pub(crate) struct Common {
    /// Unique id of this host among all that have used the same directories.
    pub(crate) id: String,
    pub(crate) socket_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) agent: AgentConfig,
    pub(crate) timing: Timing,
    /// Drivers whose processes of a former agent are not kept.
    pub(crate) anew: BTreeSet<String>,
    pub(crate) launches: Launches,
    pub(crate) registry: Registry,
    pub(crate) events: broadcast::Sender<DriverEvent>,
    pub(crate) ending: EndingSignal,
}

/// The supervisor of one plugin.
pub(crate) struct Supervisor {
    pub(crate) common: Arc<Common>,
    pub(crate) spec: PluginSpec,
    /// Position in the configuration; the last of equals wins a driver name.
    pub(crate) order: usize,
    /// Orders to reload.
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    /// Cancelled when the plugin is no longer configured.
    pub(crate) removed: CancellationToken,
    /// The process under launch.
    pub(crate) launching: Mutex<Option<Process>>,
    /// Waiters for the outcome of the next attempt, with their value of success.
    pub(crate) waiting: Vec<(oneshot::Sender<Reloaded>, Reloaded)>,
}

/// Why a session has ended.
enum Over {
    Died,
    Displaced(LaunchError),
    Reload,
    Removed,
    Ending(Ending),
}

impl Supervisor {
    /// Runs until the host ends or the plugin is removed.
    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        let mut may_reattach = true;
        let mut told = String::new();
        loop {
            if self.common.ending.token().is_cancelled() {
                return;
            }
            while let Ok(order) = self.orders.try_recv() {
                let success = if order.fresh { Reloaded::Started } else { Reloaded::Recovered };
                self.accept(order, success);
            }
            let spec = self.spec.clone();
            let began = Instant::now();
            let (ending, removed) = (self.common.ending.token().clone(), self.removed.clone());
            let attempt = tokio::select! {
                attempt = self.bring_up(&spec, std::mem::take(&mut may_reattach)) => attempt,
                // An aborted launch leaves a process without a record, so its guard ends it.
                () = ending.cancelled() => Err(LaunchError::Ending),
                () = removed.cancelled() => Err(LaunchError::Ending),
            };
            if let Err(error) = &attempt {
                self.answer(Some(error));
            }
            let (failure, driver) = match attempt {
                Err(LaunchError::Ending) => {
                    // The drop of the attempt has ordered its death; this waits for it.
                    let abandoned = self.launching().take();
                    if let Some(process) = abandoned {
                        process.ended_within(self.common.timing.stop_grace).await;
                        process.bury().await;
                        reattach::remove(&self.common.state_dir, &spec.name);
                    }
                    if !ending.is_cancelled() {
                        self.common.registry.forget(&spec.name);
                    }
                    return;
                }
                Err(error) => {
                    // A record of a process that never came up is useless.
                    self.launching().take();
                    reattach::remove(&self.common.state_dir, &spec.name);
                    (error, None)
                }
                Ok((session, granted)) => {
                    told.clear();
                    let driver = session.driver.clone();
                    let Granted { shared, displaced, .. } = granted;
                    match self.serve(&spec, session.clone(), &shared, &displaced).await {
                        Over::Ending(Ending::LeaveRunning) => return,
                        Over::Ending(Ending::Stop) => {
                            self.end(&spec, &session).await;
                            return;
                        }
                        Over::Removed => {
                            serves::remove(&self.common.state_dir, &spec.name);
                            self.down(&spec, Some((&driver, &shared)), "it is no longer configured", false);
                            self.end(&spec, &session).await;
                            self.common.registry.forget(&spec.name);
                            return;
                        }
                        Over::Reload => {
                            self.down(&spec, Some((&driver, &shared)), "it is being reloaded", true);
                            self.end(&spec, &session).await;
                            failures = 0;
                            continue;
                        }
                        Over::Displaced(error) => {
                            self.end(&spec, &session).await;
                            (error, None)
                        }
                        Over::Died => {
                            reattach::remove(&self.common.state_dir, &spec.name);
                            if began.elapsed() >= self.common.timing.stable_after {
                                failures = 0;
                            }
                            let (epitaph, stderr) = (session.process.epitaph(), session.process.stderr.text());
                            let last = bounded(stderr.trim().lines().last().unwrap_or_default());
                            tracing::warn!(
                                plugin = spec.name,
                                driver,
                                epitaph,
                                last,
                                "plugin process ended, starting it again"
                            );
                            let why = format!("the plugin process ended ({epitaph}) and is being started again");
                            self.down(&spec, Some((&driver, &shared)), &why, true);
                            session.process.bury().await;
                            self.remove_socket(&session.address);
                            let delay = self.backoff().delay(failures, jitter());
                            failures += 1;
                            self.pause(Some(delay)).await;
                            continue;
                        }
                    }
                }
            };
            failures += 1;
            let delay = failure.retryable().then(|| self.backoff().delay(failures, jitter()));
            let next = delay.map_or("not tried again until a reload".to_owned(), |d| {
                format!("tried again in {} s", d.as_secs().max(1))
            });
            let text = failure.to_string();
            // A lasting failure is logged once.
            if told == text {
                tracing::debug!(plugin = spec.name, error = text, next, "plugin is not available");
            } else {
                tracing::warn!(plugin = spec.name, error = text, next, "plugin is not available");
            }
            told = text;
            let known = driver.or_else(|| self.common.registry.driver_of(&spec.name));
            let known = known.as_ref().map(|(name, shared)| (name, shared));
            if matches!(failure, LaunchError::Displaced { .. }) {
                self.common.registry.publish_plugin(&spec.name, &told);
            } else {
                self.down(&spec, known, &told, failure.retryable());
            }
            self.pause(delay).await;
        }
    }

    /// Answers the waiters of this attempt; they may have gone.
    fn answer(&mut self, failure: Option<&LaunchError>) {
        for (reply, success) in self.waiting.drain(..) {
            let _ = reply.send(failure.map_or(success, |error| Reloaded::Failed(error.to_string())));
        }
    }

    /// Accepts an order: the next attempt uses its specification.
    fn accept(&mut self, order: Order, success: Reloaded) {
        self.spec = order.spec;
        self.waiting.push((order.reply, success));
    }

    fn backoff(&self) -> Backoff {
        Backoff { first: self.common.timing.relaunch_first, max: self.common.timing.relaunch_max }
    }

    /// Waits for the delay, a reload or the end; with `None`, no delay passes.
    async fn pause(&mut self, delay: Option<Duration>) {
        let ending = self.common.ending.token().clone();
        let delay = async {
            match delay {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        // A plugin killed before its handshake has left a socket that nothing else records.
        sweep_dead_sockets(&self.common.socket_dir);
        let order = tokio::select! {
            () = delay => None,
            order = next(&mut self.orders) => Some(order),
            () = self.removed.cancelled() => None,
            () = ending.cancelled() => None,
        };
        if let Some(order) = order {
            self.accept(order, Reloaded::Recovered);
        }
    }

    /// Marks the plugin as down; its known facts stay visible. `again`: another attempt follows.
    fn down(&self, spec: &PluginSpec, driver: Option<(&String, &Arc<Shared>)>, why: &str, again: bool) {
        match driver {
            Some((driver, shared)) => {
                // If another plugin has taken over the driver, this one must not change its state.
                self.common.registry.if_holder(driver, &spec.name, || {
                    shared.phase.send_replace(Phase::Down { why: why.into(), again });
                    self.common.registry.publish(driver, |fingerprint| {
                        fingerprint.healthy = false;
                        fingerprint.settled = true;
                        fingerprint.devices = fingerprint.devices.take().map(|groups| devices::unusable(&groups, why));
                        fingerprint.description = why.to_owned();
                        fingerprint.pid = None;
                    });
                });
            }
            None => self.common.registry.publish_plugin(&spec.name, why),
        }
    }

    async fn end(&self, spec: &PluginSpec, session: &Session) {
        session::stop(Some(&session.channel), &session.process, self.common.timing.stop_grace).await;
        reattach::remove(&self.common.state_dir, &spec.name);
        OutputPipes::new(&self.common.state_dir, &spec.name).remove();
        self.remove_socket(&session.address);
    }

    /// Removes the socket of a killed plugin if it lies in the host's directory.
    fn remove_socket(&self, address: &Address) {
        if let Address::Unix(path) = address
            && Path::new(path).parent() == Some(&self.common.socket_dir)
        {
            let _ = std::fs::remove_file(path);
        }
    }

    /// A running, configured process that has claimed its driver name.
    async fn bring_up(&self, spec: &PluginSpec, may_reattach: bool) -> Result<(Arc<Session>, Granted), LaunchError> {
        let common = &self.common;
        let digest = reattach::digest(spec, &common.agent);
        let found = if may_reattach { self.reattach(spec, &digest).await } else { None };
        let running = match found {
            Some(running) => running,
            None => self.launch(spec, &digest, Purpose::Serve).await?,
        };
        // A failure from here on must not leave the process behind.
        let guard = KillOnDrop::new(&running.process);
        let (channel, process) = (running.channel.clone(), running.process.clone());
        session::drain_stdio(&channel);
        let set_up = async {
            if running.fresh {
                session::configure(&running, spec, &common.agent, &common.timing).await?;
            }
            session::open(&running, &common.timing).await
        };
        let mut session = match set_up.await {
            Ok(session) => session,
            Err(error) => {
                session::stop(Some(&channel), &process, common.timing.stop_grace).await;
                return Err(error);
            }
        };
        let granted = common.registry.claim(&spec.name, self.order, &session.driver, &session.version, &common.timing);
        let granted = match granted {
            Ok(granted) => granted,
            Err(error) => {
                serves::remove(&common.state_dir, &spec.name);
                session::stop(Some(&channel), &process, common.timing.stop_grace).await;
                return Err(error);
            }
        };
        session.generation = granted.generation;
        self.launching().take();
        let record = Record::new(&spec.name, &session.process, digest)
            .map(|record| record.ready(&session.driver, &session.address));
        self.remember(record);
        if let Err(error) = serves::save(&common.state_dir, &spec.name, &Serves::new(&session.driver, &session.version))
        {
            tracing::warn!(plugin = spec.name, %error, "cannot record which driver the plugin serves");
        }
        guard.release();
        Ok((Arc::new(session), granted))
    }

    fn launching(&self) -> MutexGuard<'_, Option<Process>> {
        self.launching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, record: Option<Record>) {
        if let Some(record) = record
            && let Err(error) = reattach::save(&self.common.state_dir, &record)
        {
            // The plugin works; only a restart of the agent will replace it.
            let plugin = record.plugin;
            tracing::warn!(plugin, %error, "cannot record how to reach the plugin after a restart");
        }
    }

    async fn launch(&self, spec: &PluginSpec, digest: &str, purpose: Purpose) -> Result<Running, LaunchError> {
        let common = &self.common;
        sweep_dead_sockets(&common.socket_dir);
        let mark = Mark::new(spec, &common.id, &common.socket_dir);
        let pipes = OutputPipes::new(&common.state_dir, &format!("{}{}", spec.name, purpose.suffix()));
        let place = Place { agent: &common.agent, socket_dir: &common.socket_dir, pipes: &pipes, mark: &mark };
        // If the agent dies from here on, the next one must find and end the process: by its record, and by its mark.
        let spawned = |process: &Process| {
            if purpose == Purpose::Serve {
                *self.launching() = Some(process.clone());
                self.remember(Record::new(&spec.name, process, digest.to_owned()));
            }
        };
        let in_hand = common.launches.begin(&mark);
        let (process, address) = launch(spec, place, common.timing.handshake, spawned).await?;
        in_hand.until_the_end_of(&process);
        let guard = KillOnDrop::new(&process);
        let limit = common.timing.setup_call;
        let reached = async {
            let channel = session::connect(&address, &process, limit).await?;
            let identity = session::identify(&channel, &process, limit).await?;
            Ok((channel, identity))
        };
        match reached.await {
            Ok((channel, identity)) => {
                guard.release();
                Ok(Running { channel, process, identity, address, digest: digest.to_owned(), fresh: true })
            }
            Err(error) => {
                session::stop(None, &process, common.timing.stop_grace).await;
                self.remove_socket(&address);
                Err(error)
            }
        }
    }

    /// Checks, beside the running plugin, whether a changed one comes up and accepts its configuration.
    async fn probe(&self, spec: &PluginSpec, driver: &str) -> Result<(), LaunchError> {
        let running = self.launch(spec, "", Purpose::Probe).await?;
        let guard = KillOnDrop::new(&running.process);
        session::drain_stdio(&running.channel);
        let usable = async {
            session::configure(&running, spec, &self.common.agent, &self.common.timing).await?;
            if running.identity.driver != driver {
                let why = format!("it serves driver {:?} now, and tasks of {driver:?} run", running.identity.driver);
                return Err(LaunchError::Unsuitable(why));
            }
            Ok(())
        };
        let usable = usable.await;
        session::stop(Some(&running.channel), &running.process, self.common.timing.stop_grace).await;
        guard.release();
        self.remove_socket(&running.address);
        OutputPipes::new(&self.common.state_dir, &format!("{}{}", spec.name, Purpose::Probe.suffix())).remove();
        usable
    }

    /// The process that served this plugin under an earlier agent, if it is the same one and still wanted. Ends an
    /// unwanted one; never touches an unidentified one.
    async fn reattach(&self, spec: &PluginSpec, digest: &str) -> Option<Running> {
        let common = &self.common;
        let record = reattach::load(&common.state_dir, &spec.name)?;
        let process = identify_process(&record);
        let address = record.address();
        let Some(process) = process else {
            reattach::remove(&common.state_dir, &spec.name);
            // Killed together with its agent: nothing else records its socket.
            if matches!(&address, Address::Unix(path) if nobody_listens(Path::new(path))) {
                self.remove_socket(&address);
            }
            return None;
        };
        let limit = common.timing.setup_call;
        let reached = async {
            if !record.is_ready() || !session::is_listener(&address, process.pid).await {
                return None;
            }
            let channel = session::connect(&address, &process, limit).await.ok()?;
            let serving = session::is_serving(&channel, &process, limit).await;
            let identity = session::identify(&channel, &process, limit).await.ok()?;
            (serving && identity.driver == record.driver).then_some((channel, identity))
        };
        let reached = reached.await;
        if let Some((channel, identity)) = reached
            && record.digest == digest
            && !common.anew.contains(&record.driver)
            // A device plugin keeps nothing that its successor lacks, and some tell each change once only.
            && !record.driver.starts_with(DEVICES)
        {
            OutputPipes::new(&common.state_dir, &spec.name).reopen(&spec.name, &process.stderr);
            tracing::info!(
                plugin = spec.name,
                driver = identity.driver,
                pid = process.pid,
                "reattached to a running plugin"
            );
            return Some(Running { channel, process, identity, address, digest: digest.to_owned(), fresh: false });
        }
        tracing::info!(plugin = spec.name, pid = process.pid, "the running plugin cannot be kept, starting it anew");
        let channel = session::connect(&address, &process, common.timing.stop_grace).await.ok();
        session::stop(channel.as_ref(), &process, common.timing.stop_grace).await;
        reattach::remove(&common.state_dir, &spec.name);
        self.remove_socket(&address);
        None
    }

    /// Publishes the session and the driver's reports until the session ends.
    async fn serve(
        &mut self,
        spec: &PluginSpec,
        session: Arc<Session>,
        shared: &Arc<Shared>,
        displaced: &CancellationToken,
    ) -> Over {
        let common = self.common.clone();
        let facts = Facts {
            capabilities: session.capabilities.clone(),
            task_schema: session.task_schema.clone(),
            checked: session.checked.clone(),
            remote: session.remote.is_some(),
            generation: session.generation,
        };
        let holds = common.registry.if_holder(&session.driver, &spec.name, || {
            shared.facts.send_replace(Some(facts));
            common.registry.publish(&session.driver, |fingerprint| {
                *fingerprint = DriverFingerprint {
                    plugin: spec.name.clone(),
                    version: session.version.to_string(),
                    capabilities: Some(session.capabilities.clone()),
                    remote: session.remote.clone(),
                    pid: Some(session.process.pid),
                    generation: session.generation,
                    detected: fingerprint.detected,
                    healthy: false,
                    settled: false,
                    description: "waiting for the first fingerprint".into(),
                    attributes: std::mem::take(&mut fingerprint.attributes),
                    devices: session.has_devices().then(|| fingerprint.devices.take().unwrap_or_default()),
                };
            });
            shared.phase.send_replace(Phase::Ready(session.clone()));
        });
        if !holds {
            let over = self.displaced(&session);
            if let Over::Displaced(error) = &over {
                self.answer(Some(error));
            }
            return over;
        }
        self.answer(None);
        tracing::info!(
            plugin = spec.name, driver = session.driver, version = %session.version, pid = session.process.pid,
            "driver plugin is up"
        );
        let mut streams = pin!(async {
            if session.has_devices() {
                return devices::follow(&common, &session).await;
            }
            tokio::join!(fingerprints(&common, &session), task_events(&common, &session)).0
        });
        let mut hung = pin!(hung(&common, &session));
        loop {
            let order = tokio::select! {
                () = session.process.exited().cancelled() => return Over::Died,
                () = displaced.cancelled() => return self.displaced(&session),
                order = next(&mut self.orders) => order,
                () = self.removed.cancelled() => return Over::Removed,
                () = common.ending.token().cancelled() => return Over::Ending(common.ending.how()),
                never = &mut streams => match never {},
                () = &mut hung => {
                    tracing::error!(plugin = spec.name, driver = session.driver, "plugin hangs, its process is \
                        replaced");
                    session::stop(None, &session.process, common.timing.stop_grace).await;
                    return Over::Died;
                }
            };
            if order.fresh {
                // Its supervisor was faster than its order.
                let _ = order.reply.send(Reloaded::Started);
                continue;
            }
            if !order.force && reattach::digest(&order.spec, &common.agent) == session.digest {
                let _ = order.reply.send(Reloaded::Unchanged);
                continue;
            }
            // An unusable new plugin must not cost the running driver, which continues meanwhile.
            let usable = tokio::select! {
                usable = self.probe(&order.spec, &session.driver) => usable,
                never = &mut streams => match never {},
                () = session.process.exited().cancelled() => Ok(()),
                () = common.ending.token().cancelled() => Err(LaunchError::Ending),
            };
            match usable {
                Ok(()) => {
                    self.accept(order, Reloaded::Replaced);
                    return Over::Reload;
                }
                Err(error) => {
                    tracing::error!(plugin = spec.name, %error, "the changed plugin cannot be used, the former \
                        process goes on");
                    let _ = order.reply.send(Reloaded::Kept(error.to_string()));
                }
            }
        }
    }
}

/// The purpose of a process's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Serve,
    /// To check whether it could serve; it has pipes of its own and no record.
    Probe,
}

impl Purpose {
    fn suffix(self) -> &'static str {
        match self {
            Purpose::Serve => "",
            Purpose::Probe => ".probe",
        }
    }
}

impl Supervisor {
    fn displaced(&self, session: &Session) -> Over {
        serves::remove(&self.common.state_dir, &self.spec.name);
        let (other, version) = self.common.registry.holder(&session.driver);
        Over::Displaced(LaunchError::Displaced { driver: session.driver.clone(), other, version })
    }
}

/// The next order; pending for ever if there can be none.
async fn next(orders: &mut mpsc::UnboundedReceiver<Order>) -> Order {
    match orders.recv().await {
        Some(order) => order,
        None => std::future::pending().await,
    }
}

/// The process of a record, if it is the same one.
pub(crate) fn identify_process(record: &Record) -> Option<Process> {
    if !record.of_this_boot() {
        return None;
    }
    find(record.pid, record.birth, Tail::default()).ok().flatten()
}

/// Follows the fingerprint stream.
async fn fingerprints(common: &Common, session: &Session) -> Infallible {
    let open = || {
        let mut client = session.driver_client();
        async move { client.fingerprint(FingerprintRequest {}).await }
    };
    let ended = |Ended { why, failures, delay }| {
        let Some(status) = why else {
            // A driver that answers and then closes keeps its last state.
            tracing::debug!(driver = session.driver, failures, ?delay, "the driver ended its fingerprint stream");
            return;
        };
        let why = format!("the fingerprint failed: {}", bounded(status.message()));
        tracing::warn!(driver = session.driver, failures, ?delay, why, "driver is not usable");
        common.registry.publish(&session.driver, |fingerprint| {
            (fingerprint.healthy, fingerprint.settled) = (false, true);
            fingerprint.description = why;
        });
    };
    streams::follow(common, session, open, |response| apply(common, session, response), ended).await
}

fn apply(common: &Common, session: &Session, response: FingerprintResponse) {
    common.registry.publish(&session.driver, |fingerprint| {
        let health = response.health();
        fingerprint.settled = true;
        if response.err.is_empty() {
            fingerprint.detected = health != HealthState::Undetected;
            fingerprint.healthy = health == HealthState::Healthy;
            fingerprint.description = bounded(&response.health_description);
        } else {
            (fingerprint.detected, fingerprint.healthy) = (false, false);
            fingerprint.description = format!("the fingerprint failed: {}", bounded(&response.err));
        }
        merge(&mut fingerprint.attributes, response.attributes);
        let own = format!("driver.{}", session.driver);
        if fingerprint.detected {
            fingerprint.attributes.insert(own, "1".into());
        } else {
            fingerprint.attributes.remove(&own);
        }
    });
}

/// New values replace old ones; an empty one removes.
fn merge(known: &mut BTreeMap<String, String>, new: BTreeMap<String, Attribute>) {
    for (name, value) in new {
        let text = attribute_text(&value);
        if text.is_empty() {
            known.remove(&name);
        } else if (known.len() < ATTRIBUTES_MAX || known.contains_key(&name)) && name.len() <= ATTRIBUTE_MAX {
            known.insert(name, text[..text.floor_char_boundary(ATTRIBUTE_MAX)].to_owned());
        }
    }
}

fn attribute_text(attribute: &Attribute) -> String {
    let value = match &attribute.value {
        None => return String::new(),
        Some(attribute::Value::FloatVal(f)) => f.to_string(),
        Some(attribute::Value::IntVal(n)) => n.to_string(),
        Some(attribute::Value::StringVal(s)) => s.clone(),
        Some(attribute::Value::BoolVal(b)) => b.to_string(),
    };
    value + &attribute.unit
}

/// Returns when the plugin has stopped answering. Reports slowness at once.
async fn hung(common: &Common, session: &Session) {
    let mut strikes = 0;
    loop {
        tokio::time::sleep(common.timing.watchdog_interval).await;
        if session::answers(&session.channel, common.timing.watchdog_deadline).await {
            strikes = 0;
            continue;
        }
        strikes += 1;
        tracing::warn!(driver = session.driver, strikes, "plugin does not answer");
        if strikes >= STRIKES_MAX {
            return;
        }
    }
}

/// Follows the stream of task events.
async fn task_events(common: &Common, session: &Session) -> Infallible {
    let open = || {
        let mut client = session.driver_client();
        async move { client.task_events(TaskEventsRequest {}).await }
    };
    // An error only means that there is no listener.
    let take = |event| drop(common.events.send(driver_event(&session.driver, event)));
    streams::follow(common, session, open, take, drop).await
}

/// Cuts text, because events wait in memory for their readers.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(512)].to_owned()
}

fn driver_event(driver: &str, event: DriverTaskEvent) -> DriverEvent {
    DriverEvent {
        driver: driver.to_owned(),
        task_id: cut(&event.task_id),
        alloc_id: cut(&event.alloc_id),
        task_name: cut(&event.task_name),
        at: build::system_time(event.timestamp.as_ref()),
        message: bounded(&event.message),
        annotations: event.annotations.into_iter().take(16).map(|(k, v)| (cut(&k), cut(&v))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_merged_and_removed_by_an_empty_value() {
        let attribute = |value, unit: &str| Attribute { value, unit: unit.into() };
        let text = |s: &str| attribute(Some(attribute::Value::StringVal(s.into())), "");
        let mut known = BTreeMap::new();
        merge(
            &mut known,
            [
                ("a".into(), text("1")),
                ("b".into(), attribute(Some(attribute::Value::IntVal(3)), "MiB")),
                ("c".into(), attribute(Some(attribute::Value::BoolVal(true)), "")),
                ("d".into(), attribute(None, "MiB")),
            ]
            .into(),
        );
        assert_eq!(known, [("a", "1"), ("b", "3MiB"), ("c", "true")].map(|(k, v)| (k.into(), v.into())).into());
        merge(&mut known, [("a".into(), text("")), ("b".into(), text("é".repeat(4000).as_str()))].into());
        assert!(!known.contains_key("a") && known["b"].len() <= ATTRIBUTE_MAX);
        merge(&mut known, (0..5000).map(|n| (format!("x{n}"), text("y"))).collect());
        assert_eq!(known.len(), ATTRIBUTES_MAX);
    }
}
