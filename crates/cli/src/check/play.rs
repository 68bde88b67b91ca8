//! How each row of the failure sheet is played: the fault, and what must hold then. An error is what was seen instead.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::Result;
use model::{DesiredRemote, Observed};
use rustix::process::Signal;

use super::{
    lab::{LENGTH, Lab},
    line::Fault,
};

/// A row's story; what it gives back is said beside the row.
pub(super) type Play = for<'a, 'b> fn(&'a mut Lab<'b>) -> Pin<Box<dyn Future<Output = Result<String>> + 'a>>;

/// How long a trouble lasts that must be longer than the lease.
fn beyond(lab: &Lab<'_>) -> Duration {
    lab.lease() * 3
}

pub(super) async fn manager_killed(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    let since = Instant::now();
    lab.kill(&before.extra.manager_name).await?;
    lab.handed_over(&before, since).await
}

pub(super) async fn manager_drained(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    let since = Instant::now();
    lab.drain(&before.extra.manager_name).await?;
    lab.handed_over(&before, since).await
}

pub(super) async fn manager_paused(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    let old = before.extra.manager_name.clone();
    let since = Instant::now();
    lab.signal(&old, Signal::STOP);
    let told = lab.handed_over(&before, since).await;
    lab.signal(&old, Signal::CONT);
    let told = told?;
    lab.ready(&old).await?;
    // The one that woke has had its time to act.
    tokio::time::sleep(lab.lease()).await;
    lab.unharmed(&before).await?;
    Ok(format!("{told}, also after {old} woke"))
}

pub(super) async fn manager_cut_off(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    let since = Instant::now();
    lab.kill_agent(&before.extra.manager_name).await?;
    lab.handed_over(&before, since).await
}

pub(super) async fn plugin_killed(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    let node = before.extra.manager_name.clone();
    let since = Instant::now();
    let old = lab.kill_plugin(&node)?;
    lab.new_plugin(&node, &old).await?;
    lab.ready(&node).await?;
    lab.until("the task to be seen running again", |task| task.observed == Observed::Running).await?;
    lab.unharmed(&before).await?;
    Ok(format!("the node has a plugin again after {:.1} s", since.elapsed().as_secs_f64()))
}

/// Both nodes are lost, and it is seen.
async fn lose_nodes(lab: &mut Lab<'_>, first: &str) -> Result<()> {
    // The other one would take the task over.
    lab.kill(Lab::other(first)).await?;
    lab.kill(first).await?;
    lab.until("the task to be shown as unmanaged", |task| task.manager.is_none() && task.unmanaged_since > 0)
        .await
        .map(drop)
}

pub(super) async fn no_node_left(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    lose_nodes(lab, &before.extra.manager_name).await?;
    let since = Instant::now();
    lab.start_node("node-3")?;
    lab.handed_over(&before, since).await
}

pub(super) async fn end_unmanaged(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(true).await?;
    let began = Instant::now();
    lose_nodes(lab, &before.extra.manager_name).await?;
    // The task's own time, and what its provider takes to notice.
    tokio::time::sleep((Duration::from_secs(LENGTH.into()) + lab.lease()).saturating_sub(began.elapsed())).await;
    lab.start_node("node-3")?;
    lab.ended().await
}

pub(super) async fn stop_unmanaged(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    lose_nodes(lab, &before.extra.manager_name).await?;
    lab.stop_job().await?;
    lab.until("the order to stop it, on record", |task| task.desired == DesiredRemote::Stop).await?;
    let since = Instant::now();
    lab.start_node("node-3")?;
    lab.gone().await?;
    lab.one_instance().await?;
    Ok(format!("it has ended {:.1} s after a node was started", since.elapsed().as_secs_f64()))
}

/// The first create goes wrong; in the end there is one instance.
async fn create_with(lab: &mut Lab<'_>, fault: Fault) -> Result<String> {
    lab.faults(&[("Ensure", fault), ("StartTask", fault)])?;
    let since = Instant::now();
    let now = lab.running(false).await?;
    anyhow::ensure!(
        lab.calls().iter().any(|call| call.fault == Some(fault)),
        "no create has met the fault, so nothing was checked"
    );
    lab.unharmed(&now).await?;
    Ok(format!("one instance, seen after {:.1} s", since.elapsed().as_secs_f64()))
}

pub(super) async fn create_answer_lost(lab: &mut Lab<'_>) -> Result<String> {
    create_with(lab, Fault::Lose).await
}

pub(super) async fn plugin_killed_in_create(lab: &mut Lab<'_>) -> Result<String> {
    create_with(lab, Fault::Die).await
}

pub(super) async fn late_create(lab: &mut Lab<'_>) -> Result<String> {
    lab.faults(&[("Ensure", Fault::Hold)])?;
    lab.submit(false).await?;
    let on_its_way = lab.held_by(&["Ensure"]).await?;
    lab.until("the manager on record", |task| !task.extra.manager_name.is_empty()).await?;
    lab.kill_agent(&on_its_way).await?;
    // The other node's create passes; that of the dead agent waits on.
    lab.faults_of(Lab::other(&on_its_way), &[])?;
    let before = lab
        .until("the task to run under the other node", |task| {
            task.observed == Observed::Running && task.extra.manager_name != on_its_way && task.manager.is_some()
        })
        .await?;
    lab.faults(&[])?;
    lab.answered(&on_its_way, "Ensure").await?;
    tokio::time::sleep(lab.lease()).await;
    lab.unharmed(&before).await?;
    Ok(format!("one instance, under {}", before.extra.manager_name))
}

async fn provider_away(lab: &mut Lab<'_>, fault: Fault) -> Result<String> {
    let before = lab.running(false).await?;
    lab.outage(fault)?;
    let since = Instant::now();
    lab.until("the task to be unknown", |task| matches!(task.observed, Observed::Unknown { .. })).await?;
    tokio::time::sleep(beyond(lab).saturating_sub(since.elapsed())).await;
    let lasted = since.elapsed();
    lab.faults(&[])?;
    lab.until("the task to be seen running again", |task| task.observed == Observed::Running).await?;
    lab.unharmed(&before).await?;
    Ok(format!("unknown for {:.1} s, then the same instance", lasted.as_secs_f64()))
}

pub(super) async fn provider_outage(lab: &mut Lab<'_>) -> Result<String> {
    provider_away(lab, Fault::Fail).await
}

pub(super) async fn provider_throttles(lab: &mut Lab<'_>) -> Result<String> {
    provider_away(lab, Fault::Throttle).await
}

pub(super) async fn slow_stop(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    lab.faults(&[("Stop", Fault::Slow), ("StopTask", Fault::Slow)])?;
    lab.stop_job().await?;
    let manager = lab.held_by(&["Stop", "StopTask"]).await?;
    lab.kill(&manager).await?;
    let record = lab.record().await?;
    anyhow::ensure!(
        record.is_some_and(|task| task.incarnation == before.incarnation),
        "the record is gone although nobody has confirmed the end"
    );
    let since = Instant::now();
    lab.gone().await?;
    lab.one_instance().await?;
    Ok(format!("its end was confirmed {:.1} s after its manager was killed", since.elapsed().as_secs_f64()))
}

pub(super) async fn server_killed(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    lab.kill_server().await?;
    tokio::time::sleep(lab.lease()).await;
    lab.start_server().await?;
    for node in ["node-1", "node-2"] {
        lab.ready(node).await?;
    }
    lab.recovered().await?;
    lab.until("the task to be seen running", |task| task.observed == Observed::Running && task.manager.is_some())
        .await?;
    lab.unharmed(&before).await?;
    Ok("the same instance under the new server".to_owned())
}

pub(super) async fn server_restored(lab: &mut Lab<'_>) -> Result<String> {
    let before = lab.running(false).await?;
    lab.kill_server().await?;
    let copy = lab.copy_server()?;
    lab.start_server().await?;
    for node in ["node-1", "node-2"] {
        lab.ready(node).await?;
    }
    // What the copy does not know of.
    let since = Instant::now();
    lab.drain(&before.extra.manager_name).await?;
    lab.handed_over(&before, since).await?;
    lab.kill_server().await?;
    lab.restore_server(&copy)?;
    lab.start_server().await?;
    // The servers go on above every epoch that anybody has acted under; the copy knows the first one only.
    lab.until("the task under an epoch above those that the copy knows", |task| {
        task.epoch > before.epoch && task.observed == Observed::Running && task.manager.is_some()
    })
    .await?;
    lab.recovered().await?;
    lab.unharmed(&before).await?;
    Ok("the same instance after the recovery".to_owned())
}
