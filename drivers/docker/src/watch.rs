//! One stream of events per engine tells when to look at a container again.
//!
//! Events only say "look": what they report is taken from the container itself, and after every gap everything is
//! looked at once.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::broadcast;

use crate::engine::types::Container;
use crate::engine::{Engine, EngineError, encode, filters};

/// The code of what was ended by SIGKILL.
const KILLED: i64 = 137;
/// How long the reason of such an end is waited for.
const REASON_WITHIN: Duration = Duration::from_millis(500);
/// Events are lost with their connection, which is seen; this is for what nobody has thought of.
pub(crate) const LOOK_AT_LEAST: Duration = Duration::from_secs(120);
const AGAIN_FIRST: Duration = Duration::from_millis(200);
const AGAIN_MAX: Duration = Duration::from_secs(5);
const EVENT_MAX: usize = 1 << 20;

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This container.
    Container(String),
    /// Everything: events may have been missed.
    All,
}

/// Follows an engine; ends when dropped.
pub(crate) struct Monitor {
    changes: broadcast::Sender<Change>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Monitor {
    /// Begins to follow; `turned` is called when the engine comes or goes.
    pub(crate) fn start(engine: Arc<Engine>, turned: impl Fn() + Send + Sync + 'static) -> Monitor {
        let (changes, _) = broadcast::channel(1024);
        let sender = changes.clone();
        let task = tokio::spawn(async move {
            let mut wait = AGAIN_FIRST;
            loop {
                let mut was_up = false;
                let seen = follow(&engine, &sender, || {
                    was_up = true;
                    turned();
                })
                .await;
                if was_up {
                    tracing::warn!(endpoint = %engine.endpoint(), reason = %seen, "the engine is away");
                    // Another engine, or another release, may come back.
                    engine.forget_version();
                    turned();
                    wait = AGAIN_FIRST;
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(AGAIN_MAX);
            }
        });
        Monitor { changes, task }
    }

    /// Changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }
}

/// One connection's life; says why it ended.
async fn follow(engine: &Engine, changes: &broadcast::Sender<Change>, up: impl FnOnce()) -> EngineError {
    #[derive(Default, Deserialize)]
    struct Event {
        #[serde(default, rename = "Actor")]
        actor: Actor,
    }
    #[derive(Default, Deserialize)]
    struct Actor {
        #[serde(default, rename = "ID")]
        id: String,
    }
    let doing = "follow the engine's events";
    let wanted = [
        ("type", "container"),
        ("event", "start"),
        ("event", "die"),
        ("event", "oom"),
        ("event", "destroy"),
        ("event", "kill"),
    ];
    let mut body = match engine.stream(doing, &format!("/events?filters={}", filters(&wanted))).await {
        Ok(body) => body,
        Err(e) => return e,
    };
    up();
    // Nobody listening is fine.
    let _ = changes.send(Change::All);
    let mut line = Vec::new();
    loop {
        let frame = match body.frame().await {
            None => return engine.away(doing, "the stream has ended"),
            Some(Err(e)) => return engine.away(doing, e),
            Some(Ok(frame)) => frame,
        };
        for byte in frame.data_ref().map(|d| &d[..]).unwrap_or_default() {
            if *byte != b'\n' {
                if line.len() >= EVENT_MAX {
                    return engine.garbage(doing, "an event has no end");
                }
                line.push(*byte);
                continue;
            }
            let change = match serde_json::from_slice::<Event>(&line) {
                Ok(event) if !event.actor.id.is_empty() => Change::Container(event.actor.id),
                _ => Change::All,
            };
            line.clear();
            let _ = changes.send(change);
        }
    }
}

/// Looks at a container.
pub(crate) async fn inspect(engine: &Engine, container: &str) -> Result<Container, EngineError> {
    engine.get(&format!("look at container {container}"), &format!("/containers/{}/json", encode(container))).await
}

/// Whether the container has ended, or will never start.
pub(crate) fn has_ended(container: &Container) -> bool {
    !container.state.running && matches!(container.state.status.as_str(), "exited" | "dead" | "removing")
}

/// Waits for a change that concerns a container, but not for ever; `None` when nothing was heard for so long.
pub(crate) async fn changed(
    changes: &mut broadcast::Receiver<Change>,
    patience: Duration,
    concerns: impl Fn(&str) -> bool,
) -> Option<Change> {
    let relevant = async {
        loop {
            match changes.recv().await {
                Ok(Change::All) | Err(broadcast::error::RecvError::Lagged(_)) => return Change::All,
                Ok(Change::Container(id)) if concerns(&id) => return Change::Container(id),
                Ok(_) => {}
                Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
            }
        }
    };
    tokio::time::timeout(patience, relevant).await.ok()
}

/// Was it killed, and the engine does not say why? It hears of a lack of memory by another way than of the end, on a
/// busy machine after it.
fn may_lack_a_reason(container: &Container) -> bool {
    container.state.exit_code == KILLED && !container.state.oom_killed
}

/// Waits until the container has ended. An engine that is away says nothing about it.
pub(crate) async fn ended(engine: &Engine, monitor: &Monitor, container: &str) -> Result<Container, EngineError> {
    let mut changes = monitor.changes();
    loop {
        match inspect(engine, container).await {
            Ok(seen) if has_ended(&seen) && !may_lack_a_reason(&seen) => return Ok(seen),
            Ok(seen) if has_ended(&seen) => {
                changed(&mut changes, REASON_WITHIN, |id| id == container).await;
                // Whatever is said now; what was seen is as good when there is nothing to be seen any more.
                return Ok(inspect(engine, container).await.ok().filter(has_ended).unwrap_or(seen));
            }
            Ok(_) => {}
            Err(e) if e.is_away() => tracing::debug!(container, error = %e, "cannot look at the container now"),
            Err(e) => return Err(e),
        }
        changed(&mut changes, LOOK_AT_LEAST, |id| id == container).await;
    }
}
