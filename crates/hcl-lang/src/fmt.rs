//! Canonical layout of native syntax: two spaces per level, one space around operators, `=` and trailing comments
//! aligned in runs of lines.
//!
//! Text inside quotes, heredocs and comments is never touched: spaces in `${ … }` are part of references that
//! stay text. The result is compared with the input, tree against tree, before it is returned.

use crate::ast::{Expr, ExprKind, NativeBody};
use crate::diag::Diagnostic;
use crate::parse::parse_body;
use crate::source::Source;

/// Lays out a file anew. Formatting twice changes nothing; the meaning never changes.
pub fn format(source: &Source) -> Result<String, Diagnostic> {
    let before = parse_body(source)?;
    let text = layout(source.text());
    // The layout works on tokens, not on the tree; this is what makes it safe.
    let unchanged = parse_body(&Source::new(source.name(), text.as_str()))
        .is_ok_and(|after| shape(&after) == shape(&before));
    Ok(if unchanged {
        text
    } else {
        source.text().to_owned()
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Word,
    /// Quoted text with all that is in it.
    Quoted,
    /// From `<<` to the closing word.
    Heredoc,
    LineComment,
    BlockComment,
    Punct,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
}

impl Token<'_> {
    fn is(&self, punct: &str) -> bool {
        self.kind == Kind::Punct && self.text == punct
    }

    fn bracket(&self) -> i32 {
        match (self.kind, self.text) {
            (Kind::Punct, "{" | "[" | "(") => 1,
            (Kind::Punct, "}" | "]" | ")") => -1,
            _ => 0,
        }
    }
}

const PUNCTS: [&str; 13] = [
    "...", "&&", "||", "==", "!=", ">=", "<=", "=>", "::", "${", "%{", "\r\n", "//",
];

/// Tokens of each line; a token that spans lines stands on the line it begins on.
fn lines(text: &str) -> Vec<Vec<Token<'_>>> {
    let mut lines = vec![Vec::new()];
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let Some(c) = rest.chars().next() else { break };
        let previous: Option<&Token<'_>> =
            lines.last().and_then(|line: &Vec<Token<'_>>| line.last());
        let (kind, len) = match c {
            '\n' => {
                lines.push(Vec::new());
                at += 1;
                continue;
            }
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '#' => (Kind::LineComment, line_len(rest)),
            '/' if rest.starts_with("//") => (Kind::LineComment, line_len(rest)),
            '/' if rest.starts_with("/*") => (
                Kind::BlockComment,
                rest.find("*/").map_or(rest.len(), |i| i + 2),
            ),
            '"' => (Kind::Quoted, quoted_len(rest)),
            '<' if rest.starts_with("<<") && previous.is_some() => match heredoc_len(rest) {
                Some(len) => (Kind::Heredoc, len),
                None => (Kind::Punct, 1),
            },
            c if c.is_alphanumeric() || c == '_' => (Kind::Word, word_len(rest)),
            c => {
                let punct = PUNCTS
                    .iter()
                    .find(|p| rest.starts_with(**p))
                    .map_or(c.len_utf8(), |p| p.len());
                (Kind::Punct, punct)
            }
        };
        let token = Token {
            kind,
            text: rest[..len].trim_end_matches('\r'),
        };
        if let Some(line) = lines.last_mut() {
            line.push(token);
        }
        at += len;
    }
    lines
}

fn line_len(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// A word or number; a sign belongs to a number only inside its exponent, a point only before a digit.
fn word_len(text: &str) -> usize {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    let bytes = text.as_bytes();
    let mut previous = ' ';
    for (i, c) in text.char_indices() {
        let digit_follows = bytes.get(i + 1).is_some_and(u8::is_ascii_digit);
        let inside = c.is_alphanumeric()
            || c == '_'
            || (!number && c == '-')
            || (number && c == '.' && digit_follows && !text[..i].contains('.'))
            || (number && matches!(c, '+' | '-') && matches!(previous, 'e' | 'E') && digit_follows);
        if !inside {
            return i;
        }
        previous = c;
    }
    text.len()
}

/// Length of a quoted text including both quotes, templates in it included.
fn quoted_len(text: &str) -> usize {
    // What is open, innermost last: a quote or a brace.
    let mut open: Vec<char> = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        let quoted = open.last() == Some(&'"');
        match c {
            '"' if quoted => {
                open.pop();
                if open.is_empty() {
                    return i + 1;
                }
            }
            '"' => open.push('"'),
            '\\' if quoted => {
                chars.next();
            }
            '$' | '%' if quoted => {
                let escaped = chars.peek().is_some_and(|(_, next)| *next == c)
                    && text[i + 1..].chars().nth(1) == Some('{');
                if escaped {
                    chars.next();
                    chars.next();
                } else if chars.peek().is_some_and(|(_, next)| *next == '{') {
                    chars.next();
                    open.push('{');
                }
            }
            '{' if !quoted => open.push('{'),
            '}' if !quoted => {
                open.pop();
            }
            _ => {}
        }
    }
    text.len()
}

/// Length of a heredoc up to and including its closing word.
fn heredoc_len(text: &str) -> Option<usize> {
    let head = text[2..].strip_prefix('-').unwrap_or(&text[2..]);
    let word = &head[..line_len(head)];
    let word = word.trim_end_matches('\r');
    if word.is_empty()
        || !word
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
    {
        return None;
    }
    let mut at = line_len(text) + 1;
    for line in text.get(at..)?.split_inclusive('\n') {
        let trimmed = line.trim_start_matches([' ', '\t']);
        if let Some(after) = trimmed.strip_prefix(word)
            && !after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-'))
        {
            return Some(at + (line.len() - trimmed.len()) + word.len());
        }
        at += line.len();
    }
    None
}

/// One line, split where it is aligned with its neighbours.
struct Line<'a> {
    lead: Vec<Token<'a>>,
    assign: Vec<Token<'a>>,
    comment: Option<Token<'a>>,
    indent: usize,
    assign_pad: usize,
    comment_pad: usize,
}

fn layout(text: &str) -> String {
    let mut rows: Vec<Line<'_>> = lines(text).into_iter().map(split).collect();
    indent(&mut rows);
    align(&mut rows);
    let mut out = String::with_capacity(text.len() + 64);
    for row in &rows {
        let mut line = " ".repeat(row.indent * 2);
        line.push_str(&spaced(&row.lead, None));
        if !row.assign.is_empty() {
            line.push_str(&" ".repeat(row.assign_pad));
            line.push_str(&spaced(&row.assign, row.lead.last()));
        }
        if let Some(comment) = &row.comment {
            line.push_str(&" ".repeat(row.comment_pad));
            line.push_str(comment.text.trim_end());
        }
        out.push_str(line.trim_end_matches(' '));
        out.push('\n');
    }
    // The last newline of the input has made an empty line.
    let end = out.trim_end_matches('\n').len();
    out.truncate(end);
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

fn split(mut tokens: Vec<Token<'_>>) -> Line<'_> {
    let mut comment = None;
    if tokens.len() > 1 && tokens.last().is_some_and(|t| t.kind == Kind::LineComment) {
        comment = tokens.pop();
    }
    let mut assign = Vec::new();
    if let Some(i) = tokens.iter().position(|t| t.is("=")).filter(|i| *i > 0) {
        // A value that goes on over further lines is not aligned.
        let net: i32 = tokens[i..].iter().map(Token::bracket).sum();
        if net == 0 {
            assign = tokens.split_off(i);
        }
    }
    Line {
        lead: tokens,
        assign,
        comment,
        indent: 0,
        assign_pad: 1,
        comment_pad: 1,
    }
}

/// A level per line that opens brackets, however many it opens.
fn indent(rows: &mut [Line<'_>]) {
    let mut levels: Vec<i32> = Vec::new();
    for row in rows {
        let net: i32 = row.lead.iter().chain(&row.assign).map(Token::bracket).sum();
        if net < 0 {
            let mut closed = -net;
            while closed > 0 {
                match levels.last_mut() {
                    Some(top) if *top > closed => {
                        *top -= closed;
                        closed = 0;
                    }
                    Some(top) => {
                        closed -= *top;
                        levels.pop();
                    }
                    None => break,
                }
            }
        }
        row.indent = levels.len();
        if net > 0 {
            levels.push(net);
        }
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn align(rows: &mut [Line<'_>]) {
    let mut start = 0;
    while start < rows.len() {
        let mut end = start;
        while end < rows.len() && !rows[end].assign.is_empty() {
            end += 1;
        }
        let widths: Vec<usize> = rows[start..end]
            .iter()
            .map(|row| width(&spaced(&row.lead, None)))
            .collect();
        let most = widths.iter().copied().max().unwrap_or(0);
        for (row, own) in rows[start..end].iter_mut().zip(widths) {
            row.assign_pad = most - own + 1;
        }
        start = end.max(start + 1);
    }

    let mut start = 0;
    while start < rows.len() {
        let end = (start..rows.len())
            .find(|i| rows[*i].comment.is_none())
            .unwrap_or(rows.len());
        let widths: Vec<usize> = rows[start..end].iter().map(content_width).collect();
        let most = widths.iter().copied().max().unwrap_or(0);
        for (row, own) in rows[start..end].iter_mut().zip(widths) {
            row.comment_pad = most - own + 1;
        }
        start = end + 1;
    }
}

fn content_width(row: &Line<'_>) -> usize {
    let assign = if row.assign.is_empty() {
        0
    } else {
        row.assign_pad + width(&spaced(&row.assign, row.lead.last()))
    };
    row.indent * 2 + width(&spaced(&row.lead, None)) + assign
}

/// Tokens with one space where one belongs.
fn spaced(tokens: &[Token<'_>], before: Option<&Token<'_>>) -> String {
    let mut out = String::new();
    for (i, token) in tokens.iter().enumerate() {
        if i > 0 && space_between(tokens, i, before) {
            out.push(' ');
        }
        out.push_str(token.text);
    }
    out
}

/// Whether a space belongs before `tokens[i]`.
fn space_between(tokens: &[Token<'_>], i: usize, before: Option<&Token<'_>>) -> bool {
    let (left, right) = (&tokens[i - 1], &tokens[i]);
    if right.is(",")
        || right.is("...")
        || left.is(".")
        || right.is(".")
        || left.is("::")
        || right.is("::")
    {
        return false;
    }
    if left.kind == Kind::Word && right.is("(") {
        // A call, unless the word is the `in` of a for or the `if` of its filter.
        return matches!(left.text, "in" | "if");
    }
    if left.is(",") {
        return true;
    }
    if left.is("!") {
        return false;
    }
    if left.is("-")
        && is_prefix(
            tokens
                .get(i.wrapping_sub(2))
                .or(if i == 1 { before } else { None }),
        )
    {
        return false;
    }
    if left.is("{") || right.is("}") {
        return !(left.is("{") && right.is("}"));
    }
    if right.is("[")
        && (left.kind == Kind::Word && !matches!(left.text, "in" | "if")
            || left.is("]")
            || left.is(")"))
    {
        return false;
    }
    if left.is("(") || left.is("[") || right.is(")") || right.is("]") {
        return false;
    }
    true
}

/// Whether a minus after this token is a sign rather than a subtraction.
fn is_prefix(previous: Option<&Token<'_>>) -> bool {
    match previous {
        None => true,
        Some(token) => match token.kind {
            Kind::Punct => !matches!(token.text, ")" | "]" | "}"),
            Kind::Word => matches!(token.text, "in" | "if"),
            _ => false,
        },
    }
}

/// A tree without places, for comparison.
fn shape(body: &NativeBody) -> String {
    let mut out = String::new();
    write_body(body, &mut out);
    out
}

fn write_body(body: &NativeBody, out: &mut String) {
    for attribute in &body.attributes {
        out.push_str(&attribute.name);
        out.push('=');
        write_expr(&attribute.expr, out);
        out.push('\n');
    }
    for block in &body.blocks {
        out.push_str(&format!(
            "{} {:?}{{\n",
            block.name,
            block.labels.iter().map(|l| &l.0).collect::<Vec<_>>()
        ));
        write_body(&block.body, out);
        out.push_str("}\n");
    }
}

fn write_expr(expr: &Expr, out: &mut String) {
    // The debug form says everything; places are cut out of it, and so is the text of references, in
    // which spaces between tokens do not count.
    let mut copy = expr.clone();
    crate::fmt_shape::erase_places(&mut copy);
    match &copy.kind {
        ExprKind::Literal(value) => out.push_str(&format!("{value:?}")),
        kind => out.push_str(&format!("{kind:?}")),
    }
}
