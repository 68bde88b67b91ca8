//! TaskStats.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use driver_proto::build;
use driver_proto::driver::cpu_usage::Fields as Cpu;
use driver_proto::driver::memory_usage::Fields as Memory;
use driver_proto::driver::*;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::check::table;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::plugin::Plugin;

table! {
    "stats/first", "H43", "the first sample comes at once, with a valid time and all sub-messages; without statistics \
        the stream stays open and idle",
        "Nomad agents crash on a missing sub-message, or log an error every second", first;
    "stats/goes-on", "H43", "samples go on in the interval that was asked for",
        "graphs of the task stop after the first point", goes_on;
    "stats/units", "H43", "the processor is measured in percent of one core, memory in bytes",
        "people and autoscalers act on figures that are off by factors", units;
    "stats/ends", "H43", "the stream ends when the task is destroyed",
        "each task that ends leaves a stream behind for the life of the plugin", ends;
}

async fn open(plugin: &Plugin, id: &str, every: Duration) -> Result<Streaming<TaskStatsResponse>, Status> {
    let request = TaskStatsRequest { task_id: id.into(), collection_interval: Some(build::duration(every)) };
    Ok(plugin.driver().task_stats(request).await?.into_inner())
}

/// A sample, or `None` where the stream stays idle.
async fn sample(lab: &Lab, stream: &mut Streaming<TaskStatsResponse>, limit: Duration) -> Outcome<Option<TaskStats>> {
    match timeout(limit, stream.message()).await {
        Err(_) => Ok(None),
        Ok(Err(status)) => failed(format!("the stream ended with {:?}: {}", status.code(), status.message())),
        Ok(Ok(None)) => failed("the stream was ended by the plugin"),
        Ok(Ok(Some(answer))) => complete(lab, answer).map(Some),
    }
}

fn complete(lab: &Lab, answer: TaskStatsResponse) -> Outcome<TaskStats> {
    let Some(stats) = answer.stats else {
        return failed("a sample comes without stats");
    };
    let Some(at) = build::system_time(stats.timestamp.as_ref()) else {
        return failed(format!("a sample has the time {:?}", stats.timestamp));
    };
    let now = SystemTime::now();
    let off = now.duration_since(at).or_else(|_| at.duration_since(now)).unwrap_or_default();
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    hold!(off < lab.pace().limit(Duration::from_secs(60)), "a sample is of {since:?} after 1970, {off:?} from now");
    hold!(stats.agg_resource_usage.is_some(), "a sample comes without agg_resource_usage");
    for (pid, usage) in &stats.resource_usage_by_pid {
        hold!(pid.parse::<u32>().is_ok(), "a process is called {pid:?}, expected is its number");
        hold!(
            usage.cpu.is_some() || usage.memory.is_some(),
            "the sample of process {pid} holds neither cpu nor memory"
        );
    }
    Ok(stats)
}

/// Opens the stream, whose headers may come with the first sample only.
async fn opened(
    lab: &Lab,
    plugin: &Plugin,
    id: &str,
    every: Duration,
    limit: Duration,
) -> Outcome<Option<(Streaming<TaskStatsResponse>, TaskStats)>> {
    let begun = Instant::now();
    let mut stream = match timeout(limit, open(plugin, id, every)).await {
        Err(_) => return Ok(None),
        Ok(Err(status)) => {
            return failed(format!("TaskStats was answered with {:?}: {}", status.code(), status.message()));
        }
        Ok(Ok(stream)) => stream,
    };
    let seen = sample(lab, &mut stream, limit.saturating_sub(begun.elapsed())).await?;
    Ok(seen.map(|seen| (stream, seen)))
}

async fn first(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    // With an hour between samples, only the immediate one can come in time.
    let seen =
        opened(lab, &plugin, &task.id, Duration::from_secs(3600), lab.pace().patience.min(Duration::from_secs(10)))
            .await?;
    let offered = seen.is_some();
    if !offered {
        // Idle for want of statistics, or only late? Then a short interval brings some.
        let late = opened(lab, &plugin, &task.id, Duration::from_millis(50), lab.pace().hold).await?;
        hold!(late.is_none(), "no sample came at once, only after the interval");
    }
    drop(seen);
    lab.destroy(&plugin, &task.id).await
}

async fn goes_on(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let Some((mut stream, _)) =
        opened(lab, &plugin, &task.id, Duration::from_millis(50), lab.pace().patience.min(Duration::from_secs(10)))
            .await?
    else {
        lab.destroy(&plugin, &task.id).await?;
        return not_applicable("the driver sends no statistics");
    };
    for n in 2..=4 {
        let next = sample(lab, &mut stream, lab.pace().patience).await?;
        hold!(next.is_some(), "sample {n} did not come; asked for was one every 50 ms");
    }
    drop(stream);
    lab.destroy(&plugin, &task.id).await
}

async fn units(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    // Busy, with something in its memory.
    let task = lab.task(&plugin, Work::Script("while :; do :; done")).await?;
    let Some((mut stream, _)) =
        opened(lab, &plugin, &task.id, Duration::from_millis(300), lab.pace().patience.min(Duration::from_secs(10)))
            .await?
    else {
        lab.destroy(&plugin, &task.id).await?;
        return not_applicable("the driver sends no statistics");
    };
    let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let (mut busiest, mut usage) = (0.0_f64, TaskResourceUsage::default());
    let begun = Instant::now();
    // On a machine that is busy with other things the task's share may be small for a while.
    while busiest <= 1.5 && begun.elapsed() < lab.pace().patience.min(Duration::from_secs(20)) {
        let Some(stats) = sample(lab, &mut stream, lab.pace().patience).await? else {
            return failed("the samples stopped");
        };
        usage = stats.agg_resource_usage.unwrap_or_default();
        let cpu = usage.cpu.clone().unwrap_or_default();
        if !cpu.measured_fields.contains(&(Cpu::Percent as i32)) {
            break;
        }
        hold!(cpu.percent <= 130.0 * cores, "one busy process on {cores} cores uses {} percent", cpu.percent);
        busiest = busiest.max(cpu.percent);
    }
    drop(stream);
    let (cpu, memory) = (usage.cpu.unwrap_or_default(), usage.memory.unwrap_or_default());
    if cpu.measured_fields.contains(&(Cpu::Percent as i32)) {
        hold!(busiest > 1.5, "a busy process uses at most {busiest} percent; 100 is one core");
    }
    if cpu.measured_fields.contains(&(Cpu::TotalTicks as i32)) {
        hold!((0.0..1e6 * cores).contains(&cpu.total_ticks), "total_ticks are {} MHz", cpu.total_ticks);
    }
    // What a cgroup is charged with may be nothing: a shell brings its pages with it.
    for (field, name, bytes, least) in
        [(Memory::Rss, "rss", memory.rss, 32 << 10), (Memory::Usage, "usage", memory.usage, 0)]
    {
        if memory.measured_fields.contains(&(field as i32)) {
            hold!((least..1 << 40).contains(&bytes), "memory {name} of a shell is {bytes}, which are no bytes");
        }
    }
    lab.destroy(&plugin, &task.id).await
}

async fn ends(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Runs).await?;
    let Some((mut stream, _)) =
        opened(lab, &plugin, &task.id, Duration::from_millis(50), lab.pace().patience.min(Duration::from_secs(10)))
            .await?
    else {
        lab.destroy(&plugin, &task.id).await?;
        return not_applicable("the driver sends no statistics");
    };
    lab.destroy(&plugin, &task.id).await?;
    let over = async { while let Ok(Some(_)) = stream.message().await {} };
    match timeout(lab.pace().patience.min(Duration::from_secs(10)), over).await {
        Ok(()) => Ok(()),
        Err(_) => failed("ten seconds after DestroyTask the stream is still open"),
    }
}
