//! The scripts of a run directory. What the batch system starts is the *gate*: it claims the directory and then starts
//! the task's own script.
//!
//! ```text
//! share the lock of `alive` ── write claim.ME ── hard link to `claim` ── read `claim`
//!     says ME ──▶ run task.sh ──▶ exit (temp, sync, rename)
//!     says anything else ──▶ leave with the code of a refusal
//! ```
//!
//! Reading decides, not the result of the link: on NFS a repeated link can tell its own maker that the name exists. ME
//! holds something random, so that each run is a claimant of its own.
//!
//! The lock is inherited by all that the task starts. Whoever gets it alone knows that nothing of the task runs.

use std::collections::BTreeMap;
use std::path::Path;

/// The gate's exit code when another one has the claim, or the directory is gone.
pub const REFUSED: i32 = 79;
/// The gate's exit code when the directory cannot be written or locked.
pub const CANNOT_CLAIM: i32 = 78;

/// What a batch system adds to its gate, in lines of `/bin/sh`.
#[derive(Debug, Clone, Copy)]
pub struct Gate<'a> {
    /// Sets `me` (the claimant, which holds `$random`), `nodes` and `number` (of the job).
    pub identify: &'a str,
    /// What follows once the directory is claimed.
    pub claimed: &'a str,
    /// What is done with the signal `$1`, besides waiting on for the task, whose process is `$child`.
    pub on_signal: &'a str,
}

/// A word of a shell, whatever it holds.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The gate of a run directory.
pub fn gate(dir: &Path, gate: &Gate<'_>) -> String {
    let dir = quoted(&dir.display().to_string());
    let Gate { identify, claimed, on_signal } = gate;
    format!(
        r#"#!/bin/sh
# The gate of a run directory: of all submissions with its key, one starts.
umask 077
cd {dir} 2>/dev/null || exit {REFUSED}
{{ : >> alive; }} 2>/dev/null || exit {CANNOT_CLAIM}
exec 9<> alive
flock -s -w 60 9 || exit {CANNOT_CLAIM}
read -r random < /proc/sys/kernel/random/uuid || exit {CANNOT_CLAIM}
{identify}printf '%s job %s %s %s\n' "$me" "$(date +%s)" "$nodes" "$number" > "claim.$me" || exit {CANNOT_CLAIM}
ln "claim.$me" claim 2>/dev/null
winner=
read -r winner rest 2>/dev/null < claim || exit {CANNOT_CLAIM}
rm -f "claim.$me"
if [ "$winner" != "$me" ]; then
    echo "$me: the directory was claimed by $winner" >&2
    exit {REFUSED}
fi
{claimed}# The task begins with the usual answer to each signal: a shell lets what runs beside it ignore INT and QUIT.
usual='env --default-signal'
$usual true 2>/dev/null || usual=
on_signal() {{
    again=1
    [ -n "$child" ] || {{ early=$1; return; }}
{on_signal}}}
# A shell that waits would die of the signals that are meant for the task; a handler is not inherited.
again=0 early= child=
for signal in HUP INT QUIT USR1 USR2 TERM ALRM CONT; do trap "on_signal $signal" "$signal"; done
$usual ./task.sh >> out 2>> err < /dev/null &
child=$!
# One that came before the task was meant for it.
[ -z "$early" ] || on_signal "$early"
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
# Its number may be another process's from here on.
child=
# A result that cannot be written whole is none; one that the driver has concluded meanwhile stays.
printf '%s %s\n' "$code" "$(date +%s)" > exit.tmp && {{ sync exit.tmp 2>/dev/null || sync; }} &&
    {{ {{ [ ! -L exit ] && [ -s exit ]; }} || mv -f exit.tmp exit; }}
exit "$code"
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
pub fn environment(env: &BTreeMap<String, String>) -> String {
    env.iter()
        .filter(|(name, _)| exportable(name))
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect()
}

/// What runs a command in the surroundings of the task. Its first argument names the file for the exit code: what
/// starts such a command may write a line of its own to standard error when it fails.
pub fn beside(dir: &Path, work_dir: &Path) -> String {
    format!(
        "#!/bin/sh\numask 077\nresult=$1\nshift\n. {}\ncd {} || exit 126\n\"$@\"\nprintf '%s\\n' \"$?\" > \
            \"$result\"\nexit 0\n",
        quoted(&dir.join("env").display().to_string()),
        quoted(&work_dir.display().to_string())
    )
}

/// The task's own script: its environment, its working directory, some lines of its shell, and its command. `before`
/// comes first, such as what loads modules.
pub fn task(dir: &Path, work_dir: &Path, shell: &str, before: &str, prolog: &[String], command: &[&str]) -> String {
    let mut text = format!("#!{shell}\n. {}\n", quoted(&dir.join("env").display().to_string()));
    text.push_str(&format!(
        "cd {} || {{ echo 'the working directory cannot be entered' >&2; exit 126; }}\n",
        quoted(&work_dir.display().to_string())
    ));
    text.push_str(before);
    for line in prolog {
        text.push_str(line);
        text.push('\n');
    }
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    text.push_str(&format!("exec {}\n", words.join(" ")));
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::files;

    #[test]
    fn a_task_begins_with_the_usual_answer_to_each_signal() {
        let dir = tempfile::tempdir().expect("a directory");
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            files::put(&path, 0o700, text.as_bytes()).expect("written");
            path
        };
        put("task.sh", "#!/bin/sh\ngrep SigIgn /proc/self/status\n");
        let own = Gate { identify: "me=1.0.$random nodes=- number=1\n", claimed: "", on_signal: "" };
        let script = put("gate.sh", &gate(dir.path(), &own));
        // As what starts it may leave them.
        let ended = Command::new("sh").args(["-c", "trap '' PIPE HUP; exec \"$0\""]).arg(script).status();
        assert_eq!(ended.expect("run").code(), Some(0));
        let told = std::fs::read_to_string(dir.path().join("out")).expect("its output");
        let ignored = told.split_whitespace().last().map(|mask| u64::from_str_radix(mask, 16));
        // Beyond them are those of the C library and of real time.
        assert_eq!(ignored.map(|mask| mask.expect("a mask") & 0x7fff_ffff), Some(0), "{told}");
    }
}
