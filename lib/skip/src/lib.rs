//! What a test does where it cannot look at what it is for: it says so on a machine of one's own, and fails where
//! nothing may be left out (`CI=true`).

use std::{io::Write, panic::Location};

/// This machine cannot do what the test needs (rights, a kernel's feature). The caller returns.
///
/// # Panics
/// With `CI=true`: what is checked there is all that is checked.
#[track_caller]
pub fn cannot(why: &str) {
    let line = line(why, Location::caller());
    assert!(!strict(std::env::var("CI").ok().as_deref()), "{line}; with CI=true nothing is left out");
    say(&line);
}

/// This machine is of another kind than the test is for, as one with the other version of cgroups; `check` looks at it
/// everywhere.
#[track_caller]
pub fn elsewhere(why: &str, check: &str) {
    say(&format!("{}; {check} checks it", line(why, Location::caller())));
}

fn strict(ci: Option<&str>) -> bool {
    ci == Some("true")
}

fn line(why: &str, at: &Location<'_>) -> String {
    format!("not checked here ({}:{}): {why}", at.file(), at.line())
}

/// Not eprintln: the test runner swallows that of tests that pass.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::{line, strict};

    #[test]
    fn nothing_is_left_out_in_ci() {
        for (ci, expected) in [(Some("true"), true), (Some("false"), false), (Some(""), false), (None, false)] {
            assert_eq!(strict(ci), expected, "{ci:?}");
        }
        let here = std::panic::Location::caller();
        assert!(line("no root", here).ends_with("no root") && line("no root", here).contains("skip/src/lib.rs:"));
    }
}
