//! What `Canonicalize` of `POST /v1/jobs/parse` adds to a document: the defaults of Nomad's API client, and no more.
//!
//! These are not the defaults that a job is registered with, which are the model's: the client of the API leaves to
//! the server what only the server can know. `cargo xtask interop stock-jobs-parse` compares.

use model::{
    Migrate, Reschedule, Resources, Restart, Update,
    job::{EphemeralDisk, Periodic, Scaling},
    policy::Disconnect,
    resources::{Numa, RequestedDevice},
    schema::Described,
    service::Service,
    task::{Artifact, ChangeScript, Consul, LogConfig, Template, Vault, VolumeMount},
};
use serde_json::{Map, Value as Json, json};

use crate::document::{self, client_defaults, unset};

type Fields = Map<String, Json>;

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Adds the defaults to a complete document.
pub(crate) fn canonicalize(job: &mut Json) {
    let Json::Object(job) = job else { return };
    defaults(job, [("ID", json!(""))]);
    let id = get(job, "ID").clone();
    defaults(job, [("Name", id)]);
    client_defaults(model::Job::BLOCK, job);
    table::<Periodic>(job, "Periodic");
    object(job, "Periodic", |periodic| texts(periodic, [("TimeZone", "UTC")]));
    if get(job, "Update").is_null() && get(job, "Type") == "service" {
        job.insert("Update".into(), unset(Update::BLOCK));
    }
    table::<Update>(job, "Update");
    object(job, "Multiregion", multiregion);
    let inherited = Inherited::of(job);
    each(job, "TaskGroups", |group_fields| group(group_fields, &inherited));
    each(job, "Spreads", weight);
    each(job, "Affinities", weight);
    object(job, "UI", |ui| null_if_empty(ui, &["Links"]));
}

/// What groups and tasks take over from their job.
struct Inherited {
    name: String,
    kind: String,
    consul_namespace: Json,
    update: Json,
    reschedule: Json,
    migrate: Json,
}

impl Inherited {
    fn of(job: &Fields) -> Self {
        Self {
            name: text(job, "Name"),
            kind: text(job, "Type"),
            consul_namespace: get(job, "ConsulNamespace").clone(),
            update: get(job, "Update").clone(),
            reschedule: get(job, "Reschedule").clone(),
            migrate: get(job, "Migrate").clone(),
        }
    }
}

fn get<'a>(fields: &'a Fields, name: &str) -> &'a Json {
    fields.get(name).unwrap_or(&Json::Null)
}

fn text(fields: &Fields, name: &str) -> String {
    get(fields, name).as_str().unwrap_or_default().to_owned()
}

/// Sets what is unset.
fn defaults<const N: usize>(fields: &mut Fields, values: [(&str, Json); N]) {
    for (name, value) in values {
        if get(fields, name).is_null() {
            fields.insert(name.to_owned(), value);
        }
    }
}

/// Sets texts that are empty.
fn texts<const N: usize>(fields: &mut Fields, values: [(&str, &str); N]) {
    for (name, value) in values {
        if get(fields, name) == "" {
            fields.insert(name.to_owned(), json!(value));
        }
    }
}

/// Lists and maps with nothing in them are unset.
fn null_if_empty(fields: &mut Fields, names: &[&str]) {
    for name in names {
        let empty = match get(fields, name) {
            Json::Array(items) => items.is_empty(),
            Json::Object(members) => members.is_empty(),
            _ => false,
        };
        if empty {
            fields.insert((*name).to_owned(), Json::Null);
        }
    }
}

/// Looks at an object that is there.
fn object(fields: &mut Fields, name: &str, mut change: impl FnMut(&mut Fields)) {
    if let Some(Json::Object(inner)) = fields.get_mut(name) {
        change(inner);
    }
}

/// Fills in what the table of a block has, if it is there.
fn table<T: Described>(fields: &mut Fields, name: &str) {
    object(fields, name, |inner| client_defaults(T::BLOCK, inner));
}

/// Looks at each object of a list.
fn each(fields: &mut Fields, name: &str, mut change: impl FnMut(&mut Fields)) {
    if let Some(Json::Array(items)) = fields.get_mut(name) {
        items.iter_mut().filter_map(Json::as_object_mut).for_each(&mut change);
    }
}

/// What is set in `upper` wins over `lower`; null if neither is there.
fn merged(lower: &Json, upper: &Json) -> Json {
    let mut out = lower.clone();
    match (&mut out, upper) {
        (Json::Object(out), Json::Object(upper)) => {
            out.extend(
                upper.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())),
            );
        }
        (out @ Json::Null, upper) => *out = upper.clone(),
        _ => {}
    }
    out
}

fn says_nothing(object: &Json) -> bool {
    object.as_object().is_none_or(|fields| fields.values().all(document::says_nothing))
}

fn weight(fields: &mut Fields) {
    defaults(fields, [("Weight", json!(50))]);
}

fn multiregion(fields: &mut Fields) {
    defaults(fields, [("Strategy", json!({ "MaxParallel": 0, "OnFailure": "" })), ("Regions", json!([]))]);
    object(fields, "Strategy", |strategy| defaults(strategy, [("MaxParallel", json!(0)), ("OnFailure", json!(""))]));
    each(fields, "Regions", |region| {
        defaults(region, [("Count", json!(1)), ("Datacenters", json!([])), ("Meta", json!({}))])
    });
}

fn group(fields: &mut Fields, job: &Inherited) {
    defaults(fields, [("Name", json!(""))]);
    let least = fields.get("Scaling").map(|scaling| scaling["Min"].clone()).filter(|least| !least.is_null());
    defaults(
        fields,
        [
            ("Count", least.unwrap_or(json!(1))),
            ("EphemeralDisk", unset(EphemeralDisk::BLOCK)),
            ("Consul", unset(Consul::BLOCK)),
        ],
    );
    let count = get(fields, "Count").clone();
    object(fields, "Scaling", |scaling| {
        client_defaults(Scaling::BLOCK, scaling);
        defaults(scaling, [("Min", count.clone())]);
        texts(scaling, [("Type", "horizontal")]);
    });
    table::<EphemeralDisk>(fields, "EphemeralDisk");
    object(fields, "Consul", |consul| {
        if get(consul, "Namespace") == "" && !job.consul_namespace.is_null() {
            consul.insert("Namespace".into(), job.consul_namespace.clone());
        }
        client_defaults(Consul::BLOCK, consul);
    });

    if !get(fields, "Update").is_null() || !says_nothing(&job.update) {
        let update = merged(&job.update, get(fields, "Update"));
        fields.insert("Update".into(), update);
    }
    table::<Update>(fields, "Update");
    let mut reschedule = merged(&job.reschedule, get(fields, "ReschedulePolicy"));
    if reschedule.is_null() && job.kind != "system" {
        reschedule = unset(Reschedule::BLOCK);
    }
    fields.insert("ReschedulePolicy".into(), reschedule);
    object(fields, "ReschedulePolicy", |policy| reschedule_defaults(policy, &job.kind));
    let mut migrate = merged(&job.migrate, get(fields, "Migrate"));
    if migrate.is_null() && job.kind == "service" {
        migrate = unset(Migrate::BLOCK);
    }
    fields.insert("Migrate".into(), migrate);
    table::<Migrate>(fields, "Migrate");
    let restart = merged(&default_restart(&job.kind), get(fields, "RestartPolicy"));
    fields.insert("RestartPolicy".into(), restart.clone());

    let group_name = text(fields, "Name");
    each(fields, "Tasks", |task_fields| task(task_fields, &restart, &format!("{}-{group_name}", job.name)));
    each(fields, "Spreads", weight);
    each(fields, "Affinities", weight);
    each(fields, "Services", |fields| service(fields, &format!("{}-{group_name}", job.name)));
    client_defaults(model::TaskGroup::BLOCK, fields);
    table::<Disconnect>(fields, "Disconnect");
}

fn reschedule_defaults(fields: &mut Fields, kind: &str) {
    let (attempts, interval, delay, function, max_delay, unlimited) = match kind {
        "service" => (0, 0, 30 * SECOND, "exponential", HOUR, true),
        "batch" => (1, 24 * HOUR, 5 * SECOND, "constant", 0, false),
        _ => (0, 0, 0, "", 0, false),
    };
    defaults(
        fields,
        [
            ("Attempts", json!(attempts)),
            ("Interval", json!(interval)),
            ("Delay", json!(delay)),
            ("DelayFunction", json!(function)),
            ("MaxDelay", json!(max_delay)),
            ("Unlimited", json!(unlimited)),
        ],
    );
}

fn default_restart(kind: &str) -> Json {
    let (attempts, interval) = if matches!(kind, "service" | "system") { (2, 30 * MINUTE) } else { (3, 24 * HOUR) };
    let set = json!({ "Delay": 15 * SECOND, "Attempts": attempts, "Interval": interval, "Mode": "fail",
        "RenderTemplates": false });
    merged(&unset(Restart::BLOCK), &set)
}

/// `prefix`: what the names of its services begin with.
fn task(fields: &mut Fields, group_restart: &Json, prefix: &str) {
    defaults(fields, [("Resources", unset(Resources::BLOCK)), ("LogConfig", unset(LogConfig::BLOCK))]);
    client_defaults(model::Task::BLOCK, fields);
    object(fields, "Resources", resources);
    table::<LogConfig>(fields, "LogConfig");
    each(fields, "Artifacts", artifact);
    table::<Vault>(fields, "Vault");
    table::<Consul>(fields, "Consul");
    each(fields, "Templates", template);
    let name = format!("{prefix}-{}", text(fields, "Name"));
    each(fields, "Services", |fields| service(fields, &name));
    each(fields, "Affinities", weight);
    each(fields, "VolumeMounts", |mount| client_defaults(VolumeMount::BLOCK, mount));
    if fields.get("Lifecycle").is_some_and(|lifecycle| lifecycle["Hook"] == "") {
        fields.insert("Lifecycle".into(), Json::Null);
    }
    object(fields, "CSIPluginConfig", |plugin| {
        texts(plugin, [("MountDir", "/csi"), ("StagePublishBaseDir", "/local/csi")]);
        if get(plugin, "HealthTimeout") == 0 {
            plugin.insert("HealthTimeout".into(), json!(30 * SECOND));
        }
    });
    let restart = merged(group_restart, get(fields, "RestartPolicy"));
    fields.insert("RestartPolicy".into(), restart);
}

fn resources(fields: &mut Fields) {
    // Whoever asks for cores has no share besides them.
    let cpu = if get(fields, "Cores").is_null() { 100 } else { 0 };
    defaults(fields, [("CPU", json!(cpu))]);
    client_defaults(Resources::BLOCK, fields);
    each(fields, "Devices", |device| {
        client_defaults(RequestedDevice::BLOCK, device);
        each(device, "Affinities", weight);
    });
    object(fields, "NUMA", |numa| {
        client_defaults(Numa::BLOCK, numa);
        null_if_empty(numa, &["Devices"]);
    });
}

fn artifact(fields: &mut Fields) {
    client_defaults(Artifact::BLOCK, fields);
    null_if_empty(fields, &["GetterOptions", "GetterHeaders"]);
    let destination = if get(fields, "GetterMode") == "file" {
        let source = text(fields, "GetterSource");
        format!("local/{}", source.trim_end_matches('/').rsplit('/').next().unwrap_or_default())
    } else {
        "local/".to_owned()
    };
    defaults(fields, [("RelativeDest", json!(destination))]);
}

fn template(fields: &mut Fields) {
    client_defaults(Template::BLOCK, fields);
    let signal = match (get(fields, "ChangeSignal"), get(fields, "ChangeMode")) {
        (Json::String(signal), _) => signal.to_uppercase(),
        (_, mode) if mode == "signal" => "SIGHUP".to_owned(),
        _ => String::new(),
    };
    fields.insert("ChangeSignal".into(), json!(signal));
    table::<ChangeScript>(fields, "ChangeScript");
}

fn service(fields: &mut Fields, name: &str) {
    texts(fields, [("Name", name)]);
    client_defaults(Service::BLOCK, fields);
    null_if_empty(fields, &["Meta", "CanaryMeta", "TaggedAddresses"]);
    object(fields, "Connect", connect);
    object(fields, "Weights", |weights| {
        for name in ["Passing", "Warning"] {
            at_least(weights, name, 1);
        }
    });
    let (restart, on_update) = (get(fields, "CheckRestart").clone(), text(fields, "OnUpdate"));
    each(fields, "Checks", |check| {
        let own = check_restart(&restart, get(check, "CheckRestart"));
        check.insert("CheckRestart".into(), own);
        object(check, "CheckRestart", |restart| defaults(restart, [("Grace", json!(SECOND))]));
        for name in ["SuccessBeforePassing", "FailuresBeforeCritical", "FailuresBeforeWarning"] {
            at_least(check, name, 0);
        }
        texts(check, [("OnUpdate", &on_update)]);
    });
}

fn at_least(fields: &mut Fields, name: &str, least: i64) {
    if get(fields, name).as_i64().is_none_or(|number| number < least) {
        fields.insert(name.to_owned(), json!(least));
    }
}

/// A check's own settings over those of its service; only what says something counts.
fn check_restart(service: &Json, check: &Json) -> Json {
    let mut own = check.clone();
    if service.is_object()
        && let Json::Object(own) = &mut own
    {
        if get(own, "Limit").as_i64().is_some_and(|limit| limit <= 0) {
            own.remove("Limit");
        }
        if get(own, "IgnoreWarnings") == false {
            own.remove("IgnoreWarnings");
        }
    }
    merged(service, &own)
}

fn connect(fields: &mut Fields) {
    object(fields, "SidecarService", |sidecar| {
        null_if_empty(sidecar, &["Tags", "Meta"]);
        object(sidecar, "Proxy", |proxy| {
            object(proxy, "Expose", |expose| null_if_empty(expose, &["Paths", "Path"]));
            object(proxy, "TransparentProxy", |transparent| {
                null_if_empty(
                    transparent,
                    &["ExcludeInboundPorts", "ExcludeOutboundCIDRs", "ExcludeOutboundPorts", "ExcludeUIDs"],
                );
            });
            null_if_empty(proxy, &["Upstreams", "Config"]);
            each(proxy, "Upstreams", |upstream| null_if_empty(upstream, &["Config"]));
        });
    });
    object(fields, "SidecarTask", |task| {
        null_if_empty(task, &["Config", "Env", "Meta"]);
        defaults(
            task,
            [
                ("Resources", unset(Resources::BLOCK)),
                ("LogConfig", unset(LogConfig::BLOCK)),
                ("KillTimeout", json!(5 * SECOND)),
                ("ShutdownDelay", json!(0)),
            ],
        );
        object(task, "Resources", resources);
        table::<LogConfig>(task, "LogConfig");
        each(task, "VolumeMounts", |mount| client_defaults(VolumeMount::BLOCK, mount));
    });
    object(fields, "Gateway", |gateway| {
        object(gateway, "Proxy", |proxy| {
            defaults(proxy, [("ConnectTimeout", json!(5 * SECOND))]);
            null_if_empty(proxy, &["EnvoyGatewayBindAddresses", "Config"]);
        });
        object(gateway, "Ingress", |ingress| {
            null_if_empty(ingress, &["Listeners"]);
            each(ingress, "Listeners", |listener| {
                texts(listener, [("Protocol", "tcp")]);
                null_if_empty(listener, &["Services"]);
            });
        });
        object(gateway, "Terminating", |terminating| null_if_empty(terminating, &["Services"]));
    });
}
