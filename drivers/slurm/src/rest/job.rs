//! Options of `sbatch` as the description of a job.
//!
//! Field names: `job_params` of openapi/v0.0.38/jobs.c for v0.0.38, `JOB_DESC_MSG` of data_parser for later versions.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::tables::Version;

/// The body of `job/submit`: what `sbatch` with these options would submit from this directory.
///
/// # Errors
/// Which option cannot be said there, and why.
pub(crate) fn description(version: Version, dir: &Path, options: &[String], script: &str) -> Result<Value, String> {
    let mut job = Map::new();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        one(version, &mut job, name, value)?;
    }
    let env = [
        // What `sbatch --export=NONE` leaves to the compute node: the login environment of the user.
        ("SLURM_GET_USER_ENV", "1".to_owned()),
        ("SLURM_SUBMIT_DIR", dir.display().to_string()),
    ];
    let env = match version.objects() {
        false => Value::Object(env.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()),
        true => env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
    };
    job.insert("environment".to_owned(), env);
    job.entry("current_working_directory").or_insert_with(|| dir.display().to_string().into());
    Ok(match version.objects() {
        false => json!({"script": script, "job": job}),
        true => {
            job.insert("script".to_owned(), script.into());
            json!({"job": job})
        }
    })
}

fn one(version: Version, job: &mut Map<String, Value>, name: &str, value: &str) -> Result<(), String> {
    let later = version.objects();
    let count = || value.parse::<u64>().map(Value::from).map_err(|_| format!("{name}={value:?} is no number"));
    let (field, value): (&str, Value) = match name {
        "--no-requeue" if later => ("requeue", false.into()),
        "--no-requeue" => ("no_requeue", true.into()),
        // The environment says it.
        "--export" if value == "NONE" => return Ok(()),
        "--open-mode" if later => ("open_mode", json!([value.to_uppercase()])),
        "--open-mode" => ("open_mode", value.into()),
        "--input" => ("standard_input", value.into()),
        "--output" => ("standard_output", value.into()),
        "--chdir" => ("current_working_directory", value.into()),
        "--job-name" => ("name", value.into()),
        "--comment" => ("comment", value.into()),
        "--array" => ("array", value.into()),
        "--nodes" => ("nodes", value.into()),
        "--ntasks" => ("tasks", count()?),
        "--cpus-per-task" => ("cpus_per_task", count()?),
        "--mem" => {
            let mib = value.strip_suffix('M').and_then(|mib| mib.parse::<u64>().ok());
            let mib = mib.ok_or_else(|| format!("--mem={value:?} is no number of MiB"))?;
            ("memory_per_node", number(version, Some(mib)))
        }
        "--partition" => ("partition", value.into()),
        "--account" => ("account", value.into()),
        "--qos" => ("qos", value.into()),
        "--constraint" => ("constraints", value.into()),
        "--reservation" => ("reservation", value.into()),
        "--gres" if later => ("tres_per_node", each(value, version.gres()).into()),
        "--gres" => ("gres", value.into()),
        "--gpus" if later => ("tres_per_job", each(value, &format!("{}gpu:", version.gres())).into()),
        "--gpus" => ("gpus", value.into()),
        "--time" => {
            let minutes = minutes(value).ok_or_else(|| {
                format!("time {value:?} is none that Slurm reads; write minutes, hours:minutes:seconds or UNLIMITED")
            })?;
            ("time_limit", number(version, minutes))
        }
        other => return Err(format!("{other} cannot be said to slurmrestd; submit by the commands, without `rest`")),
    };
    job.insert(field.to_owned(), value);
    Ok(())
}

/// A number, or without one: no limit.
fn number(version: Version, number: Option<u64>) -> Value {
    match (version.objects(), number) {
        (false, Some(number)) => number.into(),
        (false, None) => "UNLIMITED".into(),
        (true, number) => json!({"set": true, "infinite": number.is_none(), "number": number.unwrap_or(0)}),
    }
}

/// Generic resources with the prefix that `sbatch` gives each of them.
fn each(list: &str, prefix: &str) -> String {
    let one = |one: &str| match one.starts_with("gres/") || one.starts_with("gres:") || one == "none" {
        true => one.to_owned(),
        false => format!("{prefix}{one}"),
    };
    list.split(',').map(one).collect::<Vec<_>>().join(",")
}

/// Minutes of a time as `sbatch --time` takes it, rounded up; the inner `None`: no limit. `None`: it is none.
fn minutes(text: &str) -> Option<Option<u64>> {
    if ["UNLIMITED", "INFINITE", "-1", "0"].iter().any(|name| text.eq_ignore_ascii_case(name)) {
        return Some(None);
    }
    let numbers = |text: &str| text.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let (days, clock, after_days) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, numbers(clock)?, true),
        None => (0, numbers(text)?, false),
    };
    let (hours, minutes, seconds) = match (after_days, &clock[..]) {
        (true, &[h]) => (h, 0, 0),
        (true, &[h, m]) => (h, m, 0),
        (false, &[m]) => (0, m, 0),
        (false, &[m, s]) => (0, m, s),
        (_, &[h, m, s]) => (h, m, s),
        _ => return None,
    };
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    Some(Some(hours.checked_mul(60)?.checked_add(minutes)?.checked_add(seconds.div_ceil(60))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&str] = &[
        "--no-requeue",
        "--export=NONE",
        "--open-mode=append",
        "--input=/dev/null",
        "--nodes=2",
        "--ntasks=4",
        "--cpus-per-task=3",
        "--mem=300M",
        "--partition=gpu",
        "--constraint=a&b",
        "--gres=gpu:a100:2,license",
        "--gpus=2",
        "--time=1:30:01",
        "--job-name=k",
        "--comment=drover;o;k;1",
        "--chdir=/runs/k",
        "--output=/runs/k/gate.log",
        "--array=0,1,5",
    ];

    fn described(version: u32, options: &[&str]) -> Result<Value, String> {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        description(Version(version), Path::new("/runs/k"), &options, "#!/bin/sh\n")
    }

    #[test]
    fn options_are_fields_of_both_forms() {
        let common = json!({
            "standard_input": "/dev/null", "standard_output": "/runs/k/gate.log", "nodes": "2", "tasks": 4,
            "cpus_per_task": 3, "partition": "gpu", "constraints": "a&b", "name": "k", "comment": "drover;o;k;1",
            "current_working_directory": "/runs/k", "array": "0,1,5",
        });
        let earlier = json!({
            "no_requeue": true, "open_mode": "append", "memory_per_node": 300, "gres": "gpu:a100:2,license",
            "gpus": "2", "time_limit": 91,
            "environment": {"SLURM_GET_USER_ENV": "1", "SLURM_SUBMIT_DIR": "/runs/k"},
        });
        let later = json!({
            "requeue": false, "open_mode": ["APPEND"],
            "memory_per_node": {"set": true, "infinite": false, "number": 300},
            "tres_per_node": "gres/gpu:a100:2,gres/license", "tres_per_job": "gres/gpu:2",
            "time_limit": {"set": true, "infinite": false, "number": 91},
            "environment": ["SLURM_GET_USER_ENV=1", "SLURM_SUBMIT_DIR=/runs/k"], "script": "#!/bin/sh\n",
        });
        let with = |more: &Value| {
            let mut job = common.as_object().expect("fields").clone();
            job.extend(more.as_object().expect("fields").clone());
            Value::Object(job)
        };
        assert_eq!(described(38, ALL).expect("said"), json!({"script": "#!/bin/sh\n", "job": with(&earlier)}));
        for version in [40, 45] {
            assert_eq!(described(version, ALL).expect("said"), json!({"job": with(&later)}), "{version}");
        }
        // Slurm 23.02 writes another separator.
        assert_eq!(described(39, &["--gres=gpu:1"]).expect("said")["job"]["tres_per_node"], "gres:gpu:1");
    }

    #[test]
    fn an_option_that_has_no_field_is_refused() {
        for option in ["--wrap=true", "--export=ALL", "--mem=4G", "--time=soon", "--ntasks=many"] {
            assert!(described(38, &[option]).is_err(), "{option}");
        }
    }

    #[test]
    fn times_are_minutes() {
        for (text, wanted) in [
            ("90", Some(Some(90))),
            ("1:30", Some(Some(2))),
            ("12:00:00", Some(Some(720))),
            ("2-0", Some(Some(2880))),
            ("1-12:30", Some(Some(2190))),
            ("1-00:00:01", Some(Some(1441))),
            ("unlimited", Some(None)),
            ("INFINITE", Some(None)),
            ("0", Some(None)),
            ("", None),
            ("1:2:3:4", None),
            ("x-1", None),
            ("1-1:1:1:1", None),
        ] {
            assert_eq!(minutes(text), wanted, "{text}");
        }
        assert_eq!(described(38, &["--time=UNLIMITED"]).expect("said")["job"]["time_limit"], "UNLIMITED");
        let unlimited = json!({"set": true, "infinite": true, "number": 0});
        assert_eq!(described(40, &["--time=UNLIMITED"]).expect("said")["job"]["time_limit"], unlimited);
    }
}
