//! `drover operator recover`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{RecoveryClaims, RecoveryNode, RecoveryView},
};

use super::{ApiArgs, confirm};
use crate::{conn::Conn, output, when};

/// Arguments of `operator recover`.
#[derive(Debug, clap::Args)]
pub(crate) struct Recover {
    #[command(flatten)]
    api: ApiArgs,
    /// Show whether the servers recover, and what they wait for
    #[arg(long)]
    status: bool,
    /// Do not wait for this node; count it as down
    #[arg(long, value_name = "NODE", conflicts_with = "status")]
    excuse: Option<String>,
    /// Believe what this node says to have, although nothing proves it; '*' believes all such nodes
    #[arg(long, value_name = "NODE", conflicts_with_all = ["status", "excuse"])]
    accept: Option<String>,
    /// Do not ask
    #[arg(short = 'y', long)]
    yes: bool,
    /// Print the status as JSON
    #[arg(long, requires = "status")]
    json: bool,
}

/// Runs the verb.
pub(crate) async fn run(args: Recover) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    if args.json {
        return conn.print(call::recovery()).await;
    }
    let view = conn.ask(call::recovery()).await?;
    if args.status {
        show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    if !view.recovering {
        bail!("the servers are not recovering: there is nothing to end");
    }
    if let Some(node) = &args.excuse {
        return excuse(&conn, &view, node).await;
    }
    if let Some(node) = &args.accept {
        return accept(&conn, &view, node, args.yes).await;
    }
    show(&view);
    let question = match view.unproven.is_empty() {
        true => "End the recovery? Nodes that have not answered may run tasks that then start a second time.",
        false => {
            "End the recovery? Nodes that have not answered may run tasks that then start a second time. Nodes stop \
                what they have without a proof."
        }
    };
    if !args.yes && !confirm(question)? {
        bail!("not confirmed; the recovery goes on");
    }
    conn.tell(call::recovery_end()).await?;
    output::line("The recovery is over.");
    Ok(ExitCode::SUCCESS)
}

async fn excuse(conn: &Conn, view: &RecoveryView, node: &str) -> Result<ExitCode> {
    let named = |n: &&RecoveryNode| n.name == node || n.id.to_string().starts_with(node);
    let found: Vec<&RecoveryNode> = view.waiting_for.iter().filter(named).collect();
    let [node] = found[..] else {
        bail!(
            "{node:?} matches {} of the missing nodes, not one; `drover operator recover -status` lists them",
            found.len()
        );
    };
    conn.tell(call::recovery_excuse(node.id)).await?;
    output::line(&format!(
        "Node {} ({}) counts as down; the recovery no longer waits for it.",
        node.id.short(),
        node.name
    ));
    Ok(ExitCode::SUCCESS)
}

/// The nodes that are meant, of those that say to have what nothing proves: one, or with `*` all.
fn meant<'a>(unproven: &'a [RecoveryClaims], node: &str) -> Result<Vec<&'a RecoveryClaims>> {
    let all = node == "*";
    let named = |n: &&RecoveryClaims| all || n.name == node || n.id.to_string().starts_with(node);
    let found: Vec<&RecoveryClaims> = unproven.iter().filter(named).collect();
    match found.len() {
        0 if all => bail!("no node says to have what nothing proves"),
        1 => Ok(found),
        _ if all => Ok(found),
        n => bail!(
            "{node:?} matches {n} of the nodes that say to have what nothing proves, not one; `drover operator recover \
                -status` lists them"
        ),
    }
}

async fn accept(conn: &Conn, view: &RecoveryView, node: &str, yes: bool) -> Result<ExitCode> {
    let found = meant(&view.unproven, node)?;
    found.iter().for_each(|node| output::line(&claims(node)));
    let question = match found.len() {
        1 => "Believe this node? Its jobs then run as it says, with the rights of their namespaces.".to_owned(),
        n => format!("Believe these {n} nodes? Their jobs then run as they say, with the rights of their namespaces."),
    };
    if !yes && !confirm(&question)? {
        bail!("not confirmed; nothing is taken over");
    }
    for node in found {
        conn.tell(call::recovery_accept(node.id)).await?;
        output::line(&format!("What node {} ({}) says to have is taken over.", node.id.short(), node.name));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a node says to have, in a sentence or two.
fn claims(of: &RecoveryClaims) -> String {
    let counts = [(of.allocations, "allocation"), (of.remote_tasks, "remote task"), (of.host_volumes, "host volume")];
    let counts = counts.into_iter().filter(|(n, _)| *n > 0);
    let counts: Vec<String> = counts.map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" })).collect();
    format!(
        "{} ({}) at {}: {} ({}); {}",
        of.id.short(),
        of.name,
        of.address,
        counts.join(", "),
        of.examples.join(", "),
        of.reasons.join("; ")
    )
}

fn show(view: &RecoveryView) {
    output::pairs(&[
        ("Cluster", view.cluster_id.to_string()),
        ("Generation", view.generation.to_string()),
        ("Recovering", if view.recovering { "yes".to_owned() } else { "no".to_owned() }),
    ]);
    if !view.recovering {
        return;
    }
    let names = |nodes: &[RecoveryNode]| {
        let names: Vec<String> = nodes.iter().map(|node| format!("{} ({})", node.id.short(), node.name)).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(", ") }
    };
    let texts = |texts: &[String]| if texts.is_empty() { "-".to_owned() } else { texts.join(", ") };
    output::pairs(&[
        ("Since", when::ago(view.since, when::now_ns())),
        ("Cause", view.cause.clone()),
        ("Answered", names(&view.answered)),
        ("Not Answered", names(&view.waiting_for)),
        ("Not Proven", texts(&view.unproven.iter().map(claims).collect::<Vec<_>>())),
        ("Not Swept", texts(&view.unswept)),
        ("Unbound", texts(&view.unbound)),
        ("Waits For", view.waits_for.clone()),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_is_meant_or_all() {
        let of = |name: &str, id: &str| RecoveryClaims {
            name: name.to_owned(),
            id: id.parse().expect("an id"),
            ..RecoveryClaims::default()
        };
        let two = [of("n1", "aaaa0000-0000-4000-8000-000000000001"), of("n2", "aaaa0000-0000-4000-8000-000000000002")];
        let names = |node: &str| {
            let found = meant(&two, node).map_err(|error| error.to_string())?;
            Ok::<_, String>(found.into_iter().map(|of| of.name.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(names("n2"), Ok(vec!["n2"]));
        assert_eq!(names("*"), Ok(vec!["n1", "n2"]));
        assert_eq!(names("aaaa0000-0000-4000-8000-000000000002"), Ok(vec!["n2"]));
        for (node, matches) in [("n3", "matches 0"), ("aaaa", "matches 2")] {
            assert!(names(node).is_err_and(|why| why.contains(matches)), "{node}");
        }
        assert!(meant(&[], "*").is_err(), "nobody is meant");
    }

    #[test]
    fn what_a_node_says_to_have_is_read_in_a_line() {
        let of = RecoveryClaims {
            name: "n3".to_owned(),
            address: "10.0.0.9:4711".to_owned(),
            allocations: 1,
            host_volumes: 2,
            examples: vec!["allocation 1234 of job payments in namespace prod".to_owned()],
            reasons: vec!["there is no proof".to_owned()],
            ..RecoveryClaims::default()
        };
        let text = claims(&of);
        let expected = "(n3) at 10.0.0.9:4711: 1 allocation, 2 host volumes (allocation 1234 of job payments in \
                        namespace prod); there is no proof";
        assert!(text.ends_with(expected), "{text}");
    }
}
