//! From a task to the options of `sbatch`.

use std::path::Path;

use driver_sdk::{RemoteError, TaskConfig};
use hpc::task;

use crate::config::{PluginConfig, TaskOptions};

/// Refuses what no job of Slurm can have.
pub(crate) fn refused(task: &TaskConfig, options: &TaskOptions) -> Result<(), RemoteError> {
    task::refused("slurm", task, "`gres` or `gpus`")?;
    if options.command.is_empty() {
        return Err(RemoteError::wrong_request("config.command must not be empty"));
    }
    if options.nodes == 0 || options.ntasks == 0 || options.cpus == Some(0) {
        return Err(RemoteError::wrong_request("nodes, ntasks and cpus must be at least 1"));
    }
    let named = [
        ("partition", &options.partition),
        ("account", &options.account),
        ("qos", &options.qos),
        ("constraint", &options.constraint),
        ("reservation", &options.reservation),
        ("gres", &options.gres),
        ("gpus", &options.gpus),
        ("time", &options.time),
    ];
    for (name, value) in named {
        if value.as_ref().is_some_and(|v| v.contains(['\n', '\0'])) {
            return Err(RemoteError::wrong_request(format!("config.{name} must be one line")));
        }
    }
    Ok(())
}

/// Options of `sbatch` that belong to one submission: what it is called, and where it runs.
pub(crate) fn own(name: &str, comment: &str, dir: &Path, output: &Path) -> [String; 4] {
    [
        format!("--job-name={name}"),
        format!("--comment={comment}"),
        format!("--chdir={}", dir.display()),
        format!("--output={}", output.display()),
    ]
}

/// Options of `sbatch` that a task shares with all of its kind.
pub(crate) fn shared(task: &TaskConfig, options: &TaskOptions, config: &PluginConfig) -> Vec<String> {
    let (most, mib) = task::size(task, config.cpu_mhz);
    let cpus = options.cpus.unwrap_or(most);
    let mut all: Vec<String> = vec![
        // Sites may put jobs back into the queue by default.
        "--no-requeue".into(),
        // The agent's environment stays here.
        "--export=NONE".into(),
        "--open-mode=append".into(),
        "--input=/dev/null".into(),
        format!("--nodes={}", options.nodes),
        format!("--ntasks={}", options.ntasks),
        format!("--cpus-per-task={cpus}"),
    ];
    if mib > 0 {
        all.push(format!("--mem={mib}M"));
    }
    let mut option = |name: &str, value: Option<&String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            all.push(format!("--{name}={value}"));
        }
    };
    option("partition", options.partition.as_ref().or(config.partition.as_ref()));
    option("account", options.account.as_ref().or(config.account.as_ref()));
    option("qos", options.qos.as_ref());
    option("constraint", options.constraint.as_ref());
    option("reservation", options.reservation.as_ref());
    option("gres", options.gres.as_ref());
    option("gpus", options.gpus.as_ref());
    option("time", options.time.as_ref());
    all
}

#[cfg(test)]
mod tests {
    use driver_sdk::proto::driver::{
        AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources, Resources,
    };

    use super::*;

    fn task(mhz: i64, mib: i64) -> TaskConfig {
        let allocated = AllocatedTaskResources {
            cpu: Some(AllocatedCpuResources { cpu_shares: mhz }),
            memory: Some(AllocatedMemoryResources { memory_mb: mib, ..AllocatedMemoryResources::default() }),
            ..AllocatedTaskResources::default()
        };
        let resources = Resources { allocated_resources: Some(allocated), ..Resources::default() };
        TaskConfig { resources: Some(resources), ..TaskConfig::default() }
    }

    fn wanted() -> TaskOptions {
        TaskOptions { command: "x".into(), nodes: 1, ntasks: 1, ..TaskOptions::default() }
    }

    #[test]
    fn resources_become_options() {
        let config = PluginConfig { partition: Some("batch".into()), ..PluginConfig::default() };
        let wanted = TaskOptions { gres: Some("gpu:2".into()), time: Some("1:00:00".into()), ..wanted() };
        let all = shared(&task(5001, 300), &wanted, &config);
        for one in [
            "--cpus-per-task=3",
            "--mem=300M",
            "--partition=batch",
            "--gres=gpu:2",
            "--time=1:00:00",
            "--no-requeue",
            "--export=NONE",
        ] {
            assert!(all.iter().any(|o| o == one), "{one} in {all:?}");
        }
        let own = TaskOptions { cpus: Some(8), partition: Some("gpu".into()), ..wanted };
        let all = shared(&task(100, 0), &own, &config);
        assert!(all.contains(&"--cpus-per-task=8".into()) && all.contains(&"--partition=gpu".into()), "{all:?}");
        assert!(!all.iter().any(|o| o.starts_with("--mem")), "{all:?}");
    }

    #[test]
    fn what_no_job_can_have_is_refused_by_name() {
        let command = TaskOptions { command: String::new(), ..wanted() };
        assert!(refused(&TaskConfig::default(), &command).expect_err("refused").to_string().contains("command"));
        assert!(refused(&TaskConfig::default(), &TaskOptions { nodes: 0, ..wanted() }).is_err());
        assert!(refused(&TaskConfig::default(), &TaskOptions { qos: Some("a\nb".into()), ..wanted() }).is_err());
        assert!(refused(&TaskConfig::default(), &wanted()).is_ok());
    }
}
