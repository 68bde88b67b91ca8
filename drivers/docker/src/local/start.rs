//! Starting and ending containers.
//!
//! The name is of the allocation's task, so the engine itself refuses a second container of it, whoever is killed when.
//! The label says which start made the container: the same start finds its own again, a later start removes what an
//! earlier one has left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::{Error, NetworkOverride, StopTask, TaskConfig};

use super::task::{State, local_dir};
use super::{Shared, Site, failure};
use crate::create::{LABEL_NODE, LABEL_TASK_ID, Place, Plan, Wanted, plan};
use crate::engine::types::{Container, Created, Listed};
use crate::engine::{Engine, EngineError, encode, filters};
use crate::image::{self, Archive, archive_path};
use crate::mounts::look_at;
use crate::options::TaskOptions;
use crate::ports;
use crate::secure::with_profiles;
use crate::watch::{self, Monitor, inspect};

const DEFAULT_STOP_SIGNAL: &str = "SIGTERM";
/// How long a kill may take to show.
const DEAD_WITHIN: Duration = Duration::from_secs(30);
const ABSENT_WITHIN: Duration = Duration::from_secs(60);

/// A started container.
pub(crate) struct Started {
    pub(crate) state: State,
    pub(crate) network: Option<NetworkOverride>,
}

/// The container's name: letters, digits and `_.-`.
pub(crate) fn container_name(task: &TaskConfig) -> String {
    let text = format!("{}-{}", task.name, task.alloc_id);
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) { name } else { format!("t{name}") }
}

fn refused(error: EngineError) -> Error {
    match error {
        // A port may be free later, the engine may be there later.
        e if e.is_away() => Error::recoverable(e),
        e => Error::failed(e),
    }
}

/// From a task to a running container.
pub(crate) async fn start(site: &Site, shared: &Arc<Shared>, task: &TaskConfig) -> Result<Started, Error> {
    let options = TaskOptions::read(&task.msgpack_driver_config)?;
    let security_opt = with_profiles(&options.security_opt)?;
    let engine = &site.engine;
    let api = engine.api().await.map_err(Error::recoverable)?;
    let labels: BTreeMap<String, String> =
        [(LABEL_TASK_ID.to_owned(), task.id.clone()), (LABEL_NODE.to_owned(), task.node_id.clone())].into();
    let wanted = Wanted {
        task,
        options: &options,
        plugin: &site.plugin,
        place: Place::Local,
        api,
        labels: &labels,
        security_opt: &security_opt,
    };
    // Refused before anything is fetched or made.
    let plan = plan(wanted)?;
    let tell = |message: String| shared.tell(&task.id, &task.alloc_id, &task.name, message);
    // Its removal can cross our start: then it is fetched once more.
    for last in [false, true] {
        let archive = match options.load.as_str() {
            "" => None,
            load => Some(Archive::File(archive_path(&local_dir(task), load)?)),
        };
        let image = image::ensure(engine, &options, &site.plugin, archive, &tell).await?;
        shared.images.acquire(&image.id, &task.id);
        let attempts = options.container_exists_attempts.unwrap_or(site.plugin.container_exists_attempts);
        let outcome = run(engine, task, &options, &plan, attempts).await;
        let (container, network) = match outcome {
            Ok(found) => found,
            Err(Failed::NoImage(e)) => {
                shared.images.release(&image.id, &task.id);
                if last {
                    return Err(Error::recoverable(e));
                }
                continue;
            }
            Err(Failed::For(error)) => {
                shared.images.release(&image.id, &task.id);
                return Err(error);
            }
        };
        let state = State { container: container.id, image: image.id, fetched: image.fetched, tty: options.tty };
        return Ok(Started { state, network });
    }
    Err(Error::recoverable("the image disappears again and again"))
}

enum Failed {
    NoImage(EngineError),
    For(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::For(error)
    }
}

async fn run(
    engine: &Engine,
    task: &TaskConfig,
    options: &TaskOptions,
    plan: &Plan,
    attempts: u32,
) -> Result<(Container, Option<NetworkOverride>), Failed> {
    let name = container_name(task);
    let id = create(engine, task, attempts, &name, plan).await?;
    let begin = async {
        // Once more: a former container of the task may have run until the engine took the name for this one.
        look_at(&plan.sources, task)?;
        engine.act("start the container", &format!("/containers/{}/start", encode(&id))).await.map_err(refused)?;
        inspect(engine, &id).await.map_err(Error::recoverable)
    };
    match begin.await {
        Ok(container) => {
            let network = network(&container, plan, options);
            Ok((container, network))
        }
        Err(error) => {
            if let Err(left) = remove(engine, &id).await {
                tracing::warn!(container = id, error = %left, "a container that could not be started stays; the next \
                    start of the task removes it");
            }
            Err(error.into())
        }
    }
}

/// Makes the container, or gets the one that a cut-off call of the same start has made.
async fn create(engine: &Engine, task: &TaskConfig, attempts: u32, name: &str, plan: &Plan) -> Result<String, Failed> {
    let body = &plan.body;
    let attempts = attempts.max(1);
    let mut left = attempts;
    loop {
        look_at(&plan.sources, task)?;
        match engine
            .post::<Created>("make the container", &format!("/containers/create?name={}", encode(name)), body)
            .await
        {
            Ok(made) => {
                for warning in made.warnings {
                    tracing::info!(task = task.id, warning, "the engine remarks");
                }
                return Ok(made.id);
            }
            Err(e) if e.is_conflict() => {
                let standing = match inspect(engine, name).await {
                    Ok(standing) => standing,
                    // Gone meanwhile.
                    Err(e) if e.is_absent() && left > 0 => {
                        left -= 1;
                        continue;
                    }
                    Err(e) => return Err(Error::recoverable(e).into()),
                };
                match standing.config.labels.get(LABEL_TASK_ID) {
                    Some(id) if *id == task.id && !watch::has_ended(&standing) => return Ok(standing.id),
                    Some(id) => {
                        tracing::warn!(container = standing.id, earlier = id, "removing what an earlier start has left")
                    }
                    None => {
                        return Err(Error::failed(format!(
                            "a container called {name:?} exists and is not ours: {e}; remove or rename it"
                        ))
                        .into());
                    }
                }
                if left == 0 {
                    let times = if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
                    return Err(Error::recoverable(format!(
                        "{e}; removing what an earlier start has left was tried {times}"
                    ))
                    .into());
                }
                left -= 1;
                remove(engine, &standing.id).await?;
            }
            Err(e) if e.is_absent() => return Err(Failed::NoImage(e)),
            Err(e) => return Err(refused(e).into()),
        }
    }
}

/// Where the task is reached when that is not the node's address.
fn network(container: &Container, plan: &Plan, options: &TaskOptions) -> Option<NetworkOverride> {
    let networks = &container.network_settings.networks;
    let (name, network) = networks.iter().find(|(_, n)| !n.ip.is_empty() || !n.ipv6.is_empty())?;
    let address = if options.advertise_ipv6_address && !network.ipv6.is_empty() { &network.ipv6 } else { &network.ip };
    Some(NetworkOverride {
        port_map: ports::inside(&plan.ports),
        address: address.clone(),
        // On the engine's own bridge nobody else reaches it there.
        auto_advertise: options.advertise_ipv6_address || !matches!(name.as_str(), "bridge" | "default" | "nat"),
    })
}

/// Sends a signal.
pub(crate) async fn signal(engine: &Engine, container: &str, signal: &str) -> Result<(), EngineError> {
    let path = format!("/containers/{}/kill?signal={}", encode(container), encode(signal));
    engine.act(&format!("send {signal}"), &path).await.map(drop)
}

/// Sends the signal, waits, kills; returns the container when it has ended.
pub(crate) async fn stop(
    engine: &Engine,
    monitor: &Monitor,
    container: &str,
    order: &StopTask,
) -> Result<Container, EngineError> {
    let seen = inspect(engine, container).await?;
    if watch::has_ended(&seen) {
        return Ok(seen);
    }
    let own = seen.config.stop_signal.as_str();
    let chosen = match (order.signal.as_str(), own) {
        ("", "") => DEFAULT_STOP_SIGNAL,
        ("", own) => own,
        (given, _) => given,
    };
    match signal(engine, container, chosen).await {
        // A stop must stop: with a name that nobody knows the task still ends.
        Err(e) if e.is_wrong_request() => {
            tracing::warn!(signal = chosen, error = %e, "unknown kill signal, using {DEFAULT_STOP_SIGNAL}");
            ignore_ended(signal(engine, container, DEFAULT_STOP_SIGNAL).await)?;
        }
        other => ignore_ended(other)?,
    }
    if let Ok(ended) = tokio::time::timeout(order.timeout, watch::ended(engine, monitor, container)).await {
        return ended;
    }
    ignore_ended(signal(engine, container, "SIGKILL").await)?;
    match tokio::time::timeout(DEAD_WITHIN, watch::ended(engine, monitor, container)).await {
        Ok(ended) => ended,
        Err(_) => {
            Err(engine.away("stop the container", format!("it was killed and has not ended within {DEAD_WITHIN:?}")))
        }
    }
}

/// A signal that finds nobody any more has nothing left to do.
fn ignore_ended(result: Result<(), EngineError>) -> Result<(), EngineError> {
    match result {
        Err(e) if e.is_conflict() => Ok(()),
        other => other,
    }
}

/// Removes a container, whatever it does; returns when the engine has none any more.
pub(crate) async fn remove(engine: &Engine, container: &str) -> Result<(), Error> {
    let begun = tokio::time::Instant::now();
    loop {
        match engine
            .delete("remove the container", &format!("/containers/{}?force=true&v=true", encode(container)))
            .await
        {
            Err(e) if e.is_absent() => return Ok(()),
            Ok(()) => return Ok(()),
            // Somebody else removes it at this moment.
            Err(e) if e.is_conflict() && begun.elapsed() < ABSENT_WITHIN => {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
            Err(e) => return Err(failure(e)),
        }
    }
}

/// Removes the containers of a start that nobody has a handle of.
pub(crate) async fn remove_by_label(engine: &Engine, task_id: &str) -> Result<(), Error> {
    let label = format!("{LABEL_TASK_ID}={task_id}");
    let path = format!("/containers/json?all=true&filters={}", filters(&[("label", &label)]));
    let found: Vec<Listed> = engine.get("look for containers of the task", &path).await.map_err(failure)?;
    for container in found {
        tracing::warn!(task = task_id, container = container.id, "removing what a start that was cut off has left");
        remove(engine, &container.id).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_such_that_engines_take_them() {
        for (name, wanted) in [("web", "web-0a1b"), ("my task/ä", "my_task__-0a1b"), ("_x", "t_x-0a1b")] {
            let task = TaskConfig { name: name.into(), alloc_id: "0a1b".into(), ..TaskConfig::default() };
            assert_eq!(container_name(&task), wanted);
        }
    }
}
