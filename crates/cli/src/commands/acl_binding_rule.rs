//! `drover acl binding-rule create|list|info|update|delete`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use api::call;
use model::AclBindingRule;

use super::{ApiArgs, Format, acl_shared};
use crate::output;

/// What a rule says.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Said {
    /// Free text, at most 256 bytes
    #[arg(long)]
    description: Option<String>,
    /// Which logins, by their claims, such as `"ops" in list.groups`; default: all of them
    #[arg(long, value_name = "EXPRESSION")]
    selector: Option<String>,
    /// What the logins get: `role`, `policy` or `management`
    #[arg(long, value_name = "TYPE")]
    bind_type: Option<String>,
    /// Name of the role or policy; `${value.NAME}` stands for a claim
    #[arg(long, value_name = "NAME")]
    bind_name: Option<String>,
}

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a rule that says what logins of a method may do
    Create {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Name of the method
        #[arg(long, value_name = "NAME")]
        auth_method: String,
        #[command(flatten)]
        said: Said,
    },
    /// Delete a rule; tokens that came from it stay
    Delete {
        #[command(flatten)]
        api: ApiArgs,
        /// Id of the rule
        id: String,
    },
    /// Show a rule
    Info {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Id of the rule
        id: String,
    },
    /// List the rules
    List {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Change a rule; what no flag names keeps its value
    Update {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        said: Said,
        /// The rule's method, which does not change
        #[arg(long, value_name = "NAME")]
        auth_method: Option<String>,
        /// Replace all but id and method by what the flags say
        #[arg(long)]
        no_merge: bool,
        /// Id of the rule
        id: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Create { api, format, auth_method, said } => {
            let of = AclBindingRule { auth_method: auth_method.as_str().into(), ..AclBindingRule::default() };
            let rule = whole(of, said)?;
            acl_shared::print(&format, &api.conn()?.ask(call::acl_binding_rule_put(&rule)).await?, show)
        }
        Command::Delete { api, id } => {
            api.conn()?.tell(call::acl_binding_rule_delete(&id)).await?;
            output::line(&format!("ACL binding rule {id} successfully deleted"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Info { api, format, id } => {
            acl_shared::print(&format, &api.conn()?.ask(call::acl_binding_rule(id)).await?, show)
        }
        Command::List { api, format } => {
            let columns = [("ID", "ID"), ("Description", "Description"), ("Auth Method", "AuthMethod")];
            acl_shared::list(&api.conn()?, call::acl_binding_rules(), &format, &columns, "No ACL binding rules found")
                .await
        }
        Command::Update { api, format, said, auth_method, no_merge, id } => {
            let conn = api.conn()?;
            let before = conn.ask(call::acl_binding_rule(&id)).await?;
            if let Some(named) = auth_method.filter(|named| **named != *before.auth_method) {
                bail!("rule {id} belongs to method {}; for {named:?} make another rule", before.auth_method);
            }
            let kept = |rule: &AclBindingRule| AclBindingRule {
                id: rule.id.clone(),
                auth_method: rule.auth_method.clone(),
                ..AclBindingRule::default()
            };
            let rule = if no_merge { whole(kept(&before), said)? } else { merged(before.clone(), said) };
            ensure!(rule != before, "nothing to change; give -description, -selector, -bind-type or -bind-name");
            acl_shared::print(&format, &conn.ask(call::acl_binding_rule_update(&id, &rule)).await?, show)
        }
    }
}

/// A rule that the flags alone describe.
fn whole(of: AclBindingRule, said: Said) -> Result<AclBindingRule> {
    said.bind_type.as_ref().context("a rule needs -bind-type role, policy or management")?;
    Ok(merged(of, said))
}

/// A rule with what the flags say besides.
fn merged(mut rule: AclBindingRule, said: Said) -> AclBindingRule {
    for (field, given) in [
        (&mut rule.description, said.description),
        (&mut rule.selector, said.selector),
        (&mut rule.bind_type, said.bind_type),
        (&mut rule.bind_name, said.bind_name),
    ] {
        if let Some(given) = given {
            *field = given;
        }
    }
    rule
}

fn show(rule: &AclBindingRule) {
    output::pairs(&[
        ("ID", rule.id.to_string()),
        ("Description", rule.description.clone()),
        ("Auth Method", rule.auth_method.to_string()),
        ("Selector", rule.selector.clone()),
        ("Bind Type", rule.bind_type.clone()),
        ("Bind Name", rule.bind_name.clone()),
        ("Create Time", acl_shared::time(&rule.create_time)),
        ("Modify Time", acl_shared::time(&rule.modify_time)),
        ("Create Index", rule.create_index.to_string()),
        ("Modify Index", rule.modify_index.to_string()),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_changes_what_flags_name_and_a_replacement_the_rest_as_well() {
        let rule = AclBindingRule { selector: "s".into(), bind_type: "role".into(), ..AclBindingRule::default() };
        let said = || Said { bind_name: Some("ops".into()), ..Said::default() };
        let changed = merged(rule.clone(), said());
        assert_eq!((&*changed.selector, &*changed.bind_type, &*changed.bind_name), ("s", "role", "ops"));
        assert!(whole(AclBindingRule::default(), said()).is_err());
        let replaced = whole(AclBindingRule::default(), Said { bind_type: Some("policy".into()), ..said() });
        assert_eq!(replaced.expect("a rule").selector, "");
    }
}
