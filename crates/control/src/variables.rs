//! Variables: which paths and items there may be, and whether a write fits what is there.

use std::collections::BTreeMap;

use model::{
    StoreIndex,
    variables::{Variable, VariableKey},
};
use state::{Change, State};

use crate::{Decided, Refused};

/// Bytes of keys and values of one variable, together.
pub const MAX_BYTES: usize = 65_536;
/// Characters of a path.
const MAX_PATH: usize = 128;

/// Whether a variable may be written at that path.
///
/// # Errors
/// When not, with the rule.
pub fn check_path(path: &str) -> Result<(), Refused> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~/".contains(&byte);
    if path.is_empty() || path.len() > MAX_PATH || !path.bytes().all(fits) {
        return Err(Refused::BadRequest(format!("invalid path {path:?}")));
    }
    let mut parts = path.split('/');
    if parts.next() != Some("nomad") {
        return Ok(());
    }
    let below: Vec<&str> = parts.collect();
    let why = match below.as_slice() {
        ["jobs", ..] | ["sentinel"] => return Ok(()),
        ["job-templates", name] if !name.is_empty() => return Ok(()),
        [] | [""] => {
            "\"nomad\" is a reserved top-level directory path, but you may write variables to \"nomad/jobs\", \
                \"nomad/job-templates\", \"nomad/sentinel\", or below"
        }
        ["job-templates"] | ["job-templates", ""] => {
            "\"nomad/job-templates\" is a reserved directory path, but you may write variables at the level below it, \
                for example, \"nomad/job-templates/template-name\""
        }
        _ => {
            "only paths at \"nomad/jobs\" or \"nomad/job-templates\" and below, or \"nomad/sentinel\", are valid paths \
                under the top-level \"nomad\" directory"
        }
    };
    Err(Refused::BadRequest(why.to_owned()))
}

/// Whether these may be the items of a variable.
///
/// # Errors
/// When not, with the rule. It repeats nothing of them.
pub fn check_items(items: &BTreeMap<String, String>) -> Result<(), Refused> {
    if items.is_empty() {
        return Err(Refused::BadRequest("variable missing required Items object".to_owned()));
    }
    let bytes: usize = items.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_BYTES {
        return Err(Refused::BadRequest("variables are limited to 64KiB in total size".to_owned()));
    }
    Ok(())
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is done, or there was nothing to do.
    Done,
    /// The variable is not as the writer expects it: as it is, or there is none.
    Conflict(Option<Box<Variable>>),
}

/// Whether the variable is as the writer expects it. 0 = there is none.
fn fits(current: Option<&Variable>, cas: Option<StoreIndex>) -> bool {
    cas.is_none_or(|cas| current.map_or(0, |variable| variable.modify_index) == cas)
}

fn conflict(current: Option<&Variable>) -> Decided<Written> {
    let answer = Written::Conflict(current.map(|variable| Box::new(variable.clone())));
    Decided { batch: state::Batch::default(), answer }
}

/// Writes a variable.
///
/// # Errors
/// When its namespace does not exist.
pub fn put(state: &State, variable: Variable, cas: Option<StoreIndex>) -> Result<Decided<Written>, Refused> {
    if state.namespace(&variable.namespace).is_none() {
        let name = &variable.namespace;
        return Err(Refused::BadRequest(format!(
            "variable {:?} is in nonexistent namespace \"{name}\"",
            variable.path
        )));
    }
    let current = state.variable(&variable.key()).map(|variable| &**variable);
    if !fits(current, cas) {
        return Ok(conflict(current));
    }
    Ok(Decided { batch: Change::PutVariable(Box::new(variable)).into(), answer: Written::Done })
}

/// Deletes a variable. One that does not exist is deleted.
#[must_use]
pub fn delete(state: &State, key: VariableKey, cas: Option<StoreIndex>) -> Decided<Written> {
    let current = state.variable(&key).map(|variable| &**variable);
    match current {
        None if cas.unwrap_or(0) == 0 => Decided { batch: state::Batch::default(), answer: Written::Done },
        Some(_) if fits(current, cas) => Decided { batch: Change::DeleteVariable(key).into(), answer: Written::Done },
        _ => conflict(current),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths() {
        for path in [
            "a",
            "a/b",
            "a/",
            "~x_-9",
            "nomad/jobs",
            "nomad/jobs/",
            "nomad/jobs/a/b/c",
            "nomad/sentinel",
            "nomad/job-templates/x",
            "nomads",
            "nomads/x",
            &"a".repeat(128),
        ] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for (path, part) in [
            ("", "invalid path"),
            ("a.b", "invalid path \"a.b\""),
            ("a b", "invalid path"),
            ("ä", "invalid path"),
            (&*"a".repeat(129), "invalid path"),
            ("nomad", "reserved top-level"),
            ("nomad/", "reserved top-level"),
            ("nomad/other", "only paths at"),
            ("nomad/jobsx", "only paths at"),
            ("nomad/sentinel/x", "only paths at"),
            ("nomad/job-templates", "at the level below"),
            ("nomad/job-templates/", "at the level below"),
            ("nomad/job-templates/a/b", "only paths at"),
        ] {
            let error = check_path(path).expect_err(path).to_string();
            assert!(error.contains(part), "{path}: {error}");
        }
    }

    proptest! {
        /// What is accepted is short, of few characters, and below `nomad` only where the rules say so.
        #[test]
        fn accepted_paths_keep_the_rules(
            path in "[a-z~_/.\\- ]{0,20}|nomad(/(jobs|job-templates|sentinel|x|))?(/[a-z]{0,3}){0,2}",
        ) {
            if check_path(&path).is_ok() {
                prop_assert!(!path.is_empty() && path.len() <= 128 && !path.contains(['.', ' ', '\0']));
                let below = path.strip_prefix("nomad/");
                prop_assert!(path != "nomad");
                let one = |name: &str| !name.is_empty() && !name.contains('/');
                let template = |b: &str| b.strip_prefix("job-templates/").is_some_and(one);
                let allowed = |b: &str| b == "sentinel" || b == "jobs" || b.starts_with("jobs/") || template(b);
                prop_assert!(below.is_none_or(allowed), "{}", path);
            }
        }
    }

    fn variable(namespace: &str) -> Variable {
        Variable {
            namespace: namespace.into(),
            path: "a".into(),
            key_id: uuid::Uuid::nil(),
            data: String::new(),
            create_index: 0,
            create_time: 0,
            modify_index: 0,
            modify_time: 0,
            lock: None,
        }
    }

    #[test]
    fn check_and_set() {
        let empty = State::new();
        let mut one = empty.clone();
        one.apply(7, 0, Change::PutVariable(Box::new(variable("default"))).into()).expect("applies");
        let key = variable("default").key();
        // The state, the index that is expected, whether a write and a delete are done, and whether that changes it.
        for (state, cas, put_done, deleted, changes) in [
            (&empty, None, true, true, false),
            (&empty, Some(0), true, true, false),
            (&empty, Some(7), false, false, false),
            (&one, None, true, true, true),
            (&one, Some(0), false, false, false),
            (&one, Some(6), false, false, false),
            (&one, Some(7), true, true, true),
        ] {
            let written = put(state, variable("default"), cas).expect("a namespace");
            assert_eq!((written.answer == Written::Done, written.batch.is_empty()), (put_done, !put_done), "{cas:?}");
            let gone = delete(state, key.clone(), cas);
            assert_eq!((gone.answer == Written::Done, !gone.batch.is_empty()), (deleted, changes), "{cas:?}");
            if let Written::Conflict(current) = written.answer {
                assert_eq!(current.map(|v| v.modify_index), state.variable(&key).map(|v| v.modify_index));
            }
        }
        let error = put(&one, variable("nope"), None).expect_err("no namespace").to_string();
        assert!(error.contains("nonexistent namespace \"nope\""), "{error}");
    }

    #[test]
    fn items_have_limits() {
        let items = |n: usize| BTreeMap::from([("k".to_owned(), "v".repeat(n - 1))]);
        assert!(check_items(&items(MAX_BYTES)).is_ok());
        assert!(check_items(&items(MAX_BYTES + 1)).is_err_and(|e| e.to_string().contains("64KiB")));
        assert!(check_items(&BTreeMap::new()).is_err());
    }
}
