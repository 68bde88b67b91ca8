//! The recorded tokens of a task on this node: `identities` writes them, templates read them.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use lifecycle::identities::exposed;
use model::{Task, canonical::DEFAULT_IDENTITY};

use crate::{
    files::{Look, Root},
    identity_token::Token,
    vault::{VARIABLE, token},
};

/// Tokens by the name of their identity.
pub(super) type Held = BTreeMap<String, Token>;

const RECORD: &str = "private/identities.json";

/// Reads the record; empty when it is missing or damaged. Blocking.
pub(super) fn load(task_dir: &Path) -> Held {
    let read = Root::open(task_dir).and_then(|root| root.read(Path::new(RECORD)));
    read.ok().and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Writes the record atomically, readable by the agent only. Blocking.
pub(super) fn save(task_dir: &Path, held: &Held) -> io::Result<()> {
    let look = Look { mode: 0o600, uid: None, gid: None };
    Root::open(task_dir)?.write(Path::new(RECORD), &serde_json::to_vec(held).unwrap_or_default(), look).map(drop)
}

/// The task's environment variable for an identity.
pub(super) fn variable(name: &str) -> String {
    if name == DEFAULT_IDENTITY {
        return "NOMAD_TOKEN".to_owned();
    }
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("NOMAD_TOKEN_{clean}")
}

/// The tokens that templates see: the task's variables.
#[derive(Clone, Debug)]
pub enum TokenVariables {
    /// For a task that runs elsewhere, whose variables are never renewed.
    Given(BTreeMap<String, String>),
    /// For a local task: the present content of its record.
    Recorded {
        /// Directory of the task.
        task_dir: PathBuf,
        /// By variable: its identity, and whether the token is renewed.
        of: BTreeMap<String, (String, bool)>,
        /// Whether the task has a variable with its token of Vault.
        vault: bool,
    },
}

/// A variable that holds a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenVariable {
    /// The token; `None` while the task has none.
    pub text: Option<String>,
    /// Whether a renewal will follow.
    pub renewed: bool,
}

impl TokenVariables {
    /// The token variables of a local task.
    pub(crate) fn of_record(task: &Task, task_dir: &Path) -> Self {
        let shown = exposed(task).filter(|i| i.env);
        let of = shown.map(|i| (variable(&i.name), (i.name.clone(), i.ttl.nanos() > 0))).collect();
        let vault = task.vault.as_ref().is_some_and(|vault| vault.env != Some(false));
        Self::Recorded { task_dir: task_dir.to_owned(), of, vault }
    }

    /// The token in a variable; `None` when the variable holds no token. Blocking.
    pub(crate) fn find(&self, variable: &str) -> Option<TokenVariable> {
        match self {
            Self::Given(tokens) => {
                tokens.get(variable).map(|text| TokenVariable { text: Some(text.clone()), renewed: false })
            }
            Self::Recorded { task_dir, vault: true, .. } if variable == VARIABLE => {
                Some(TokenVariable { text: token(task_dir), renewed: true })
            }
            Self::Recorded { task_dir, of, .. } => {
                let (identity, renewed) = of.get(variable)?;
                Some(TokenVariable { text: load(task_dir).remove(identity).map(|token| token.text), renewed: *renewed })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_valid_until_they_end() {
        let second = 1_000_000_000;
        let token = Token { issued_ns: 100 * second, expires_ns: 200 * second, ..Token::default() };
        assert!(token.valid(199 * second) && !token.valid(200 * second));
        let eternal = Token { expires_ns: 0, ..token };
        assert_eq!((eternal.renew_at(7), eternal.valid(i64::MAX)), (None, true));
    }
}
