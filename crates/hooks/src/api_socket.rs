//! A task's access to the HTTP API: a socket in its secrets directory, from its first start to its end.

use std::sync::Arc;

use host::dirs::Keeper;

use crate::{
    hook::{Given, Hook, Prepared, Starting},
    place::TaskPlace,
    task_api::TaskApis,
};

/// Gives tasks their sockets.
pub struct ApiSocket {
    /// The listeners.
    pub apis: Arc<TaskApis>,
}

impl ApiSocket {
    /// Opens the task's API socket. A failure does not stop the start: the task then has no socket.
    pub async fn listen(&self, place: &TaskPlace, keeper: Keeper) {
        let secrets = place.task_dirs().secrets;
        if let Err(why) = self.apis.listen(place.alloc.id, place.task.clone(), secrets, keeper.ids()).await {
            place.note(format!("The task has no Task API socket: {why}"));
        }
    }
}

impl Hook for ApiSocket {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        Box::pin(async {
            self.listen(starting.place, starting.keeper).await;
            Ok(())
        })
    }
}
