//! How many files a process may have open (RLIMIT_NOFILE). Most systems give 1024 and let whoever needs more take it;
//! an agent and its plugins hold one or two for each task, so they take what there is ([`raise`]). Tasks are given what
//! their agent was given ([`give_back`]): programs that go through all possible
//! descriptors, or wait for them with `select`, must not meet a million.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// Tells a plugin that comes with the agent what the agent was given.
pub const VARIABLE: &str = "DROVER_OPEN_FILES";
/// More than anybody has tasks for.
const ENOUGH: u64 = 1 << 20;

/// What this process, or the agent above it, was given. Empty: nothing was raised here.
static GIVEN: OnceLock<u64> = OnceLock::new();

/// Takes as many as the system allows. Once, at the start of a process.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    // Not more than may be given back.
    let most = |told: u64| limit.maximum.map_or(told, |most| told.min(most));
    let told = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).map(most);
    // Without a limit nothing is to be taken or to be given back.
    let Some(given) = told.or(limit.current) else { return };
    let _ = GIVEN.set(given);
    let wanted = limit.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if limit.current.is_some_and(|now| now < wanted) {
        // A refusal leaves what there was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

/// What a plugin that comes with the agent finds in its environment, if this process has raised its own limit. Others
/// know nothing of it, and are given back what the agent was given.
#[must_use]
pub fn variable() -> Option<(&'static str, String)> {
    GIVEN.get().map(|given| (VARIABLE, given.to_string()))
}

/// Gives a child of this process what this process was given, if it has raised its own limit. Before the child does
/// anything for a task.
pub fn give_back(pid: u32) {
    let (Some(given), Some(pid)) = (GIVEN.get(), i32::try_from(pid).ok().and_then(Pid::from_raw)) else { return };
    let maximum = getrlimit(Resource::Nofile).maximum;
    // An error only says that the child has ended.
    let _ = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(*given), maximum });
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    /// Set for the process in which the limits are changed.
    const CHILD: &str = "OPEN_FILES_TEST_CHILD";

    /// What a process with these limits, and its child, have after it has taken what there is.
    fn told(limits: &str, told: Option<&str>) -> String {
        let test = "tests::a_process_takes_what_there_is_and_its_children_get_what_it_was_given";
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{limits}; exec \"$0\" --exact {test} --nocapture")])
            .arg(std::env::current_exe().expect("own path"));
        command.env(CHILD, "1").env_remove(VARIABLE).envs(told.map(|told| (VARIABLE, told)));
        let output = command.stdin(Stdio::null()).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines()
            .find_map(|line| line.split_once("told: "))
            .unwrap_or_else(|| panic!("nothing was told: {text}"))
            .1
            .to_owned()
    }

    #[expect(clippy::print_stdout, reason = "the test that started this process reads it")]
    fn tell() {
        raise();
        let own = getrlimit(Resource::Nofile).current;
        let mut shell = Command::new("sh");
        shell.args(["-c", "read go; ulimit -Sn; ulimit -Hn"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("starts");
        give_back(child.id());
        child.stdin.take().expect("piped").write_all(b"go\n").expect("reads");
        let text = String::from_utf8(child.wait_with_output().expect("ends").stdout).expect("text");
        println!(
            "told: {own:?} {:?} {:?}",
            text.split_whitespace().collect::<Vec<_>>(),
            variable().map(|(_, value)| value)
        );
    }

    #[test]
    fn a_process_takes_what_there_is_and_its_children_get_what_it_was_given() {
        if std::env::var_os(CHILD).is_some() {
            return tell();
        }
        let expected = r#"Some(4000) ["200", "4000"] Some("200")"#;
        assert_eq!(told("ulimit -Sn 200; ulimit -Hn 4000", None), expected);
        assert_eq!(
            told("ulimit -Sn 4000; ulimit -Hn 4000", Some("200")),
            expected,
            "a plugin of an agent that has taken all"
        );
        let all = r#"Some(4000) ["4000", "4000"] Some("4000")"#;
        assert_eq!(told("ulimit -Sn 4000; ulimit -Hn 4000", Some("9000")), all, "more than may be given back");
    }
}
