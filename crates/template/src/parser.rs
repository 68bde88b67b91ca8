//! Tokens to definitions, by the grammar of Go's text/template.

use crate::{
    ast::{Branch, Command, Definitions, Node, Operand, OperandKind, Pipe},
    error::Fault,
    funcs::{self, Found},
    lexer::{self, Keyword, Kind, Token},
    settings::Syntax,
};

/// How deep blocks and parentheses may be nested.
const MAX_NESTING: usize = 100;
/// Name of the text itself among the definitions, as in Go.
pub(crate) const ROOT: &str = "";
/// Longest text.
const MAX_SOURCE: usize = 4 << 20;
/// Most variables that are visible at one place.
const MAX_VARIABLES: usize = 1000;

/// Reads a text between delimiters, with the functions that `syntax` allows.
pub(crate) fn parse(text: &str, left: &str, right: &str, syntax: &Syntax) -> Result<Definitions, Fault> {
    if text.len() > MAX_SOURCE {
        return Err(Fault::new(0, format!("the template is longer than {} MiB", MAX_SOURCE >> 20)));
    }
    let tokens = lexer::tokens(text, left, right)?;
    let mut parser = Parser {
        tokens,
        next: 0,
        syntax,
        variables: vec!["$".into()],
        depth: 0,
        loops: 0,
        definitions: Definitions::new(),
    };
    let mut root = Vec::new();
    loop {
        match parser.block(true)? {
            (nodes, Closed::End) => {
                root.extend(nodes);
                break;
            }
            (nodes, Closed::Definition) => root.extend(nodes),
            (_, Closed::By(_, at, _)) => {
                return Err(Fault::new(at, "this closes nothing: there is no if, range, with, block or define open"));
            }
        }
    }
    parser.define(ROOT.to_owned(), root, 0)?;
    Ok(parser.definitions)
}

/// What has ended a list of nodes.
enum Closed {
    /// The end of the text.
    End,
    /// `end` or `else`; for `else if` and `else with` the keyword that follows.
    By(Keyword, usize, Option<Keyword>),
    /// A definition at the top has been read.
    Definition,
}

struct Parser<'a> {
    tokens: Vec<Token>,
    next: usize,
    syntax: &'a Syntax,
    variables: Vec<String>,
    depth: usize,
    loops: usize,
    definitions: Definitions,
}

fn is_empty(nodes: &[Node]) -> bool {
    nodes.iter().all(|n| matches!(n, Node::Text(text) if text.trim().is_empty()))
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        // The last token is the end, and nothing moves beyond it.
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        if self.next < self.tokens.len() - 1 {
            self.next += 1;
        }
        token
    }

    fn skip_space(&mut self) {
        while self.peek().kind == Kind::Space {
            self.next += 1;
        }
    }

    fn advance_solid(&mut self) -> Token {
        self.skip_space();
        self.advance()
    }

    fn expect_close(&mut self, context: &str) -> Result<(), Fault> {
        let token = self.advance_solid();
        if token.kind == Kind::RightDelim { Ok(()) } else { Err(unexpected(&token, context)) }
    }

    fn define(&mut self, name: String, nodes: Vec<Node>, at: usize) -> Result<(), Fault> {
        let known = self.definitions.get(&name).is_some_and(|old| !is_empty(old));
        if known && !is_empty(&nodes) {
            return Err(Fault::new(at, format!("a template named {name:?} is defined twice")));
        }
        if !known {
            self.definitions.insert(name, nodes);
        }
        Ok(())
    }

    fn deeper(&mut self, at: usize) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(Fault::new(at, format!("nested more than {MAX_NESTING} deep")));
        }
        Ok(())
    }

    /// Nodes up to what closes them.
    fn block(&mut self, top: bool) -> Result<(Vec<Node>, Closed), Fault> {
        let mut nodes = Vec::new();
        loop {
            let token = self.advance();
            match token.kind {
                Kind::Text(text) => nodes.push(Node::Text(text)),
                Kind::End => return Ok((nodes, Closed::End)),
                Kind::LeftDelim => {
                    self.skip_space();
                    let at = self.peek().at;
                    let Kind::Keyword(keyword) = self.peek().kind else {
                        let pipe = self.pipeline(&Kind::RightDelim, "an action", 0)?;
                        nodes.push(Node::Action(pipe));
                        continue;
                    };
                    self.advance();
                    match keyword {
                        Keyword::End => {
                            self.expect_close("after end")?;
                            return Ok((nodes, Closed::By(keyword, at, None)));
                        }
                        Keyword::Else => {
                            self.skip_space();
                            let chained = match self.peek().kind {
                                Kind::Keyword(k @ (Keyword::If | Keyword::With)) => Some(k),
                                _ => None,
                            };
                            if chained.is_some() {
                                self.advance();
                            } else {
                                self.expect_close("after else")?;
                            }
                            return Ok((nodes, Closed::By(keyword, at, chained)));
                        }
                        Keyword::Define if top => {
                            self.definition(at)?;
                            return Ok((nodes, Closed::Definition));
                        }
                        Keyword::Define => {
                            return Err(Fault::new(
                                at,
                                "define stands at the top of a template, not within another block",
                            ));
                        }
                        Keyword::If => nodes.push(Node::If(self.branch(at, keyword)?)),
                        Keyword::With => nodes.push(Node::With(self.branch(at, keyword)?)),
                        Keyword::Range => nodes.push(Node::Range(self.branch(at, keyword)?)),
                        Keyword::Break | Keyword::Continue => {
                            if self.loops == 0 {
                                return Err(Fault::new(at, "break and continue stand within a range"));
                            }
                            self.expect_close("after break or continue")?;
                            nodes.push(if keyword == Keyword::Break { Node::Break } else { Node::Continue });
                        }
                        Keyword::Template => {
                            let name = self.template_name()?;
                            let data = self.optional_pipeline()?;
                            nodes.push(Node::Template { at, name, data });
                        }
                        Keyword::Block => {
                            let name = self.template_name()?;
                            let data = self.pipeline(&Kind::RightDelim, "block", 0)?;
                            self.body_of_definition(name.clone(), at)?;
                            nodes.push(Node::Template { at, name, data: Some(data) });
                        }
                    }
                }
                _ => return Err(unexpected(&token, "the text")),
            }
        }
    }

    fn template_name(&mut self) -> Result<String, Fault> {
        let token = self.advance_solid();
        match token.kind {
            Kind::Str(ref name) => String::from_utf8(name.clone())
                .map_err(|_| Fault::new(token.at, "the name of a template must be UTF-8 text")),
            _ => Err(unexpected(&token, "here; the name of a template is a string")),
        }
    }

    fn optional_pipeline(&mut self) -> Result<Option<Pipe>, Fault> {
        self.skip_space();
        if self.peek().kind == Kind::RightDelim {
            self.advance();
            return Ok(None);
        }
        self.pipeline(&Kind::RightDelim, "template", 0).map(Some)
    }

    fn definition(&mut self, at: usize) -> Result<(), Fault> {
        let name = self.template_name()?;
        self.expect_close("after define")?;
        self.body_of_definition(name, at)
    }

    /// A template of its own: it sees no variable and no loop of the place where it is written.
    fn body_of_definition(&mut self, name: String, at: usize) -> Result<(), Fault> {
        self.deeper(at)?;
        let variables = std::mem::replace(&mut self.variables, vec!["$".into()]);
        let loops = std::mem::take(&mut self.loops);
        let (nodes, closed) = self.block(false)?;
        self.variables = variables;
        self.loops = loops;
        self.depth -= 1;
        match closed {
            Closed::By(Keyword::End, ..) => self.define(name, nodes, at),
            Closed::By(_, at, _) => Err(Fault::new(at, "else belongs to if, range or with")),
            Closed::End | Closed::Definition => {
                Err(Fault::new(at, format!("the template {name:?} is not closed with end")))
            }
        }
    }

    fn branch(&mut self, at: usize, keyword: Keyword) -> Result<Branch, Fault> {
        self.deeper(at)?;
        let visible = self.variables.len();
        let context = match keyword {
            Keyword::If => "if",
            Keyword::With => "with",
            _ => "range",
        };
        let most = if keyword == Keyword::Range { 2 } else { 1 };
        let pipe = self.pipeline(&Kind::RightDelim, context, most)?;
        if keyword == Keyword::Range {
            self.loops += 1;
        }
        let (body, closed) = self.block(false)?;
        if keyword == Keyword::Range {
            self.loops -= 1;
        }
        let open = |_: &Closed| Fault::new(at, format!("this {context} is not closed with end"));
        let otherwise = match closed {
            Closed::By(Keyword::End, ..) => Vec::new(),
            Closed::By(_, else_at, Some(chained)) => {
                if chained != keyword {
                    return Err(Fault::new(
                        else_at,
                        format!("this else belongs to {context}; it cannot be chained with another keyword"),
                    ));
                }
                let inner = self.branch(else_at, chained)?;
                vec![if chained == Keyword::If { Node::If(inner) } else { Node::With(inner) }]
            }
            Closed::By(_, _, None) => match self.block(false)? {
                (nodes, Closed::By(Keyword::End, ..)) => nodes,
                (_, Closed::By(_, at, _)) => return Err(Fault::new(at, "a second else: only end may follow")),
                (_, closed) => return Err(open(&closed)),
            },
            closed => return Err(open(&closed)),
        };
        self.variables.truncate(visible);
        self.depth -= 1;
        Ok(Branch { at, pipe, body, otherwise })
    }

    /// Declarations and commands up to `end`; `most` = how many variables it may declare, one at least.
    fn pipeline(&mut self, end: &Kind, context: &str, most: usize) -> Result<Pipe, Fault> {
        self.skip_space();
        let at = self.peek().at;
        let mut pipe = Pipe { at, assign: false, variables: Vec::new(), commands: Vec::new() };
        let most = most.max(1);
        while pipe.variables.len() < most {
            let Some((name, next, kind)) = self.declaration() else { break };
            match kind {
                Kind::Assign | Kind::Declare => {
                    self.next = next;
                    pipe.assign = kind == Kind::Assign;
                    pipe.variables.push(name);
                    break;
                }
                _ if pipe.variables.len() + 1 < most => {
                    self.next = next;
                    pipe.variables.push(name);
                }
                _ => return Err(Fault::new(at, format!("too many variables are declared in {context}"))),
            }
        }
        for name in &pipe.variables {
            if pipe.assign {
                self.known(name, at)?;
            } else {
                self.variables.push(name.clone());
            }
        }
        if self.variables.len() > MAX_VARIABLES {
            return Err(Fault::new(at, format!("more than {MAX_VARIABLES} variables are visible here")));
        }
        loop {
            self.skip_space();
            let before = self.next;
            let token = self.advance();
            if token.kind == *end {
                break;
            }
            match &token.kind {
                Kind::RightDelim | Kind::RightParen | Kind::Pipe => return Err(unexpected(&token, context)),
                _ => {
                    self.next = before;
                    self.command(&mut pipe)?;
                }
            }
        }
        if pipe.commands.is_empty() {
            return Err(Fault::new(at, format!("a value is missing for {context}")));
        }
        for later in pipe.commands.iter().skip(1) {
            if let Some(first) = later.operands.first()
                && matches!(
                    first.kind,
                    OperandKind::Dot
                        | OperandKind::Nil
                        | OperandKind::Bool(_)
                        | OperandKind::Int(_)
                        | OperandKind::Float(_)
                        | OperandKind::Str(_)
                )
            {
                return Err(Fault::new(first.at, "what follows | must be a function or something that is called"));
            }
        }
        Ok(pipe)
    }

    /// A variable that is declared here: its name, where to go on, and the sign after it: `:=`, `=` or `,`.
    fn declaration(&mut self) -> Option<(String, usize, Kind)> {
        self.skip_space();
        let Kind::Variable(name) = self.peek().kind.clone() else { return None };
        let mut next = self.next + 1;
        while self.tokens.get(next)?.kind == Kind::Space {
            next += 1;
        }
        let kind = self.tokens.get(next)?.kind.clone();
        matches!(kind, Kind::Assign | Kind::Declare | Kind::Comma).then_some((name, next + 1, kind))
    }

    fn known(&self, name: &str, at: usize) -> Result<(), Fault> {
        if self.variables.iter().any(|v| v == name) {
            return Ok(());
        }
        Err(Fault::new(at, format!("the variable {name} is not declared here; declare it with {name} := …")))
    }

    /// One command and the | after it.
    fn command(&mut self, pipe: &mut Pipe) -> Result<(), Fault> {
        let mut operands = Vec::new();
        let start = self.peek().at;
        loop {
            self.skip_space();
            if let Some(operand) = self.operand()? {
                operands.push(operand);
            }
            let before = self.next;
            let token = self.advance();
            match token.kind {
                Kind::Space => {}
                Kind::RightDelim | Kind::RightParen => {
                    self.next = before;
                    break;
                }
                Kind::Pipe => break,
                _ => return Err(unexpected(&token, "an operand")),
            }
        }
        if operands.is_empty() {
            return Err(Fault::new(start, "a command is missing"));
        }
        pipe.commands.push(Command { operands });
        Ok(())
    }

    fn operand(&mut self) -> Result<Option<Operand>, Fault> {
        let Some(term) = self.term()? else { return Ok(None) };
        let mut fields = Vec::new();
        while let Kind::Field(name) = &self.peek().kind {
            fields.push(name.clone());
            self.next += 1;
        }
        if fields.is_empty() {
            return Ok(Some(term));
        }
        let at = term.at;
        let kind = match term.kind {
            OperandKind::Field(mut names) => {
                names.append(&mut fields);
                OperandKind::Field(names)
            }
            OperandKind::Variable(name, mut names) => {
                names.append(&mut fields);
                OperandKind::Variable(name, names)
            }
            OperandKind::Call(_) | OperandKind::Pipe(_) | OperandKind::Chain(..) => {
                OperandKind::Chain(Box::new(term), fields)
            }
            _ => return Err(Fault::new(at, "a literal has no fields")),
        };
        Ok(Some(Operand { at, kind }))
    }

    fn term(&mut self) -> Result<Option<Operand>, Fault> {
        let before = self.next;
        let token = self.advance();
        let at = token.at;
        let kind = match token.kind {
            Kind::Identifier(name) => OperandKind::Call(self.function(&name, at)?),
            Kind::Dot => OperandKind::Dot,
            Kind::Nil => OperandKind::Nil,
            Kind::Bool(value) => OperandKind::Bool(value),
            Kind::Str(text) => OperandKind::Str(text),
            Kind::Rune(c) => OperandKind::Int(i64::from(u32::from(c))),
            Kind::Number(text) => number(&text)
                .ok_or_else(|| Fault::new(at, format!("{text:?} is not a number, or too large for one")))?,
            Kind::Field(name) => OperandKind::Field(vec![name]),
            Kind::Variable(name) => {
                self.known(&name, at)?;
                OperandKind::Variable(name, Vec::new())
            }
            Kind::LeftParen => {
                self.deeper(at)?;
                let pipe = self.pipeline(&Kind::RightParen, "a parenthesised pipeline", 0)?;
                self.depth -= 1;
                OperandKind::Pipe(Box::new(pipe))
            }
            _ => {
                self.next = before;
                return Ok(None);
            }
        };
        Ok(Some(Operand { at, kind }))
    }

    fn function(&self, name: &str, at: usize) -> Result<&'static funcs::Function, Fault> {
        if self.syntax.denied.iter().any(|d| d == name) {
            return Err(Fault::new(
                at,
                format!("the function {name} is denied on this node (client.template.function_denylist)"),
            ));
        }
        if self.syntax.without_vault && funcs::OF_VAULT.contains(&name) {
            let why = "reads secrets with the token of a vault block, and the task has none; add vault {} to the task";
            return Err(Fault::new(at, format!("the function {name} {why}")));
        }
        match funcs::find(name) {
            Found::Function(function) => Ok(function),
            Found::Refused(reason) => Err(Fault::new(at, format!("the function {name} is not supported: {reason}"))),
            Found::Unknown(near) => {
                let hint = near.map(|n| format!("; did you mean {n}?")).unwrap_or_default();
                Err(Fault::new(at, format!("there is no function {name}{hint}")))
            }
        }
    }
}

fn unexpected(token: &Token, context: &str) -> Fault {
    let what = match &token.kind {
        Kind::Text(_) => "text".to_owned(),
        Kind::LeftDelim => "a left delimiter".to_owned(),
        Kind::RightDelim => "the end of the action".to_owned(),
        Kind::Space => "a space".to_owned(),
        Kind::Assign => "=".to_owned(),
        Kind::Declare => ":=".to_owned(),
        Kind::Pipe => "|".to_owned(),
        Kind::LeftParen => "(".to_owned(),
        Kind::RightParen => ")".to_owned(),
        Kind::Comma => ",".to_owned(),
        Kind::Char(c) => format!("{c:?}"),
        Kind::Dot => ".".to_owned(),
        Kind::Field(name) => format!(".{name}"),
        Kind::Variable(name) | Kind::Identifier(name) | Kind::Number(name) => name.clone(),
        Kind::Keyword(keyword) => format!("the keyword {keyword:?}").to_lowercase(),
        Kind::Bool(value) => value.to_string(),
        Kind::Nil => "nil".to_owned(),
        Kind::Str(_) => "a string".to_owned(),
        Kind::Rune(c) => format!("{c:?}"),
        Kind::End => "the end of the template".to_owned(),
    };
    Fault::new(token.at, format!("{what} is not expected in {context}"))
}

/// A number as Go's constants are written.
fn number(text: &str) -> Option<OperandKind> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') && lower.bytes().all(|b| b.is_ascii_digit() || b == b'_') => {
            (8, &lower[1..])
        }
        _ => (10, lower.as_str()),
    };
    let is_float = if radix == 16 { lower.contains(['.', 'p']) } else { lower.contains(['.', 'e']) && radix == 10 };
    if is_float {
        if radix == 16 {
            return hex_float(body).map(|v| OperandKind::Float(if negative { -v } else { v }));
        }
        // Underscores stand between digits.
        let between = |n: usize| {
            let digit = |b: Option<&u8>| b.is_some_and(u8::is_ascii_digit);
            n > 0 && digit(lower.as_bytes().get(n - 1)) && digit(lower.as_bytes().get(n + 1))
        };
        if !lower.contains(|c: char| c.is_ascii_digit()) || !lower.match_indices('_').all(|(n, _)| between(n)) {
            return None;
        }
        let value: f64 = lower.replace('_', "").parse().ok()?;
        return value.is_finite().then_some(OperandKind::Float(if negative { -value } else { value }));
    }
    // An underscore stands between digits, or between the prefix and a digit.
    if body.ends_with('_') || body.contains("__") || (radix == 10 && body.starts_with('_')) {
        return None;
    }
    let plain: String = body.chars().filter(|c| *c != '_').collect();
    let magnitude = i128::from_str_radix(&plain, radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok().map(OperandKind::Int)
}

/// `1.8p3` without its prefix.
fn hex_float(body: &str) -> Option<f64> {
    let (mantissa, exponent) = body.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut value = 0_f64;
    for c in whole.chars().chain(fraction.chars()) {
        value = value.mul_add(16.0, f64::from(c.to_digit(16)?));
    }
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?.checked_mul(4)?)?;
    let value = value * 2_f64.powi(shift);
    value.is_finite().then_some(value)
}
