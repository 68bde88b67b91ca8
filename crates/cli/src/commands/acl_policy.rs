//! `drover acl policy apply|list|info|delete|self`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use api::call;
use model::{AclPolicy, JobAcl};

use super::{ApiArgs, Format, acl_shared, spec_file};
use crate::output;

/// Columns of lists.
const COLUMNS: [(&str, &str); 2] = [("Name", "Name"), ("Description", "Description")];

/// Arguments of `acl policy apply`.
#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    api: ApiArgs,
    /// Free text, at most 256 bytes
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Give the policy to the identities of this job's tasks; needs -namespace
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Only to those of this task group; needs -job
    #[arg(long, value_name = "NAME", requires = "job")]
    group: Option<String>,
    /// Only to those of this task; needs -group
    #[arg(long, value_name = "NAME", requires = "group")]
    task: Option<String>,
    /// Name of the policy
    name: String,
    /// File with its rules, HCL or JSON; `-` reads standard input
    file: String,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create or replace a policy
    ///
    /// With -namespace the policy is given to the identities of tasks of that namespace, which -job, -group and -task
    /// narrow.
    Apply(Apply),
    /// Delete a policy
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Name of the policy
        name: String,
    },
    /// Show a policy with its rules
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Name of the policy
        name: String,
    },
    /// List the policies that the token may see
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// List the policies that give the token its rights
    #[command(name = "self")]
    Own {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Apply(args) => {
            let policy = policy(&args, spec_file::text_of(&args.file)?.1)?;
            args.api.conn()?.tell(call::acl_policy_put(&args.name, &policy)).await?;
            output::line(&format!("Successfully wrote {:?} ACL policy!", args.name));
            Ok(ExitCode::SUCCESS)
        }
        Command::Delete { api, name } => {
            api.conn()?.tell(call::acl_policy_delete(&name)).await?;
            output::line(&format!("Successfully deleted {name} policy!"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Info { api, format, name } => {
            let conn = api.conn()?;
            if format.wanted() {
                return conn.show(&format, call::acl_policy(name)).await;
            }
            show(&conn.ask(call::acl_policy(name).reading()).await?);
            Ok(ExitCode::SUCCESS)
        }
        Command::List { api, format } => {
            acl_shared::list(&api.conn()?, call::acl_policies(), &format, &COLUMNS, "No policies found").await
        }
        Command::Own { api, format } => {
            let nothing = "No policies: the token is a management token, or has none";
            acl_shared::list(&api.conn()?, call::acl_policy_self(), &format, &COLUMNS, nothing).await
        }
    }
}

/// The policy that the arguments describe.
fn policy(args: &Apply, rules: String) -> Result<AclPolicy> {
    let namespace = args.api.namespace.clone();
    ensure!(args.job.is_none() || namespace.is_some(), "-job needs -namespace, the namespace of the job");
    let of = |given: &Option<String>| given.clone().unwrap_or_default();
    let job_acl = namespace.map(|namespace| JobAcl {
        namespace,
        job_id: of(&args.job),
        group: of(&args.group),
        task: of(&args.task),
    });
    Ok(AclPolicy {
        name: args.name.as_str().into(),
        description: args.description.clone(),
        rules,
        job_acl,
        ..AclPolicy::default()
    })
}

fn show(policy: &AclPolicy) {
    output::pairs(&[
        ("Name", policy.name.to_string()),
        ("Description", policy.description.clone()),
        ("CreateIndex", policy.create_index.to_string()),
        ("ModifyIndex", policy.modify_index.to_string()),
    ]);
    if let Some(job) = &policy.job_acl {
        output::heading("Associated Workload");
        output::pairs(&[
            ("Namespace", &job.namespace),
            ("JobID", &job.job_id),
            ("Group", &job.group),
            ("Task", &job.task),
        ]);
    }
    output::heading("Rules");
    output::line("");
    output::line(policy.rules.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_for_identities_names_their_namespace() {
        let args = |namespace: Option<&str>, job: Option<&str>| Apply {
            api: ApiArgs { namespace: namespace.map(str::to_owned), ..ApiArgs::default() },
            description: "d".to_owned(),
            job: job.map(str::to_owned),
            group: None,
            task: None,
            name: "p".to_owned(),
            file: "-".to_owned(),
        };
        let plain = policy(&args(None, None), "rules".to_owned()).expect("a policy");
        assert_eq!((&*plain.name, &*plain.rules, plain.job_acl), ("p", "rules", None));
        let of_job = policy(&args(Some("dev"), Some("web")), String::new()).expect("a policy").job_acl.expect("a job");
        assert_eq!((&*of_job.namespace, &*of_job.job_id, &*of_job.group), ("dev", "web", ""));
        let of_all = policy(&args(Some("dev"), None), String::new()).expect("a policy").job_acl.expect("a namespace");
        assert_eq!((&*of_all.namespace, &*of_all.job_id), ("dev", ""));
        assert!(policy(&args(None, Some("web")), String::new()).is_err());
    }
}
