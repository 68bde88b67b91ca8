//! What `artifact.source` and `artifact.options` mean: pure, so that a wrong source is refused before anything is
//! started.
//!
//! The language is go-getter's: `FORCED::ADDRESS//SUBDIRECTORY?OPTIONS`, with shorthands for well-known hosts. The
//! options of the job file are options of the address by another spelling.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    archive::Kind,
    checksum::Wanted,
    s3::{self, Object},
    uri::{self, Uri},
};

/// What the destination becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// A directory that holds what was fetched.
    #[default]
    Any,
    /// The file itself.
    File,
    /// A directory.
    Dir,
}

impl Mode {
    /// As written in a job file; empty = any.
    ///
    /// # Errors
    /// Names what can be written.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        match text {
            "" | "any" => Ok(Self::Any),
            "file" => Ok(Self::File),
            "dir" => Ok(Self::Dir),
            other => Err(SourceError::Mode(other.to_owned())),
        }
    }
}

/// Why a source is refused. Never transient.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No such mode.
    #[error("mode {0:?} is not known; use \"any\", \"file\" or \"dir\"")]
    Mode(String),
    /// No such way to fetch.
    #[error("artifacts are not fetched by {getter:?}: {instead}")]
    Getter {
        /// As written.
        getter: String,
        /// What to do.
        instead: &'static str,
    },
    /// An address without a scheme that no shorthand stands for.
    #[error("{0:?} names no scheme; write https://…, s3::https://… or git::https://…")]
    NoScheme(String),
    /// Something is wrong with an option.
    #[error("option {name:?}: {why}")]
    Option {
        /// Its name.
        name: &'static str,
        /// Why it cannot be.
        why: String,
    },
    /// The source asks for a combination that does not exist.
    #[error("{0}")]
    Combination(String),
}

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Getter {
    /// By HTTP.
    Http {
        /// Address without our own options.
        url: String,
    },
    /// From this host; only below directories that the operator offers.
    File {
        /// Absolute.
        path: PathBuf,
    },
    /// By the `git` of this host.
    Git {
        /// What git gets.
        url: String,
        /// Branch, tag or commit.
        reference: Option<String>,
        /// Private key for ssh, base64 of its file.
        ssh_key: Option<String>,
        /// Commits of history.
        depth: Option<u32>,
    },
    /// One object of S3 or of something that speaks the same.
    S3(Object),
}

/// A source that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// From where.
    pub getter: Getter,
    /// Only this part of what was fetched; empty = all.
    pub subdir: String,
    /// What it is unpacked as; `None` = not at all.
    pub archive: Option<Kind>,
    /// What it must be.
    pub checksum: Option<Wanted>,
    /// File name below the destination.
    pub name: String,
}

const GIT_HOSTS: [&str; 3] = ["github.com/", "gitlab.com/", "bitbucket.org/"];

impl Source {
    /// Reads a source with its options.
    ///
    /// # Errors
    /// What is wrong with it or not fetched by this release, and what to write instead.
    pub fn parse(source: &str, options: &BTreeMap<String, String>) -> Result<Self, SourceError> {
        let (forced, address) = forced(source.trim());
        let (address, shorthand) = expand(address);
        let getter = forced.or(shorthand);
        let (address, subdir) = split_subdir(&address);
        let Some(mut uri) = Uri::parse(&address) else {
            return match (getter, address.strip_prefix('/')) {
                (None | Some("file"), Some(_)) => Self::finish_file(&address, subdir, options),
                (Some("git"), Some(_)) => Self::git(Uri::parse(&format!("file://{address}")), address, subdir, options),
                (Some("git"), None) if scp_like(&address) => Self::git(None, address, subdir, options),
                _ => Err(SourceError::NoScheme(address)),
            };
        };
        for (name, value) in options {
            uri.query.push((uri::encode(name, false), uri::encode(value, false)));
        }
        let getter = getter.unwrap_or(uri.scheme.as_str()).to_owned();
        match getter.as_str() {
            "http" | "https" => {
                if !matches!(uri.scheme.as_str(), "http" | "https") {
                    return Err(SourceError::Combination(format!(
                        "{getter}:: needs an http or https address, not {}://",
                        uri.scheme
                    )));
                }
                let common = Common::take(&mut uri)?;
                let name = common.name(&uri::decode_path(uri.path.rsplit('/').next().unwrap_or_default()))?;
                let source = Self {
                    getter: Getter::Http { url: uri.to_string() },
                    subdir,
                    archive: common.archive(&uri.path),
                    checksum: common.checksum.clone(),
                    name,
                };
                source.checked()
            }
            "file" => {
                if !uri.authority.is_empty() {
                    return Err(SourceError::Combination("a file source is written file:///path".into()));
                }
                let common = Common::take(&mut uri)?;
                Self::file(&uri::decode_path(&uri.path), subdir, &common)
            }
            "git" => {
                let text = uri.to_string();
                Self::git(Some(uri), text, subdir, &BTreeMap::new())
            }
            "s3" => {
                let common = Common::take(&mut uri)?;
                let object = s3::object(&mut uri)?;
                let name = common.name(object.key.rsplit('/').next().unwrap_or_default())?;
                let archive = common.archive(&object.key);
                Self { getter: Getter::S3(object), subdir, archive, checksum: common.checksum, name }.checked()
            }
            "ssh" => Self::git(Some(uri.clone()), uri.to_string(), subdir, &BTreeMap::new()),
            other => Err(not_fetched(other)),
        }
    }

    fn finish_file(path: &str, subdir: String, options: &BTreeMap<String, String>) -> Result<Self, SourceError> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let text = format!("file://{}?{query}", uri::encode(path, true));
        let mut uri = Uri::parse(&text).ok_or_else(|| SourceError::NoScheme(path.to_owned()))?;
        uri.query.extend(options.iter().map(|(k, v)| (uri::encode(k, false), uri::encode(v, false))));
        let common = Common::take(&mut uri)?;
        Self::file(path, subdir, &common)
    }

    fn file(path: &str, subdir: String, common: &Common) -> Result<Self, SourceError> {
        let trimmed = path.trim_end_matches('/');
        let name = common.name(trimmed.rsplit('/').next().unwrap_or_default())?;
        let archive = common.archive(trimmed);
        Self {
            getter: Getter::File { path: PathBuf::from(trimmed) },
            subdir,
            archive,
            checksum: common.checksum.clone(),
            name,
        }
        .checked()
    }

    fn git(
        uri: Option<Uri>,
        address: String,
        subdir: String,
        options: &BTreeMap<String, String>,
    ) -> Result<Self, SourceError> {
        // `user@host:path` is no address, but it may have a query.
        let (mut uri, scp) = match uri {
            Some(uri) => (uri, None),
            None => {
                let (path, query) = address.split_once('?').unwrap_or((&address, ""));
                let parsed =
                    Uri::parse(&format!("ssh://scp/?{query}")).ok_or_else(|| SourceError::NoScheme(address.clone()))?;
                (parsed, Some(path.to_owned()))
            }
        };
        uri.query.extend(options.iter().map(|(k, v)| (uri::encode(k, false), uri::encode(v, false))));
        let common = Common::take(&mut uri)?;
        if common.checksum.is_some() {
            return Err(option("checksum", "a git source is a directory; name the commit with option \"ref\" instead"));
        }
        if common.archive.is_some_and(|a| a.is_some()) || common.name.is_some() {
            return Err(SourceError::Combination(
                "a git source is a directory: options \"archive\" and \"filename\" mean nothing".into(),
            ));
        }
        let reference = uri.take("ref");
        if reference.as_ref().is_some_and(|r| r.starts_with('-') || r.chars().any(char::is_control)) {
            return Err(option("ref", "it must be the name of a branch or tag, or a commit"));
        }
        let ssh_key = uri.take("sshkey");
        let depth = match uri.take("depth").as_deref() {
            None | Some("0") => None,
            Some(text) => Some(text.parse().map_err(|_| option("depth", "it must be a number of commits"))?),
        };
        if !matches!(uri.scheme.as_str(), "http" | "https" | "ssh" | "git" | "file") {
            return Err(not_fetched(&format!("git::{}", uri.scheme)));
        }
        if let Some(unknown) = uri.query.first().filter(|_| scp.is_some()) {
            return Err(SourceError::Combination(format!("option {:?} means nothing to git", unknown.0)));
        }
        let url = scp.unwrap_or_else(|| uri.to_string());
        Self {
            getter: Getter::Git { url, reference, ssh_key, depth },
            subdir,
            archive: None,
            checksum: None,
            name: String::new(),
        }
        .checked()
    }

    fn checked(self) -> Result<Self, SourceError> {
        if self.subdir.split('/').any(|part| part == "..") {
            return Err(SourceError::Combination(format!(
                "the subdirectory {:?} leaves what was fetched",
                self.subdir
            )));
        }
        if self.subdir.contains(['*', '?', '[']) {
            return Err(SourceError::Combination(format!(
                "patterns in subdirectories are not matched: write {:?} in full",
                self.subdir
            )));
        }
        let directory = matches!(self.getter, Getter::Git { .. } | Getter::File { .. });
        if !self.subdir.is_empty() && self.archive.is_none() && !directory {
            return Err(SourceError::Combination(format!(
                "{:?} can only be taken out of an archive, and the source is none",
                self.subdir
            )));
        }
        Ok(self)
    }

    /// The local path that it reads, which the operator must offer.
    #[must_use]
    pub fn local_path(&self) -> Option<PathBuf> {
        match &self.getter {
            Getter::File { path } => Some(path.clone()),
            Getter::Git { url, .. } => url.strip_prefix("file://").map(|path| PathBuf::from(uri::decode_path(path))),
            Getter::Http { .. } | Getter::S3(_) => None,
        }
    }
}

fn option(name: &'static str, why: &str) -> SourceError {
    SourceError::Option { name, why: why.to_owned() }
}

fn not_fetched(getter: &str) -> SourceError {
    let instead = match getter {
        "hg" => "use git, or an archive by https",
        "gcs" | "gs" => "use the https address of the object, signed if it is not public",
        _ => "there are http, https, git, s3 and file",
    };
    SourceError::Getter { getter: getter.to_owned(), instead }
}

/// Options that every source takes.
struct Common {
    checksum: Option<Wanted>,
    /// `Some(None)` = unpack nothing.
    archive: Option<Option<Kind>>,
    name: Option<String>,
}

impl Common {
    fn take(uri: &mut Uri) -> Result<Self, SourceError> {
        let checksum = uri.take("checksum").filter(|c| !c.is_empty());
        let checksum = checksum
            .map(|c| Wanted::parse(&c).map_err(|why| SourceError::Option { name: "checksum", why }))
            .transpose()?;
        let archive = match uri.take("archive").as_deref() {
            None | Some("" | "true" | "1") => None,
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Some(None),
            Some(name) => match Kind::by_name(name) {
                Some(kind) => Some(Some(kind)),
                None => {
                    return Err(SourceError::Option {
                        name: "archive",
                        why: format!("{name:?} is not an archive format; there are {}, and false", Kind::names()),
                    });
                }
            },
        };
        Ok(Self { checksum, archive, name: uri.take("filename").filter(|n| !n.is_empty()) })
    }

    fn archive(&self, path: &str) -> Option<Kind> {
        self.archive.unwrap_or_else(|| Kind::of_path(path))
    }

    /// The option, or else the last name of the decoded path.
    fn name(&self, from_path: &str) -> Result<String, SourceError> {
        let name = self.name.clone().unwrap_or_else(|| from_path.to_owned());
        if name.contains(['/', '\0']) || name == ".." || name == "." {
            return Err(option("filename", "it must be one name, without slashes"));
        }
        Ok(name)
    }
}

/// `git::rest`.
fn forced(source: &str) -> (Option<&str>, &str) {
    match source.split_once("::") {
        Some((forced, rest)) if !forced.is_empty() && forced.bytes().all(|b| b.is_ascii_alphanumeric()) => {
            (Some(forced), rest)
        }
        _ => (None, source),
    }
}

/// Shorthands: an address in full and the getter that they imply.
fn expand(address: &str) -> (String, Option<&'static str>) {
    if address.contains("://") {
        return (address.to_owned(), None);
    }
    if let Some(host) = GIT_HOSTS.iter().find(|host| address.starts_with(**host)) {
        // HOST/OWNER/REPOSITORY[/more]: what follows is a subdirectory.
        let (path, query) =
            address.split_once('?').map_or((address, String::new()), |(path, query)| (path, format!("?{query}")));
        let (repository, marked) = path.split_once("//").map_or((path, None), |(repo, sub)| (repo, Some(sub)));
        // `HOST//…` names no owner at all.
        let parts: Vec<&str> = repository.get(host.len()..).unwrap_or_default().splitn(3, '/').collect();
        if let [owner, name, rest @ ..] = parts.as_slice() {
            let name = name.strip_suffix(".git").unwrap_or(name);
            let sub = marked
                .or(rest.first().copied())
                .filter(|s| !s.is_empty())
                .map(|s| format!("//{s}"))
                .unwrap_or_default();
            return (format!("https://{host}{owner}/{name}.git{sub}{query}"), Some("git"));
        }
    }
    if scp_like(address) {
        return (address.to_owned(), Some("git"));
    }
    let host = address.split('/').next().unwrap_or_default();
    if host.ends_with(".amazonaws.com") && host.contains("s3") {
        return (format!("https://{address}"), Some("s3"));
    }
    (address.to_owned(), None)
}

/// `user@host:path`.
fn scp_like(address: &str) -> bool {
    let Some((host, path)) = address.split_once(':') else { return false };
    host.contains('@') && !host.contains('/') && !path.is_empty() && !host.starts_with('-')
}

/// Splits `ADDRESS//SUB?QUERY` into the address with its query, and the subdirectory.
fn split_subdir(address: &str) -> (String, String) {
    let (before, query) =
        address.split_once('?').map_or((address, String::new()), |(before, query)| (before, format!("?{query}")));
    let begin = before.find("://").map_or(0, |at| at + 3);
    // `file:///…` has its slashes side by side.
    let from = begin + usize::from(before[begin..].starts_with('/'));
    match before[from..].find("//") {
        Some(at) => {
            let (head, sub) = before.split_at(from + at);
            (format!("{head}{query}"), sub.trim_matches('/').to_owned())
        }
        None => (address.to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(source: &str, options: &[(&str, &str)]) -> Result<Source, SourceError> {
        Source::parse(source, &options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn http_sources_keep_their_own_query() {
        for (text, url, name, archive, subdir) in [
            ("https://h/a/b.txt", "https://h/a/b.txt", "b.txt", None, ""),
            ("http://h:1/b.tar.gz?token=x%2Fy&archive=false", "http://h:1/b.tar.gz?token=x%2Fy", "b.tar.gz", None, ""),
            ("http://h/b.tgz", "http://h/b.tgz", "b.tgz", Some(Kind::TAR_GZ), ""),
            (
                "http://h/b.tar.zst//in/side?x=1",
                "http://h/b.tar.zst?x=1",
                "b.tar.zst",
                Kind::by_name("tar.zst"),
                "in/side",
            ),
            ("http://h/b?archive=zip", "http://h/b", "b", Kind::by_name("zip"), ""),
            ("http::https://h/b%20c.gz", "https://h/b%20c.gz", "b c.gz", Kind::by_name("gz"), ""),
            ("https://h/a+b%2B%25.txt", "https://h/a+b%2B%25.txt", "a+b+%.txt", None, ""),
            ("https://h/x?filename=y.zip", "https://h/x", "y.zip", None, ""),
        ] {
            let source = parse(text, &[]).expect(text);
            assert_eq!(source.getter, Getter::Http { url: url.into() }, "{text}");
            assert_eq!(
                (source.name.as_str(), source.archive, source.subdir.as_str()),
                (name, archive, subdir),
                "{text}"
            );
        }
        let source = parse("https://h/a", &[("checksum", "md5:d41d8cd98f00b204e9800998ecf8427e"), ("q", "a b")])
            .expect("source");
        assert_eq!(source.getter, Getter::Http { url: "https://h/a?q=a%20b".into() });
        assert!(source.checksum.is_some());
    }

    #[test]
    fn git_sources() {
        let git = |url: &str, reference: Option<&str>, depth| Getter::Git {
            url: url.into(),
            reference: reference.map(str::to_owned),
            ssh_key: None,
            depth,
        };
        for (text, getter, subdir) in [
            ("git::https://h/r.git?ref=v1&depth=3", git("https://h/r.git", Some("v1"), Some(3)), ""),
            ("git::ssh://git@h/r.git//sub/dir", git("ssh://git@h/r.git", None, None), "sub/dir"),
            ("github.com/o/r//sub?ref=main", git("https://github.com/o/r.git", Some("main"), None), "sub"),
            ("github.com/o/r/sub/x", git("https://github.com/o/r.git", None, None), "sub/x"),
            ("git@github.com:o/r.git?ref=a", git("git@github.com:o/r.git", Some("a"), None), ""),
            ("git::git@h:o/r.git", git("git@h:o/r.git", None, None), ""),
            ("git::/srv/r", git("file:///srv/r", None, None), ""),
        ] {
            let source = parse(text, &[]).expect(text);
            assert_eq!((source.getter, source.subdir.as_str()), (getter, subdir), "{text}");
        }
        assert_eq!(parse("git::/srv/r", &[]).expect("source").local_path(), Some("/srv/r".into()));
        assert_eq!(
            parse("s3::http://h/bucket/dir/a%20b%2Bc%2541", &[]).expect("source").name,
            "a b+c%41",
            "decoded once"
        );
        let key = parse("git::ssh://h/r", &[("sshkey", "a2V5"), ("ref", "x")]).expect("source");
        assert!(
            matches!(key.getter, Getter::Git { ssh_key: Some(k), reference: Some(r), .. } if k == "a2V5" && r == "x")
        );
    }

    #[test]
    fn files_of_the_host() {
        for text in ["/srv/a.zip", "file:///srv/a.zip", "file::/srv/a.zip"] {
            let source = parse(text, &[]).expect(text);
            assert_eq!(source.local_path(), Some("/srv/a.zip".into()), "{text}");
            assert_eq!((source.archive, source.name.as_str()), (Kind::by_name("zip"), "a.zip"), "{text}");
        }
        assert_eq!(parse("/srv/d", &[("archive", "false")]).expect("source").archive, None);
    }

    #[test]
    fn what_is_refused_says_why() {
        for (text, options, part) in [
            ("hg::http://h/r", &[][..], "use git"),
            ("gcs::https://h/b/o", &[], "https address"),
            ("ftp://h/a", &[], "there are http"),
            ("./a", &[], "names no scheme"),
            ("a/b", &[], "names no scheme"),
            ("github.com//x", &[], "names no scheme"),
            ("bitbucket.org//te//x?y", &[], "names no scheme"),
            ("https://h/a", &[("archive", "rar")], "not an archive format"),
            ("https://h/a", &[("checksum", "crc32:1234")], "crc32"),
            ("https://h/a", &[("checksum", "md5:12")], "checksum"),
            ("https://h/a", &[("filename", "a/b")], "filename"),
            ("https://h/a//b", &[], "only be taken out of an archive"),
            ("https://h/a.zip//../b", &[], "leaves"),
            ("https://h/a.zip//b*", &[], "patterns"),
            ("git::https://h/r", &[("checksum", "md5:d41d8cd98f00b204e9800998ecf8427e")], "commit"),
            ("git::https://h/r", &[("ref", "--upload-pack=x")], "ref"),
            ("git::https://h/r", &[("depth", "x")], "depth"),
            ("git::ext://h/r", &[], "git::ext"),
            ("file://host/a", &[], "file:///path"),
            ("s3::https://s3.amazonaws.com/bucket", &[], "object"),
        ] {
            let error = parse(text, options).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Mode::parse("all").is_err());
    }
}
