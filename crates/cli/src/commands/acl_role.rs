//! `drover acl role create|list|info|update|delete`.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use api::call;
use model::{AclRole, AclRolePolicy};

use super::{ApiArgs, Format, acl_shared};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// What a role says.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Said {
    /// Name, unique
    #[arg(long)]
    name: Option<String>,
    /// Free text, at most 256 bytes
    #[arg(long)]
    description: Option<String>,
    /// Name of a policy; repeatable
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a role
    Create {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        said: Said,
    },
    /// Delete a role: tokens lose what it gave them
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Id of the role
        id: String,
    },
    /// Show a role
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// The operand is the name of the role
        #[arg(long)]
        by_name: bool,
        /// Id of the role
        id: String,
    },
    /// List the roles that the token may see
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Change a role; what no flag names keeps its value, and policies are added
    Update {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        said: Said,
        /// Replace the whole role by what the flags say
        #[arg(long)]
        no_merge: bool,
        /// Id of the role
        id: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create { api, format, said } => {
            let role = api.conn()?.ask(call::acl_role_put(&whole(said, "")?)).await?;
            acl_shared::print(&format, &role, show)
        }
        Command::Delete { api, id } => {
            api.conn()?.tell(call::acl_role_delete(&id)).await?;
            output::line(&format!("ACL role {id} successfully deleted"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Info { api, format, by_name, id } => {
            let call = if by_name { call::acl_role_by_name(id) } else { call::acl_role(id) };
            acl_shared::print(&format, &api.conn()?.ask(call).await?, show)
        }
        Command::List { api, format } => list(&api.conn()?, &format).await,
        Command::Update { api, format, said, no_merge, id } => {
            let conn = api.conn()?;
            // Read in any case: a role that is not there is told so.
            let before = conn.ask(call::acl_role(&id)).await?;
            let role = if no_merge { whole(said, &id)? } else { merged(before, said)? };
            acl_shared::print(&format, &conn.ask(call::acl_role_update(&id, &role)).await?, show)
        }
    }
}

async fn list(conn: &Conn, format: &Format) -> Result<ExitCode> {
    if format.wanted() {
        return conn.show(format, call::acl_roles()).await;
    }
    let mut table = Table::new(["ID", "Name", "Description", "Policies"]);
    for role in conn.ask(call::acl_roles()).await? {
        let policies = policies(&role);
        table.row([role.id.to_string(), role.name, role.description, policies]);
    }
    if table.is_empty() {
        output::line("No ACL roles found")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

/// A role that the flags alone describe.
fn whole(said: Said, id: &str) -> Result<AclRole> {
    let Some(name) = said.name else { bail!("ACL role name must be specified using the -name flag") };
    ensure!(!said.policies.is_empty(), "At least one policy name must be specified using the -policy flag");
    merged(AclRole { id: id.into(), ..AclRole::default() }, Said { name: Some(name), ..said })
}

/// A role with what the flags say besides.
fn merged(mut role: AclRole, said: Said) -> Result<AclRole> {
    ensure!(
        said.name.is_some() || said.description.is_some() || !said.policies.is_empty(),
        "nothing to change; give -name, -description or -policy"
    );
    if let Some(name) = said.name {
        role.name = name;
    }
    if let Some(description) = said.description {
        role.description = description;
    }
    for name in said.policies {
        let policy = AclRolePolicy { name };
        if !role.policies.contains(&policy) {
            role.policies.push(policy);
        }
    }
    Ok(role)
}

fn policies(role: &AclRole) -> String {
    role.policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(",")
}

fn show(role: &AclRole) {
    output::pairs(&[
        ("ID", role.id.to_string()),
        ("Name", role.name.clone()),
        ("Description", role.description.clone()),
        ("Policies", policies(role)),
        ("Create Index", role.create_index.to_string()),
        ("Modify Index", role.modify_index.to_string()),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_adds_policies_or_replaces_the_role() {
        let said = |name: Option<&str>, policies: &[&str]| Said {
            name: name.map(str::to_owned),
            description: None,
            policies: policies.iter().map(|name| (*name).to_owned()).collect(),
        };
        let role = whole(said(Some("ops"), &["a", "a"]), "").expect("a role");
        assert_eq!((&*role.name, &*policies(&role)), ("ops", "a"));
        let role = merged(AclRole { description: "d".into(), ..role }, said(None, &["b", "a"])).expect("a role");
        assert_eq!((&*role.name, &*role.description, &*policies(&role)), ("ops", "d", "a,b"));
        assert!(merged(role, said(None, &[])).is_err());
        assert!(whole(said(None, &["a"]), "").is_err() && whole(said(Some("n"), &[]), "").is_err());
        let replaced = whole(said(Some("n"), &["c"]), "id").expect("a role");
        assert_eq!((&*replaced.id, &*replaced.description, &*policies(&replaced)), ("id", "", "c"));
    }
}
