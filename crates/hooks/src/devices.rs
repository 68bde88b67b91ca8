//! Devices: what a task needs to use those that are its own.

use std::{collections::btree_map::Entry, sync::Arc};

use driver_host::ContainerReservation;
use lifecycle::alloc::machine::StartFailure;
use model::AllocatedDevices;

use crate::{
    drivers::Drivers,
    hook::{Given, Hook, Prepared, Starting},
    offers::offered_by,
    present::Present,
};

/// Asks the device plugins for what a task needs to use its devices: before each of its starts, as they expect.
pub struct Devices {
    /// The plugins.
    pub drivers: Arc<Drivers>,
    /// The allocations of this node.
    pub present: Box<dyn Present>,
}

impl Hook for Devices {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a> {
        Box::pin(async move {
            let task = &starting.spec.task.name;
            let Some(resources) = starting.spec.alloc.resources.tasks.get(task) else { return Ok(()) };
            self.wait_for_former_holders(starting, &resources.devices).await?;
            for devices in &resources.devices {
                let reserved = starting.unless_interrupted(self.reserve(devices)).await?;
                let reserved = reserved.map_err(|why| StartFailure::Setup { why, recoverable: true })?;
                let failed = |why: String| StartFailure::Setup { why, recoverable: false };
                add(&mut given.devices, reserved, &devices.id()).map_err(failed)?;
            }
            if starting.capabilities.no_mounts {
                // Its tasks see the machine as it is, device nodes as well.
                given.devices.devices.clear();
                let there: Vec<_> = given.devices.mounts.drain(..).map(|mount| mount.host_path).collect();
                if !there.is_empty() {
                    let driver = &starting.spec.task.driver;
                    starting.place.note(format!(
                        "Driver {driver} mounts nothing: what its devices bring is at {}",
                        there.join(", ")
                    ));
                }
            }
            Ok(())
        })
    }
}

impl Devices {
    /// A device that its former task still has, because that is only being stopped, is not there yet: an update of the
    /// job on the same node, or a displacement.
    async fn wait_for_former_holders(
        &self,
        starting: &Starting<'_>,
        devices: &[AllocatedDevices],
    ) -> Result<(), StartFailure> {
        let wanted: Vec<(String, String)> =
            devices.iter().flat_map(|d| d.device_ids.iter().map(|id| (d.id(), id.clone()))).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        for (holder, end) in self.present.holders(&wanted, starting.place.alloc.id) {
            let what = format!("Waiting for allocation {} to end, which has the device", holder.short());
            starting.after(end, &what).await?;
        }
        Ok(())
    }

    async fn reserve(&self, devices: &AllocatedDevices) -> Result<ContainerReservation, String> {
        let group = devices.id();
        let mut fingerprints = self.drivers.host().fingerprints();
        // A plugin that has just been started does not know its devices before it has looked at them.
        let offered = fingerprints.wait_for(|all| {
            let up = |name: &String| all.get(name).is_some_and(|f| f.pid.is_some() && f.settled);
            offered_by(all, &group).is_some_and(up)
        });
        let in_time = tokio::time::timeout(self.drivers.patience(), offered).await.is_ok();
        let plugin = self.drivers.device(&group);
        let plugin = plugin.ok_or_else(|| format!("no device plugin of this node offers {group}"))?;
        if !in_time {
            return Err(format!("the plugin of device {group} does not come up"));
        }
        plugin.reserve(devices.device_ids.clone()).await.map_err(|error| format!("device {group}: {error}"))
    }
}

/// Adds a reservation to those of the task's other devices.
///
/// # Errors
/// Two plugins want different values of one variable: one of the devices would not work.
fn add(all: &mut ContainerReservation, more: ContainerReservation, group: &str) -> Result<(), String> {
    for (name, value) in more.envs {
        match all.envs.entry(name) {
            Entry::Vacant(free) => drop(free.insert(value)),
            Entry::Occupied(taken) if *taken.get() == value => {}
            Entry::Occupied(taken) => {
                let name = taken.key();
                return Err(format!(
                    "device {group} needs {name}={value:?}, and another device of the task needs {name}={:?}: ask for \
                    them in different tasks",
                    taken.get()
                ));
            }
        }
    }
    for mount in more.mounts {
        if !all.mounts.contains(&mount) {
            all.mounts.push(mount);
        }
    }
    for device in more.devices {
        if !all.devices.contains(&device) {
            all.devices.push(device);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use driver_host::proto::device::{DeviceSpec, Mount};

    use super::*;

    #[test]
    fn devices_of_one_task_share_what_they_need_and_do_not_contradict() {
        let env = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let mount = Mount { task_path: "/usr/lib/x".into(), host_path: "/lib/x".into(), read_only: true };
        let device = |n: u8| DeviceSpec { task_path: format!("/dev/x{n}"), ..DeviceSpec::default() };
        let of = |envs, n| ContainerReservation { envs, mounts: vec![mount.clone()], devices: vec![device(n)] };
        let mut all = ContainerReservation::default();
        add(&mut all, of(env("A", "1"), 0), "v/t/n").expect("the first");
        add(&mut all, of(env("A", "1"), 1), "v/t/m").expect("the same value");
        assert_eq!((all.envs.len(), all.mounts.len(), all.devices.len()), (1, 1, 2));
        let why = add(&mut all, of(env("A", "2"), 2), "v/t/o").expect_err("another value");
        assert!(why.contains("device v/t/o needs A=\"2\"") && why.contains("A=\"1\""), "{why}");
    }
}
