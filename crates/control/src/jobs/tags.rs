//! Names for versions of jobs. A version that has one is kept, however old it is.

use model::{JobKey, StoreIndex, job::VersionTag};
use state::{Change, State};

use super::{job_of, no_version};
use crate::{Decided, Refused, Stamp};

/// Longest description, in characters.
const DESCRIPTION_MAX: usize = 1000;

/// Which version gets a name.
#[derive(Clone, Debug)]
pub struct TagVersion {
    /// The job.
    pub key: JobKey,
    /// The name.
    pub name: String,
    /// Free text.
    pub description: String,
    /// The version; None = the newest.
    pub version: Option<u64>,
}

/// Names a version. The name may be given to the same version again, with another description. Returns the tag and
/// the index.
///
/// # Errors
/// When there is no such job or version, another version has the name, or the description is too long.
pub fn tag(state: &State, request: TagVersion, stamp: Stamp) -> Result<Decided<(VersionTag, StoreIndex)>, Refused> {
    let TagVersion { key, name, description, version } = request;
    let job = job_of(state, &key)?;
    if name.is_empty() {
        return Err(Refused::BadRequest("the tag has no name".to_owned()));
    }
    let length = description.chars().count();
    if length > DESCRIPTION_MAX {
        return Err(Refused::BadRequest(format!(
            "the description of a tag has at most {DESCRIPTION_MAX} characters, this one has {length}"
        )));
    }
    let version = version.unwrap_or(job.version);
    let tagged = state.job_version(&key, version).ok_or_else(|| no_version(&key, version))?;
    if let Some(other) = named(state, &key, &name).filter(|other| *other != version) {
        return Err(Refused::Invalid(format!(
            "tag {name:?} already exists on a different version of job {:?}: version {other}; remove it there first",
            key.id
        )));
    }
    // Given once more, it is as old as it was.
    let before = tagged.version_tag.as_ref().filter(|before| before.name == name && before.description == description);
    let tag = before.cloned().unwrap_or(VersionTag { name, description, tagged_time: stamp.now });
    let change = Change::JobVersionTag { key, version, tag: Some(tag.clone()) };
    Ok(Decided { batch: change.into(), answer: (tag, stamp.index) })
}

/// Takes a name away from the version that has it; returns the index.
///
/// # Errors
/// When there is no such job, or none of its versions has the name.
pub fn untag(state: &State, key: JobKey, name: &str, stamp: Stamp) -> Result<Decided<StoreIndex>, Refused> {
    job_of(state, &key)?;
    let Some(version) = named(state, &key, name) else {
        return Err(Refused::Invalid(format!(
            "tag {name:?} not found on job {:?}; `job history` lists its versions with their tags",
            key.id
        )));
    };
    Ok(Decided { batch: Change::JobVersionTag { key, version, tag: None }.into(), answer: stamp.index })
}

/// The version of that name.
fn named(state: &State, key: &JobKey, name: &str) -> Option<u64> {
    let has = |tag: &VersionTag| tag.name == name;
    state.job_versions(key).find(|job| job.version_tag.as_ref().is_some_and(has)).map(|job| job.version)
}
