//! Canonical layout of native syntax: two spaces per level, one space around operators, `=` and trailing comments
//! aligned in runs of lines.
//!
//! Text inside quotes, heredocs and comments is never touched: spaces in `${ … }` are part of references that
//! stay text. The result is compared with the input, tree against tree, before it is returned.

use crate::ast::{Expr, ExprKind, NativeBody};
use crate::diag::Diagnostic;
use crate::lexer::{Kind, Token, lines};
use crate::parse::parse_body;
use crate::source::Source;

/// Lays out a file anew. Formatting twice changes nothing; the meaning never changes.
///
/// # Errors
/// When the file cannot be parsed; its text is not touched.
pub fn format(source: &Source) -> Result<String, Diagnostic> {
    let before = parse_body(source)?;
    let text = layout(source.text());
    // The layout works on tokens, not on the tree; this is what makes it safe.
    let unchanged =
        parse_body(&Source::new(source.name(), text.as_str())).is_ok_and(|after| shape(&after) == shape(&before));
    Ok(if unchanged { text } else { source.text().to_owned() })
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
    Line { lead: tokens, assign, comment, indent: 0, assign_pad: 1, comment_pad: 1 }
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
        let widths: Vec<usize> = rows[start..end].iter().map(|row| width(&spaced(&row.lead, None))).collect();
        let most = widths.iter().copied().max().unwrap_or(0);
        for (row, own) in rows[start..end].iter_mut().zip(widths) {
            row.assign_pad = most - own + 1;
        }
        start = end.max(start + 1);
    }

    let mut start = 0;
    while start < rows.len() {
        let end = (start..rows.len()).find(|i| rows[*i].comment.is_none()).unwrap_or(rows.len());
        let widths: Vec<usize> = rows[start..end].iter().map(content_width).collect();
        let most = widths.iter().copied().max().unwrap_or(0);
        for (row, own) in rows[start..end].iter_mut().zip(widths) {
            row.comment_pad = most - own + 1;
        }
        start = end + 1;
    }
}

fn content_width(row: &Line<'_>) -> usize {
    let assign = if row.assign.is_empty() { 0 } else { row.assign_pad + width(&spaced(&row.assign, row.lead.last())) };
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
    if right.is(",") || right.is("...") || left.is(".") || right.is(".") || left.is("::") || right.is("::") {
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
    if left.is("-") && is_prefix(tokens.get(i.wrapping_sub(2)).or(if i == 1 { before } else { None })) {
        return false;
    }
    if left.is("{") || right.is("}") {
        return !(left.is("{") && right.is("}"));
    }
    if right.is("[") && (left.kind == Kind::Word && !matches!(left.text, "in" | "if") || left.is("]") || left.is(")")) {
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
        out.push_str(&format!("{} {:?}{{\n", block.name, block.labels.iter().map(|l| &l.0).collect::<Vec<_>>()));
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
