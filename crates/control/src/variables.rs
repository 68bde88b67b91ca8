//! Variables: which paths and items there may be, and whether a write fits what is there.

use std::collections::BTreeMap;

use model::{
    StoreIndex,
    variables::{Variable, VariableKey, VariableLock},
};
use state::{Change, State};
use uuid::Uuid;

use crate::{Decided, Refused, Stamp};

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
    // No policy can name a path that begins with a slash, and clients take two of them for one.
    let slashes = path.starts_with('/') || path.contains("//");
    if path.is_empty() || path.len() > MAX_PATH || slashes || !path.bytes().all(fits) {
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

/// The items of a variable, encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The root key.
    pub key_id: Uuid,
    /// See [`Variable::data`].
    pub data: String,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is done: the variable as it is now.
    Done(Box<Variable>),
    /// The variable is deleted, or there was none to delete.
    Gone,
    /// The variable is not as the writer expects it: as it is, or there is none.
    Conflict(Option<Box<Variable>>),
    /// Somebody else holds its lock, or the writer does not say that it is the holder.
    Locked,
    /// The writer says that it holds a lock, and nobody does.
    Unlocked,
    /// The writer says that it holds a lock, and there is no such variable.
    Absent,
}

/// Whether the variable is as the writer expects it. 0 = there is none.
fn fits(current: Option<&Variable>, cas: Option<StoreIndex>) -> bool {
    cas.is_none_or(|cas| current.map_or(0, |variable| variable.modify_index) == cas)
}

fn refused(answer: Written) -> Decided<Written> {
    Decided { batch: state::Batch::default(), answer }
}

fn conflict(current: Option<&Variable>) -> Decided<Written> {
    refused(Written::Conflict(current.map(|variable| Box::new(variable.clone()))))
}

/// The variable as this commit leaves it.
pub(crate) fn written(
    state: &State,
    stamp: Stamp,
    key: &VariableKey,
    sealed: Sealed,
    lock: Option<VariableLock>,
) -> Variable {
    let before = state.variable(key).map(|before| (before.create_index, before.create_time));
    let (create_index, create_time) = before.unwrap_or((stamp.index, stamp.now));
    Variable {
        namespace: key.namespace.clone(),
        path: key.path.clone(),
        key_id: sealed.key_id,
        data: sealed.data,
        create_index,
        create_time,
        modify_index: stamp.index,
        modify_time: stamp.now,
        lock,
    }
}

pub(crate) fn done(variable: Variable) -> Decided<Written> {
    let variable = Box::new(variable);
    Decided { batch: Change::PutVariable(variable.clone()).into(), answer: Written::Done(variable) }
}

pub(crate) fn check_namespace(state: &State, key: &VariableKey) -> Result<(), Refused> {
    let VariableKey { namespace, path } = key;
    if namespace == "*" {
        return Err(Refused::BadRequest("can not target wildcard (\"*\")namespace".to_owned()));
    }
    if state.namespace(namespace).is_none() {
        return Err(Refused::BadRequest(format!("variable {path:?} is in nonexistent namespace \"{namespace}\"")));
    }
    Ok(())
}

/// Whether a write with this id may pass the lock that stands on the variable; else what becomes of the write.
pub(crate) fn passes(current: Option<&Variable>, id: Option<&str>) -> Result<(), Written> {
    match (current.and_then(|variable| variable.lock.as_ref()), id) {
        (Some(lock), Some(id)) if lock.id.matches(id) => Ok(()),
        (Some(_), _) => Err(Written::Locked),
        // The writer believes that it holds a lock, and does not.
        (None, Some(_)) => Err(Written::Unlocked),
        (None, None) => Ok(()),
    }
}

/// Writes a variable. `lock`: the id of the lock that the writer holds. The lock stays as it is.
///
/// # Errors
/// When its namespace does not exist.
pub fn put(
    state: &State,
    stamp: Stamp,
    key: &VariableKey,
    sealed: Sealed,
    cas: Option<StoreIndex>,
    lock: Option<&str>,
) -> Result<Decided<Written>, Refused> {
    check_namespace(state, key)?;
    let current = state.variable(key).map(|variable| &**variable);
    if let Err(answer) = passes(current, lock) {
        return Ok(refused(answer));
    }
    if !fits(current, cas) {
        return Ok(conflict(current));
    }
    Ok(done(written(state, stamp, key, sealed, current.and_then(|variable| variable.lock.clone()))))
}

/// Deletes a variable, and its lock with it. One that does not exist is deleted. `lock`: the id of the lock that the
/// writer holds.
#[must_use]
pub fn delete(state: &State, key: VariableKey, cas: Option<StoreIndex>, lock: Option<&str>) -> Decided<Written> {
    let current = state.variable(&key).map(|variable| &**variable);
    if let Err(answer) = passes(current, lock) {
        return refused(answer);
    }
    match current {
        None if cas.unwrap_or(0) == 0 => refused(Written::Gone),
        Some(_) if fits(current, cas) => Decided { batch: Change::DeleteVariable(key).into(), answer: Written::Gone },
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
            ("/a", "invalid path"),
            ("a//b", "invalid path"),
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
                prop_assert!(!path.starts_with('/') && !path.contains("//"));
                let below = path.strip_prefix("nomad/");
                prop_assert!(path != "nomad");
                let one = |name: &str| !name.is_empty() && !name.contains('/');
                let template = |b: &str| b.strip_prefix("job-templates/").is_some_and(one);
                let allowed = |b: &str| b == "sentinel" || b == "jobs" || b.starts_with("jobs/") || template(b);
                prop_assert!(below.is_none_or(allowed), "{}", path);
            }
        }
    }

    fn sealed() -> Sealed {
        Sealed { key_id: Uuid::nil(), data: String::new() }
    }

    #[test]
    fn check_and_set() {
        let stamp = Stamp { index: 7, now: 1 };
        let key = VariableKey::new("default", "a");
        let empty = State::new();
        let mut one = empty.clone();
        let first = put(&empty, stamp, &key, sealed(), None, None).expect("a namespace");
        one.apply(7, 1, first.batch).expect("applies");
        let stamp = Stamp { index: 9, now: 2 };
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
            let written = put(state, stamp, &key, sealed(), cas, None).expect("a namespace");
            let is_done = matches!(written.answer, Written::Done(_));
            assert_eq!((is_done, written.batch.is_empty()), (put_done, !put_done), "{cas:?}");
            let gone = delete(state, key.clone(), cas, None);
            assert_eq!((gone.answer == Written::Gone, !gone.batch.is_empty()), (deleted, changes), "{cas:?}");
            match written.answer {
                Written::Conflict(current) => assert_eq!(current.as_deref(), state.variable(&key).map(|v| &**v)),
                Written::Done(told) => {
                    let mut after = State::clone(state);
                    after.apply(stamp.index, stamp.now, written.batch).expect("applies");
                    assert_eq!(Some(&*told), after.variable(&key).map(|v| &**v), "what is told is what is there");
                }
                other => panic!("{other:?}"),
            }
        }
        for (namespace, part) in [("nope", "nonexistent namespace \"nope\""), ("*", "can not target wildcard")] {
            let error = put(&one, stamp, &VariableKey::new(namespace, "a"), sealed(), None, None);
            let error = error.expect_err("no namespace").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn items_have_limits() {
        let items = |n: usize| BTreeMap::from([("k".to_owned(), "v".repeat(n - 1))]);
        assert!(check_items(&items(MAX_BYTES)).is_ok());
        assert!(check_items(&items(MAX_BYTES + 1)).is_err_and(|e| e.to_string().contains("64KiB")));
        assert!(check_items(&BTreeMap::new()).is_err());
    }
}
