//! The implementation as calls of `driver_sdk::derive`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;

use crate::parse::{Fallback, Field, Literal, Struct};

pub(crate) fn implementation(parsed: &Struct) -> TokenStream {
    let Struct { name, default, impl_default, fields } = parsed;
    let shapes = fields.iter().map(|field| shape(field, *default));
    let reads = fields.iter().map(|field| read(field, *default));
    let checks = fields.iter().filter_map(check);
    let default_impl = impl_default.then(|| {
        let values = fields.iter().map(default_value);
        quote! {
            #[automatically_derived]
            impl ::core::default::Default for #name {
                fn default() -> Self {
                    Self { #(#values),* }
                }
            }
        }
    });
    quote! {
        #default_impl

        #[automatically_derived]
        impl ::driver_sdk::DriverConfig for #name {
            fn schema() -> ::driver_sdk::schema::Spec {
                #(#checks)*
                ::driver_sdk::schema::object::<&str>([#(#shapes),*])
            }

            fn from_object(mut object: ::driver_sdk::derive::Object) -> ::core::result::Result<Self,
            ::driver_sdk::derive::Misfit> {
                let _ = &mut object;
                ::core::result::Result::Ok(Self { #(#reads),* })
            }
        }

        #[automatically_derived]
        impl ::driver_sdk::derive::FieldType for #name {
            type Kind = ::driver_sdk::derive::Block;

            fn field() -> ::driver_sdk::schema::Field {
                ::driver_sdk::schema::block(<Self as ::driver_sdk::DriverConfig>::schema())
            }

            fn read(value: ::driver_sdk::derive::Value) -> ::core::result::Result<Self, ::driver_sdk::derive::Misfit> {
                <Self as ::driver_sdk::DriverConfig>::from_object(::driver_sdk::derive::Object::new(value)?)
            }
        }
    }
}

/// The schema of a field, as an entry of its object.
fn shape(field: &Field, struct_default: bool) -> TokenStream {
    let Field { ty, key, description, options, optional, .. } = field;
    let spanned = ty.span();
    let base = if let Some(expression) = &options.attr {
        quote!(::driver_sdk::schema::attr(#expression))
    } else if options.block {
        quote_spanned!(spanned=> <#ty as ::driver_sdk::derive::FreeKeys>::block_field())
    } else if let Some(label) = &options.label {
        quote_spanned!(spanned=> <#ty as ::driver_sdk::derive::Labelled>::labelled_field(#label))
    } else {
        quote_spanned!(spanned=> <#ty as ::driver_sdk::derive::FieldType>::field())
    };
    let items = (options.min_items.is_some() || options.max_items.is_some()).then(|| {
        // Zero means no limit on the wire as well.
        let (min, max) = (options.min_items.unwrap_or(0), options.max_items.unwrap_or(0));
        quote_spanned!(spanned=> .items_of::<#ty>(#min, #max))
    });
    let presence = match &options.default {
        Some(Fallback::Value(value)) => {
            let text = expression(value);
            quote!(.default(#text))
        }
        Some(Fallback::OfType) => quote!(),
        None if options.required => quote!(.required()),
        None if struct_default => quote!(),
        None if options.attr.is_some() => {
            let required = !optional;
            quote!(.required_if(#required))
        }
        None => quote!(.required_if(<#ty as ::driver_sdk::derive::FieldType>::REQUIRED)),
    };
    quote!((#key, #base #items #presence .describe(#description)))
}

/// How the field is filled.
fn read(field: &Field, struct_default: bool) -> TokenStream {
    let Field { ty, key, options, ident, .. } = field;
    let absent = match &options.default {
        Some(Fallback::Value(value)) => {
            let value = wire_value(value);
            quote!(::driver_sdk::derive::Absent::Value(#value))
        }
        Some(Fallback::OfType) => quote!(::driver_sdk::derive::Absent::Make(::core::default::Default::default)),
        None if options.required => quote!(::driver_sdk::derive::Absent::Refuse),
        None if struct_default => quote!(::driver_sdk::derive::Absent::Make(::core::default::Default::default)),
        None if options.attr.is_some() && field.optional => {
            quote!(::driver_sdk::derive::Absent::Make(::core::default::Default::default))
        }
        None if options.attr.is_some() => quote!(::driver_sdk::derive::Absent::Refuse),
        None => quote!(::driver_sdk::derive::Absent::AsType),
    };
    let take = if options.attr.is_some() { quote!(take_deserialized) } else { quote!(take) };
    quote!(#ident: object.#take::<#ty>(#key, #absent)?)
}

/// How the field of a value that nobody has configured is filled.
fn default_value(field: &Field) -> TokenStream {
    let Field { ty, key, options, ident, .. } = field;
    match &options.default {
        Some(Fallback::Value(value)) => {
            let value = wire_value(value);
            let made = if options.attr.is_some() { quote!(default_deserialized) } else { quote!(default_of) };
            quote!(#ident: ::driver_sdk::derive::#made::<#ty>(#key, #value))
        }
        _ => quote!(#ident: ::core::default::Default::default()),
    }
}

/// A literal must be one that the field's type takes.
fn check(field: &Field) -> Option<TokenStream> {
    let Some(Fallback::Value(value)) = &field.options.default else {
        return None;
    };
    if field.options.attr.is_some() {
        return None;
    }
    let ty = &field.ty;
    let typed = typed(value);
    Some(quote_spanned!(ty.span()=> ::driver_sdk::derive::fits::<#ty, _>(#typed);))
}

/// As Rust, without a type of its own.
fn typed(value: &Literal) -> TokenStream {
    match value {
        Literal::Text(text) => quote!(#text),
        Literal::Truth(truth) => quote!(#truth),
        Literal::Integer { negative, digits, span } => {
            let (minus, mut digits) = (minus(*negative), proc_macro2::Literal::u64_unsuffixed(*digits));
            // As written by the author: the compiler looks at the range of such literals only.
            digits.set_span(*span);
            quote!(#minus #digits)
        }
        Literal::Decimal { negative, value } => {
            let minus = minus(*negative);
            quote!(#minus #value)
        }
        Literal::List(items) if items.is_empty() => quote!(::driver_sdk::derive::EmptyList),
        Literal::List(items) => {
            let items = items.iter().map(typed);
            quote!([#(#items),*])
        }
    }
}

fn minus(negative: bool) -> Option<syn::Token![-]> {
    negative.then(Default::default)
}

/// As a value of the wire.
fn wire_value(value: &Literal) -> TokenStream {
    let value = match value {
        Literal::Text(text) => quote!(#text),
        Literal::Truth(truth) => quote!(#truth),
        Literal::Integer { negative: false, digits, .. } => quote!(#digits),
        Literal::Integer { negative: true, digits, .. } => {
            let value = 0i64.wrapping_sub_unsigned(*digits);
            quote!(#value)
        }
        Literal::Decimal { negative, value } => {
            let minus = minus(*negative);
            quote!(#minus #value)
        }
        Literal::List(items) => {
            let items = items.iter().map(wire_value);
            return quote!(::driver_sdk::derive::Value::Array(::std::vec![#(#items),*]));
        }
    };
    quote!(::driver_sdk::derive::Value::from(#value))
}

/// As an expression of the configuration language.
fn expression(value: &Literal) -> String {
    let sign = |negative: bool| if negative { "-" } else { "" };
    match value {
        Literal::Text(text) => quoted(&text.value()),
        Literal::Truth(truth) => truth.value.to_string(),
        Literal::Integer { negative, digits, .. } => format!("{}{digits}", sign(*negative)),
        Literal::Decimal { negative, value } => format!("{}{}", sign(*negative), value.base10_digits()),
        Literal::List(items) => format!("[{}]", items.iter().map(expression).collect::<Vec<_>>().join(", ")),
    }
}

/// Quoted, and without meaning as a template.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' | '%' if rest.peek() == Some(&'{') => {
                out.push(c);
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_and_no_template() {
        assert_eq!(quoted("a"), "\"a\"");
        assert_eq!(quoted("a\"b\\c\n${x}%{y}$5%"), r#""a\"b\\c\n$${x}%%{y}$5%""#);
    }
}
