//! Which engine a create goes to. An address may lead to another engine later, and there the name of the container is
//! free: so the servers keep the engine's identity from before the create is sent, and whatever is asked by key alone
//! counts only there.

use driver_sdk::{Ensure, RemoteError, handle};
use serde::{Deserialize, Serialize};

use super::{RemoteDriver, Site};

/// Layout of [`Intent`].
const VERSION: u16 = 1;

/// What the servers keep of a create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Intent {
    /// Identity that the engine tells of itself.
    engine: String,
}

impl Intent {
    /// `None` where nothing is kept.
    fn read(kept: &[u8]) -> Result<Option<Self>, RemoteError> {
        handle::decode_intent(VERSION, kept)
    }
}

impl RemoteDriver {
    /// Whether this is the engine that creates of the key went to, as far as that is kept.
    pub(super) async fn goes_here(&self, site: &Site, kept: &[u8]) -> Result<(), RemoteError> {
        let Some(went) = Intent::read(kept)? else { return Ok(()) };
        let here = self.identity(site, true).await?;
        if went.engine == here {
            return Ok(());
        }
        Err(RemoteError::could_not_ask(format!(
            "a create of the task may have been sent to the engine {}, at {} answers the engine {here}: let the \
                address lead to that engine again, or forget the task if that engine is lost for good (drover remote \
                forget)",
            went.engine,
            site.engine.endpoint()
        )))
    }

    /// What is to be kept before the create of this request is sent; `None` when it is kept already.
    pub(super) async fn intent_of(&self, site: &Site, request: &Ensure) -> Result<Option<Vec<u8>>, RemoteError> {
        let kept = Intent::read(&request.intent)?;
        if kept.is_some() && !request.first {
            return self.goes_here(site, &request.intent).await.map(|()| None);
        }
        // Of what was never sent nothing can be at another engine.
        let here = Intent { engine: self.identity(site, true).await? };
        if kept.as_ref() == Some(&here) {
            return Ok(None);
        }
        handle::encode_intent(VERSION, &here).map(Some)
    }
}
