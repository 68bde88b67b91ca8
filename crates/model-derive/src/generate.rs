//! The implementation, as calls of `model::schema`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;

use crate::parse::{Block, Effect, Field, inner};

pub(crate) fn implementation(block: &Block) -> TokenStream {
    let Block { name, doc, policy, filled, decides, extra, fields } = block;
    let rows = fields.iter().map(row);
    let extra = extra.as_ref().map_or_else(|| quote!(&[]), |extra| quote!(#extra));
    let fills = fields.iter().filter(|field| !filled || inner(&field.ty).1).map(fill);
    let replaced = decides.then(|| {
        let checks = fields.iter().filter_map(check);
        quote! {
            fn replaced_by(&self, other: &Self) -> ::core::option::Option<::std::string::String> {
                #(#checks)*
                ::core::option::Option::None
            }
        }
    });
    let policy_methods = policy.then(|| policy_methods(block));
    let same = fields.iter().any(|field| field.options.kept).then(|| {
        let compared = fields.iter().filter(|field| !field.options.kept).map(|field| &field.ident);
        quote! {
            impl #name {
                /// Whether they say the same but for what the servers keep in them.
                pub(crate) fn same_specification(&self, other: &Self) -> bool {
                    true #(&& self.#compared == other.#compared)*
                }
            }
        }
    });
    let default = filled.then(|| {
        let values = fields.iter().map(|field| {
            let (ident, ty) = (&field.ident, &field.ty);
            match &field.options.server {
                Some(literal) => quote!(#ident: crate::schema::value::<#ty>(#literal)),
                None => quote!(#ident: ::core::default::Default::default()),
            }
        });
        quote! {
            #[automatically_derived]
            impl ::core::default::Default for #name {
                fn default() -> Self {
                    Self { #(#values),* }
                }
            }
        }
    });
    let title = name.as_ref().map(ToString::to_string);
    quote! {
        #[automatically_derived]
        impl crate::schema::Described for #name {
            const BLOCK: &'static crate::schema::Block = &crate::schema::Block {
                name: #title,
                doc: #doc,
                policy: #policy,
                fields: &[#(#rows),*],
                extra: #extra,
            };

            fn fill_defaults(&mut self) {
                #(#fills)*
            }

            #replaced
        }

        #[automatically_derived]
        impl crate::schema::Held for #name {
            const SHAPE: crate::schema::Shape = crate::schema::Shape::One(<Self as crate::schema::Described>::BLOCK);

            fn fill_inside(&mut self) {
                if !#policy {
                    crate::schema::Described::fill_defaults(self);
                }
            }

            fn replaced_inside(&self, other: &Self) -> ::core::option::Option<::std::string::String> {
                crate::schema::Described::replaced_by(self, other)
            }
        }

        #default
        #policy_methods
        #same
    }
}

/// The field in the table.
fn row(field: &Field) -> TokenStream {
    let Field { ident, ty, json, doc, options } = field;
    let option = |present: bool, value: TokenStream| {
        if present { quote!(::core::option::Option::Some(#value)) } else { quote!(::core::option::Option::None) }
    };
    let hcl = match &options.hcl {
        Some(name) => quote!(#name),
        None => {
            let name = ident.unraw().to_string();
            quote!(#name)
        }
    };
    let written = if options.label {
        quote!(Label)
    } else if options.api {
        quote!(Api)
    } else {
        quote!(File)
    };
    let shape = match (&options.shape, &options.kind) {
        (Some(shape), _) => quote!(#shape),
        (None, Some(kind)) => quote!(crate::schema::Shape::Value(#kind)),
        (None, None) => quote!(<#ty as crate::schema::Held>::SHAPE),
    };
    let unset = if options.left_out {
        quote!(crate::schema::Unset::LeftOut)
    } else if options.null {
        quote!(crate::schema::Unset::Null)
    } else {
        quote!(<#ty as crate::schema::Held>::UNSET)
    };
    let effect = match options.effect {
        Some(Effect::InPlace) => option(true, quote!(crate::schema::Effect::InPlace)),
        Some(Effect::Replaces) => option(true, quote!(crate::schema::Effect::Replaces)),
        Some(Effect::ReplacesLocal) => option(true, quote!(crate::schema::Effect::ReplacesLocal)),
        Some(Effect::Inside) | None => option(false, quote!()),
    };
    let (server, client) = (&options.server, &options.client);
    let (server, client) = (option(server.is_some(), quote!(#server)), option(client.is_some(), quote!(#client)));
    let says =
        option(options.says.is_some(), options.says.as_ref().map_or_else(TokenStream::new, |says| quote!(#says)));
    let (required, at_reading) = (options.required, options.written);
    quote! {
        crate::schema::Field {
            hcl: #hcl,
            json: #json,
            written: crate::schema::Written::#written,
            shape: #shape,
            required: #required,
            unset: #unset,
            server: #server,
            client: #client,
            at_reading: #at_reading,
            effect: #effect,
            says: #says,
            doc: #doc,
        }
    }
}

fn fill(field: &Field) -> TokenStream {
    let ident = &field.ident;
    match &field.options.server {
        Some(literal) => quote!(crate::schema::fill(&mut self.#ident, #literal);),
        None => quote!(crate::schema::Held::fill_inside(&mut self.#ident);),
    }
}

/// Whether a change of this field replaces the allocation, and what to call it.
fn check(field: &Field) -> Option<TokenStream> {
    let Field { ident, options, .. } = field;
    if options.by_hand {
        return None;
    }
    let plain = ident.unraw().to_string();
    let name = options.hcl.as_ref().map_or(plain, syn::LitStr::value);
    match options.effect? {
        Effect::InPlace => None,
        Effect::Inside => Some(quote! {
            if let ::core::option::Option::Some(what) =
                crate::schema::Held::replaced_inside(&self.#ident, &other.#ident) {
                return ::core::option::Option::Some(::std::format!("{}.{what}", #name));
            }
        }),
        Effect::Replaces | Effect::ReplacesLocal => {
            // Unset is as good as the default.
            let differs = match &options.server {
                Some(literal) => quote!(!crate::schema::same(&self.#ident, &other.#ident, #literal)),
                None => quote!(self.#ident != other.#ident),
            };
            Some(quote! {
                if #differs {
                    return ::core::option::Option::Some(::std::string::String::from(#name));
                }
            })
        }
    }
}

/// What blocks have that are merged.
fn policy_methods(block: &Block) -> TokenStream {
    let Block { name, fields, .. } = block;
    let idents: Vec<_> = fields.iter().map(|field| &field.ident).collect();
    let getters = fields.iter().filter_map(|field| {
        let (ident, literal) = (&field.ident, field.options.server.as_ref()?);
        let (ty, doc) = (inner(&field.ty).0, format!("`{ident}`, or its default."));
        Some(quote! {
            #[doc = #doc]
            #[must_use]
            pub fn #ident(&self) -> #ty {
                self.#ident.clone().unwrap_or_else(|| crate::schema::value::<#ty>(#literal))
            }
        })
    });
    quote! {
        impl #name {
            /// Takes each field that is unset here from `outer`.
            pub fn inherit(&mut self, outer: &Self) {
                #(if self.#idents.is_none() { self.#idents.clone_from(&outer.#idents); })*
            }
            /// Every field set to what Nomad 1.9 documents as the default (for services, where the kinds differ).
            #[must_use]
            pub fn defaults() -> Self {
                let mut defaults = Self::default();
                crate::schema::Described::fill_defaults(&mut defaults);
                defaults
            }
            #(#getters)*
        }
    }
}
