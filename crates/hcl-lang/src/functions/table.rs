//! The table of functions, sorted by name. Columns: name, parameters, repeated last parameter, body, where.

use super::signature::{Body, Function, Kind, Param};
use super::{cidr, collection, crypto, encoding, files, format, numeric, setops, text, time};

const fn p(name: &'static str, kind: Kind) -> Param {
    Param { name, kind, null: false }
}

const fn nullable(name: &'static str, kind: Kind) -> Param {
    Param { name, kind, null: true }
}

const fn row(name: &'static str, params: &'static [Param], rest: Option<Param>, body: Body, place: Place) -> Function {
    Function {
        name,
        params,
        rest,
        body,
        driver: matches!(place, Place::Driver | Place::Both),
        job: matches!(place, Place::Job | Place::Both),
    }
}

/// Where a function may be called: in job files, in driver configurations, in both.
enum Place {
    Job,
    Driver,
    Both,
}

/// All functions, sorted by name.
#[rustfmt::skip]
pub static TABLE: &[Function] = &[
    row("abs", &[p("number", Kind::Number)], None, Body::Run(numeric::abs), Place::Both),
    row("abspath", &[p("path", Kind::String)], None, Body::Files(files::abspath), Place::Job),
    row("base64decode", &[p("str", Kind::String)], None, Body::Run(encoding::base64decode), Place::Job),
    row("base64encode", &[p("str", Kind::String)], None, Body::Run(encoding::base64encode), Place::Job),
    row("basename", &[p("path", Kind::String)], None, Body::Files(files::basename), Place::Job),
    row("bcrypt", &[p("str", Kind::String)], Some(p("cost", Kind::Number)), Body::Run(crypto::bcrypt), Place::Job),
    row("can", &[], None, Body::Can, Place::Job),
    row("ceil", &[p("number", Kind::Number)], None, Body::Run(numeric::ceil), Place::Job),
    row("chomp", &[p("str", Kind::String)], None, Body::Run(text::chomp), Place::Job),
    row("chunklist", &[p("list", Kind::Any), p("size", Kind::Number)], None, Body::Run(collection::chunklist),
        Place::Job),
    row("cidrhost", &[p("prefix", Kind::String), p("hostnum", Kind::Number)], None, Body::Run(cidr::host), Place::Job),
    row("cidrnetmask", &[p("prefix", Kind::String)], None, Body::Run(cidr::netmask), Place::Job),
    row("cidrsubnet", &[p("prefix", Kind::String), p("newbits", Kind::Number), p("netnum", Kind::Number)], None,
        Body::Run(cidr::subnet), Place::Job),
    row("cidrsubnets", &[p("prefix", Kind::String)], Some(p("newbits", Kind::Number)), Body::Run(cidr::subnets),
        Place::Job),
    row("coalesce", &[], Some(nullable("values", Kind::Any)), Body::Run(collection::coalesce), Place::Both),
    row("coalescelist", &[], Some(nullable("values", Kind::Any)), Body::Run(collection::coalescelist), Place::Job),
    row("compact", &[p("list", Kind::StringList)], None, Body::Run(collection::compact), Place::Job),
    row("concat", &[], Some(p("lists", Kind::Any)), Body::Run(collection::concat), Place::Both),
    row("contains", &[p("list", Kind::Any), nullable("value", Kind::Any)], None, Body::Run(collection::contains),
        Place::Job),
    row("convert", &[], None, Body::Convert, Place::Job),
    row("csvdecode", &[p("str", Kind::String)], None, Body::Run(encoding::csvdecode), Place::Job),
    row("dirname", &[p("path", Kind::String)], None, Body::Files(files::dirname), Place::Job),
    row("distinct", &[p("list", Kind::Any)], None, Body::Run(collection::distinct), Place::Job),
    row("element", &[p("list", Kind::Any), p("index", Kind::Number)], None, Body::Run(collection::element), Place::Job),
    row("file", &[p("path", Kind::String)], None, Body::Files(files::file), Place::Job),
    row("filebase64", &[p("path", Kind::String)], None, Body::Files(files::filebase64), Place::Job),
    row("fileexists", &[p("path", Kind::String)], None, Body::Files(files::fileexists), Place::Job),
    row("fileset", &[p("path", Kind::String), p("pattern", Kind::String)], None, Body::Files(files::fileset),
        Place::Job),
    row("flatten", &[p("list", Kind::Any)], None, Body::Run(collection::flatten), Place::Job),
    row("floor", &[p("number", Kind::Number)], None, Body::Run(numeric::floor), Place::Job),
    row("format", &[p("format", Kind::String)], Some(nullable("args", Kind::Any)), Body::Run(format::format),
        Place::Job),
    row("formatdate", &[p("format", Kind::String), p("time", Kind::String)], None, Body::Run(time::formatdate),
        Place::Job),
    row("formatlist", &[p("format", Kind::String)], Some(nullable("args", Kind::Any)), Body::Run(format::formatlist),
        Place::Job),
    row("hasindex", &[p("collection", Kind::Any), p("key", Kind::Any)], None, Body::Run(collection::hasindex),
        Place::Driver),
    row("indent", &[p("spaces", Kind::Number), p("str", Kind::String)], None, Body::Run(text::indent), Place::Job),
    row("index", &[p("collection", Kind::Any), p("key", Kind::Any)], None, Body::Run(collection::index), Place::Job),
    row("int", &[p("number", Kind::Number)], None, Body::Run(numeric::int), Place::Driver),
    row("join", &[p("separator", Kind::String)], Some(p("lists", Kind::StringList)), Body::Run(text::join), Place::Job),
    row("jsondecode", &[p("str", Kind::String)], None, Body::Run(encoding::jsondecode), Place::Both),
    row("jsonencode", &[nullable("value", Kind::Any)], None, Body::Run(encoding::jsonencode), Place::Both),
    row("keys", &[p("map", Kind::Any)], None, Body::Run(collection::keys), Place::Job),
    row("length", &[p("collection", Kind::Any)], None, Body::Run(collection::length), Place::Both),
    row("log", &[p("number", Kind::Number), p("base", Kind::Number)], None, Body::Run(numeric::log), Place::Job),
    row("lookup", &[p("map", Kind::Any), p("key", Kind::String), nullable("default", Kind::Any)], None,
        Body::Run(collection::lookup), Place::Job),
    row("lower", &[p("str", Kind::String)], None, Body::Run(text::lower), Place::Both),
    row("max", &[], Some(p("numbers", Kind::Number)), Body::Run(numeric::max), Place::Both),
    row("md5", &[p("str", Kind::String)], None, Body::Run(crypto::md5), Place::Job),
    row("merge", &[], Some(nullable("maps", Kind::Any)), Body::Run(collection::merge), Place::Job),
    row("min", &[], Some(p("numbers", Kind::Number)), Body::Run(numeric::min), Place::Both),
    row("parseint", &[p("number", Kind::Any), p("base", Kind::Number)], None, Body::Run(numeric::parseint), Place::Job),
    row("pathexpand", &[p("path", Kind::String)], None, Body::Files(files::pathexpand), Place::Job),
    row("pow", &[p("number", Kind::Number), p("power", Kind::Number)], None, Body::Run(numeric::pow), Place::Job),
    row("range", &[], Some(p("params", Kind::Number)), Body::Run(numeric::range), Place::Job),
    row("regex_replace", &[p("str", Kind::String), p("pattern", Kind::String), p("replacement", Kind::String)], None,
        Body::Run(text::regex_replace), Place::Job),
    row("replace", &[p("str", Kind::String), p("substring", Kind::String), p("replacement", Kind::String)], None,
        Body::Run(text::replace), Place::Job),
    row("reverse", &[p("str", Kind::String)], None, Body::Run(text::reverse), Place::Both),
    row("rsadecrypt", &[p("ciphertext", Kind::String), p("key", Kind::String)], None, Body::Refused("it needs RSA \
        with PKCS #1 v1.5, which is no longer considered safe; decrypt before submitting the job"), Place::Job),
    row("setintersection", &[], Some(p("sets", Kind::AnySet)), Body::Run(setops::intersection), Place::Job),
    row("setproduct", &[], Some(p("sets", Kind::Any)), Body::Run(setops::product), Place::Job),
    row("setunion", &[], Some(p("sets", Kind::AnySet)), Body::Run(setops::union), Place::Job),
    row("sha1", &[p("str", Kind::String)], None, Body::Run(crypto::sha1), Place::Job),
    row("sha256", &[p("str", Kind::String)], None, Body::Run(crypto::sha256), Place::Job),
    row("sha512", &[p("str", Kind::String)], None, Body::Run(crypto::sha512), Place::Job),
    row("signum", &[p("number", Kind::Number)], None, Body::Run(numeric::signum), Place::Job),
    row("slice", &[p("list", Kind::Any), p("start", Kind::Number), p("end", Kind::Number)], None,
        Body::Run(collection::slice), Place::Job),
    row("sort", &[p("list", Kind::StringList)], None, Body::Run(collection::sort), Place::Job),
    row("split", &[p("separator", Kind::String), p("str", Kind::String)], None, Body::Run(text::split), Place::Job),
    row("strlen", &[p("str", Kind::String)], None, Body::Run(text::strlen), Place::Both),
    row("strrev", &[p("str", Kind::String)], None, Body::Run(text::reverse), Place::Job),
    row("substr", &[p("str", Kind::String), p("offset", Kind::Number), p("length", Kind::Number)], None,
        Body::Run(text::substr), Place::Both),
    row("timeadd", &[p("time", Kind::String), p("duration", Kind::String)], None, Body::Run(time::timeadd), Place::Job),
    row("title", &[p("str", Kind::String)], None, Body::Run(text::title), Place::Job),
    row("trim", &[p("str", Kind::String), p("cutset", Kind::String)], None, Body::Run(text::trim), Place::Job),
    row("trimprefix", &[p("str", Kind::String), p("prefix", Kind::String)], None, Body::Run(text::trimprefix),
        Place::Job),
    row("trimspace", &[p("str", Kind::String)], None, Body::Run(text::trimspace), Place::Job),
    row("trimsuffix", &[p("str", Kind::String), p("suffix", Kind::String)], None, Body::Run(text::trimsuffix),
        Place::Job),
    row("try", &[], None, Body::Try, Place::Job),
    row("upper", &[p("str", Kind::String)], None, Body::Run(text::upper), Place::Both),
    row("urlencode", &[p("str", Kind::String)], None, Body::Run(encoding::urlencode), Place::Job),
    row("uuidv4", &[], None, Body::Run(crypto::uuidv4), Place::Job),
    row("uuidv5", &[p("namespace", Kind::String), p("name", Kind::String)], None, Body::Run(crypto::uuidv5),
        Place::Job),
    row("values", &[p("map", Kind::Any)], None, Body::Run(collection::values), Place::Job),
    row("yamldecode", &[p("str", Kind::String)], None, Body::Run(encoding::yamldecode), Place::Job),
    row("yamlencode", &[nullable("value", Kind::Any)], None, Body::Run(encoding::yamlencode), Place::Job),
    row("zipmap", &[p("keys", Kind::StringList), p("values", Kind::Any)], None, Body::Run(collection::zipmap),
        Place::Job),
];
