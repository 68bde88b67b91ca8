//! Executables of the operator that the node asks for things: which of a directory's there are.

use std::{path::Path, process::Command};

use super::{
    facts::Facts,
    said::{On, said},
};

/// A kind of them.
pub(super) struct Kind<'a> {
    /// In the log, such as `provider of secrets`.
    pub(super) what: &'a str,
    /// Those that every node has, with their version.
    pub(super) built_in: (&'a [&'a str], &'a str),
    /// The attribute of one of that name.
    pub(super) attribute: fn(&str) -> String,
    /// The environment of the question.
    pub(super) env: &'a [(&'a str, &'a std::ffi::OsStr)],
    /// The version in its answer.
    pub(super) version: fn(&str) -> Result<String, String>,
}

/// Asks each for its version, which becomes the value of its attribute.
pub(super) fn look(dir: &Path, kind: &Kind<'_>, facts: &mut Facts) {
    let (built_in, version) = kind.built_in;
    for name in built_in {
        facts.set((kind.attribute)(name), version);
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let file = entry.path();
        let mut command = Command::new(&file);
        command.arg("fingerprint").env_clear().envs(kind.env.iter().copied());
        match said(&mut command, &On::Stdout).and_then(|said| (kind.version)(&said)) {
            Ok(_) if built_in.contains(&name.as_str()) => {
                tracing::warn!(file = %file.display(), "not used: every node has a {} of that name", kind.what);
            }
            Ok(version) => facts.set((kind.attribute)(&name), version),
            Err(why) => tracing::warn!(file = %file.display(), why, "no {}", kind.what),
        }
    }
}
