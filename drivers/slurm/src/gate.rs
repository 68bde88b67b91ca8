//! The scripts of a run directory. A claimant is job, restart count and something random: a job that was put back into
//! the queue has another restart count, and a controller that came back with an old state starts a job again with the
//! same one.
//!
//! [`hpc::script`] has what is the same for every batch system.

use std::path::Path;

use hpc::script::{self, Gate, REFUSED, quoted};

use crate::config::TaskOptions;

/// The batch script of a run directory.
pub(crate) fn gate(dir: &Path) -> String {
    script::gate(
        dir,
        &Gate {
            identify: r#"id=$SLURM_JOB_ID
[ -z "$SLURM_ARRAY_TASK_ID" ] || id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
me="$id.${SLURM_RESTART_COUNT:-0}.$random"
nodes=${SLURM_JOB_NODELIST:--}
number=$SLURM_JOB_ID
"#,
            // That it is part of an array is a matter of the submission.
            claimed: r#"unset SLURM_EXPORT_ENV SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT \
    SLURM_ARRAY_TASK_MAX SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_STEP
"#,
            // Slurm tells the task itself as well.
            on_signal: "",
        },
    )
}

/// The batch script of an array: each job is the gate of the run directory with its index.
pub(crate) fn array(dirs: &[(u32, &Path)]) -> String {
    let case = |(n, dir): &(u32, &Path)| format!("{n}) dir={} ;;\n", quoted(&dir.display().to_string()));
    let cases: String = dirs.iter().map(case).collect();
    format!(
        r#"#!/bin/sh
# Tasks that were submitted together.
dir=
case "$SLURM_ARRAY_TASK_ID" in
{cases}esac
[ -n "$dir" ] && [ -x "$dir/gate.sh" ] || exit {REFUSED}
export SLURM_SUBMIT_DIR="$dir"
exec "$dir/gate.sh" >> "$dir/gate.log" 2>&1
"#
    )
}

/// What loads the modules of a task.
fn modules(options: &TaskOptions) -> String {
    if options.modules.is_empty() {
        return String::new();
    }
    let mut text = "if ! command -v module >/dev/null 2>&1; then\n    for init in /etc/profile.d/modules.sh \
                    /etc/profile.d/lmod.sh /usr/share/modules/init/sh; do\n        [ -r \"$init\" ] && . \"$init\" && \
                    break\n    done\nfi\n"
        .to_owned();
    for module in &options.modules {
        text.push_str(&format!("module load {} || exit 126\n", quoted(module)));
    }
    text
}

/// The task's own script.
pub(crate) fn task(dir: &Path, work_dir: &Path, options: &TaskOptions) -> String {
    let command: Vec<&str> = std::iter::once(&options.command).chain(&options.args).map(String::as_str).collect();
    script::task(dir, work_dir, &options.shell, &modules(options), &options.prolog, &command)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::{Child, Command};

    use super::*;

    fn ready(script: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let (gate, task) = (dir.path().join("gate.sh"), dir.path().join("task.sh"));
        std::fs::write(&gate, super::gate(dir.path())).expect("written");
        testkit::program(&task, &format!("#!/bin/sh\n{script}\n"));
        dir
    }

    fn run(dir: &Path, id: usize, restarts: usize) -> Child {
        let mut command = Command::new("/bin/sh");
        command.arg(dir.join("gate.sh")).env("SLURM_JOB_ID", id.to_string()).stderr(std::process::Stdio::null());
        if restarts > 0 {
            command.env("SLURM_RESTART_COUNT", restarts.to_string());
        }
        command.spawn().expect("started")
    }

    fn code(mut child: Child) -> Option<i32> {
        child.wait().expect("ended").code()
    }

    #[test]
    fn of_racing_submissions_one_starts() {
        let dir = ready("echo started; exit 7");
        let all: Vec<Child> = (1..=8).map(|id| run(dir.path(), id, 0)).collect();
        let mut codes: Vec<Option<i32>> = all.into_iter().map(code).collect();
        codes.sort_unstable();
        let wanted: Vec<Option<i32>> = std::iter::once(Some(7)).chain((0..7).map(|_| Some(REFUSED))).collect();
        assert_eq!(codes, wanted);
        assert_eq!(std::fs::read_to_string(dir.path().join("out")).expect("output"), "started\n");
        assert!(std::fs::read_to_string(dir.path().join("exit")).expect("a result").starts_with("7 "));
    }

    #[test]
    fn a_job_that_slurm_runs_again_does_not_start_again() {
        let dir = ready("echo started");
        assert_eq!(code(run(dir.path(), 3, 0)), Some(0));
        // Put back into the queue.
        assert_eq!(code(run(dir.path(), 3, 1)), Some(REFUSED));
        // The controller does not know that it has started it.
        assert_eq!(code(run(dir.path(), 3, 0)), Some(REFUSED));
        assert_eq!(std::fs::read_to_string(dir.path().join("out")).expect("output"), "started\n");
    }

    #[test]
    fn a_sealed_or_removed_directory_starts_nothing() {
        let dir = ready("echo started");
        std::fs::write(dir.path().join("claim"), "sealed 1\n").expect("written");
        assert_eq!(code(run(dir.path(), 4, 0)), Some(REFUSED));
        assert!(!dir.path().join("out").exists());
        let script = std::fs::read(dir.path().join("gate.sh")).expect("read");
        let elsewhere = tempfile::tempdir().expect("a directory");
        std::fs::write(elsewhere.path().join("gate.sh"), script).expect("written");
        drop(dir);
        assert_eq!(code(run(elsewhere.path(), 5, 0)), Some(REFUSED));
    }

    #[test]
    fn signals_reach_the_task_and_its_own_code_is_kept() {
        let dir = ready("trap 'exit 5' TERM\necho ready\nwhile :; do sleep 0.05; done");
        let gate = run(dir.path(), 6, 0);
        let out = dir.path().join("out");
        testkit::until("the task's first line", || {
            std::fs::read_to_string(&out).is_ok_and(|text| text.contains("ready"))
        });
        // As `scancel --full` does: the script and its children.
        let children = format!("/proc/{0}/task/{0}/children", gate.id());
        let child: i32 = std::fs::read_to_string(children)
            .expect("children")
            .split_whitespace()
            .next()
            .expect("one")
            .parse()
            .expect("a pid");
        for pid in [gate.id().cast_signed(), child] {
            let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
        }
        assert_eq!(code(gate), Some(5));
        assert!(std::fs::read_to_string(dir.path().join("exit")).expect("a result").starts_with("5 "));
    }

    #[test]
    fn words_and_values_arrive_as_they_are() {
        let options = TaskOptions {
            command: "printf".into(),
            args: vec!["%s|".into(), "it's $HOME `x` \"y\"".into(), "two\nlines".into()],
            shell: "/bin/sh".into(),
            prolog: vec!["printf '%s|' \"$A\"".into()],
            ..TaskOptions::default()
        };
        let dir = tempfile::tempdir().expect("a directory");
        let env = BTreeMap::from([("A".to_owned(), "x' $y\n".to_owned()), ("B.c".to_owned(), "left out".to_owned())]);
        std::fs::write(dir.path().join("env"), script::environment(&env)).expect("written");
        std::fs::write(dir.path().join("t"), task(dir.path(), dir.path(), &options)).expect("written");
        let output = Command::new("/bin/sh").arg(dir.path().join("t")).output().expect("run");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "x' $y\n|it's $HOME `x` \"y\"|two\nlines|");
    }
}
