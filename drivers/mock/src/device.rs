//! A device plugin whose devices are files of a directory: to try what a cluster does with GPUs on machines without
//! any.
//!
//! ```text
//! <dir>/<vendor>/<type>/<model>/<id>          a device; what the file says makes it unhealthy
//! <dir>/<vendor>/<type>/<model>/.attributes   lines such as `memory = 16 GiB`
//! <dir>/<vendor>/<type>/<model>/.stats/<id>   what it does: lines such as `power = 30/70 W`; the first says most
//! ```
//!
//! A task finds the ids of its devices in a variable, as with NVIDIA's plugin, and each device as a file in `/devices`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use driver_sdk::{
    Device, DeviceAttribute, DeviceGroup, DeviceMount, DevicePlugin, DeviceStats, DriverConfig, Error, GroupStats,
    PluginInfo, Reading, Reservation, async_trait, config::Config, schema::Spec,
};

#[derive(Debug, DriverConfig, Clone)]
struct Operator {
    /// The directory with the devices.
    dir: PathBuf,
    /// The variable for the ids.
    #[config(default = "NVIDIA_VISIBLE_DEVICES")]
    variable: String,
    /// Time between two looks at the directory.
    #[config(default = "5s")]
    fingerprint_period: Duration,
}

/// The plugin.
#[derive(Debug, Default)]
pub struct MockDevice(Mutex<Option<Operator>>);

/// The names in a directory, in order; those with a leading dot are no devices.
fn names(dir: &Path) -> std::io::Result<Vec<String>> {
    let entries = std::fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut names: Vec<String> =
        entries.iter().filter_map(|e| e.file_name().into_string().ok()).filter(|name| !name.starts_with('.')).collect();
    names.sort();
    Ok(names)
}

fn attribute(text: &str) -> DeviceAttribute {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    match (number.parse::<i64>(), number.parse::<f64>(), text) {
        (Ok(number), ..) => DeviceAttribute::Int(number, unit.to_owned()),
        (_, Ok(number), _) => DeviceAttribute::Float(number, unit.to_owned()),
        (.., "true" | "false") => DeviceAttribute::Bool(text == "true"),
        _ => DeviceAttribute::Text(text.to_owned()),
    }
}

fn group(dir: &Path, vendor: &str, kind: &str, name: &str) -> std::io::Result<DeviceGroup> {
    let mut devices = Vec::new();
    for id in names(dir)? {
        let said = std::fs::read_to_string(dir.join(&id))?;
        let unhealthy = Some(said.trim().to_owned()).filter(|why| !why.is_empty());
        devices.push(Device { id, unhealthy, pci_bus_id: String::new() });
    }
    let attributes = std::fs::read_to_string(dir.join(".attributes")).unwrap_or_default();
    let attributes = attributes.lines().filter_map(|line| line.split_once('='));
    let attributes = attributes.map(|(key, value)| (key.trim().to_owned(), attribute(value.trim()))).collect();
    Ok(DeviceGroup { vendor: vendor.to_owned(), kind: kind.to_owned(), name: name.to_owned(), devices, attributes })
}

fn groups(dir: &Path) -> std::io::Result<Vec<DeviceGroup>> {
    let mut groups = Vec::new();
    for vendor in names(dir)? {
        for kind in names(&dir.join(&vendor))? {
            for name in names(&dir.join(&vendor).join(&kind))? {
                groups.push(group(&dir.join(&vendor).join(&kind).join(&name), &vendor, &kind, &name)?);
            }
        }
    }
    Ok(groups)
}

/// `30 W`, or a part of a whole: `30/70 W`.
fn reading(text: &str) -> Option<Reading> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let (value, of) = match number.split_once('/') {
        Some((value, of)) => (value, Some(of.parse().ok()?)),
        None => (number, None),
    };
    Some(Reading { value: value.parse().ok()?, of, unit: unit.to_owned(), description: String::new() })
}

/// What the devices of a group do, as far as there is a file that says it.
fn measured(operator: &Operator, group: &DeviceGroup) -> GroupStats {
    let dir = operator.dir.join(&group.vendor).join(&group.kind).join(&group.name).join(".stats");
    let of = |id: &String| {
        let text = std::fs::read_to_string(dir.join(id)).ok()?;
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let readings: Vec<(String, Reading)> =
            lines.filter_map(|(name, text)| Some((name.trim().to_owned(), reading(text.trim())?))).collect();
        let (name, first) = readings.first()?.clone();
        let summary = Reading { description: name, ..first };
        Some((id.clone(), DeviceStats { summary, readings: readings.into_iter().collect() }))
    };
    GroupStats {
        vendor: group.vendor.clone(),
        kind: group.kind.clone(),
        name: group.name.clone(),
        devices: group.devices.iter().filter_map(|device| of(&device.id)).collect(),
    }
}

impl MockDevice {
    fn operator(&self) -> Result<Operator, Error> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.ok_or_else(|| Error::failed("the plugin has no configuration: name its dir"))
    }

    fn groups(&self) -> Result<(Operator, Vec<DeviceGroup>), Error> {
        let operator = self.operator()?;
        let found = groups(&operator.dir);
        let found = found.map_err(|error| Error::failed(format!("cannot read {}: {error}", operator.dir.display())))?;
        Ok((operator, found))
    }
}

#[async_trait]
impl DevicePlugin for MockDevice {
    fn info(&self) -> PluginInfo {
        PluginInfo::new("mock_device", env!("CARGO_PKG_VERSION"))
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(Operator::schema())
    }

    async fn set_config(&self, config: Config) -> Result<(), Error> {
        let operator = Operator::decode(config)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(operator);
        Ok(())
    }

    async fn devices(&self) -> Result<Vec<DeviceGroup>, Error> {
        self.groups().map(|(_, groups)| groups)
    }

    fn interval(&self) -> Duration {
        self.operator().map_or(Duration::from_secs(5), |operator| operator.fingerprint_period)
    }

    async fn stats(&self) -> Result<Vec<GroupStats>, Error> {
        let (operator, groups) = self.groups()?;
        Ok(groups.iter().map(|group| measured(&operator, group)).collect())
    }

    async fn reserve(&self, ids: Vec<String>) -> Result<Reservation, Error> {
        let (operator, groups) = self.groups()?;
        let mut mounts = Vec::new();
        for id in &ids {
            let group = groups.iter().find(|group| group.devices.iter().any(|device| device.id == *id));
            let group = group.ok_or_else(|| Error::failed(format!("there is no device {id:?}")))?;
            let path = operator.dir.join(&group.vendor).join(&group.kind).join(&group.name).join(id);
            mounts.push(DeviceMount {
                host_path: path.display().to_string(),
                task_path: format!("/devices/{id}"),
                read_only: true,
            });
        }
        let env = BTreeMap::from([(operator.variable, ids.join(","))]);
        Ok(Reservation { env, mounts, nodes: Vec::new() })
    }
}
