//! Groups, and what belongs to them.

use super::policy::{DISCONNECT, MIGRATE, RESCHEDULE, RESTART, SCALING, SPREAD, UPDATE};
use super::rules::{AFFINITY, CONSTRAINT};
use super::service::SERVICE;
use super::task::{TASK, VAULT};
use super::*;

pub(super) static GROUP: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[
        a("count", "Count", INT),
        a("shutdown_delay", "ShutdownDelay", Kind::Duration),
        a("stop_after_client_disconnect", "StopAfterClientDisconnect", Kind::Duration),
        a("max_client_disconnect", "MaxClientDisconnect", Kind::Duration),
        a("prevent_reschedule_on_lost", "PreventRescheduleOnLost", Kind::Bool),
        a("max_run_duration", "MaxRunDuration", Kind::Duration),
    ],
    blocks: &[
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
        many("task", "Tasks", &TASK),
        many("spread", "Spreads", &SPREAD),
        by_label("volume", "Volumes", &VOLUME),
        one("restart", "RestartPolicy", &RESTART),
        one("disconnect", "Disconnect", &DISCONNECT),
        one("reschedule", "ReschedulePolicy", &RESCHEDULE),
        one("ephemeral_disk", "EphemeralDisk", &EPHEMERAL_DISK),
        one("update", "Update", &UPDATE),
        one("migrate", "Migrate", &MIGRATE),
        many("network", "Networks", &NETWORK),
        texts("meta", "Meta"),
        many("service", "Services", &SERVICE),
        one("scaling", "Scaling", &SCALING),
        one("consul", "Consul", &CONSUL),
        one("vault", "#Vault", &VAULT),
    ],
    json_only: &[],
    finish: finish::group,
};

pub(super) static EPHEMERAL_DISK: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("sticky", "Sticky", Kind::Bool), a("migrate", "Migrate", Kind::Bool), a("size", "SizeMB", INT)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static VOLUME: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[
        a("type", "Type", Kind::Text),
        a("source", "Source", Kind::Text),
        a("read_only", "ReadOnly", Kind::Bool),
        a("access_mode", "AccessMode", Kind::Text),
        a("attachment_mode", "AttachmentMode", Kind::Text),
        a("per_alloc", "PerAlloc", Kind::Bool),
        a("sticky", "Sticky", Kind::Bool),
    ],
    blocks: &[one("mount_options", "MountOptions", &MOUNT_OPTIONS)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static MOUNT_OPTIONS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("fs_type", "FSType", Kind::Text), a("mount_flags", "MountFlags", Kind::Texts)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static NETWORK: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("mode", "Mode", Kind::Text),
        a("device", "Device", Kind::Text),
        a("cidr", "CIDR", Kind::Text),
        a("ip", "IP", Kind::Text),
        a("hostname", "Hostname", Kind::Text),
        a("mbits", "MBits", INT),
    ],
    blocks: &[
        one("dns", "DNS", &DNS),
        many("reserved_ports", "ReservedPorts", &PORT),
        many("port", "DynamicPorts", &PORT),
        one("cni", "CNI", &CNI),
    ],
    json_only: &[],
    finish: finish::network,
};

pub(super) static PORT: BlockSpec = BlockSpec {
    label: Some("Label"),
    attributes: &[
        a("static", "Value", INT),
        a("to", "To", INT),
        a("host_network", "HostNetwork", Kind::Text),
        a("ignore_collision", "IgnoreCollision", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static DNS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("servers", "Servers", Kind::Texts), a("searches", "Searches", Kind::Texts), a("options", "Options", Kind::Texts)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static CNI: BlockSpec =
    BlockSpec { label: None, attributes: &[], blocks: &[texts("args", "Args")], json_only: &[], finish: finish::none };

pub(super) static CONSUL: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("namespace", "Namespace", Kind::Text), a("cluster", "Cluster", Kind::Text), a("partition", "Partition", Kind::Text)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};
