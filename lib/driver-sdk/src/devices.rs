//! The trait of device plugins, and its service.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use driver_proto::{
    build,
    device::{
        self, ContainerReservation, FingerprintRequest, FingerprintResponse, ReserveRequest, ReserveResponse,
        StatObject, StatValue, StatsRequest, StatsResponse, device_plugin_server,
    },
    structs::{self, attribute},
};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{Error, PluginInfo, config::Config, guard::guarded, schema::Spec};

/// A plugin for devices of this machine: it says which there are, and what a task needs to use some of them.
///
/// Calls run concurrently on one thread: never block it, use `tokio::task::spawn_blocking`. The process may be killed
/// at any time and a new one started. Nothing that a task uses may end with it.
#[async_trait]
pub trait DevicePlugin: Send + Sync + 'static {
    /// Name and version of the plugin.
    fn info(&self) -> PluginInfo;

    /// Schema of the operator's `plugin "…" { config { … } }`; `None` forbids a configuration.
    fn config_schema(&self) -> Option<Spec> {
        None
    }

    /// Validates and keeps the operator's configuration. Hosts may call it several times, also in a process that they
    /// end afterwards: leave no side effects behind.
    async fn set_config(&self, _config: Config) -> Result<(), Error> {
        Ok(())
    }

    /// All devices. The SDK calls it every [`DevicePlugin::interval`], and sends only changes. After an error the node
    /// gives none of them to further tasks until a call succeeds.
    async fn devices(&self) -> Result<Vec<DeviceGroup>, Error>;

    /// Time between two looks at the devices.
    fn interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// What a task needs to use these devices. Called before every start of a task that has them, and again after a
    /// crash: repeat it without harm. Nobody says when the task has ended.
    async fn reserve(&self, ids: Vec<String>) -> Result<Reservation, Error>;

    /// What the devices do, by group and id. None at all = this plugin measures nothing.
    async fn stats(&self) -> Result<Vec<GroupStats>, Error> {
        Ok(Vec::new())
    }

    /// Prepares for the end of the process, which follows within two seconds. Tasks must keep running.
    async fn shutdown(&self) {}
}

/// Devices that are alike. A job names them `type`, `vendor/type` or `vendor/type/name`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceGroup {
    /// Who makes them; without a slash.
    pub vendor: String,
    /// What they are: `gpu`, `fpga`; without a slash.
    pub kind: String,
    /// The model.
    pub name: String,
    /// The devices.
    pub devices: Vec<Device>,
    /// Properties of each of them, for constraints and affinities.
    pub attributes: BTreeMap<String, DeviceAttribute>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// Its id, unique within the group, the same after a restart of the machine.
    pub id: String,
    /// Why tasks cannot use it; `None` = they can.
    pub unhealthy: Option<String>,
    /// Its address on the PCI bus; empty = unknown.
    pub pci_bus_id: String,
}

/// A property of a device.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceAttribute {
    /// A whole number and its unit (`MiB`, `MHz`, `W`; empty = none).
    Int(i64, String),
    /// A number and its unit.
    Float(f64, String),
    /// Text.
    Text(String),
    /// Yes or no.
    Bool(bool),
}

/// What a task needs to use its devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservation {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Files of this machine that it has to see, such as libraries.
    pub mounts: Vec<DeviceMount>,
    /// Device nodes.
    pub nodes: Vec<DeviceNode>,
}

/// A file or directory that a task sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceMount {
    /// Where it is on this machine.
    pub host_path: String,
    /// Where the task sees it.
    pub task_path: String,
    /// It cannot change it.
    pub read_only: bool,
}

/// A device node that a task may open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceNode {
    /// Where it is on this machine.
    pub host_path: String,
    /// Where the task sees it.
    pub task_path: String,
    /// A subset of `rwm`: read, write, make nodes.
    pub permissions: String,
}

/// What the devices of a group do.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupStats {
    /// Of the group.
    pub vendor: String,
    /// Of the group.
    pub kind: String,
    /// Of the group.
    pub name: String,
    /// By device.
    pub devices: BTreeMap<String, DeviceStats>,
}

/// What a device does.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceStats {
    /// What says most about it.
    pub summary: Reading,
    /// Everything that is measured, by name.
    pub readings: BTreeMap<String, Reading>,
}

/// A measured number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// The number.
    pub value: f64,
    /// What it is a part of, if it is.
    pub of: Option<f64>,
    /// Unit.
    pub unit: String,
    /// What it is, for people.
    pub description: String,
}

impl From<Reservation> for ContainerReservation {
    fn from(reservation: Reservation) -> Self {
        let Reservation { env, mounts, nodes } = reservation;
        let mount =
            |m: DeviceMount| device::Mount { task_path: m.task_path, host_path: m.host_path, read_only: m.read_only };
        let node = |n: DeviceNode| device::DeviceSpec {
            task_path: n.task_path,
            host_path: n.host_path,
            permissions: n.permissions,
        };
        Self {
            envs: env,
            mounts: mounts.into_iter().map(mount).collect(),
            devices: nodes.into_iter().map(node).collect(),
        }
    }
}

fn attribute(of: DeviceAttribute) -> structs::Attribute {
    let (value, unit) = match of {
        DeviceAttribute::Int(number, unit) => (attribute::Value::IntVal(number), unit),
        DeviceAttribute::Float(number, unit) => (attribute::Value::FloatVal(number), unit),
        DeviceAttribute::Text(text) => (attribute::Value::StringVal(text), String::new()),
        DeviceAttribute::Bool(yes) => (attribute::Value::BoolVal(yes), String::new()),
    };
    structs::Attribute { value: Some(value), unit }
}

impl From<DeviceGroup> for device::DeviceGroup {
    fn from(group: DeviceGroup) -> Self {
        let detected = |d: Device| device::DetectedDevice {
            id: d.id,
            healthy: d.unhealthy.is_none(),
            health_description: d.unhealthy.unwrap_or_default(),
            // Hosts written in Go take an absent one for a machine without PCI.
            hw_locality: (!d.pci_bus_id.is_empty()).then_some(device::DeviceLocality { pci_bus_id: d.pci_bus_id }),
        };
        Self {
            vendor: group.vendor,
            device_type: group.kind,
            device_name: group.name,
            devices: group.devices.into_iter().map(detected).collect(),
            attributes: group.attributes.into_iter().map(|(key, value)| (key, attribute(value))).collect(),
        }
    }
}

fn reading(of: Reading) -> StatValue {
    let Reading { value, of, unit, description } = of;
    StatValue {
        float_numerator_val: Some(value),
        float_denominator_val: of,
        unit,
        desc: description,
        ..StatValue::default()
    }
}

fn stats_of(group: GroupStats, now: SystemTime) -> device::DeviceGroupStats {
    let measured = |stats: DeviceStats| device::DeviceStats {
        summary: Some(reading(stats.summary)),
        stats: Some(StatObject {
            attributes: stats.readings.into_iter().map(|(name, value)| (name, reading(value))).collect(),
            ..StatObject::default()
        }),
        timestamp: Some(build::timestamp(Some(now))),
    };
    device::DeviceGroupStats {
        vendor: group.vendor,
        r#type: group.kind,
        name: group.name,
        instance_stats: group.devices.into_iter().map(|(id, stats)| (id, measured(stats))).collect(),
    }
}

type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves a device plugin.
pub(crate) struct DeviceService(pub(crate) Arc<dyn DevicePlugin>);

/// Sends what there is at once, then every change, as long as the host listens.
async fn fingerprints(plugin: Arc<dyn DevicePlugin>, out: mpsc::Sender<Result<FingerprintResponse, Status>>) {
    let mut last: Option<Vec<DeviceGroup>> = None;
    loop {
        match guarded(plugin.devices()).await {
            Ok(now) => {
                if last.as_ref() != Some(&now) {
                    let device_group = now.iter().cloned().map(Into::into).collect();
                    if out.send(Ok(FingerprintResponse { device_group })).await.is_err() {
                        return;
                    }
                    last = Some(now);
                }
            }
            // The end of the stream tells the host; it asks again.
            Err(status) => {
                let _ = out.send(Err(status)).await;
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(plugin.interval()) => {}
            () = out.closed() => return,
        }
    }
}

async fn samples(plugin: Arc<dyn DevicePlugin>, every: Duration, out: mpsc::Sender<Result<StatsResponse, Status>>) {
    loop {
        let answer = guarded(plugin.stats()).await.map(|groups| {
            let now = SystemTime::now();
            StatsResponse { groups: groups.into_iter().map(|group| stats_of(group, now)).collect() }
        });
        let failed = answer.is_err();
        if out.send(answer).await.is_err() || failed {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = out.closed() => return,
        }
    }
}

#[tonic::async_trait]
impl device_plugin_server::DevicePlugin for DeviceService {
    type FingerprintStream = StreamOf<FingerprintResponse>;
    type StatsStream = StreamOf<StatsResponse>;

    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Result<Response<Self::FingerprintStream>, Status> {
        let (out, receiver) = mpsc::channel(1);
        tokio::spawn(fingerprints(self.0.clone(), out));
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    async fn reserve(&self, request: Request<ReserveRequest>) -> Result<Response<ReserveResponse>, Status> {
        let reserved = guarded(self.0.reserve(request.into_inner().device_ids)).await?;
        Ok(Response::new(ReserveResponse { container_res: Some(reserved.into()) }))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<Self::StatsStream>, Status> {
        let every = build::std_duration(request.into_inner().collection_interval.as_ref()).max(Duration::from_secs(1));
        let (out, receiver) = mpsc::channel(1);
        tokio::spawn(samples(self.0.clone(), every, out));
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }
}
