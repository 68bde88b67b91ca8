//! Errors for people: what failed, why, what to do. The API's own texts are made for programs and for Nomad's CLI,
//! which shows codes and nested lists; here they become sentences. Nothing of what the agent says is left out.

use std::fmt;

use api::client::{ClientError, ConnectError};
use hcl_lang::Diagnostic;

use crate::output;

/// Findings as they are shown in a file, perhaps in colours.
#[derive(Debug)]
struct Shown(String);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Shown {}

/// The error that findings in a file are.
pub(crate) fn of_findings(findings: &[Diagnostic]) -> anyhow::Error {
    Shown(hcl_lang::render(findings, output::colour()).trim_end().to_owned()).into()
}

/// Tells the person of an error.
pub(crate) fn tell(error: &anyhow::Error) {
    output::rendered(&text(error));
}

/// The error with its chain, each cause once. What others wrote does not steer the terminal.
pub(crate) fn text(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let client = cause.downcast_ref::<ClientError>();
        let text = match cause.downcast_ref::<Shown>() {
            Some(shown) => shown.0.clone(),
            None => output::visible(&client.map_or_else(|| plain(&cause.to_string()), of_client)).into_owned(),
        };
        if !parts.last().is_some_and(|p| p.contains(&text)) {
            parts.push(text);
        }
        // What a client error has below itself is in its text.
        if client.is_some() {
            break;
        }
    }
    parts.join(": ")
}

fn of_client(error: &ClientError) -> String {
    match error {
        ClientError::Connect { address, source } => {
            let refused = matches!(source,
                    ConnectError::Io(e)
                        if matches!(e.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound));
            if refused {
                format!(
                    "no agent answers at {address}\nStart one with `drover agent -dev`, or say where it is with \
                        -address or DROVER_ADDR."
                )
            } else {
                format!(
                    "cannot reach the agent at {address}: {source}\nIs the address right (-address, DROVER_ADDR)? \
                        Does the agent run there?"
                )
            }
        }
        ClientError::Status { status, message } => {
            let said = plain(message);
            match (status.as_u16(), said.is_empty()) {
                (403, _) => {
                    let said = if said.is_empty() { "permission denied".to_owned() } else { said };
                    format!("{said}\nGive the secret of a token that may, with -token or DROVER_TOKEN.")
                }
                (_, false) => said,
                (404, true) => {
                    "the agent does not know what was asked for; is it a drover agent of this version, and is the \
                        name right?"
                        .to_owned()
                }
                (301 | 307, true) => {
                    "the agent cannot take that name in a request: it has empty parts, or `.` or `..` \
                        between slashes"
                        .to_owned()
                }
                (code, true) => {
                    let reason = status.canonical_reason().unwrap_or("unknown");
                    format!(
                        "the agent refused the request and gave no reason (HTTP {code}, {reason}); its log may \
                        say more"
                    )
                }
            }
        }
        other => plain(&other.to_string()),
    }
}

/// A message without the words of its transport, lists of several errors as lists.
pub(crate) fn plain(message: &str) -> String {
    let mut text = message.trim();
    loop {
        let before = text;
        for prefix in ["rpc error: ", "Unexpected response code: "] {
            text = text.strip_prefix(prefix).unwrap_or(text).trim_start();
        }
        // `500 (the text)`, as Nomad's libraries write an answer.
        if let Some((code, rest)) = text.split_once(" (")
            && code.len() == 3
            && code.bytes().all(|b| b.is_ascii_digit())
            && let Some(inner) = rest.strip_suffix(')')
        {
            text = inner.trim();
        }
        if text == before {
            break;
        }
    }
    match errors(text) {
        Some((before, list)) => {
            let before = before.trim_end_matches([':', ' ']);
            match (before, list.as_slice()) {
                ("", [one]) => one.clone(),
                (before, [one]) => format!("{before}: {one}"),
                ("", many) => format!("{} mistakes:\n{}", many.len(), bullets(many)),
                (before, many) => format!("{before}, {} mistakes:\n{}", many.len(), bullets(many)),
            }
        }
        None => text.to_owned(),
    }
}

fn bullets(list: &[String]) -> String {
    list.iter().map(|e| format!("  * {}", e.replace('\n', "\n    "))).collect::<Vec<_>>().join("\n")
}

/// The errors of a Go multi-error (`2 errors occurred:\n\t* a\n\t* b\n`), those of lists within it among them, and
/// what stands before it.
fn errors(text: &str) -> Option<(&str, Vec<String>)> {
    let (head, body) = text.split_at(text.find('\n').unwrap_or(text.len()));
    let (before, count) = header(head)?;
    let mut items: Vec<String> = Vec::new();
    for line in body.lines().map(str::trim).filter(|l| !l.is_empty()) {
        match (line.strip_prefix("* "), items.last_mut()) {
            (Some(item), _) => items.push(item.trim().to_owned()),
            (None, Some(last)) => {
                last.push('\n');
                last.push_str(line);
            }
            (None, None) => items.push(line.to_owned()),
        }
    }
    let mut items = items.into_iter();
    let mut flat = Vec::new();
    collect(&mut items, count, "", &mut flat);
    // Whatever was counted, nothing is left out.
    flat.extend(items);
    (!flat.is_empty()).then_some((before, flat))
}

/// The next errors of a list; one that is the header of a list stands before each of those.
fn collect(items: &mut std::vec::IntoIter<String>, count: usize, within: &str, flat: &mut Vec<String>) {
    for _ in 0..count {
        let Some(item) = items.next() else { return };
        match header(&item) {
            Some((before, count)) => {
                let within = joined(within, before);
                collect(items, count, &within, flat);
            }
            None => flat.push(joined(within, &item)),
        }
    }
}

fn joined(before: &str, after: &str) -> String {
    let before = before.trim_end_matches([':', ' ']);
    if before.is_empty() { after.trim().to_owned() } else { format!("{before}: {}", after.trim()) }
}

/// What stands before the `2 errors occurred:` at the end of a line, and how many there are.
fn header(line: &str) -> Option<(&str, usize)> {
    let rest = line.trim_end().strip_suffix(':')?;
    let rest = rest.strip_suffix(" errors occurred").or_else(|| rest.strip_suffix(" error occurred"))?;
    let at = rest.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    Some((&rest[..at], rest[at..].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use api::client::ClientError;
    use http::StatusCode;

    use super::{plain, text};

    #[test]
    fn transport_words_and_nesting_do_not_reach_people() {
        for (message, wanted) in [
            ("job not found", "job not found"),
            ("Unexpected response code: 500 (open nonexist: No such file)", "open nonexist: No such file"),
            ("rpc error: Unexpected response code: 404 (job not found)", "job not found"),
            ("500 (no)", "no"),
            ("take 500 (five hundred)", "take 500 (five hundred)"),
            ("1 error occurred:\n\t* Missing job datacenters\n\n", "Missing job datacenters"),
            ("2 errors occurred:\n\t* first\n\t* second\n\n", "2 mistakes:\n  * first\n  * second"),
            (
                "1 error occurred:\n\t* Task group g validation failed: 1 error occurred:\n\t* Task t validation \
                    failed: 1 error occurred:\n\t* \
                 Missing task driver\n\n\n\n",
                "Task group g validation failed: Task t validation failed: Missing task driver",
            ),
            (
                "2 errors occurred:\n\t* Task group g: 2 errors occurred:\n\t* a\n\t* b\n\n\t* c\n\n",
                "3 mistakes:\n  * Task group g: a\n  * Task group g: b\n  * c",
            ),
            ("1 error occurred:", "1 error occurred:"),
            (
                "invalid job: 2 errors occurred:\n\t* a\n\t  more of a\n\t* b",
                "invalid job, 2 mistakes:\n  * a\n    more of a\n  * b",
            ),
        ] {
            assert_eq!(plain(message), wanted, "{message:?}");
        }
    }

    #[test]
    fn answers_say_what_to_do() {
        let status = |code: u16, message: &str| {
            text(&anyhow::Error::from(ClientError::Status {
                status: StatusCode::from_u16(code).expect("a code"),
                message: message.into(),
            }))
        };
        assert_eq!(status(500, "open x: No such file"), "open x: No such file");
        assert!(status(403, "Permission denied").contains("-token"));
        for code in [301, 404, 500, 502] {
            let said = status(code, "");
            assert!(!said.contains("()") && said.len() > 30, "{said}");
        }
        let nested = anyhow::Error::from(ClientError::Status {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: "why".into(),
        });
        assert_eq!(text(&nested.context("could not read it")), "could not read it: why");
    }

    #[test]
    fn what_others_wrote_does_not_steer_the_terminal() {
        let said = ClientError::Status {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: "no \u{1b}]0;x\u{7} \u{202e}here".into(),
        };
        assert_eq!(text(&anyhow::Error::from(said)), "no \\u{1b}]0;x\\u{7} \\u{202e}here");
        assert_eq!(text(&anyhow::anyhow!("in\rner").context("outer \u{9b}2J")), "outer \\u{9b}2J: in\\rner");
        // What a renderer has coloured keeps its colours; it has replaced what others wrote.
        let finding = hcl_lang::Diagnostic::error("Odd \u{1b}[2J", "a\u{1b}b");
        let shown = super::Shown(hcl_lang::render(std::slice::from_ref(&finding), true));
        let said = text(&anyhow::Error::from(shown));
        assert!(said.contains("\u{1b}[1m") && !said.contains("\u{1b}[2J") && !said.contains("a\u{1b}b"), "{said:?}");
        assert!(text(&super::of_findings(&[finding])).contains("Odd"));
    }
}
