//! What containers say of themselves, in the words of an observation.

use std::collections::BTreeMap;

use driver_sdk::{Observation, TaskExit};

use crate::marks::Marks;

/// The end of a container that tells an exit code.
pub fn with_code(code: i32, oom_killed: bool) -> TaskExit {
    // As shells say that a signal has ended a command.
    let signal = if (129..=128 + 64).contains(&code) { code - 128 } else { 0 };
    TaskExit { exit_code: code, signal, oom_killed, error: None }
}

/// The end of one that tells no code that counts, with what was `told` instead.
pub fn without_code(service: &str, told: String, oom_killed: bool) -> TaskExit {
    let error = if told.is_empty() { format!("{service} tells no exit code and no reason") } else { told };
    TaskExit { exit_code: -1, oom_killed, error: Some(error), ..TaskExit::default() }
}

/// What is said of an instance whose status is none that is known.
pub fn strange(service: &str, noun: &str, status: &str, marks: &Marks) -> Observation {
    let why = format!("{service} says that the {noun} is {status:?}, which is no status that is known");
    Observation::unknown(marks.key.as_str(), why)
}

/// Facts as attributes; what is empty or not known is left out.
pub fn attributes<'f>(facts: impl IntoIterator<Item = (&'f str, Option<&'f str>)>) -> BTreeMap<String, String> {
    let known = facts.into_iter().filter_map(|(name, value)| Some((name, value.filter(|v| !v.is_empty())?)));
    known.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_signals_are_told_as_such() {
        for (code, signal) in [(0, 0), (3, 0), (128, 0), (129, 1), (137, 9), (192, 64), (193, 0)] {
            assert_eq!(with_code(code, false).signal, signal, "{code}");
        }
        assert_eq!(without_code("X", String::new(), true).error.as_deref(), Some("X tells no exit code and no reason"));
        assert_eq!(without_code("X", "away".into(), false).error.as_deref(), Some("away"));
    }

    #[test]
    fn facts_that_are_not_known_are_left_out() {
        let told = attributes([("a", Some("1")), ("b", Some("")), ("c", None)]);
        assert_eq!(told, BTreeMap::from([("a".to_owned(), "1".to_owned())]));
    }
}
