//! Variables as they are printed: a table, HCL that `drover var put` reads again, JSON, or by a template.

use std::io::IsTerminal as _;

use anyhow::{Context as _, Result, bail};
use api::shapes::VariableView;

use super::format;
use crate::{output, when};

/// Forms of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    GoTemplate,
    Hcl,
    Json,
    None,
    Table,
}

/// How a variable is printed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Out {
    /// How to print the variable
    #[arg(long, value_name = "FORM")]
    pub(crate) out: Option<Form>,
    /// Template in Go's text/template syntax for -out go-template; its data is what -out json prints
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
}

impl Out {
    /// The form; without a flag this one on a terminal, JSON for programs.
    ///
    /// # Errors
    /// When there is a template too many, or none.
    pub(crate) fn form(&self, on_terminal: Form) -> Result<Form> {
        let default = if std::io::stdout().is_terminal() { on_terminal } else { Form::Json };
        let form = self.out.unwrap_or(default);
        fits(form == Form::GoTemplate, self.template.as_deref())?;
        Ok(form)
    }

    /// Prints a variable.
    ///
    /// # Errors
    /// When the template does not fit it.
    pub(crate) fn print(&self, form: Form, variable: &VariableView) -> Result<()> {
        match form {
            Form::None => {}
            Form::Json => output::json(variable)?,
            Form::Hcl => output::line(&hcl(variable)),
            Form::Table => table(variable),
            Form::GoTemplate => by_template(self.template.as_deref(), variable)?,
        }
        Ok(())
    }
}

/// A template is there exactly if it is needed.
///
/// # Errors
/// When it is not so.
pub(crate) fn fits(needed: bool, template: Option<&str>) -> Result<()> {
    match (needed, template.is_some_and(|text| !text.is_empty())) {
        (true, false) => bail!("-out go-template needs a template: give -template"),
        (false, true) => bail!("-template is for -out go-template only"),
        _ => Ok(()),
    }
}

/// Prints something by the template of the flag.
///
/// # Errors
/// When the template does not fit it.
pub(crate) fn by_template(template: Option<&str>, value: &impl serde::Serialize) -> Result<()> {
    let document = serde_json::to_value(value).context("the object has no JSON form")?;
    output::line(&format::rendered("-template", template.unwrap_or_default(), &document)?);
    Ok(())
}

fn table(variable: &VariableView) {
    let mut rows = vec![
        ("Namespace", variable.namespace.to_string()),
        ("Path", variable.path.clone()),
        ("Create Time", when::stamp(variable.create_time)),
    ];
    if variable.modify_time != variable.create_time {
        rows.push(("Modify Time", when::stamp(variable.modify_time)));
    }
    rows.push(("Check Index", variable.modify_index.to_string()));
    output::pairs(&rows);
    output::heading("Items");
    super::print_map(variable.items.as_ref().unwrap_or(&Default::default()), "No items");
}

/// HCL that describes the variable.
fn hcl(variable: &VariableView) -> String {
    let mut text = format!(
        "namespace    = {}\npath         = {}\n\
         create_index = {} # set by the servers\n\
         modify_index = {} # set by the servers; `drover var put` writes only while it is this one\n\
         create_time  = {} # set by the servers\nmodify_time  = {} # set by the servers\n\nitems = {{\n",
        quoted(variable.namespace.as_str()),
        quoted(&variable.path),
        variable.create_index,
        variable.modify_index,
        variable.create_time,
        variable.modify_time,
    );
    let items: Vec<(String, &String)> = variable.items.iter().flatten().map(|(key, v)| (name(key), v)).collect();
    let width = items.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    for (key, value) in items {
        text.push_str(&format!("  {key:width$} = {}\n", quoted(value)));
    }
    text.push('}');
    text
}

/// The key of an item, in quotes where it has to be.
fn name(key: &str) -> String {
    let plain = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain { key.to_owned() } else { quoted(key) }
}

/// A string of HCL 1. A `${` is kept from beginning an interpolation, in which nothing is an escape.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' if chars.peek() == Some(&'{') => out.push_str("\\u0024"),
            c if output::odd(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hcl_is_read_again_as_it_was() {
        let items = [
            ("plain", "value"),
            ("with space", "a \"quoted\" \\ thing"),
            ("lines", "one\ntwo\r\n\tthree"),
            ("looks", "${env(\"HOME\")} $x %{if} $${a}"),
            ("steers", "\u{1b}[2J \u{202e} größe"),
            ("1", ""),
        ];
        let variable = VariableView {
            namespace: "dev".into(),
            path: "a/b".to_owned(),
            create_index: 3,
            modify_index: 9,
            create_time: 1_700_000_000_000_000_000,
            modify_time: 1_700_000_000_000_000_001,
            items: Some(items.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            ..VariableView::default()
        };
        let text = hcl(&variable);
        let read = super::super::var_spec::tests_parse(&text);
        assert_eq!(read, variable, "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("\n  \"with space\" = "), "{text}");
    }

    #[test]
    fn a_template_is_needed_or_too_many() {
        assert!(fits(true, Some("{{.Path}}")).is_ok() && fits(false, None).is_ok());
        assert!(fits(true, None).is_err() && fits(true, Some("")).is_err() && fits(false, Some("x")).is_err());
    }
}
