//! `drover job tag …`: names for versions of a job.

use std::process::ExitCode;

use anyhow::Result;
use api::{call, shapes::JobTagRequest};

use super::common::find;
use crate::{commands::ApiArgs, output};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Tag {
    /// Name a version, which is kept from then on
    Apply {
        #[command(flatten)]
        api: ApiArgs,
        /// The name
        #[arg(long)]
        name: String,
        /// What is special about the version
        #[arg(long, default_value = "")]
        description: String,
        /// The version; the newest if none is given
        #[arg(long)]
        version: Option<u64>,
        /// The job
        id: String,
    },
    /// Take a name away from the version that has it
    Unset {
        #[command(flatten)]
        api: ApiArgs,
        /// The name
        #[arg(long)]
        name: String,
        /// The job
        id: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Tag) -> Result<ExitCode> {
    match command {
        Tag::Apply { api, name, description, version, id } => {
            let conn = api.conn()?;
            let (conn, id) = find(&conn, &id).await?;
            let request =
                JobTagRequest { version: version.unwrap_or_default(), latest: version.is_none(), description };
            conn.ask(call::job_tag(&id, &name, &request)).await?;
            // Which one is the newest is known only now.
            let versions = conn.ask(call::job_versions(&id)).await?.versions;
            let has = |job: &model::Job| job.version_tag.as_ref().is_some_and(|tag| tag.name == name);
            let tagged = versions.iter().find(|job| has(job)).map_or(version.unwrap_or_default(), |job| job.version);
            output::line(&format!("Job version {tagged} tagged with name {name:?}"));
        }
        Tag::Unset { api, name, id } => {
            let conn = api.conn()?;
            let (conn, id) = find(&conn, &id).await?;
            conn.tell(call::job_untag(&id, &name)).await?;
            output::line(&format!("Tag {name:?} removed from job {id:?}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
