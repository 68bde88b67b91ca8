//! Policies that several levels share.

use super::*;

pub(super) static UPDATE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("stagger", "Stagger", Kind::Duration),
        a("max_parallel", "MaxParallel", INT),
        a("health_check", "HealthCheck", Kind::Text),
        a("min_healthy_time", "MinHealthyTime", Kind::Duration),
        a("healthy_deadline", "HealthyDeadline", Kind::Duration),
        a("progress_deadline", "ProgressDeadline", Kind::Duration),
        a("canary", "Canary", INT),
        a("auto_revert", "AutoRevert", Kind::Bool),
        a("auto_promote", "AutoPromote", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static RESTART: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("interval", "Interval", Kind::Duration),
        a("attempts", "Attempts", INT),
        a("delay", "Delay", Kind::Duration),
        a("mode", "Mode", Kind::Text),
        a("render_templates", "RenderTemplates", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static RESCHEDULE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("attempts", "Attempts", INT),
        a("interval", "Interval", Kind::Duration),
        a("delay", "Delay", Kind::Duration),
        a("delay_function", "DelayFunction", Kind::Text),
        a("max_delay", "MaxDelay", Kind::Duration),
        a("unlimited", "Unlimited", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static MIGRATE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("max_parallel", "MaxParallel", INT),
        a("health_check", "HealthCheck", Kind::Text),
        a("min_healthy_time", "MinHealthyTime", Kind::Duration),
        a("healthy_deadline", "HealthyDeadline", Kind::Duration),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static DISCONNECT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("lost_after", "LostAfter", Kind::Duration),
        a("stop_on_client_after", "StopOnClientAfter", Kind::Duration),
        a("replace", "Replace", Kind::Bool),
        a("reconcile", "Reconcile", Kind::Text),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

const SCALING_ATTRIBUTES: &[AttrSpec] =
    &[a("min", "Min", LONG), a("max", "Max", LONG), a("enabled", "Enabled", Kind::Bool), a("type", "Type", Kind::Text)];
const SCALING_BLOCKS: &[NestedSpec] = &[free("policy", "Policy")];
const SCALING_JSON: &[&str] = &["ID", "Namespace", "Target", "CreateIndex", "ModifyIndex"];

/// The scaling of a group.
pub(super) static SCALING: BlockSpec =
    BlockSpec { label: None, attributes: SCALING_ATTRIBUTES, blocks: SCALING_BLOCKS, json_only: SCALING_JSON, finish: finish::none };

/// `scaling "cpu"` and `scaling "mem"` of a task.
pub(super) static TASK_SCALING: BlockSpec = BlockSpec {
    label: Some("#Name"),
    finish: finish::task_scaling,
    attributes: SCALING_ATTRIBUTES,
    blocks: SCALING_BLOCKS,
    json_only: SCALING_JSON,
};

pub(super) static SPREAD: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("attribute", "Attribute", Kind::Text), a("weight", "Weight", TINY)],
    blocks: &[many("target", "SpreadTarget", &SPREAD_TARGET)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static SPREAD_TARGET: BlockSpec =
    BlockSpec { label: Some("Value"), attributes: &[a("percent", "Percent", BYTE)], blocks: &[], json_only: &[], finish: finish::none };
