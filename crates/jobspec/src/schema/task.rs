//! Tasks, and what belongs to them.

use super::group::{CONSUL, NETWORK};
use super::policy::{RESTART, TASK_SCALING};
use super::rules::{AFFINITY, CONSTRAINT};
use super::service::SERVICE;
use super::*;

pub(super) static TASK: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[
        a("driver", "Driver", Kind::Text),
        a("user", "User", Kind::Text),
        a("kill_timeout", "KillTimeout", Kind::Duration),
        a("leader", "Leader", Kind::Bool),
        a("shutdown_delay", "ShutdownDelay", Kind::Duration),
        a("kill_signal", "KillSignal", Kind::Text),
        a("kind", "Kind", Kind::Text),
    ],
    blocks: &[
        one("lifecycle", "Lifecycle", &LIFECYCLE),
        free("config", "Config"),
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
        texts("env", "Env"),
        many("service", "Services", &SERVICE),
        one("resources", "Resources", &RESOURCES),
        one("restart", "RestartPolicy", &RESTART),
        texts("meta", "Meta"),
        one("logs", "LogConfig", &LOGS),
        many("artifact", "Artifacts", &ARTIFACT),
        one("vault", "Vault", &VAULT),
        one("consul", "Consul", &CONSUL),
        many("template", "Templates", &TEMPLATE),
        one("dispatch_payload", "DispatchPayload", &DISPATCH_PAYLOAD),
        many("volume_mount", "VolumeMounts", &VOLUME_MOUNT),
        one("csi_plugin", "CSIPluginConfig", &CSI_PLUGIN),
        many("scaling", "ScalingPolicies", &TASK_SCALING),
        many("identity", "Identities", &IDENTITY),
        many("action", "Actions", &ACTION),
        one("schedule", "Schedule", &SCHEDULE),
        many("secret", "Secrets", &SECRET),
    ],
    json_only: &["Identity"],
    finish: finish::task,
};

pub(super) static LOGS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("max_files", "MaxFiles", INT),
        a("max_file_size", "MaxFileSizeMB", INT),
        a("enabled", "Enabled", Kind::Bool),
        a("disabled", "Disabled", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static DISPATCH_PAYLOAD: BlockSpec =
    BlockSpec { label: None, attributes: &[a("file", "File", Kind::Text)], blocks: &[], json_only: &[], finish: finish::none };

pub(super) static LIFECYCLE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("hook", "Hook", Kind::Text), a("sidecar", "Sidecar", Kind::Bool)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static ARTIFACT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("source", "GetterSource", Kind::Text),
        a("mode", "GetterMode", Kind::Text),
        a("insecure", "GetterInsecure", Kind::Bool),
        a("destination", "RelativeDest", Kind::Text),
        a("chown", "Chown", Kind::Bool),
    ],
    blocks: &[texts("options", "GetterOptions"), texts("headers", "GetterHeaders")],
    json_only: &[],
    finish: finish::none,
};

pub(super) static TEMPLATE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("source", "SourcePath", Kind::Text),
        a("destination", "DestPath", Kind::Text),
        a("data", "EmbeddedTmpl", Kind::Text),
        a("change_mode", "ChangeMode", Kind::Text),
        a("change_signal", "ChangeSignal", Kind::Text),
        a("splay", "Splay", Kind::Duration),
        a("perms", "Perms", Kind::Text),
        a("uid", "Uid", LONG),
        a("gid", "Gid", LONG),
        a("left_delimiter", "LeftDelim", Kind::Text),
        a("right_delimiter", "RightDelim", Kind::Text),
        a("env", "Envvars", Kind::Bool),
        a("vault_grace", "VaultGrace", Kind::Duration),
        a("error_on_missing_key", "ErrMissingKey", Kind::Bool),
        a("once", "Once", Kind::Bool),
    ],
    blocks: &[one("change_script", "ChangeScript", &CHANGE_SCRIPT), one("wait", "Wait", &WAIT)],
    json_only: &[],
    finish: finish::template,
};

pub(super) static WAIT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("min", "Min", Kind::Duration), a("max", "Max", Kind::Duration)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static CHANGE_SCRIPT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("command", "Command", Kind::Text),
        a("args", "Args", Kind::Texts),
        a("timeout", "Timeout", Kind::Duration),
        a("fail_on_error", "FailOnError", Kind::Bool),
        a("run_on_first_render", "RunOnFirstRender", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::change_script,
};

pub(super) static VAULT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("policies", "Policies", Kind::Texts),
        a("role", "Role", Kind::Text),
        a("namespace", "Namespace", Kind::Text),
        a("cluster", "Cluster", Kind::Text),
        a("env", "Env", Kind::Bool),
        a("disable_file", "DisableFile", Kind::Bool),
        a("change_mode", "ChangeMode", Kind::Text),
        a("change_signal", "ChangeSignal", Kind::Text),
        a("allow_token_expiration", "AllowTokenExpiration", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::vault,
};

pub(super) static VOLUME_MOUNT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("volume", "Volume", Kind::Text),
        a("destination", "Destination", Kind::Text),
        a("read_only", "ReadOnly", Kind::Bool),
        a("propagation_mode", "PropagationMode", Kind::Text),
        a("selinux_label", "SELinuxLabel", Kind::Text),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static CSI_PLUGIN: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("id", "ID", Kind::Text),
        a("type", "Type", Kind::Text),
        a("mount_dir", "MountDir", Kind::Text),
        a("stage_publish_base_dir", "StagePublishBaseDir", Kind::Text),
        a("health_timeout", "HealthTimeout", Kind::Duration),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static IDENTITY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("name", "Name", Kind::Text),
        a("aud", "Audience", Kind::Texts),
        a("change_mode", "ChangeMode", Kind::Text),
        a("change_signal", "ChangeSignal", Kind::Text),
        a("env", "Env", Kind::Bool),
        a("file", "File", Kind::Bool),
        a("filepath", "Filepath", Kind::Text),
        a("service_name", "ServiceName", Kind::Text),
        a("ttl", "TTL", Kind::Duration),
        a("extra_claims", "ExtraClaims", Kind::Texts),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static SECRET: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[a("provider", "Provider", Kind::Text), a("path", "Path", Kind::Text)],
    blocks: &[free("config", "Config"), texts("env", "Env")],
    json_only: &[],
    finish: finish::none,
};

pub(super) static ACTION: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[required("command", "Command", Kind::Text), a("args", "Args", Kind::Texts)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static SCHEDULE: BlockSpec =
    BlockSpec { label: None, attributes: &[], blocks: &[one("cron", "Cron", &SCHEDULE_CRON)], json_only: &[], finish: finish::none };

pub(super) static SCHEDULE_CRON: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("start", "Start", Kind::Text), a("end", "End", Kind::Text), a("timezone", "Timezone", Kind::Text)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static RESOURCES: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("cpu", "CPU", INT),
        a("cores", "Cores", INT),
        a("memory", "MemoryMB", INT),
        a("memory_max", "MemoryMaxMB", INT),
        a("disk", "DiskMB", INT),
        a("secrets", "SecretsMB", INT),
        a("iops", "IOPS", INT),
    ],
    blocks: &[many("network", "Networks", &NETWORK), many("device", "Devices", &DEVICE), one("numa", "NUMA", &NUMA)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static NUMA: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("affinity", "Affinity", Kind::Text), a("devices", "Devices", Kind::Texts)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static DEVICE: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[a("count", "Count", COUNT)],
    blocks: &[many("constraint", "Constraints", &CONSTRAINT), many("affinity", "Affinities", &AFFINITY)],
    json_only: &[],
    finish: finish::none,
};
