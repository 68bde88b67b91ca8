//! Services and checks.

use super::connect::CONNECT;
use super::task::IDENTITY;
use super::*;

pub(super) static SERVICE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("name", "Name", Kind::Text),
        a("tags", "Tags", Kind::Texts),
        a("canary_tags", "CanaryTags", Kind::Texts),
        a("enable_tag_override", "EnableTagOverride", Kind::Bool),
        a("port", "PortLabel", Kind::Text),
        a("address_mode", "AddressMode", Kind::Text),
        a("address", "Address", Kind::Text),
        a("task", "TaskName", Kind::Text),
        a("on_update", "OnUpdate", Kind::Text),
        a("provider", "Provider", Kind::Text),
        a("cluster", "Cluster", Kind::Text),
        a("kind", "Kind", Kind::Text),
    ],
    blocks: &[
        many("check", "Checks", &CHECK),
        one("check_restart", "CheckRestart", &CHECK_RESTART),
        one("connect", "Connect", &CONNECT),
        texts("meta", "Meta"),
        texts("canary_meta", "CanaryMeta"),
        texts("tagged_addresses", "TaggedAddresses"),
        one("identity", "Identity", &IDENTITY),
        one("weights", "Weights", &WEIGHTS),
    ],
    json_only: &[],
    finish: finish::none,
};

pub(super) static WEIGHTS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("passing", "Passing", INT), a("warning", "Warning", INT)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static CHECK: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("name", "Name", Kind::Text),
        a("type", "Type", Kind::Text),
        a("command", "Command", Kind::Text),
        a("args", "Args", Kind::Texts),
        a("path", "Path", Kind::Text),
        a("protocol", "Protocol", Kind::Text),
        a("port", "PortLabel", Kind::Text),
        a("expose", "Expose", Kind::Bool),
        a("address_mode", "AddressMode", Kind::Text),
        a("advertise", "Advertise", Kind::Text),
        a("interval", "Interval", Kind::Duration),
        a("timeout", "Timeout", Kind::Duration),
        a("initial_status", "InitialStatus", Kind::Text),
        a("notes", "Notes", Kind::Text),
        a("tls_server_name", "TLSServerName", Kind::Text),
        a("tls_skip_verify", "TLSSkipVerify", Kind::Bool),
        a("method", "Method", Kind::Text),
        a("grpc_service", "GRPCService", Kind::Text),
        a("grpc_use_tls", "GRPCUseTLS", Kind::Bool),
        a("task", "TaskName", Kind::Text),
        a("success_before_passing", "SuccessBeforePassing", INT),
        a("failures_before_critical", "FailuresBeforeCritical", INT),
        a("failures_before_warning", "FailuresBeforeWarning", INT),
        a("body", "Body", Kind::Text),
        a("on_update", "OnUpdate", Kind::Text),
    ],
    blocks: &[text_lists("header", "Header"), one("check_restart", "CheckRestart", &CHECK_RESTART)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static CHECK_RESTART: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("limit", "Limit", INT), a("grace", "Grace", Kind::Duration), a("ignore_warnings", "IgnoreWarnings", Kind::Bool)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};
