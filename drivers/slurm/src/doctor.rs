//! What tasks will need of a cluster, looked at for `drover driver doctor`.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::lchown;
use std::path::Path;
use std::time::SystemTime;

use driver_sdk::{Finding, RemoteError};
use hpc::command::last_lines;
use hpc::files::unique;
use hpc::rights::{Owner, as_owner};
use hpc::users::User;
use rustix::fs::FlockOperation;

use crate::site::{Site, on_disk};
use crate::{answer, rest, tables, users};

/// Commands without which no task runs, and what the others are for.
const COMMANDS: &[(&str, Option<&str>)] = &[
    ("sbatch", None),
    ("squeue", None),
    ("scancel", None),
    ("scontrol", None),
    ("sinfo", None),
    ("srun", Some("alloc exec")),
    ("sstat", Some("usage of CPU and memory")),
    ("sacct", Some("the ends of jobs that the controller has forgotten")),
];
/// The commands that slurmrestd does not replace.
const BESIDE_REST: &[(&str, Option<&str>)] =
    &[("srun", Some("alloc exec")), ("sstat", Some("usage of CPU and memory")), ("scontrol", Some("process tracking"))];
/// How far the clock of the file server may differ, in seconds: ages of submissions are told by it.
const CLOCKS_APART: u64 = 5;

/// Looks at everything; submits nothing.
pub(crate) async fn examine(site: &Site) -> Vec<Finding> {
    let mut findings = match &site.rest {
        Some(rest) => rest::doctor::examine(rest, rustix::process::geteuid().as_raw()).await,
        None => commands(site, COMMANDS).await,
    };
    if findings.iter().any(|finding| finding.verdict == driver_sdk::Verdict::Fail) {
        return findings;
    }
    match &site.rest {
        Some(_) => {
            findings.extend(commands(site, BESIDE_REST).await);
            findings.extend(beside_rest(site).await);
        }
        None => {
            findings.extend(controller(site).await);
            findings.push(submission(site).await);
        }
    }
    let (users, known) = known_users(site).await;
    findings.extend(users);
    let base = site.base.root.clone();
    let looked = on_disk(move || Ok(directory(&base, known.first().map(|user| user.owner)))).await;
    findings.extend(looked.unwrap_or_else(|why| vec![Finding::fail("base", why, "run the doctor again")]));
    findings
}

/// What only the commands can tell, where slurmrestd is used: without them it is not looked at.
async fn beside_rest(site: &Site) -> Vec<Finding> {
    let said = site.commands.run("scontrol", &["show", "config"].map(str::to_owned)).await;
    let mut findings = match said {
        // slurmrestd has said whether it serves accounting.
        Ok(said) if said.success => settings(&said.stdout).into_iter().filter(|f| f.what != "accounting").collect(),
        _ => vec![Finding::warning(
            "process tracking",
            "not looked at: slurmrestd does not tell ProctrackType",
            format!("see that slurm.conf has ProctrackType={}", tables::WHOLE_TREE),
        )],
    };
    findings.push(Finding::warning(
        "submission",
        "not looked at: slurmrestd cannot try one",
        "run a job; a refusal of its partition or account is told there",
    ));
    findings
}

async fn commands(site: &Site, wanted: &[(&str, Option<&str>)]) -> Vec<Finding> {
    let install = "install Slurm's commands on this node (slurm-client), or set `bin_dir`";
    let mut findings = Vec::new();
    for (name, of_use) in wanted {
        let what = format!("command {name}");
        let found = match site.commands.run(name, &["--version".to_owned()]).await {
            Ok(said) if said.success => Finding::pass(what, said.stdout.trim()),
            Ok(said) => missing(what, last_lines(&said.stderr), *of_use, install),
            Err(why) => missing(what, why.to_string(), *of_use, install),
        };
        findings.push(found);
    }
    findings
}

fn missing(what: String, found: String, of_use: Option<&str>, install: &str) -> Finding {
    match of_use {
        None => Finding::fail(what, found, install),
        Some(of_use) => Finding::warning(what, found, format!("{install}; without it there is no {of_use}")),
    }
}

async fn controller(site: &Site) -> Vec<Finding> {
    let said = match site.commands.run("scontrol", &["show", "config"].map(str::to_owned)).await {
        Ok(said) if said.success => said,
        Ok(said) => {
            let remedy =
                "check SlurmctldHost of slurm.conf, the network, and that munged runs here with the cluster's key";
            return vec![Finding::fail("controller", last_lines(&said.stderr), remedy)];
        }
        Err(why) => return vec![Finding::fail("controller", why, "raise `command_timeout` if it is only slow")],
    };
    settings(&said.stdout)
}

/// What the settings of a cluster mean for tasks.
fn settings(text: &str) -> Vec<Finding> {
    let of = |name: &str| tables::setting(text, name).unwrap_or("unknown");
    let mut findings =
        vec![Finding::pass("controller", format!("cluster {}, Slurm {}", of("ClusterName"), of("SLURM_VERSION")))];
    let tracking = of("ProctrackType");
    findings.push(match tracking == tables::WHOLE_TREE {
        true => Finding::pass("process tracking", tracking),
        false => Finding::warning(
            "process tracking",
            format!("{tracking}: what leaves the session of its task outlives a stop"),
            format!("set ProctrackType={} in slurm.conf", tables::WHOLE_TREE),
        ),
    });
    let accounting = of("AccountingStorageType");
    findings.push(match accounting.ends_with("/none") || accounting == "(null)" {
        false => Finding::pass("accounting", accounting),
        true => Finding::warning(
            "accounting",
            format!("none: of a task that SIGKILL ended nothing is known after MinJobAge ({})", of("MinJobAge")),
            "run slurmdbd; until then such a task counts as ended once its nodes are heard",
        ),
    });
    findings
}

/// Users that tasks may name, one by one, and those of them that the agent can submit for.
async fn known_users(site: &Site) -> (Vec<Finding>, Vec<User>) {
    let config = &site.config;
    let listed = config.users.iter().map(String::as_str).filter(|name| *name != "*");
    let mut names: Vec<&str> = config.default_user().into_iter().chain(listed).collect();
    names.dedup();
    let agent = rustix::process::geteuid().as_raw();
    let (mut findings, mut known) = (Vec::new(), Vec::new());
    if config.users.iter().any(|name| name == "*") && agent != 0 {
        let found = format!("the agent runs as the user {agent} and can submit for nobody else");
        findings.push(Finding::fail("users", found, "run the agent as root, or take `*` out of `users`"));
    }
    for name in names {
        let looked = hpc::users::look_up(&site.commands, name).await;
        let allowed = looked.and_then(|user| users::allowed(&user, config, agent).map(|()| user));
        let what = format!("user {name}");
        match allowed {
            Ok(user) => {
                findings.push(Finding::pass(what, format!("number {} and group {}", user.owner.uid, user.owner.gid)));
                known.push(user);
            }
            Err(why) => findings.push(Finding::fail(
                what,
                why,
                "take the user out of the plugin's configuration, or mend what the reason names",
            )),
        }
    }
    (findings, known)
}

/// Whether the cluster would take a job of a task that names nothing.
async fn submission(site: &Site) -> Finding {
    let what = "submission";
    let mut args = vec!["--test-only".to_owned(), "--wrap=true".to_owned(), "--no-requeue".to_owned()];
    for (name, value) in [("partition", &site.config.partition), ("account", &site.config.account)] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            args.push(format!("--{name}={value}"));
        }
    }
    let user = match site.config.default_user() {
        None => Ok(None),
        Some(name) => hpc::users::look_up(&site.commands, name).await.map(Some),
    };
    let said = match &user {
        Ok(user) => site.commands.run_in((user.as_ref(), Path::new("/")), "sbatch", &args, "").await,
        Err(why) => Err(why.clone()),
    };
    match said {
        Ok(said) if said.success => Finding::pass(what, last_lines(&said.stderr).replace("sbatch: ", "")),
        Ok(said) if answer::refusal(&said.stderr).is_some() => Finding::fail(
            what,
            last_lines(&said.stderr),
            "name another `partition` or `account`, or let an administrator allow it to the user of the jobs",
        ),
        Ok(said) => Finding::fail(what, last_lines(&said.stderr), "submit a job by hand as the user of the jobs"),
        Err(why) => Finding::fail(what, why, "raise `command_timeout` if it is only slow"),
    }
}

/// What run directories need of their file system, also those of another user; blocks.
fn directory(base: &Path, user: Option<Owner>) -> Vec<Finding> {
    let dir = base.join(format!(".doctor.{}", unique()));
    let given = user.map(|user| give(&dir.with_extension("given"), user));
    let looked = fs::create_dir(&dir).and_then(|()| look(&dir));
    let _ = fs::remove_dir_all(&dir);
    let mut findings = match looked {
        Ok(mut findings) => {
            findings.extend(given);
            findings
        }
        Err(why) => {
            let remedy = "let the user of the agent write into it";
            return vec![Finding::fail("base", format!("{}: {why}", base.display()), remedy)];
        }
    };
    findings.push(Finding::warning(
        "compute nodes",
        format!("not looked at: whether they see {} under this path, and have `flock`", base.display()),
        format!("srun sh -c 'command -v flock && ls {}/identity' says so", base.display()),
    ));
    findings
}

/// Whether a directory can be given to a user who then works in it.
fn give(dir: &Path, user: Owner) -> Finding {
    let what = "directories of users";
    let made = fs::create_dir(dir).and_then(|()| lchown(dir, Some(user.uid), Some(user.gid)));
    let used = made.map_err(|why| why.to_string()).and_then(|()| {
        let write = || fs::write(dir.join("a"), b"").map_err(RemoteError::could_not_ask);
        as_owner(dir, write).map_err(|why| why.to_string())
    });
    let _ = fs::remove_dir_all(dir);
    match used {
        Ok(()) => Finding::pass(what, format!("the user {} can work in one that the agent has made", user.uid)),
        Err(why) => Finding::fail(
            what,
            format!("{}: {why}", dir.display()),
            "export the file system to this node without root_squash, and let users enter all directories above `base`",
        ),
    }
}

fn look(dir: &Path) -> io::Result<Vec<Finding>> {
    let (file, link) = (dir.join("a"), dir.join("b"));
    let open = || OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&file);
    let first = open()?;
    let mut findings = vec![Finding::pass("base", dir.parent().unwrap_or(dir).display())];
    let elsewhere = "put `base` on a file system that has them";
    findings.push(match fs::hard_link(&file, &link) {
        Ok(()) => Finding::pass("hard links", "they work"),
        Err(why) => Finding::fail("hard links", why, elsewhere),
    });
    let locked = rustix::fs::flock(&first, FlockOperation::LockShared);
    let second = open()?;
    findings.push(match (locked, rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive)) {
        (Ok(()), Err(rustix::io::Errno::WOULDBLOCK)) => Finding::pass("locks", "they work on this node"),
        (Ok(()), Ok(())) => Finding::fail("locks", "two hold one lock", elsewhere),
        (Err(why), _) | (_, Err(why)) => {
            Finding::fail("locks", why, "mount the file system with locks that all nodes share (Lustre: -o flock)")
        }
    });
    let (theirs, ours) = (fs::metadata(&file)?.modified()?, SystemTime::now());
    findings.push(clock(apart(theirs, ours)));
    Ok(findings)
}

/// Seconds between two moments.
fn apart(one: SystemTime, other: SystemTime) -> u64 {
    one.duration_since(other).or_else(|_| other.duration_since(one)).unwrap_or_default().as_secs()
}

fn clock(seconds: u64) -> Finding {
    match seconds <= CLOCKS_APART {
        true => Finding::pass("clock", format!("within {CLOCKS_APART} s of the file system's")),
        false => Finding::warning(
            "clock",
            format!("{seconds} s from the file system's: a submission may be taken for lost too early or too late"),
            "let both follow the same time servers; munge refuses credentials that are 300 s off",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn settings_that_take_something_away_are_told() {
        let text = "ClusterName = c\nSLURM_VERSION = 22.05.8\nMinJobAge = 300 sec\n";
        let verdicts = |more: &str| -> Vec<Verdict> {
            settings(&format!("{text}{more}")).into_iter().map(|finding| finding.verdict).collect()
        };
        let good = "ProctrackType = proctrack/cgroup\nAccountingStorageType = accounting_storage/slurmdbd\n";
        assert_eq!(verdicts(good), [Verdict::Pass; 3]);
        let bad = "ProctrackType = proctrack/pgid\nAccountingStorageType = accounting_storage/none\n";
        assert_eq!(verdicts(bad), [Verdict::Pass, Verdict::Warning, Verdict::Warning]);
    }

    #[test]
    fn a_directory_is_looked_at_and_left_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = directory(dir.path(), None);
        assert!(found.iter().all(|f| f.verdict == Verdict::Pass || f.what == "compute nodes"), "{found:?}");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
        let missing = directory(&dir.path().join("none"), None);
        assert_eq!((missing.len(), missing[0].verdict), (1, Verdict::Fail));
    }

    #[test]
    fn a_clock_that_is_off_either_way_is_told() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        assert_eq!(apart(now, now - Duration::from_secs(60)), 60);
        assert_eq!(apart(now - Duration::from_secs(60), now), 60);
        assert_eq!((clock(5).verdict, clock(60).verdict), (Verdict::Pass, Verdict::Warning));
    }
}
