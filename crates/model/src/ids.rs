//! Identifiers: one newtype per kind, so that mixing them does not compile. On the wire they are the strings that the
//! API promises.

use std::{fmt, ops::Deref, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The id of nothing; an empty string on the wire.
            pub const NIL: Self = Self(Uuid::nil());
            /// True when no id has been given.
            #[must_use]
            pub fn is_nil(self) -> bool {
                self.0.is_nil()
            }
            /// The first eight hexadecimal digits, as people see it.
            #[must_use]
            pub fn short(self) -> String {
                let mut s = self.0.to_string();
                s.truncate(8);
                s
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.is_nil() { Ok(()) } else { self.0.fmt(f) }
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                if s.is_empty() { Ok(Self::NIL) } else { Uuid::parse_str(s).map(Self) }
            }
        }
        impl From<Uuid> for $name {
            fn from(u: Uuid) -> Self {
                Self(u)
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                if self.is_nil() {
                    return s.serialize_str("");
                }
                s.serialize_str(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct V;
                impl serde::de::Visitor<'_> for V {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a UUID")
                    }
                    fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<$name, E> {
                        s.parse().map_err(|_| E::invalid_value(serde::de::Unexpected::Str(s), &self))
                    }
                    fn visit_unit<E: serde::de::Error>(self) -> Result<$name, E> {
                        Ok($name::NIL)
                    }
                }
                d.deserialize_any(V)
            }
        }
    )*};
}

uuid_kinds! {
    /// An allocation: one group placed on one node.
    AllocId,
    /// An evaluation: a reason to schedule.
    EvalId,
    /// A node.
    NodeId,
    /// A deployment.
    DeploymentId,
    /// One instance of a remote task's slot, from create to exit; the idempotency key given to the provider.
    IncarnationId,
    /// A cluster of servers; the owner tag of everything created at providers.
    ClusterId,
    /// One stretch of the history of the servers' state: between two starts of a server, or two recoveries.
    GenerationId,
    /// A dynamic host volume.
    VolumeId,
    /// A claim of a group on such a volume.
    ClaimId,
}

macro_rules! name_kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Arc<str>);
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
            /// True for the empty text.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }
        impl Default for $name {
            fn default() -> Self {
                Self(Arc::from(""))
            }
        }
        impl From<&str> for $name {
            fn from(s: &str) -> Self {
                Self(Arc::from(s))
            }
        }
        impl From<String> for $name {
            fn from(s: String) -> Self {
                Self(Arc::from(s))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }
        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }
    )*};
}

name_kinds! {
    /// A namespace; `default` when the user names none.
    Namespace,
    /// A job's id within its namespace.
    JobId,
}

/// A job's full name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobKey {
    /// Namespace of the job.
    pub namespace: Namespace,
    /// Id of the job within it.
    #[serde(rename = "ID")]
    pub id: JobId,
}

impl JobKey {
    /// Joins the two parts.
    pub fn new(namespace: impl Into<Namespace>, id: impl Into<JobId>) -> Self {
        Self { namespace: namespace.into(), id: id.into() }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

/// The place of a remote task: what should have exactly one running instance. A pointer: the record of a slot, the
/// indexes that name it and the sessions of its nodes have its parts in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotKey(Arc<SlotParts>);

impl Deref for SlotKey {
    type Target = SlotParts;

    fn deref(&self) -> &SlotParts {
        &self.0
    }
}

impl From<SlotParts> for SlotKey {
    fn from(parts: SlotParts) -> Self {
        Self(Arc::new(parts))
    }
}

/// What a [`SlotKey`] is made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SlotParts {
    /// Namespace of the job.
    pub namespace: Namespace,
    /// Id of the job.
    #[serde(rename = "JobID")]
    pub job_id: JobId,
    /// Name of the task group.
    pub group: Arc<str>,
    /// Index of the allocation's name, `job.group[index]`.
    pub index: u32,
    /// Name of the task.
    pub task: Arc<str>,
}

impl SlotKey {
    /// The job of the slot.
    #[must_use]
    pub fn job(&self) -> JobKey {
        JobKey { namespace: self.namespace.clone(), id: self.job_id.clone() }
    }
}

impl fmt::Display for SlotKey {
    /// `namespace/job.group[index]/task`, the form used on the wire and for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}[{}]/{}", self.namespace, self.job_id, self.group, self.index, self.task)
    }
}

/// A text is not the name of a slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a slot: it has the form namespace/job.group[index]/task")]
pub struct NotASlot(pub String);

impl std::str::FromStr for SlotKey {
    type Err = NotASlot;

    /// The inverse of the slot's text. A job's id may hold slashes and dots, the other parts may not.
    fn from_str(text: &str) -> Result<Self, NotASlot> {
        let parse = || {
            let (namespace, rest) = text.split_once('/')?;
            let (rest, task) = rest.rsplit_once("]/")?;
            let (rest, index) = rest.rsplit_once('[')?;
            let (job, group) = rest.rsplit_once('.')?;
            if namespace.is_empty() || job.is_empty() || group.is_empty() || task.is_empty() {
                return None;
            }
            let parts = SlotParts {
                namespace: namespace.into(),
                job_id: job.into(),
                group: group.into(),
                index: index.parse().ok()?,
                task: task.into(),
            };
            Some(parts.into())
        };
        parse().ok_or_else(|| NotASlot(text.to_owned()))
    }
}

/// Position in the store's history; every object carries the index of its creation and last modification. Never 0 for
/// a stored object.
pub type StoreIndex = u64;

/// Nanoseconds since the Unix epoch, as the API shows times of jobs, allocations and events.
pub type TimestampNs = i64;

#[cfg(test)]
mod tests {
    use super::SlotKey;

    #[test]
    fn slots_have_one_text() {
        for text in ["default/job.group[0]/task", "ns/a/b.c.group[12]/t", "default/j]x.g[3]/t"] {
            assert_eq!(text.parse::<SlotKey>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "default",
            "default/job",
            "default/job.g[x]/t",
            "default/job[0]/t",
            "/job.g[0]/t",
            "default/job.g[0]/",
            "default/.g[0]/t",
        ] {
            assert!(text.parse::<SlotKey>().is_err(), "{text}");
        }
    }
}
