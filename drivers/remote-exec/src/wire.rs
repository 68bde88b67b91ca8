//! Between the driver's values and those of the channel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_sdk::{Bundle, Ensure, InstanceState, Observation, RemoteError, TaskConfig, TaskExit};
use executor_client::host::{HostAmount, HostEnsure, HostErrorCode, HostFailure, HostFile, HostObservation, HostState};
use executor_client::{CallError, ExitResult};

use crate::config::TaskOptions;
use crate::host::Host;

/// A clock that is further off than this is worth a person's attention.
pub(crate) const SKEW_MS: u64 = 5_000;

/// What to run, as the host is told; refuses what no host can offer.
pub(crate) fn ensure(request: &Ensure, options: TaskOptions, capacity: HostAmount) -> Result<HostEnsure, RemoteError> {
    let task = &request.task;
    refuse_what_cannot_be_had(task)?;
    request.bundle.verify()?;
    let mut env = task.env.clone();
    env.extend(task.device_env.clone());
    let log = task.drover_log.clone().unwrap_or_default();
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    let linux = task.resources.as_ref().and_then(|r| r.linux_resources.clone()).unwrap_or_default();
    let asked = task.resources.as_ref().and_then(|r| r.allocated_resources.as_ref()).and_then(|a| a.memory.as_ref());
    // `memory_max = -1`: bounded by the host only, which is told by 0.
    let unlimited = asked.is_some_and(|m| m.memory_max_mb == -1);
    let memory_max = if unlimited { 0 } else { positive(linux.memory_limit_bytes) };
    let takes = takes(task);
    let reserved = takes.memory_mib << 20;
    Ok(HostEnsure {
        key: request.key.clone(),
        epoch: request.epoch,
        owner: request.owner.clone(),
        slot: request.slot.clone(),
        task_name: task.name.clone(),
        command: options.command,
        args: options.args,
        env: env.into_iter().collect(),
        user: task.user.clone(),
        work_dir: options.work_dir.unwrap_or_default(),
        log_disabled: log.disabled,
        log_files: log.max_files,
        log_file_bytes: log.max_file_size_bytes,
        memory_max,
        memory_reservation: if unlimited || reserved < memory_max { reserved } else { 0 },
        cpu_shares: positive(linux.cpu_shares),
        files: listed(&request.bundle),
        digest: request.bundle.digest.clone(),
        takes: Some(takes),
        capacity: Some(capacity),
    })
}

/// The files of a bundle without their contents.
pub(crate) fn listed(bundle: &Bundle) -> Vec<HostFile> {
    bundle.files.iter().map(|f| HostFile { path: f.path.clone(), mode: f.mode, size: f.data.len() as u64 }).collect()
}

/// What a task takes of its host.
pub(crate) fn takes(task: &TaskConfig) -> HostAmount {
    let allocated = task.resources.as_ref().and_then(|r| r.allocated_resources.as_ref());
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    HostAmount {
        cpu_mhz: allocated.and_then(|a| a.cpu.as_ref()).map_or(0, |c| positive(c.cpu_shares)),
        memory_mib: allocated.and_then(|a| a.memory.as_ref()).map_or(0, |m| positive(m.memory_mb)),
        sessions: 1,
    }
}

fn refuse_what_cannot_be_had(task: &TaskConfig) -> Result<(), RemoteError> {
    use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
    let refuse = |what: &str| Err(RemoteError::wrong_request(format!("remote_exec cannot offer {what}")));
    if let Some(spec) = &task.network_isolation_spec
        && spec.mode() != NetworkIsolationMode::Host
    {
        return refuse("a network of the group's own; use network mode \"host\"");
    }
    if !task.mounts.is_empty() {
        return refuse("volume mounts");
    }
    if !task.devices.is_empty() {
        return refuse("devices");
    }
    let linux = task.resources.as_ref().and_then(|r| r.linux_resources.as_ref());
    if linux.is_some_and(|l| !l.cpuset_cpus.is_empty()) {
        return refuse("reserved cores; use `cpu` instead of `cores`");
    }
    Ok(())
}

/// A failed call of `given` epoch as one of the driver's answers.
pub(crate) fn failed(host: &Host, given: u64, error: CallError) -> RemoteError {
    match error {
        CallError::Closed(why) => {
            RemoteError::could_not_ask(format!("the channel to {} ended during the call: {why}", host.describe()))
        }
        CallError::Refused(failure) => refused(host, given, failure),
    }
}

fn refused(host: &Host, given: u64, failure: HostFailure) -> RemoteError {
    let text = format!("{}: {}", host.describe(), failure.message);
    match failure.code() {
        HostErrorCode::Gone => RemoteError::gone(text),
        HostErrorCode::WrongRequest => RemoteError::wrong_request(text),
        HostErrorCode::Sealed => RemoteError::sealed(failure.message),
        HostErrorCode::StaleEpoch => RemoteError::StaleEpoch { given, accepted: failure.epoch },
        // Nothing was made; the next attempt may find room.
        HostErrorCode::CouldNotAsk | HostErrorCode::NoRoom => RemoteError::could_not_ask(text),
    }
}

/// The host answered something else than was asked.
pub(crate) fn unexpected(host: &Host) -> RemoteError {
    RemoteError::could_not_ask(format!("{} answered another question than the one asked", host.describe()))
}

fn time(ns: u64) -> Option<SystemTime> {
    (ns > 0).then(|| UNIX_EPOCH + Duration::from_nanos(ns))
}

/// One look, as the host had it. `ahead_ms` is how far its clock is ahead.
pub(crate) fn observation(host: &Host, seen: HostObservation, ahead_ms: i64) -> Observation {
    let mut observation = Observation { key: seen.key.clone(), epoch: seen.epoch, ..Observation::default() };
    observation.state = match seen.state() {
        HostState::Unknown => InstanceState::Unknown,
        HostState::Creating => InstanceState::Creating,
        HostState::Running => InstanceState::Running,
        HostState::Exited => InstanceState::Exited,
        HostState::Gone => InstanceState::Gone,
    };
    observation.started_at = time(seen.started_at_ns);
    if seen.pid > 0 {
        observation.provider_id = match &host.way {
            crate::host::Way::Local { .. } => format!("pid {}", seen.pid),
            crate::host::Way::Ssh { .. } => format!("pid {} on {}", seen.pid, host.name),
        };
        observation.attributes.insert("pid".into(), seen.pid.to_string());
        observation.attributes.insert("executor_pid".into(), seen.executor_pid.to_string());
    }
    if matches!(host.way, crate::host::Way::Ssh { .. }) && observation.state != InstanceState::Gone {
        observation.attributes.insert("host".into(), host.name.clone());
        observation.address = host.address();
        if ahead_ms.unsigned_abs() > SKEW_MS {
            // In whole seconds, and coarsely: it is no news each time it is measured.
            let seconds = (ahead_ms / 1000 + ahead_ms.signum() * 2) / 5 * 5;
            observation.attributes.insert("clock_ahead_seconds".into(), seconds.to_string());
        }
    }
    observation.reason = seen.reason;
    if let Some(result) = seen.result {
        observation.exit = task_exit(&result);
        observation.finished_at = time(result.finished_at_ns);
        observation.reason = result.reason;
    }
    observation
}

fn task_exit(result: &ExitResult) -> TaskExit {
    TaskExit {
        exit_code: result.exit_code,
        signal: result.signal,
        oom_killed: result.oom_killed,
        error: (!result.reason.is_empty()).then(|| result.reason.clone()),
    }
}
