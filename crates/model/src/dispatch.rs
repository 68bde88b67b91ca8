//! Dispatching a parameterized job: the child that a request makes of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ids::JobId,
    job::{Job, Parameterized, job_status, job_type},
};

/// Largest payload in bytes. It is part of the child, which every server keeps in memory.
pub const MAX_PAYLOAD_BYTES: usize = 16 * 1024;
/// Longest beginning of a child's name that a dispatch may ask for.
pub const MAX_PREFIX_BYTES: usize = 128;
/// Between a parent's id and what tells its children apart.
pub const LAUNCH_SUFFIX: &str = "/dispatch-";

/// What a dispatch brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// Base64 as it is kept; empty = none.
    pub payload: String,
    /// How many bytes that are.
    pub payload_bytes: usize,
    /// Metadata over that of the parent.
    pub meta: BTreeMap<String, String>,
    /// Beginning of the child's name; may be empty.
    pub id_prefix: String,
    /// The same token gives the same child; empty = each request makes one.
    pub idempotency_token: String,
    /// Priority of the child; None = that of the parent.
    pub priority: Option<i32>,
}

/// Why a job cannot be dispatched so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// The job is no template.
    #[error("Specified job {0:?} is not a parameterized job")]
    NotParameterized(JobId),
    /// It is stopped.
    #[error("job {0:?} is stopped: run it again before it is dispatched")]
    Stopped(JobId),
    /// A payload is missing.
    #[error("job {0:?} requires a payload and the dispatch has none")]
    PayloadRequired(JobId),
    /// A payload is too much.
    #[error("job {0:?} forbids a payload and the dispatch has one")]
    PayloadForbidden(JobId),
    /// The payload is too large.
    #[error(
        "the payload has {0} bytes, at most {MAX_PAYLOAD_BYTES} are allowed: pass the address of larger data in meta, \
            or as an artifact"
    )]
    PayloadTooLarge(usize),
    /// Metadata is missing.
    #[error("the dispatch lacks required meta keys: {}", .0.join(", "))]
    MetaMissing(Vec<String>),
    /// Metadata that the job does not know.
    #[error("the dispatch has meta keys that the job does not allow: {}", .0.join(", "))]
    MetaUnknown(Vec<String>),
    /// The beginning of the name cannot be used.
    #[error(
        "id_prefix_template {0:?} cannot be part of a job id: at most {MAX_PREFIX_BYTES} bytes, no space, no slash, \
            no null character"
    )]
    Prefix(String),
}

impl Job {
    /// Is it a template, which is never scheduled itself?
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.periodic.is_some() || (self.parameterized_job.is_some() && !self.dispatched)
    }
}

/// What is wrong with a parameterized block, for the registration.
pub(crate) fn mistakes(job: &Job) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(Parameterized { payload, meta_required, meta_optional }) = &job.parameterized_job else {
        let takers = job.task_groups.iter().flat_map(|g| &g.tasks).filter(|t| t.dispatch_payload.is_some());
        wrong.extend(
            takers.map(|t| format!("task {:?} has dispatch_payload, which only a parameterized job brings", t.name)),
        );
        return wrong;
    };
    if job.kind != job_type::BATCH && job.kind != job_type::SYSBATCH {
        wrong.push("Parameterized job can only be used with \"batch\" or \"sysbatch\" scheduler".to_owned());
    }
    if !matches!(payload.as_str(), "" | "optional" | "required" | "forbidden") {
        wrong
            .push(format!("parameterized.payload {payload:?} is none of \"optional\", \"required\" and \"forbidden\""));
    }
    let required: BTreeSet<&String> = meta_required.iter().collect();
    let both: Vec<&str> = meta_optional.iter().filter(|key| required.contains(key)).map(String::as_str).collect();
    if !both.is_empty() {
        wrong.push(format!("parameterized meta keys are required and optional at once: {}", both.join(", ")));
    }
    wrong
}

/// The child that a dispatch makes. `seconds` is Unix time, `random` eight hexadecimal digits that no other child has.
///
/// # Errors
/// When the job is no template, is stopped, or does not allow what the request brings.
pub fn child(parent: &Job, request: &Dispatch, seconds: i64, random: &str) -> Result<Job, DispatchError> {
    let Some(rules) = parent.parameterized_job.as_ref().filter(|_| !parent.dispatched) else {
        return Err(DispatchError::NotParameterized(parent.id.clone()));
    };
    if parent.stop {
        return Err(DispatchError::Stopped(parent.id.clone()));
    }
    check(parent, rules, request)?;
    let prefix = &request.id_prefix;
    let bad = |c: char| c.is_whitespace() || c == '/' || c == '\0';
    if prefix.len() > MAX_PREFIX_BYTES || prefix.contains(bad) {
        return Err(DispatchError::Prefix(prefix.clone()));
    }
    let dash = if prefix.is_empty() { "" } else { "-" };
    let id = JobId::from(format!("{}{LAUNCH_SUFFIX}{prefix}{dash}{seconds}-{random}", parent.id));
    let mut child = parent.clone();
    child.name = id.to_string();
    child.id = id;
    child.parent_id = parent.id.to_string();
    child.dispatched = true;
    child.dispatch_idempotency_token.clone_from(&request.idempotency_token);
    child.payload = (!request.payload.is_empty()).then(|| request.payload.clone());
    child.priority = request.priority.unwrap_or(parent.priority);
    child.meta.extend(request.meta.clone());
    job_status::PENDING.clone_into(&mut child.status);
    Ok(child)
}

fn check(parent: &Job, rules: &Parameterized, request: &Dispatch) -> Result<(), DispatchError> {
    let given = request.payload_bytes > 0;
    match rules.payload.as_str() {
        "required" if !given => return Err(DispatchError::PayloadRequired(parent.id.clone())),
        "forbidden" if given => return Err(DispatchError::PayloadForbidden(parent.id.clone())),
        _ => {}
    }
    if request.payload_bytes > MAX_PAYLOAD_BYTES {
        return Err(DispatchError::PayloadTooLarge(request.payload_bytes));
    }
    let missing: Vec<String> =
        rules.meta_required.iter().filter(|key| !request.meta.contains_key(*key)).cloned().collect();
    if !missing.is_empty() {
        return Err(DispatchError::MetaMissing(missing));
    }
    let known = |key: &&String| rules.meta_required.contains(key) || rules.meta_optional.contains(key);
    let unknown: Vec<String> = request.meta.keys().filter(|key| !known(key)).cloned().collect();
    if unknown.is_empty() { Ok(()) } else { Err(DispatchError::MetaUnknown(unknown)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent() -> Job {
        let rules = Parameterized {
            payload: "optional".into(),
            meta_required: vec!["who".into()],
            meta_optional: vec!["why".into()],
        };
        let mut job = Job {
            id: "mail".into(),
            name: "mail".into(),
            kind: "batch".into(),
            parameterized_job: Some(rules),
            ..Job::default()
        };
        job.meta.insert("why".into(), "default".into());
        job
    }

    fn request(bytes: usize, meta: &[&str]) -> Dispatch {
        let payload = if bytes > 0 { "eA==".to_owned() } else { String::new() };
        Dispatch {
            payload,
            payload_bytes: bytes,
            meta: meta.iter().map(|k| ((*k).to_owned(), "v".to_owned())).collect(),
            ..Dispatch::default()
        }
    }

    #[test]
    fn a_child_is_its_parent_with_what_the_request_brings() {
        let made = child(
            &parent(),
            &Dispatch { idempotency_token: "t".into(), priority: Some(7), ..request(1, &["who", "why"]) },
            17,
            "0a1b2c3d",
        )
        .expect("made");
        assert_eq!(
            (made.id.as_str(), made.name.as_str(), made.parent_id.as_str()),
            ("mail/dispatch-17-0a1b2c3d", "mail/dispatch-17-0a1b2c3d", "mail")
        );
        assert!(made.dispatched && !made.is_template() && parent().is_template());
        assert_eq!((made.payload.as_deref(), made.dispatch_idempotency_token.as_str()), (Some("eA=="), "t"));
        assert_eq!((made.meta.len(), &*made.meta["why"], made.priority), (2, "v", 7));
        let named = child(&parent(), &Dispatch { id_prefix: "for-me".into(), ..request(0, &["who"]) }, 17, "0a1b2c3d")
            .expect("made");
        assert_eq!(
            (named.id.as_str(), named.payload, named.priority),
            ("mail/dispatch-for-me-17-0a1b2c3d", None, parent().priority)
        );
        assert_eq!(&*named.meta["why"], "default");
        assert_eq!(
            child(&made, &request(0, &["who"]), 1, "x"),
            Err(DispatchError::NotParameterized(made.id.clone())),
            "a child has no children"
        );
    }

    #[test]
    fn what_the_job_does_not_allow_is_refused() {
        let with = |payload: &str| {
            let mut job = parent();
            job.parameterized_job.as_mut().expect("rules").payload = payload.into();
            job
        };
        let id = JobId::from("mail");
        let cases = [
            (with("required"), request(0, &["who"]), DispatchError::PayloadRequired(id.clone())),
            (with("forbidden"), request(1, &["who"]), DispatchError::PayloadForbidden(id.clone())),
            (parent(), request(MAX_PAYLOAD_BYTES + 1, &["who"]), DispatchError::PayloadTooLarge(MAX_PAYLOAD_BYTES + 1)),
            (parent(), request(0, &[]), DispatchError::MetaMissing(vec!["who".into()])),
            (parent(), request(0, &["who", "x"]), DispatchError::MetaUnknown(vec!["x".into()])),
            (
                parent(),
                Dispatch { id_prefix: "a/b".into(), ..request(0, &["who"]) },
                DispatchError::Prefix("a/b".into()),
            ),
            (Job { stop: true, ..parent() }, request(0, &["who"]), DispatchError::Stopped(id.clone())),
            (Job { parameterized_job: None, ..parent() }, request(0, &[]), DispatchError::NotParameterized(id)),
        ];
        for (job, request, expected) in cases {
            assert_eq!(child(&job, &request, 1, "x"), Err(expected));
        }
        assert!(child(&parent(), &request(MAX_PAYLOAD_BYTES, &["who"]), 1, "x").is_ok());
    }
}
