//! What a struct and its attributes say; what makes no sense is refused here, at its place.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, ExprLit, Fields, GenericArgument, Ident, Lit, LitStr, Meta,
    PathArguments, Result, Type, ext::IdentExt, meta::ParseNestedMeta,
};

/// A block.
#[derive(Default)]
pub(crate) struct Block {
    pub(crate) name: Option<Ident>,
    pub(crate) doc: String,
    /// Inner blocks are merged over outer ones: it has `inherit`, `defaults` and a getter for each field.
    pub(crate) policy: bool,
    /// `Default` has the defaults in it, for what is read without them.
    pub(crate) filled: bool,
    /// Each field says whether a change of it replaces the allocation.
    pub(crate) decides: bool,
    /// Fields without a Rust field of their own.
    pub(crate) extra: Option<Expr>,
    pub(crate) fields: Vec<Field>,
}

/// What a change of a field does to allocations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    InPlace,
    Replaces,
    ReplacesLocal,
    Inside,
}

/// A field.
pub(crate) struct Field {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) json: String,
    pub(crate) doc: String,
    pub(crate) options: Options,
}

/// What `#[job(…)]` says about a field.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) hcl: Option<LitStr>,
    pub(crate) json: Option<LitStr>,
    pub(crate) api: bool,
    pub(crate) label: bool,
    pub(crate) required: bool,
    pub(crate) kind: Option<Expr>,
    pub(crate) shape: Option<Expr>,
    pub(crate) null: bool,
    pub(crate) left_out: bool,
    pub(crate) written: bool,
    pub(crate) kept: bool,
    /// The comparison needs more than the two values: it is written in `updates`.
    pub(crate) by_hand: bool,
    pub(crate) effect: Option<Effect>,
    /// Of the servers, and of the client of the API.
    pub(crate) server: Option<TokenStream>,
    pub(crate) client: Option<TokenStream>,
    pub(crate) says: Option<LitStr>,
}

const FIELD_OPTIONS: &str = "there are: hcl, json, api, label, required, kind, shape, null, left_out, default, \
    server, client, written, says, \
                             in_place, replaces, replaces_local, inside, by_hand, kept";

pub(crate) fn struct_of(input: &DeriveInput) -> Result<Block> {
    let only = "Described is derived for structs with named fields: each field is one of the block";
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), only));
    };
    let Fields::Named(named) = &data.fields else {
        return Err(Error::new(input.ident.span(), only));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new(
            input.ident.span(),
            "Described cannot be derived for a generic struct: its table is one fixed value",
        ));
    }
    let mut block = Block { name: Some(input.ident.clone()), doc: doc(&input.attrs), ..Block::default() };
    for attribute in ours(&input.attrs, "job") {
        attribute.parse_nested_meta(|meta| {
            match name_of(&meta).as_str() {
                "policy" => block.policy = true,
                "filled" => block.filled = true,
                "decides" => block.decides = true,
                "extra" => block.extra = Some(meta.value()?.parse()?),
                name => {
                    return Err(meta.error(format!(
                        "`{name}` is no option of a block; there are: policy, filled, decides, extra"
                    )));
                }
            }
            Ok(())
        })?;
    }
    let pascal = serde(&input.attrs, "rename_all").is_some_and(|rule| rule == "PascalCase");
    block.fields = named.named.iter().map(|field| field_of(field, pascal, block.decides)).collect::<Result<_>>()?;
    Ok(block)
}

fn ours<'a>(attributes: &'a [Attribute], name: &'static str) -> impl Iterator<Item = &'a Attribute> {
    attributes.iter().filter(move |attribute| attribute.path().is_ident(name))
}

fn name_of(meta: &ParseNestedMeta<'_>) -> String {
    meta.path.to_token_stream().to_string()
}

/// A text that serde is told: it has the names of the API already.
fn serde(attributes: &[Attribute], wanted: &str) -> Option<String> {
    let mut found = None;
    for attribute in ours(attributes, "serde") {
        // What is not of this form is for serde to judge.
        let _ = attribute.parse_nested_meta(|meta| {
            if meta.input.peek(syn::Token![=]) {
                let value: Lit = meta.value()?.parse()?;
                if let (true, Lit::Str(text)) = (meta.path.is_ident(wanted), value) {
                    found = Some(text.value());
                }
            }
            Ok(())
        });
    }
    found
}

fn field_of(field: &syn::Field, pascal: bool, decides: bool) -> Result<Field> {
    let ident = field.ident.clone().unwrap_or_else(|| Ident::new("_", Span::call_site()));
    let mut options = Options::default();
    for attribute in ours(&field.attrs, "job") {
        attribute.parse_nested_meta(|meta| options.take(&meta, &field.ty))?;
    }
    if decides && options.effect.is_none() {
        let why = "does a change of it replace allocations? Say in_place, replaces, replaces_local (a remote instance \
            stays) or inside";
        return Err(Error::new(ident.span(), why));
    }
    let doc = doc(&field.attrs);
    if doc.is_empty() {
        return Err(Error::new(ident.span(), "the doc comment is what the reference says of it"));
    }
    let plain = ident.unraw().to_string();
    let json = match &options.json {
        Some(json) => json.value(),
        None => serde(&field.attrs, "rename").unwrap_or_else(|| if pascal { pascal_case(&plain) } else { plain }),
    };
    Ok(Field { ty: field.ty.clone(), json, doc, options, ident })
}

fn pascal_case(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    name.split('_').map(word).collect()
}

impl Options {
    fn take(&mut self, meta: &ParseNestedMeta<'_>, ty: &Type) -> Result<()> {
        match name_of(meta).as_str() {
            "hcl" => self.hcl = Some(meta.value()?.parse()?),
            "json" => self.json = Some(meta.value()?.parse()?),
            "says" => self.says = Some(meta.value()?.parse()?),
            "kind" => self.kind = Some(meta.value()?.parse()?),
            "shape" => self.shape = Some(meta.value()?.parse()?),
            "api" => self.api = true,
            "label" => self.label = true,
            "required" => self.required = true,
            "null" => self.null = true,
            "left_out" => self.left_out = true,
            "written" => self.written = true,
            "kept" => self.kept = true,
            "by_hand" => self.by_hand = true,
            "default" => {
                let literal = literal(&meta.value()?.parse()?, ty)?;
                self.server = Some(literal.clone());
                self.client = Some(literal);
            }
            "server" => self.server = Some(literal(&meta.value()?.parse()?, ty)?),
            "client" => self.client = Some(literal(&meta.value()?.parse()?, ty)?),
            "in_place" => self.changes(meta, Effect::InPlace)?,
            "replaces" => self.changes(meta, Effect::Replaces)?,
            "replaces_local" => self.changes(meta, Effect::ReplacesLocal)?,
            "inside" => self.changes(meta, Effect::Inside)?,
            other => return Err(meta.error(format!("`{other}` is no option of a field; {FIELD_OPTIONS}"))),
        }
        Ok(())
    }

    fn changes(&mut self, meta: &ParseNestedMeta<'_>, effect: Effect) -> Result<()> {
        match self.effect.replace(effect) {
            None => Ok(()),
            Some(_) => Err(meta.error("a field says one of in_place, replaces, replaces_local and inside")),
        }
    }
}

/// The type within `Option`, and whether there is one.
pub(crate) fn inner(ty: &Type) -> (&Type, bool) {
    let Type::Path(path) = ty else { return (ty, false) };
    let Some(last) = path.path.segments.last().filter(|last| last.ident == "Option") else { return (ty, false) };
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return (ty, false) };
    match arguments.args.first() {
        Some(GenericArgument::Type(inner)) => (inner, true),
        _ => (ty, false),
    }
}

fn last_name(ty: &Type) -> String {
    match inner(ty).0 {
        Type::Path(path) => path.path.segments.last().map_or_else(String::new, |last| last.ident.to_string()),
        _ => String::new(),
    }
}

/// A default as the table has it.
fn literal(expression: &Expr, ty: &Type) -> Result<TokenStream> {
    let duration = last_name(ty) == "GoDuration";
    Ok(match expression {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if duration => {
            let nanos = nanos(&text.value())
                .ok_or_else(|| Error::new(text.span(), "no duration: write it like \"5s\" or \"1h30m\""))?;
            quote!(crate::schema::Literal::Duration(#nanos))
        }
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => quote!(crate::schema::Literal::Text(#text)),
        Expr::Lit(ExprLit { lit: Lit::Bool(truth), .. }) => quote!(crate::schema::Literal::Bool(#truth)),
        Expr::Array(items) => quote!(crate::schema::Literal::Texts(&#items)),
        Expr::Path(path) if matches!(last_name(ty).as_str(), "String" | "JobType" | "Namespace") => {
            quote!(crate::schema::Literal::Text(#path))
        }
        number => quote!(crate::schema::Literal::Int((#number) as i64)),
    })
}

fn nanos(text: &str) -> Option<i64> {
    let (mut total, mut digits) = (0i64, String::new());
    let mut complete = false;
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            complete = false;
            continue;
        }
        let unit = match c {
            's' => 1_000_000_000,
            'm' => 60_000_000_000,
            'h' => 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(digits.parse::<i64>().ok()?.checked_mul(unit)?)?;
        digits.clear();
        complete = true;
    }
    complete.then_some(total)
}

/// The doc comment as running text.
fn doc(attributes: &[Attribute]) -> String {
    let mut words = Vec::new();
    for attribute in ours(attributes, "doc") {
        let Meta::NameValue(pair) = &attribute.meta else { continue };
        let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &pair.value else { continue };
        words.extend(text.value().split_whitespace().map(str::to_owned));
    }
    words.join(" ")
}
