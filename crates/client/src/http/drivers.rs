//! `PUT /v1/client/drivers/reload`: changed driver plugins are taken over; tasks are not touched.

use axum::{extract::State, response::Response};

use super::answer::{Query, json};
use crate::{error::RequestError, handle::ClientHandle};

/// All plugins that have changed on disk, or with `driver` this one in any case.
pub(super) async fn reload(State(handle): State<ClientHandle>, query: Query) -> Result<Response, RequestError> {
    let done = match query.get("driver") {
        "" => handle.reload_drivers(None).await?,
        name => handle.restart_driver(name).await?,
    };
    Ok(json(&done, query.pretty()))
}
