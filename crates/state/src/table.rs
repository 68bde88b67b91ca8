//! The tables, by name: indexes, watches and durable rows refer to them.

use std::fmt;

use crate::format::Format;

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Table { $($(#[$doc])* $name,)* }
        impl Table {
            /// Every table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Its stable name, as durable rows carry it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// The table of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

tables! {
    /// Position of each table and cluster-wide settings.
    Meta = "meta",
    /// Nodes.
    Nodes = "nodes",
    /// Jobs, newest version.
    Jobs = "jobs",
    /// Earlier and current versions of jobs.
    JobVersions = "job_versions",
    /// Versions that are no longer listed but that allocations still run.
    RetainedJobs = "retained_jobs",
    /// Source texts of jobs.
    JobSubmissions = "job_submissions",
    /// Counts of allocations by job and group.
    JobSummaries = "job_summaries",
    /// Evaluations.
    Evals = "evals",
    /// Allocations.
    Allocs = "allocs",
    /// Values that several allocation rows refer to.
    Shared = "shared",
    /// Deployments.
    Deployments = "deployments",
    /// Remote tasks.
    RemoteTasks = "remote_tasks",
    /// Registrations of services.
    Services = "services",
    /// Namespaces.
    Namespaces = "namespaces",
    /// Node pools.
    NodePools = "node_pools",
    /// Scheduler settings: one row.
    SchedulerConfig = "scheduler_config",
    /// Scaling events of jobs.
    ScalingEvents = "scaling_events",
    /// Keys that workload identities are signed with, of servers that share a store. Encrypted.
    SigningKeys = "signing_keys",
    /// Policies.
    AclPolicies = "acl_policies",
    /// Tokens.
    AclTokens = "acl_tokens",
    /// Roles.
    AclRoles = "acl_roles",
    /// Methods to log in.
    AclAuthMethods = "acl_auth_methods",
    /// Rules that bind logins.
    AclBindingRules = "acl_binding_rules",
    /// Tokens to be exchanged once.
    AclOneTimeTokens = "acl_one_time_tokens",
    /// No rows: its index is that of the last bootstrap.
    AclBootstrap = "acl_bootstrap",
    /// Variables, encrypted.
    Variables = "variables",
    /// Dynamic host volumes.
    Volumes = "volumes",
    /// Claims of groups on them.
    VolumeClaims = "volume_claims",
}

impl Table {
    /// Number of tables.
    pub const COUNT: usize = Self::ALL.len();
    /// Position in arrays of [`Self::COUNT`] entries.
    #[must_use]
    pub const fn slot(self) -> usize {
        self as usize
    }
}

impl Table {
    /// The format that its rows came with: a server that does not read it does not know the table.
    #[must_use]
    pub const fn since(self) -> Format {
        match self {
            Self::AclPolicies
            | Self::AclTokens
            | Self::AclRoles
            | Self::AclAuthMethods
            | Self::AclBindingRules
            | Self::AclOneTimeTokens
            | Self::AclBootstrap
            | Self::Variables => 2,
            Self::Volumes | Self::VolumeClaims => 4,
            _ => 1,
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableSet(u32);

impl TableSet {
    /// No table.
    pub const EMPTY: Self = Self(0);
    /// Adds one.
    pub fn insert(&mut self, table: Table) {
        self.0 |= 1 << table.slot();
    }
    /// Whether it holds the table.
    #[must_use]
    pub const fn contains(self, table: Table) -> bool {
        self.0 & (1 << table.slot()) != 0
    }
    /// Whether the sets have a common member.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// The format that rows of its members need.
    #[must_use]
    pub fn since(self) -> Format {
        self.iter().map(Table::since).max().unwrap_or(1)
    }
    /// All members, in the order of [`Table::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Table> {
        Table::ALL.iter().copied().filter(move |t| self.contains(*t))
    }
}

impl FromIterator<Table> for TableSet {
    fn from_iter<I: IntoIterator<Item = Table>>(tables: I) -> Self {
        let mut set = Self::EMPTY;
        tables.into_iter().for_each(|t| set.insert(t));
        set
    }
}
