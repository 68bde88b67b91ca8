//! What a start may bring along: containers of ECS, and of Batch, which are such, get an environment and a command.

use std::collections::BTreeMap;

use driver_sdk::{Ensure, Error, RemoteError};

use crate::marks::is_tag_text;

/// ECS's own limit for all overrides of a start (RunTask: `overrides`), in bytes.
const OVERRIDES_MAX: usize = 8192;

/// Directories that a node prepares and that no container over there has.
const NODE_ONLY: [&str; 3] = ["NOMAD_ALLOC_DIR", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR"];

/// What cannot be done for the task over there, found before anything is asked. `definition` is what the service calls
/// its own description of a task, with an article; `user` says that the driver passes the task's `user` on.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: what it is, and where it belongs instead.
pub fn refused(request: &Ensure, service: &str, definition: &str, user: bool) -> Result<(), RemoteError> {
    request.bundle.verify()?;
    if let Some(file) = request.bundle.files.first() {
        return Err(RemoteError::wrong_request(format!(
            "the task brings the file {:?} along, and containers of {service} take no files; put it into the image or \
                fetch it there",
            file.path
        )));
    }
    if !request.task.mounts.is_empty() || !request.task.devices.is_empty() {
        return Err(RemoteError::wrong_request(format!(
            "the task has volumes or devices of the node, which containers of {service} do not have; name volumes in \
                {definition}"
        )));
    }
    if !user && !request.task.user.is_empty() {
        return Err(RemoteError::wrong_request(format!(
            "the task has a `user`; {service} takes users from the image or {} only, set it there",
            definition.replacen("a ", "the ", 1)
        )));
    }
    Ok(())
}

/// The task's environment as it means something over there, by name. `definition` is where large values belong.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: with the command it is larger than ECS takes.
pub fn environment(
    request: &Ensure,
    command: &[String],
    service: &str,
    definition: &str,
) -> Result<BTreeMap<String, String>, RemoteError> {
    let env: BTreeMap<String, String> = request.task.env.clone().into_iter().collect();
    let size = env.iter().map(|(name, value)| name.len() + value.len() + 24).sum::<usize>()
        + command.iter().map(|word| word.len() + 3).sum::<usize>();
    if size > OVERRIDES_MAX {
        return Err(RemoteError::wrong_request(format!(
            "environment and command have about {size} bytes, {service} takes {OVERRIDES_MAX} with a start; put large \
                values into {definition}, or into a secret that it names"
        )));
    }
    Ok(env.into_iter().filter(|(name, _)| !NODE_ONLY.contains(&name.as_str()) && name != "PATH").collect())
}

/// Refuses a value that is none of those that are known. `option` is its name in the job file.
///
/// # Errors
/// Names the option and those that there are.
pub fn one_of(option: &str, given: Option<&str>, known: &[&str]) -> Result<(), Error> {
    match given {
        Some(given) if !known.contains(&given) => {
            Err(Error::invalid(format!("{option} is {given:?}; there are {}", known.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Refuses options of which not exactly one is given, each with its article. `option` is what they belong to.
///
/// # Errors
/// Names the two.
pub fn either(option: &str, (one, has_one): (&str, bool), (other, has_other): (&str, bool)) -> Result<(), Error> {
    match (has_one, has_other) {
        (false, false) => Err(Error::invalid(format!("{option} names neither {one} nor {other}; give one of the two"))),
        (true, true) => Err(Error::invalid(format!("{option} has both {one} and {other}; remove one of the two"))),
        _ => Ok(()),
    }
}

/// Refuses tags that a job may not give. Of each: how the job file says it, key and value. `form` begins the word on
/// how they must be.
///
/// # Errors
/// Names the first wrong one.
pub fn free_tags<'t>(
    option: &str,
    form: &str,
    tags: impl ExactSizeIterator<Item = (String, &'t str, &'t str)>,
) -> Result<(), Error> {
    let count = tags.len();
    for (said, key, value) in tags {
        if !is_free_tag(key, value) {
            return Err(Error::invalid(format!(
                "{option} has {said}; {form} at most 128 and 256 letters, digits and \" +-=._:/@\", and keys that \
                    begin with aws: or drover: are taken"
            )));
        }
    }
    // The services take 50, and ours are among them.
    if count > 30 {
        return Err(Error::invalid(format!("{option} has {count} tags, at most 30 can be given")));
    }
    Ok(())
}

/// Whether a job may give this tag: the services' forms, and keys that nobody else has taken.
fn is_free_tag(key: &str, value: &str) -> bool {
    let fits = (1..=128).contains(&key.len()) && value.len() <= 256 && is_tag_text(key) && is_tag_text(value);
    fits && !key.starts_with("aws:") && !key.starts_with("drover:")
}
