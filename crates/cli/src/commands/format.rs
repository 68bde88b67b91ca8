//! An object for programs instead of people: `-json`, or `-t` with a template.

use anyhow::{Context, Result};
use serde::Serialize;
use template::{Limits, Settings, Syntax, Template};

use crate::output;

/// How an object is printed when not as text.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Format {
    /// Print the object as JSON
    #[arg(long)]
    json: bool,
    /// Print the object with a template in Go's text/template syntax; its data is what -json prints
    #[arg(short, value_name = "TEMPLATE", conflicts_with = "json")]
    template: Option<String>,
}

impl Format {
    /// Whether it is wanted at all.
    pub(crate) fn wanted(&self) -> bool {
        self.json || self.template.is_some()
    }

    /// Prints an object.
    ///
    /// # Errors
    /// When the object has no JSON form, or the template does not fit it.
    pub(crate) fn print<T: Serialize + ?Sized>(&self, value: &T) -> Result<()> {
        let Some(text) = &self.template else { return output::json(&value) };
        let document = serde_json::to_value(value).context("the object has no JSON form")?;
        output::line(&rendered("-t", text, &document)?);
        Ok(())
    }
}

/// The document by the template of a flag. A name that the document does not have is a mistake, as it is for a stock
/// client.
pub(crate) fn rendered(flag: &str, text: &str, document: &serde_json::Value) -> Result<String> {
    let now_ns = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or_default();
    let settings = Settings { error_on_missing_key: true, now_ns, limits: Limits::default() };
    let made = Template::parse(flag, text, &Syntax::default())
        .and_then(|template| template.render_document(document, &settings));
    Ok(String::from_utf8_lossy(&made.with_context(|| format!("could not print by the template of {flag}"))?)
        .into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_printed_by_templates() {
        let job = json!({"ID": "web", "Priority": 50, "Stop": false, "Periodic": null, "Ratio": 0.5,
            "SubmitTime": 1_700_000_000_000_000_000_i64,
            "TaskGroups": [{"Name": "a", "Count": 2}, {"Name": "b", "Count": 1}], "Meta": {"team": "x"}});
        for (text, expected) in [
            ("{{.ID}} {{.Priority}} {{.Ratio}} {{.SubmitTime}}", "web 50 0.5 1700000000000000000"),
            ("{{range .TaskGroups}}{{.Name}}={{.Count}};{{end}}", "a=2;b=1;"),
            ("{{range $i, $g := .TaskGroups}}{{$i}}{{$g.Name}}{{end}}{{len .TaskGroups}}", "0a1b2"),
            ("{{if .Periodic}}periodic{{else}}plain{{end}} {{if not .Stop}}runs{{end}}", "plain runs"),
            ("{{index .Meta \"team\"}} {{.Meta.team | printf \"%q\"}} {{$.ID}}", "x \"x\" web"),
            ("{{if gt .Priority 10}}{{sprig_upper .ID}}{{end}}", "WEB"),
            ("{{define \"g\"}}<{{.}}>{{end}}{{template \"g\" .ID}}", "<web>"),
        ] {
            assert_eq!(rendered("-t", text, &job).expect(text), expected, "{text}");
        }
        let list = json!([{"ID": "one"}, {"ID": "two"}]);
        assert_eq!(rendered("-t", "{{range .}}{{.ID}}\n{{end}}", &list).expect("a list"), "one\ntwo\n");
        for (text, why) in [
            ("{{.Id}}", "no entry for the key \"Id\""),
            ("{{.ID", "-t"),
            ("{{nothing .ID}}", "nothing"),
            ("{{file \"/etc/passwd\"}}", "only the document is here"),
            ("{{env \"HOME\"}}", "only the document is here"),
            ("{{range loop 100000000}}{{.}}{{end}}", "steps"),
        ] {
            let error = format!("{:#}", rendered("-t", text, &job).expect_err(text));
            assert!(error.contains("could not print by the template of -t") && error.contains(why), "{text}: {error}");
        }
    }
}
