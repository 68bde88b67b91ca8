//! The join secret: a node shows it before a server listens to it, unless certificates say who may join.
//!
//! A registered node gets allocations with their environment and templates, and signed identities of its tasks. A
//! server makes the secret at its first start, in its data directory, readable by its user alone. Servers that share a
//! store derive it from the key that they share instead, so that all have the same. It travels as a credential of the
//! connection, so the server checks it before it reads any message.

use std::{
    fmt, fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use http::{HeaderMap, header::AUTHORIZATION};
use model::Secret;

/// Name of the file in a server's data directory.
pub const JOIN_SECRET_FILE: &str = "join-secret";

/// What nodes must show.
#[derive(Clone, Debug, Default)]
pub enum Join {
    /// Nothing: for tests, and for development on loopback.
    #[default]
    Open,
    /// The secret in the data directory, made when there is none; of servers that share a store, the one that follows
    /// from their key.
    Kept,
    /// This secret.
    Secret(JoinSecret),
}

/// A secret; `Debug` hides it, and it is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinSecret(Secret);

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl JoinSecret {
    /// Takes a person's text without surrounding white space; `None` when nothing is left.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let fit = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        fit.then(|| Self(text.into()))
    }

    /// The secret that is these bytes, in hexadecimal digits.
    #[must_use]
    pub fn of_bytes(bytes: &[u8; 32]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }

    /// The text, for the node's credential.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.reveal()
    }

    /// Reads the secret of a data directory, or makes one.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is no secret.
    pub fn kept_in(dir: &Path) -> io::Result<Self> {
        let path = dir.join(JOIN_SECRET_FILE);
        match fs::read_to_string(&path) {
            Ok(text) => {
                // A restored copy may have other permissions.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                let wrong =
                    || io::Error::new(io::ErrorKind::InvalidData, "it must be one line of printable characters");
                return Self::new(&text).ok_or_else(wrong);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let text = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let secret = Self(text.into());
        secret.write(dir)?;
        Ok(secret)
    }

    /// Puts the secret where [`Self::kept_in`] reads it, for people: in place of any other, in a directory that is made
    /// when there is none. True when there was another one.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn keep_in(&self, dir: &Path) -> io::Result<bool> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let path = dir.join(JOIN_SECRET_FILE);
        let other = match fs::read(&path) {
            Ok(text) if text.trim_ascii() == self.expose().as_bytes() => {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                return Ok(false);
            }
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        self.write(dir)?;
        Ok(other)
    }

    /// Atomically: half of a secret would be another one.
    fn write(&self, dir: &Path) -> io::Result<()> {
        let draft = dir.join(format!("{JOIN_SECRET_FILE}.new"));
        let _ = fs::remove_file(&draft);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        writeln!(file, "{}", self.expose())?;
        file.sync_all()?;
        fs::rename(&draft, dir.join(JOIN_SECRET_FILE))?;
        fs::File::open(dir)?.sync_all()
    }

    /// Whether a connection shows the secret. The error text is for its node.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        match shown {
            None => Err(
                "this cluster wants a join secret and the node shows none: copy the file join-secret of the server's \
                    data directory to the node, and \
                 name it with drover { join_secret_file = \"..\" } in the node's configuration, or give its content \
                 in DROVER_JOIN_SECRET",
            ),
            Some(shown) if std::str::from_utf8(shown).is_ok_and(|shown| self.0.matches(shown)) => Ok(()),
            Some(_) => Err(
                "the join secret that the node shows is not that of this cluster: copy the file join-secret of the \
                    server's data directory \
                 to where drover { join_secret_file } of the node points, or into DROVER_JOIN_SECRET",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_for_its_user_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let made = JoinSecret::kept_in(dir.path()).expect("made");
        let path = dir.path().join(JOIN_SECRET_FILE);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((made.expose().len(), mode(&path)), (64, 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a copy");
        assert_eq!(JoinSecret::kept_in(dir.path()).expect("read"), made);
        assert_eq!(mode(&path), 0o600);
        assert!(!format!("{made:?}").contains(made.expose()));
        fs::write(&path, "  \n").expect("emptied");
        assert!(JoinSecret::kept_in(dir.path()).is_err(), "an empty file is no secret");
    }

    #[test]
    fn a_secret_that_all_servers_have_replaces_one_that_was_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("server");
        let shared = JoinSecret::of_bytes(&[0xa7; 32]);
        assert_eq!(shared.expose(), "a7".repeat(32));
        assert!(!shared.keep_in(&dir).expect("kept"), "there was none");
        let path = dir.join(JOIN_SECRET_FILE);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
        assert_eq!(JoinSecret::kept_in(&dir).expect("read"), shared);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a copy");
        assert!(!shared.keep_in(&dir).expect("kept"), "it is there");
        assert_eq!(mode(&path), 0o600);
        fs::write(&path, "another\n").expect("another");
        assert!(shared.keep_in(&dir).expect("kept"), "there was another one");
        assert_eq!((JoinSecret::kept_in(&dir).expect("read"), mode(&path)), (shared, 0o600));
    }

    #[test]
    fn connections_show_it() {
        let secret = JoinSecret::new(" s3cret\n").expect("a secret");
        let headers =
            |value: &str| [(AUTHORIZATION, value.parse().expect("a value"))].into_iter().collect::<HeaderMap>();
        assert!(secret.admit(&headers("Bearer s3cret")).is_ok());
        for wrong in ["Bearer s3creT", "Bearer s3cre", "Bearer s3crett", "Bearer "] {
            assert!(secret.admit(&headers(wrong)).expect_err(wrong).contains("is not that of this cluster"), "{wrong}");
        }
        for none in [HeaderMap::new(), headers("s3cret"), headers("Basic s3cret")] {
            assert!(secret.admit(&none).expect_err("none").contains("shows none"), "{none:?}");
        }
        assert!(JoinSecret::new(" ").is_none() && JoinSecret::new("a b").is_none());
    }
}
