//! From a task to the description of its submission.

use std::path::Path;
use std::time::Duration;

use driver_sdk::{Ensure, RemoteError, TaskConfig};
use hpc::task;

use crate::ads::{Role, literal};
use crate::config::{PluginConfig, TaskOptions};

/// How long a candidate waits for its manager, which begins it at once.
const CANDIDATE: Duration = Duration::from_secs(3600);

/// Refuses what no job of HTCondor can have.
///
/// # Errors
/// [`RemoteError::WrongRequest`].
pub(crate) fn refused(task: &TaskConfig, options: &TaskOptions) -> Result<(), RemoteError> {
    task::refused("htcondor", task, "`gpus` or `requirements`")?;
    if options.command.is_empty() {
        return Err(RemoteError::wrong_request("config.command must not be empty"));
    }
    let named = [
        ("requirements", &options.requirements),
        ("rank", &options.rank),
        ("accounting_group", &options.accounting_group),
    ];
    for (name, value) in named {
        if value.as_ref().is_some_and(|value| !one_line(value)) {
            return Err(RemoteError::wrong_request(format!("config.{name} must be one line, without \\ at its end")));
        }
    }
    if options.requirements.as_ref().is_some_and(|requirements| !closed(requirements)) {
        return Err(RemoteError::wrong_request("config.requirements must close each parenthesis and quote"));
    }
    Ok(())
}

/// Whether an expression closes what it opens: it stands in parentheses.
fn closed(expression: &str) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0_i32, None, false);
    for sign in expression.chars() {
        match (quoted, sign) {
            (Some(_), '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (Some(quote), sign) if sign == quote && !escaped => quoted = None,
            (None, '"' | '\'') => quoted = Some(sign),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
        escaped = false;
    }
    depth == 0 && quoted.is_none()
}

/// Whether a value is one line of a submit description: a backslash at its end would continue it.
pub(crate) fn one_line(value: &str) -> bool {
    !value.contains(['\n', '\r', '\0']) && !value.trim_end().ends_with('\\')
}

/// A value in a submit description, in which `$(NAME)` is a macro.
fn plain(value: &str) -> String {
    value.replace('$', "$(DOLLAR)")
}

fn text(name: &str, value: &str) -> String {
    format!("My.{name} = {}\n", plain(&literal(value)))
}

/// The attributes of a job of a key, and how long it stays in the queue: a candidate goes with its removal, the
/// instance and a seal keep the key from being made again.
fn marks(key: &str, owner: &str, epoch: u64, role: Role, keep: Duration) -> String {
    let (begun, keep, waits) = (literal(Role::Begun.text()), keep.as_secs(), CANDIDATE.as_secs());
    let sealed = literal(Role::Sealed.text());
    // Integers of ClassAds are signed.
    let epoch = epoch.min(i64::MAX.unsigned_abs());
    let mut all = text("DroverKey", key) + &text("DroverOwner", owner) + &text("DroverState", role.text());
    all.push_str(&format!(
        "My.DroverEpoch = {epoch}\n\
        hold = True\n\
        leave_in_queue = DroverState == {begun} && \
            (isUndefined(DroverAcknowledged) || time() < DroverAcknowledged + {keep})\n\
        periodic_remove = (DroverState != {begun} && \
            time() > QDate + ifThenElse(DroverState == {sealed}, {keep}, {waits})) || \
            (DroverAcknowledged =!= undefined && time() > DroverAcknowledged + {keep})\n"
    ));
    all
}

/// The description of a job that may begin.
pub(crate) fn candidate(request: &Ensure, options: &TaskOptions, config: &PluginConfig, dir: &Path) -> String {
    let (most, mib) = task::size(&request.task, config.cpu_mhz);
    let cpus = options.cpus.filter(|cpus| *cpus > 0).unwrap_or(most);
    let path = |name: &str| plain(&dir.join(name).display().to_string());
    let mut all = format!(
        "universe = vanilla\n\
        executable = {}\n\
        arguments = $(Cluster)\n\
        transfer_executable = False\n\
        should_transfer_files = NO\n\
        initialdir = {}\n\
        error = {}\n\
        output = /dev/null\n\
        request_cpus = {cpus}\n",
        path("gate.sh"),
        plain(&dir.display().to_string()),
        path("gate.log"),
    );
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            all.push_str(&format!("{name} = {value}\n"));
        }
    };
    line("request_memory", (mib > 0).then(|| format!("{mib}M")));
    line("request_disk", options.disk.map(|mib| format!("{mib}M")));
    line("request_gpus", options.gpus.map(|gpus| gpus.to_string()));
    // Somebody may release all jobs that are on hold: a candidate matches no machine.
    let begun = format!("DroverState =?= {}", literal(Role::Begun.text()));
    let asked = options.requirements.as_ref().filter(|asked| !asked.trim().is_empty());
    line("requirements", Some(asked.map_or_else(|| begun.clone(), |asked| format!("{begun} && ({asked})"))));
    line("rank", options.rank.clone());
    line("accounting_group", options.accounting_group.clone().or_else(|| config.accounting_group.clone()));
    all.push_str(&text("DroverSlot", &request.slot));
    all.push_str(&text("DroverTask", &request.task.name));
    all + &marks(&request.key, &request.owner, request.epoch, Role::Candidate, config.keep_sealed) + "queue\n"
}

/// The description of a seal.
pub(crate) fn seal(key: &str, owner: &str, epoch: u64, keep: Duration) -> String {
    let job = "universe = vanilla\nexecutable = /bin/false\ntransfer_executable = False\nshould_transfer_files = NO\n\
        initialdir = /\nrequirements = False\n";
    job.to_owned() + &marks(key, owner, epoch, Role::Sealed, keep) + "queue\n"
}

/// The cluster id in the answer of `condor_submit -terse`.
pub(crate) fn cluster(stdout: &str) -> Option<u64> {
    stdout.split_whitespace().next()?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use driver_sdk::DriverConfig as _;
    use driver_sdk::config::Config;
    use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
    use driver_sdk::proto::driver::{Device, LinuxResources, Mount, NetworkIsolationSpec, Resources};

    use super::*;

    fn plugin() -> PluginConfig {
        PluginConfig::decode(Config::new(rmp_serde::to_vec(&serde_json::json!({})).expect("bytes"))).expect("fits")
    }

    fn options(json: serde_json::Value) -> TaskOptions {
        TaskOptions::decode(rmp_serde::to_vec(&json).expect("bytes")).expect("fits")
    }

    fn lines(key: &str, slot: &str, json: serde_json::Value, dir: &str) -> Vec<String> {
        let mut request = Ensure { key: key.into(), owner: "o".into(), slot: slot.into(), ..Ensure::default() };
        request.epoch = u64::MAX;
        candidate(&request, &options(json), &plugin(), Path::new(dir)).lines().map(str::to_owned).collect()
    }

    #[test]
    fn whatever_a_key_or_a_path_holds_it_stays_one_value() {
        let hostile = "a\" || true\nqueue 9\r\0$(ENV)\\";
        let all = lines(hostile, hostile, serde_json::json!({"command": "x"}), "/base $(HOME)/k");
        let value = r#""a\" || true queue 9  $(DOLLAR)(ENV)\\""#;
        for wanted in [
            format!("My.DroverKey = {value}"),
            format!("My.DroverSlot = {value}"),
            "executable = /base $(DOLLAR)(HOME)/k/gate.sh".to_owned(),
            "initialdir = /base $(DOLLAR)(HOME)/k".to_owned(),
            // The largest integer of ClassAds.
            format!("My.DroverEpoch = {}", i64::MAX),
            "hold = True".to_owned(),
        ] {
            assert!(all.contains(&wanted), "{wanted} in {all:#?}");
        }
        assert_eq!(all.iter().filter(|line| line.starts_with("queue")).collect::<Vec<_>>(), ["queue"]);
        assert_eq!(all.last().map(String::as_str), Some("queue"));
    }

    #[test]
    fn what_a_task_asks_for_is_asked_of_the_pool() {
        let all = lines(
            "k",
            "s",
            serde_json::json!({"command": "x", "requirements": "Memory > 1", "cpus": 3, "disk": 5, "gpus": 0}),
            "/d",
        );
        for wanted in
            ["requirements = DroverState =?= \"begun\" && (Memory > 1)", "request_cpus = 3", "request_disk = 5M"]
        {
            assert!(all.iter().any(|line| line == wanted), "{wanted} in {all:#?}");
        }
        for missing in ["rank", "accounting_group", "request_memory"] {
            assert!(!all.iter().any(|line| line.starts_with(missing)), "{missing} in {all:#?}");
        }
        let mut request = Ensure::default();
        let mut asked = driver_sdk::proto::driver::AllocatedTaskResources::default();
        asked.cpu.get_or_insert_default().cpu_shares = 2501;
        let memory = asked.memory.get_or_insert_default();
        (memory.memory_mb, memory.memory_max_mb) = (100, 200);
        request.task.resources = Some(Resources { allocated_resources: Some(asked), ..Resources::default() });
        let text = candidate(&request, &options(serde_json::json!({"command": "x"})), &plugin(), Path::new("/d"));
        assert!(text.contains("\nrequest_cpus = 2\n") && text.contains("\nrequest_memory = 200M\n"), "{text}");
    }

    #[test]
    fn a_seal_never_runs_and_goes_by_itself() {
        let text = seal("k", "o", 7, Duration::from_secs(60));
        for wanted in
            ["hold = True\n", "requirements = False\n", "My.DroverState = \"sealed\"\n", "My.DroverEpoch = 7\n"]
        {
            assert!(text.contains(wanted), "{text}");
        }
        assert!(text.contains("periodic_remove = ") && text.contains(", 60, "), "{text}");
    }

    #[test]
    fn what_no_job_can_have_is_refused() {
        let fine = options(serde_json::json!({"command": "x"}));
        let mut task = TaskConfig::default();
        assert_eq!(refused(&task, &fine), Ok(()));
        task.network_isolation_spec =
            Some(NetworkIsolationSpec { mode: NetworkIsolationMode::Host.into(), ..NetworkIsolationSpec::default() });
        assert_eq!(refused(&task, &fine), Ok(()));
        let linux = LinuxResources { cpuset_cpus: "0-1".into(), ..LinuxResources::default() };
        let group =
            NetworkIsolationSpec { mode: NetworkIsolationMode::Group.into(), ..NetworkIsolationSpec::default() };
        let cores = Resources { linux_resources: Some(linux), ..Resources::default() };
        for (wrong, why) in [
            (TaskConfig { network_isolation_spec: Some(group), ..TaskConfig::default() }, "network"),
            (TaskConfig { mounts: vec![Mount::default()], ..TaskConfig::default() }, "volume"),
            (TaskConfig { devices: vec![Device::default()], ..TaskConfig::default() }, "devices"),
            (TaskConfig { resources: Some(cores), ..TaskConfig::default() }, "cores"),
        ] {
            let said = refused(&wrong, &fine);
            assert!(matches!(&said, Err(RemoteError::WrongRequest(text)) if text.contains(why)), "{why}: {said:?}");
        }
        for wrong in [
            serde_json::json!({"command": ""}),
            serde_json::json!({"command": "x", "requirements": "true\nqueue 9"}),
            serde_json::json!({"command": "x", "requirements": "true) || (true"}),
            serde_json::json!({"command": "x", "requirements": "Name == \"a\\\")"}),
            serde_json::json!({"command": "x", "rank": "1\r"}),
            serde_json::json!({"command": "x", "accounting_group": "g\nqueue"}),
        ] {
            let said = refused(&TaskConfig::default(), &options(wrong.clone()));
            assert!(matches!(said, Err(RemoteError::WrongRequest(_))), "{wrong}: {said:?}");
        }
    }

    #[test]
    fn the_number_of_a_job() {
        assert_eq!((cluster("12.0 - 12.0\n"), cluster(""), cluster("Submitting job(s).")), (Some(12), None, None));
    }
}
