//! What tasks will need of a pool, looked at for `drover driver doctor`.

use driver_sdk::{Finding, RemoteError};
use hpc::command::last_lines;

use crate::pool::{Pool, on_disk};

/// The commands without which no task runs.
const COMMANDS: [&str; 5] = ["condor_submit", "condor_q", "condor_qedit", "condor_release", "condor_rm"];

/// Looks at everything; submits nothing that could run.
pub(crate) async fn examine(pool: &Pool) -> Vec<Finding> {
    let mut findings = vec![version(pool).await];
    for name in COMMANDS {
        // What a command is told first is none of its help.
        if let Err(why) = pool.commands.plain(&program(pool, name), &["-help".to_owned()]).await {
            let remedy = "install HTCondor's commands on this node, or set `bin_dir`";
            findings.push(Finding::fail(format!("command {name}"), why, remedy));
        }
    }
    let reached = pool.ping().await;
    findings.push(match &reached {
        Ok(()) => Finding::pass("schedd", format!("{} answers", pool.schedd)),
        Err(why) => Finding::fail("schedd", why, "check `schedd`, `pool` and `conf`, and that the schedd runs"),
    });
    if reached.is_ok() {
        findings.push(submission(pool).await);
    }
    let base = pool.base.clone();
    findings.push(match on_disk(move || base.here()).await {
        Ok(()) => Finding::pass("base", "the run directories are there"),
        Err(why) => Finding::fail("base", why, "mount the file system that the execute nodes share"),
    });
    findings
}

fn program(pool: &Pool, name: &str) -> String {
    pool.commands.bin_dir.as_ref().map_or_else(|| name.to_owned(), |dir| dir.join(name).display().to_string())
}

async fn version(pool: &Pool) -> Finding {
    match pool.commands.plain(&program(pool, "condor_version"), &[]).await {
        Ok(said) if said.success => Finding::pass("version", said.stdout.lines().next().unwrap_or_default()),
        Ok(said) => Finding::fail("version", last_lines(&said.stderr), "install HTCondor's commands on this node"),
        Err(why) => Finding::fail("version", why, "install HTCondor's commands on this node, or set `bin_dir`"),
    }
}

/// Whether the user of the jobs may submit: a seal is submitted, which never runs, and removed.
async fn submission(pool: &Pool) -> Finding {
    match pool.try_submission().await {
        Ok(name) => Finding::pass("submission", format!("the schedd takes jobs of the user {name}")),
        Err(RemoteError::WrongRequest(why) | RemoteError::CouldNotAsk(why)) => {
            Finding::fail("submission", why, "submit a job by hand as the user of the jobs, and see what it is told")
        }
        Err(why) => Finding::fail("submission", why, "run the doctor again"),
    }
}
