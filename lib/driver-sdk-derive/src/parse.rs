//! What a struct and its attributes say; everything that makes no sense is refused here, at its place.

use proc_macro2::Span;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Fields, Ident, Lit, LitBool, LitFloat, LitInt, LitStr, Meta, Result,
    Token, Type,
};

/// A struct to derive for.
pub(crate) struct Struct {
    pub(crate) name: Ident,
    /// Fields that say nothing else are filled with their type's default.
    pub(crate) default: bool,
    /// `Default` is implemented as well.
    pub(crate) impl_default: bool,
    pub(crate) fields: Vec<Field>,
}

/// One field.
pub(crate) struct Field {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    /// Its name in a configuration.
    pub(crate) key: String,
    /// Its doc comment.
    pub(crate) description: String,
    pub(crate) options: Options,
    /// The type is written as `Option<…>`.
    pub(crate) optional: bool,
}

/// What `#[config(…)]` says about a field.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) rename: Option<LitStr>,
    pub(crate) default: Option<Fallback>,
    pub(crate) required: bool,
    pub(crate) block: bool,
    pub(crate) label: Option<LitStr>,
    pub(crate) attr: Option<LitStr>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
}

/// The value where none is given.
pub(crate) enum Fallback {
    /// That of the type.
    OfType,
    /// A literal.
    Value(Literal),
}

/// A literal of a default.
pub(crate) enum Literal {
    Text(LitStr),
    Truth(LitBool),
    /// Sign and digits; within the range of the wire's integers.
    Integer {
        negative: bool,
        digits: u64,
        span: Span,
    },
    /// Sign and decimal digits.
    Decimal {
        negative: bool,
        value: LitFloat,
    },
    List(Vec<Literal>),
}

const FIELD_OPTIONS: &str = "there are: rename, default, required, block, label, attr, min_items, max_items";

pub(crate) fn struct_of(input: &DeriveInput) -> Result<Struct> {
    let only = "DriverConfig is derived for structs with named fields: each field is a key of the configuration";
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), only));
    };
    let fields = match &data.fields {
        Fields::Named(fields) => fields,
        Fields::Unnamed(_) | Fields::Unit => return Err(Error::new(input.ident.span(), only)),
    };
    if !input.generics.params.is_empty() {
        let why = "DriverConfig cannot be derived for a generic struct: its schema is one fixed value; write a struct \
            per type";
        return Err(Error::new(input.generics.span(), why));
    }
    let (mut default, mut impl_default) = (false, false);
    for attribute in config_attributes(&input.attrs) {
        attribute.parse_nested_meta(|meta| {
            match name_of(&meta).as_str() {
                "default" => default = true,
                "impl_default" => impl_default = true,
                name => {
                    return Err(
                        meta.error(format!("`{name}` is no option of a struct; there are: default, impl_default"))
                    );
                }
            }
            Ok(())
        })?;
    }
    let fields: Vec<Field> = fields.named.iter().map(field_of).collect::<Result<_>>()?;
    for (n, field) in fields.iter().enumerate() {
        if fields[..n].iter().any(|before| before.key == field.key) {
            return Err(Error::new(
                field.ident.span(),
                format!("two fields are called `{}` in the configuration", field.key),
            ));
        }
    }
    Ok(Struct { name: input.ident.clone(), default, impl_default, fields })
}

fn config_attributes(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("config"))
}

fn name_of(meta: &ParseNestedMeta<'_>) -> String {
    meta.path.to_token_stream().to_string()
}

fn field_of(field: &syn::Field) -> Result<Field> {
    let ident = field.ident.clone().unwrap_or_else(|| Ident::new("_", Span::call_site()));
    let mut options = Options::default();
    for attribute in config_attributes(&field.attrs) {
        attribute.parse_nested_meta(|meta| options.take(&meta))?;
    }
    let optional = is_option(&field.ty);
    options.check(&ident, optional)?;
    let key = match &options.rename {
        Some(name) => name.value(),
        None => ident.unraw().to_string(),
    };
    Ok(Field { ty: field.ty.clone(), key, description: description(&field.attrs), options, optional, ident })
}

/// A guess from how the type is written, for what cannot be said of types in general.
fn is_option(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "Option"),
        _ => false,
    }
}

impl Options {
    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let name = name_of(meta);
        let twice = match name.as_str() {
            "rename" => self.rename.replace(named(meta)?).is_some(),
            "label" => self.label.replace(named(meta)?).is_some(),
            "attr" => self.attr.replace(meta.value()?.parse()?).is_some(),
            "min_items" => self.min_items.replace(count(meta)?).is_some(),
            "max_items" => self.max_items.replace(count(meta)?).is_some(),
            "required" => std::mem::replace(&mut self.required, true),
            "block" => std::mem::replace(&mut self.block, true),
            "default" => {
                let default = if meta.input.peek(Token![=]) {
                    Fallback::Value(literal(meta.value()?, true)?)
                } else {
                    Fallback::OfType
                };
                self.default.replace(default).is_some()
            }
            other => return Err(meta.error(format!("`{other}` is no option of a field; {FIELD_OPTIONS}"))),
        };
        if twice {
            return Err(meta.error(format!("`{name}` is given twice")));
        }
        Ok(())
    }

    fn check(&self, ident: &Ident, optional: bool) -> Result<()> {
        let wrong = |text: &str| Err(Error::new(ident.span(), text));
        if self.required && self.default.is_some() {
            return wrong("`required` and `default` exclude each other: what has a default need not be given");
        }
        if optional && self.default.is_some() {
            return wrong("a field with a default is never absent: write its type without `Option`");
        }
        if optional && self.required {
            return wrong("a required field is never absent: write its type without `Option`");
        }
        let forms = [("attr", self.attr.is_some()), ("block", self.block), ("label", self.label.is_some())];
        let given: Vec<&str> = forms.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if let [one, another, ..] = given[..] {
            return wrong(&format!("`{one}` and `{another}` exclude each other: they are different forms of a field"));
        }
        if let (Some(min), Some(max)) = (self.min_items, self.max_items)
            && min > max
        {
            return wrong("`min_items` is more than `max_items`");
        }
        Ok(())
    }
}

fn count(meta: &ParseNestedMeta<'_>) -> Result<u64> {
    meta.value()?.parse::<LitInt>()?.base10_parse()
}

/// A name that a configuration language takes for one.
fn named(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let name: LitStr = meta.value()?.parse()?;
    let text = name.value();
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) {
        return Ok(name);
    }
    let why = format!("{text:?} is no name: it begins with a letter or _ and goes on with letters, digits, _ and -");
    Err(Error::new(name.span(), why))
}

fn literal(input: ParseStream<'_>, lists: bool) -> Result<Literal> {
    let expected = "a default is a literal: text, a number, true, false, or a list of these in brackets";
    if input.peek(syn::token::Bracket) {
        if !lists {
            return Err(input.error("a default may be a list of one level only"));
        }
        let content;
        syn::bracketed!(content in input);
        let mut items = Vec::new();
        while !content.is_empty() {
            items.push(literal(&content, false)?);
            if !content.is_empty() {
                content.parse::<Token![,]>()?;
            }
        }
        return Ok(Literal::List(items));
    }
    let minus: Option<Token![-]> = input.parse()?;
    let value: Lit = input.parse().map_err(|error| Error::new(error.span(), expected))?;
    if !value.suffix().is_empty() {
        return Err(Error::new(value.span(), "a default has no suffix: the field's type is its type"));
    }
    let negative = minus.is_some();
    match value {
        Lit::Str(text) if !negative => Ok(Literal::Text(text)),
        Lit::Bool(truth) if !negative => Ok(Literal::Truth(truth)),
        Lit::Int(number) => {
            let digits: u64 = number.base10_parse()?;
            if negative && digits > i64::MIN.unsigned_abs() {
                return Err(Error::new(number.span(), "a default is at least -2^63"));
            }
            Ok(Literal::Integer { negative, digits, span: number.span() })
        }
        Lit::Float(value) => Ok(Literal::Decimal { negative, value }),
        other => Err(Error::new(other.span(), expected)),
    }
}

/// The doc comment as running text: lines joined, paragraphs apart.
fn description(attributes: &[Attribute]) -> String {
    let mut paragraphs: Vec<String> = vec![String::new()];
    for attribute in attributes {
        let Meta::NameValue(pair) = &attribute.meta else { continue };
        let Expr::Lit(value) = &pair.value else { continue };
        let (true, Lit::Str(text)) = (pair.path.is_ident("doc"), &value.lit) else { continue };
        for line in text.value().split('\n').map(str::trim) {
            match paragraphs.last_mut() {
                _ if line.is_empty() => paragraphs.push(String::new()),
                Some(last) if !last.is_empty() => {
                    last.push(' ');
                    last.push_str(line);
                }
                Some(last) => last.push_str(line),
                None => {}
            }
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs.join("\n")
}
