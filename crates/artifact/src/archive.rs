//! Archives into a directory: names and links are checked before anything is made, and what comes out is counted
//! against the operator's limits.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufReader, Read, Seek, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use rustix::fs::{AtFlags, FileType, Mode};
use serde::{Deserialize, Serialize};

use crate::{
    error::FetchError,
    spec::Limits,
    tree::{Dir, link_stays, names_of},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Container {
    Tar,
    Zip,
    /// One file, compressed.
    Single,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Compression {
    None,
    Gz,
    Bz2,
    Xz,
    Zst,
}

/// A format that can be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    container: Container,
    compression: Compression,
}

/// Name by suffix and option, longer ones before those that end in the same.
const KINDS: [(&str, Container, Compression); 14] = [
    ("tar.bz2", Container::Tar, Compression::Bz2),
    ("tar.zst", Container::Tar, Compression::Zst),
    ("tar.gz", Container::Tar, Compression::Gz),
    ("tar.xz", Container::Tar, Compression::Xz),
    ("tbz2", Container::Tar, Compression::Bz2),
    ("tzst", Container::Tar, Compression::Zst),
    ("tgz", Container::Tar, Compression::Gz),
    ("txz", Container::Tar, Compression::Xz),
    ("tar", Container::Tar, Compression::None),
    ("zip", Container::Zip, Compression::None),
    ("bz2", Container::Single, Compression::Bz2),
    ("zst", Container::Single, Compression::Zst),
    ("gz", Container::Single, Compression::Gz),
    ("xz", Container::Single, Compression::Xz),
];

/// Memory that an xz stream may ask for.
const XZ_MEMORY: u64 = 256 << 20;

impl Kind {
    #[cfg(test)]
    pub(crate) const TAR_GZ: Self = Self { container: Container::Tar, compression: Compression::Gz };

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        KINDS
            .iter()
            .find(|(n, ..)| *n == name)
            .map(|(_, container, compression)| Self { container: *container, compression: *compression })
    }

    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::by_name(Self::suffix(path)?)
    }

    fn suffix(path: &str) -> Option<&'static str> {
        KINDS
            .iter()
            .map(|(name, ..)| *name)
            .find(|name| path.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')))
    }

    pub(crate) fn names() -> String {
        KINDS.map(|(name, ..)| name).join(", ")
    }

    /// What the one file of a plain compression is called.
    fn inner_name(self, name: &str) -> String {
        let inner = Self::suffix(name).and_then(|suffix| name.strip_suffix(suffix)?.strip_suffix('.'));
        inner.filter(|inner| !inner.is_empty()).unwrap_or(if name.is_empty() { "file" } else { name }).to_owned()
    }
}

/// What may still come out.
struct Budget {
    files: u64,
    bytes: u64,
    limits: Limits,
}

impl Budget {
    fn new(limits: &Limits) -> Self {
        let bound = |n: u64| if n == 0 { u64::MAX } else { n };
        Self { files: bound(limits.unpacked_files), bytes: bound(limits.unpacked_bytes), limits: limits.clone() }
    }

    fn entry(&mut self) -> Result<(), FetchError> {
        self.files = self.files.checked_sub(1).ok_or_else(|| {
            let limit = self.limits.unpacked_files;
            FetchError::Archive(format!(
                "it has more than {limit} entries (decompression_file_count_limit of the agent's artifact block)"
            ))
        })?;
        Ok(())
    }

    fn copy(&mut self, mut from: impl Read, to: &mut impl Write) -> Result<(), FetchError> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n = match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(damaged(e)),
            };
            self.bytes = self.bytes.checked_sub(n as u64).ok_or(FetchError::TooLarge {
                limit: self.limits.unpacked_bytes,
                option: "decompression_size_limit",
            })?;
            to.write_all(&buffer[..n]).map_err(FetchError::io("write what was unpacked"))?;
        }
    }
}

fn damaged(error: impl std::fmt::Display) -> FetchError {
    FetchError::Archive(format!("it is damaged or incomplete: {error}"))
}

fn refused(why: String) -> FetchError {
    FetchError::Archive(format!("{why}; nothing of the archive was kept"))
}

/// Unpacks into an empty directory that nobody else uses.
pub(crate) fn unpack(kind: Kind, archive: File, name: &str, into: &Dir, limits: &Limits) -> Result<(), FetchError> {
    let mut budget = Budget::new(limits);
    if kind.container == Container::Zip {
        return unpack_zip(archive, into, &mut budget);
    }
    let input = BufReader::with_capacity(1 << 16, archive);
    let plain: Box<dyn Read> = match kind.compression {
        Compression::None => Box::new(input),
        Compression::Gz => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Compression::Bz2 => Box::new(bzip2::bufread::MultiBzDecoder::new(input)),
        Compression::Xz => {
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)
                .map_err(damaged)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
        }
        Compression::Zst => Box::new(zstd::stream::read::Decoder::with_buffer(input).map_err(damaged)?),
    };
    if kind.container == Container::Tar {
        return unpack_tar(plain, into, &mut budget);
    }
    budget.entry()?;
    write_file(into, &[OsString::from(kind.inner_name(name))], 0o644, plain, &mut budget)
}

fn unpack_tar(plain: impl Read, into: &Dir, budget: &mut Budget) -> Result<(), FetchError> {
    let mut archive = tar::Archive::new(plain);
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let kind = entry.header().entry_type();
        if matches!(kind, tar::EntryType::XGlobalHeader) {
            continue;
        }
        budget.entry()?;
        let names = names_of(&entry.path_bytes()).map_err(refused)?;
        let mode = entry.header().mode().map_err(damaged)?;
        let target = entry.link_name_bytes().map(|t| t.into_owned());
        match kind {
            tar::EntryType::Directory => make_directory(into, &names, mode)?,
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                write_file(into, &names, mode, &mut entry, budget)?;
            }
            tar::EntryType::Symlink => make_link(into, &names, &OsString::from_vec(target.unwrap_or_default()))?,
            tar::EntryType::Link => hard_link(into, &names, &names_of(&target.unwrap_or_default()).map_err(refused)?)?,
            other => {
                let what = match other {
                    tar::EntryType::Block | tar::EntryType::Char => "a device".to_owned(),
                    tar::EntryType::Fifo => "a FIFO".to_owned(),
                    other => format!("an entry of type {:?}", char::from(other.as_byte())),
                };
                return Err(refused(format!("{:?} is {what}, which is not unpacked", shown(&names))));
            }
        }
    }
    Ok(())
}

fn unpack_zip(archive: impl Read + Seek, into: &Dir, budget: &mut Budget) -> Result<(), FetchError> {
    let mut zip = zip::ZipArchive::new(archive).map_err(damaged)?;
    for index in 0..zip.len() {
        budget.entry()?;
        let mut entry = zip.by_index(index).map_err(damaged)?;
        let names = names_of(entry.name_raw()).map_err(refused)?;
        let mode = entry.unix_mode();
        if entry.is_dir() {
            make_directory(into, &names, mode.unwrap_or(0o755))?;
            continue;
        }
        match mode.map(FileType::from_raw_mode) {
            Some(FileType::Symlink) => {
                let mut target = Vec::new();
                budget.copy((&mut entry).take(4096), &mut target)?;
                make_link(into, &names, OsStr::from_bytes(&target))?;
            }
            None | Some(FileType::RegularFile | FileType::Unknown) => {
                write_file(into, &names, mode.unwrap_or(0o644), &mut entry, budget)?;
            }
            Some(_) => return Err(refused(format!("{:?} is neither file, directory nor link", shown(&names)))),
        }
    }
    Ok(())
}

fn shown(names: &[OsString]) -> String {
    names.iter().map(|n| n.to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// The directory that an entry lies in and its name there.
fn place<'n>(into: &Dir, names: &'n [OsString]) -> Result<(Dir, &'n OsStr), FetchError> {
    let Some((name, parents)) = names.split_last() else {
        return Err(refused("an entry has no name".into()));
    };
    let parent = into.descend(parents, |_| Ok(())).map_err(|e| in_the_way(names, &e))?;
    Ok((parent, name))
}

fn in_the_way(names: &[OsString], error: &io::Error) -> FetchError {
    match error.kind() {
        io::ErrorKind::NotADirectory => refused(format!("{:?} lies below what is a file or a link", shown(names))),
        io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => {
            refused(format!("{:?} cannot be a name here: {error}", shown(names)))
        }
        _ => FetchError::Io {
            doing: format!("unpack {:?}", shown(names)),
            source: io::Error::new(error.kind(), error.to_string()),
        },
    }
}

/// Makes room for an entry: the later one of a name counts, but files do not replace directories.
fn clear(parent: &Dir, name: &OsStr, names: &[OsString]) -> Result<(), FetchError> {
    match parent.kind(name).map_err(|e| in_the_way(names, &e))? {
        None => Ok(()),
        Some(FileType::Directory) => Err(refused(format!("{:?} is a directory and something else", shown(names)))),
        Some(_) => parent.unlink(name).map_err(|e| in_the_way(names, &e)),
    }
}

fn permissions(mode: u32) -> Mode {
    // Neither set-user-id nor set-group-id nor sticky.
    Mode::from_raw_mode(mode & 0o777)
}

fn make_directory(into: &Dir, names: &[OsString], mode: u32) -> Result<(), FetchError> {
    let dir = into.descend(names, |_| Ok(())).map_err(|e| in_the_way(names, &e))?;
    if names.is_empty() {
        return Ok(());
    }
    // Further entries go into it.
    rustix::fs::fchmod(&dir, permissions(mode | 0o700)).map_err(|e| in_the_way(names, &e.into()))
}

fn write_file(
    into: &Dir,
    names: &[OsString],
    mode: u32,
    content: impl Read,
    budget: &mut Budget,
) -> Result<(), FetchError> {
    let (parent, name) = place(into, names)?;
    clear(&parent, name, names)?;
    let mut file = parent.create(name).map_err(|e| in_the_way(names, &e))?;
    budget.copy(content, &mut file)?;
    rustix::fs::fchmod(&file, permissions(mode)).map_err(|e| in_the_way(names, &e.into()))
}

fn make_link(into: &Dir, names: &[OsString], target: &OsStr) -> Result<(), FetchError> {
    let (parent, name) = place(into, names)?;
    link_stays(target, names.len() - 1).map_err(|why| refused(format!("{:?} is {why}", shown(names))))?;
    clear(&parent, name, names)?;
    parent.symlink(target, name).map_err(|e| in_the_way(names, &e))
}

fn hard_link(into: &Dir, names: &[OsString], target: &[OsString]) -> Result<(), FetchError> {
    let missing = || {
        refused(format!("{:?} is a hard link to {:?}, which is no file of the archive", shown(names), shown(target)))
    };
    let Some((target_name, parents)) = target.split_last() else {
        return Err(missing());
    };
    let mut from = into.duplicate().map_err(|e| in_the_way(target, &e))?;
    for part in parents {
        from = from.child(part).map_err(|_| missing())?;
    }
    if from.kind(target_name).map_err(|e| in_the_way(target, &e))? != Some(FileType::RegularFile) {
        return Err(missing());
    }
    let (parent, name) = place(into, names)?;
    if names == target {
        return Ok(());
    }
    clear(&parent, name, names)?;
    rustix::fs::linkat(&from, target_name, &parent, name, AtFlags::empty()).map_err(|e| in_the_way(names, &e.into()))
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
