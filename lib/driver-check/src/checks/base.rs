//! Identity, schemas, configuration, and calls that make no sense.

use std::sync::Arc;
use std::time::Duration;

use driver_proto::base::{ConfigSchemaRequest, PluginInfoRequest, PluginType};
use driver_proto::driver::*;
use driver_proto::handshake::API_VERSION;
use driver_proto::hclspec::Spec;
use driver_proto::hclspec::spec::Block as Kind;
use prost::Message;
use tonic::{Code, Status};

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold};
use crate::plugin::{Launch, Plugin};
use crate::task::excerpt;
use crate::{procs, raw};

table! {
    "base/info", "B", "PluginInfo names a driver, its version and the plugin API v0.1.0",
        "Nomad agents do not start with a plugin whose API list is empty or whose version cannot be read, and skip \
            one with another API", info;
    "base/config-schema", "B", "the schema of the plugin's configuration is well formed",
        "no configuration of the plugin can be read; Nomad agents do not start", config_schema;
    "base/task-schema", "C", "the schema of tasks is well formed, the same each time and known before SetConfig",
        "jobs fail at their start with an error about a schema that their author never saw", task_schema;
    "base/set-config-twice", "H35", "SetConfig is taken twice and without the agent's part, and leaves nothing when \
        the process is then killed",
        "agents do exactly this to validate a configuration: whatever was begun then is left over at each start of \
            the agent", set_config_twice;
    "base/set-config-live", "B", "a second SetConfig in a process that has tasks is taken, and the tasks stay",
        "changing the configuration of the agent loses tasks", set_config_live;
    "base/set-config-junk", "B", "a configuration that cannot be read is refused with a reason",
        "a broken configuration looks as if it had been accepted", set_config_junk;
    "base/init-shutdown", "H42", "Driver.Init and Driver.Shutdown are answered, or UNIMPLEMENTED by older drivers; \
        Shutdown ends neither process nor tasks",
        "agents since 2.0 call both: an error there keeps the driver from coming up, and tasks do not survive \
            the agent", init_shutdown;
    "base/unknown-call", "H42", "a call that it does not know is answered with UNIMPLEMENTED",
        "hosts that are newer than the plugin cannot tell an old plugin from a broken one", unknown_call;
    "base/unknown-fields", "H42", "fields that it does not know are ignored",
        "the plugin stops working with the next release of the agent", unknown_fields;
    "base/oversized", "A8", "a request of five MiB is taken, or refused as too large; the connection and the \
        process live on",
        "one job with a large configuration brings down all tasks' connection to the driver", oversized;
    "base/junk-requests", "D4", "empty and unreadable requests are answered, and the process lives on",
        "a mistake of a host in one call ends the driver's process for all tasks", junk_requests;
}

async fn info(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    let info = lab.call(&plugin, "PluginInfo", plugin.base().plugin_info(PluginInfoRequest {})).await?;
    hold!(info.r#type() == PluginType::Driver, "it says to be of type {:?}", info.r#type());
    let version = |text: &str| semver::Version::parse(text.trim_start_matches('v'));
    let wanted = version(API_VERSION).ok();
    let offered = &info.plugin_api_versions;
    hold!(!offered.is_empty(), "its list of API versions is empty");
    if let Some(bad) = offered.iter().find(|text| version(text).is_err()) {
        return failed(format!("its API version {bad:?} is no version"));
    }
    hold!(
        offered.iter().any(|text| version(text).ok() == wanted),
        "its API versions are {offered:?}, {API_VERSION} is not among them"
    );
    hold!(version(&info.plugin_version).is_ok(), "its version {:?} is no version", info.plugin_version);
    let name = &info.name;
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    hold!(plain, "its name {name:?} cannot be written as the driver of a task");
    Ok(())
}

/// Every node must have what its kind needs.
fn well_formed(spec: &Spec, place: &str) -> Outcome {
    let inside = |nested: &Option<Box<Spec>>, name: &str| match nested {
        Some(nested) => well_formed(nested, &format!("{place}.{name}")),
        None => failed(format!("the block {name:?} at {place} has no inside")),
    };
    let typed = |ty: &str, name: &str| {
        const KNOWN: [&str; 8] = ["any", "string", "number", "bool", "list(", "set(", "map(", "tuple("];
        let known = KNOWN.iter().any(|known| if known.ends_with('(') { ty.starts_with(known) } else { ty == *known });
        hold!(known || ty.starts_with("object("), "{name:?} at {place} has the type {ty:?}");
        Ok(())
    };
    match &spec.block {
        None => failed(format!("the node at {place} is empty")),
        Some(Kind::Object(object)) => {
            object.attributes.iter().try_for_each(|(name, spec)| well_formed(spec, &format!("{place}.{name}")))
        }
        Some(Kind::Array(array)) => array.values.iter().try_for_each(|spec| well_formed(spec, place)),
        Some(Kind::Attr(attr)) => typed(&attr.r#type, &attr.name),
        Some(Kind::BlockAttrs(block)) => typed(&block.r#type, &block.name),
        Some(Kind::BlockValue(block)) => inside(&block.nested, &block.name),
        Some(Kind::BlockList(list)) => inside(&list.nested, &list.name),
        Some(Kind::BlockSet(set)) => inside(&set.nested, &set.name),
        Some(Kind::BlockMap(map)) => {
            hold!(!map.labels.is_empty(), "the labelled block {:?} at {place} has no labels", map.name);
            inside(&map.nested, &map.name)
        }
        Some(Kind::Literal(literal)) => {
            hold!(!literal.value.trim().is_empty(), "the literal at {place} is empty");
            Ok(())
        }
        Some(Kind::Default(default)) => {
            inside(&default.primary, "default")?;
            inside(&default.default, "default")
        }
    }
}

async fn config_schema(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    let answer = lab.call(&plugin, "ConfigSchema", plugin.base().config_schema(ConfigSchemaRequest {})).await?;
    let Some(spec) = &answer.spec else {
        // Such a plugin takes no configuration.
        return Ok(());
    };
    well_formed(spec, "config")?;
    lab.configuration(true).map(drop)
}

async fn task_schema(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    let ask = || async {
        lab.call(&plugin, "TaskConfigSchema", plugin.driver().task_config_schema(TaskConfigSchemaRequest {})).await
    };
    let first = ask().await?;
    let Some(spec) = &first.spec else {
        return failed("TaskConfigSchema answers without a schema, so no task can be configured");
    };
    well_formed(spec, "config")?;
    lab.configure(&plugin).await?;
    hold!(ask().await? == first, "TaskConfigSchema answers differently after SetConfig");
    let capabilities =
        || async { lab.call(&plugin, "Capabilities", plugin.driver().capabilities(CapabilitiesRequest {})).await };
    let first = capabilities().await?;
    hold!(first.capabilities.is_some(), "Capabilities answers without capabilities");
    hold!(capabilities().await? == first, "Capabilities answers differently each time");
    Ok(())
}

async fn set_config_twice(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    for n in ["first", "second"] {
        let request = lab.configuration(false)?;
        lab.call(&plugin, &format!("the {n} SetConfig without the agent's part"), plugin.base().set_config(request))
            .await?;
    }
    plugin.process.kill().await;
    tokio::time::sleep(lab.pace().hold.min(Duration::from_millis(200))).await;
    let left = lab.belonging();
    hold!(left.is_empty(), "after SetConfig and SIGKILL there are processes {}", procs::names(&left));
    Ok(())
}

async fn set_config_live(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    lab.configure(&plugin).await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    lab.configure(&plugin).await?;
    let mut waiting = lab.waiting(&plugin, &task.id);
    if let Ok(answer) = tokio::time::timeout(lab.pace().hold, &mut waiting).await {
        return failed(format!("after SetConfig the running task is answered with {answer:?}"));
    }
    waiting.abort();
    lab.destroy(&plugin, &task.id).await
}

async fn set_config_junk(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    if lab.profile().config_schema.is_none() {
        return crate::outcome::not_applicable("the plugin takes no configuration");
    }
    // A byte that no value begins with.
    let request =
        driver_proto::base::SetConfigRequest { msgpack_config: vec![0xc1, 0xc1], ..lab.configuration(false)? };
    match lab.answer(&plugin, "SetConfig", plugin.base().set_config(request)).await? {
        Ok(_) => failed("a configuration of unreadable bytes was accepted"),
        Err(status) => {
            hold!(!status.message().is_empty(), "the refusal ({:?}) has no text", status.code());
            lab.still_works(&plugin, "the refusal").await
        }
    }
}

fn done_or_unimplemented<T>(what: &str, answer: Result<T, Status>) -> Outcome {
    match answer {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::Unimplemented => Ok(()),
        Err(status) => failed(format!("{what} was answered with {:?}: {}", status.code(), status.message())),
    }
}

async fn init_shutdown(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    for _ in 0..2 {
        // Twice, as after a reattachment.
        done_or_unimplemented("Init", lab.answer(&plugin, "Init", plugin.driver().init(InitRequest {})).await?)?;
    }
    let task = match lab.prepare(Work::Runs) {
        Ok(prepared) => Some(lab.start(&plugin, prepared).await?),
        Err(_) => None,
    };
    done_or_unimplemented(
        "Shutdown",
        lab.answer(&plugin, "Shutdown", plugin.driver().shutdown(ShutdownRequest {})).await?,
    )?;
    let ended = plugin.process.ended(Duration::from_millis(200)).await;
    hold!(ended.is_none(), "Driver.Shutdown ended the process; the order to end comes on GRPCController");
    if let Some(task) = task {
        let waiting = lab.waiting(&plugin, &task.id);
        tokio::time::sleep(Duration::from_millis(100)).await;
        hold!(!waiting.is_finished(), "after Driver.Shutdown the running task is answered with {:?}", waiting.await);
        waiting.abort();
        lab.destroy(&plugin, &task.id).await?;
    }
    Ok(())
}

async fn unknown_call(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    for path in ["/hashicorp.nomad.plugins.drivers.proto.Driver/CallOfTheFuture", "/service.of.the.Future/Call"] {
        match raw::unary(plugin.channel.clone(), path, Vec::new()).await {
            Err(status) if status.code() == Code::Unimplemented => {}
            Err(status) => {
                return failed(format!("{path} was answered with {:?}: {}", status.code(), status.message()));
            }
            Ok(_) => return failed(format!("{path} was answered as if it existed")),
        }
    }
    lab.still_works(&plugin, "unknown calls").await
}

/// A task request as it will look one day.
fn with_unknown(message: &impl Message) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    bytes.extend(raw::field(4711, b"what is this"));
    bytes
}

async fn unknown_fields(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.launch(Launch::default()).await?;
    let set = with_unknown(&lab.configuration(true)?);
    match raw::unary(plugin.channel.clone(), "/hashicorp.nomad.plugins.base.proto.BasePlugin/SetConfig", set).await {
        Ok(_) => {}
        Err(status) => {
            return failed(format!(
                "SetConfig with an unknown field was answered with {:?}: {}",
                status.code(),
                status.message()
            ));
        }
    }
    let prepared = lab.prepare(Work::Exits)?;
    let id = prepared.id().to_owned();
    // Within the task as well, where fields are added.
    let mut request = raw::field(1, &with_unknown(&prepared.config));
    request.extend(raw::field(4711, b"and this"));
    lab.remember_task(&TaskHandle { config: Some(prepared.config.clone()), ..TaskHandle::default() });
    match raw::unary(plugin.channel.clone(), "/hashicorp.nomad.plugins.drivers.proto.Driver/StartTask", request).await {
        Ok(_) => {}
        Err(status) => {
            return failed(format!(
                "StartTask with unknown fields was answered with {:?}: {}",
                status.code(),
                status.message()
            ));
        }
    }
    lab.wait(&plugin, &id).await?;
    lab.destroy(&plugin, &id).await
}

async fn oversized(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let mut request = InspectTaskRequest { task_id: "no such task".into() }.encode_to_vec();
    request.extend(raw::field(4711, &vec![b'x'; 5 << 20]));
    let call = raw::unary(plugin.channel.clone(), "/hashicorp.nomad.plugins.drivers.proto.Driver/InspectTask", request);
    let Ok(answer) = tokio::time::timeout(lab.pace().patience, call).await else {
        return failed("a request of five MiB was never answered");
    };
    match answer {
        Ok(_) => return failed("a task that does not exist was inspected"),
        // Taken, and the task is not known; or too large for it.
        Err(status)
            if matches!(status.code(), Code::Unknown | Code::NotFound | Code::ResourceExhausted | Code::OutOfRange) => {
        }
        Err(status) => {
            return failed(format!(
                "a request of five MiB was answered with {:?}: {}",
                status.code(),
                status.message()
            ));
        }
    }
    lab.still_works(&plugin, "a request of five MiB").await
}

async fn junk_requests(lab: &Arc<Lab>) -> Outcome {
    const UNARY: [&str; 9] = [
        "/hashicorp.nomad.plugins.drivers.proto.Driver/RecoverTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/StartTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/WaitTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/StopTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/DestroyTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/InspectTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/SignalTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/ExecTask",
        "/hashicorp.nomad.plugins.drivers.proto.Driver/DestroyNetwork",
    ];
    let plugin = lab.plugin().await?;
    for path in UNARY {
        let call = path.rsplit('/').next().unwrap_or(path);
        for (what, bytes) in [("empty", Vec::new()), ("unreadable", vec![0xff; 32])] {
            answered(lab, &plugin, path, &format!("{call} with an {what} request"), bytes, what == "unreadable")
                .await?;
        }
    }
    Ok(())
}

async fn answered(
    lab: &Lab,
    plugin: &Plugin,
    path: &'static str,
    what: &str,
    bytes: Vec<u8>,
    must_refuse: bool,
) -> Outcome {
    let call = raw::unary(plugin.channel.clone(), path, bytes);
    match tokio::time::timeout(lab.pace().patience, call).await {
        Err(_) => failed(format!("{what} was never answered")),
        Ok(Ok(_)) if must_refuse => failed(format!("{what} was answered as if it had been understood")),
        Ok(_) => match lab.still_works(plugin, what).await {
            Ok(()) => Ok(()),
            Err(crate::outcome::Stop::Failed(seen)) => failed(excerpt(&seen)),
            Err(other) => Err(other),
        },
    }
}
