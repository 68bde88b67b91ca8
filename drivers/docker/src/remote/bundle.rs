//! Files that travel to a container before it starts: as archives, one for each directory of the task.

use driver_sdk::{BundleFile, RemoteError};

/// Directories of a task as its container sees them.
pub(crate) const DIRS: [&str; 3] = ["alloc", "local", "secrets"];
const BLOCK: usize = 512;

/// Whom the files belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileOwner {
    uid: u32,
    gid: u32,
    /// The image alone knows who the user is: everybody in the container may read.
    unknown: bool,
}

impl FileOwner {
    /// From a task's user: nothing, `name`, `uid` or `uid:gid`.
    pub(crate) fn of(user: &str) -> FileOwner {
        let (name, group) = user.split_once(':').unwrap_or((user, ""));
        match name.parse::<u32>() {
            Ok(uid) => FileOwner { uid, gid: group.parse().unwrap_or(uid), unknown: false },
            Err(_) => FileOwner { uid: 0, gid: 0, unknown: !name.is_empty() && name != "root" },
        }
    }
}

/// One entry of an archive.
struct Entry<'a> {
    path: String,
    mode: u32,
    data: Option<&'a [u8]>,
}

/// Path below one of [`DIRS`]; nothing may lead out of it. That of a directory keeps the slash at its end.
fn place(path: &str) -> Result<(&'static str, &str), RemoteError> {
    let clean = path.strip_suffix('/').unwrap_or(path).split('/').all(|part| !matches!(part, "" | "." | ".."));
    let found = path.split_once('/').and_then(|(top, rest)| Some((*DIRS.iter().find(|d| **d == top)?, rest)));
    match found {
        Some(found) if clean && !found.1.is_empty() => Ok(found),
        _ => Err(RemoteError::wrong_request(format!(
            "the bundle has the file {path:?}; its files must lie below alloc/, local/ or secrets/"
        ))),
    }
}

/// An archive for each directory.
pub(crate) fn archives(files: &[BundleFile], owner: FileOwner) -> Result<Vec<(&'static str, Vec<u8>)>, RemoteError> {
    let mut placed = Vec::with_capacity(files.len());
    for file in files {
        let (dir, rest) = place(&file.path)?;
        placed.push((dir, rest, file));
    }
    let archive = |dir: &'static str| {
        // Volumes begin as the engine's own; a task writes into these directories, whoever it runs as.
        let open = if dir == "secrets" && !owner.unknown { 0o700 } else { 0o777 };
        let mut entries = vec![Entry { path: "./".into(), mode: open, data: None }];
        if dir == "alloc" {
            entries.extend(["data/", "logs/", "tmp/"].map(|d| Entry { path: d.into(), mode: 0o777, data: None }));
        }
        for &(_, rest, file) in placed.iter().filter(|(d, ..)| *d == dir) {
            let mut at = 0;
            while let Some(slash) = rest[at..].find('/') {
                at += slash + 1;
                let parent = &rest[..at];
                if !entries.iter().any(|e| e.path == parent) {
                    let mode = if parent == rest { file.mode | if owner.unknown { 0o555 } else { 0 } } else { 0o755 };
                    entries.push(Entry { path: parent.into(), mode: mode & 0o7777, data: None });
                }
            }
            if rest.ends_with('/') {
                continue;
            }
            let mode = if owner.unknown { file.mode | 0o444 } else { file.mode };
            entries.push(Entry { path: rest.to_owned(), mode: mode & 0o7777, data: Some(&file.data) });
        }
        let mut out = Vec::new();
        for entry in &entries {
            write(&mut out, entry, owner);
        }
        out.resize(out.len() + 2 * BLOCK, 0);
        (dir, out)
    };
    Ok(DIRS.map(archive).into())
}

fn write(out: &mut Vec<u8>, entry: &Entry<'_>, owner: FileOwner) {
    let size = entry.data.map_or(0, <[u8]>::len);
    let kind = if entry.data.is_some() { b'0' } else { b'5' };
    if entry.path.len() > 100 {
        // The real name goes before, as the content of an entry of its own.
        let mut name = entry.path.clone().into_bytes();
        name.push(0);
        header(out, b"././@LongLink", 0, name.len(), b'L', owner);
        body(out, &name);
    }
    header(out, &entry.path.as_bytes()[..entry.path.len().min(100)], entry.mode, size, kind, owner);
    body(out, entry.data.unwrap_or_default());
}

fn body(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

fn header(out: &mut Vec<u8>, name: &[u8], mode: u32, size: usize, kind: u8, owner: FileOwner) {
    let mut block = [0u8; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, name);
    put(100, format!("{mode:07o}").as_bytes());
    put(108, format!("{:07o}", owner.uid & 0o7_777_777).as_bytes());
    put(116, format!("{:07o}", owner.gid & 0o7_777_777).as_bytes());
    put(124, format!("{size:011o}").as_bytes());
    put(136, b"00000000000");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar  \0");
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    out.extend_from_slice(&block);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn file(path: &str, mode: u32, data: &[u8]) -> BundleFile {
        BundleFile { path: path.into(), mode, data: data.to_vec() }
    }

    #[test]
    fn files_stay_in_their_directories() {
        for wrong in ["x", "etc/passwd", "local/../../etc/x", "/local/x", "local//x", "local/", "local/./x"] {
            assert!(archives(&[file(wrong, 0o644, b"")], FileOwner::of("")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn users_own_their_files_when_they_are_known() {
        assert_eq!(FileOwner::of(""), FileOwner { uid: 0, gid: 0, unknown: false });
        assert_eq!(FileOwner::of("1000"), FileOwner { uid: 1000, gid: 1000, unknown: false });
        assert_eq!(FileOwner::of("1000:50"), FileOwner { uid: 1000, gid: 50, unknown: false });
        assert!(FileOwner::of("www").unknown);
    }

    /// What `tar` makes of it, which every machine with a shell has.
    #[test]
    fn archives_are_what_tar_reads() {
        let long = format!("local/{}/{}", "d".repeat(80), "f".repeat(90));
        let files = [
            file(&long, 0o640, b"long"),
            file("local/a/b.txt", 0o755, &vec![7; 1000]),
            file("secrets/s", 0o600, b""),
            file("local/e/f/", 0o750, b""),
        ];
        let all = archives(&files, FileOwner::of("1000")).expect("fine");
        let dir = tempfile::tempdir().expect("a directory");
        let (_, local) = all.iter().find(|(d, _)| *d == "local").expect("local");
        let mut tar = Command::new("tar")
            .args(["--no-same-owner", "-xf", "-", "-C"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("tar");
        tar.stdin.take().expect("input").write_all(local).expect("written");
        assert!(tar.wait().expect("waited").success());
        assert_eq!(std::fs::read(dir.path().join("a/b.txt")).expect("a file"), vec![7; 1000]);
        assert_eq!(std::fs::read(dir.path().join(&long["local/".len()..])).expect("a file"), b"long");
        let empty = std::fs::metadata(dir.path().join("e/f")).expect("a directory");
        assert!(empty.is_dir() && std::os::unix::fs::PermissionsExt::mode(&empty.permissions()) & 0o777 == 0o750);
        assert_eq!(all.iter().map(|(d, _)| *d).collect::<Vec<_>>(), DIRS);
        assert!(all.iter().all(|(_, bytes)| bytes.len() % BLOCK == 0));
    }
}
