//! `/v1/drivers/schemas`: ours, not in the API that we follow.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Known schemas of a driver's configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverSchemas {
    /// The name that jobs use.
    pub driver: String,
    /// No ready node has the driver without having told its schema: what all of these refuse is refused.
    pub complete: bool,
    /// The different schemas, the one of the newest version first.
    pub schemas: Vec<DriverSchema>,
}

/// One schema of a driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverSchema {
    /// Versions of the plugin that have it, newest first.
    pub versions: Vec<String>,
    /// How many nodes have it.
    pub nodes: usize,
    /// The schema of a task's `config`: `Kind` is object, array, attr, block, block_attrs, block_list, block_set,
    /// block_map, literal or default.
    pub schema: Value,
}
