//! Starts: each is on record before it is sent, and repeated as it was.

use std::sync::Arc;
use std::time::SystemTime;

use aws::answer::{Meaning, Trouble};
use aws::site::Site;
use aws::{Answer, lock};
use driver_sdk::{DriverState as _, Ensure, Ensured, Error, RemoteError};

use crate::answer::not_placed;
use crate::api::{Api, Ran};
use crate::definition::{Known, Made};
use crate::look::observation;
use crate::marks::{self, Marks};
use crate::options::EcsTask;
use crate::plan::{self, Plan};
use crate::sent::Intent;

fn error(error: Error) -> RemoteError {
    RemoteError::wrong_request(error)
}

/// [`driver_sdk::RemoteDriver::ensure`].
pub(crate) async fn ensure(site: &Site<Api>, request: &Ensure) -> Answer<Ensured> {
    plan::refused(request)?;
    let options = EcsTask::decode(&request.task.msgpack_driver_config).map_err(error)?;
    site.starting.alone(&request.key, start(site, request, &options)).await
}

/// The definition that the job means now. `refused` is the ARN of one that ECS has refused: if the driver registered
/// it, it is not taken from memory.
async fn definition(
    site: &Site<Api>,
    request: &Ensure,
    options: &EcsTask,
    refused: Option<&str>,
) -> Answer<Arc<Known>> {
    match (options.definition(), &options.container) {
        (Some(name), _) => Ok(site.provider.definition(name).await?),
        (None, Some(container)) => {
            let made = Made::of(options, container, &request.task, &request.owner, site.provider.region())?;
            let owner = Marks { owner: request.owner.clone(), ..Marks::default() }.tags();
            let owner = owner.into_iter().filter(|(key, _)| key == marks::OWNER);
            site.provider.made(&made, marks::tags(owner), refused).await
        }
        (None, None) => Err(RemoteError::wrong_request("config.task names neither a task_definition nor a container")),
    }
}

/// What is to be kept before the start of this request is sent; `None` when that is kept already.
pub(crate) async fn intent(site: &Site<Api>, request: &Ensure) -> Answer<Option<Vec<u8>>> {
    plan::refused(request)?;
    if let Some(kept) = Intent::read(&request.intent)? {
        // What was refused for half a day, for want of room perhaps, has used up no token.
        let anew = kept.is_old(SystemTime::now()) && lock(&site.sent).heard(&request.key, request.epoch);
        if !anew {
            return Ok(None);
        }
    }
    let options = EcsTask::decode(&request.task.msgpack_driver_config).map_err(error)?;
    let known = definition(site, request, &options, None).await?;
    let container = known.container(options.container_name.as_deref())?;
    let (cluster, token) = (site.place(false).await?, marks::client_token(&request.key));
    Intent::new(request.epoch, token, (known.arn.clone(), container), &cluster.arn).write().map(Some)
}

/// The plan of a start: with the token and the tags as it was sent, or was about to be, by whichever manager.
fn as_kept(
    request: &Ensure,
    options: &EcsTask,
    kept: Option<&Intent>,
    container: &str,
    definition: &str,
) -> Answer<Plan> {
    let Some(kept) = kept else { return plan::plan(request, options, container, definition) };
    let as_sent = Ensure { epoch: kept.epoch.min(request.epoch), ..request.clone() };
    let plan = plan::plan(&as_sent, options, container, definition)?;
    Ok(Plan { client_token: kept.token.clone(), ..plan })
}

async fn run(site: &Site<Api>, request: &Ensure, plan: &Plan) -> Result<Ran, Trouble> {
    let nothing = |ran: &Result<Ran, Trouble>| match ran {
        Err(trouble) => trouble.is_refusal(),
        Ok(Ran::NotPlaced(failures)) => !failures.is_empty(),
        Ok(Ran::Task(_) | Ran::Taken(_)) => false,
    };
    site.send(request, site.provider.run(plan), nothing).await
}

/// The definition that the job means by now, if it is another one than ECS has refused. ECS has no code for one that
/// was deregistered, so the definition itself is asked for.
async fn instead(site: &Site<Api>, request: &Ensure, options: &EcsTask, refused: &str) -> Option<Arc<Known>> {
    match definition(site, request, options, Some(refused)).await {
        Ok(known) => Some(known).filter(|known| known.arn != refused),
        Err(why) => {
            tracing::warn!(key = request.key, %why, "whether the refused definition is active is not known");
            None
        }
    }
}

async fn start(site: &Site<Api>, request: &Ensure, options: &EcsTask) -> Answer<Ensured> {
    if let Some(taken) = site.taken(request).await? {
        return Ok(taken);
    }
    let kept = Intent::read(&request.intent)?;
    site.intended_here(&request.intent).await?;
    let plan = match &kept {
        None => {
            let known = definition(site, request, options, None).await?;
            let container = known.container(options.container_name.as_deref())?;
            as_kept(request, options, None, &container, &known.arn)?
        }
        Some(kept) => {
            if kept.is_over(SystemTime::now()) && !request.first && !lock(&site.sent).heard(&request.key, request.epoch)
            {
                return Err(RemoteError::sealed(
                    "a start with this key may have been sent a day ago, ECS keeps its token no longer and has no \
                        such task now: what came of it \
                     is not known, and a new start needs a new key",
                ));
            }
            as_kept(request, options, Some(kept), &kept.container, &kept.definition)?
        }
    };
    let (plan, ran) = match run(site, request, &plan).await {
        Err(trouble) if trouble.meaning() == Meaning::WrongRequest => {
            let Some(known) = instead(site, request, options, &plan.definition).await else {
                return Err(trouble.into());
            };
            tracing::warn!(key = request.key, %trouble, refused = plan.definition, other = known.arn,
                "starts the task with another definition");
            let container = known.container(options.container_name.as_deref())?;
            let plan = as_kept(request, options, kept.as_ref(), &container, &known.arn)?;
            let ran = run(site, request, &plan).await?;
            (plan, ran)
        }
        ran => (plan, ran?),
    };
    match ran {
        Ran::Task(task) => {
            let handle = site.handle(&task, &plan.marks).await?;
            // The answer to a repetition shows the tags as they were sent first. Another manager may have taken the
            // task over since.
            let seen = if request.first { None } else { site.look_at(&handle).await? };
            let marks = seen.map_or_else(|| plan.marks.clone(), |(_, marks)| marks);
            site.claim(&handle, &marks, request.epoch).await?;
            lock(&site.sent).found(&request.key);
            // The answer to a repetition is that to the first request; how the task is now is another question, and
            // not this one's.
            let mut observed = observation(&task, &plan.marks);
            observed.epoch = observed.epoch.max(request.epoch);
            Ok(Ensured { handle: handle.remote_handle()?, observed, created: true })
        }
        Ran::NotPlaced(failures) => Err(not_placed(&failures)),
        // An earlier start of this key, by another manager or under another epoch.
        Ran::Taken(arns) => {
            let mut tasks = site.tasks(&arns).await?.into_iter().filter_map(|task| {
                let marks = site.marks(&task, None)?;
                (marks.key == request.key && marks.owner == request.owner).then_some((task, marks))
            });
            match tasks.next() {
                Some((task, marks)) => site.existing(task, marks, request.epoch).await,
                None => Err(RemoteError::could_not_ask(format!(
                    "ECS says that the key has the tasks {arns:?} already, and does not show them; nothing \
                        was started"
                ))),
            }
        }
    }
}
