//! The document of a job as the API gives it: everything that the job file did not say stands in it as *unset*.
//!
//! The tables say, for each kind of object, which fields there always are, and what an unset one is: null where nothing can be told apart
//! from zero, otherwise the zero of its kind. They follow Nomad's API, field by field; `cargo xtask interop stock-jobs-parse` compares.

use serde_json::{Map, Value as Json, json};

/// One kind of object: the names of its fields.
struct Type(&'static [(&'static str, Field)]);

/// What a field is when it is unset, and what is in it otherwise.
enum Field {
    Null,
    Text,
    Number,
    Bool,
    /// Null, or an object.
    One(&'static Type),
    /// Left out, or an object.
    Optional(&'static Type),
    /// Null, or a list of objects.
    Many(&'static Type),
    /// Null, or objects by their names.
    ByName(&'static Type),
}
use Field::{Bool, ByName, Many, Null, Number, One, Optional, Text};

/// Fills in what is unset in a job.
pub(crate) fn complete(job: Map<String, Json>) -> Json {
    let mut job = Json::Object(job);
    fill(&JOB, &mut job);
    job
}

/// Fills in what is unset in the resources, log settings and so on of a new object.
fn fill(kind: &Type, object: &mut Json) {
    let Json::Object(fields) = object else { return };
    for (name, field) in kind.0 {
        if fields.get(*name).is_none_or(Json::is_null) {
            match field {
                Null | One(_) | Many(_) | ByName(_) => fields.insert((*name).to_owned(), Json::Null),
                Text => fields.insert((*name).to_owned(), json!("")),
                Number => fields.insert((*name).to_owned(), json!(0)),
                Bool => fields.insert((*name).to_owned(), json!(false)),
                Optional(_) => fields.remove(*name),
            };
            continue;
        }
        let Some(value) = fields.get_mut(*name) else { continue };
        match (field, value) {
            (One(kind) | Optional(kind), value) => fill(kind, value),
            (Many(kind), Json::Array(items)) => items.iter_mut().for_each(|item| fill(kind, item)),
            (ByName(kind), Json::Object(members)) => members.values_mut().for_each(|item| fill(kind, item)),
            _ => {}
        }
    }
}

/// New objects that defaults consist of.
pub(crate) mod unset {
    use super::*;

    fn new(kind: &Type) -> Json {
        let mut object = json!({});
        fill(kind, &mut object);
        object
    }
    pub(crate) fn consul() -> Json {
        new(&CONSUL)
    }
    pub(crate) fn ephemeral_disk() -> Json {
        new(&EPHEMERAL_DISK)
    }
    pub(crate) fn log_config() -> Json {
        new(&LOG_CONFIG)
    }
    pub(crate) fn migrate() -> Json {
        new(&MIGRATE_STRATEGY)
    }
    pub(crate) fn multiregion_strategy() -> Json {
        new(&MULTIREGION_STRATEGY)
    }
    pub(crate) fn reschedule() -> Json {
        new(&RESCHEDULE_POLICY)
    }
    pub(crate) fn resources() -> Json {
        new(&RESOURCES)
    }
    pub(crate) fn restart() -> Json {
        new(&RESTART_POLICY)
    }
    pub(crate) fn update() -> Json {
        new(&UPDATE_STRATEGY)
    }
}

static JOB: Type = Type(&[
    ("Region", Null),
    ("Namespace", Null),
    ("ID", Null),
    ("Name", Null),
    ("Type", Null),
    ("Priority", Null),
    ("AllAtOnce", Null),
    ("Datacenters", Null),
    ("NodePool", Null),
    ("Constraints", Many(&CONSTRAINT)),
    ("Affinities", Many(&AFFINITY)),
    ("TaskGroups", Many(&TASK_GROUP)),
    ("Update", One(&UPDATE_STRATEGY)),
    ("Multiregion", One(&MULTIREGION)),
    ("Spreads", Many(&SPREAD)),
    ("Periodic", One(&PERIODIC_CONFIG)),
    ("ParameterizedJob", One(&PARAMETERIZED_JOB_CONFIG)),
    ("Reschedule", One(&RESCHEDULE_POLICY)),
    ("Migrate", One(&MIGRATE_STRATEGY)),
    ("Meta", Null),
    ("ConsulToken", Null),
    ("VaultToken", Null),
    ("UI", One(&JOB_UI_CONFIG)),
    ("Stop", Null),
    ("ParentID", Null),
    ("Dispatched", Bool),
    ("DispatchIdempotencyToken", Null),
    ("Payload", Null),
    ("ConsulNamespace", Null),
    ("VaultNamespace", Null),
    ("NomadTokenID", Null),
    ("Status", Null),
    ("StatusDescription", Null),
    ("Stable", Null),
    ("Version", Null),
    ("SubmitTime", Null),
    ("CreateIndex", Null),
    ("ModifyIndex", Null),
    ("JobModifyIndex", Null),
    ("VersionTag", One(&JOB_VERSION_TAG)),
]);

static CONSTRAINT: Type = Type(&[("LTarget", Text), ("RTarget", Text), ("Operand", Text)]);

static AFFINITY: Type = Type(&[("LTarget", Text), ("RTarget", Text), ("Operand", Text), ("Weight", Null)]);

static TASK_GROUP: Type = Type(&[
    ("Name", Null),
    ("Count", Null),
    ("Constraints", Many(&CONSTRAINT)),
    ("Affinities", Many(&AFFINITY)),
    ("Tasks", Many(&TASK)),
    ("Spreads", Many(&SPREAD)),
    ("Volumes", ByName(&VOLUME_REQUEST)),
    ("RestartPolicy", One(&RESTART_POLICY)),
    ("Disconnect", One(&DISCONNECT_STRATEGY)),
    ("ReschedulePolicy", One(&RESCHEDULE_POLICY)),
    ("EphemeralDisk", One(&EPHEMERAL_DISK)),
    ("Update", One(&UPDATE_STRATEGY)),
    ("Migrate", One(&MIGRATE_STRATEGY)),
    ("Networks", Many(&NETWORK_RESOURCE)),
    ("Meta", Null),
    ("Services", Many(&SERVICE)),
    ("ShutdownDelay", Null),
    ("StopAfterClientDisconnect", Null),
    ("MaxClientDisconnect", Null),
    ("Scaling", One(&SCALING_POLICY)),
    ("Consul", One(&CONSUL)),
    ("PreventRescheduleOnLost", Null),
]);

static UPDATE_STRATEGY: Type = Type(&[
    ("Stagger", Null),
    ("MaxParallel", Null),
    ("HealthCheck", Null),
    ("MinHealthyTime", Null),
    ("HealthyDeadline", Null),
    ("ProgressDeadline", Null),
    ("Canary", Null),
    ("AutoRevert", Null),
    ("AutoPromote", Null),
]);

static MULTIREGION: Type = Type(&[("Strategy", One(&MULTIREGION_STRATEGY)), ("Regions", Many(&MULTIREGION_REGION))]);

static SPREAD: Type = Type(&[("Attribute", Text), ("Weight", Null), ("SpreadTarget", Many(&SPREAD_TARGET))]);

static PERIODIC_CONFIG: Type =
    Type(&[("Enabled", Null), ("Spec", Null), ("Specs", Null), ("SpecType", Null), ("ProhibitOverlap", Null), ("TimeZone", Null)]);

static PARAMETERIZED_JOB_CONFIG: Type = Type(&[("Payload", Text), ("MetaRequired", Null), ("MetaOptional", Null)]);

static RESCHEDULE_POLICY: Type =
    Type(&[("Attempts", Null), ("Interval", Null), ("Delay", Null), ("DelayFunction", Null), ("MaxDelay", Null), ("Unlimited", Null)]);

static MIGRATE_STRATEGY: Type = Type(&[("MaxParallel", Null), ("HealthCheck", Null), ("MinHealthyTime", Null), ("HealthyDeadline", Null)]);

static JOB_UI_CONFIG: Type = Type(&[("Description", Text), ("Links", Many(&JOB_UI_LINK))]);

static JOB_VERSION_TAG: Type = Type(&[("Name", Text), ("Description", Text), ("TaggedTime", Number)]);

static TASK: Type = Type(&[
    ("Name", Text),
    ("Driver", Text),
    ("User", Text),
    ("Lifecycle", One(&TASK_LIFECYCLE)),
    ("Config", Null),
    ("Constraints", Many(&CONSTRAINT)),
    ("Affinities", Many(&AFFINITY)),
    ("Env", Null),
    ("Services", Many(&SERVICE)),
    ("Resources", One(&RESOURCES)),
    ("RestartPolicy", One(&RESTART_POLICY)),
    ("Meta", Null),
    ("KillTimeout", Null),
    ("LogConfig", One(&LOG_CONFIG)),
    ("Artifacts", Many(&TASK_ARTIFACT)),
    ("Vault", One(&VAULT)),
    ("Consul", One(&CONSUL)),
    ("Templates", Many(&TEMPLATE)),
    ("DispatchPayload", One(&DISPATCH_PAYLOAD_CONFIG)),
    ("VolumeMounts", Many(&VOLUME_MOUNT)),
    ("CSIPluginConfig", Optional(&TASK_CSI_PLUGIN_CONFIG)),
    ("Leader", Bool),
    ("ShutdownDelay", Number),
    ("KillSignal", Text),
    ("Kind", Text),
    ("ScalingPolicies", Many(&SCALING_POLICY)),
    ("Identity", One(&WORKLOAD_IDENTITY)),
    ("Identities", Many(&WORKLOAD_IDENTITY)),
    ("Actions", Many(&ACTION)),
    ("Schedule", One(&TASK_SCHEDULE)),
]);

static VOLUME_REQUEST: Type = Type(&[
    ("Name", Text),
    ("Type", Text),
    ("Source", Text),
    ("ReadOnly", Bool),
    ("AccessMode", Text),
    ("AttachmentMode", Text),
    ("MountOptions", One(&CSI_MOUNT_OPTIONS)),
    ("PerAlloc", Bool),
]);

static RESTART_POLICY: Type = Type(&[("Interval", Null), ("Attempts", Null), ("Delay", Null), ("Mode", Null), ("RenderTemplates", Null)]);

static DISCONNECT_STRATEGY: Type = Type(&[("LostAfter", Null), ("StopOnClientAfter", Null), ("Replace", Null), ("Reconcile", Null)]);

static EPHEMERAL_DISK: Type = Type(&[("Sticky", Null), ("Migrate", Null), ("SizeMB", Null)]);

static NETWORK_RESOURCE: Type = Type(&[
    ("Mode", Text),
    ("Device", Text),
    ("CIDR", Text),
    ("IP", Text),
    ("DNS", One(&DNS_CONFIG)),
    ("ReservedPorts", Many(&PORT)),
    ("DynamicPorts", Many(&PORT)),
    ("Hostname", Text),
    ("MBits", Null),
    ("CNI", One(&CNI_CONFIG)),
]);

static SERVICE: Type = Type(&[
    ("Name", Text),
    ("Tags", Null),
    ("CanaryTags", Null),
    ("EnableTagOverride", Bool),
    ("PortLabel", Text),
    ("AddressMode", Text),
    ("Address", Text),
    ("Checks", Many(&SERVICE_CHECK)),
    ("CheckRestart", One(&CHECK_RESTART)),
    ("Connect", One(&CONSUL_CONNECT)),
    ("Meta", Null),
    ("CanaryMeta", Null),
    ("TaggedAddresses", Null),
    ("TaskName", Text),
    ("OnUpdate", Text),
    ("Identity", One(&WORKLOAD_IDENTITY)),
    ("Weights", One(&SERVICE_WEIGHTS)),
    ("Provider", Text),
    ("Cluster", Text),
]);

static SCALING_POLICY: Type = Type(&[
    ("Min", Null),
    ("Max", Null),
    ("Policy", Null),
    ("Enabled", Null),
    ("Type", Text),
    ("ID", Text),
    ("Namespace", Text),
    ("Target", Null),
    ("CreateIndex", Number),
    ("ModifyIndex", Number),
]);

static CONSUL: Type = Type(&[("Namespace", Text), ("Cluster", Text), ("Partition", Text)]);

static MULTIREGION_STRATEGY: Type = Type(&[("MaxParallel", Null), ("OnFailure", Null)]);

static MULTIREGION_REGION: Type = Type(&[("Name", Text), ("Count", Null), ("Datacenters", Null), ("NodePool", Text), ("Meta", Null)]);

static SPREAD_TARGET: Type = Type(&[("Value", Text), ("Percent", Number)]);

static JOB_UI_LINK: Type = Type(&[("Label", Text), ("URL", Text)]);

static TASK_LIFECYCLE: Type = Type(&[("Hook", Text), ("Sidecar", Bool)]);

static RESOURCES: Type = Type(&[
    ("CPU", Null),
    ("Cores", Null),
    ("MemoryMB", Null),
    ("MemoryMaxMB", Null),
    ("DiskMB", Null),
    ("Networks", Many(&NETWORK_RESOURCE)),
    ("Devices", Many(&REQUESTED_DEVICE)),
    ("NUMA", One(&NUMA_RESOURCE)),
    ("SecretsMB", Null),
    ("IOPS", Null),
]);

static LOG_CONFIG: Type = Type(&[("MaxFiles", Null), ("MaxFileSizeMB", Null), ("Enabled", Null), ("Disabled", Null)]);

static TASK_ARTIFACT: Type = Type(&[
    ("GetterSource", Null),
    ("GetterOptions", Null),
    ("GetterHeaders", Null),
    ("GetterMode", Null),
    ("GetterInsecure", Null),
    ("RelativeDest", Null),
    ("Chown", Bool),
]);

static VAULT: Type = Type(&[
    ("Policies", Null),
    ("Role", Text),
    ("Namespace", Null),
    ("Cluster", Text),
    ("Env", Null),
    ("DisableFile", Null),
    ("ChangeMode", Null),
    ("ChangeSignal", Null),
    ("AllowTokenExpiration", Null),
]);

static TEMPLATE: Type = Type(&[
    ("SourcePath", Null),
    ("DestPath", Null),
    ("EmbeddedTmpl", Null),
    ("ChangeMode", Null),
    ("ChangeScript", One(&CHANGE_SCRIPT)),
    ("ChangeSignal", Null),
    ("Splay", Null),
    ("Perms", Null),
    ("Uid", Null),
    ("Gid", Null),
    ("LeftDelim", Null),
    ("RightDelim", Null),
    ("Envvars", Null),
    ("VaultGrace", Null),
    ("Wait", One(&WAIT_CONFIG)),
    ("ErrMissingKey", Null),
]);

static DISPATCH_PAYLOAD_CONFIG: Type = Type(&[("File", Text)]);

static VOLUME_MOUNT: Type =
    Type(&[("Volume", Null), ("Destination", Null), ("ReadOnly", Null), ("PropagationMode", Null), ("SELinuxLabel", Null)]);

static TASK_CSI_PLUGIN_CONFIG: Type =
    Type(&[("ID", Text), ("Type", Text), ("MountDir", Text), ("StagePublishBaseDir", Text), ("HealthTimeout", Number)]);

static WORKLOAD_IDENTITY: Type = Type(&[
    ("Name", Text),
    ("Audience", Null),
    ("ChangeMode", Text),
    ("ChangeSignal", Text),
    ("Env", Bool),
    ("File", Bool),
    ("Filepath", Text),
    ("ServiceName", Text),
    ("TTL", Number),
]);

static ACTION: Type = Type(&[("Name", Text), ("Command", Text), ("Args", Null)]);

static TASK_SCHEDULE: Type = Type(&[("Cron", One(&TASK_SCHEDULE_CRON))]);

static CSI_MOUNT_OPTIONS: Type = Type(&[("FSType", Text), ("MountFlags", Null)]);

static DNS_CONFIG: Type = Type(&[("Servers", Null), ("Searches", Null), ("Options", Null)]);

static PORT: Type = Type(&[("Label", Text), ("Value", Number), ("To", Number), ("HostNetwork", Text), ("IgnoreCollision", Bool)]);

static CNI_CONFIG: Type = Type(&[("Args", Null)]);

static SERVICE_CHECK: Type = Type(&[
    ("Name", Text),
    ("Type", Text),
    ("Command", Text),
    ("Args", Null),
    ("Path", Text),
    ("Protocol", Text),
    ("PortLabel", Text),
    ("Expose", Bool),
    ("AddressMode", Text),
    ("Advertise", Text),
    ("Interval", Number),
    ("Timeout", Number),
    ("InitialStatus", Text),
    ("Notes", Text),
    ("TLSServerName", Text),
    ("TLSSkipVerify", Bool),
    ("Header", Null),
    ("Method", Text),
    ("CheckRestart", One(&CHECK_RESTART)),
    ("GRPCService", Text),
    ("GRPCUseTLS", Bool),
    ("TaskName", Text),
    ("SuccessBeforePassing", Number),
    ("FailuresBeforeCritical", Number),
    ("FailuresBeforeWarning", Number),
    ("Body", Text),
    ("OnUpdate", Text),
]);

static CHECK_RESTART: Type = Type(&[("Limit", Number), ("Grace", Null), ("IgnoreWarnings", Bool)]);

static CONSUL_CONNECT: Type = Type(&[
    ("Native", Bool),
    ("Gateway", One(&CONSUL_GATEWAY)),
    ("SidecarService", One(&CONSUL_SIDECAR_SERVICE)),
    ("SidecarTask", One(&SIDECAR_TASK)),
]);

static SERVICE_WEIGHTS: Type = Type(&[("Passing", Number), ("Warning", Number)]);

static REQUESTED_DEVICE: Type =
    Type(&[("Name", Text), ("Count", Null), ("Constraints", Many(&CONSTRAINT)), ("Affinities", Many(&AFFINITY))]);

static NUMA_RESOURCE: Type = Type(&[("Affinity", Text), ("Devices", Null)]);

static CHANGE_SCRIPT: Type = Type(&[("Command", Null), ("Args", Null), ("Timeout", Null), ("FailOnError", Null)]);

static WAIT_CONFIG: Type = Type(&[("Min", Null), ("Max", Null)]);

static TASK_SCHEDULE_CRON: Type = Type(&[("Start", Text), ("End", Text), ("Timezone", Text)]);

static CONSUL_GATEWAY: Type = Type(&[
    ("Proxy", One(&CONSUL_GATEWAY_PROXY)),
    ("Ingress", One(&CONSUL_INGRESS_CONFIG_ENTRY)),
    ("Terminating", One(&CONSUL_TERMINATING_CONFIG_ENTRY)),
    ("Mesh", One(&CONSUL_MESH_CONFIG_ENTRY)),
]);

static CONSUL_SIDECAR_SERVICE: Type =
    Type(&[("Tags", Null), ("Port", Text), ("Proxy", One(&CONSUL_PROXY)), ("DisableDefaultTCPCheck", Bool), ("Meta", Null)]);

static SIDECAR_TASK: Type = Type(&[
    ("Name", Text),
    ("Driver", Text),
    ("User", Text),
    ("Config", Null),
    ("Env", Null),
    ("Resources", One(&RESOURCES)),
    ("Meta", Null),
    ("KillTimeout", Null),
    ("LogConfig", One(&LOG_CONFIG)),
    ("ShutdownDelay", Null),
    ("KillSignal", Text),
    ("VolumeMounts", Many(&VOLUME_MOUNT)),
]);

static CONSUL_GATEWAY_PROXY: Type = Type(&[
    ("ConnectTimeout", Null),
    ("EnvoyGatewayBindTaggedAddresses", Bool),
    ("EnvoyGatewayBindAddresses", ByName(&CONSUL_GATEWAY_BIND_ADDRESS)),
    ("EnvoyGatewayNoDefaultBind", Bool),
    ("EnvoyDNSDiscoveryType", Text),
    ("Config", Null),
]);

static CONSUL_INGRESS_CONFIG_ENTRY: Type = Type(&[("TLS", One(&CONSUL_GATEWAY_TLS_CONFIG)), ("Listeners", Many(&CONSUL_INGRESS_LISTENER))]);

static CONSUL_TERMINATING_CONFIG_ENTRY: Type = Type(&[("Services", Many(&CONSUL_LINKED_SERVICE))]);

static CONSUL_MESH_CONFIG_ENTRY: Type = Type(&[]);

static CONSUL_PROXY: Type = Type(&[
    ("LocalServiceAddress", Text),
    ("LocalServicePort", Number),
    ("Expose", One(&CONSUL_EXPOSE_CONFIG)),
    ("ExposeConfig", One(&CONSUL_EXPOSE_CONFIG)),
    ("Upstreams", Many(&CONSUL_UPSTREAM)),
    ("TransparentProxy", One(&CONSUL_TRANSPARENT_PROXY)),
    ("Config", Null),
]);

static CONSUL_GATEWAY_BIND_ADDRESS: Type = Type(&[("Name", Text), ("Address", Text), ("Port", Number)]);

static CONSUL_GATEWAY_TLS_CONFIG: Type = Type(&[
    ("Enabled", Bool),
    ("TLSMinVersion", Text),
    ("TLSMaxVersion", Text),
    ("CipherSuites", Null),
    ("SDS", One(&CONSUL_GATEWAY_TLSSDS_CONFIG)),
]);

static CONSUL_INGRESS_LISTENER: Type = Type(&[("Port", Number), ("Protocol", Text), ("Services", Many(&CONSUL_INGRESS_SERVICE))]);

static CONSUL_LINKED_SERVICE: Type = Type(&[("Name", Text), ("CAFile", Text), ("CertFile", Text), ("KeyFile", Text), ("SNI", Text)]);

static CONSUL_EXPOSE_CONFIG: Type = Type(&[("Paths", Many(&CONSUL_EXPOSE_PATH)), ("Path", Many(&CONSUL_EXPOSE_PATH))]);

static CONSUL_UPSTREAM: Type = Type(&[
    ("DestinationName", Text),
    ("DestinationNamespace", Text),
    ("DestinationPeer", Text),
    ("DestinationPartition", Text),
    ("DestinationType", Text),
    ("LocalBindPort", Number),
    ("Datacenter", Text),
    ("LocalBindAddress", Text),
    ("LocalBindSocketPath", Text),
    ("LocalBindSocketMode", Text),
    ("MeshGateway", One(&CONSUL_MESH_GATEWAY)),
    ("Config", Null),
]);

static CONSUL_TRANSPARENT_PROXY: Type = Type(&[
    ("UID", Text),
    ("OutboundPort", Number),
    ("ExcludeInboundPorts", Null),
    ("ExcludeOutboundPorts", Null),
    ("ExcludeOutboundCIDRs", Null),
    ("ExcludeUIDs", Null),
    ("NoDNS", Bool),
]);

static CONSUL_GATEWAY_TLSSDS_CONFIG: Type = Type(&[("ClusterName", Text), ("CertResource", Text)]);

static CONSUL_INGRESS_SERVICE: Type = Type(&[
    ("Name", Text),
    ("Hosts", Null),
    ("TLS", One(&CONSUL_GATEWAY_TLS_CONFIG)),
    ("RequestHeaders", One(&CONSUL_HTTP_HEADER_MODIFIERS)),
    ("ResponseHeaders", One(&CONSUL_HTTP_HEADER_MODIFIERS)),
    ("MaxConnections", Null),
    ("MaxPendingRequests", Null),
    ("MaxConcurrentRequests", Null),
]);

static CONSUL_EXPOSE_PATH: Type = Type(&[("Path", Text), ("Protocol", Text), ("LocalPathPort", Number), ("ListenerPort", Text)]);

static CONSUL_MESH_GATEWAY: Type = Type(&[("Mode", Text)]);

static CONSUL_HTTP_HEADER_MODIFIERS: Type = Type(&[("Add", Null), ("Set", Null), ("Remove", Null)]);
