//! Images: found, loaded from a file, pulled; removed again some time after the last task that used them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use driver_sdk::Error;
use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;

use crate::auth;
use crate::config::PluginConfig;
use crate::engine::types::Image;
use crate::engine::{Body, Engine, EngineError, encode, streamed};
use crate::options::TaskOptions;

/// What an unfinished line of progress may hold.
const LINE_MAX: usize = 1 << 20;

/// An image that the engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) id: String,
    /// It was not there before: this driver may remove it again.
    pub(crate) fetched: bool,
}

/// Repository and tag or digest of an image's name.
pub(crate) fn split(image: &str) -> (&str, &str) {
    if let Some((repository, digest)) = image.split_once('@') {
        return (repository, digest);
    }
    match image.rsplit_once(':') {
        // A colon before a slash belongs to the port of the registry.
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (image, "latest"),
    }
}

/// Where an archive for `load` comes from.
pub(crate) enum Archive {
    /// A file on this machine.
    File(PathBuf),
    /// Bytes that travel with the task.
    Bytes(Vec<u8>),
}

fn failure(error: &EngineError) -> Error {
    // Later the registry or the engine may be there; a name that does not exist stays wrong.
    match error {
        e if e.is_absent() || e.is_wrong_request() => Error::failed(e),
        e => Error::recoverable(e),
    }
}

async fn inspect(engine: &Engine, name: &str) -> Result<Option<Image>, EngineError> {
    match engine.get::<Image>(&format!("look at image {name}"), &format!("/images/{}/json", encode(name))).await {
        Ok(image) => Ok(Some(image)),
        Err(e) if e.is_absent() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Makes sure that the engine has the image; `tell` hears what takes time.
pub(crate) async fn ensure(
    engine: &Engine,
    options: &TaskOptions,
    plugin: &PluginConfig,
    archive: Option<Archive>,
    tell: &(dyn Fn(String) + Send + Sync),
) -> Result<Present, Error> {
    let name = options.image.as_str();
    let before = inspect(engine, name).await.map_err(|e| failure(&e))?;
    if let Some(archive) = archive {
        tell(format!("loading image {name} from {}", options.load));
        load(engine, &options.load, archive).await?;
        let image = inspect(engine, name).await.map_err(|e| failure(&e))?;
        let image = image.ok_or_else(|| {
            Error::failed(format!(
                "{} was loaded and holds no image {name:?}; config.image must name one that is in the archive",
                options.load
            ))
        })?;
        return Ok(Present { fetched: before.is_none_or(|b| b.id != image.id), id: image.id });
    }
    let always = options.force_pull || (split(name).1 == "latest" && !name.starts_with("sha256:"));
    match before {
        Some(image) if !always => Ok(Present { id: image.id, fetched: false }),
        before => {
            tell(format!("pulling image {name}"));
            let limit =
                options.image_pull_timeout.filter(|limit| !limit.is_zero()).unwrap_or(plugin.image_pull_timeout);
            let pulling = pull(engine, options, plugin);
            tokio::time::timeout(limit, pulling).await.map_err(|_| {
                Error::recoverable(format!(
                    "pulling image {name} has not ended within {limit:?} (config.image_pull_timeout)"
                ))
            })??;
            let image = inspect(engine, name).await.map_err(|e| failure(&e))?;
            let image = image.ok_or_else(|| Error::recoverable(format!("image {name} was pulled and is not there")))?;
            Ok(Present { fetched: before.is_none_or(|b| b.id != image.id), id: image.id })
        }
    }
}

async fn pull(engine: &Engine, options: &TaskOptions, plugin: &PluginConfig) -> Result<(), Error> {
    let name = options.image.as_str();
    let credentials = match auth::find(name, &options.auth, &plugin.auth).await {
        Ok(credentials) => credentials,
        Err(why) if options.auth_soft_fail => {
            tracing::warn!(image = name, why, "no credentials, pulling without");
            None
        }
        Err(why) => {
            return Err(Error::recoverable(format!(
                "pull image {name}: {why}; config.auth_soft_fail = true goes on without"
            )));
        }
    };
    let (repository, tag) = split(name);
    let doing = format!("pull image {name}");
    let path = format!("/images/create?fromImage={}&tag={}", encode(repository), encode(tag));
    let header = credentials.map(|c| ("X-Registry-Auth", auth::header(&c)));
    let patience = plugin.pull_activity_timeout;
    let answer = engine.upload(&doing, Method::POST, &path, None, header, patience).await.map_err(|e| failure(&e))?;
    finish(&doing, answer, patience).await
}

async fn load(engine: &Engine, name: &str, archive: Archive) -> Result<(), Error> {
    let doing = format!("load images from {name}");
    let body: Body = match archive {
        Archive::File(path) => {
            let file = tokio::fs::File::open(&path)
                .await
                .map_err(|e| Error::failed(format!("config.load: open {}: {e}", path.display())))?;
            streamed(tokio_util::io::ReaderStream::with_capacity(file, 256 << 10))
        }
        Archive::Bytes(bytes) => streamed(futures::stream::once(async move { Ok(Bytes::from(bytes)) })),
    };
    let patience = Duration::from_secs(600);
    let answer = engine
        .upload(&doing, Method::POST, "/images/load?quiet=1", Some(body), None, patience)
        .await
        .map_err(|e| failure(&e))?;
    finish(&doing, answer, patience).await
}

/// The file that `load` names: below the task's `local` directory.
pub(crate) fn archive_path(local: &Path, load: &str) -> Result<PathBuf, Error> {
    let relative = Path::new(load);
    if !relative.components().all(|c| matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir)) {
        return Err(Error::invalid(format!("config.load = {load:?} must be a path below the task's local directory")));
    }
    Ok(local.join(relative))
}

/// Reads the engine's words about its progress to their end; the last word counts.
async fn finish(doing: &str, mut answer: hyper::body::Incoming, patience: Duration) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Word {
        #[serde(default)]
        error: String,
    }
    let mut line = Vec::new();
    loop {
        let frame = tokio::time::timeout(patience, answer.frame()).await;
        let frame =
            frame.map_err(|_| Error::recoverable(format!("{doing}: the engine has said nothing for {patience:?}")))?;
        let Some(frame) = frame else {
            return Ok(());
        };
        let frame = frame.map_err(|e| Error::recoverable(format!("{doing}: the connection broke: {e}")))?;
        for byte in frame.data_ref().map(|d| &d[..]).unwrap_or_default() {
            if *byte != b'\n' && line.len() < LINE_MAX {
                line.push(*byte);
                continue;
            }
            if let Ok(word) = serde_json::from_slice::<Word>(&line)
                && !word.error.is_empty()
            {
                return Err(Error::recoverable(format!("could not {doing}: {}", word.error)));
            }
            line.clear();
        }
    }
}

/// Remembers which tasks use an image, and removes it some time after the last of them if this driver has brought it.
#[derive(Default)]
pub(crate) struct Images {
    used: Mutex<HashMap<String, HashSet<String>>>,
}

impl Images {
    fn used(&self) -> std::sync::MutexGuard<'_, HashMap<String, HashSet<String>>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task uses the image.
    pub(crate) fn acquire(&self, image: &str, task: &str) {
        self.used().entry(image.to_owned()).or_default().insert(task.to_owned());
    }

    /// True when nobody uses the image any more.
    pub(crate) fn release(&self, image: &str, task: &str) -> bool {
        let mut used = self.used();
        let Some(tasks) = used.get_mut(image) else {
            return false;
        };
        let last = tasks.remove(task) && tasks.is_empty();
        if tasks.is_empty() {
            used.remove(image);
        }
        last
    }

    fn is_used(&self, image: &str) -> bool {
        self.used().contains_key(image)
    }

    /// Removes the image after the delay, unless a task uses it again by then.
    pub(crate) fn remove_later(self: &Arc<Self>, engine: Arc<Engine>, image: String, delay: Duration) {
        let images = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            if images.is_used(&image) {
                return;
            }
            match engine.delete(&format!("remove image {image}"), &format!("/images/{}", encode(&image))).await {
                Ok(()) => tracing::info!(image, "image removed"),
                // Somebody else uses it, or has removed it.
                Err(e) if e.is_absent() || e.is_conflict() => {}
                Err(e) => tracing::warn!(image, error = %e, "image not removed"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_registries_do() {
        for (image, wanted) in [
            ("redis", ("redis", "latest")),
            ("redis:7", ("redis", "7")),
            ("host:5000/a", ("host:5000/a", "latest")),
            ("host:5000/a:1", ("host:5000/a", "1")),
            ("a@sha256:00", ("a", "sha256:00")),
        ] {
            assert_eq!(split(image), wanted, "{image}");
        }
    }

    #[test]
    fn archives_lie_below_the_local_directory() {
        assert_eq!(archive_path(Path::new("/t/local"), "a/b.tar"), Ok("/t/local/a/b.tar".into()));
        for wrong in ["../x", "/etc/x", "a/../../x"] {
            assert!(archive_path(Path::new("/t/local"), wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_last_user_frees_an_image() {
        let images = Images::default();
        images.acquire("i", "a");
        images.acquire("i", "b");
        assert!(!images.release("i", "a") && !images.release("i", "a") && images.is_used("i"));
        assert!(images.release("i", "b") && !images.is_used("i") && !images.release("i", "b"));
    }
}
