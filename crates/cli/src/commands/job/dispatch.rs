//! `drover job dispatch`.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use api::{call, shapes::JobDispatchRequest};

use super::{
    run::{Submitted, follow},
    wait,
};
use crate::{
    commands::{
        ApiArgs, Shape,
        monitor::{Follower, Voice},
        pages::{Also, job_page},
        which_job::find_parameterized,
    },
    output,
};

/// Arguments of `job dispatch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Dispatch {
    #[command(flatten)]
    api: ApiArgs,
    /// Metadata of the dispatched job, KEY=VALUE; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
    /// Prefix of the dispatched job's name
    #[arg(long, value_name = "TEXT", default_value = "")]
    id_prefix_template: String,
    /// Dispatch at most once for this token
    #[arg(long, value_name = "TOKEN")]
    idempotency_token: Option<String>,
    /// Priority of the dispatched job; 0 = priority of the parameterized job
    #[arg(long, default_value_t = 0)]
    priority: i32,
    /// Follow the job to its end; print its output and return its exit code
    #[arg(long, conflicts_with = "detach")]
    wait: bool,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    also: Also,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
    /// The parameterized job
    job: String,
    /// File with the payload; `-` reads standard input
    payload: Option<PathBuf>,
}

/// Dispatches, and follows the work.
pub(crate) async fn run(args: Dispatch) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let request = JobDispatchRequest {
        payload: payload(args.payload.as_deref())?,
        meta: meta(&args.meta)?,
        id_prefix_template: args.id_prefix_template,
        priority: args.priority,
        ..JobDispatchRequest::default()
    };
    let (conn, job) = find_parameterized(&conn, &args.job).await?;
    let made =
        conn.ask(call::job_dispatch(&job, &request).with_some("idempotency_token", args.idempotency_token)).await?;
    let evaluated = !made.eval_id.is_nil();
    // Standard output is the tasks' when their output is written here.
    let voice = if args.wait { Voice::Err } else { Voice::Out };
    let child = made.dispatched_job_id.to_string();
    args.also.open(&conn, &job_page(&child, conn.namespace())).await;
    let mut rows = vec![("Dispatched Job ID", child.clone())];
    if evaluated {
        rows.push(("Evaluation ID", made.eval_id.to_string()));
    }
    output::pair_lines(&rows).iter().for_each(|l| voice.line(l));
    let shape = Shape { verbose: args.verbose, ..Shape::default() };
    if args.detach || !evaluated {
        // The token has dispatched it before: there is no evaluation, and an end to wait for.
        return match args.wait {
            true => Ok(ExitCode::from(
                wait::to_its_end(&conn, &child, &shape, &mut Follower::new(&conn, &shape, voice)).await?,
            )),
            false => Ok(ExitCode::SUCCESS),
        };
    }
    voice.line("");
    let job = conn.ask(call::job(&child)).await?;
    let job = Submitted { id: &child, kind: &job.kind };
    follow(&conn, &job, made.eval_id, args.wait, None, &shape).await
}

fn meta(given: &[String]) -> Result<BTreeMap<String, String>> {
    let mut meta = BTreeMap::new();
    for pair in given {
        let Some((key, value)) = pair.split_once('=') else { bail!("-meta {pair:?} is not KEY=VALUE") };
        meta.insert(key.to_owned(), value.to_owned());
    }
    Ok(meta)
}

/// What is larger than any payload may be is not read to its end: the server says what it thinks of the first byte
/// too many.
fn payload(from: Option<&Path>) -> Result<Vec<u8>> {
    let most = model::dispatch::MAX_PAYLOAD_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    match from {
        None => {}
        Some(path) if path == Path::new("-") => {
            std::io::stdin()
                .lock()
                .take(most)
                .read_to_end(&mut bytes)
                .context("could not read the payload from standard input")?;
        }
        Some(path) => {
            let doing = || format!("could not read the payload {}", path.display());
            std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).with_context(doing)?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_pairs() {
        let pairs = ["a=1".to_owned(), "b=x=y".to_owned(), "a=2".to_owned()];
        assert_eq!(
            meta(&pairs).expect("pairs"),
            BTreeMap::from([("a".into(), "2".into()), ("b".into(), "x=y".into())])
        );
        assert!(meta(&["a".to_owned()]).expect_err("no value").to_string().contains("KEY=VALUE"));
    }

    #[test]
    fn payloads_are_read_up_to_one_byte_too_many() {
        let dir = tempfile::tempdir().expect("temp dir");
        let file = dir.path().join("p");
        std::fs::write(&file, vec![7; 20_000]).expect("file");
        assert_eq!(payload(Some(&file)).expect("read").len(), model::dispatch::MAX_PAYLOAD_BYTES + 1);
        assert!(payload(None).expect("none").is_empty());
        let error = format!("{:#}", payload(Some(&dir.path().join("missing"))).expect_err("missing"));
        assert!(error.contains("missing"), "{error}");
    }
}
