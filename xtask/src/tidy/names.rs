//! Which file of a crate names what of which other file: read from `use` and paths, followed through what modules hand
//! on.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    source::Source,
    tokens::{Token, tokens},
};

/// For each two files, the names that the first takes from the second.
pub(super) type Names = BTreeMap<(String, String), BTreeSet<String>>;

/// `use path as name`; the name is `*` for all that a module has.
struct Use {
    path: Vec<String>,
    name: String,
    /// It hands the name on; that alone uses nothing.
    public: bool,
    /// The modules whose names `*` brings.
    modules: Vec<usize>,
}

/// Most names of a path. One that grows beyond leads around through imports of other crates.
const LONGEST: usize = 12;

/// A module: a file, or a part of one in braces. Test modules are none.
#[derive(Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths of two names or more, outside `use`.
    paths: BTreeSet<Vec<String>>,
    /// Words that are no path and no member, and the first ones of paths.
    words: BTreeSet<String>,
    /// Macros that it calls.
    calls: BTreeSet<String>,
}

/// The modules of a library or program.
struct Tree<'a> {
    files: &'a BTreeMap<&'a str, &'a str>,
    modules: Vec<Module>,
    /// The file of each `macro_rules!`.
    macros: BTreeMap<String, String>,
}

/// What a path leads to.
enum Target {
    File(String),
    Module(usize),
}

/// Where the bracket closes that opens at `from`.
fn closing(tokens: &[Token<'_>], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// Behind the item, field or statement that begins here.
fn behind(tokens: &[Token<'_>], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        match token {
            Token::Mark(';') => return at + 1,
            Token::Mark('{') => return closing(tokens, at) + 1,
            Token::Mark('(' | '[') => at = closing(tokens, at),
            Token::Mark(')' | ']' | '}') => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

/// The path that leads from a file's folder to another file, without `..`.
fn beside(file: &str, path: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The names of a `use` from `at` on, each with the path before it; gives back what follows.
fn leaves(tokens: &[Token<'_>], mut at: usize, before: &[String], found: &mut Vec<(Vec<String>, String)>) -> usize {
    let mut path = before.to_vec();
    while let Some(token) = tokens.get(at) {
        match token {
            Token::Mark('{') => {
                at += 1;
                while !matches!(tokens.get(at), Some(Token::Mark('}')) | None) {
                    at = leaves(tokens, at, &path, found);
                    at += usize::from(tokens.get(at) == Some(&Token::Mark(',')));
                }
                return at + 1;
            }
            Token::Mark('*') => {
                found.push((path, "*".to_owned()));
                return at + 1;
            }
            Token::Word("as") => {
                if let Some(Token::Word(name)) = tokens.get(at + 1) {
                    found.push((path, (*name).to_owned()));
                }
                return at + 2;
            }
            Token::Word("self") if !path.is_empty() => {}
            Token::Word(word) => path.push((*word).to_owned()),
            Token::Colons => {}
            _ => break,
        }
        at += 1;
    }
    if let Some(name) = path.last().cloned() {
        found.push((path, name));
    }
    at
}

impl<'a> Tree<'a> {
    /// Reads the module of a file and all below it.
    fn read(&mut self, file: &str, parent: Option<usize>, dir: &str) -> Option<usize> {
        let text = *self.files.get(file)?;
        if self.modules.iter().any(|module| module.file == file) {
            return None;
        }
        let of_file = self.add(file, parent);
        let tokens = tokens(text);
        // The modules that are open, each with the folder of those below it and the depth of its braces.
        let mut open = vec![(of_file, dir.to_owned(), 0_usize)];
        let (mut at, mut depth, mut moved) = (0, 0_usize, None);
        while let Some(token) = tokens.get(at) {
            let (module, folder, floor) = open.last().cloned()?;
            let next = tokens.get(at + 1);
            match (token, next) {
                (Token::Mark('#'), Some(Token::Mark('[' | '!'))) => {
                    let end = closing(&tokens, at + 1 + usize::from(next == Some(&Token::Mark('!'))));
                    let inside = tokens.get(at..end).unwrap_or_default();
                    let says = |word: &str| inside.contains(&Token::Word(word));
                    if says("cfg") && says("test") && !says("not") && !says("any") {
                        at = if next == Some(&Token::Mark('!')) { tokens.len() } else { behind(&tokens, end + 1) };
                        continue;
                    }
                    for part in inside {
                        match part {
                            Token::Text(path) if inside.get(2) == Some(&Token::Word("path")) => {
                                moved = Some((*path).to_owned())
                            }
                            Token::Text(path) if path.contains("::") && !path.contains(' ') => {
                                self.modules[module].paths.insert(path.split("::").map(str::to_owned).collect());
                            }
                            _ => {}
                        }
                    }
                    at += 1;
                    continue;
                }
                (Token::Word("use"), Some(Token::Word(_) | Token::Colons | Token::Mark('{'))) => {
                    let mut found = Vec::new();
                    let end = leaves(&tokens, at + 1, &[], &mut found);
                    let public = matches!(
                        at.checked_sub(1).map(|last| tokens[last]),
                        Some(Token::Word("pub") | Token::Mark(')'))
                    );
                    self.modules[module].uses.extend(found.into_iter().map(|(path, name)| Use {
                        path,
                        name,
                        public,
                        modules: Vec::new(),
                    }));
                    at = end;
                    continue;
                }
                (Token::Word("mod"), Some(Token::Word(name))) => {
                    let child = if tokens.get(at + 2) == Some(&Token::Mark('{')) {
                        let child = self.add(file, Some(module));
                        open.push((child, format!("{folder}/{name}"), depth + 1));
                        depth += 1;
                        at += 1;
                        Some(child)
                    } else if let Some(path) = moved.take() {
                        let path = beside(file, &path);
                        let below = path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
                        self.read(&path, Some(module), &below)
                    } else {
                        let below = format!("{folder}/{name}");
                        let child = self.read(&format!("{below}.rs"), Some(module), &below);
                        child.or_else(|| self.read(&format!("{below}/mod.rs"), Some(module), &below))
                    };
                    self.modules[module].children.extend(child.map(|child| ((*name).to_owned(), child)));
                    at += 2;
                    continue;
                }
                (
                    Token::Word("fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"),
                    Some(Token::Word(name)),
                ) if depth == floor => {
                    self.modules[module].items.insert((*name).to_owned());
                }
                (Token::Word("macro_rules"), Some(_)) => {
                    if let Some(Token::Word(name)) = tokens.get(at + 2) {
                        self.modules[module].items.insert((*name).to_owned());
                        self.macros.insert((*name).to_owned(), file.to_owned());
                    }
                }
                (Token::Mark('{'), _) => depth += 1,
                (Token::Mark('}'), _) => {
                    if depth == floor && open.len() > 1 {
                        open.pop();
                    }
                    depth = depth.saturating_sub(1);
                }
                (Token::Word(word), _) => {
                    let last = at.checked_sub(1).map(|last| tokens[last]);
                    let visibility = last == Some(Token::Word("in")) && at >= 3 && tokens[at - 3] == Token::Word("pub");
                    if !visibility && !matches!(last, Some(Token::Mark('.') | Token::Colons)) {
                        let mut path = vec![(*word).to_owned()];
                        while let (Some(Token::Colons), Some(Token::Word(more))) =
                            (tokens.get(at + 1), tokens.get(at + 2))
                        {
                            path.push((*more).to_owned());
                            at += 2;
                        }
                        self.modules[module].words.insert((*word).to_owned());
                        if next == Some(&Token::Mark('!')) {
                            self.modules[module].calls.insert((*word).to_owned());
                        }
                        if path.len() > 1 {
                            self.modules[module].paths.insert(path);
                        }
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Some(of_file)
    }

    fn add(&mut self, file: &str, parent: Option<usize>) -> usize {
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// What a path means that stands in this module.
    fn resolve(&self, from: usize, path: &[String], seen: &mut BTreeSet<(usize, Vec<String>)>) -> Vec<Target> {
        let (mut here, mut rest, mut sure) = (from, path, false);
        while let Some((first, more)) = rest.split_first() {
            here = match first.as_str() {
                "crate" => 0,
                "self" => here,
                "super" => self.modules[here].parent.unwrap_or(0),
                _ => break,
            };
            (rest, sure) = (more, true);
        }
        self.walk(here, rest, sure, seen)
    }

    /// What this name, and those after it, mean in a module. A module and an item may share a name. A name that the
    /// module must have, and that is not seen there, was made by a macro.
    fn walk(&self, here: usize, rest: &[String], sure: bool, seen: &mut BTreeSet<(usize, Vec<String>)>) -> Vec<Target> {
        let Some((name, more)) = rest.split_first() else {
            return vec![Target::Module(here)];
        };
        if rest.len() > LONGEST || !seen.insert((here, rest.to_vec())) {
            return Vec::new();
        }
        let module = &self.modules[here];
        let mut found = Vec::new();
        if let Some(child) = module.children.get(name) {
            found.extend(self.walk(*child, more, true, seen));
        }
        if module.items.contains(name) && (more.is_empty() || found.is_empty()) {
            found.push(Target::File(module.file.clone()));
        }
        let (mut bound, mut handed) = (module.children.contains_key(name) && !more.is_empty(), Vec::<usize>::new());
        for one in &module.uses {
            if one.name == *name {
                bound = true;
                found.extend(self.resolve(here, &[one.path.as_slice(), more].concat(), seen));
            } else if one.name == "*" {
                handed.extend(&one.modules);
            }
        }
        if bound || found.iter().any(|target| matches!(target, Target::File(_))) {
            return found;
        }
        for other in handed {
            found.extend(self.walk(other, rest, false, seen));
        }
        if found.is_empty() && sure {
            found.push(Target::File(self.macros.get(name).unwrap_or(&module.file).clone()));
        }
        found
    }

    /// Finds the modules that `*` stands behind. One that is only seen through another comes in the second round.
    fn spread(&mut self) {
        for at in (0..self.modules.len()).chain(0..self.modules.len()) {
            for one in 0..self.modules[at].uses.len() {
                let of = &self.modules[at].uses[one];
                if of.name == "*" {
                    let targets = self.resolve(at, &of.path, &mut BTreeSet::new());
                    let modules = targets
                        .iter()
                        .filter_map(|target| if let Target::Module(other) = target { Some(*other) } else { None });
                    let modules = modules.filter(|other| *other != at).collect();
                    self.modules[at].uses[one].modules = modules;
                }
            }
        }
    }

    /// Adds the names that each file takes from others.
    fn names(&self, names: &mut Names) {
        for (at, module) in self.modules.iter().enumerate() {
            let mut take = |name: &str, targets: Vec<Target>| {
                for target in targets {
                    if let Target::File(file) = target
                        && file != module.file
                    {
                        names.entry((module.file.clone(), file)).or_default().insert(name.to_owned());
                    }
                }
            };
            for one in &module.uses {
                let targets = self.resolve(at, &one.path, &mut BTreeSet::new());
                for (other, word) in
                    one.modules.iter().flat_map(|other| module.words.iter().map(move |word| (*other, word)))
                {
                    let own = module.items.contains(word) || module.uses.iter().any(|one| one.name == *word);
                    if !own {
                        take(word, self.walk(other, std::slice::from_ref(word), false, &mut BTreeSet::new()));
                    }
                }
                // A module that no path here begins with is imported for a macro, which makes such paths.
                let for_macro = !one.public && one.name != "*" && !module.paths.iter().any(|path| path[0] == one.name);
                if for_macro {
                    let files = targets.iter().filter_map(|target| match target {
                        Target::Module(other) => Some(Target::File(self.modules[*other].file.clone())),
                        Target::File(_) => None,
                    });
                    take(&one.name, files.collect());
                }
                if !one.public || module.words.contains(&one.name) {
                    take(&one.name, targets);
                }
            }
            for path in &module.paths {
                take(path.last().map_or("", String::as_str), self.resolve(at, path, &mut BTreeSet::new()));
            }
            for (name, file) in self.macros.iter().filter(|(name, _)| module.calls.contains(*name)) {
                take(name, vec![Target::File(file.clone())]);
            }
        }
    }
}

/// The names that files take from others of their crate, by the crate's folder.
pub(super) fn named(sources: &[Source]) -> BTreeMap<String, Names> {
    let files: BTreeMap<&str, &str> =
        sources.iter().filter(|s| s.is("rs")).map(|s| (s.path.as_str(), s.text.as_str())).collect();
    let mut crates: BTreeMap<String, Names> = BTreeMap::new();
    for root in files.keys() {
        let Some((place, inside)) = root.split_once("/src/") else { continue };
        let program = inside.strip_prefix("bin/").is_some_and(|name| !name.contains('/'));
        if !program && inside != "lib.rs" && inside != "main.rs" {
            continue;
        }
        let mut tree = Tree { files: &files, modules: Vec::new(), macros: BTreeMap::new() };
        let dir = root.rsplit_once('/').map_or("", |(dir, _)| dir);
        tree.read(root, None, dir);
        tree.spread();
        tree.names(crates.entry(place.to_owned()).or_default());
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrows of a crate of these files, as `a -> b: names`.
    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(&beside("crates/a/src/lib.rs", &format!("{path}.rs")), text))
            .collect();
        let short = |path: &str| path.trim_start_matches("crates/a/src/").trim_end_matches(".rs").to_owned();
        let named = named(&sources).remove("crates/a").expect("the crate");
        let line = |((from, to), names): (&(String, String), &BTreeSet<String>)| {
            format!("{} -> {}: {}", short(from), short(to), names.iter().cloned().collect::<Vec<_>>().join(" "))
        };
        named.iter().map(line).collect()
    }

    #[test]
    fn names_are_followed_to_the_file_that_has_them() {
        type Case = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);
        let table: &[Case] = &[
            (
                "use, path, and path in a macro",
                &[
                    ("lib", "mod b; mod c;"),
                    ("b", "use crate::c::D; fn f() { vec![crate::c::e(), super::c::G] }"),
                    ("c", ""),
                ],
                &["b -> c: D G e"],
            ),
            (
                "what a parent hands on belongs to the child that defines it, and handing on is no use",
                &[
                    ("lib", "mod m; pub use m::X; mod n;"),
                    ("m/mod", "mod x; mod y; pub use self::x::X; pub use y::*;"),
                    ("m/x", "pub struct X;"),
                    ("m/y", "use super::X; pub fn y() {}"),
                    ("n", "use crate::{X as Z, m}; fn f() { m::y(); }"),
                ],
                &["m/y -> m/x: X", "n -> m/x: Z", "n -> m/y: y"],
            ),
            (
                "what is handed on and used is used",
                &[("lib", "mod m; pub(crate) use m::X; fn f(_: X) {}"), ("m", "pub struct X; use crate::f;")],
                &["lib -> m: X", "m -> lib: f"],
            ),
            (
                "all that a parent has, and what it has imported itself",
                &[
                    ("lib", "mod b; use std::fs; use c::C; fn one() {} fn two() {} mod c;"),
                    ("b", "use super::*; fn f(c: C) { one(); x.two(); fs::read() }"),
                    ("c", "pub struct C;"),
                ],
                &["b -> c: C", "b -> lib: one", "lib -> c: C"],
            ),
            (
                "modules in braces are their file's; folders of modules below them",
                &[("lib", "mod a { mod b; pub fn f() {} }"), ("a/b", "use super::f; use super::super::a::f as g;")],
                &["a/b -> lib: f g"],
            ),
            (
                "tests, comments, strings, members and other crates are not counted",
                &[
                    ("lib", "mod b; #[cfg(test)] mod tests; pub fn f() {}"),
                    ("tests", "use crate::f;"),
                    (
                        "b",
                        "// crate::f\n#[cfg(test)] use crate::f; #[cfg(test)] mod t { use crate::f; } fn g() \
                            { \"crate::f\"; a.f(); std::f() }",
                    ),
                ],
                &[],
            ),
            (
                "attributes that name a function name it",
                &[("lib", "mod b; pub fn f() {}"), ("b", "struct S { #[serde(default = \"crate::f\")] a: u8 }")],
                &["b -> lib: f"],
            ),
            (
                "macros, by name or through the crate, and names that a macro has made",
                &[
                    ("lib", "#[macro_use] mod b; mod c;"),
                    ("b", "macro_rules! ids { ($n:ident) => { struct $n; } } ids!(Job);"),
                    ("c", "use crate::b::Job; ids!(Node);"),
                ],
                &["c -> b: Job ids"],
            ),
            (
                "a module and a function of one name",
                &[
                    ("lib", "mod b; mod c;"),
                    ("b/mod", "mod b; pub use b::b;"),
                    ("b/b", "pub fn b() {} pub fn d() {}"),
                    ("c", "use crate::b; use tokio::tokio; fn f() { b::b() }"),
                ],
                &["c -> b/b: b"],
            ),
            (
                "a file of somewhere else",
                &[
                    ("lib", "#[path = \"../../b/src/c.rs\"] mod c; mod d; fn f() { c::g() }"),
                    ("../../b/src/c", "pub fn g() {}"),
                    ("d", "use crate::c::g;"),
                ],
                &["d -> crates/b/src/c: g", "lib -> crates/b/src/c: g"],
            ),
            (
                "a module that only a macro names",
                &[("lib", "mod b; mod c;"), ("b", "use crate::c; routes! { GET c page }"), ("c", "pub fn page() {}")],
                &["b -> c: c"],
            ),
            (
                "a program beside the library",
                &[("main", "mod p; use b::X;"), ("p", "use crate::q;"), ("lib", "mod b;"), ("b", "")],
                &["p -> main: q"],
            ),
        ];
        for (what, files, expected) in table {
            assert_eq!(arrows(files), *expected, "{what}");
        }
    }
}
