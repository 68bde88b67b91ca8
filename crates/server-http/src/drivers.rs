//! What the drivers of the cluster take.

use crate::{
    reply::{HttpError, Reply},
    request::Ctx,
};

/// The schemas that job files are checked against.
pub(crate) async fn schemas(ctx: Ctx) -> Result<Reply, HttpError> {
    let index = ctx.server().snapshot().latest_index();
    ctx.read(index, &ctx.server().driver_schemas())
}
