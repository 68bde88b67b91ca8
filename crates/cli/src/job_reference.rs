//! The reference of the job file, made from the tables that read job files and compare their versions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use model::{
    Job,
    schema::{Block, Described as _, Effect, Field, Kind, Literal, Shape, Unset, Written},
    unsupported,
};

use crate::{page::check, reference::folded};

/// The block of a service mesh: refused, so that what is in it stands in one table.
const MESH: &str = "Connect";

/// A block with the places that it stands in.
struct Section {
    block: &'static Block,
    title: String,
    /// Title of the block around it, and what a change there does.
    within: BTreeMap<String, Option<Effect>>,
}

/// All blocks in the order of a job file, the outer ones first.
fn sections() -> Vec<Section> {
    let job = Section { block: Job::BLOCK, title: "job".into(), within: BTreeMap::new() };
    let (mut found, mut at) = (vec![job], 0);
    while let Some(Section { block, title, within }) = found.get(at) {
        let (block, title, above) = (*block, title.clone(), common(within));
        at += 1;
        for (field, inner) in
            block.blocks().filter_map(|field| Some((field, field.shape.block()?))).filter(|_| block.name != MESH)
        {
            let effect = field.effect.or(above);
            if let Some(known) = found.iter_mut().find(|known| known.block.name == inner.name) {
                known.within.insert(title.clone(), effect);
                // `port` rather than `reserved_ports`.
                if field.hcl.len() < known.title.len() && !known.title.contains('.') {
                    known.title = field.hcl.to_owned();
                }
                continue;
            }
            let taken = found.iter().any(|known| known.title == field.hcl);
            let named = if taken { format!("{title}.{}", field.hcl) } else { field.hcl.to_owned() };
            found.push(Section { block: inner, title: named, within: [(title.clone(), effect)].into() });
        }
    }
    found
}

/// What a change does wherever the block stands; None when that differs.
fn common(within: &BTreeMap<String, Option<Effect>>) -> Option<Effect> {
    let mut effects = within.values();
    let first = *effects.next()?;
    effects.all(|effect| *effect == first).then_some(first)?
}

fn change(effect: Option<Effect>) -> &'static str {
    match effect {
        Some(Effect::InPlace) => "in place",
        Some(Effect::Replaces) => "replaces",
        Some(Effect::ReplacesLocal) => "replaces local",
        None => "",
    }
}

fn link(title: &str) -> String {
    let slug: String = title.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
    format!("[`{title}`](#{slug})")
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text",
        Kind::Bool => "true or false",
        Kind::Int(..) => "whole number",
        Kind::Duration => "duration",
        Kind::Texts => "list of texts",
        Kind::Ports => "list of ports",
    }
}

fn holds(field: &Field, titles: &BTreeMap<&'static str, String>) -> String {
    let to = |block: &Block| titles.get(block.name).map_or_else(String::new, |title| format!(" {}", link(title)));
    match field.shape {
        Shape::Value(of) => kind(of).to_owned(),
        Shape::One(block) => format!("block{}", to(block)),
        Shape::Many(block) | Shape::ByLabel(block) => format!("blocks{}", to(block)),
        Shape::Texts => "names with texts".into(),
        Shape::TextLists => "names with lists of texts".into(),
        Shape::Free => "anything".into(),
    }
}

fn duration(nanos: i64) -> String {
    match nanos / 1_000_000_000 {
        seconds if seconds > 0 && seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds > 0 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

fn default(field: &Field) -> String {
    match (field.required, field.says, field.server) {
        (true, ..) => "required".into(),
        (_, Some(says), _) => says.into(),
        (_, _, Some(Literal::Text(""))) => String::new(),
        (_, _, Some(Literal::Text(text))) => format!("`{text}`"),
        (_, _, Some(Literal::Bool(truth))) => format!("`{truth}`"),
        (_, _, Some(Literal::Int(number))) => format!("`{number}`"),
        (_, _, Some(Literal::Duration(nanos))) => format!("`{}`", duration(nanos)),
        (_, _, Some(Literal::Texts(items))) if !items.is_empty() => format!("`[\"{}\"]`", items.join("\", \"")),
        _ if field.unset == Unset::Bool => "`false`".into(),
        _ => String::new(),
    }
}

fn section(section: &Section, titles: &BTreeMap<&'static str, String>, refused: &BTreeSet<&str>) -> String {
    let Section { block, title, within } = section;
    // The label of a job is the label of the file's one block: no field of its table.
    let label = if block.label().is_some() || within.is_empty() { " \"NAME\"" } else { "" };
    let name = title.rsplit('.').next().unwrap_or(title);
    let about = block.doc.split([':', '.']).next().unwrap_or_default();
    let mut intro = format!("{about}: `{name}{label} {{ … }}`");
    if !within.is_empty() {
        let places: Vec<_> = within.keys().map(|title| link(title)).collect();
        let _ = write!(intro, " in {}", places.join(", "));
    }
    let mut out = format!("## `{title}`\n\n{}\n", folded(&format!("{intro}.")));
    let here = common(within);
    if here.is_none() && within.values().any(Option::is_some) {
        let places: Vec<_> = within.iter().map(|(title, effect)| format!("in `{title}` {}", change(*effect))).collect();
        let _ = write!(out, "\n{}\n", folded(&format!("A change: {}.", places.join(", "))));
    }
    out.push_str("\n| name | holds | default | a change | meaning |\n|---|---|---|---|---|\n");
    for field in block.all().filter(|field| field.written == Written::File) {
        let named = format!("{title}.{}", field.hcl);
        let is_refused = refused.contains(named.as_str());
        let note = if is_refused { " [Refused](#refused)." } else { "" };
        let effect = change(field.effect.or(here));
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {effect} | {}{note} |",
            field.hcl,
            holds(field, titles),
            default(field),
            field.doc
        );
    }
    out
}

/// What is in the block of a service mesh, by paths.
fn mesh(block: &'static Block, path: &str, out: &mut String) {
    for field in block.blocks().chain(block.attributes().map(|(field, _)| field)) {
        let path = format!("{path}.{}", field.hcl);
        let _ = writeln!(out, "| `{path}` | {} |", holds(field, &BTreeMap::new()));
        // Those that tasks have as well stand above.
        if let Some(inner) =
            field.shape.block().filter(|inner| !matches!(inner.name, "Resources" | "LogConfig" | "VolumeMount"))
        {
            mesh(inner, &path, out);
        }
    }
}

/// The whole page.
fn blocks() -> String {
    let all = sections();
    let titles: BTreeMap<_, _> = all.iter().map(|section| (section.block.name, section.title.clone())).collect();
    let table = unsupported::table();
    let refused: Vec<String> =
        table.iter().flat_map(|(place, feature, _)| [format!("{place}.{feature}"), (*feature).to_owned()]).collect();
    let refused: BTreeSet<&str> = refused.iter().map(String::as_str).collect();
    let mut out = String::new();
    for one in all.iter().filter(|section| section.block.name != MESH) {
        let _ = writeln!(out, "{}", section(one, &titles, &refused));
    }
    if let Some(one) = all.iter().find(|section| section.block.name == MESH) {
        let _ = write!(
            out,
            "## `{}`\n\nConsul's service mesh; [refused](#refused).\n\n| name | holds |\n|---|---|\n",
            one.title
        );
        mesh(one.block, &one.title, &mut out);
    }
    out.push_str("\n## Refused\n\n| in | feature | reason |\n|---|---|---|\n");
    for (place, feature, reason) in table {
        let _ = writeln!(out, "| `{place}` | {feature} | {reason} |");
    }
    out
}

#[test]
fn the_reference_of_the_job_file_is_current() {
    check("job-file.md", "blocks", &blocks());
}

#[test]
fn each_field_of_a_job_file_has_its_row() {
    let page = blocks();
    for row in [
        "| `shutdown_delay` | duration |  | in place | Wait between the deregistration of its services and the stop \
            of its tasks. |",
        "| `memory` | whole number | `300` | replaces | Reserved memory in MiB. |",
        "| `secrets` | whole number | `0` | replaces local | Size of the secrets directory in MiB. |",
        "| `kill_timeout` | duration | `5s` | in place | Time between the signal and the kill. |",
        "| `render_templates` | true or false | `false` | replaces local | Render templates again on each restart. |",
    ] {
        assert!(page.contains(row), "{row} is missing");
    }
    // What a person can write has a sentence, but for what the model keeps as JSON.
    let without: Vec<_> = page.lines().filter(|line| line.ends_with("|  |")).collect();
    assert!(without.len() < 30, "{}", without.join("\n"));
}
