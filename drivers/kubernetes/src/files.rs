//! Files and environment of a task as one secret, which the pod mounts.
//!
//! What lies below `secrets/` is one volume, whose files the kubelet replaces together by one link. Files below
//! `local/` and `alloc/` lie in directories that the task writes into; each is mounted by itself and stays as it is.

use std::collections::{BTreeMap, BTreeSet};

use driver_sdk::{Bundle, RemoteError};
use serde_json::{Value, json};

/// Directories of a task as its container sees them.
const DIRS: [&str; 3] = ["alloc", "local", "secrets"];
/// What a secret may hold.
const SECRET_MAX: usize = 1 << 20;
/// Files below `local/` and `alloc/`: each is a mount.
const MOUNTS_MAX: usize = 200;

/// Volumes, mounts and the data of the secret.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Files {
    pub(crate) data: BTreeMap<String, Vec<u8>>,
    pub(crate) volumes: Vec<Value>,
    pub(crate) mounts: Vec<Value>,
}

fn wrong<T>(why: String) -> Result<T, RemoteError> {
    Err(RemoteError::wrong_request(why))
}

/// Path below one of [`DIRS`]; nothing may lead out of it.
fn place(path: &str) -> Result<(&'static str, &str), RemoteError> {
    let clean = path.strip_suffix('/').unwrap_or(path).split('/').all(|part| !matches!(part, "" | "." | ".."));
    let found = path.split_once('/').and_then(|(top, rest)| Some((*DIRS.iter().find(|d| **d == top)?, rest)));
    match found {
        Some(found) if clean && !found.1.is_empty() && !path.contains('\0') => Ok(found),
        _ => wrong(format!("the bundle has the file {path:?}; its files must lie below alloc/, local/ or secrets/")),
    }
}

/// Key of a file in the secret: its place in the listing of all paths would change when others come, so it is the path
/// itself, escaped.
pub(crate) fn file_key(path: &str) -> String {
    path.bytes().fold("file.".to_owned(), |mut key, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => key.push(char::from(byte)),
            other => key.push_str(&format!("_{other:02x}")),
        }
        key
    })
}

/// Key of an environment variable in the secret.
pub(crate) fn env_key(name: &str) -> String {
    format!("env.{name}")
}

fn check(data: &BTreeMap<String, Vec<u8>>) -> Result<(), RemoteError> {
    let bytes: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > SECRET_MAX {
        return wrong(format!(
            "files and environment of the task have {bytes} bytes, a secret of Kubernetes holds {SECRET_MAX}; let the \
                container fetch large files itself, or put them into its image"
        ));
    }
    if let Some(key) = data.keys().find(|key| key.len() > 253) {
        return wrong(format!("the name {key:?} is longer than the 253 characters that a secret allows"));
    }
    Ok(())
}

/// What the pod mounts, and the secret `name` that holds it.
pub(crate) fn files(name: &str, env: &BTreeMap<String, String>, bundle: &Bundle) -> Result<Files, RemoteError> {
    let mut files = Files::default();
    for (variable, value) in env {
        let head = variable.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        if !head || !variable.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            return wrong(format!(
                "the environment variable {variable:?} has a name that Kubernetes does not allow: letters, digits, \
                    `_`, `-` and `.`, and no digit first"
            ));
        }
        files.data.insert(env_key(variable), value.clone().into_bytes());
    }
    let (mut secrets, mut single, mut dirs) = (Vec::new(), Vec::new(), BTreeSet::new());
    for file in &bundle.files {
        let (dir, rest) = place(&file.path)?;
        if let Some(made) = rest.strip_suffix('/') {
            if dir != "secrets" {
                dirs.insert((dir, made));
            } else if !bundle.files.iter().any(|f| f.path.starts_with(&file.path) && !f.path.ends_with('/')) {
                return wrong(format!(
                    "the bundle has the empty directory {:?}, which a secret cannot hold",
                    file.path
                ));
            }
            continue;
        }
        let key = file_key(&file.path);
        // The pod is the task's alone, and its image may name any user.
        let item = |path: &str| json!({"key": key, "path": path, "mode": (file.mode & 0o777) | 0o444});
        if dir == "secrets" {
            secrets.push(item(rest));
        } else {
            single.push((item(&file.path), dir, rest, file.path.clone()));
        }
        files.data.insert(key, file.data.clone());
    }
    check(&files.data)?;
    if single.len() > MOUNTS_MAX {
        return wrong(format!(
            "the task has {} files below local/ and alloc/, at most {MOUNTS_MAX} can be mounted; put them into the \
                image, or below secrets/",
            single.len()
        ));
    }
    for dir in ["alloc", "local"] {
        files.volumes.push(json!({"name": dir, "emptyDir": {}}));
        files.mounts.push(json!({"name": dir, "mountPath": format!("/{dir}")}));
    }
    for (dir, made) in dirs {
        files.mounts.push(json!({"name": dir, "mountPath": format!("/{dir}/{made}"), "subPath": made}));
    }
    if secrets.is_empty() {
        files.volumes.push(json!({"name": "secrets", "emptyDir": {"medium": "Memory"}}));
        files.mounts.push(json!({"name": "secrets", "mountPath": "/secrets"}));
    } else {
        files.volumes.push(json!({"name": "secrets", "secret": {"secretName": name, "items": secrets}}));
        files.mounts.push(json!({"name": "secrets", "mountPath": "/secrets", "readOnly": true}));
    }
    if !single.is_empty() {
        let items: Vec<&Value> = single.iter().map(|(item, ..)| item).collect();
        files.volumes.push(json!({"name": "files", "secret": {"secretName": name, "items": items}}));
    }
    for (_, dir, rest, path) in &single {
        let at = format!("/{dir}/{rest}");
        files.mounts.push(json!({"name": "files", "mountPath": at, "subPath": path, "readOnly": true}));
    }
    Ok(files)
}

/// The data of a secret after these files have replaced those at their paths.
pub(crate) fn renewed(
    mut data: BTreeMap<String, Vec<u8>>,
    bundle: &Bundle,
) -> Result<BTreeMap<String, Vec<u8>>, RemoteError> {
    for file in &bundle.files {
        let (dir, _) = place(&file.path)?;
        if dir != "secrets" {
            return wrong(format!(
                "{:?} cannot be renewed: the kubelet replaces only what lies below secrets/",
                file.path
            ));
        }
        let key = file_key(&file.path);
        if !data.contains_key(&key) {
            return wrong(format!("{:?} was not there when the pod was made, and a pod's mounts are fixed", file.path));
        }
        data.insert(key, file.data.clone());
    }
    check(&data)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use driver_sdk::BundleFile;

    use super::*;

    fn bundle(files: &[(&str, u32)]) -> Bundle {
        let file = |(path, mode): &(&str, u32)| BundleFile { path: (*path).into(), mode: *mode, data: b"x".to_vec() };
        Bundle::new(files.iter().map(file).collect())
    }

    #[test]
    fn each_file_lies_where_the_task_looks_for_it() {
        let env = [("A_b.c".to_owned(), "1".to_owned())].into();
        let made = files("s", &env, &bundle(&[("secrets/a/b", 0o600), ("local/run", 0o755), ("local/dir/", 0o755)]))
            .expect("fine");
        assert_eq!(made.data.keys().collect::<Vec<_>>(), ["env.A_b.c", "file.local_2frun", "file.secrets_2fa_2fb"]);
        let secrets = made.volumes.iter().find(|v| v["name"] == "secrets").expect("there");
        assert_eq!(secrets["secret"]["items"][0], json!({"key": "file.secrets_2fa_2fb", "path": "a/b", "mode": 0o644}));
        assert!(made.mounts.iter().any(|m| m["mountPath"] == "/local/run" && m["subPath"] == "local/run"));
        assert!(made.mounts.iter().any(|m| m["mountPath"] == "/local/dir" && m["subPath"] == "dir"));
        assert_eq!(
            made.volumes.iter().find(|v| v["name"] == "files").expect("there")["secret"]["items"][0]["mode"],
            0o755
        );
    }

    #[test]
    fn what_cannot_be_brought_is_refused() {
        let none = BTreeMap::new();
        for path in ["../x", "local/../../x", "etc/passwd", "x", "local//x", "secrets/empty/"] {
            assert!(files("s", &none, &bundle(&[(path, 0o644)])).is_err(), "{path}");
        }
        for name in ["", "1a", "a b", "ü"] {
            assert!(files("s", &[(name.to_owned(), String::new())].into(), &Bundle::default()).is_err(), "{name:?}");
        }
        let large = BundleFile { path: "local/x".into(), mode: 0o644, data: vec![0; SECRET_MAX] };
        assert!(files("s", &none, &Bundle::new(vec![large])).is_err());
    }

    #[test]
    fn only_what_the_kubelet_replaces_is_renewed() {
        let data: BTreeMap<String, Vec<u8>> = [(file_key("secrets/t"), b"old".to_vec())].into();
        let now = renewed(data.clone(), &bundle(&[("secrets/t", 0o600)])).expect("renewed");
        assert_eq!(now[&file_key("secrets/t")], b"x");
        for path in ["secrets/new", "local/t", "secrets/../t"] {
            assert!(renewed(data.clone(), &bundle(&[(path, 0o600)])).is_err(), "{path}");
        }
    }

    #[test]
    fn no_two_paths_share_a_key() {
        assert_ne!(file_key("a/b"), file_key("a_2fb"));
        assert_ne!(file_key("a/b"), file_key("a-b"));
    }
}
