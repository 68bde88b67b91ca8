//! What of the file system a container shares: directories of the task, host paths, volumes.

use std::path::{Component, Path, PathBuf};

use driver_sdk::{Error, TaskConfig};
use serde_json::{Value, json};

use crate::beneath;
use crate::config::PluginConfig;
use crate::create::Place;
use crate::options::{MountOption, TaskOptions};

/// `Binds` and `Mounts` of a container.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Mounts {
    pub(crate) binds: Vec<String>,
    pub(crate) mounts: Vec<Value>,
    /// Those of them that the job names in the allocation's directory.
    pub(crate) sources: Vec<Source>,
}

/// A source that the job names in the allocation's directory, where tasks may plant links.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    option: &'static str,
    /// As the job has it.
    text: String,
    /// Below the allocation's directory, names only.
    below: PathBuf,
    /// The engine makes it when it is missing: a directory, for `volumes`.
    may_miss: bool,
}

/// Looks whether sources lie where their names say.
///
/// The engine follows a path by itself, with root's rights, when it starts the container. Where the container exists
/// and does not run, the task itself can no longer change its own directories: the engine knows one container of its
/// name. A sibling task can still replace a name below the shared `alloc` after this look and before the engine's.
/// Engines take no descriptors, and a mount of ours need not be visible to the engine, so that moment remains.
pub(crate) fn look_at(sources: &[Source], task: &TaskConfig) -> Result<(), Error> {
    let alloc = Path::new(&task.alloc_dir);
    for source in sources {
        let Source { option, text, below, may_miss } = source;
        let failed = |e: std::io::Error| Error::failed(format!("config.{option}: {text:?}: {e}"));
        // By what it is: a file system may know it by more than one spelling.
        let own = match beneath::at(&task_dir(task).join(OWN)) {
            Ok(own) => Some(own),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(failed(e)),
        };
        let seen = |found: &beneath::Found| match own.as_ref().is_some_and(|own| own.is(found)) {
            true => Err(std::io::Error::other("it is the node's own")),
            false => Ok(()),
        };
        beneath::find(alloc, below, *may_miss, seen).map_err(failed)?;
    }
    Ok(())
}

/// Where the node keeps its own files of a task, in the task's directory.
const OWN: &str = "private";

fn invalid<T>(text: String) -> Result<T, Error> {
    Err(Error::Invalid(text))
}

/// The task's own directory.
pub(crate) fn task_dir(task: &TaskConfig) -> PathBuf {
    Path::new(&task.alloc_dir).join(&task.name)
}

/// A path without `.` and `..`, as text only; `None` when it leaves the root.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    Some(out)
}

/// Which paths below the allocation's directory a job may name: those of the task, but not its directory itself, and
/// those that tasks share. The error says what is wrong with the path.
fn may_be_named(below: &Path, task: &str) -> Result<(), String> {
    let names: Vec<_> = below.iter().map(|name| name.to_string_lossy()).collect();
    match names.iter().map(AsRef::as_ref).collect::<Vec<_>>().as_slice() {
        [] => Err("is the allocation's directory itself, in which the node keeps its own files".to_owned()),
        ["alloc", ..] => Ok(()),
        [first, ..] if *first != task => {
            Err(format!("lies in {first:?}, which is neither the task's directory nor what tasks share (../alloc)"))
        }
        [_] => Err("is the task's directory itself, in which the node keeps its own files".to_owned()),
        [_, OWN, ..] => Err("is the node's own".to_owned()),
        _ => Ok(()),
    }
}

/// A path on the engine's machine that a job names: relative ones lie below the task's directory.
fn host_path(
    source: &str,
    task: &TaskConfig,
    plugin: &PluginConfig,
    place: Place,
    (option, sources): (&'static str, &mut Vec<Source>),
) -> Result<String, Error> {
    let path = Path::new(source);
    if place == Place::Remote {
        if !path.is_absolute() {
            return invalid(format!(
                "config.{option}: {source:?} is relative to the task's directory on this node, which the engine \
                    elsewhere does not have; files \
                 reach it through the task's bundle below /local"
            ));
        }
        if !plugin.volumes.enabled {
            return invalid(format!(
                "config.{option}: paths of the engine's machine such as {source:?} are not allowed; the operator \
                    allows them with \
                 volumes {{ enabled = true }}"
            ));
        }
        return Ok(source.to_owned());
    }
    let joined = if path.is_absolute() { path.to_owned() } else { task_dir(task).join(path) };
    let Some(path) = normal(&joined) else {
        return invalid(format!("config.{option}: {source:?} leads out of the file system"));
    };
    let below = path.strip_prefix(&task.alloc_dir).ok();
    match below {
        // The operator lets jobs name any path.
        Some(_) if plugin.volumes.enabled && Path::new(source).is_absolute() => {}
        Some(below) => {
            may_be_named(below, &task.name)
                .or_else(|why| invalid(format!("config.{option}: {source:?} {why}; name what lies below local/")))?;
            let may_miss = option == "volumes";
            sources.push(Source { option, text: source.to_owned(), below: below.to_owned(), may_miss });
        }
        None if plugin.volumes.enabled => {}
        None => {
            return invalid(format!(
                "config.{option}: {source:?} lies outside of the allocation's directory; the operator allows that \
                    with volumes {{ enabled = true }}"
            ));
        }
    }
    Ok(path.display().to_string())
}

/// One entry of `Binds`.
fn bind(source: &str, target: &str, mode: &str, plugin: &PluginConfig) -> Result<String, Error> {
    labelled(source, target, mode, plugin.volumes.selinuxlabel.as_str())
}

fn labelled(source: &str, target: &str, mode: &str, label: &str) -> Result<String, Error> {
    if source.contains(':') || target.contains(':') {
        return invalid(format!(
            "a bind of {source:?} to {target:?} cannot be expressed because of the colon; use a `mount` block"
        ));
    }
    let modes: Vec<&str> = mode.split(',').chain([label]).filter(|m| !m.is_empty()).collect();
    Ok(match modes.is_empty() {
        true => format!("{source}:{target}"),
        false => format!("{source}:{target}:{}", modes.join(",")),
    })
}

/// All that the task's container sees besides its image.
pub(crate) fn mounts(
    task: &TaskConfig,
    options: &TaskOptions,
    plugin: &PluginConfig,
    place: Place,
) -> Result<Mounts, Error> {
    let mut out = Mounts::default();
    match place {
        Place::Local => {
            let dir = task_dir(task);
            for (source, target) in [
                (Path::new(&task.alloc_dir).join("alloc"), "/alloc"),
                (dir.join("local"), "/local"),
                (dir.join("secrets"), "/secrets"),
            ] {
                out.binds.push(bind(&source.display().to_string(), target, "", plugin)?);
            }
        }
        // Volumes without a name live and go with the container, and take files before it starts even when its root
        // cannot be written.
        Place::Remote => {
            out.mounts
                .extend(["/alloc", "/local", "/secrets"].map(|target| json!({"Type": "volume", "Target": target})));
        }
    }
    for volume in &options.volumes {
        let parts: Vec<&str> = volume.split(':').collect();
        let (source, target, mode) = match parts.as_slice() {
            [source, target] => (*source, *target, ""),
            [source, target, mode] => (*source, *target, *mode),
            _ => {
                return invalid(format!(
                    "config.volumes: {volume:?} is not of the form host:container or host:container:mode"
                ));
            }
        };
        if source.is_empty() || !target.starts_with('/') {
            return invalid(format!("config.volumes: {volume:?} needs a source and an absolute path in the container"));
        }
        let source = match options.volume_driver.as_str() {
            "" => host_path(source, task, plugin, place, ("volumes", &mut out.sources))?,
            // With a volume driver the source is the name of a volume.
            driver if !plugin.volumes.enabled => {
                return invalid(format!(
                    "config.volume_driver = {driver:?} is not allowed; the operator allows it with volumes {{ enabled \
                        = true }}"
                ));
            }
            _ => source.to_owned(),
        };
        out.binds.push(bind(&source, target, mode, plugin)?);
    }
    for mount in options.mounts.iter().chain(&options.mount) {
        let value = mount_value(mount, task, plugin, place, &mut out.sources)?;
        out.mounts.push(value);
    }
    for mount in &task.mounts {
        if place == Place::Remote && mount.host_path.starts_with('/') {
            // From a host that knows the plain protocol only.
            return invalid(
                "volume_mount names a volume of this node, which the engine elsewhere does not have; use a `mount` \
                    block of type volume"
                    .into(),
            );
        }
        if place == Place::Remote && !matches!(mount.propagation_mode.as_str(), "" | "private") {
            return invalid(format!(
                "volume_mount.propagation_mode = {:?}: a volume of the engine is not shared with its machine; \
                    leave it out",
                mount.propagation_mode
            ));
        }
        let propagation = match mount.propagation_mode.as_str() {
            "" | "private" => "rprivate",
            "host-to-task" => "rslave",
            "bidirectional" => "rshared",
            other => other,
        };
        if !mount.selinux_label.is_empty() {
            // Only the older form knows labels.
            let access = if mount.readonly { "ro" } else { "rw" };
            let modes = if place == Place::Remote { access.to_owned() } else { format!("{access},{propagation}") };
            let bind = labelled(&mount.host_path, &mount.task_path, &modes, &mount.selinux_label)?;
            out.binds.push(bind);
            continue;
        }
        if place == Place::Remote {
            // A volume of the engine, by its name: it is there, see `remote::volumes`.
            out.mounts.push(json!({"Type": "volume", "Source": mount.host_path, "Target": mount.task_path,
                "ReadOnly": mount.readonly}));
            continue;
        }
        out.mounts.push(json!({
            "Type": "bind", "Source": mount.host_path, "Target": mount.task_path, "ReadOnly": mount.readonly,
            "BindOptions": {"Propagation": propagation},
        }));
    }
    Ok(out)
}

fn mount_value(
    mount: &MountOption,
    task: &TaskConfig,
    plugin: &PluginConfig,
    place: Place,
    sources: &mut Vec<Source>,
) -> Result<Value, Error> {
    if mount.target.is_empty() {
        return invalid("config.mount has no target".into());
    }
    let mut value = json!({"Target": mount.target, "ReadOnly": mount.readonly});
    match mount.kind.as_str() {
        "bind" => {
            value["Type"] = "bind".into();
            value["Source"] = host_path(&mount.source, task, plugin, place, ("mount", sources))?.into();
            if !mount.bind_options.propagation.is_empty() {
                value["BindOptions"] = json!({"Propagation": mount.bind_options.propagation});
            }
        }
        "" | "volume" => {
            let driver = &mount.volume_options.driver_config;
            // The engine's own driver binds any path by its options.
            if !plugin.volumes.enabled && (!driver.name.is_empty() || !driver.options.is_empty()) {
                return invalid(
                    "config.mount: volume_options.driver_config is not allowed; the operator allows it with volumes { \
                        enabled = true }"
                        .into(),
                );
            }
            value["Type"] = "volume".into();
            value["Source"] = mount.source.clone().into();
            value["VolumeOptions"] =
                json!({"NoCopy": mount.volume_options.no_copy, "Labels": mount.volume_options.labels});
            if !driver.name.is_empty() || !driver.options.is_empty() {
                value["VolumeOptions"]["DriverConfig"] = json!({"Name": driver.name, "Options": driver.options});
            }
        }
        "tmpfs" => {
            if !mount.source.is_empty() {
                return invalid(format!("config.mount: a tmpfs has no source, {:?} is given", mount.source));
            }
            value["Type"] = "tmpfs".into();
            value["TmpfsOptions"] = json!({"SizeBytes": mount.tmpfs_options.size, "Mode": mount.tmpfs_options.mode});
        }
        other => {
            return invalid(format!("config.mount: {other:?} is no kind of mount; there are bind, volume and tmpfs"));
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use driver_sdk::proto::driver::Mount;

    use super::*;

    fn task() -> TaskConfig {
        TaskConfig { name: "web".into(), alloc_dir: "/a/0a1b".into(), ..TaskConfig::default() }
    }

    fn plugin(enabled: bool, label: &str) -> PluginConfig {
        let volumes = crate::config::VolumePolicy { enabled, selinuxlabel: label.into() };
        PluginConfig { volumes, ..PluginConfig::default() }
    }

    fn with_volumes(volumes: &[&str], driver: &str) -> TaskOptions {
        let volumes = volumes.iter().map(|v| (*v).to_owned()).collect();
        TaskOptions { volumes, volume_driver: driver.into(), ..TaskOptions::default() }
    }

    #[test]
    fn a_task_sees_its_directories_under_the_usual_names() {
        let found = mounts(&task(), &TaskOptions::default(), &plugin(false, "z"), Place::Local).expect("fine");
        assert_eq!(
            found.binds,
            ["/a/0a1b/alloc:/alloc:z", "/a/0a1b/web/local:/local:z", "/a/0a1b/web/secrets:/secrets:z"]
        );
        let remote = mounts(&task(), &TaskOptions::default(), &plugin(false, ""), Place::Remote).expect("fine");
        assert!(
            remote.binds.is_empty() && remote.mounts.len() == 3 && remote.mounts[1]["Target"] == "/local",
            "{remote:?}"
        );
    }

    #[test]
    fn host_paths_need_the_operators_leave() {
        for (volume, driver, enabled, wanted) in [
            ("data:/d", "", false, Some("/a/0a1b/web/data:/d")),
            ("./local/x:/d:ro", "", false, Some("/a/0a1b/web/local/x:/d:ro")),
            ("../alloc/data:/d", "", false, Some("/a/0a1b/alloc/data:/d")),
            ("local:/d", "", false, Some("/a/0a1b/web/local:/d")),
            ("secrets/key.pem:/d:ro", "", false, Some("/a/0a1b/web/secrets/key.pem:/d:ro")),
            ("../alloc:/d", "", false, Some("/a/0a1b/alloc:/d")),
            ("/a/0a1b/web/local/x:/d", "", false, Some("/a/0a1b/web/local/x:/d")),
            (".:/d", "", false, None),
            ("local/..:/d", "", true, None),
            ("..:/d", "", false, None),
            ("..:/d", "", true, None),
            ("../web:/d", "", false, None),
            ("/a/0a1b:/d", "", false, None),
            ("private:/d", "", false, None),
            ("./local/../private/x:/d", "", false, None),
            ("private:/d", "", true, None),
            ("../other/local:/d", "", false, None),
            ("../../other:/d", "", false, None),
            ("../../other:/d", "", true, Some("/a/other:/d")),
            ("/etc:/d", "", false, None),
            ("/etc:/d:ro", "", true, Some("/etc:/d:ro")),
            ("name:/d", "pxd", false, None),
            ("name:/d", "pxd", true, Some("name:/d")),
            ("/etc", "", true, None),
            ("a:b:c:d", "", true, None),
            ("a:relative", "", true, None),
        ] {
            let found = mounts(&task(), &with_volumes(&[volume], driver), &plugin(enabled, ""), Place::Local);
            assert_eq!(found.ok().and_then(|m| m.binds.last().cloned()).as_deref(), wanted, "{volume} {enabled}");
        }
        assert!(
            mounts(&task(), &with_volumes(&["data:/d"], ""), &plugin(true, ""), Place::Remote).is_err(),
            "no node, no task directory"
        );
        let far = mounts(&task(), &with_volumes(&["/srv:/d"], ""), &plugin(true, ""), Place::Remote).expect("fine");
        assert_eq!(far.binds, ["/srv:/d"]);
    }

    /// An allocation's directory as the host makes it, and something beside it.
    fn allocation() -> (tempfile::TempDir, TaskConfig) {
        let temp = tempfile::tempdir().expect("a directory");
        for dir in ["a1/alloc/data", "a1/web/local/conf", "a1/web/secrets", "a1/web/tmp", "a1/web/private", "host"] {
            std::fs::create_dir_all(temp.path().join(dir)).expect("a directory");
        }
        std::fs::write(temp.path().join("a1/web/local/app.conf"), "conf").expect("a file");
        let alloc_dir = temp.path().join("a1").display().to_string();
        let task = TaskConfig { name: "web".into(), alloc_dir, ..TaskConfig::default() };
        (temp, task)
    }

    /// As before a start; first with `volumes`, then with a `mount` block.
    fn looked_at(task: &TaskConfig, source: &str) -> [Result<(), Error>; 2] {
        let mount =
            MountOption { kind: "bind".into(), source: source.into(), target: "/t".into(), ..MountOption::default() };
        let block = TaskOptions { mount: vec![mount], ..TaskOptions::default() };
        [with_volumes(&[&format!("{source}:/t")], ""), block].map(|options| {
            let found = mounts(task, &options, &plugin(false, ""), Place::Local)?;
            look_at(&found.sources, task)
        })
    }

    #[test]
    fn sources_are_where_their_names_say() {
        use std::os::unix::fs::symlink;
        let (temp, task) = allocation();
        let web = temp.path().join("a1/web");
        for source in [
            "local",
            "./local/conf",
            "local/app.conf",
            "secrets",
            "tmp",
            "../alloc",
            "../alloc/data",
            "local/x/../conf",
        ] {
            for outcome in looked_at(&task, source) {
                outcome.expect(source);
            }
        }
        for (link, to) in [
            ("local/x", "/"),
            ("local/host", "../../../host"),
            ("local/same", "conf"),
            ("local/own", "../private"),
            ("../alloc/data/x", "/etc"),
        ] {
            symlink(to, web.join(link)).expect("a link");
        }
        for source in
            ["local/x", "local/x/etc", "local/host/new", "local/same", "local/own/executor", "../alloc/data/x"]
        {
            for outcome in looked_at(&task, source) {
                let error = outcome.expect_err(source).to_string();
                assert!(error.contains("is a link") && error.contains(source), "{source}: {error}");
            }
        }
        assert_eq!(std::fs::read_dir(temp.path().join("host")).expect("list").count(), 0, "nothing was made there");
        // What is missing the engine makes for `volumes`, with the owner that it gives to the root of its containers.
        for source in ["local/new/er", "data"] {
            let [volumes, block] = looked_at(&task, source);
            volumes.expect(source);
            block.expect_err("engines do not make it for a mount");
            assert!(!web.join(source).exists(), "{source}");
        }
        let [_, block] = looked_at(&task, "local/app.conf/below");
        block.expect_err("a file is no directory");
        let options = TaskOptions {
            mount: vec![MountOption {
                kind: "bind".into(),
                source: "local/missing".into(),
                target: "/t".into(),
                ..MountOption::default()
            }],
            ..TaskOptions::default()
        };
        let found = mounts(&task, &options, &plugin(false, ""), Place::Local).expect("fine");
        look_at(&found.sources, &task).expect_err("engines do not make it either");
        assert!(!web.join("local/missing").exists());
    }

    #[test]
    fn the_nodes_own_directory_is_known_by_what_it_is() {
        let (_temp, task) = allocation();
        // As where the file system has taken another spelling for this one.
        let below = PathBuf::from("web/private/x");
        let source = Source { option: "volumes", text: "PRIVATE/x".into(), below, may_miss: true };
        let error = look_at(&[source], &task).expect_err("refused").to_string();
        assert!(error.contains("the node's own"), "{error}");
        assert!(!task_dir(&task).join("private/x").exists());
    }

    #[test]
    fn mount_blocks_become_mounts() {
        let mount = |kind: &str, source: &str| MountOption {
            kind: kind.into(),
            source: source.into(),
            target: "/t".into(),
            ..MountOption::default()
        };
        let of = |m: MountOption, enabled| {
            let options = TaskOptions { mount: vec![m], ..TaskOptions::default() };
            mounts(&task(), &options, &plugin(enabled, ""), Place::Local).map(|m| m.mounts[0].clone())
        };
        assert_eq!(of(mount("bind", "local"), false).expect("fine")["Source"], "/a/0a1b/web/local");
        assert!(of(mount("bind", "/etc"), false).is_err());
        assert_eq!(of(mount("", "vol"), false).expect("fine")["Type"], "volume");
        assert_eq!(of(mount("tmpfs", ""), false).expect("fine")["TmpfsOptions"]["SizeBytes"], 0);
        assert!(of(mount("tmpfs", "x"), false).is_err());
        assert!(of(mount("nfs", "x"), true).is_err());
        let mut driven = mount("volume", "v");
        driven.volume_options.driver_config.options.insert("device".into(), "/etc".into());
        assert!(of(driven.clone(), false).is_err(), "a bind by the back door");
        assert_eq!(of(driven, true).expect("fine")["VolumeOptions"]["DriverConfig"]["Options"]["device"], "/etc");
    }

    #[test]
    fn volumes_of_the_node_are_bound() {
        let mut task = task();
        let mount = Mount {
            task_path: "/v".into(),
            host_path: "/srv/v".into(),
            readonly: true,
            propagation_mode: "host-to-task".into(),
            ..Mount::default()
        };
        task.mounts.push(mount);
        let found = mounts(&task, &TaskOptions::default(), &plugin(false, ""), Place::Local).expect("fine");
        let wanted = json!({"Type": "bind", "Source": "/srv/v", "Target": "/v", "ReadOnly": true,
                "BindOptions": {"Propagation": "rslave"}});
        assert_eq!(found.mounts, [wanted]);
        assert!(
            mounts(&task, &TaskOptions::default(), &plugin(true, ""), Place::Remote).is_err(),
            "a path of the node"
        );
        task.mounts[0].selinux_label = "Z".into();
        let found = mounts(&task, &TaskOptions::default(), &plugin(false, "z"), Place::Local).expect("fine");
        assert_eq!(found.binds.last().map(String::as_str), Some("/srv/v:/v:ro,rslave,Z"), "the mount's own label wins");
    }

    #[test]
    fn volumes_of_the_engine_elsewhere_are_mounted_by_name() {
        let mut task = task();
        task.mounts.push(Mount {
            task_path: "/v".into(),
            host_path: "data".into(),
            propagation_mode: "private".into(),
            ..Mount::default()
        });
        let found = mounts(&task, &TaskOptions::default(), &plugin(false, ""), Place::Remote).expect("fine");
        assert_eq!(
            found.mounts.last(),
            Some(&json!({"Type": "volume", "Source": "data", "Target": "/v", "ReadOnly": false}))
        );
        task.mounts[0].propagation_mode = "bidirectional".into();
        assert!(
            mounts(&task, &TaskOptions::default(), &plugin(true, ""), Place::Remote).is_err(),
            "a propagation that volumes do not have"
        );
        task.mounts[0].propagation_mode.clear();
        task.mounts[0].selinux_label = "z".into();
        let found = mounts(&task, &TaskOptions::default(), &plugin(false, ""), Place::Remote).expect("fine");
        assert_eq!(found.binds, ["data:/v:rw,z"]);
    }
}
