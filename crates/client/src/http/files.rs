//! Files below an allocation's directory, and nothing else: the kernel resolves each path beneath it.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Component, Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde_json::{Value, json};

use super::modes::go_mode;

/// Why a file is not shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("Path escapes the alloc directory")]
    Escapes,
    #[error("Reading secret file prohibited: {0}")]
    Secret(String),
    #[error("{doing} {path}: {source}")]
    Io { doing: &'static str, path: String, source: io::Error },
    #[error("{0} is a directory")]
    Directory(String),
    #[error("{0} is neither a regular file nor a directory")]
    Special(String),
}

/// The path without its leading slash and its dots; escaping ones and those of secrets are refused by name already.
fn clean(path: &str) -> Result<PathBuf, FileError> {
    let mut out = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                if !out.pop() {
                    return Err(FileError::Escapes);
                }
            }
        }
    }
    let mut parts = out.components();
    let (first, second) = (parts.next(), parts.next());
    if first.is_some_and(|f| f.as_os_str() != "alloc")
        && second.is_some_and(|s| s.as_os_str() == "secrets" || s.as_os_str() == "private")
    {
        return Err(FileError::Secret(out.display().to_string()));
    }
    Ok(out)
}

/// Finds what is there, without opening it: a task may have put a device of the node there, which an open reads from,
/// rewinds or arms. The kernel refuses links that leave the directory, also those that a task makes while we look.
fn find(root: &Path, path: &str) -> Result<File, FileError> {
    let relative = clean(path)?;
    let named = |doing| {
        let path = relative.display().to_string();
        move |source: io::Error| FileError::Io { doing, path, source }
    };
    let dir = File::open(root).map_err(named("open"))?;
    let target = if relative.as_os_str().is_empty() { Path::new(".") } else { relative.as_path() };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let fd = openat2(dir.as_fd(), target, flags, Mode::empty(), resolve).map_err(|e| match e {
        rustix::io::Errno::XDEV => FileError::Escapes,
        e => named("open")(e.into()),
    })?;
    // A link inside the directory may lead to secrets by another name.
    let file = File::from(fd);
    let real = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).ok();
    if let Some(inside) = real.as_deref().and_then(|r| r.strip_prefix(root.canonicalize().ok()?).ok()) {
        clean(&inside.display().to_string())?;
    }
    Ok(file)
}

fn metadata(file: &File, path: &str) -> Result<std::fs::Metadata, FileError> {
    file.metadata().map_err(|source| FileError::Io { doing: "look at", path: path.to_owned(), source })
}

/// Opens a regular file or a directory for reading, and exactly that which was found.
fn readable(found: &File, path: &str) -> Result<File, FileError> {
    let kind = metadata(found, path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(FileError::Special(path.to_owned()));
    }
    let io = |source| FileError::Io { doing: "open", path: path.to_owned(), source };
    File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(found))).map_err(io)
}

/// Opens a regular file or a directory for reading.
pub(crate) fn open(root: &Path, path: &str) -> Result<File, FileError> {
    readable(&find(root, path)?, path)
}

/// A regular file, opened for reading.
pub(crate) fn open_file(root: &Path, path: &str) -> Result<(File, u64), FileError> {
    let file = open(root, path)?;
    let metadata = metadata(&file, path)?;
    if metadata.is_dir() {
        return Err(FileError::Directory(path.to_owned()));
    }
    Ok((file, metadata.len()))
}

fn info(name: &str, m: &std::fs::Metadata, content_type: Option<String>) -> Value {
    let modified = jiff::Timestamp::new(m.mtime(), i32::try_from(m.mtime_nsec()).unwrap_or(0))
        .map(|t| t.to_string())
        .unwrap_or_default();
    let mut value = json!({ "Name": name, "IsDir": m.is_dir(), "Size": m.len(), "FileMode": go_mode(m.mode()),
            "ModTime": modified });
    if let (Some(object), Some(kind)) = (value.as_object_mut(), content_type) {
        object.insert("ContentType".into(), kind.into());
    }
    value
}

/// The entries of a directory, by name.
pub(crate) fn list(root: &Path, path: &str) -> Result<Vec<Value>, FileError> {
    let dir = open(root, path)?;
    let io = |source| FileError::Io { doing: "list", path: path.to_owned(), source };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&dir).map_err(|e| io(e.into()))? {
        let entry = entry.map_err(|e| io(e.into()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    let base = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir)));
    // What has gone since the listing is left out.
    Ok(names.iter().filter_map(|n| Some(info(n, &std::fs::symlink_metadata(base.join(n)).ok()?, None))).collect())
}

/// One file or directory.
pub(crate) fn stat(root: &Path, path: &str) -> Result<Value, FileError> {
    let found = find(root, path)?;
    let metadata = metadata(&found, path)?;
    let name = Path::new(path).file_name().map_or_else(|| "/".to_owned(), |n| n.to_string_lossy().into_owned());
    let kind = if metadata.is_file() { Some(content_type(&readable(&found, path)?)) } else { None };
    Ok(info(&name, &metadata, kind))
}

fn content_type(file: &File) -> String {
    use std::os::unix::fs::FileExt;
    let mut head = [0_u8; 512];
    let read = file.read_at(&mut head, 0).unwrap_or(0);
    // A character may be cut at the end of what was read.
    let text = match std::str::from_utf8(&head[..read]) {
        Ok(_) => true,
        Err(e) => e.error_len().is_none() && read == head.len(),
    };
    if text && !head[..read].contains(&0) { "text/plain; charset=utf-8" } else { "application/octet-stream" }.to_owned()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn only_what_lies_beneath_is_shown() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().join("a");
        for sub in ["alloc/logs", "web/local", "web/secrets", "web/private", "alloc/secrets"] {
            std::fs::create_dir_all(root.join(sub)).expect("dir");
        }
        std::fs::write(root.join("web/local/f"), "text").expect("file");
        std::fs::write(root.join("web/secrets/token"), "s").expect("file");
        std::fs::write(root.join("alloc/secrets/f"), "x").expect("file");
        std::fs::write(dir.path().join("outside"), "o").expect("file");
        std::os::unix::fs::symlink(dir.path().join("outside"), root.join("web/local/out")).expect("link");
        std::os::unix::fs::symlink("../../../outside", root.join("web/local/up")).expect("link");
        std::os::unix::fs::symlink("../secrets/token", root.join("web/local/sly")).expect("link");
        std::os::unix::fs::symlink("f", root.join("web/local/in")).expect("link");
        for (path, ok) in [
            ("web/local/f", true),
            ("/web/local/f", true),
            ("web/../web/local/f", true),
            ("web/local/in", true),
            ("/", true),
            ("", true),
            ("alloc/secrets/f", true),
            ("../outside", false),
            ("web/../../outside", false),
            ("web/local/out", false),
            ("web/local/up", false),
            ("web/local/sly", false),
            ("web/secrets/token", false),
            ("web/secrets", false),
            ("web/private", false),
            ("web/local/missing", false),
        ] {
            assert_eq!(open(&root, path).is_ok(), ok, "{path}: {:?}", open(&root, path).err());
        }
        let names: Vec<String> = list(&root, "web")
            .expect("list")
            .iter()
            .map(|v| v["Name"].as_str().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(names, ["local", "private", "secrets"]);
        assert_eq!(stat(&root, "web/local/f").expect("stat")["ContentType"], "text/plain; charset=utf-8");
        assert_eq!(stat(&root, "web").expect("stat")["IsDir"], true);
        assert!(matches!(open_file(&root, "web"), Err(FileError::Directory(_))));
    }

    #[test]
    fn what_is_no_file_is_shown_and_not_read() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path();
        std::fs::create_dir_all(root.join("web/local")).expect("dir");
        let at = |name: &str| root.join("web/local").join(name);
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
        let make = |name: &str, kind: FileType, number: u64| mknodat(CWD, at(name), kind, Mode::RUSR, number);
        make("fifo", FileType::Fifo, 0).expect("made");
        let mut special = vec!["web/local/socket", "web/local/fifo"];
        if rustix::process::geteuid().is_root() {
            make("device", FileType::CharacterDevice, rustix::fs::makedev(1, 5)).expect("made");
            special.push("web/local/device");
        }
        for path in special {
            assert!(matches!(open(root, path), Err(FileError::Special(_))), "{path}");
            assert!(matches!(open_file(root, path), Err(FileError::Special(_))), "{path}");
            assert!(stat(root, path).is_ok(), "{path}");
        }
    }
}
