//! Templates before their directives are matched: trimming with `~`, removing indentation, building the tree.

use crate::ast::{Expr, Part};

/// A template before its directives are matched: trimming and indentation look at neighbours in this order.
pub(crate) enum Token {
    Literal { text: String, raw_newline: bool },
    Marker { strip: (bool, bool), kind: Marker },
}

pub(crate) enum Marker {
    Interpolation(Expr),
    If(Expr),
    Else,
    For(Option<String>, String, Expr),
    End,
}

/// `~` removes white space from the neighbouring literal only – one line of it in a heredoc.
pub(crate) fn trim(tokens: &mut [Token]) {
    for i in 0..tokens.len() {
        let Token::Marker { strip, .. } = &tokens[i] else {
            continue;
        };
        let (before, after) = *strip;
        if before
            && i > 0
            && let Token::Literal { text, .. } = &mut tokens[i - 1]
        {
            text.truncate(text.trim_end().len());
        }
        if after && let Some(Token::Literal { text, .. }) = tokens.get_mut(i + 1) {
            *text = text.trim_start().to_owned();
        }
    }
}

/// Removes from every line the indentation that all lines share. Blank lines do not count; a line
/// that begins with an interpolation has none.
pub(crate) fn flush_indent(tokens: &mut [Token]) {
    let mut least = usize::MAX;
    let mut at_line_start = true;
    let mut adjust = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if at_line_start {
            at_line_start = false;
            match token {
                Token::Literal { text, .. } => {
                    if !(text.trim_start().is_empty() && text.ends_with('\n')) {
                        let spaces = text.chars().take_while(|c| c.is_whitespace()).count();
                        least = least.min(spaces);
                        adjust.push(i);
                    }
                }
                Token::Marker { .. } => least = 0,
            }
        }
        if let Token::Literal { text, .. } = token
            && text.ends_with('\n')
        {
            at_line_start = true;
        }
    }
    for i in adjust {
        if let Token::Literal { text, .. } = &mut tokens[i] {
            *text = text.chars().skip(least).collect();
        }
    }
}

/// How a run of parts ended.
#[derive(PartialEq)]
pub(crate) enum Stop {
    Else,
    End,
}

pub(crate) fn build(tokens: &mut std::vec::IntoIter<Token>) -> (Vec<Part>, Stop) {
    let mut parts: Vec<Part> = Vec::new();
    while let Some(token) = tokens.next() {
        match token {
            Token::Literal { text, .. } => match parts.last_mut() {
                Some(Part::Literal(previous)) => previous.push_str(&text),
                _ => parts.push(Part::Literal(text)),
            },
            Token::Marker { kind, .. } => match kind {
                Marker::Interpolation(expr) => parts.push(Part::Interpolation(expr)),
                Marker::If(condition) => {
                    let (then, stop) = build(tokens);
                    let otherwise = if stop == Stop::Else { build(tokens).0 } else { Vec::new() };
                    parts.push(Part::If { condition, then, otherwise });
                }
                Marker::For(key_var, value_var, collection) => {
                    let body = build(tokens).0;
                    parts.push(Part::For { key_var, value_var, collection, body });
                }
                Marker::Else => return (parts, Stop::Else),
                Marker::End => return (parts, Stop::End),
            },
        }
    }
    (parts, Stop::End)
}
