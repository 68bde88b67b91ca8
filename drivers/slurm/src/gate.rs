//! The scripts of a run directory. What Slurm starts is the *gate*: it claims the directory and then starts the task's
//! own script.
//!
//! ```text
//! share the lock of `alive` ── write claim.ME ── hard link to `claim` ── read `claim`
//!     says ME ──▶ run task.sh ──▶ exit (temp, sync, rename)
//!     says anything else ──▶ leave with the code of a refusal
//! ```
//!
//! Reading decides, not the result of the link: on NFS a repeated link can tell its own maker that the name exists. ME
//! is job, restart count and something random, so that each run is a claimant of its own: a job that was put
//! back into the queue has another restart count, and a controller that came back with an old state starts a job again
//! with the same one.
//!
//! The lock is inherited by all that the task starts. Whoever gets it alone knows that nothing of the task runs.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::TaskOptions;

/// The gate's exit code when another one has the claim, or the directory is gone.
pub(crate) const REFUSED: i32 = 79;
/// The gate's exit code when the directory cannot be written or locked.
pub(crate) const CANNOT_CLAIM: i32 = 78;

/// A word of a shell, whatever it holds.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The batch script of a run directory.
pub(crate) fn gate(dir: &Path) -> String {
    let dir = quoted(&dir.display().to_string());
    format!(
        r#"#!/bin/sh
# The gate of a run directory: of all submissions with its key, one starts.
umask 077
cd {dir} 2>/dev/null || exit {REFUSED}
exec 9<> alive
flock -s -w 60 9 || exit {CANNOT_CLAIM}
read -r random < /proc/sys/kernel/random/uuid || exit {CANNOT_CLAIM}
id=$SLURM_JOB_ID
[ -z "$SLURM_ARRAY_TASK_ID" ] || id="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
me="$id.${{SLURM_RESTART_COUNT:-0}}.$random"
printf '%s job %s %s %s\n' "$me" "$(date +%s)" "${{SLURM_JOB_NODELIST:--}}" "$SLURM_JOB_ID" > "claim.$me" ||
    exit {CANNOT_CLAIM}
ln "claim.$me" claim 2>/dev/null
winner=
read -r winner rest 2>/dev/null < claim || exit {CANNOT_CLAIM}
rm -f "claim.$me"
if [ "$winner" != "$me" ]; then
    echo "$me: the directory was claimed by $winner" >&2
    exit {REFUSED}
fi
# That it is part of an array is a matter of the submission.
unset SLURM_EXPORT_ENV SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_MAX \
    SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_STEP
# A shell that waits would die of the signals that are meant for the task; a handler is not inherited.
again=0
for signal in HUP INT QUIT USR1 USR2 TERM ALRM CONT; do trap 'again=1' "$signal"; done
./task.sh >> out 2>> err < /dev/null &
child=$!
code=127
while :; do
    again=0
    wait "$child"
    seen=$?
    # Already told: the signal came after the end.
    [ "$seen" = 127 ] && [ "$code" != 127 ] && break
    code=$seen
    [ "$again" = 1 ] || break
done
printf '%s %s\n' "$code" "$(date +%s)" > exit.tmp
sync exit.tmp 2>/dev/null || sync
mv -f exit.tmp exit
exit "$code"
"#
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

/// Names that a shell can export.
fn exportable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The environment as a file for a shell. Names that no shell can export are left out.
pub(crate) fn environment(env: &BTreeMap<String, String>) -> String {
    env.iter()
        .filter(|(name, _)| exportable(name))
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect()
}

/// What runs a command in the surroundings of the task. Its first argument names the file for the exit code: `srun`
/// writes a line of its own to standard error when a command fails.
pub(crate) fn beside(dir: &Path, work_dir: &Path) -> String {
    format!(
        "#!/bin/sh\numask 077\nresult=$1\nshift\n. {}\ncd {} || exit 126\n\"$@\"\nprintf '%s\\n' \"$?\" > \
            \"$result\"\nexit 0\n",
        quoted(&dir.join("env").display().to_string()),
        quoted(&work_dir.display().to_string())
    )
}

/// The task's own script.
pub(crate) fn task(dir: &Path, work_dir: &Path, options: &TaskOptions) -> String {
    let mut text = format!("#!{}\n", options.shell);
    text.push_str(&format!(". {}\n", quoted(&dir.join("env").display().to_string())));
    text.push_str(&format!(
        "cd {} || {{ echo 'the working directory cannot be entered' >&2; exit 126; }}\n",
        quoted(&work_dir.display().to_string())
    ));
    if !options.modules.is_empty() {
        text.push_str(
            "if ! command -v module >/dev/null 2>&1; then\n    for init in /etc/profile.d/modules.sh \
                /etc/profile.d/lmod.sh /usr/share/modules/init/sh; do\n        [ -r \"$init\" ] && . \"$init\" && \
                break\n    done\nfi\n",
        );
        for module in &options.modules {
            text.push_str(&format!("module load {} || exit 126\n", quoted(module)));
        }
    }
    for line in &options.prolog {
        text.push_str(line);
        text.push('\n');
    }
    let words: Vec<String> = std::iter::once(&options.command).chain(&options.args).map(|w| quoted(w)).collect();
    text.push_str(&format!("exec {}\n", words.join(" ")));
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command};

    use super::*;

    fn ready(script: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let (gate, task) = (dir.path().join("gate.sh"), dir.path().join("task.sh"));
        std::fs::write(&gate, super::gate(dir.path())).expect("written");
        std::fs::write(&task, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&task, std::fs::Permissions::from_mode(0o700)).expect("executable");
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
        std::fs::write(dir.path().join("env"), environment(&env)).expect("written");
        std::fs::write(dir.path().join("t"), task(dir.path(), dir.path(), &options)).expect("written");
        let output = Command::new("/bin/sh").arg(dir.path().join("t")).output().expect("run");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "x' $y\n|it's $HOME `x` \"y\"|two\nlines|");
    }
}
