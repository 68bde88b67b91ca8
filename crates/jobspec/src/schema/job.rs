//! The job itself.

use super::group::GROUP;
use super::policy::{MIGRATE, RESCHEDULE, SPREAD, UPDATE};
use super::rules::{AFFINITY, CONSTRAINT};
use super::task::{TASK, VAULT};
use super::*;

pub(super) static JOB: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("region", "Region", Kind::Text),
        a("namespace", "Namespace", Kind::Text),
        a("id", "ID", Kind::Text),
        a("name", "Name", Kind::Text),
        a("type", "Type", Kind::Text),
        a("priority", "Priority", INT),
        a("all_at_once", "AllAtOnce", Kind::Bool),
        a("datacenters", "Datacenters", Kind::Texts),
        a("node_pool", "NodePool", Kind::Text),
        a("consul_token", "ConsulToken", Kind::Text),
        a("vault_token", "VaultToken", Kind::Text),
    ],
    blocks: &[
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
        many("group", "TaskGroups", &GROUP),
        one("update", "Update", &UPDATE),
        one("multiregion", "Multiregion", &MULTIREGION),
        many("spread", "Spreads", &SPREAD),
        one("periodic", "Periodic", &PERIODIC),
        one("parameterized", "ParameterizedJob", &PARAMETERIZED),
        one("reschedule", "Reschedule", &RESCHEDULE),
        one("migrate", "Migrate", &MIGRATE),
        texts("meta", "Meta"),
        one("ui", "UI", &UI),
        one("vault", "#Vault", &VAULT),
        many("task", "#Tasks", &TASK),
    ],
    json_only: &[
        "Stop",
        "ParentID",
        "Dispatched",
        "DispatchIdempotencyToken",
        "Payload",
        "ConsulNamespace",
        "VaultNamespace",
        // Whose token has registered the job: for the servers to say, so that what a client sends is harmless.
        "NomadTokenID",
        "Status",
        "StatusDescription",
        "Stable",
        "Version",
        "SubmitTime",
        "CreateIndex",
        "ModifyIndex",
        "JobModifyIndex",
        "VersionTag",
    ],
    finish: finish::job,
};

pub(super) static PERIODIC: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("enabled", "Enabled", Kind::Bool),
        a("cron", "Spec", Kind::Text),
        a("crons", "Specs", Kind::Texts),
        a("prohibit_overlap", "ProhibitOverlap", Kind::Bool),
        a("time_zone", "TimeZone", Kind::Text),
    ],
    blocks: &[],
    json_only: &["SpecType"],
    finish: finish::periodic,
};

pub(super) static PARAMETERIZED: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("payload", "Payload", Kind::Text),
        a("meta_required", "MetaRequired", Kind::Texts),
        a("meta_optional", "MetaOptional", Kind::Texts),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static UI: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("description", "Description", Kind::Text)],
    blocks: &[many("link", "Links", &UI_LINK)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static UI_LINK: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("label", "Label", Kind::Text), a("url", "URL", Kind::Text)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static MULTIREGION: BlockSpec = BlockSpec {
    label: None,
    attributes: &[],
    blocks: &[one("strategy", "Strategy", &MULTIREGION_STRATEGY), many("region", "Regions", &MULTIREGION_REGION)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static MULTIREGION_STRATEGY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("max_parallel", "MaxParallel", INT), a("on_failure", "OnFailure", Kind::Text)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static MULTIREGION_REGION: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[a("count", "Count", INT), a("datacenters", "Datacenters", Kind::Texts), a("node_pool", "NodePool", Kind::Text)],
    blocks: &[texts("meta", "Meta")],
    json_only: &[],
    finish: finish::none,
};
