//! What managers leave at the engine for each other: the newest epoch of an instance, that a start of its container was
//! asked for, and that a key is sealed.
//!
//! Labels of a container cannot change, so these are volumes without content: made by name in one step, found by label
//! in one call, in nobody's way. A mark is made before anything is done under it, and looked for before anything is
//! done. Between looking and doing lies a moment that the engine offers no way to close; the driver does not claim
//! conditional writes for that reason.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use driver_sdk::RemoteError;
use serde_json::json;

use super::names::{LABEL_EPOCH, LABEL_KEY, LABEL_OWNER, answer, object_name};
use crate::engine::types::{Volume, Volumes, time};
use crate::engine::{Engine, encode, filters};

const LABEL_MARK: &str = "drover.mark";
const LABEL_CONTAINER: &str = "drover.container";
const SEALED: &str = "sealed";
const EPOCH: &str = "epoch";
const STARTED: &str = "started";
/// A mark only has to outlive the last call of a manager that lost its lease long ago.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Clone, Copy)]
enum Mark<'a> {
    Epoch,
    Sealed,
    /// The start of this container was asked for.
    Started(&'a str),
}

/// What is known of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Newest epoch that was used.
    pub(crate) epoch: u64,
    /// Nothing is created with the key any more.
    pub(crate) sealed: bool,
}

fn of(volumes: &[Volume]) -> HashMap<String, Marks> {
    let mut all: HashMap<String, Marks> = HashMap::new();
    for volume in volumes {
        let (Some(key), Some(mark)) = (volume.labels.get(LABEL_KEY), volume.labels.get(LABEL_MARK)) else {
            continue;
        };
        let marks = all.entry(key.clone()).or_default();
        marks.sealed |= mark == SEALED;
        let epoch = volume.labels.get(LABEL_EPOCH).and_then(|e| e.parse().ok()).unwrap_or(0);
        marks.epoch = marks.epoch.max(epoch);
    }
    all
}

async fn volumes(engine: &Engine, label: &str) -> Result<Vec<Volume>, RemoteError> {
    let path = format!("/volumes?filters={}", filters(&[("label", label)]));
    let found: Volumes = engine.get("look for marks of managers", &path).await.map_err(answer)?;
    Ok(found.volumes)
}

/// Marks of every key.
pub(crate) async fn all(engine: &Engine) -> Result<HashMap<String, Marks>, RemoteError> {
    Ok(of(&volumes(engine, LABEL_MARK).await?))
}

/// Marks of one key.
pub(crate) async fn of_key(engine: &Engine, key: &str) -> Result<Marks, RemoteError> {
    let found = volumes(engine, &format!("{LABEL_KEY}={key}")).await?;
    Ok(of(&found).remove(key).unwrap_or_default())
}

async fn make(engine: &Engine, key: &str, owner: &str, epoch: u64, mark: Mark<'_>) -> Result<(), RemoteError> {
    let (kind, suffix, container) = match mark {
        Mark::Epoch => (EPOCH, format!("{EPOCH}-{epoch}"), ""),
        Mark::Sealed => (SEALED, SEALED.to_owned(), ""),
        Mark::Started(container) => (STARTED, start_suffix(container, epoch), container),
    };
    let mut body = json!({
        "Name": format!("{}-{suffix}", object_name(key)),
        "Labels": {LABEL_KEY: key, LABEL_OWNER: owner, LABEL_MARK: kind, LABEL_EPOCH: epoch.to_string()},
    });
    if !container.is_empty() {
        body["Labels"][LABEL_CONTAINER] = container.into();
    }
    engine
        .post::<serde_json::Value>("leave a mark for other managers", "/volumes/create", &body)
        .await
        .map(drop)
        .map_err(answer)
}

async fn remove(engine: &Engine, volume: &Volume) {
    // What stays is removed by the next sweep.
    if let Err(error) = engine.delete("remove a mark", &format!("/volumes/{}", encode(&volume.name))).await {
        tracing::debug!(volume = volume.name, %error, "the mark stays");
    }
}

fn refuse_stale(found: Marks, epoch: u64) -> Result<(), RemoteError> {
    if found.epoch > epoch {
        return Err(RemoteError::StaleEpoch { given: epoch, accepted: found.epoch });
    }
    Ok(())
}

/// Takes the key over with this epoch, or refuses it because a newer one was used.
pub(crate) async fn claim(engine: &Engine, key: &str, owner: &str, epoch: u64) -> Result<Marks, RemoteError> {
    let found = of_key(engine, key).await?;
    refuse_stale(found, epoch)?;
    if found.epoch == epoch {
        return Ok(found);
    }
    make(engine, key, owner, epoch, Mark::Epoch).await?;
    // Of two that come at once the newer one wins.
    let volumes = volumes(engine, &format!("{LABEL_KEY}={key}")).await?;
    let found = of(&volumes).remove(key).unwrap_or_default();
    refuse_stale(found, epoch)?;
    for old in &volumes {
        let of_epoch = old.labels.get(LABEL_EPOCH).and_then(|e| e.parse().ok()).unwrap_or(epoch);
        if old.labels.get(LABEL_MARK).is_some_and(|m| m == EPOCH) && of_epoch < epoch {
            remove(engine, old).await;
        }
    }
    Ok(found)
}

/// From now on nothing is created with the key.
pub(crate) async fn seal(engine: &Engine, key: &str, owner: &str, epoch: u64) -> Result<(), RemoteError> {
    make(engine, key, owner, epoch, Mark::Sealed).await
}

/// One for each manager: what one of them hears says nothing about the start of another.
fn start_suffix(container: &str, epoch: u64) -> String {
    format!("{STARTED}-{}-{epoch}", container.get(..12).unwrap_or(container))
}

/// From now on the container may run, even when its engine says that it was only created: until the answer to the start
/// is known.
pub(crate) async fn note_start(
    engine: &Engine,
    key: &str,
    owner: &str,
    epoch: u64,
    container: &str,
) -> Result<(), RemoteError> {
    make(engine, key, owner, epoch, Mark::Started(container)).await
}

/// Whether a start of the container was asked for that nobody has heard refused.
pub(crate) async fn start_noted(engine: &Engine, key: &str, container: &str) -> Result<bool, RemoteError> {
    let of_key = volumes(engine, &format!("{LABEL_KEY}={key}")).await?;
    Ok(of_key.iter().any(|volume| volume.labels.get(LABEL_CONTAINER).is_some_and(|noted| noted == container)))
}

/// The engine has refused the start that was asked for under this epoch.
pub(crate) async fn unnote_start(engine: &Engine, key: &str, epoch: u64, container: &str) {
    let name = format!("{}-{}", object_name(key), start_suffix(container, epoch));
    remove(engine, &Volume { name, ..Volume::default() }).await;
}

/// The instance is forgotten: its epochs and its start go, the seal stays for its time.
pub(crate) async fn retire(engine: &Engine, key: &str) -> Result<(), RemoteError> {
    for volume in volumes(engine, &format!("{LABEL_KEY}={key}")).await? {
        if volume.labels.get(LABEL_MARK).is_some_and(|m| m == EPOCH || m == STARTED) {
            remove(engine, &volume).await;
        }
    }
    Ok(())
}

fn is_over(volume: &Volume, now: SystemTime) -> bool {
    let age = time(&volume.created_at).and_then(|at| now.duration_since(at).ok());
    volume.labels.contains_key(LABEL_MARK) && age.is_some_and(|age| age > KEPT_FOR)
}

/// Removes seals whose time is over, and other marks of that age of which no container is left.
pub(crate) async fn sweep(engine: &Engine, live: &[String]) -> Result<(), RemoteError> {
    let now = SystemTime::now();
    for volume in volumes(engine, LABEL_MARK).await? {
        if is_over(&volume, now) && !volume.labels.get(LABEL_KEY).is_some_and(|key| live.contains(key)) {
            remove(engine, &volume).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(key: &str, mark: &str, epoch: &str, created_at: &str) -> Volume {
        let labels =
            [(LABEL_KEY, key), (LABEL_MARK, mark), (LABEL_EPOCH, epoch)].map(|(k, v)| (k.to_owned(), v.to_owned()));
        Volume { name: format!("{key}-{mark}-{epoch}"), created_at: created_at.into(), labels: labels.into() }
    }

    #[test]
    fn the_newest_mark_counts() {
        let mut foreign = volume("k", EPOCH, "9", "");
        foreign.labels.remove(LABEL_MARK);
        let found = of(&[
            volume("k", EPOCH, "2", ""),
            volume("k", EPOCH, "5", ""),
            volume("l", SEALED, "3", ""),
            volume("m", EPOCH, "x", ""),
            foreign,
        ]);
        assert_eq!(found["k"], Marks { epoch: 5, ..Marks::default() });
        assert_eq!(found["l"], Marks { epoch: 3, sealed: true });
        assert_eq!(found["m"], Marks::default());
        assert!(refuse_stale(found["k"], 5).is_ok() && refuse_stale(found["k"], 6).is_ok());
        assert_eq!(refuse_stale(found["k"], 4), Err(RemoteError::StaleEpoch { given: 4, accepted: 5 }));
    }

    #[test]
    fn marks_outlive_late_calls() {
        let now = time("2026-11-20T00:00:00Z").expect("a time");
        for (at, over) in [
            ("2026-11-19T00:00:00Z", false),
            ("2026-11-12T00:00:00Z", true),
            ("2026-12-01T00:00:00Z", false),
            ("", false),
        ] {
            assert_eq!(is_over(&volume("k", SEALED, "1", at), now), over, "{at}");
        }
    }
}
