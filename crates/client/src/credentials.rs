//! What the node shows its servers when it connects: the join secret, an introduction token while it is new, and the
//! identity that they have signed for it.

use std::{io::ErrorKind, path::PathBuf};

use api::node_rpc::{IDENTITY_HEADER, INTRODUCTION_HEADER};
use node_config::{ClientConfig, IntroduceWith, JoinWith};
use node_record::identity::SignedIdentity;
use tonic::metadata::MetadataMap;

/// The credentials of a node.
#[derive(Debug)]
pub(crate) struct Credentials {
    join: JoinWith,
    introduction: IntroduceWith,
    /// Where an introduction token may lie.
    file: PathBuf,
    pub(crate) identity: SignedIdentity,
}

impl Credentials {
    pub(crate) fn new(config: &ClientConfig, identity: SignedIdentity) -> Self {
        Self {
            join: config.join.clone(),
            introduction: config.introduction.clone(),
            file: config.introduction_file(),
            identity,
        }
    }

    /// Puts them into the metadata of a call. The error names the one that cannot be shown.
    pub(crate) fn show(&self, metadata: &mut MetadataMap) -> Result<(), String> {
        let introduction = match &self.introduction {
            IntroduceWith::Token(token) => Some(token.clone()),
            IntroduceWith::File => match std::fs::read_to_string(&self.file) {
                Ok(token) => Some(token),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(format!("the introduction token in {}: {error}", self.file.display())),
            },
        };
        for (name, what, shown) in [
            ("authorization", "the join secret", self.join.credential()?),
            (INTRODUCTION_HEADER, "the introduction token", introduction),
            (IDENTITY_HEADER, "the node's identity", self.identity.token()),
        ] {
            let Some(shown) = shown.filter(|shown| !shown.trim().is_empty()) else { continue };
            let value = shown.trim().parse();
            metadata.insert(name, value.map_err(|_| format!("{what} must be one line of printable characters"))?);
        }
        Ok(())
    }

    /// Takes a new identity; an empty text is none. It counts at once and is written down in the background, since a
    /// session never waits for the disk. The introduction token has done its work then.
    pub(crate) fn take(&mut self, identity: String) {
        if identity.is_empty() {
            return;
        }
        let kept = self.identity.keep(identity);
        self.introduction = IntroduceWith::File;
        let file = self.file.clone();
        tokio::spawn(async move {
            if let Err(error) = kept.await {
                tracing::warn!(%error, "writing down the identity of this node failed; its next agent shows the \
                    former one, or its introduction token");
                return;
            }
            match std::fs::remove_file(&file) {
                Ok(()) => tracing::info!(file = %file.display(), "this node has its identity, the introduction token \
                    was removed"),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(file = %file.display(), %error, "the introduction token of this node has \
                    done its work and could not be removed"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use node_record::store::LocalStore;

    use super::*;

    fn shown(credentials: &Credentials) -> Vec<(String, String)> {
        let mut metadata = MetadataMap::new();
        credentials.show(&mut metadata).expect("all of them");
        let headers = metadata.into_headers();
        let mut all: Vec<_> =
            headers.iter().map(|(k, v)| (k.to_string(), v.to_str().expect("text").to_owned())).collect();
        all.sort();
        all
    }

    #[tokio::test]
    async fn a_node_shows_what_it_has_and_removes_its_introduction() {
        let dir = testkit::Dir::new("credentials");
        let mut config = ClientConfig::new(dir.path(), "n");
        config.state_dir = dir.path().to_owned();
        config.join = JoinWith::Secret("s".into());
        let (store, _) = LocalStore::open(dir.path()).expect("open");
        let signed = SignedIdentity::load(&store);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let join = pair("authorization", "Bearer s");
        let mut credentials = Credentials::new(&config, signed.clone());
        assert_eq!(shown(&credentials), std::slice::from_ref(&join));
        std::fs::write(config.introduction_file(), "token-of-file\n").expect("a token");
        assert_eq!(shown(&credentials), [join.clone(), pair(INTRODUCTION_HEADER, "token-of-file")]);
        credentials.take(String::new());
        assert!(config.introduction_file().exists(), "no identity came");
        credentials.take("identity".to_owned());
        testkit::eventually("the token to be removed", || !config.introduction_file().exists()).await;
        assert_eq!(shown(&credentials), [join.clone(), pair(IDENTITY_HEADER, "identity")]);
        assert_eq!(SignedIdentity::load(&store).token().as_deref(), Some("identity"));

        // What the agent was told counts more than the file, until there is an identity.
        config.introduction = IntroduceWith::Token("given".to_owned());
        let mut credentials = Credentials::new(&config, signed);
        std::fs::write(config.introduction_file(), "token-of-file").expect("a token");
        let introduction =
            |shown: Vec<(String, String)>| shown.into_iter().find(|(name, _)| name == INTRODUCTION_HEADER);
        assert_eq!(introduction(shown(&credentials)), Some(pair(INTRODUCTION_HEADER, "given")));
        credentials.take("newer".to_owned());
        testkit::eventually("the token to be removed", || introduction(shown(&credentials)).is_none()).await;
        std::fs::write(config.introduction_file(), "a\nb").expect("a token");
        assert!(credentials.show(&mut MetadataMap::new()).expect_err("two lines").contains("introduction token"));
    }
}
