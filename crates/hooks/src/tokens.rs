//! Requests for tokens of workload identities over the node's session. The session proves to the servers that the node
//! may have them.

use std::time::Duration;

use api::node_rpc::{IdentitiesSigned, SignedIdentity};
use model::AllocId;
use tokio::sync::{mpsc, oneshot};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Another attempt may get them.
    #[error("{0}")]
    Later(String),
    /// The servers will not give them.
    #[error("the servers refuse tokens for the task: {0}")]
    Refused(String),
}

/// A request for tokens, which the session carries.
#[derive(Debug)]
pub struct AskTokens {
    /// The task's allocation.
    pub alloc: AllocId,
    /// Name of the task.
    pub task: String,
    /// Names of its identities.
    pub identities: Vec<String>,
    /// Receives a token for each identity, or the error.
    pub answer: oneshot::Sender<Result<Vec<SignedIdentity>, TokenError>>,
}

/// Turns a server's answer into tokens.
///
/// # Errors
/// When it has none, and whether another attempt may get them.
pub fn answered(said: IdentitiesSigned) -> Result<Vec<SignedIdentity>, TokenError> {
    match said {
        IdentitiesSigned { signed, error, .. } if error.is_empty() => Ok(signed),
        IdentitiesSigned { error, retry: true, .. } => Err(TokenError::Later(error)),
        IdentitiesSigned { error, .. } => Err(TokenError::Refused(error)),
    }
}

/// Requests tokens through the session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokens(mpsc::UnboundedSender<AskTokens>);

impl Tokens {
    /// A requester, and the end that the session reads.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<AskTokens>) {
        let (questions, asked) = mpsc::unbounded_channel();
        (Self(questions), asked)
    }

    /// A token for each of these identities of a task. Cancel safe.
    pub(crate) async fn sign(
        &self,
        alloc: AllocId,
        task: &str,
        identities: Vec<String>,
    ) -> Result<Vec<SignedIdentity>, TokenError> {
        let later = |why: &str| TokenError::Later(why.to_owned());
        let (answer, answered) = oneshot::channel();
        let ask = AskTokens { alloc, task: task.to_owned(), identities, answer };
        self.0.send(ask).map_err(|_| later("the node is stopping"))?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(later("the session with the server ended before it answered")),
            Err(_) => Err(later(
                "no server has answered; the node may have no session, or the server may run an older release",
            )),
        }
    }
}
