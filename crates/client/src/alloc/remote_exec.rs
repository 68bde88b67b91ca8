//! Scripts of checks beside the instances of remote tasks.

use hooks::checks::{Begun, RemoteExec};
use model::SlotKey;
use remote_manager::{RemoteManager, wire_handle};

/// By the manager of remote tasks.
pub(crate) struct ByManager(pub(crate) RemoteManager);

impl RemoteExec for ByManager {
    fn exec(&self, slot: SlotKey, command: Vec<String>) -> Begun<'_> {
        Box::pin(async move {
            let instance = self.0.instance(slot).await.filter(|i| i.may_mutate);
            let instance = instance.ok_or("this node may not act on the instance now")?;
            let driver = instance.driver.remote().ok_or("the driver's plugin is not running")?;
            driver.exec(wire_handle(&instance.handle), instance.epoch, command, false).map_err(|e| e.to_string())
        })
    }
}
