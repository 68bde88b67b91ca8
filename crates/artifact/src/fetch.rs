//! One fetch from its first byte to its place: download, checksum, unpack, look at it, move it.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Seek},
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode as FileMode};

use crate::{
    archive,
    checksum::{Sum, Wanted, find},
    error::FetchError,
    git, http,
    isolation::ExtraPath,
    place::{self, Own, Placed},
    s3,
    source::{Getter, Mode, Source},
    spec::Spec,
    tree::Dir,
};

/// In the staging directory.
const DOWNLOAD: &str = "download";
const TREE: &str = "tree";
const LIST: &str = "checksums";

/// Carries out a fetch. Nothing is placed before everything has been verified.
pub(crate) fn fetch(spec: &Spec) -> Result<Placed, FetchError> {
    let root = Dir::open(&spec.root).map_err(FetchError::io(format!("open {}", spec.root.display())))?;
    let staging = root.descend(&spec.staging, |_| Ok(())).map_err(FetchError::io("open the staging directory"))?;
    let source = &spec.source;
    if !spec.headers.is_empty() && !matches!(source.getter, Getter::Http { .. }) {
        return Err(FetchError::Refused("headers are sent with http and https sources only".into()));
    }
    match &source.getter {
        Getter::Git { url, reference, ssh_key, depth } => {
            if let Some(path) = source.local_path() {
                offered_repository(&path, &spec.extra_paths)?;
            }
            let work: PathBuf =
                std::iter::once(spec.root.as_os_str()).chain(spec.staging.iter().map(OsStr::new)).collect();
            let (reference, ssh_key) = (reference.as_deref(), ssh_key.as_deref());
            git::clone(&git::Clone { url, reference, ssh_key, depth: *depth, insecure: spec.insecure }, &work, TREE)?;
        }
        Getter::File { path } => {
            let (parent, name) = offered(path, &spec.extra_paths)?;
            let kind = parent.kind(&name).map_err(FetchError::io(format!("look at {}", path.display())))?;
            match kind {
                Some(FileType::Directory) if source.checksum.is_none() => {
                    let from = parent.child(&name).map_err(FetchError::io(format!("open {}", path.display())))?;
                    copy_tree(&from, &stage_tree(&staging)?, &mut at_most(spec.limits.unpacked_files))?;
                }
                Some(FileType::Directory) => return Err(FetchError::Refused("a directory has no checksum".into())),
                Some(FileType::RegularFile) => {
                    let mut from = parent.file(&name).map_err(FetchError::io(format!("open {}", path.display())))?;
                    let mut into = new_file(&staging, DOWNLOAD)?;
                    io::copy(&mut from, &mut into).map_err(FetchError::io(format!("copy {}", path.display())))?;
                    finish_file(spec, &staging, into)?;
                }
                _ => return Err(FetchError::Refused(format!("{} is neither a file nor a directory", path.display()))),
            }
        }
        Getter::Http { url } => {
            let mut into = new_file(&staging, DOWNLOAD)?;
            download(spec, url, &mut into)?;
            finish_file(spec, &staging, into)?;
        }
        Getter::S3(object) => {
            let mut into = new_file(&staging, DOWNLOAD)?;
            s3::fetch(object, spec.insecure, spec.limits.http_max_bytes, jiff::Timestamp::now(), &mut into)?;
            finish_file(spec, &staging, into)?;
        }
    }
    let tree = staging.child(OsStr::new(TREE)).map_err(FetchError::io("open what was fetched"))?;
    deliver(spec, &root, tree)
}

fn new_file(dir: &Dir, name: &str) -> Result<File, FetchError> {
    dir.create(OsStr::new(name)).map_err(FetchError::io("create a file for the download"))
}

fn stage_tree(staging: &Dir) -> Result<Dir, FetchError> {
    staging
        .ensure(OsStr::new(TREE))
        .map(|(tree, _)| tree)
        .map_err(FetchError::io("make a directory for what is fetched"))
}

fn download(spec: &Spec, url: &str, into: &mut File) -> Result<u64, FetchError> {
    let request = http::Request {
        url,
        headers: &spec.headers,
        insecure: spec.insecure,
        redirects: http::REDIRECTS,
        max_bytes: spec.limits.http_max_bytes,
    };
    http::download(&request, into)
}

/// A downloaded file becomes the staged tree, if it is what was asked for.
fn finish_file(spec: &Spec, staging: &Dir, mut file: File) -> Result<(), FetchError> {
    let source = &spec.source;
    let mut rewind = || file.rewind().map_err(FetchError::io("read the download"));
    rewind()?;
    if let Some(wanted) = &source.checksum {
        let wanted = match wanted {
            Wanted::Sum(sum) => sum.clone(),
            Wanted::File(address) => listed(spec, staging, address)?,
        };
        let found = wanted.algorithm.of(&mut file).map_err(FetchError::io("read the download"))?;
        if found != wanted.value {
            let found = Sum { algorithm: wanted.algorithm, value: found };
            return Err(FetchError::Checksum { wanted: wanted.to_string(), found: found.to_string() });
        }
        file.rewind().map_err(FetchError::io("read the download"))?;
    }
    let tree = stage_tree(staging)?;
    if let Some(kind) = source.archive {
        archive::unpack(kind, file, &source.name, &tree, &spec.limits)?;
        return staging.unlink(OsStr::new(DOWNLOAD)).map_err(FetchError::io("remove the archive"));
    }
    if spec.mode == Mode::Dir {
        return Err(FetchError::Refused(
            "mode \"dir\" needs an archive, a directory or a git repository; the source is a plain file".into(),
        ));
    }
    if source.name.is_empty() && spec.mode != Mode::File {
        return Err(FetchError::Refused(
            "the source names no file: set option \"filename\", or mode = \"file\"".into(),
        ));
    }
    let name = if source.name.is_empty() { OsStr::new(DOWNLOAD) } else { OsStr::new(&source.name) };
    rustix::fs::fchmod(&file, FileMode::from_raw_mode(0o644))
        .map_err(|e| FetchError::io("set the mode of the download")(e.into()))?;
    place::move_one(staging, OsStr::new(DOWNLOAD), &tree, name)
}

/// The digest that a file of digests has for the artifact.
fn listed(spec: &Spec, staging: &Dir, address: &str) -> Result<Sum, FetchError> {
    let list = Source::parse(address, &[("archive".to_owned(), "false".to_owned())].into())
        .map_err(|e| FetchError::Refused(format!("checksum file:{address}: {e}")))?;
    let Getter::Http { url } = &list.getter else {
        return Err(FetchError::Refused(format!(
            "checksum file:{address}: files of checksums are fetched by http and https only"
        )));
    };
    let mut file = new_file(staging, LIST)?;
    // Headers of the job are for the artifact's own host.
    let request = http::Request {
        url,
        headers: &std::collections::BTreeMap::new(),
        insecure: spec.insecure,
        redirects: http::REDIRECTS,
        max_bytes: 1 << 20,
    };
    http::download(&request, &mut file)?;
    file.rewind().map_err(FetchError::io("read the checksums"))?;
    let text = io::read_to_string(file).map_err(FetchError::io("read the checksums"))?;
    let name = &spec.source.name;
    find(&text, name).ok_or_else(|| FetchError::NoChecksum { list: http::shown(url), name: name.clone() })
}

/// Looks at what was staged and moves it to the destination, on disk.
fn deliver(spec: &Spec, root: &Dir, tree: Dir) -> Result<Placed, FetchError> {
    let give = |dir: &Dir| spec.owner.map_or(Ok(()), |owner| dir.give_self(owner));
    let subdir = &spec.source.subdir;
    let mut parts: Vec<OsString> = subdir.split('/').filter(|p| !matches!(*p, "" | ".")).map(OsString::from).collect();
    let missing = |_| FetchError::Place(format!("what was fetched has no directory {subdir:?}"));
    let single = if spec.mode == Mode::File { parts.pop() } else { None };
    let mut from = tree;
    for part in &parts {
        from = from.child(part).map_err(missing)?;
    }
    let in_the_way = |e: io::Error| match e.kind() {
        io::ErrorKind::NotADirectory => FetchError::Place(format!(
            "destination {:?} lies below what is a file or a link",
            spec.destination.join("/")
        )),
        _ => FetchError::Io { doing: format!("make the destination {:?}", spec.destination.join("/")), source: e },
    };
    let own = Own::of(root, &spec.staging)?;
    if let Some(own) = &own {
        own.keep_out(root, &spec.destination)?;
    }
    let keep_off = |to: &Dir, names: &[OsString]| own.as_ref().map_or(Ok(()), |own| own.keep_off(to, names));
    let (placed, at) = if spec.mode == Mode::File {
        let Some((name, parents)) = spec.destination.split_last() else {
            return Err(FetchError::Place("mode \"file\" needs a destination that names the file".into()));
        };
        let single = match single {
            Some(name) => name,
            None => only_file(&mut from)?,
        };
        let file = from
            .file(&single)
            .map_err(|_| FetchError::Place(format!("what was fetched has no regular file {single:?}")))?;
        let bytes = file.metadata().map_err(FetchError::io("look at what was fetched"))?.len();
        if let Some(owner) = spec.owner {
            from.give(&single, owner).map_err(FetchError::io("give the file to the task's user"))?;
        }
        let parent = root.descend(parents, give).map_err(in_the_way)?;
        keep_off(&parent, &[OsString::from(name)])?;
        place::move_one(&from, &single, &parent, OsStr::new(name))?;
        (Placed { files: 1, bytes }, parent)
    } else {
        let placed = place::inspect(&from, spec.owner)?;
        let to = root.descend(&spec.destination, give).map_err(in_the_way)?;
        keep_off(&to, &from.names().map_err(FetchError::io("list what was fetched"))?)?;
        place::merge(&from, &to)?;
        (placed, to)
    };
    rustix::fs::syncfs(&at).map_err(|e| FetchError::io("write the artifact to disk")(e.into()))?;
    Ok(placed)
}

/// The one file of a tree, with the directory moved to where it lies.
fn only_file(dir: &mut Dir) -> Result<OsString, FetchError> {
    loop {
        let names = dir.names().map_err(FetchError::io("list what was fetched"))?;
        let [name] = names.as_slice() else {
            return Err(FetchError::Place(
                "mode \"file\" needs a source with exactly one file; take it out of the others with //PATH".into(),
            ));
        };
        if dir.kind(name).map_err(FetchError::io("look at what was fetched"))? != Some(FileType::Directory) {
            return Ok(name.clone());
        }
        *dir = dir.child(name).map_err(FetchError::io("open what was fetched"))?;
    }
}

fn not_offered(path: &Path) -> FetchError {
    FetchError::Refused(format!(
        "this node does not offer {} to jobs: its operator names readable directories in \
            filesystem_isolation_extra_paths of the agent's artifact block",
        path.display()
    ))
}

/// The directory and name of a file that the operator offers; links on the way are not followed.
fn offered(path: &Path, extra: &[ExtraPath]) -> Result<(Dir, OsString), FetchError> {
    let offer =
        extra.iter().filter(|e| e.directory && e.read).find_map(|e| Some((e, path.strip_prefix(&e.path).ok()?)));
    let Some((offer, below)) = offer else { return Err(not_offered(path)) };
    let mut names: Vec<OsString> = below.components().map(|c| c.as_os_str().to_owned()).collect();
    if names.iter().any(|n| n == "..") {
        return Err(not_offered(path));
    }
    let opened =
        |e: io::Error| FetchError::Io { doing: format!("open {} (links are not followed)", path.display()), source: e };
    // The offered directory itself: its last name is the entry.
    let mut base = offer.path.clone();
    if names.is_empty() {
        let Some(last) = base.file_name().map(OsStr::to_owned) else { return Err(not_offered(path)) };
        base.pop();
        names.push(last);
    }
    let name = names.pop().unwrap_or_default();
    let mut dir = Dir::open(&base).map_err(opened)?;
    for part in &names {
        dir = dir.child(part).map_err(opened)?;
    }
    Ok((dir, name))
}

/// git follows links by itself: the real path counts.
fn offered_repository(path: &Path, extra: &[ExtraPath]) -> Result<(), FetchError> {
    let real = path.canonicalize().map_err(FetchError::io(format!("look for {}", path.display())))?;
    let mut offers = extra.iter().filter(|e| e.directory && e.read).filter_map(|e| e.path.canonicalize().ok());
    if offers.any(|offer| real.starts_with(offer)) { Ok(()) } else { Err(not_offered(path)) }
}

/// Bounds as operators write them: 0 = none.
fn at_most(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

fn copy_tree(from: &Dir, to: &Dir, left: &mut u64) -> Result<(), FetchError> {
    let failed = |name: &OsStr| FetchError::io(format!("copy {:?}", name.to_string_lossy()));
    for name in from.names().map_err(FetchError::io("list the source"))? {
        *left = left.checked_sub(1).ok_or_else(|| {
            FetchError::Refused(
                "it has too many files (decompression_file_count_limit of the agent's artifact block)".into(),
            )
        })?;
        match from.kind(&name).map_err(failed(&name))? {
            Some(FileType::Directory) => {
                let (below, _) = to.ensure(&name).map_err(failed(&name))?;
                copy_tree(&from.child(&name).map_err(failed(&name))?, &below, left)?;
            }
            Some(FileType::Symlink) => {
                let target = from.link_target(&name).map_err(failed(&name))?;
                to.symlink(&target, &name).map_err(failed(&name))?;
            }
            Some(FileType::RegularFile) => {
                let mut source = from.file(&name).map_err(failed(&name))?;
                let mode = rustix::fs::fstat(&source).map_err(|e| failed(&name)(e.into()))?.st_mode & 0o777;
                let mut target = to.create(&name).map_err(failed(&name))?;
                io::copy(&mut source, &mut target).map_err(failed(&name))?;
                rustix::fs::fchmod(&target, FileMode::from_raw_mode(mode)).map_err(|e| failed(&name)(e.into()))?;
            }
            _ => {
                return Err(FetchError::Refused(format!("{:?} is no file, directory or link", name.to_string_lossy())));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
