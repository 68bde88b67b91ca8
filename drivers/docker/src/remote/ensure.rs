//! Create or get.
//!
//! ```text
//! make the container (its name decides) ── look for a seal ── files ── note the start ── start
//! ```
//! Every step may be the last one of a manager that dies; the next call with the key goes on from there. A seal that is
//! made before the second step is seen there; one that is made later finds the container. Engines start what has ended
//! once more: what was started by another call is left alone, as far as it
//! can be seen right before.

use std::collections::BTreeMap;

use driver_sdk::{Ensure, RemoteError};
use http::Method;
use http_body_util::BodyExt;

use super::bundle::{FileOwner, archives};
use super::names::{
    LABEL_EPOCH, LABEL_KEY, LABEL_OWNER, LABEL_PORTS, LABEL_SLOT, answer, container_path, driver_error, object_name,
    owned,
};
use super::{marks, unseen, volumes};
use crate::config::{Logging, PluginConfig};
use crate::create::{Place, Plan, Wanted, plan};
use crate::engine::types::{Container, Created};
use crate::engine::{Engine, encode, streamed};
use crate::image::{self, Archive};
use crate::options::TaskOptions;
use crate::ports;
use crate::secure::with_profiles;
use crate::watch::inspect;

const UPLOAD_WITHIN: std::time::Duration = std::time::Duration::from_secs(300);

fn sealed() -> RemoteError {
    RemoteError::sealed(
        "it was stopped before it was created, or its instance has ended and was acknowledged; a new start needs \
            a new key",
    )
}

/// The container of the key, and whether this call has made it.
pub(crate) async fn ensure(
    engine: &Engine,
    plugin: &PluginConfig,
    request: &Ensure,
) -> Result<(Container, bool), RemoteError> {
    let name = object_name(&request.key);
    let standing = match inspect(engine, &name).await {
        Ok(standing) => Some(standing),
        Err(e) if e.is_absent() => None,
        Err(e) => return Err(answer(e)),
    };
    if let Some(standing) = standing {
        owned(&standing.config.labels, &request.key, &request.owner)?;
        // What runs or has run is not prepared again; it only learns the epoch.
        if standing.state.status != "created" {
            marks::claim(engine, &request.key, &request.owner, request.epoch).await?;
            return Ok((standing, false));
        }
        return finish(engine, request, &standing.id, false).await.map(|container| (container, false));
    }
    let marks = marks::of_key(engine, &request.key).await?;
    if marks.epoch > request.epoch {
        return Err(RemoteError::StaleEpoch { given: request.epoch, accepted: marks.epoch });
    }
    if marks.sealed {
        return Err(sealed());
    }
    let (options, plan) = planned(engine, plugin, request).await?;
    let archive = match options.load.as_str() {
        "" => None,
        load => {
            let path = format!("local/{load}");
            let file = request.bundle.files.iter().find(|f| f.path == path);
            let file = file.ok_or_else(|| {
                RemoteError::wrong_request(format!("config.load = {load:?} is not among the task's files"))
            })?;
            Some(Archive::Bytes(file.data.clone()))
        }
    };
    let tell = |message: String| tracing::info!(slot = request.slot, "{message}");
    volumes::present(engine, &request.task).await?;
    image::ensure(engine, &options, plugin, archive, &tell).await.map_err(driver_error)?;
    let made = engine
        .post::<Created>("make the container", &format!("/containers/create?name={}", encode(&name)), &plan.body)
        .await;
    let (id, created) = match made {
        Ok(made) => (made.id, true),
        // Another call with the key was faster: it is that one's container.
        Err(e) if e.is_conflict() => {
            let standing = inspect(engine, &name).await.map_err(answer)?;
            owned(&standing.config.labels, &request.key, &request.owner)?;
            if standing.state.status != "created" {
                return Ok((standing, false));
            }
            (standing.id, false)
        }
        Err(e) => return Err(answer(e)),
    };
    finish(engine, request, &id, created).await.map(|container| (container, created))
}

/// From a made container to a running one. `new`: nobody else has had it.
async fn finish(engine: &Engine, request: &Ensure, id: &str, new: bool) -> Result<Container, RemoteError> {
    let marks = marks::claim(engine, &request.key, &request.owner, request.epoch).await?;
    if marks.sealed {
        unseen::discard(engine, &request.key, id).await?;
        return Err(sealed());
    }
    let given_up = |why: RemoteError| async move {
        // It has never run, so nothing is lost, unless another manager has asked for its start meanwhile; what stays is
        // found by its key.
        if let Err(left) = unseen::discard(engine, &request.key, id).await {
            tracing::warn!(container = id, error = %left, "a container that could not be started stays");
        }
        why
    };
    // What was to start already has its files.
    if new || !marks::start_noted(engine, &request.key, id).await? {
        let doing = "bring the task's files into the container";
        let files = async {
            request.bundle.verify()?;
            archives(&request.bundle.files, FileOwner::of(&request.task.user))
        };
        let all = match files.await {
            Ok(all) => all,
            Err(wrong) => return Err(given_up(wrong).await),
        };
        for (dir, archive) in all {
            let body = streamed(futures::stream::once(async move { Ok(bytes::Bytes::from(archive)) }));
            let path = format!("{}/archive?path=/{dir}", container_path(id));
            let answered =
                engine.upload(doing, Method::PUT, &path, Some(body), None, UPLOAD_WITHIN).await.map_err(answer)?;
            answered.collect().await.map_err(|e| answer(engine.away(doing, e)))?;
        }
    }
    // Also where another manager has asked for it: it takes its own mark away when it is refused.
    marks::note_start(engine, &request.key, &request.owner, request.epoch, id).await?;
    // Another call with the key may have started it meanwhile, and it may have ended: an engine would start it once
    // more.
    let standing = inspect(engine, id).await.map_err(answer)?;
    if standing.state.status != "created" {
        return Ok(standing);
    }
    match engine.act("start the container", &format!("{}/start", container_path(id))).await {
        Ok(_) => {}
        Err(e) if unseen::runs_unseen(&e.to_string()) => return Err(unseen::refused(id, e)),
        Err(e) => {
            if e.is_answer() {
                marks::unnote_start(engine, &request.key, request.epoch, id).await;
            }
            // A job that cannot run as it is: a program that does not exist, a network that nobody has defined.
            return Err(if e.is_away() { answer(e) } else { given_up(RemoteError::wrong_request(e)).await });
        }
    }
    inspect(engine, id).await.map_err(answer)
}

async fn planned(engine: &Engine, plugin: &PluginConfig, request: &Ensure) -> Result<(TaskOptions, Plan), RemoteError> {
    let task = &request.task;
    let options = TaskOptions::read(&task.msgpack_driver_config).map_err(driver_error)?;
    let security_opt = with_profiles(&options.security_opt).map_err(driver_error)?;
    let mut plugin = plugin.clone();
    // The engine keeps the log for whoever manages the task: as much of it as the job says.
    if let (None, Some(policy)) = (&plugin.logging, &task.drover_log) {
        plugin.logging = Some(logging(policy));
    }
    let mut labels: BTreeMap<String, String> = [
        (LABEL_OWNER, request.owner.clone()),
        (LABEL_KEY, request.key.clone()),
        (LABEL_SLOT, request.slot.clone()),
        (LABEL_EPOCH, request.epoch.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let published = ports::published(task, &options, Place::Remote).map_err(driver_error)?;
    if !published.is_empty() {
        let inside = serde_json::to_string(&ports::inside(&published)).map_err(RemoteError::wrong_request)?;
        labels.insert(LABEL_PORTS.into(), inside);
    }
    let api = engine.api().await.map_err(answer)?;
    let wanted = Wanted {
        task,
        options: &options,
        plugin: &plugin,
        place: Place::Remote,
        api,
        labels: &labels,
        security_opt: &security_opt,
    };
    let plan = plan(wanted).map_err(driver_error)?;
    // Refused before anything is made.
    request.bundle.verify()?;
    archives(&request.bundle.files, FileOwner::of(&task.user))?;
    Ok((options, plan))
}

fn logging(policy: &driver_sdk::LogPolicy) -> Logging {
    if policy.disabled {
        return Logging { kind: "none".into(), ..Logging::default() };
    }
    let config = [
        ("max-file", policy.max_files.max(1).to_string()),
        ("max-size", policy.max_file_size_bytes.max(1 << 20).to_string()),
    ];
    Logging { kind: "json-file".into(), config: config.map(|(k, v)| (k.to_owned(), v)).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_keeps_as_much_log_as_the_job_says() {
        let policy = driver_sdk::LogPolicy { max_files: 3, max_file_size_bytes: 5 << 20, ..Default::default() };
        let found = logging(&policy);
        assert_eq!(
            (found.kind.as_str(), found.config["max-file"].as_str(), found.config["max-size"].as_str()),
            ("json-file", "3", "5242880")
        );
        assert_eq!(logging(&driver_sdk::LogPolicy { disabled: true, ..policy }).kind, "none");
    }
}
