//! The nouns of Drover: job, group, task, allocation, evaluation, plan, deployment, node, remote task, and their ids.
//!
//! Types derive serde with the field names of Nomad's HTTP API ("ID", "MemoryMB"), so that one definition serves the
//! API, the store and the node RPC. Optional blocks that inherit (update, restart, reschedule, migrate) hold `Option`
//! fields until [`canonical`] has filled them.
//!
//! This crate must never know: time of day, randomness, files, network, an async runtime. `now` and new ids are
//! arguments.
//!
//! Begin reading at [`job::Job`], then [`alloc::Allocation`] and [`remote::RemoteTask`].

pub mod acl;
pub mod acl_login;
pub mod alloc;
pub mod canonical;
pub mod charge;
pub mod common;
pub mod constraint;
pub mod cron;
pub mod deployment;
pub mod diff;
pub mod dispatch;
pub mod eval;
pub mod go_duration;
pub mod go_time;
pub mod identity_rules;
pub mod ids;
pub mod job;
pub mod map;
pub mod metrics;
pub mod network;
pub mod node;
pub mod periodic;
pub mod plan;
pub mod policy;
pub mod proof;
pub mod records;
pub mod remote;
pub mod resources;
pub mod scaling;
pub mod scheduler_config;
pub mod schema;
pub mod secret;
pub mod secret_rules;
pub mod service;
pub mod shared_list;
pub mod signing;
pub mod task;
mod task_blocks;
pub mod template_rules;
pub mod unsupported;
pub mod updates;
pub mod validate;
pub mod variables;
pub mod vault_rules;
pub mod volume;

pub use acl::{AclPolicy, AclRole, AclRolePolicy, AclToken, AclTokenRole, JobAcl, OneTimeToken};
pub use acl_login::{AclAuthMethod, AclAuthMethodConfig, AclBindingRule};
pub use alloc::{
    AllocClientUpdate, AllocDeploymentStatus, Allocation, ClientStatus, DesiredStatus, DesiredTransition, Happening,
    MAX_RUN_EXCEEDED, RollingRestart, TaskEvent, TaskRunState, TaskState,
};
pub use charge::{RestartCharge, RestartCharges};
pub use common::{Common, Text};
pub use constraint::{Affinity, Constraint, Spread, SpreadTarget};
pub use deployment::{Deployment, DeploymentGroup, DeploymentStatus};
pub use diff::{JobDiff, diff};
pub use eval::{EvalStatus, Evaluation, Trigger};
pub use go_duration::GoDuration;
pub use go_time::GoTime;
pub use ids::{
    AllocId, ClaimId, ClusterId, DeploymentId, EvalId, GenerationId, IncarnationId, JobId, JobKey, Namespace, NodeId,
    SlotKey, SlotParts, StoreIndex, TimestampNs, VolumeId,
};
pub use job::{Job, JobStatus, JobType, TaskGroup};
pub use map::Map;
pub use metrics::AllocMetric;
pub use network::{Network, Port};
pub use node::{DrainSpec, DrainStrategy, DriverInfo, Eligibility, Node, NodeStatus};
pub use plan::{Plan, PlanResult};
pub use policy::{Disconnect, Migrate, Patience, Pick, Reschedule, Restart, Update};
pub use remote::{
    DesiredRemote, Observed, RemoteExit, RemoteImport, RemoteInstance, RemoteOrder, RemotePolicy, RemoteReport,
    RemoteTask, RemoteVerdict, RemoteWanted,
};
pub use resources::{
    AllocatedDevices, AllocatedResources, AllocatedTask, DeviceAttribute, NodeDevice, NodeDevices, NodeResources,
    RequestedDevice, Resources,
};
pub use scheduler_config::SchedulerConfig;
pub use secret::Secret;
pub use service::{Check, CheckResult, CheckStatus, RemoteServices, Service, ServiceEntry, ServiceRegistration};
pub use shared_list::SharedList;
pub use task::Task;
pub use updates::{spec_hash, specification_changed, tasks_updated};
pub use validate::{ValidationErrors, Warnings, validate};
pub use volume::{DynamicVolume, VolumeCapability, VolumeClaim, VolumeReport, VolumeState};
