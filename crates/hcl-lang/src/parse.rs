//! Native syntax: text → tree. The parser is `hcl-edit`; everything that depends on its tree is in this file.

use std::borrow::Cow;
use std::sync::Arc;

use hcl_edit::Span as _;
use hcl_edit::expr as he;
use hcl_edit::structure as hs;
use hcl_edit::template as ht;

use crate::ast::*;
use crate::diag::Diagnostic;
use crate::lexer::Kind;
use crate::number::Number;
use crate::room::with_room;
use crate::source::{Source, Span};
use crate::template::{Marker, Token, build, flush_indent, trim};
use crate::value::Value;

/// Longest text in native syntax, in bytes. Job files are kilobytes; parsing takes up to a hundred times the
/// text in memory.
pub const SOURCE_MAX: usize = 2 << 20;

/// Longest text in JSON, in bytes.
pub const JSON_SOURCE_MAX: usize = 16 << 20;

/// Most steps of one reference that make the tree deeper.
const STEPS_MAX: usize = 64;

/// Parses a file.
///
/// # Errors
/// When the file is too large or nests too deep, or for the first fault of its syntax, with its place.
pub fn parse_body(source: &Source) -> Result<NativeBody, Diagnostic> {
    check_size(source)?;
    with_room(source.text(), || body_in_place(source))
}

fn body_in_place(source: &Source) -> Result<NativeBody, Diagnostic> {
    let text = without_empty_heredocs(source.text());
    let body = hcl_edit::parser::parse_body(&text).map_err(|e| syntax_error(source, &e))?;
    Lower::native(source).body(&body, Span::new(0, source.text().len()))
}

/// The parser overlooks the end of an empty heredoc, and reads on to the next of the same word. Such a one
/// is shown to it as an empty string of the same length, so that all places stay right.
fn without_empty_heredocs(text: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(text);
    if !text.contains("<<") {
        return out;
    }
    for token in crate::lexer::lines(text).into_iter().flatten() {
        let Some((_, body)) = token.text.split_once('\n').filter(|_| token.kind == Kind::Heredoc) else {
            continue;
        };
        if body.contains('\n') {
            continue;
        }
        let blank: String = token
            .text
            .char_indices()
            .map(|(i, c)| match (i, c) {
                (0 | 1, _) => "\"".to_owned(),
                (_, '\n') => "\n".to_owned(),
                (_, c) => " ".repeat(c.len_utf8()),
            })
            .collect();
        let at = token.text.as_ptr() as usize - text.as_ptr() as usize;
        out.to_mut().replace_range(at..at + token.text.len(), &blank);
    }
    out
}

/// Parses a single expression, such as the value of `-var`.
///
/// # Errors
/// As [`parse_body`].
pub fn parse_expr(source: &Source) -> Result<Expr, Diagnostic> {
    check_size(source)?;
    with_room(source.text(), || expr_in_place(source))
}

fn expr_in_place(source: &Source) -> Result<Expr, Diagnostic> {
    // Surrounding space is not part of an expression, but people write it.
    let text = source.text();
    let trimmed = text.trim();
    let offset = text.len() - text.trim_start().len();
    let expr = hcl_edit::parser::parse_expr(trimmed).map_err(|e| {
        let place = offset + e.location().offset();
        syntax_diagnostic(source, e.message(), place)
    })?;
    Lower { source, text: trimmed, place: Place::Shifted(offset) }.expr(&expr)
}

/// Parses `text` as a template that stands at `span` of `source`: a string of a JSON body.
pub(crate) fn parse_template_at(text: &str, source: &Source, span: Span) -> Result<Expr, Diagnostic> {
    if !text.contains("${") && !text.contains("%{") {
        return Ok(Expr { span, kind: ExprKind::Literal(Value::String(text.to_owned())) });
    }
    with_room(text, || template_in_place(text, source, span))
}

fn template_in_place(text: &str, source: &Source, span: Span) -> Result<Expr, Diagnostic> {
    let template = hcl_edit::parser::parse_template(text).map_err(|e| {
        Diagnostic::error("Invalid template", e.message().to_owned())
            .at(source, span)
            .hint("to keep ${ as text, write $${")
    })?;
    let lower = Lower { source, text, place: Place::Fixed(span) };
    lower.template_expr(template.iter(), span, true, false)
}

fn check_size(source: &Source) -> Result<(), Diagnostic> {
    if source.text().len() > SOURCE_MAX {
        return Err(Diagnostic::error(
            "File too large",
            format!("{} has {} bytes, at most {SOURCE_MAX} are read", source.name(), source.text().len()),
        ));
    }
    Ok(())
}

fn syntax_error(source: &Source, error: &hcl_edit::parser::Error) -> Diagnostic {
    syntax_diagnostic(source, error.message(), error.location().offset())
}

fn syntax_diagnostic(source: &Source, message: &str, offset: usize) -> Diagnostic {
    let text = source.text();
    // At the end of the text the parser points at the last byte, be it inside a character or not.
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let rest = &text[offset..];
    if let Some(diagnostic) = unbalanced(source) {
        return diagnostic;
    }
    let message = match message {
        "unexpected token" => {
            "this is neither name = value nor the beginning of a block, or what follows it is not understood"
        }
        "expected newline or eof" => "the line should end here",
        m if m.starts_with("invalid expression;") => "a value is expected here",
        m if m.starts_with("invalid attribute; expected `=`") => {
            "a block on one line holds one attribute and nothing else"
        }
        other => other,
    };
    let width = rest.chars().next().map_or(0, char::len_utf8);
    let diagnostic =
        Diagnostic::error("Invalid syntax", message.to_owned()).at(source, Span::new(offset, offset + width));
    let line_start = text[..offset.min(text.len())].rfind('\n').map_or(0, |i| i + 1);
    let before = &text[line_start..offset.min(text.len())];
    let line = rest.lines().next().unwrap_or("");
    let hint = if message.contains("redefined") {
        Some("a name may be set once; remove or rename one")
    } else if rest.starts_with('\'') {
        Some("text is written in double quotes")
    } else if rest.starts_with(':') && before.contains("${") {
        Some("a ${ that is not for this file is written $${")
    } else if rest.starts_with(':') {
        Some("attributes are written name = value")
    } else if before.trim().is_empty() && rest.starts_with('"') {
        Some("a name at the start of a line is written without quotes")
    } else if rest.starts_with(',') && !before.trim().is_empty() {
        Some("attributes of a block are separated by newlines, not commas")
    } else if rest.starts_with(';') {
        Some("a line ends without a semicolon")
    } else if message.contains("escape sequence") {
        Some("a backslash is written \\\\")
    } else if line.contains("%{") {
        Some("every %{if} and %{for} needs its %{endif} or %{endfor}; a %{ that is text is written %%{")
    } else if message == "the line should end here" || message.contains("newline") {
        Some("only one attribute or block may stand on a line")
    } else if message.starts_with("a block on one line") {
        Some("write a block within another on lines of its own")
    } else if message.contains("heredoc") {
        Some("the closing word of a heredoc stands alone on its line")
    } else if message.contains("nested levels") || message.contains("chained") {
        Some("split the expression, for example with locals")
    } else {
        None
    };
    match hint {
        Some(hint) => diagnostic.hint(hint),
        None => diagnostic,
    }
}

/// Brackets and quotes that have no partner: the parser notices them late, and elsewhere.
fn unbalanced(source: &Source) -> Option<Diagnostic> {
    let text = source.text();
    let mut open: Vec<(usize, &str)> = Vec::new();
    for token in crate::lexer::lines(text).into_iter().flatten() {
        // Tokens are slices of the text.
        let at = token.text.as_ptr() as usize - text.as_ptr() as usize;
        if token.kind == Kind::Quoted && token.text.contains('\n') {
            return Some(
                Diagnostic::error("Unclosed quote", "this quote is not closed on its line")
                    .at(source, Span::new(at, at + 1))
                    .hint("close the quote, write \\n, or use a heredoc: <<EOF"),
            );
        }
        if token.kind != Kind::Punct {
            continue;
        }
        let partner = match token.text {
            "{" | "[" | "(" => {
                open.push((at, token.text));
                continue;
            }
            "}" => "{",
            "]" => "[",
            ")" => "(",
            _ => continue,
        };
        let here = Span::new(at, at + 1);
        match open.pop() {
            Some((_, last)) if last == partner => {}
            Some((start, last)) => {
                let line = source.position(start).0;
                return Some(
                    Diagnostic::error(
                        "Unmatched bracket",
                        format!("{} closes here what was opened with {last}", token.text),
                    )
                    .at(source, here)
                    .hint(format!("the {last} is on line {line}")),
                );
            }
            None => {
                return Some(
                    Diagnostic::error("Unmatched bracket", format!("nothing is open that {} could close", token.text))
                        .at(source, here)
                        .hint("remove it, or look for a bracket closed too early above"),
                );
            }
        }
    }
    let (at, last) = open.pop()?;
    Some(
        Diagnostic::error("Unclosed bracket", format!("this {last} is never closed"))
            .at(source, Span::new(at, at + 1))
            .hint("the end of the file was reached while looking for its partner"),
    )
}

enum Place {
    /// Spans of the parser are spans of the source.
    Native,
    /// … after adding this.
    Shifted(usize),
    /// The text is a decoded string: only the whole string has a place.
    Fixed(Span),
}

struct Lower<'a> {
    source: &'a Source,
    /// What the parser saw.
    text: &'a str,
    place: Place,
}

type Lowered<T> = Result<T, Diagnostic>;

impl<'a> Lower<'a> {
    fn native(source: &'a Source) -> Self {
        Self { source, text: source.text(), place: Place::Native }
    }

    fn span(&self, range: Option<std::ops::Range<usize>>) -> Span {
        let range = range.unwrap_or(0..0);
        match self.place {
            Place::Native => range.into(),
            Place::Shifted(by) => Span::new(range.start + by, range.end + by),
            Place::Fixed(span) => span,
        }
    }

    fn body(&self, body: &hs::Body, span: Span) -> Lowered<NativeBody> {
        let mut out = NativeBody { span, ..NativeBody::default() };
        for structure in body {
            match structure {
                hs::Structure::Attribute(attribute) => out.attributes.push(NativeAttribute {
                    name: attribute.key.as_str().to_owned(),
                    name_span: self.span(attribute.key.span()),
                    expr: Arc::new(self.expr(&attribute.value)?),
                }),
                hs::Structure::Block(block) => {
                    let mut labels = Vec::new();
                    for label in &block.labels {
                        labels.push((label.as_str().to_owned(), self.span(label.span())));
                    }
                    let whole = self.span(block.span());
                    let body = self.body(&block.body, whole)?;
                    out.blocks.push(NativeBlock {
                        name: block.ident.as_str().to_owned(),
                        name_span: self.span(block.ident.span()),
                        labels,
                        body: Arc::new(body),
                    });
                }
            }
        }
        Ok(out)
    }

    fn boxed(&self, expr: &he::Expression) -> Lowered<Box<Expr>> {
        self.expr(expr).map(Box::new)
    }

    fn expr(&self, expr: &he::Expression) -> Lowered<Expr> {
        let span = self.span(expr.span());
        let kind = match expr {
            he::Expression::Null(_) => ExprKind::Literal(Value::NULL),
            he::Expression::Bool(b) => ExprKind::Literal(Value::Bool(*b.value())),
            he::Expression::Number(n) => {
                let text: String = match n.as_repr() {
                    Some(repr) => repr.chars().filter(|c| !c.is_whitespace()).collect(),
                    None => n.value().to_string(),
                };
                let number = Number::parse(&text).ok_or_else(|| {
                    Diagnostic::error("Invalid number", format!("{text} is out of range")).at(self.source, span)
                })?;
                ExprKind::Literal(Value::Number(number))
            }
            he::Expression::String(s) => {
                self.check_single_line(expr.span(), span)?;
                ExprKind::Literal(Value::String(s.value().clone()))
            }
            he::Expression::StringTemplate(template) => {
                return self.template_expr(template.iter(), span, false, false);
            }
            he::Expression::HeredocTemplate(heredoc) => {
                let raw = expr.span().and_then(|r| self.text.get(r)).unwrap_or("");
                let flush = raw.starts_with("<<-");
                return self.template_expr(heredoc.template.iter(), span, true, flush);
            }
            he::Expression::Array(items) => {
                ExprKind::Tuple(items.iter().map(|item| self.expr(item)).collect::<Lowered<_>>()?)
            }
            he::Expression::Object(items) => {
                let mut out = Vec::new();
                for (key, value) in items {
                    let key = match key {
                        he::ObjectKey::Ident(ident) => {
                            ObjectKey::Name(ident.as_str().to_owned(), self.span(ident.span()))
                        }
                        he::ObjectKey::Expression(he::Expression::Variable(name)) => {
                            ObjectKey::Name(name.as_str().to_owned(), self.span(name.span()))
                        }
                        he::ObjectKey::Expression(key @ he::Expression::Traversal(_)) => {
                            return Err(Diagnostic::error(
                                "Ambiguous key",
                                "a key with dots or brackets must say whether it is text or an expression",
                            )
                            .at(self.source, self.span(key.span()))
                            .hint("put it in quotes to use it as text, or in parentheses to evaluate it"));
                        }
                        he::ObjectKey::Expression(key) => ObjectKey::Expr(self.expr(key)?),
                    };
                    out.push((key, self.expr(value.expr())?));
                }
                ExprKind::Object(out)
            }
            he::Expression::Parenthesis(inner) => ExprKind::Paren(self.boxed(inner.inner())?),
            he::Expression::Variable(name) => ExprKind::Traversal {
                root: name.as_str().to_owned(),
                root_span: span,
                steps: Vec::new(),
                verbatim: self.verbatim(expr.span()),
            },
            he::Expression::Conditional(c) => {
                ExprKind::Conditional(self.boxed(&c.cond_expr)?, self.boxed(&c.true_expr)?, self.boxed(&c.false_expr)?)
            }
            he::Expression::FuncCall(call) => {
                let mut name = String::new();
                for part in &call.name.namespace {
                    name.push_str(part.as_str());
                    name.push_str("::");
                }
                name.push_str(call.name.name.as_str());
                ExprKind::Call {
                    name,
                    name_span: self.span(call.name.name.span()),
                    args: call.args.iter().map(|arg| self.expr(arg)).collect::<Lowered<_>>()?,
                    expand: call.args.expand_final(),
                }
            }
            he::Expression::Traversal(traversal) => {
                return self.traversal(traversal, expr.span());
            }
            he::Expression::UnaryOp(op) => ExprKind::Unary(
                match op.operator.value() {
                    he::UnaryOperator::Neg => UnaryOp::Neg,
                    he::UnaryOperator::Not => UnaryOp::Not,
                },
                self.boxed(&op.expr)?,
            ),
            he::Expression::BinaryOp(op) => {
                ExprKind::Binary(self.boxed(&op.lhs_expr)?, binary_op(*op.operator.value()), self.boxed(&op.rhs_expr)?)
            }
            he::Expression::ForExpr(f) => ExprKind::For(Box::new(ForExpr {
                key_var: f.intro.key_var.as_ref().map(|k| k.as_str().to_owned()),
                value_var: f.intro.value_var.as_str().to_owned(),
                collection: self.expr(&f.intro.collection_expr)?,
                key: f.key_expr.as_ref().map(|k| self.expr(k)).transpose()?,
                value: self.expr(&f.value_expr)?,
                condition: f.cond.as_ref().map(|c| self.expr(&c.expr)).transpose()?,
                group: f.grouping,
            })),
        };
        Ok(Expr { span, kind })
    }

    /// Quoted text may not run over the end of a line: nearly always a quote was forgotten.
    fn check_single_line(&self, range: Option<std::ops::Range<usize>>, span: Span) -> Lowered<()> {
        if matches!(self.place, Place::Fixed(_)) {
            return Ok(());
        }
        let raw = range.and_then(|r| self.text.get(r)).unwrap_or("");
        if raw.contains('\n') {
            return Err(Diagnostic::error(
                "Text over several lines",
                "a quoted text must end on the line it begins on",
            )
            .at(self.source, Span::new(span.start, span.start + 1))
            .hint("close the quote, write \\n, or use a heredoc: <<EOF"));
        }
        Ok(())
    }

    /// The source text of a reference, with the `${ }` that is around it, or one of our own.
    fn verbatim(&self, range: Option<std::ops::Range<usize>>) -> String {
        let range = range.unwrap_or(0..0);
        let text = self.text.get(range.clone()).unwrap_or("");
        let before = self.text.get(..range.start).unwrap_or("");
        let after = self.text.get(range.end..).unwrap_or("");
        let lead = before.trim_end_matches(' ');
        if lead.ends_with("${") {
            let spaces_before = &before[lead.len()..];
            let trimmed = after.trim_start_matches(' ');
            let spaces_after = match trimmed.starts_with('}') {
                true => &after[..after.len() - trimmed.len()],
                false => "",
            };
            return format!("${{{spaces_before}{text}{spaces_after}}}");
        }
        format!("${{{text}}}")
    }

    fn traversal(&self, traversal: &he::Traversal, whole: Option<std::ops::Range<usize>>) -> Lowered<Expr> {
        let whole_range = whole.clone().unwrap_or(0..0);
        let mut operators = traversal.operators.iter().peekable();
        let mut end = traversal.expr.span().map_or(whole_range.start, |r| r.end);
        let start = whole_range.start;
        let mut current = self.expr(&traversal.expr)?;
        // Constant steps right after a variable belong to the reference itself.
        if let ExprKind::Traversal { steps, verbatim, .. } = &mut current.kind
            && matches!(traversal.expr, he::Expression::Variable(_))
        {
            while let Some(operator) = operators.peek() {
                let span = self.span(operator.span());
                let kind = match operator.value() {
                    he::TraversalOperator::GetAttr(name) => StepKind::Attr(name.as_str().to_owned()),
                    he::TraversalOperator::LegacyIndex(i) => StepKind::Index(Value::Number((*i.value()).into())),
                    he::TraversalOperator::Index(he::Expression::String(s)) => {
                        StepKind::Index(Value::String(s.value().clone()))
                    }
                    he::TraversalOperator::Index(number @ he::Expression::Number(_)) => match self.expr(number)?.kind {
                        ExprKind::Literal(value) => StepKind::Index(value),
                        _ => break,
                    },
                    _ => break,
                };
                end = operator.span().map_or(end, |r| r.end);
                steps.push(Step { span, kind });
                operators.next();
            }
            *verbatim = self.verbatim(Some(start..end));
            current.span = self.span(Some(start..end));
        }
        let mut nested = 0;
        while let Some(operator) = operators.next() {
            // The parser bounds depth elsewhere, but reads these in a loop.
            nested += 1;
            if nested > STEPS_MAX {
                return Err(Diagnostic::error(
                    "Expression nested too deeply",
                    format!("more than {STEPS_MAX} steps with computed keys or splats in one reference"),
                )
                .at(self.source, self.span(operator.span()))
                .hint("split the expression, for example with locals"));
            }
            end = operator.span().map_or(end, |r| r.end);
            let span = self.span(Some(start..end));
            let here = self.span(operator.span());
            let kind = match operator.value() {
                he::TraversalOperator::GetAttr(name) => {
                    ExprKind::GetAttr(Box::new(current), name.as_str().to_owned(), here)
                }
                he::TraversalOperator::Index(key) => ExprKind::Index(Box::new(current), self.boxed(key)?),
                he::TraversalOperator::LegacyIndex(i) => ExprKind::Index(
                    Box::new(current),
                    Box::new(Expr { span: here, kind: ExprKind::Literal(Value::Number((*i.value()).into())) }),
                ),
                splat @ (he::TraversalOperator::AttrSplat(_) | he::TraversalOperator::FullSplat(_)) => {
                    let full = matches!(splat, he::TraversalOperator::FullSplat(_));
                    let mut each = Vec::new();
                    while let Some(next) = operators.peek() {
                        let step = match next.value() {
                            he::TraversalOperator::GetAttr(name) => {
                                RelativeStep::Attr(name.as_str().to_owned(), self.span(next.span()))
                            }
                            he::TraversalOperator::Index(key) if full => RelativeStep::Index(self.expr(key)?),
                            he::TraversalOperator::LegacyIndex(i) => RelativeStep::Index(Expr {
                                span: self.span(next.span()),
                                kind: ExprKind::Literal(Value::Number((*i.value()).into())),
                            }),
                            _ => break,
                        };
                        each.push(step);
                        end = next.span().map_or(end, |r| r.end);
                        operators.next();
                    }
                    ExprKind::Splat { source: Box::new(current), each }
                }
            };
            current = Expr { span, kind };
        }
        Ok(current)
    }

    /// `lines`: literals count line by line, as in heredocs and bare templates.
    fn template_expr<'e>(
        &self,
        elements: impl Iterator<Item = &'e ht::Element>,
        span: Span,
        lines: bool,
        flush: bool,
    ) -> Lowered<Expr> {
        let mut tokens = Vec::new();
        self.tokens(elements, lines, &mut tokens)?;
        if !lines {
            for token in &tokens {
                if let Token::Literal { raw_newline: true, .. } = token {
                    return Err(Diagnostic::error(
                        "Text over several lines",
                        "a quoted text must end on the line it begins on",
                    )
                    .at(self.source, Span::new(span.start, span.start + 1))
                    .hint("close the quote, write \\n, or use a heredoc: <<EOF"));
                }
            }
        }
        trim(&mut tokens);
        if flush {
            flush_indent(&mut tokens);
        }
        let mut iter = tokens.into_iter();
        let mut parts = build(&mut iter).0;
        let kind = match parts.as_mut_slice() {
            [] => ExprKind::Literal(Value::String(String::new())),
            [Part::Literal(text)] => ExprKind::Literal(Value::String(std::mem::take(text))),
            [Part::Interpolation(_)] => match parts.pop() {
                Some(Part::Interpolation(expr)) => ExprKind::Wrap(Box::new(expr)),
                _ => ExprKind::Template(parts),
            },
            _ => ExprKind::Template(parts),
        };
        Ok(Expr { span, kind })
    }

    fn tokens<'e>(
        &self,
        elements: impl Iterator<Item = &'e ht::Element>,
        lines: bool,
        out: &mut Vec<Token>,
    ) -> Lowered<()> {
        for element in elements {
            match element {
                ht::Element::Literal(literal) => {
                    let raw = literal.span().and_then(|r| self.text.get(r));
                    if lines {
                        // The parser already removed indentation by rules of its own; start from the
                        // source text again.
                        let text = match raw {
                            Some(raw) => raw.replace("$${", "${").replace("%%{", "%{"),
                            None => literal.value().clone(),
                        };
                        for line in text.split_inclusive('\n') {
                            out.push(Token::Literal { text: line.to_owned(), raw_newline: false });
                        }
                    } else {
                        out.push(Token::Literal {
                            text: literal.value().clone(),
                            raw_newline: matches!(self.place, Place::Native | Place::Shifted(_))
                                && raw.is_some_and(|raw| raw.contains('\n')),
                        });
                    }
                }
                ht::Element::Interpolation(i) => {
                    out.push(Token::Marker { strip: strip(i.strip), kind: Marker::Interpolation(self.expr(&i.expr)?) })
                }
                ht::Element::Directive(directive) => match directive.as_ref() {
                    ht::Directive::If(d) => {
                        out.push(Token::Marker {
                            strip: strip(d.if_expr.strip),
                            kind: Marker::If(self.expr(&d.if_expr.cond_expr)?),
                        });
                        self.tokens(d.if_expr.template.iter(), lines, out)?;
                        if let Some(otherwise) = &d.else_expr {
                            out.push(Token::Marker { strip: strip(otherwise.strip), kind: Marker::Else });
                            self.tokens(otherwise.template.iter(), lines, out)?;
                        }
                        out.push(Token::Marker { strip: strip(d.endif_expr.strip), kind: Marker::End });
                    }
                    ht::Directive::For(d) => {
                        out.push(Token::Marker {
                            strip: strip(d.for_expr.strip),
                            kind: Marker::For(
                                d.for_expr.key_var.as_ref().map(|k| k.as_str().to_owned()),
                                d.for_expr.value_var.as_str().to_owned(),
                                self.expr(&d.for_expr.collection_expr)?,
                            ),
                        });
                        self.tokens(d.for_expr.template.iter(), lines, out)?;
                        out.push(Token::Marker { strip: strip(d.endfor_expr.strip), kind: Marker::End });
                    }
                },
            }
        }
        Ok(())
    }
}

fn strip(strip: ht::Strip) -> (bool, bool) {
    match strip {
        ht::Strip::None => (false, false),
        ht::Strip::Start => (true, false),
        ht::Strip::End => (false, true),
        ht::Strip::Both => (true, true),
    }
}

fn binary_op(op: he::BinaryOperator) -> BinaryOp {
    match op {
        he::BinaryOperator::Eq => BinaryOp::Eq,
        he::BinaryOperator::NotEq => BinaryOp::NotEq,
        he::BinaryOperator::LessEq => BinaryOp::LessEq,
        he::BinaryOperator::GreaterEq => BinaryOp::GreaterEq,
        he::BinaryOperator::Less => BinaryOp::Less,
        he::BinaryOperator::Greater => BinaryOp::Greater,
        he::BinaryOperator::Plus => BinaryOp::Add,
        he::BinaryOperator::Minus => BinaryOp::Sub,
        he::BinaryOperator::Mul => BinaryOp::Mul,
        he::BinaryOperator::Div => BinaryOp::Div,
        he::BinaryOperator::Mod => BinaryOp::Mod,
        he::BinaryOperator::And => BinaryOp::And,
        he::BinaryOperator::Or => BinaryOp::Or,
    }
}
