//! Artifacts of a task, fetched before the call of its driver. A process of its own fetches each. An artifact counts
//! only when it is complete on disk.
//!
//! ```text
//! <task>/private/artifacts/<digest of the artifact>.done   it is in its place; never fetched again in this allocation
//! <task>/private/artifacts/<digest>.secret.done            the same for one below `secrets`, while that memory lasts
//! <task>/private/artifacts/stage-<run>-<n>                 of a fetch under way; every later fetch removes it
//! ```

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::unix::process::ExitStatusExt,
    path::{Component, Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use artifact::{Mode, Report, Source, Spec};
use driver_host::FsIsolation;
use driver_proto::handshake::SOCKET_DIR_KEY;
use hcl_lang::{Vars, interpolate};
use host::{
    clock::now_ns,
    dirs::{AllocDirs, find_user},
    env::PathView,
    leftovers::{self, Places},
    node_env::{NodeEnv, TaskSpec},
};
use lifecycle::alloc::{events, inbox::Inbox, machine::StartFailure};
use model::task::Artifact;
use node_config::ArtifactConfig;
use sha2::{Digest, Sha256};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{
    hook::{Given, Hook, Prepared, Starting},
    process_group::Group,
};

/// Suffix of the marks of artifacts that are in memory only.
const SECRET_DONE: &str = ".secret.done";
/// Variables of the agent that the programs of a fetch need.
const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// An artifact with all its variables replaced.
struct Wanted {
    source: Source,
    mode: Mode,
    headers: BTreeMap<String, String>,
    insecure: bool,
    destination: Vec<String>,
    owner: Option<(u32, u32)>,
    /// Its source as errors and events name it: without options, which may hold secrets.
    shown: String,
    /// Tells it from the task's other artifacts.
    digest: String,
}

/// The task that a fetch serves, and where the files go.
pub struct Fetching<'a> {
    /// The task.
    pub spec: TaskSpec<'a>,
    /// Directories of the allocation. The path identifies the processes of the fetch.
    pub dirs: AllocDirs,
    /// File system isolation of its driver.
    pub isolation: FsIsolation,
    /// The artifacts go to another runtime. Then the directories are new, and only `local` travels.
    pub travels: bool,
    /// The inbox of the allocation's loop, for the event that a fetch begins. `None`: the event was sent before.
    pub tell: Option<&'a Inbox>,
}

/// Fetches the artifacts of tasks.
pub struct Artifacts {
    /// The agent's settings of fetches.
    pub settings: ArtifactConfig,
    /// For the names in sources and destinations.
    pub env: NodeEnv,
    /// Places of this node, which identify the processes of a fetch.
    pub places: Places,
    /// Socket directory; in its environment it identifies a process as this node's.
    pub socket_dir: PathBuf,
}

impl Hook for Artifacts {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        let Starting { place, spec, run, capabilities, interrupted, .. } = *starting;
        let isolation = capabilities.fs_isolation;
        let fetching = Fetching { spec, dirs: place.dirs.clone(), isolation, travels: false, tell: Some(&place.inbox) };
        Box::pin(async move { self.fetch(&fetching, run, interrupted).await })
    }
}

impl Artifacts {
    /// Fetches the missing artifacts. Ends at once when interrupted or dropped, and leaves no process.
    ///
    /// # Errors
    /// Which artifact could not be fetched, why, and whether another attempt may succeed.
    pub async fn fetch(
        &self,
        fetching: &Fetching<'_>,
        run: &str,
        interrupted: &CancellationToken,
    ) -> Result<(), StartFailure> {
        let Fetching { spec: TaskSpec { alloc, task, .. }, dirs, .. } = fetching;
        if task.artifacts.is_empty() {
            return Ok(());
        }
        // The host's paths.
        let vars = self.env.vars(fetching.spec, &dirs.task(&task.name), PathView::Host);
        let wanted: Vec<Wanted> = task
            .artifacts
            .iter()
            .map(|a| read(fetching, a, &vars).map_err(|why| StartFailure::Artifact { why, recoverable: false }))
            .collect::<Result<_, _>>()?;
        let records = dirs.task(&task.name).root.join("private/artifacts");
        let setup = |e: io::Error| StartFailure::Setup {
            why: format!("prepare {}: {e}", records.display()),
            recoverable: true,
        };
        let missing: Vec<&Wanted> = wanted.iter().filter(|w| !done(&records, w).exists()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(inbox) = fetching.tell {
            inbox.note(&task.name, events::downloading(now_ns()));
        }
        if !fetching.travels {
            // Ends the fetches of a former agent: nothing else may use the staging directories.
            leftovers::end_task(&self.places, alloc.id, &task.name).await;
        }
        fs::create_dir_all(&records).and_then(|()| remove_stages(&records)).map_err(setup)?;
        for (n, wanted) in missing.into_iter().enumerate() {
            let stage = format!("stage-{}-{n}", run.rsplit('/').next().unwrap_or_default());
            fs::create_dir(records.join(&stage)).map_err(setup)?;
            let outcome = self.fetch_one(fetching, wanted, &stage, interrupted).await;
            // The next attempt, or the end of the allocation, removes a stage that remains.
            let _ = remove_stages(&records);
            outcome?;
            let marker = done(&records, wanted);
            blocking::spawn(move || mark(&marker)).await.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(setup)?;
        }
        Ok(())
    }

    async fn fetch_one(
        &self,
        fetching: &Fetching<'_>,
        wanted: &Wanted,
        stage: &str,
        interrupted: &CancellationToken,
    ) -> Result<(), StartFailure> {
        let Fetching { spec: TaskSpec { alloc, task, .. }, dirs, .. } = fetching;
        let settings = &self.settings;
        let failed = |why: String, recoverable| StartFailure::Artifact {
            why: format!("failed to download artifact {:?}: {why}", wanted.shown),
            recoverable,
        };
        let Some(program) = &settings.program else {
            return Err(failed("this node has no program that fetches".into(), false));
        };
        let spec = Spec {
            source: wanted.source.clone(),
            mode: wanted.mode,
            headers: wanted.headers.clone(),
            insecure: wanted.insecure,
            root: dirs.root.clone(),
            destination: wanted.destination.clone(),
            staging: [&*task.name, "private", "artifacts", stage].map(str::to_owned).to_vec(),
            owner: wanted.owner,
            limits: settings.limits.clone(),
            isolate: settings.isolate,
            extra_paths: settings.extra_paths.clone(),
        };
        let (after, option) = spec.timeout();
        let mut line = serde_json::to_vec(&spec).unwrap_or_default();
        line.push(b'\n');
        let mut command = Command::new(&program.program);
        command.args(&program.args).current_dir(dirs.task(&task.name).root).env_clear();
        let passed = INHERITED.iter().copied().chain(settings.environment.iter().map(String::as_str));
        command.envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))));
        // These variables and the directory identify the process as the task's and this node's, should this agent die.
        command.env("NOMAD_ALLOC_ID", alloc.id.to_string()).env("NOMAD_TASK_NAME", OsStr::new(&*task.name));
        command.env(SOCKET_DIR_KEY, &self.socket_dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(|e| failed(format!("start {}: {e}", program.program.display()), true))?;
        let mut group = Group::of(child);
        let talk = group.talk(&line);
        let said = tokio::select! {
            biased;
            () = interrupted.cancelled() => Err(StartFailure::Interrupted),
            () = tokio::time::sleep(after) => {
                Err(failed(format!("it was not complete after {}s ({option} of the agent's \
                    artifact block)", after.as_secs_f64()), true))
            }
            said = talk => Ok(said),
        };
        let status = group.end(said.is_ok()).await;
        match outcome(&said?, status) {
            Report::Done { files, bytes, not_isolated } => {
                if !not_isolated.is_empty() {
                    tracing::warn!(alloc = %alloc.id, task = %task.name, artifact = wanted.shown, why = not_isolated,
                        "fetched without full isolation");
                }
                tracing::info!(alloc = %alloc.id, task = %task.name, artifact = wanted.shown, files, bytes,
                    "artifact fetched");
                Ok(())
            }
            Report::Failed { why, recoverable } => Err(failed(why, recoverable)),
        }
    }
}

fn read(fetching: &Fetching<'_>, artifact: &Artifact, vars: &Vars) -> Result<Wanted, String> {
    let Fetching { spec: TaskSpec { task, .. }, dirs, isolation, travels, .. } = fetching;
    let Artifact { source, options, headers, mode, insecure, destination, chown } = artifact;
    let replaced = |map: &BTreeMap<String, String>| {
        map.iter().map(|(k, v)| (k.clone(), interpolate(v, vars))).collect::<BTreeMap<_, _>>()
    };
    let text = interpolate(source.as_deref().unwrap_or_default(), vars);
    let shown = without_secrets(&text);
    let failed = |why: String| format!("artifact {shown:?}: {why}");
    let options = replaced(options);
    let headers = replaced(headers);
    let source = Source::parse(&text, &options).map_err(|e| failed(e.to_string()))?;
    let parsed_mode = Mode::parse(mode.as_deref().unwrap_or_default()).map_err(|e| failed(e.to_string()))?;
    let destination = interpolate(destination.as_deref().unwrap_or("local/"), vars);
    let below = destination_below(&dirs.root, &task.name, *isolation, &destination).map_err(failed)?;
    if *travels && below.get(1).is_none_or(|name| below[0] != *task.name || name != "local") {
        return Err(failed(format!(
            "destination {destination:?}: only what is below local/ travels to where the task runs"
        )));
    }
    let owner = if *chown { Some(owner(&interpolate(&task.user, vars)).map_err(failed)?) } else { None };
    let identity =
        serde_json::to_vec(&(&text, &options, &headers, parsed_mode, insecure, &below, owner)).unwrap_or_default();
    let digest = Sha256::digest(identity).iter().take(16).map(|b| format!("{b:02x}")).collect();
    Ok(Wanted {
        source,
        mode: parsed_mode,
        headers,
        insecure: *insecure == Some(true),
        destination: below,
        owner,
        shown,
        digest,
    })
}

/// A source as people may see it: without options, user and password.
fn without_secrets(source: &str) -> String {
    let plain = source.split('?').next().unwrap_or_default();
    let Some((scheme, rest)) = plain.split_once("://") else { return plain.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

fn owner(user: &str) -> Result<(u32, u32), String> {
    if user.is_empty() {
        return Err("chown gives the files to the task's user, and the task names none".into());
    }
    find_user(user).ok_or_else(|| format!("chown: this node has no user {user:?}"))
}

/// The destination as names below the allocation's directory: in the task's directory, or in the shared one.
fn destination_below(
    root: &Path,
    task: &str,
    isolation: FsIsolation,
    destination: &str,
) -> Result<Vec<String>, String> {
    let path = Path::new(destination);
    // `${NOMAD_TASK_DIR}` and the like are host paths.
    let (below, in_task) = match path.strip_prefix(root) {
        Ok(below) => (below, false),
        Err(_) => (path, true),
    };
    let leaves = || format!("destination {destination:?} leaves the directories of the task");
    let mut names: Vec<String> = Vec::new();
    if in_task {
        names.push(task.to_owned());
    }
    for part in below.components() {
        match part {
            Component::Normal(name) => names.push(name.to_str().ok_or_else(leaves)?.to_owned()),
            Component::ParentDir => drop(names.pop().ok_or_else(leaves)?),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    // Where tasks see `/alloc`, it is the shared directory.
    let sees_alloc = in_task && !matches!(isolation, FsIsolation::None | FsIsolation::Unveil);
    if sees_alloc && names.get(1).is_some_and(|name| name == "alloc") {
        names.remove(0);
    }
    match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["alloc", ..] => Ok(names),
        [first, "private", ..] if *first == task => Err(format!("destination {destination:?} is the node's own")),
        [first, ..] if *first == task => Ok(names),
        _ => Err(leaves()),
    }
}

fn done(records: &Path, wanted: &Wanted) -> PathBuf {
    let secret = wanted.destination.get(1).is_some_and(|name| name == "secrets");
    records.join(format!("{}{}", wanted.digest, if secret { SECRET_DONE } else { ".done" }))
}

/// Removes the marks of artifacts below `secrets`, because the agent is about to make that directory anew.
pub(super) fn forget_secret(task_root: &Path) -> io::Result<()> {
    let records = task_root.join("private/artifacts");
    let Ok(entries) = fs::read_dir(&records) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(SECRET_DONE) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn remove_stages(records: &Path) -> io::Result<()> {
    for entry in fs::read_dir(records)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("stage-") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Marks the artifact as done. It is already durable on disk.
fn mark(marker: &Path) -> io::Result<()> {
    fs::File::create(marker)?.sync_all()?;
    let parent = marker.parent().ok_or_else(|| io::Error::other("it has no directory"))?;
    fs::File::open(parent)?.sync_all()
}

/// The report of the process; without one, its exit status is the only information.
fn outcome(said: &[u8], status: Option<ExitStatus>) -> Report {
    if let Ok(report) = serde_json::from_slice(said) {
        return report;
    }
    let how = match status {
        Some(status) if status.signal().is_some() => format!("signal {}", status.signal().unwrap_or_default()),
        Some(status) => status.to_string(),
        None => "an unknown end".to_owned(),
    };
    Report::Failed {
        why: format!(
            "the fetching process ended without an answer ({how}); it may have asked for more memory than it gets"
        ),
        recoverable: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_stay_in_the_task_or_in_what_is_shared() {
        let root = Path::new("/a/id");
        for (destination, isolation, expected) in [
            ("local/", FsIsolation::None, Some("web/local")),
            ("", FsIsolation::None, Some("web")),
            ("/local/x", FsIsolation::None, Some("web/local/x")),
            ("local/../secrets/k", FsIsolation::None, Some("web/secrets/k")),
            ("/a/id/web/local/x", FsIsolation::None, Some("web/local/x")),
            ("/a/id/alloc/data", FsIsolation::None, Some("alloc/data")),
            ("../alloc/data", FsIsolation::None, Some("alloc/data")),
            ("/alloc/data", FsIsolation::Chroot, Some("alloc/data")),
            ("alloc/data", FsIsolation::Image, Some("alloc/data")),
            ("alloc/data", FsIsolation::None, Some("web/alloc/data")),
            ("..", FsIsolation::None, None),
            ("../..", FsIsolation::None, None),
            ("../other/local", FsIsolation::None, None),
            ("/a/id/other", FsIsolation::None, None),
            ("/a/id", FsIsolation::None, None),
            ("private/executor", FsIsolation::None, None),
            ("/a/id/web/private/x", FsIsolation::None, None),
            ("../../../etc", FsIsolation::None, None),
        ] {
            let found = destination_below(root, "web", isolation, destination).ok().map(|names| names.join("/"));
            assert_eq!(found.as_deref(), expected, "{destination}");
        }
    }

    #[test]
    fn sources_are_shown_without_secrets() {
        assert_eq!(without_secrets("git::https://user:secret@h/r.git?sshkey=secret"), "git::https://h/r.git");
        assert_eq!(without_secrets("git@h:o/r.git?ref=x"), "git@h:o/r.git");
    }

    #[test]
    fn a_process_without_an_answer_says_how_it_ended() {
        let done = Report::Done { files: 1, bytes: 2, not_isolated: String::new() };
        assert_eq!(outcome(&serde_json::to_vec(&done).expect("json"), None), done);
        let Report::Failed { why, recoverable } = outcome(b"", Some(ExitStatus::from_raw(6))) else { panic!("failed") };
        assert!(why.contains("signal 6") && recoverable, "{why}");
    }
}
